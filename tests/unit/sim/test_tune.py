"""Fitting thresholds."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.policies.catalog import make_policy
from plait.policies.options import Range
from plait.sim.studies.tune import ONE_QUEUE, Setting, Space, TunedPolicy, average_jct_s, fit_policy, search

CLUSTER = Cluster.parse("2x4")


def columns(n, seed=0, spread=1.5, gap_s=60.0):
    rng = np.random.default_rng(seed)
    return {
        "id": [f"j{i}" for i in range(n)],
        "submit_s": np.sort(np.round(rng.uniform(1000, 1000 + gap_s * n, n))),
        "gpus": rng.choice([1, 2, 4], n),
        "iterations": np.round(np.exp(rng.normal(5, spread, n))) + 1,
        "iteration_s": np.ones(n),
    }


def batch(n):
    return JobBatch(columns(n))


@pytest.fixture
def few(monkeypatch):
    """Fewer thresholds tried alone, so that a test is short."""
    monkeypatch.setattr("plait.sim.studies.tune.GRID", 4)


def fit_thresholds(jobs, cluster, max_queues=4, policy="tiresias-l"):
    return fit_policy(jobs, cluster, policy, max_queues=max_queues, only=["thresholds"], samples=1, most_runs=2)


def test_what_is_fitted_is_the_best_of_all_tried_and_can_be_pasted(few):
    jobs = batch(240)
    fit = fit_policy(
        jobs, CLUSTER, "tiresias-l:dimensions=2,thresholds=99", max_queues=3, only=["thresholds", "within"]
    )
    assert fit.default == "tiresias-l:dimensions=2,thresholds=99"
    whole = [value for _, n, value in fit.tried if n == fit.jobs_first]
    assert fit.first["fitted"] == min(whole) <= fit.first["default"]
    assert fit.queues <= 3
    assert len({(p, n) for p, n, _ in fit.tried}) == len(fit.tried)
    assert {n for _, n, _ in fit.tried} == {50, 120}  # a ninth and a third would be fewer than makes sense
    order = make_policy(fit.policy).order
    assert order.dimensions == 2
    assert fit.queues == 1 + len(fit.thresholds or (() if "thresholds=1e" in fit.policy else order.thresholds))
    if fit.thresholds:
        assert order.thresholds == fit.thresholds


def test_all_options_with_a_range_are_tried(few):
    fit = fit_policy(batch(220), CLUSTER, "tiresias-l", max_queues=2, samples=2, most_runs=1)
    names = {part.partition("=")[0] for p, _, _ in fit.tried for part in p.partition(":")[2].split(",")}
    assert names >= {"thresholds", "within", "knob", "guard", "floor_s", "dimensions", "min_run_s"}
    assert "quantum_s" not in names
    alone = fit_policy(batch(220), CLUSTER, "tiresias-l:knob=4", only=["within"], samples=1)
    assert {p.replace("tiresias-l:knob=4", "") for p, _, _ in alone.tried} <= {
        "", ",within=first_start", ",within=running_first", ",within=submit",
    }  # fmt: skip


def test_options_of_muri_are_fitted():
    stages = np.tile([0.2, 0.3, 0.4, 0.1], (210, 1))
    stages[::2] = stages[::2, ::-1]
    fit = fit_policy(
        JobBatch(columns(210), stages), CLUSTER, "muri-l", only=["guard", "max_jobs", "order"], samples=1, most_runs=1
    )
    tried = {part for p, _, _ in fit.tried for part in p.partition(":")[2].split(",")}
    assert {"max_jobs=1", "max_jobs=4", "guard=off", "guard=0.5", "order=discretised"} <= tried
    assert fit.thresholds == ()
    assert fit.queues >= 1


def test_the_halves_are_by_submission_and_start_at_zero(few):
    jobs = batch(240)
    second = jobs[np.arange(120, 240)]
    second = second.replace(submit_s=second.submit_s - second.submit_s[0])
    fit = fit_thresholds(jobs, CLUSTER, max_queues=1)
    assert (fit.jobs_first, fit.jobs_second) == (120, 120)
    for name in ("fifo", "srsf"):
        assert fit.second[name] == average_jct_s(second, CLUSTER, name)
    assert fit.queues == 1
    assert fit.thresholds == ()
    backfill = average_jct_s(second, CLUSTER, "fifo-backfill")
    assert fit.second["fitted"] == pytest.approx(backfill)  # one queue is first come, first served


def test_it_is_deterministic(few):
    jobs = batch(220)
    assert fit_thresholds(jobs, CLUSTER, 3).to_json() == fit_thresholds(jobs, CLUSTER, 3).to_json()


def test_too_few_departures_are_refused(few):
    with pytest.raises(InputError, match="199 jobs that fit the cluster are too few"):
        fit_thresholds(batch(199), CLUSTER)
    wide = batch(210)
    wide = wide.replace(gpus=np.where(np.arange(210) < 20, 99, wide.gpus))
    with pytest.raises(InputError, match="190 jobs"):
        fit_thresholds(wide, CLUSTER)
    more = batch(230)
    more = more.replace(gpus=np.where(np.arange(230) % 20 == 0, 99, more.gpus))
    assert fit_thresholds(more, CLUSTER, 1).left_out == 12


@pytest.mark.parametrize(
    ("policy", "only", "message"),
    [
        ("drf", None, "has nothing to fit; these have: .*tiresias-l.*muri-l"),
        ("tiresias", None, "did you mean"),
        ("tiresias-l", ["kno"], "has no option 'kno' to fit; did you mean 'knob'"),
        ("tiresias-l:knob=4", ["knob"], "has nothing to fit"),
        ("tiresias-l:knob=-4", None, "knob is -4; it takes"),
    ],
)
def test_what_cannot_be_fitted_is_refused(policy, only, message):
    with pytest.raises(InputError, match=message):
        fit_policy(batch(200), CLUSTER, policy, only=only)
    with pytest.raises(InputError, match="max_queues"):
        fit_policy(batch(200), CLUSTER, max_queues=0)


def far(value, target):
    return abs(np.log(value / target))


def test_the_search_does_not_jump_over_an_optimum_between_two_candidates():
    """The old candidates were 64,048 and then 1,295,318."""
    for target in (90_000.0, 115_200.0, 230_400.0, 700_000.0):
        space = Space({}, most=1, low=64.0, high=1.3e7)
        found = search(space, lambda c, part, at=target: 1e3 if c.thresholds is None else far(c.thresholds[0], at))
        assert far(found.thresholds[0], target) < 0.25


def test_the_search_takes_few_jobs_first_and_prefers_what_is_simple():
    asked = []
    space = Space({"knob": Range(0.5, 1000, "log", also=("inf",)), "within": Range(also=("a", "b"))}, 3, 10.0, 1e6)

    def cost(choice, part):
        asked.append((choice, part))
        options = dict(choice.options)
        knob = options.get("knob", "inf")
        return (1.0 if knob == "inf" else far(float(knob), 20.0)) + (options.get("within") != "b")

    found = search(space, cost, seed=3)
    assert search(space, cost, seed=3) == found
    assert found.thresholds is None
    assert dict(found.options)["within"] == "b"
    assert far(float(dict(found.options)["knob"]), 20.0) < 0.3
    counts = [len({c for c, p in asked if p == part}) for part in (1 / 9, 1 / 3)]
    assert counts[0] > 2 * counts[1] > 10
    assert search(space, lambda choice, part: 1.0) == Setting()
    assert search(space, lambda c, part: float(c.thresholds != ONE_QUEUE)).thresholds == ONE_QUEUE


def test_the_verdict_is_plain():
    def fit(fitted, default):
        values = {"fitted": fitted, "default": default, "fifo": 9.0, "srsf": 1.0}
        return TunedPolicy("f", "d", {}, (1.0,), 2, (1.0,), values, values, 1, 1, 0, ())

    assert fit(3.0, 4.0).verdict == "on the second half the fitted options beat d by 25.0%"
    assert "do not beat d: they are 25.0% worse" in fit(5.0, 4.0).verdict
    assert "do the same" in fit(4.0, 4.0).verdict
    assert not fit(4.0, 4.0).worth_it


def test_a_published_trace():
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
    path = root / "muri" / "trace3.csv"
    if not path.exists():
        pytest.skip("needs the published trace muri/trace3.csv; set PLAIT_DATA to the folder that has it")
    from plait.traces.formats.registry import read_trace
    from plait.traces.load import load_jobs

    if os.environ.get("PLAIT_SLOW") != "1":
        pytest.skip("fits to 496 jobs for a minute; set PLAIT_SLOW=1")
    jobs = load_jobs(read_trace(path)).jobs
    fit = fit_policy(jobs, Cluster.parse("8x8"), max_queues=2, only=["thresholds"])
    assert (fit.jobs_first, fit.jobs_second) == (496, 496)
    assert fit.second["srsf"] < fit.second["fitted"] < fit.second["fifo"]
    assert all(math.isfinite(v) for v in fit.first.values())
    for between in (115_200, 230_400):
        half = jobs[np.arange(496)]
        half = half.replace(submit_s=half.submit_s - half.submit_s[0])
        assert fit.first["fitted"] <= average_jct_s(half, Cluster.parse("8x8"), f"tiresias-l:thresholds={between}")
