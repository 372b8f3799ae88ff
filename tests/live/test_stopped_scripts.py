"""Scripts that exit with 0 when they are stopped go on later; failures that repeat end; losses are refused."""

import sys
from pathlib import Path

import pytest
from agent_world import until

from plait.live.client.client import Refused
from plait.testing.cluster import Cluster

pytestmark = pytest.mark.engines

#: They save on SIGTERM by themselves, exit with 0, and are done in their second attempt.
PLAIN = """
import os, signal, sys, time
if os.environ["PLAIT_EPOCH"] == "2":
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(sys.argv[1], "w").close()
time.sleep(900)
"""
ATTACHED = """
import os, signal, sys, time
from plait.training import attach
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
state = {"done": 0}
job = attach(state=state)
for step in job.steps(10**6 if os.environ["PLAIT_EPOCH"] == "1" else 10):
    time.sleep(0.02)
    open(sys.argv[1], "w").close()
"""
FAILS = "print('pid', __import__('os').getpid()); raise KeyError(f'no key {id(object())}')"


def test_stopped_scripts_that_exit_with_0_start_again_and_then_finish(tmp_path: Path) -> None:
    for name, text in (("plain.py", PLAIN), ("attached.py", ATTACHED)):
        (tmp_path / name).write_text(text)
    with Cluster(tmp_path / "home", nodes=2, slots=3, options={"round": 0.2}) as cluster, cluster.client() as service:
        scripts = ["plain.py", "attached.py", "plain.py"]
        begun = [tmp_path / f"begun-{i}" for i in range(3)]
        jobs = [
            {"command": [sys.executable, str(tmp_path / script), str(path)], "workdir": str(tmp_path)}
            for script, path in zip(scripts, begun, strict=True)
        ]
        requeued, attached, drained = (one.id for one in service.submit(jobs))
        until(lambda: all(path.exists() for path in begun), "start of the jobs", 90.0, 0.2)
        until(lambda: len(service.losses().losses) == 2, "reports of the plain jobs", 90.0, 0.2)
        with pytest.raises(Refused, match=f"^{requeued} would lose .* and begin at the beginning; nothing was done"):
            service.requeue(requeued)
        service.requeue(requeued, may_lose_work=True)
        service.requeue(attached, may_lose_work=True)
        for name in (requeued, attached):  # before the drain, which would stop them again
            until(lambda name=name: service.job(name).state == "finished", f"end of {name}", 90.0, 0.2)
        (node,) = service.job(drained).nodes
        assert drained in {one.id for one in service.losses(nodes=[node]).losses}
        with pytest.raises(Refused, match=f"{drained} would lose"):
            service.drain(node)
        assert not next(one.drained for one in service.nodes() if one.id == node)
        service.drain(node, may_lose_work=True)
        until(lambda: service.job(drained).state == "finished", f"end of {drained}", 90.0, 0.2)
        for name in (requeued, attached, drained):
            found = service.job(name)
            assert (found.epoch, found.failures) == (2, 0), found
            assert [one.state for one in found.attempts] == ["preempted", "finished"]


def test_a_failure_that_repeats_itself_is_tried_twice_and_its_reason_begins_with_the_cause(tmp_path: Path) -> None:
    with Cluster(tmp_path / "home", nodes=1, slots=1, options={"round": 0.2}) as cluster, cluster.client() as service:
        (job,) = service.submit([{"command": [sys.executable, "-c", FAILS], "workdir": str(tmp_path)}])
        until(lambda: service.job(job.id).state == "failed", "end of the job", 90.0, 0.2)
        found = service.job(job.id)
        assert found.epoch == 2
        assert found.reason.startswith("KeyError: 'no key ")
        assert "(exit code 1); not retried, because it ended in the same way twice" in found.reason
