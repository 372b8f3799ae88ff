"""A wide job on a real cluster starts after a bounded wait, however many narrow jobs come after it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from plait.live.api.explain import Explanation
from plait.live.client.client import FINAL, Client
from plait.testing.cluster import Cluster

pytestmark = pytest.mark.engines

#: A script that ends when a file of this name appears.
UNTIL = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.05)\n"


class Jobs:
    """Plain jobs that run until the test lets them end, by name."""

    def __init__(self, folder: Path, service: Client) -> None:
        self.folder, self.service = folder, service
        self.ids: dict[str, str] = {}
        (folder / "until.py").write_text(UNTIL)

    def submit(self, name: str, gpus: int = 1, priority: float = 0.0) -> None:
        command = [sys.executable, str(self.folder / "until.py"), str(self.folder / name)]
        request = {"command": command, "workdir": str(self.folder), "gpus": gpus, "priority": priority}
        self.ids[name] = self.service.submit([request])[0].id

    def let_end(self, name: str) -> None:
        (self.folder / name).touch()
        self.until(name, *FINAL)

    def state(self, name: str) -> str:
        return self.service.job(self.ids[name]).state

    def explained(self, name: str) -> Explanation:
        return self.service.explain(self.ids[name])

    def until(self, name: str, *states: str) -> None:
        end = time.monotonic() + 90
        while (state := self.state(name)) not in states:
            assert time.monotonic() < end, (name, state)
            time.sleep(0.1)


def decisions(service: Client) -> int:
    """How many decisions there have been."""
    return sum(step["event"]["type"] == "ReplanDue" for step in service.all_events())


@pytest.mark.parametrize("policy", ["plait", "tiresias-l", "muri-l", "srsf", "fifo-backfill", "gandiva"])
def test_gpus_that_become_free_are_held_for_the_first_of_the_queue(policy: str, tmp_path: Path) -> None:
    options = {"round": 0.2, "policy": policy}
    with Cluster(tmp_path / "home", nodes=1, slots=2, options=options) as cluster, cluster.client() as service:
        jobs = Jobs(tmp_path, service)
        for name in ("a", "b"):
            jobs.submit(name)
        for name in ("a", "b"):
            jobs.until(name, "running")
        jobs.submit("wide", gpus=2, priority=5)
        jobs.submit("c")
        jobs.let_end("a")
        before = decisions(service)
        while decisions(service) <= before:
            jobs.submit(f"n{len(jobs.ids)}")  # each is a decision in which the policy would give the free GPU away
            time.sleep(0.5)
        narrow = [name for name in jobs.ids if name not in ("a", "b", "wide")]
        assert [jobs.state(name) for name in narrow] == ["waiting"] * len(narrow)
        wide, other = jobs.explained("wide").summary, jobs.explained("c").summary
        ids = jobs.ids
        assert wide.startswith(f"needs 2 GPUs; waits until {ids['b']} has ended or may be stopped")
        assert "(1 GPU reserved for it: n0:" in wide
        assert other.startswith(f"needs 1 GPU; free ones are held for {ids['wide']}, which is ahead of it")
        assert service.status().gpus.reserved_idle == 1
        jobs.let_end("b")
        jobs.until("wide", "running")
        assert {jobs.state(name) for name in narrow} == {"waiting"}
        jobs.let_end("wide")
        jobs.until("c", "running")
        status = service.status()
        assert status.gpus.reserved_idle == 0
        assert status.reserved_idle_gpu_s > 0
