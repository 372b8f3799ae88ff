"""A whole cluster with policy antman: a guest beside a host, a promotion, a killed agent, a killed guest."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.live.api.jobs import Neighbour
from plait.live.store import Store
from plait.live.system import procs
from plait.outlook.log_replay import replay, stored_rows
from plait.runtime.page import Page
from plait.testing import Cluster, leaks

pytestmark = pytest.mark.engines

SCRIPT = Path(__file__).parent / "scripts" / "page_job.py"
SHARED = {"cpu": 0.008, "gpu": 0.002}


def until(true: Callable[[], Any], what: str, cluster: Cluster, deadline_s: float = 60.0) -> Any:
    end = time.monotonic() + deadline_s
    while not (value := true()):
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        cluster.maintain()
        time.sleep(0.05)
    return value


def test_guests_run_beside_their_host_and_outlive_agents_and_it(tmp_path: Path) -> None:
    def job(job_class: str) -> dict[str, Any]:
        return {
            "command": [sys.executable, str(SCRIPT), str(tmp_path), "1000000"], "class": job_class, "profile": SHARED,
            "gpu_memory": 2e9, "retries": 5,
        }  # fmt: skip

    options = {"policy": "antman:max_per_gpu=2,auto_after_s=0,crowding=off", "round": 0.5}
    with (
        Cluster(tmp_path / "home", nodes=1, slots=1, options=options, slot_memory_gb=16.0) as cluster,
        cluster.client() as client,
    ):
        layout = cluster.layout

        def page(number: int, epoch: int = 1) -> Page:
            return Page.open(layout.rank(number, epoch, 0) / "page.bin", mapped=False)

        def leased(number: int, epoch: int = 1) -> bool:
            with page(number, epoch) as words:
                return words.share_until > time.monotonic()

        client.submit([job("guaranteed")])
        until(lambda: client.job("j-0").state == "running", "the host", cluster)
        client.submit([job("opportunistic"), job("auto")])
        until(lambda: all(client.job(f"j-{n}").state == "running" for n in (1, 2)), "two guests", cluster)
        found = until(lambda: (s := client.job("j-1").sharing) and s.share and s, "a share", cluster)
        assert (found.guest, found.beside[0]) == (True, Neighbour("j-0", "n0:0", guest=False))
        text = client.explain("j-1").summary
        assert text.startswith("runs as a guest of j-0 on n0:0 at share 0.")
        assert "; next to it: j-2 on n0:0" in text
        assert text.endswith("; no GPU is idle")
        assert "what it leaves goes to j-1 on n0:0" in client.explain("j-0").summary
        limits = [page(n).directive.memory_limit_bytes or 0 for n in range(3)]
        assert 0 < sum(limits) < 16e9

        # The agent dies and comes back: nobody is started again, and no guest runs without it.
        agent = cluster.agent("n0")
        assert agent.send(signal.SIGKILL)
        end = time.monotonic() + 20
        while leased(1) or leased(2):
            assert time.monotonic() < end
            time.sleep(0.05)
        until(lambda: leased(1) and leased(2), "a lease by the next agent", cluster)

        # A guest is killed: that is its own trouble, and it goes on from what it has saved.
        claim = procs.read_json(layout.rank(1, 1, 0) / "runner.json") or {}
        os.kill(int(claim["child"]), signal.SIGKILL)  # it has trained: its runner knows it
        until(lambda: client.job("j-1").epoch == 2 and client.job("j-1").state == "running", "it again", cluster)

        def measured() -> bool:
            events = (step["event"] for step in client.all_events())
            return any(e["type"] == "UsageReported" and {0, 1, 2} & set(e["jobs"]) for e in events)

        until(measured, "figures of jobs in the log", cluster)

        # The host ends: one guest takes its place where it runs.
        (tmp_path / "hurry-j-0").touch()
        until(lambda: client.job("j-0").state == "finished", "the end of the host", cluster)
        until(lambda: not client.job("j-2").sharing.guest, "a promotion in place", cluster)
        assert client.job("j-2").epoch == 1
        until(lambda: client.explain("j-1").summary.startswith("runs as a guest of j-2 on n0:0"), "its host", cluster)
        until(lambda: not leased(2), "a host without a lease", cluster)
        for number in (1, 2):
            (tmp_path / f"hurry-j-{number}").touch()
        until(lambda: {j.state for j in client.jobs()} == {"finished"}, "the end of all", cluster)
        assert [client.job(f"j-{n}").epoch for n in range(3)] == [1, 2, 1]
    assert leaks(layout) == []
    store = Store.open(layout.database)
    try:
        entries = [json.loads(row.entry) for row in store.entries()]
        ends = [(e["job"], e["exit_code"]) for e in entries if e["type"] == "RankEnded"]
        assert sorted(ends, key=str) == [(0, 0), (1, -signal.SIGKILL), (1, 0), (2, 0)]
        assert [(e["job"], e["why"]) for e in entries if e["type"] == "StopAsked"] == [(1, "failed")]
        assert replay(stored_rows(store)).difference is None
    finally:
        store.close()
