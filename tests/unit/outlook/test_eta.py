"""The queue played forward: from the middle of a run the simulator must go on as it would have gone."""

import math

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import GoodputReported, JobSubmitted, ProgressReported, ReplanDue, StopCostReported
from plait.control.snapshot import restore, snapshot
from plait.core.cluster import Cluster
from plait.core.goodput import BatchLimits
from plait.core.jobs import Checkpoints, JobBatch, JobSpec
from plait.live.scheduler.records.track_record import TrackRecord
from plait.outlook import eta
from plait.outlook.eta import Eta, Interval, ResumedSimulator, _least, forecast, pace_s, running_now
from plait.policies.catalog import make_policy
from plait.sim.world import SimulationSettings


def certain(monkeypatch, start_s=0.0):
    """Nothing is left to chance: paces are as measured, ends and stops cost nothing."""
    monkeypatch.setattr(eta, "PACE_NOISE", 0.0)
    monkeypatch.setattr(eta, "COST_FACTORS", (1.0, 1.0))
    for name in ("END_S", "STOP_S", "LAG_S"):
        monkeypatch.setattr(eta, name, 0.0)
    monkeypatch.setattr(eta, "START_UP_S", start_s)


def at_work(policy="fifo", now_s=50.0, cluster="1x2", **changes):
    """Two GPUs: job 0 runs (100 s of 1 s each) since 0, at `now_s`; jobs 1 and 2 want both GPUs for 40 s."""
    controller = Controller(make_policy(policy), Cluster.parse(cluster))
    jobs = [
        JobSpec(id="a", gpus=2, **{"iterations": 100, "iteration_s": 1.0, **changes}),
        JobSpec(id="b", gpus=2, iterations=40, iteration_s=1.0),
        JobSpec(id="c", gpus=2, iterations=40, iteration_s=1.0),
    ]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    controller.handle(ReplanDue(0.0))
    figures = [np.array([v]) for v in (now_s, 2 * now_s, now_s, 1.0)]
    controller.handle(ProgressReported(now_s, np.array([0]), *figures))
    return controller


def again(controller, policy="fifo"):
    data = snapshot(controller)
    return lambda: restore(data, make_policy(policy))


def test_a_run_goes_on_where_it_was(monkeypatch):
    certain(monkeypatch)
    found = forecast(again(at_work()), runs=3)
    assert found.now_s == 50.0
    assert found.etas[0].start is None
    assert found.etas[0].end == Interval(50.0, 50.0)
    assert found.etas[1].start == Interval(50.0, 50.0)
    assert found.etas[1].end == Interval(90.0, 90.0)
    assert found.etas[2].end == Interval(130.0, 130.0)
    plain = at_work(checkpoints=Checkpoints.NEVER)  # as submitted; it has attached since, so a stop loses nothing
    plain.handle(StopCostReported(50.0, np.array([0]), np.array([int(Checkpoints.ON_STOP)]), *np.zeros((2, 1))))
    truth = eta.draw(plain, np.ones(3), TrackRecord.from_json({}), (), np.random.default_rng(0)).truth
    assert truth.column("checkpoints")[0] == Checkpoints.ON_STOP


def test_a_job_that_adapts_its_batch_goes_on_as_it_said_of_itself(monkeypatch):
    certain(monkeypatch)
    limits = BatchLimits(initial=10, most=40, least_local=1, most_local=40)
    controller = at_work(batch=limits, iteration_s=0.8)
    row = [0.4, 1e-8, 1.0, 1e-8, 0.4, 1e-8, 1.0, 1.0, 1e12, 2.0, math.nan]
    controller.handle(GoodputReported(50.0, np.array([0]), np.array([row])))
    # 50 iterations left; the largest batch, four times the initial one, does four in 0.8 s
    assert forecast(again(controller), runs=1).etas[0].end.low_s == pytest.approx(50 / 4 * 0.8, abs=0.01)


