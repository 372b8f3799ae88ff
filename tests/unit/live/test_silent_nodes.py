"""A node of which nothing is heard gets no new work, and says so; what runs there stays until the node is lost."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_cases import Cluster

from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.notes import entry_from_json
from plait.live.scheduler.state import State


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, nodes=(2, 2), lost_s=300.0, lease_s=240.0)
    yield made
    made.store.close()


def where(cluster: Cluster, job: int) -> str:
    return next(node.info.id for node in cluster.nodes if job in node.jobs())


def folded(cluster: Cluster) -> State:
    state = State()
    for row in cluster.store.entries():
        apply(state, entry_from_json(json.loads(row.entry)))
    return state


def test_a_new_job_goes_elsewhere_than_to_a_half_free_silent_node(cluster: Cluster) -> None:
    (first,) = cluster.submit({}, then_s=1.1)
    silent = where(cluster, first)
    cluster.pass_s(5.0, silent=[silent])
    (second,) = cluster.submit({})
    cluster.pass_s(2.0, silent=[silent])
    assert where(cluster, second) != silent
    (third, fourth) = cluster.submit({}, {})
    cluster.pass_s(2.0, silent=[silent])
    assert where(cluster, third) != silent
    assert cluster.state(fourth) == "waiting"
    told = cluster.engine.explain(fourth, cluster.now).summary
    assert f"nothing new starts on {silent}, which has not reported lately" in told
    assert cluster.state(first) == "unreachable"
    cluster.pass_s(2.0)
    assert where(cluster, fourth) == silent, "it is heard of again"
    assert cluster.state(first) == "running"
    assert cluster.types().count("AttemptBegan") == 4, "nobody was moved"


def test_a_job_that_was_to_move_to_a_node_that_falls_silent_goes_elsewhere(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nodes=(1, 1, 1), lost_s=300.0, lease_s=240.0)
    (job,) = cluster.submit({}, then_s=1.1)
    old = next(node for node in cluster.nodes if job in node.jobs())
    old.obeys = False
    cluster.engine.drain(old.info.id, cluster.now)
    cluster.pass_s(2.0)
    record, controller = cluster.engine.state.jobs[job], cluster.engine.state.controller
    assert controller is not None
    wanted = cluster.engine.state.wanted(record)
    silent = controller.cluster.nodes[int(controller.cluster.gpu_node[wanted[0]])].id
    assert silent != old.info.id
    cluster.pass_s(6.0, silent=[silent])
    old.obeys = True
    cluster.pass_s(3.0, silent=[silent])
    assert where(cluster, job) not in (silent, old.info.id)
    assert cluster.state(job) == "running"
    cluster.store.close()


def test_the_log_and_a_restart_know_of_a_silent_node(cluster: Cluster) -> None:
    (job,) = cluster.submit({}, then_s=1.1)
    silent = where(cluster, job)
    cluster.pass_s(5.0, silent=[silent])
    state = folded(cluster)
    assert state.nodes[silent].suspect
    kept = State.from_json(json.loads(json.dumps(state.to_json())))
    assert kept.nodes[silent].suspect
    cluster.restart()
    (second,) = cluster.submit({"gpus": 2})
    (third,) = cluster.submit({"gpus": 2})
    cluster.pass_s(2.0, silent=[silent])
    assert where(cluster, second) != silent
    assert cluster.state(third) == "waiting"
    cluster.pass_s(2.0)
    assert {n.state for n in cluster.engine.nodes(cluster.now)} == {"ready"}
    assert cluster.state(job) == "running"


def test_a_snapshot_of_before_nodes_could_be_suspect_is_read(cluster: Cluster) -> None:
    data = json.loads(json.dumps(cluster.engine.state.to_json()))
    for row in data["nodes"]:
        del row["suspect"]
    assert not any(node.suspect for node in State.from_json(data).nodes.values())


def test_a_drained_node_that_is_silent_comes_back_drained(cluster: Cluster) -> None:
    cluster.engine.drain("n0", cluster.now)
    cluster.pass_s(5.0, silent=["n0"])
    assert {n.id: n.state for n in cluster.engine.nodes(cluster.now)}["n0"] == "suspect"
    assert folded(cluster).node_rows() == cluster.engine.state.node_rows(), "a snapshot has what the log says"
    cluster.pass_s(1.0)
    assert {n.id: n.state for n in cluster.engine.nodes(cluster.now)}["n0"] == "drained"
    jobs = cluster.submit({}, {}, {}, then_s=2.0)
    assert [cluster.state(job) for job in jobs] == ["running", "running", "waiting"]
