"""Jobs that cannot resume from a checkpoint keep their GPUs; others are stopped, and what that cost is measured."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from plait.control.history import SpanEnd
from plait.control.messages import from_json
from plait.core.errors import Conflict
from plait.live.protocol.wire import NodeInfo, Profile
from plait.live.scheduler.options import Options
from plait.outlook.log_replay import replay, stored_rows
from plait.testing.fleet import Fleet, Program, SimulatedAgent

PLAIN = Program(steps=1, pace_s=10.0, plain=True)
ATTACHED = Program(steps=20, pace_s=0.5, boot_s=1.0, stop_s=0.5)
#: Those that take turns in time, each in its own way; that all others keep to it too is in the contract suite.
POLICIES = ("plait", "muri-l", "tiresias-l", "2d-las:quantum_s=1", "gandiva:slice_s=1", "themis:lease_s=1", "sia")
Make = Callable[..., Fleet]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A fleet of one node by the policy and what its jobs run, by number."""
    made: list[Fleet] = []

    def fleet(policy: str, programs: Mapping[int, Program], gpus: int = 1, nodes: int = 1) -> Fleet:
        agents = [SimulatedAgent(NodeInfo(f"n{i}", gpus), lambda run: programs[run.job]) for i in range(nodes)]
        found = Fleet(tmp_path, agents, policy=policy, options=Options())
        found.pass_s(1.0)
        made.append(found)
        return found

    yield fleet
    for one in made:
        one.close()


def submit(fleet: Fleet, *more: Mapping[str, object], then_s: float = 0.0) -> None:
    """Submit jobs, and let `then_s` seconds pass."""
    jobs = [{"command": ["python", f"train{i}.py"], **one} for i, one in enumerate(more)]
    fleet.engine.submit(jobs, owner="ann", now_s=fleet.now_s)
    fleet.pass_s(then_s)


def epochs(fleet: Fleet, job: int) -> int:
    stored = fleet.store.job(job)
    return int(stored.row.epoch)


def ended_s(fleet: Fleet, job: int) -> float:
    stored = fleet.store.job(job)
    assert stored.row.state == "finished", stored
    return float(stored.row.ended_s)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_plain_jobs_on_one_slot_run_one_after_the_other(make: Make, policy: str) -> None:
    fleet = make(policy, {0: PLAIN, 1: PLAIN})
    begin_s = fleet.now_s
    submit(fleet, {}, {}, then_s=25.0)
    assert [epochs(fleet, job) for job in (0, 1)] == [1, 1]
    assert max(ended_s(fleet, job) for job in (0, 1)) - begin_s <= 1.05 * 20.0 + 1.0  # and a round
    assert fleet.engine.state.record.lost_gpu_s == {}


@pytest.mark.parametrize("policy", ["muri-l", "muri-s", "2d-las:quantum_s=1", "srsf"])
def test_a_plain_job_beside_an_attached_one_is_not_stopped_and_both_end(make: Make, policy: str) -> None:
    fleet = make(policy, {0: PLAIN, 1: ATTACHED})
    submit(fleet, {}, {"iterations": 20, "profile": {"gpu": 0.4, "cpu": 0.1, "iteration_s": 0.5}}, then_s=32.0)
    assert epochs(fleet, 0) == 1
    assert max(ended_s(fleet, job) for job in (0, 1)) <= 32.0
    assert "preempted" not in fleet.engine.state.record.lost_gpu_s


def test_a_profile_that_arrives_does_not_swap_who_runs(make: Make) -> None:
    fleet = make("muri-l", {0: PLAIN, 1: PLAIN})
    submit(fleet, {}, {}, then_s=5.0)
    held = fleet.agents["n0"].held[(0, 1, 0)]
    program = held.process
    said = program.said
    measured = Profile([0.0, 0.1, 0.4, 0.0], 0.5, 30)
    program.said = lambda now_s: {**said(now_s), "profile": measured}  # type: ignore[method-assign]
    fleet.pass_s(4.0)
    assert "JobProfiled" in [entry.type for entry in fleet.store.entries()]
    assert epochs(fleet, 0) == 1
    assert epochs(fleet, 1) == 0


def test_an_attached_job_becomes_preemptible_once_it_has_made_an_iteration(make: Make) -> None:
    fleet = make("srsf", {0: ATTACHED, 1: Program(steps=4, pace_s=0.5)})
    submit(fleet, {"iterations": 20, "profile": {"gpu": 0.5}}, then_s=1.0)
    assert not fleet.engine.jobs([0], fleet.now_s)[0].stops.resumable
    fleet.pass_s(3.0)
    stops = fleet.engine.jobs([0], fleet.now_s)[0].stops
    assert stops.resumable
    assert stops.stop_costs_s == pytest.approx(1.5 + 1.0, abs=0.3)  # its own start, and a stop as stated
    submit(fleet, {"iterations": 4, "profile": {"gpu": 0.5}}, then_s=20.0)
    assert epochs(fleet, 0) == 2
    assert ended_s(fleet, 1) < ended_s(fleet, 0)
    # Nothing is lost, as it saves when it is told to; what the restart took was measured.
    record = fleet.engine.state.record
    assert record.lost_gpu_s == {}
    assert record.restarts_gpu_s == pytest.approx(0.5 + 1.5, abs=0.5)
    cost = [json.loads(e.entry) for e in fleet.store.entries() if e.type == "StopCostReported"]
    assert [event["checkpoints"] for event in cost] == [[2]] * len(cost)
    assert from_json(cost[0]).at_s > 1.0  # type: ignore[union-attr]


