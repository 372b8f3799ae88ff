import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_runs import decide, finish, ints, progress, run, submit

from plait.control.compare import bootstrap, compare
from plait.control.messages import JobCancelled, NodeJoined, NodeLost
from plait.control.metrics import PERCENTILE_RULE, RunResult, Window, measure
from plait.control.occupancy import blocking_index
from plait.control.step_functions import Steps
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.core.jobs import JobBatch, JobSpec
from plait.core.resources import StageProfile
from sampling import examples


def job(name, submit_s=0.0, gpus=1, seconds=100.0, profile=None, **more):
    profile = StageProfile.of(cpu=0.25, gpu=0.75) if profile is None else profile
    return JobSpec(id=name, submit_s=submit_s, gpus=gpus, iterations=seconds, profile=profile, **more)


def two_jobs_one_gpu():
    events = [submit(0, job("a"), job("b", seconds=50)), decide(0), finish(0, 100), decide(100), finish(1, 150)]
    return run("1x1", events, [[([0], [0])], [([1], [0])]])


def test_two_jobs_one_gpu_by_hand():
    result = measure(*two_jobs_one_gpu(), trace="tiny", world="none", seed=3, wall_s=0.5)
    s = result.summary
    assert list(s)[:5] == ["trace", "policy", "world", "seed", "cluster"]
    assert (s["trace"], s["policy"], s["world"], s["seed"], s["cluster"]) == ("tiny", "scripted", "none", 3, "1x1")
    assert (s["jobs"], s["finished"], s["failed"], s["cancelled"], s["refused"]) == (2, 2, 0, 0, 0)
    assert (s["avg_jct_s"], s["p50_jct_s"], s["makespan_s"]) == (125, 125, 150)
    assert s["p95_jct_s"] == pytest.approx(147.5)
    assert s["p99_jct_s"] == pytest.approx(149.5)
    assert (s["avg_queue_s"], s["max_queue_s"]) == (50, 100)
    assert s["avg_slowdown"] == 2.0
    # a: N = 2 over its life, rho = 100 / (100 * 2); b: N = (2 * 100 + 50) / 150, rho = 150 / (50 * N)
    assert s["max_fairness"] == pytest.approx(150 / (50 * 250 / 150))
    assert s["avg_fairness"] == pytest.approx((0.5 + 1.8) / 2)
    assert s["unfair_share"] == 0.5
    assert (s["preemptions"], s["restarts"], s["lost_gpu_h"]) == (0, 0, 0)
    assert (s["gpu_utilisation"], s["gpu_useful"]) == (1, pytest.approx(1))
    assert s["cpu_utilisation"] == pytest.approx(0.25)
    assert s["gpu_busy"] == pytest.approx(0.75)
    assert (s["storage_utilisation"], s["network_utilisation"]) == (0, 0)
    assert (s["avg_queue_length"], s["max_queue_length"]) == (pytest.approx(100 / 150), 1)
    assert s["blocking_index_mean"] == pytest.approx(100**2 / 2 / 50 / 150, rel=1e-3)
    assert s["percentile_rule"] == PERCENTILE_RULE
    assert (s["events"], s["wall_s"]) == (5, 0.5)
    assert result.jobs["id"].tolist() == ["a", "b"]
    assert result.jobs["jct_s"].tolist() == [100, 150]
    assert result.jobs["state"].tolist() == ["finished", "finished"]


def test_series_are_time_averages_that_add_up():
    result = measure(*two_jobs_one_gpu())
    series = result.series
    width = series["to_s"] - series["from_s"]
    assert len(width) == 1000
    assert (series["queue_length"] * width).sum() == pytest.approx(100)
    assert (series["gpu_busy"] * width).sum() == pytest.approx(0.75 * 150)
    assert (series["running_jobs"] == 1).all()


def test_jobs_that_take_turns_hold_a_gpu_once_and_may_be_useful_more_than_once():
    events = [submit(0, job("a"), job("b")), decide(0), finish(0, 120, 125), finish(1, 125)]
    s = measure(*run("1x1", events, [[([0, 1], [0])]])).summary
    assert s["gpu_utilisation"] == 1.0
    assert s["gpu_useful"] == pytest.approx(200 / 125)
    assert s["lost_gpu_h"] == pytest.approx(5 * (1 - 100 / 125) / 3600)  # behind the end of a, at b's mean speed
    assert s["gpu_busy"] == pytest.approx(150 / 125)


def test_what_jobs_win_on_a_shared_gpu_hides_no_loss_on_another():
    jobs = submit(0, job("a"), job("b"), job("c", seconds=50))
    events = [jobs, decide(0), finish(0, 125), finish(2, 120, 125), finish(1, 125)]
    s = measure(*run("1x2", events, [[([0, 1], [0]), ([2], [1])]])).summary
    assert s["lost_gpu_h"] == pytest.approx((120 - 50) / 3600)


