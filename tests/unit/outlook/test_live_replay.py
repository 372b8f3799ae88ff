"""Logs of scripted clusters, relived: policies and profiles at their times, starts as measured, gates as live."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_replayed import Log, spec

from plait.control.messages import GoodputReported, JobProfiled, JobSubmitted, ReplanDue, StopCostReported
from plait.core.cluster import Cluster, Node
from plait.core.goodput import BatchLimits
from plait.core.jobs import Checkpoints, JobBatch
from plait.core.plan import Gate, Group, Groups, Member
from plait.live.scheduler.records.notes import AttemptBegan, AttemptOver, PolicySet, Requested, StopAsked
from plait.outlook.fidelity import MeasuredCosts, TurnsPhysics, fidelity, numbered
from plait.outlook.log_replay import read_rows, replay
from plait.runtime.gate_choice import choose_gate, paces


class Live(Log):
    """Also writes the notes of attempts, as a service that is fast."""

    def begin(self, at_s, job, epoch=1):
        self(AttemptBegan(at_s, job, epoch, [0], [("n0", 0)], 0))

    def over(self, at_s, job, began_s, first_s, last_s, outcome="finished", epoch=1):
        """`first_s`, `last_s`: times of the ends of its first and its last iteration."""
        self(
            AttemptOver(
                at_s, job, epoch, outcome, held_s=at_s - began_s, steps=100.0, ended_s=at_s,
                first_step_s=first_s - began_s, last_step_s=last_s - began_s,
            )
        )  # fmt: skip
        if outcome == "finished":
            self.finish(at_s, job)

    def seen(self):
        observed = MeasuredCosts()
        replay(list(read_rows(self.rows)), compare=False, observe=observed)
        return observed


def unprofiled(name, iterations=100):
    return replace(spec(name, gpu=1.0), profile=None, iterations=iterations, checkpoints=Checkpoints.NEVER)


def test_starts_and_ends_are_as_measured_and_the_rest_is_predicted():
    log = Live()
    log.submit(0.0, spec("j-0", gpu=0.1), spec("j-1", gpu=0.1))
    log.begin(0.0, 0)
    log.over(14.0, 0, 0.0, 3.1, 13.0)  # 3 s of start, 100 x 0.1 s, 1 s of end
    log.begin(14.0, 1)
    log.over(29.5, 1, 14.5, 18.1, 29.0)  # half a second until it began; then slower than alone
    observed = log.seen()
    assert [observed.start_s(job) for job in (0, 1)] == pytest.approx([3.1, 4.1])
    assert [observed.tail_s(job) for job in (0, 1)] == pytest.approx([1.0, 0.5])
    found = fidelity(list(read_rows(log.rows)), round_s=1.0)
    assert [job.predicted_s for job in found.jobs] == pytest.approx([14.0, 28.5], abs=0.01)
    assert [job.measured_s for job in found.jobs] == [14.0, 29.5]
    assert [job.start_s for job in found.jobs] == pytest.approx([3.0, 4.0])
    assert not any(job.own_pace for job in found.jobs)
    data = found.to_json()
    assert data["worst_error"] == pytest.approx(1 / 29.5)
    assert data["jobs"][1]["end_s"] == pytest.approx(0.5)


def test_a_policy_and_a_profile_come_when_they_came():
    log = Live("fifo")
    log.submit(0.0, unprofiled("j-0", 200), unprofiled("j-1", 100))
    log.begin(0.0, 0)
    log(JobProfiled(5.0, np.array([0]), np.array([0.1]), np.array([[0.0, 0.0, 0.1, 0.0]])))
    log(StopCostReported(9.0, np.array([0]), np.array([int(Checkpoints.ON_STOP)]), *np.full((2, 1), math.nan)))
    log(PolicySet(10.0, "srtf", may_lose_work=False))
    log(JobProfiled(10.0, np.array([1]), np.array([0.05]), np.array([[0.0, 0.0, 0.05, 0.0]])))
    log(ReplanDue(10.0))  # live, the short one goes first from here on
    assert [g.members[0].job for g in log.state.groups.by_gpus.values()] == [1]
    log(StopAsked(10.0, 0, 1, "preempted"))
    log.over(11.0, 0, 0.0, 0.1, 10.0, "preempted")
    log.begin(11.0, 1)
    log.over(16.0, 1, 11.0, 11.05, 16.0)
    log.begin(16.0, 0, 2)
    log.over(27.0, 0, 16.0, 17.1, 27.0, epoch=2)
    found = fidelity(list(read_rows(log.rows)), round_s=0.0)
    # 10 s of the first, a second to save it, 5 s of the second; a second to start again, and the other 10 s.
    assert [job.predicted_s for job in found.jobs] == pytest.approx([27.0, 16.0], abs=0.05)
    assert found.policy == "fifo, then srtf"
    assert [at_s for at_s, _ in found.policies] == [0.0, 10.0]


def test_who_waits_for_a_gpu_to_be_left_has_no_longer_start():
    """Live a job begins when it is decided, and its agent holds it back until the GPU is free: that is predicted."""
    log = Live("fifo")
    log.submit(0.0, replace(spec("j-0", gpu=0.1), iterations=200), spec("j-1", gpu=0.05))
    log.begin(0.0, 0)
    log(PolicySet(10.0, "srtf", may_lose_work=False))
    log(ReplanDue(10.0))
    log(StopAsked(10.0, 0, 1, "preempted"))
    log.begin(10.0, 1)
    log.over(14.0, 0, 0.0, 0.1, 10.0, "preempted")
    log.over(19.0, 1, 14.0, 14.05, 19.0)
    log.begin(19.0, 0, 2)
    log.over(29.0, 0, 19.0, 19.1, 29.0, epoch=2)
    assert log.seen().start_s(1) == pytest.approx(0.05)
    found = fidelity(list(read_rows(log.rows)), round_s=0.0)
    assert [job.predicted_s for job in found.jobs] == pytest.approx([29.0, 19.0], abs=0.05)


def test_decisions_wait_for_the_first_and_for_each_other():
    log = Live()
    log(Requested(0.0, 0, "ada", [{"command": ["true"]}] * 2))
    specs = (spec("j-0", gpu=0.001), spec("j-1", gpu=0.001))
    log(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    log(ReplanDue(4.0))  # the service was not ready before
    log.begin(4.0, 0)
    log.over(4.1, 0, 4.0, 4.001, 4.1)
    log.begin(6.0, 1)
    log.over(6.1, 1, 6.0, 6.001, 6.1)
    found = fidelity(list(read_rows(log.rows)), round_s=2.0)
    assert [job.predicted_s for job in found.jobs] == pytest.approx([4.1, 6.1], abs=0.01)


def test_an_adaptive_job_trains_as_it_said_of_itself_and_what_it_said_comes_when_it_came():
    log = Live(gpus=2)
    limits = BatchLimits(initial=10, most=40, least_local=1, most_local=40)
    log.submit(0.0, replace(unprofiled("j-0", 1000), gpus=2, min_gpus=1, max_gpus=2, iteration_s=0.2, batch=limits))
    log.begin(0.0, 0)
    still, noisy = ([0.1, 1e-8, 1.0, 1e-8, 0.1, 1e-8, 1.0, 1.0, var, 2.0, math.nan] for var in (1e-9, 1e12))
    log.progress(10.0, [0], [50.0], [10.0], [0.2])
    log(GoodputReported(10.0, np.array([0]), np.array([still])))
    log.progress(40.0, [0], [200.0], [40.0], [0.2])
    log(GoodputReported(40.0, np.array([0]), np.array([noisy])))
    log.over(80.0, 0, 0.0, 0.2, 80.0)
    (job,) = fidelity(list(read_rows(log.rows)), round_s=0.0).jobs
    # 200 iterations of 0.2 s; from then on four times the batch in the same time does four iterations at once
    assert job.predicted_s == pytest.approx(40 + 800 / 20, abs=0.1)
    first, second = (told for _, told in numbered(log.seen().estimates, [7, 0]))
    assert (first.at_s, first.jobs.tolist(), second.at_s) == (10.0, [1], 40.0)
    assert second.goodput[0] == pytest.approx(noisy, nan_ok=True)


def test_a_job_without_a_profile_is_named_as_no_proof():
    log = Live()
    log.submit(0.0, unprofiled("j-0"))
    log.begin(0.0, 0)
    log.progress(10.0, [0], [100.0], [10.0], [math.nan])
    log.over(10.0, 0, 0.0, 0.1, 10.0)
    (job,) = fidelity(list(read_rows(log.rows))).jobs
    assert job.own_pace


#: Two units on a different resource each, one on the others: made for lock step.
MIX = [[0.02 * (1 + (i == r)) for r in range(4)] for i in range(4)]
ALONE = [sum(row) for row in MIX]
CHOICE = choose_gate(MIX, ALONE)


def test_who_shares_goes_at_the_pace_of_its_gate_once_it_has_started():
    log = Live("muri-s")
    names = ("storage", "cpu", "gpu", "network")
    log.submit(0.0, *(spec(f"j-{i}", **dict(zip(names, row, strict=True))) for i, row in enumerate(MIX)))
    (group,) = log.state.groups.by_gpus.values()
    assert (group.gate, len(group.members)) == ("barrier", 4)
    all_s = CHOICE.iteration_s[0]
    end_s = 2.0 + 100 * all_s
    for job in range(4):
        log.begin(0.0, job)
    for job in range(4):
        log.over(end_s, job, 0.0, 2.0 + all_s, end_s)
    found = fidelity(list(read_rows(log.rows)), round_s=1.0)
    assert [job.predicted_s for job in found.jobs] == pytest.approx([end_s] * 4, rel=0.01)
    assert sum(ALONE) * 100 > 3 * (end_s - 2.0)  # it would have been much longer one after the other


def test_who_still_starts_holds_nobody_up():
    truth = JobBatch.of([spec(f"j-{i}", gpu=1.0) for i in range(4)]).replace(
        iteration_s=np.array(ALONE), stage_s=np.array(MIX)
    )
    known = {"stage_s": np.array(MIX), "iteration_s": np.array(ALONE)}
    members = tuple(Member(i, turn=t) for i, t in enumerate(CHOICE.turns))
    groups, cluster = Groups.of([Group(members, (0,), Gate.BARRIER)]), Cluster((Node("n0", 1),))
    awake = np.array([True, False, True, False])
    slow = TurnsPhysics(known).iteration_s(truth, groups, cluster)
    assert slow == pytest.approx(CHOICE.iteration_s)
    fast = TurnsPhysics(known, awake=lambda jobs: awake[jobs]).iteration_s(truth, groups, cluster)
    assert fast[1] == ALONE[1]
    pair, turns = [MIX[0], MIX[2]], [CHOICE.turns[0], CHOICE.turns[2]]
    assert fast[[0, 2]] == pytest.approx(paces("barrier", pair, ALONE[:2], turns))
    awake[2] = False
    alone_again = TurnsPhysics(known, awake=lambda jobs: awake[jobs]).iteration_s(truth, groups, cluster)
    assert alone_again == pytest.approx(ALONE)
