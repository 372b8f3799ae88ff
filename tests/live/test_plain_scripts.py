"""Ordinary scripts on a real cluster under the default policy: none is stopped, so none begins twice."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from plait.live.client.client import FINAL
from plait.live.scheduler.engine import DEFAULT_POLICY
from plait.testing.cluster import Cluster

pytestmark = pytest.mark.engines

#: Both note each beginning; the second goes on from its checkpoint.
PLAIN = """
import sys, time
open(sys.argv[1], "a").write("begins\\n")
for i in range(60):
    time.sleep(0.05)
"""
ATTACHED = """
import sys, time
from plait.training import attach
open(sys.argv[1], "a").write("begins\\n")
state = {"done": 0}
job = attach(state=state)
for step in job.steps(80):
    time.sleep(0.05)
    state["done"] += 1
open(sys.argv[1], "a").write(f"done {state['done']}\\n")
"""


def test_plain_scripts_beside_attached_ones_run_once_each_and_all_end(tmp_path: Path) -> None:
    for name, text in (("plain.py", PLAIN), ("attached.py", ATTACHED)):
        (tmp_path / name).write_text(text)
    scripts = ["plain.py", "plain.py", "attached.py", "plain.py"]
    with Cluster(tmp_path / "home", nodes=1, slots=1, options={"round": 0.2}) as cluster, cluster.client() as service:
        jobs = [
            {"command": [sys.executable, str(tmp_path / script), str(tmp_path / f"{i}.txt")], "workdir": str(tmp_path)}
            for i, script in enumerate(scripts)
        ]
        names = [one.id for one in service.submit(jobs)]
        until = time.monotonic() + 90
        while any((found := service.job(name)).state not in FINAL for name in names):
            assert time.monotonic() < until, found
            time.sleep(0.2)
        ended = [service.job(name) for name in names]
        assert [one.state for one in ended] == ["finished"] * 4
        assert service.policy().policy == DEFAULT_POLICY
        plain = [i for i, script in enumerate(scripts) if script == "plain.py"]
        assert [ended[i].epoch for i in plain] == [1, 1, 1]
        assert [ended[i].preemptions for i in plain] == [0, 0, 0]
        assert [(tmp_path / f"{i}.txt").read_text() for i in plain] == ["begins\n"] * 3
        assert (tmp_path / "2.txt").read_text().endswith("done 80\n")  # whatever it was stopped for in between
        assert "preempted" not in service.status().lost.work_gpu_s
        events = [step["event"]["type"] for step in service.all_events()]
        assert "StopCostReported" in events