def test_what_an_elastic_job_needs_follows_from_its_gpu_seconds():
    columns = {
        "iteration_s": np.array([math.nan, math.nan]), "iterations_done": np.array([100.0, 100.0]),
        "run_s": np.array([50.0, 50.0]), "attained_gpu_s": np.array([100.0, 100.0]),
        "gpus": np.array([2, 4]), "min_gpus": np.array([2, 1]), "max_gpus": np.array([2, 4]),
    }  # fmt: skip
    assert pace_s(columns, 2).tolist() == [0.5, 0.25]  # the second has had half of the GPUs it asked for


def test_what_is_not_known_makes_an_interval_around_what_is_expected():
    measured = TrackRecord.from_json({"starts_s": [0.5, 1.5], "tails_s": [0.1]})
    found = forecast(again(at_work()), record=measured, runs=20, seed=1)
    end = found.etas[2].end
    assert 0.7 * 130 < end.low_s < 130 < end.high_s < 1.4 * 130
    assert found == forecast(again(at_work()), record=measured, runs=20, seed=1)


def test_jobs_that_did_not_say_their_work_are_taken_to_be_typical():
    found = forecast(again(at_work(iterations=None, iteration_s=None)), runs=10)
    end = found.etas[0].end
    low, high = eta.WORK_FACTORS
    assert low * eta.TYPICAL_S * 0.7 < end.low_s < end.high_s < high * eta.TYPICAL_S * 1.4
    assert any("did not report" in text for text in found.assumptions)


def test_starts_cost_what_was_measured(monkeypatch):
    certain(monkeypatch)
    found = forecast(again(at_work()), runs=1, record=TrackRecord.from_json({"starts_s": [5.0]}))
    assert found.etas[0].end == Interval(50.0, 50.0)  # it runs: no start-up
    assert found.etas[2].end == Interval(140.0, 140.0)


def test_a_job_that_never_ends_in_a_run_has_no_end():
    assert Interval.of([3.0, math.inf]).to_json() == [3.0, None]


def test_nothing_waits_nothing_is_foreseen():
    controller = Controller(make_policy("fifo"), Cluster.parse("1x2"))
    controller.handle(ReplanDue(7.0))
    found = forecast(again(controller))
    assert (found.etas, found.now_s) == ({}, 7.0)


def test_groups_are_taken_over_without_those_that_ended():
    controller = at_work()
    backend = ResumedSimulator(
        controller, JobBatch.of([controller.job_store.spec(i) for i in range(3)]), SimulationSettings()
    )
    assert backend.is_running.tolist() == [1, 0, 0]
    assert backend.done_ms.tolist() == [50_000, 0, 0]
    controller.job_store.columns["phase"][0] = 2
    assert len(running_now(controller)) == 0


def test_the_pace_of_a_job_is_measured_else_seen_else_that_of_others():
    columns = {
        "iteration_s": np.array([2.0, math.nan, math.nan]),
        "iterations_done": np.array([5.0, 10.0, 0.0]),
        "run_s": np.array([10.0, 40.0, 0.0]),
        "attained_gpu_s": np.array([10.0, 40.0, 0.0]),
        **dict.fromkeys(("gpus", "min_gpus", "max_gpus"), np.ones(3)),
    }
    assert pace_s(columns, 3).tolist() == pytest.approx([2.0, 4.0, 3.0])


def test_no_job_is_said_to_end_before_it_can_have_started_and_run() -> None:
    start, end = Interval(30.0, 90.0, 60.0), Interval(10.0, 95.0, 80.0)
    eta = Eta(start, end, least_s=20.0).consistent()
    assert eta.start == start
    assert eta.end == Interval(50.0, 110.0)
    assert eta.end.middle_s == 80.0
    assert Eta(None, end, 20.0).consistent().end == end, "it runs"
    never = Eta(Interval(math.inf, math.inf), Interval(5.0, math.inf), 20.0).consistent()
    assert math.isinf(never.end.low_s)


def test_the_least_time_from_start_to_end_is_of_the_shortest_run() -> None:
    assert _least([0.0, 10.0, math.inf], [50.0, 45.0, math.inf]) == 35.0
    assert _least([math.inf], [math.inf]) == 0.0
