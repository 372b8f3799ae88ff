"""A wide job on a real cluster starts after a bounded wait, however many narrow jobs come after it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_shell import Shell

from documented_code import ROOT, SHELL, blocks
from plait.live.api.explain import Explanation
from plait.live.client.client import FINAL, Client
from plait.live.supervisor.services import service_process
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


# -- notifications of a real service: none twice and none lost silently, although it is killed while it sends one ---


def pid(plait: Shell) -> int:
    """The process of the service; 0 while there is none."""
    found = service_process(plait.layout)
    return 0 if found is None else found.pid


def test_a_service_that_is_killed_while_it_sends_sends_nothing_twice(plait: Shell, tmp_path: Path) -> None:
    got, slow, file = tmp_path / "got", tmp_path / "slow", tmp_path / "notify.toml"
    slow.touch()
    program = f"cat >> {got}; echo >> {got}; while [ -e {slow} ]; do sleep 0.1; done"
    command = json.dumps(["bash", "-c", program])
    file.write_text(f"[desk]\ncommand = {command}\nevents = ['started', 'finished']\n")

    def told() -> list[tuple[str, str]]:
        lines = got.read_text().splitlines() if got.exists() else []
        return [(one["job"], one["event"]) for line in lines if (one := json.loads(line))]

    plait("up", "--nodes", 1, "--gpus-per-node", 2, "--fake", "--round", 0.2, "--notify", file)
    assert "no such channel; did you mean 'desk'?" in plait("submit", "--notify", "disk", "--", "true", code=2)
    first = plait.submit("--", "true")
    plait.comes(lambda: told() == [(first, "started")])
    old = pid(plait)
    os.kill(old, signal.SIGKILL)  # its try has not ended
    plait.comes(lambda: pid(plait) not in (0, old))
    slow.unlink()
    plait.comes(lambda: told() == [(first, "started"), (first, "finished")])
    events: list[dict[str, Any]] = [json.loads(line)["event"] for line in plait("events", "--json").splitlines()]
    (lost,) = [one for one in events if one["type"] == "Undelivered"]
    assert (lost["channel"], lost["event"]) == ("desk", "started")
    plait("down")
    plait("up")
    second = plait.submit("--", "true")
    plait.comes(lambda: told()[2:] == [(second, "started"), (second, "finished")])


# -- the pages for a lab and from Slurm: their commands run in order on a cluster of slots, and each succeeds ---


PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")


UP = "plait up --nodes 2 --gpus-per-node 4 --cpu-slots 2"
THREE = "plait submit --array 0-2 -g 1 -- python train.py"
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1 --time=1:00 --output=out.%j
srun python train.py "$@"
"""


@pytest.mark.parametrize(
    ("page", "before", "states"),
    [
        ("for-a-lab", [], {"finished": 7}),
        # The job that waits until 18:00 is cancelled, so the evaluation fails, and the report runs.
        ("from-slurm", [UP, THREE], {"finished": 6, "cancelled": 1, "failed": 1}),
    ],
)
def test_the_commands_of_the_page_run(tmp_path: Path, page: str, before: list[str], states: dict[str, int]) -> None:
    for name in ("train", "evaluate", "prepare", "report"):
        (tmp_path / f"{name}.py").write_text("import sys, time; time.sleep(0.5); print(sys.argv)")
    (tmp_path / "job.sh").write_text(SCRIPT)
    environ = {**os.environ, "PLAIT_HOME": str(tmp_path / "home")}

    def run(words: list[str]) -> None:
        words = [*words, "--fake"] if words[1] == "up" else words
        done = subprocess.run(
            [*PLAIT, *words[1:]], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"

    try:
        for command in before:
            run(shlex.split(command))
        found = [block for block in blocks(ROOT / f"docs/how-to/{page}.md") if block.language in SHELL]
        assert len(found) >= 2
        for block in found:
            for words in block.commands():
                run(words)
            with Client.at(str(tmp_path / "home")) as service:
                until = time.monotonic() + 120
                while any(row.state not in FINAL for row in service.jobs(limit=100)) and block is not found[0]:
                    assert time.monotonic() < until
                    time.sleep(0.2)
                ended = Counter(row.state for row in service.jobs(limit=100))
    finally:
        run(["plait", "down", "--stop-jobs"])
    assert ended == states
