"""Nodes that give notice, die for certain, are forgotten, and join again while jobs run."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from live_cases import Cluster, Node

from plait.control.occupancy import occupancy
from plait.control.outcomes import outcomes
from plait.core.cluster import Cluster as Hardware
from plait.core.cluster import Node as Machine
from plait.core.errors import Conflict
from plait.live.protocol.wire import PREEMPTED, RUNNING, Assignment, Observed
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.notes import entry_from_json
from plait.live.scheduler.state import State
from plait.outlook.log_replay import replay, stored_rows


class Leaver(Node):
    """An agent that can give notice."""

    leaving_s: float | None = None

    def observed(self) -> Observed:
        return replace(super().observed(), leaving_s=self.leaving_s)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, nodes=())
    made.nodes = [Leaver(made, name, 2) for name in ("n0", "n1")]
    made.pass_s(0.6)
    yield made
    made.store.close()


def shown(cluster: Cluster) -> dict[str, str]:
    return {node.id: node.state for node in cluster.engine.nodes(cluster.now)}


def stored(cluster: Cluster) -> set[str]:
    with cluster.store.reading() as connection:
        return {row[0] for row in connection.exec_driver_sql("select id from nodes")}


def place(cluster: Cluster, job: int) -> Leaver:
    found = [node for node in cluster.nodes if job in node.jobs()]
    assert len(found) == 1
    assert isinstance(found[0], Leaver)
    return found[0]


def other(cluster: Cluster, node: Node) -> Leaver:
    found = next(n for n in cluster.nodes if n is not node)
    assert isinstance(found, Leaver)
    return found


def go(node: Leaver) -> None:
    node.leaving_s, node.obeys = 0.0, False
    node.sync()


def test_a_notice_moves_jobs_with_a_checkpoint_within_it_and_without_charge(cluster: Cluster) -> None:
    (job,) = cluster.submit({"gpus": 2, "retries": 0}, then_s=1.1)
    node = place(cluster, job)
    node.report(job, steps=7.0)
    node.obeys, node.leaving_s = False, 12.5
    node.sync()
    answer = node.sync()
    assert [(run.stop, run.grace_s) for run in answer.attempts] == [(True, 12.5)] * 2
    assert shown(cluster)[node.info.id] == "leaving"
    assert cluster.state(job) == "stopping"
    node.obeys = True
    cluster.pass_s(2.2)
    assert place(cluster, job) is other(cluster, node)
    assert cluster.state(job) == "running"
    go(node)
    assert shown(cluster)[node.info.id] == "left"
    record = cluster.engine.state.jobs[job]
    assert (record.requeues, record.launch_failures) == (0, 0)
    stored = cluster.store.job(job)
    assert (stored.row.failures, stored.attempts[0].state) == (0, "preempted")


@pytest.mark.parametrize("pid", [100, 0], ids=["a process that stopped at once", "an attempt that was declined"])
def test_a_notice_that_comes_with_the_ends_of_processes_charges_nobody(cluster: Cluster, pid: int) -> None:
    (job,) = cluster.submit({"retries": 0}, then_s=1.1)
    node = place(cluster, job)
    node.end(job, PREEMPTED, pid=pid, reason="the node leaves")
    node.leaving_s = 20.0
    node.sync()
    cluster.pass_s(2.2)
    assert place(cluster, job) is other(cluster, node)
    record = cluster.engine.state.jobs[job]
    assert (record.requeues, record.launch_failures) == (0, 0)
    stored = cluster.store.job(job)
    assert (stored.row.state, stored.row.failures, stored.attempts[0].state) == ("running", 0, "preempted")


def test_a_failure_that_comes_with_a_notice_stays_one(cluster: Cluster) -> None:
    (job,) = cluster.submit({"retries": 0}, then_s=1.1)
    node = place(cluster, job)
    node.end(job, 1)
    node.leaving_s = 20.0
    node.sync()
    cluster.pass_s(2.2)
    assert cluster.state(job) == "failed"


def test_the_usual_grace_is_not_made_longer_by_a_long_notice(cluster: Cluster) -> None:
    (job,) = cluster.submit({}, then_s=1.1)
    node = place(cluster, job)
    node.obeys, node.leaving_s = False, 1e5
    node.sync()
    assert [run.grace_s for run in node.sync().attempts] == [cluster.options.grace_s]


@pytest.mark.parametrize("nonsense", [math.nan, -1.0, math.inf])
def test_a_notice_that_is_no_time_is_none(cluster: Cluster, nonsense: float) -> None:
    cluster.nodes[0].leaving_s = nonsense  # type: ignore[attr-defined]
    cluster.pass_s(1.1)
    assert shown(cluster)["n0"] == "ready"


def test_a_leaving_node_gets_no_new_work_and_says_so_again_after_a_restart(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    assert isinstance(node, Leaver)
    node.leaving_s = 30.0
    cluster.pass_s(0.6)
    jobs = cluster.submit(*[{} for _ in range(4)], then_s=2.2)
    assert not node.jobs()
    assert [cluster.state(job) for job in jobs].count("running") == 2
    cluster.restart(then_s=2.2)
    assert shown(cluster) == {"n0": "leaving", "n1": "ready"}
    assert not node.jobs()


def test_a_restart_in_the_middle_of_a_notice_keeps_its_grace(cluster: Cluster) -> None:
    (job,) = cluster.submit({}, then_s=1.1)
    node = place(cluster, job)
    node.obeys, node.leaving_s = False, 9.0
    node.sync()
    cluster.restart()
    assert [(run.stop, run.grace_s) for run in node.sync().attempts] == [(True, 9.0)]


def test_late_words_do_not_bring_a_node_back_but_another_agent_does(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    assert isinstance(node, Leaver)
    node.leaving_s = 5.0
    node.sync()
    before = node.observed()
    go(node)
    for late in (before, replace(before, leaving_s=None)):
        cluster.engine.observe(late, cluster.now)
        assert shown(cluster)["n0"] == "left"
    node.agent, node.leaving_s, node.obeys = "another", None, True
    cluster.pass_s(1.1)
    assert shown(cluster)["n0"] == "ready"
    jobs = cluster.submit({}, {}, {}, {}, then_s=2.2)
    assert all(cluster.state(job) == "running" for job in jobs)


def test_a_drained_node_that_leaves_and_comes_back_is_still_drained(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    assert isinstance(node, Leaver)
    cluster.engine.drain("n0", cluster.now)
    node.leaving_s = 5.0
    cluster.pass_s(0.6)
    cluster.engine.resume("n0", cluster.now)  # it still goes
    assert shown(cluster)["n0"] == "leaving"
    cluster.engine.drain("n0", cluster.now)
    go(node)
    node.agent, node.leaving_s = "another", None
    cluster.pass_s(0.6)
    assert shown(cluster)["n0"] == "drained"
    cluster.engine.resume("n0", cluster.now)
    assert shown(cluster)["n0"] == "ready"


def test_what_a_backend_says_is_believed_only_of_a_silent_node(cluster: Cluster) -> None:
    (job,) = cluster.submit({}, then_s=1.1)
    node = place(cluster, job)
    cluster.engine.node_gone(node.info.id, "its machine is off", cluster.now)
    cluster.pass_s(1.1)
    assert shown(cluster)[node.info.id] == "ready"  # it spoke after that
    cluster.engine.node_gone(node.info.id, "its machine is off", cluster.now)
    cluster.pass_s(cluster.options.suspect_s + 1.5, silent=[node.info.id])
    assert shown(cluster)[node.info.id] == "lost"
    cluster.pass_s(1.1, silent=[node.info.id])
    assert job in other(cluster, node).jobs()


def test_a_node_silent_for_a_while_is_lost_at_once_when_its_death_is_known(cluster: Cluster) -> None:
    cluster.pass_s(cluster.options.suspect_s + 0.5, silent=["n0"])
    assert shown(cluster)["n0"] == "suspect"
    cluster.engine.node_gone("n0", "its machine is off", cluster.now)
    assert shown(cluster)["n0"] == "lost"


def test_a_dead_node_is_forgotten_everywhere_and_for_good(cluster: Cluster) -> None:
    for node in ("n0", "n1"):
        with pytest.raises(Conflict, match="still reports"):
            cluster.engine.forget_node(node, cluster.now)
    go(cluster.nodes.pop(0))  # type: ignore[arg-type]
    assert stored(cluster) == {"n0", "n1"}
    cluster.engine.forget_node("n0", cluster.now)
    assert shown(cluster) == {"n1": "ready"}
    assert stored(cluster) == {"n1"}
    with pytest.raises(LookupError):
        cluster.engine.forget_node("n0", cluster.now)
    cluster.restart()
    assert shown(cluster) == {"n1": "ready"}
    snapshot = State.from_json(json.loads(json.dumps(cluster.engine.state.to_json())))
    assert list(snapshot.nodes) == ["n1"]
    assert snapshot.to_json() == cluster.engine.state.to_json()
    again = State()
    for row in cluster.store.entries():
        apply(again, entry_from_json(json.loads(row.entry)))
    assert list(again.nodes) == ["n1"]


def test_a_drained_node_can_be_forgotten_once_its_agent_is_silent(cluster: Cluster) -> None:
    cluster.engine.drain("n0", cluster.now)
    with pytest.raises(Conflict, match="still reports"):
        cluster.engine.forget_node("n0", cluster.now)
    cluster.nodes.pop(0)
    cluster.pass_s(cluster.options.suspect_s + 0.5)
    cluster.engine.forget_node("n0", cluster.now)
    assert shown(cluster) == {"n1": "ready"}


def test_a_node_with_a_job_that_nobody_replaced_is_kept_until_it_is_dead_for_certain(cluster: Cluster) -> None:
    (job,) = cluster.submit({"gpus": 4}, then_s=1.1)
    cluster.pass_s(cluster.options.lost_s + 1, silent=["n0"])
    assert shown(cluster)["n0"] == "lost"
    with pytest.raises(Conflict, match="j-0"):
        cluster.engine.forget_node("n0", cluster.now)
    cluster.nodes = cluster.nodes[1:]
    cluster.engine.node_gone("n0", "its machine is off", cluster.now)
    cluster.engine.forget_node("n0", cluster.now)
    assert cluster.state(job) == "waiting"
    cluster.nodes.append(Leaver(cluster, "n2", 2))
    cluster.pass_s(2.2)
    assert cluster.state(job) == "running"
    assert cluster.engine.state.jobs[job].epoch == 2


def test_a_forgotten_name_may_come_back_with_other_hardware(cluster: Cluster) -> None:
    go(cluster.nodes.pop(0))  # type: ignore[arg-type]
    cluster.engine.forget_node("n0", cluster.now)
    cluster.nodes.append(Leaver(cluster, "n0", 5))
    (job,) = cluster.submit({"gpus": 5}, then_s=2.2)
    assert shown(cluster) == {"n1": "ready", "n0": "ready"}
    assert cluster.state(job) == "running"


def test_a_cluster_whose_nodes_come_and_go_does_not_grow(cluster: Cluster) -> None:
    jobs = cluster.submit(*[{} for _ in range(3)], then_s=1.1)
    for i in range(8):
        cluster.nodes.append(Leaver(cluster, f"spot-{i}", 2))
        cluster.pass_s(1.1)
        oldest = cluster.nodes[0]
        assert isinstance(oldest, Leaver)
        oldest.leaving_s = 5.0
        cluster.pass_s(3.3)
        go(oldest)
        cluster.nodes.pop(0)
        cluster.engine.forget_node(oldest.info.id, cluster.now)
    controller = cluster.engine.state.controller
    assert len(controller.cluster.nodes) == 3
    assert sum(controller.cluster.up) == 2
    assert all(cluster.state(job) == "running" for job in jobs)
    assert sum(one.state == RUNNING for node in cluster.nodes for one in node.seen.values()) == 3
    again = replay(stored_rows(cluster.store))
    assert again.difference is None
    timeline = again.history.timeline()
    assert timeline.jobs == 3
    found = occupancy(timeline, outcomes(again.state.controller.job_store, timeline))
    assert (found.capacity.at(found.held.times_s) >= found.held.values).all()  # nothing ran where nothing was
    assert found.capacity.values[-1] == controller.cluster.gpus_up


def test_an_answer_to_a_node_forgotten_meanwhile_assigns_nothing(cluster: Cluster) -> None:
    go(cluster.nodes.pop(0))  # type: ignore[arg-type]
    cluster.engine.forget_node("n0", cluster.now)
    answer = cluster.engine.assignment("n0", "n0-a")
    assert answer == Assignment(cluster.engine.term, 0, cluster.options.lease_s)


def test_places_of_forgotten_nodes_are_taken_by_nodes_of_their_size() -> None:
    hardware = Hardware.of(3, 4).without_node("n1").forget("n1")
    assert hardware.up == (True, False, True)
    with_large = hardware.with_node(Machine("big", 8))
    assert [n.gpus for n in with_large.nodes] == [4, 4, 4, 8]
    with_same = with_large.with_node(Machine("n7", 4, "other"))
    assert [n.id for n in with_same.nodes] == ["n0", "n7", "n2", "big"]
    assert with_same.up == (True, True, True, True)
    assert with_same.nodes[1].gpu_kind == "other"


def test_a_drained_node_shows_that_its_job_is_stopping(cluster: Cluster) -> None:
    (job,) = cluster.submit({}, then_s=1.1)
    node = place(cluster, job)
    assert next(n for n in cluster.engine.nodes(cluster.now) if n.id == node.info.id).job_states == {}
    node.obeys = False
    cluster.engine.drain(node.info.id, cluster.now)
    found = next(n for n in cluster.engine.nodes(cluster.now) if n.id == node.info.id)
    assert (found.state, found.jobs, found.job_states) == ("drained", ["j-0"], {"j-0": "stopping"})
