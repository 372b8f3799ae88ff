"""Which running jobs a policy may stop or move: what the view says, what the controller does, what survives JSON."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from plait.control import messages
from plait.control.controller import Controller
from plait.control.snapshot import of_active, restore, snapshot
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import Checkpoints, JobBatch, JobSpec
from plait.core.plan import Group, Member, Plan
from plait.core.policy import View
from plait.core.preemption import FREELY, PreemptionRule
from plait.placement import Scheme, place

NEVER, PERIODIC, ON_STOP = Checkpoints


def controller(policy: object, cluster: str) -> Controller:
    return Controller(policy, Cluster.parse(cluster))  # type: ignore[arg-type]


def job(name: str, seconds: float = 10.0, **more: object) -> JobSpec:
    return JobSpec(id=name, iterations=seconds, iteration_s=1.0, **more)  # type: ignore[arg-type]


def submit(c: Controller, *specs: JobSpec, at_s: float = 0.0) -> None:
    c.handle(messages.JobSubmitted(at_s, c.job_store.count, JobBatch.of(specs)))


@dataclass(frozen=True)
class Newest:
    """The newest job first: stops whoever runs for whoever comes."""

    def decide(self, view: View) -> Plan:
        return place(view, np.arange(len(view.jobs))[::-1], scheme=Scheme.COUNTING)


@dataclass(frozen=True)
class ByHand:
    """The newest job on GPU 0, and nobody else, whatever runs there."""

    def decide(self, view: View) -> Plan:
        return Plan.of([Group((Member(int(view.jobs.number[-1])),), (0,))])


def numbers(*values: float) -> np.ndarray:
    return np.array(values)


def jobs_of(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def decided(c: Controller, at_s: float) -> list[str]:
    return [type(command).__name__ for command in c.handle(messages.ReplanDue(at_s))]


def progress(c: Controller, number: int, at_s: float, run_s: float) -> None:
    one = numbers(run_s)
    c.handle(messages.ProgressReported(at_s, jobs_of(number), one, one, one, numbers(1.0)))


def one_running(policy: object, **spec: object) -> Controller:
    """Job 0 has run since 0 s on the only GPU."""
    c = controller(policy, "1x1")
    submit(c, job("old", seconds=1000.0, **spec))
    assert decided(c, 0.0) == ["Launch"]
    return c


def loss(c: Controller) -> float:
    return float(c.view().jobs.stop_loss_s[0])


def test_without_costs_nobody_is_kept() -> None:
    c = one_running(Newest())
    view = c.view()
    assert loss(c) == 0.0
    assert view.may_stop.all()
    assert not view.keeps.any


@pytest.mark.parametrize("policy", [Newest(), ByHand()])
def test_a_job_without_checkpoints_is_not_stopped_by_a_policy(policy: object) -> None:
    c = one_running(policy, checkpoints=NEVER)
    assert loss(c) == math.inf
    submit(c, job("new"), at_s=100.0)
    assert decided(c, 100.0) == []
    assert c.view().keeps.lasting.tolist() == [True, False]
    assert "cannot be stopped" in c.plan.reasons[1] or "may not be stopped" in c.plan.reasons[1]
    c.handle(messages.JobCancelled(101.0, jobs_of(0)))
    assert decided(c, 101.0) == ["Launch"]


@pytest.mark.parametrize("policy", [Newest(), ByHand()])
def test_an_operator_may_let_policies_lose_work(policy: object) -> None:
    c = one_running(policy, checkpoints=NEVER)
    c.rule = replace(c.rule, may_lose_work=True)
    submit(c, job("new"), at_s=100.0)
    assert decided(c, 100.0) == ["Stop", "Launch"]


def test_a_lost_node_takes_a_kept_job_along() -> None:
    c = controller(Newest(), "2x1")
    submit(c, job("old", checkpoints=NEVER))
    decided(c, 0.0)
    assert [type(x).__name__ for x in c.handle(messages.NodeLost(1.0, c.cluster.nodes[0].id))] == ["Stop"]
    assert decided(c, 1.0) == ["Launch"]


def test_a_job_is_kept_until_it_has_run_for_a_multiple_of_its_restart_cost() -> None:
    c = one_running(Newest(), restart_s=30.0)
    c.rule = PreemptionRule(runs_for=4.0)
    assert loss(c) == 30.0
    submit(c, job("new"), at_s=50.0)
    assert decided(c, 50.0) == ["Wake"]
    assert c.plan.valid_until_s == 120.0
    progress(c, 0, 119.0, 119.0)
    assert decided(c, 119.0) == []
    assert decided(c, 120.0) == ["Stop", "Launch"]


def test_a_job_that_ends_sooner_than_a_stop_costs_is_kept() -> None:
    c = one_running(Newest(), restart_s=30.0)
    progress(c, 0, 900.0, 969.0)
    submit(c, job("new"), at_s=900.0)
    assert c.view().may_stop.tolist() == [True, True]
    progress(c, 0, 901.0, 970.0)
    assert c.view().may_stop.tolist() == [False, True]
    assert decided(c, 901.0) == ["Wake"]


def test_a_job_that_goes_on_beyond_its_end_is_kept_no_longer_than_a_stop_costs() -> None:
    c = one_running(Newest(), restart_s=30.0)
    progress(c, 0, 900.0, 980.0)
    submit(c, job("new"), at_s=900.0)
    assert decided(c, 900.0) == ["Wake"]
    assert c.plan.valid_until_s == 950.0
    progress(c, 0, 949.0, 1029.0)
    assert decided(c, 949.0) == []
    progress(c, 0, 950.0, 1030.0)
    assert decided(c, 950.0) == ["Stop", "Launch"]


def test_work_since_the_last_checkpoint_counts_as_loss() -> None:
    c = one_running(Newest(), checkpoints=PERIODIC, restart_s=10.0)
    progress(c, 0, 400.0, 400.0)
    assert loss(c) == 410.0
    submit(c, job("new"), at_s=400.0)
    assert decided(c, 400.0) == ["Wake"]
    c.handle(messages.StopCostReported(410.0, jobs_of(0), jobs_of(PERIODIC), numbers(400.0), numbers(math.nan)))
    assert loss(c) == 10.0
    assert c.view().jobs[0].stop_loss_s == 10.0
    assert decided(c, 410.0) == ["Stop", "Launch"]


def test_attaching_makes_a_job_one_that_can_be_stopped() -> None:
    c = one_running(Newest(), checkpoints=NEVER)
    submit(c, job("new"), at_s=100.0)
    assert decided(c, 100.0) == []
    c.handle(messages.StopCostReported(101.0, jobs_of(0), jobs_of(ON_STOP), numbers(math.nan), numbers(5.0)))
    assert decided(c, 101.0) == ["Stop", "Launch"]


def test_a_job_can_be_held_for_a_while() -> None:
    c = one_running(Newest())
    c.handle(messages.JobKept(10.0, jobs_of(0), numbers(60.0)))
    submit(c, job("new"), at_s=20.0)
    assert decided(c, 20.0) == ["Wake"]
    assert decided(c, 60.0) == ["Stop", "Launch"]


def test_a_hold_ends_when_it_is_lifted() -> None:
    c = one_running(Newest())
    c.handle(messages.JobKept(10.0, jobs_of(0), numbers(math.inf)))
    submit(c, job("new"), at_s=20.0)
    assert decided(c, 20.0) == []
    c.handle(messages.JobKept(30.0, jobs_of(0), numbers(math.nan)))
    assert decided(c, 30.0) == ["Stop", "Launch"]


def test_all_of_it_survives_a_snapshot() -> None:
    c = one_running(Newest(), checkpoints=PERIODIC)
    c.rule = PreemptionRule(runs_for=7.0)
    progress(c, 0, 500.0, 500.0)
    c.handle(messages.StopCostReported(500.0, jobs_of(0), jobs_of(PERIODIC), numbers(450.0), numbers(12.0)))
    c.handle(messages.JobKept(500.0, jobs_of(0), numbers(700.0)))
    again = restore(json.loads(json.dumps(snapshot(c), allow_nan=False)), Newest())
    small, _ = of_active(c)
    for other in (again, small):
        assert other.rule == c.rule
        for name in ("checkpoints", "saved_run_s", "restart_s", "keep_until_s"):
            assert getattr(other.view().jobs, name).tolist() == getattr(c.view().jobs, name).tolist(), name
        assert other.view().keeps.until_s.tolist() == c.view().keeps.until_s.tolist() == [700.0]


def test_the_published_behaviour_keeps_nobody() -> None:
    assert FREELY.free
    c = one_running(Newest(), checkpoints=NEVER, restart_s=1e9)
    c.rule = FREELY
    assert c.view().may_stop.all()
    with pytest.raises(InputError, match="runs_for is -1"):
        PreemptionRule(runs_for=-1)


def test_a_plan_by_hand_loses_only_what_is_in_the_way() -> None:
    """The controller repairs the plan of a policy that stops who is kept; what does not touch it goes on."""

    class Moves:
        def decide(self, view: View) -> Plan:
            first = Group((Member(0),), (1,)) if len(view.jobs) > 1 else Group((Member(0),), (0,))
            return Plan.of([first, *([Group((Member(1),), (0,)), Group((Member(2),), (2,))] * (len(view.jobs) > 1))])

    c = Controller(Moves(), Cluster.parse("1x4"))
    submit(c, job("kept", checkpoints=NEVER))
    decided(c, 0.0)
    submit(c, job("in its way"), job("beside"), at_s=1.0)
    assert decided(c, 1.0) == ["Launch"]
    assert {g.gpus: [m.job for m in g.members] for g in c.running} == {(0,): [0], (2,): [2]}
    assert "may not be stopped" in c.plan.reasons[1]


def test_a_spec_says_what_a_stop_loses() -> None:
    with pytest.raises(InputError, match="restart_s is -1"):
        JobSpec(id="x", restart_s=-1.0)