def test_useful_work_of_a_job_that_adapts_its_batch_is_not_known():
    adapts = job("a", batch=BatchLimits(initial=16, most=64, least_local=8, most_local=32))
    s = measure(*run("1x1", [submit(0, adapts), decide(0), finish(0, 50)], [[([0], [0])]])).to_json()
    assert (s["gpu_utilisation"], s["gpu_useful"], s["lost_gpu_h"]) == (1.0, None, None)


def test_preemption_and_lost_progress_by_hand():
    events = [
        submit(0, job("a")), decide(0), submit(1, job("b", 30, seconds=20)), progress(30, 0, 25), decide(30),
        finish(1, 50), decide(50), finish(0, 125),
    ]  # fmt: skip
    result = measure(*run("1x1", events, [[([0], [0])], [([1], [0])], [([0], [0])]]))
    s = result.summary
    assert (s["preemptions"], s["restarts"], s["avg_restarts"]) == (1, 1, 0.5)
    assert s["lost_gpu_h"] == pytest.approx(5 / 3600)
    assert result.jobs["queue_s"].tolist() == [20, 0]
    assert result.jobs["attained_gpu_s"].tolist() == [105, 20]
    assert result.jobs["first_start_s"].tolist() == [0, 30]


def test_capacity_counts_nodes_while_they_are_up():
    events = [
        submit(0, job("a", gpus=1)), decide(0), NodeLost(50, "n1"), decide(50), NodeJoined(75, Node("n1", 1)),
        decide(75), finish(0, 100),
    ]  # fmt: skip
    keep = [([0], [0])]
    s = measure(*run("2x1", events, [keep, keep, keep])).summary
    assert s["gpu_utilisation"] == pytest.approx(100 / 175)


def test_fragmentation_is_the_share_of_free_gpus_on_partly_used_nodes_while_jobs_wait():
    # Nodes of 2: a takes one GPU of n0, so 1 of 3 free GPUs is a fragment while b (4 GPUs) waits, and
    # c's GPU on n1 makes it 2 of 2.
    events = [
        submit(0, job("a", seconds=100), job("b", gpus=4, seconds=10)), decide(0),
        submit(2, job("c", 60, seconds=20)), decide(60), finish(2, 80), decide(80), finish(0, 100),
        decide(100), finish(1, 110),
    ]  # fmt: skip
    plans = [[([0], [0])], [([0], [0]), ([2], [2])], [([0], [0])], [([1], [0, 1, 2, 3])]]
    s = measure(*run("2x2", events, plans)).summary
    assert s["fragmentation"] == pytest.approx((80 / 3 + 20) / 100)


def test_a_run_with_open_jobs_has_no_averages():
    events = [submit(0, job("a"), job("b")), decide(0), finish(0, 100)]
    result = measure(*run("1x1", events, [[([0], [0])]]))
    out = result.to_json()
    assert (out["finished"], out["unfinished"]) == (1, 1)
    assert all(out[name] is None for name in ("avg_jct_s", "p99_jct_s", "makespan_s", "avg_slowdown"))
    assert out["avg_queue_length"] == 1.0
    assert json.loads(json.dumps(out, allow_nan=False)) == out


def test_failed_cancelled_and_refused_are_counted_apart():
    events = [
        submit(0, job("a"), job("b"), job("big", gpus=7)), decide(0), JobCancelled(10, ints(1)),
        finish(0, 100),
    ]  # fmt: skip
    s = measure(*run("1x1", events, [[([0], [0])]])).summary
    assert (s["jobs"], s["finished"], s["cancelled"], s["refused"], s["failed"]) == (3, 1, 1, 1, 0)
    assert s["avg_jct_s"] == 100


def test_a_window_counts_some_jobs_and_runs_all():
    events = [submit(0, job("a")), decide(0), submit(1, job("b", 10, seconds=50)), finish(0, 100),
              decide(100), finish(1, 150)]  # fmt: skip
    plans = [[([0], [0])], [([1], [0])]]
    s = measure(*run("1x1", events, plans), window=(5, 20)).summary
    assert (s["jobs"], s["avg_jct_s"], s["makespan_s"], s["gpu_utilisation"]) == (1, 140, 140, 1)
    by_number = measure(*run("1x1", events, plans), window=Window(0, 1, by="number"))
    assert by_number.jobs["id"].tolist() == ["a"]
    with pytest.raises(InputError, match="empty"):
        Window(5, 5)
    with pytest.raises(InputError, match="known: submit_s, number"):
        Window(0, 5, by="size")  # type: ignore[arg-type]


def test_unknown_profiles_give_no_utilisation_and_unknown_durations_no_slowdown():
    events = [submit(0, JobSpec(id="a")), decide(0), progress(90, 0, 30), finish(0, 100)]
    out = measure(*run("1x1", events, [[([0], [0])]])).to_json()
    assert out["avg_jct_s"] == 100
    assert out["gpu_utilisation"] == 1
    unknown = ("cpu_utilisation", "gpu_busy", "gpu_useful", "lost_gpu_h", "avg_slowdown", "avg_fairness")
    assert all(out[name] is None for name in unknown)