def test_what_an_attempt_held_is_counted_though_its_node_never_reports_to_the_next_service(make: Make) -> None:
    fleet = make("tiresias-l", {0: Program(steps=1, pace_s=60.0, plain=True)}, nodes=2)
    submit(fleet, {}, then_s=30.0)
    (held,) = [node for node, agent in fleet.agents.items() if agent.running()]
    known_s = float(fleet.engine.state.controller.job_store.columns["run_s"][0])  # type: ignore[union-attr]
    assert known_s > 15.0
    fleet.agents[held].kill()
    fleet.restart()
    fleet.engine.node_gone(held, "it was taken away", fleet.now_s)
    fleet.pass_s(40.0)
    stored = fleet.store.job(0)
    first = stored.attempts[0]
    assert first.state == "lost", first
    assert first.lost_work_s == pytest.approx(known_s)
    assert fleet.engine.state.record.lost_gpu_s == {"node lost": first.lost_work_s}
    assert fleet.engine.jobs([0], fleet.now_s)[0].run_s > known_s + 5.0


def test_an_operator_may_let_a_policy_stop_plain_jobs_and_the_loss_is_counted(make: Make) -> None:
    fleet = make("srsf", {0: PLAIN, 1: Program(steps=4, pace_s=0.5)})
    submit(fleet, {}, then_s=6.0)
    submit(fleet, {"iterations": 4, "profile": {"gpu": 0.5}}, then_s=3.0)
    assert epochs(fleet, 1) == 0
    waits = fleet.engine.explain(1, fleet.now_s)
    assert "cannot resume from a checkpoint, so no policy stops it" in waits.blockers[0].text
    assert "cannot be stopped without losing work" in waits.summary
    fleet.engine.set_policy("srsf", fleet.now_s, may_lose_work=True)
    fleet.pass_s(6.0)
    assert epochs(fleet, 1) == 1
    lost = fleet.engine.state.record.lost_gpu_s
    assert lost == {"preempted": pytest.approx(9.0, abs=1.5)}
    assert fleet.engine.status(fleet.now_s).lost.work_gpu_s == lost
    assert fleet.engine.status(fleet.now_s).may_lose_work is True
    stored = fleet.store.job(0)
    assert stored.attempts[0].lost_work_s == lost["preempted"]
    # The figures of a log, which come from the controller's job store, say the same.
    job_store = fleet.engine.state.controller.job_store  # type: ignore[union-attr]
    assert job_store.columns["lost_s"][:2].tolist() == [lost["preempted"], 0.0]
    # The service remembers it over its death; another policy is another decision of the operator's.
    fleet.restart()
    assert fleet.engine.state.controller.rule.may_lose_work
    assert fleet.engine.state.record.lost_gpu_s == lost
    fleet.engine.set_policy("srsf", fleet.now_s)
    assert not fleet.engine.state.controller.rule.may_lose_work


def test_cancelling_and_draining_stop_a_plain_job_whatever_it_loses(make: Make) -> None:
    fleet = make("fifo", {0: PLAIN, 1: PLAIN}, nodes=2)
    submit(fleet, {}, {}, then_s=5.0)
    node = fleet.engine.state.jobs[0].attempt.ranks[0].node  # type: ignore[union-attr]
    with pytest.raises(Conflict, match=r"^j-0 would lose 4\.\d s of work on 1 GPU \(\d GPU-seconds\) and begin at the"):
        fleet.engine.drain(node, fleet.now_s)
    assert not fleet.engine.state.nodes[node].drained
    fleet.engine.drain(node, fleet.now_s, may_lose_work=True)
    fleet.engine.cancel(1, fleet.now_s)
    fleet.pass_s(20.0)
    assert epochs(fleet, 0) == 2
    assert ended_s(fleet, 0) > 10.0
    assert fleet.engine.state.record.lost_gpu_s == {"drained": pytest.approx(4.5, abs=1.5)}


def test_a_live_job_saves_before_it_gives_its_gpus_to_a_guaranteed_one(make: Make) -> None:
    """As all live jobs that are stopped do, so that is no kill: not in the log, in its figures or after a restart."""
    fleet = make("yarn-cs:preempt=on", {0: replace(ATTACHED, steps=60), 1: Program(steps=4, pace_s=0.5)})
    submit(fleet, {"class": "opportunistic", "iterations": 60, "profile": {"gpu": 0.5}}, then_s=8.0)
    fleet.restart()
    submit(fleet, {"iterations": 4}, then_s=40.0)
    assert ended_s(fleet, 1) < ended_s(fleet, 0)
    assert epochs(fleet, 0) == 2
    replayed = replay(stored_rows(fleet.store))
    assert replayed.history is not None
    assert replayed.difference is None
    ends = replayed.history.timeline().span_end.tolist()
    assert (ends.count(SpanEnd.STOPPED), ends.count(SpanEnd.KILLED)) == (1, 0)
    assert "preempted" not in fleet.engine.state.record.lost_gpu_s
