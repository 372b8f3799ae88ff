"""Nodes that are taken away with a notice, as spot machines are: jobs are checkpointed and go on elsewhere."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from manual_cluster import HandCluster, alone

from plait.live.client.client import Refused
from plait.live.supervisor.down import job_processes

pytestmark = [pytest.mark.engines, pytest.mark.slow]

SPOT = ("--stop-jobs", "--stop-grace", "45")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    made = HandCluster(tmp_path / "home")
    made.start_service()
    yield made
    made.close()
    assert job_processes(made.layout) == {}


def resumed_at(text: str) -> float:
    found = re.search(r"resumed at (\d+)", text)
    assert found is not None, text
    return float(found[1])


def test_a_job_is_checkpointed_within_the_notice_and_finishes_elsewhere(cluster: HandCluster, tmp_path: Path) -> None:
    for node in ("n0", "n1"):
        cluster.start_agent(node, *SPOT)
    out = tmp_path / "out"
    out.mkdir()
    job = cluster.train(out, 3, 0.25)
    before = cluster.has_made(job, 5)
    (node,) = before.nodes
    assert cluster.end_agent(node) == 0
    assert cluster.states()[node] == "left"  # at once: nobody waits for its silence
    found = cluster.finishes(job)
    (there,) = found.nodes
    assert {node, there} == {"n0", "n1"}
    assert [a.state for a in found.attempts] == ["preempted", "finished"]
    assert (found.failures, found.epoch) == (0, 2)
    # What it had made when it was told to go is in the checkpoint that it went on from.
    assert resumed_at(cluster.log_of(job, 2)) >= before.iterations_done
    name = f"{job}-e2-r0.bin"
    assert (out / name).read_bytes() == alone(tmp_path / "alone", 3)

    with cluster.client as client:
        client.forget_node(node)
        with pytest.raises(Refused, match="still reports"):
            client.forget_node(there)
    assert cluster.states() == {there: "ready"}
    cluster.start_agent(node, "--rack", "3", "--gpu-kind", "a100", gpus=2)  # the name comes back, with other hardware
    with cluster.client as client:
        again = next(n for n in client.nodes() if n.id == node)
    assert (again.gpus, again.rack, again.gpu_kind) == (2, 3, "a100")


def test_a_gang_goes_on_with_a_node_that_joined_for_one_that_went(cluster: HandCluster, tmp_path: Path) -> None:
    for node in ("n0", "n1"):
        cluster.start_agent(node, *SPOT)
    out = tmp_path / "out"
    out.mkdir()
    job = cluster.train(out, 5, 1.0, gpus=2)
    before = cluster.has_made(job, 4)
    cluster.start_agent("n2", *SPOT)
    assert cluster.job(job).epoch == 1  # nobody is moved because there is more room
    assert cluster.end_agent("n1") == 0
    (out / "hurry").touch()
    found = cluster.finishes(job)
    assert sorted(found.nodes) == ["n0", "n2"]
    assert [a.state for a in found.attempts] == ["preempted", "finished"]
    assert found.failures == 0
    assert resumed_at(cluster.log_of(job, 2)) >= before.iterations_done
    assert (out / f"{job}-e2-r0.bin").stat().st_size == (out / f"{job}-e2-r1.bin").stat().st_size


def test_an_agent_without_the_option_leaves_its_jobs_for_the_next_one(cluster: HandCluster, tmp_path: Path) -> None:
    cluster.start_agent("n0")
    out = tmp_path / "out"
    out.mkdir()
    job = cluster.train(out, 3, 0.2)
    cluster.has_made(job, 2)
    assert cluster.end_agent("n0", signal.SIGTERM) == 0
    assert cluster.states()["n0"] == "ready"
    cluster.start_agent("n0")
    found = cluster.finishes(job)
    assert [a.state for a in found.attempts] == ["finished"]