def test_truth_replaces_noisy_estimates():
    true = JobBatch.of([job("a"), job("b", seconds=25)])
    s = measure(*two_jobs_one_gpu(), truth=true).summary
    assert s["avg_slowdown"] == (1 + 6) / 2


def test_an_empty_run_measures():
    result = measure(*run("1x1", [], []))
    assert result.summary["jobs"] == 0
    assert result.to_json()["avg_jct_s"] is None
    assert len(result.series["from_s"]) == 0


# -- step functions and the blocking index against the obvious way -------------------------------------

INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(1, 5)).map(lambda x: (x[0], x[0] + x[1], x[2])),
    max_size=12,
)


@settings(deadline=None)
@given(INTERVALS)
def test_steps_agree_with_counting_seconds(intervals):
    from_s, to_s, weight = (np.array([i[k] for i in intervals], dtype=float) for k in range(3))
    steps = Steps.of(from_s, to_s, weight, before=2.0)
    seconds = np.arange(100)
    slow = np.array([2.0 + sum(w for lo, hi, w in intervals if lo <= t < hi) for t in seconds])
    np.testing.assert_allclose(steps.at(seconds.astype(float)), slow)
    assert steps.area(3, 77) == pytest.approx(slow[3:77].sum())
    np.testing.assert_allclose(steps.bins(np.linspace(0, 100, 11)), slow.reshape(10, 10).mean(axis=1))
    assert steps.max(3, 77) == slow[3:77].max()
    plain, double = Steps.several(from_s, to_s, [weight, 2 * weight])
    np.testing.assert_allclose(plain.at(seconds.astype(float)), slow - 2.0)
    np.testing.assert_allclose(double.bins(np.linspace(0, 100, 11)), 2 * plain.bins(np.linspace(0, 100, 11)))


@settings(deadline=None, max_examples=examples(40))
@given(st.integers(0, 10**6), st.sampled_from([math.inf, 3.0, 0.5]))
def test_blocking_index_agrees_with_the_definition(seed, cap):
    random = np.random.default_rng(seed)
    n = int(random.integers(0, 20))
    lengths = random.uniform(0.5, 20, (n, 2))
    first = random.uniform(0, 50, n)
    again = first + lengths[:, 0] + random.uniform(1, 5, n)
    timeline = run("1x1", [], [])[1].timeline()
    rows = {
        "wait_job": np.repeat(np.arange(n), 2),
        "wait_from_s": np.column_stack([first, again]).ravel(),
        "wait_to_s": np.column_stack([first + lengths[:, 0], again + lengths[:, 1]]).ravel(),
        "wait_remaining_s": random.uniform(0.1, 30, 2 * n),
    }
    for name, value in rows.items():
        object.__setattr__(timeline, name, value)
    times = random.uniform(0, 100, 30)
    slow = []
    for at in times:
        ratios = []
        for j, lo, hi, left in zip(*rows.values(), strict=True):
            if lo <= at < hi:
                before = lengths[j, 0] if lo == again[j] else 0.0
                ratios.append(min((before + at - lo) / left, cap))
        slow.append(np.mean(ratios) if ratios else 0.0)
    np.testing.assert_allclose(blocking_index(timeline, times, cap), slow, rtol=1e-7, atol=1e-7)


# -- many runs ------------------------------------------------------------------------------------------


def test_bootstrap_covers_the_mean_and_repeats():
    values = np.random.default_rng(1).normal(10, 2, 50)
    mean, low, high = bootstrap(values, seed=5)
    assert low < mean < high
    assert high - low == pytest.approx(2 * 1.96 * 2 / math.sqrt(50), rel=0.3)
    assert bootstrap(values, seed=5) == (mean, low, high)
    many = np.random.default_rng(2).normal(0, 1, 30_000)
    assert bootstrap(many)[2] - bootstrap(many)[1] == pytest.approx(2 * 1.96 / math.sqrt(30_000), rel=0.05)


def test_bootstrap_of_one_or_none_or_unknown():
    mean, low, high = bootstrap([4.0])
    assert mean == 4.0
    assert math.isnan(low)
    assert math.isnan(high)
    assert all(math.isnan(v) for v in bootstrap([]))
    assert all(math.isnan(v) for v in bootstrap([1.0, math.nan]))


def test_compare_groups_by_everything_but_the_seed():
    def result(policy, seed, jct):
        summary = {
            "trace": "t",
            "policy": policy,
            "world": "w",
            "seed": seed,
            "cluster": "1x1",
            "avg_jct_s": jct,
        }
        return RunResult(summary, {}, {}, None)  # type: ignore[arg-type]

    runs = [result("x", 0, 1.0), result("y", 0, 5.0), result("x", 1, 3.0)]
    first, second = compare(runs)
    assert (first.policy, first.runs, first.seeds) == ("x", 2, ("0", "1"))
    assert first.figures["avg_jct_s"].mean == 2.0
    assert (first.figures["avg_jct_s"].low, first.figures["avg_jct_s"].high) == (1.0, 3.0)
    assert (second.policy, second.figures["avg_jct_s"].mean) == ("y", 5.0)
    assert set(first.figures) == {"avg_jct_s"}
