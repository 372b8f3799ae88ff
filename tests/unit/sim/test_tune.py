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
from plait.sim.tune import Fit, _candidates, _descend, average_jct_s, fit_thresholds

CLUSTER = Cluster.parse("2x4")


def batch(n, seed=0, spread=1.5, gap_s=60.0):
    rng = np.random.default_rng(seed)
    return JobBatch(
        {
            "id": [f"j{i}" for i in range(n)],
            "submit_s": np.sort(np.round(rng.uniform(1000, 1000 + gap_s * n, n))),
            "gpus": rng.choice([1, 2, 4], n),
            "iterations": np.round(np.exp(rng.normal(5, spread, n))) + 1,
            "iteration_s": np.ones(n),
        }
    )


def test_fitted_thresholds_are_the_best_of_those_tried_and_can_be_pasted():
    jobs = batch(240)
    fit = fit_thresholds(jobs, CLUSTER, max_queues=3, policy="tiresias-l:within=submit,thresholds=99")
    assert fit.default == "tiresias-l:within=submit,thresholds=99"
    assert fit.first["fitted"] == min(value for _, value in fit.tried)
    assert fit.queues <= 3
    assert set(fit.thresholds) <= set(fit.candidates)
    assert len({t for t, _ in fit.tried}) == len(fit.tried)
    order = make_policy(fit.policy).order
    assert order.within == "submit"
    if fit.thresholds:
        assert order.thresholds == fit.thresholds


def test_the_halves_are_by_submission_and_start_at_zero():
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


def test_it_is_deterministic():
    jobs = batch(220)
    assert fit_thresholds(jobs, CLUSTER, 3).to_json() == fit_thresholds(jobs, CLUSTER, 3).to_json()


def test_too_few_departures_are_refused():
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
    ("policy", "message"),
    [("sjf", "has no thresholds to fit; these have: tiresias-l, tiresias-g"), ("tiresias", "did you mean")],
)
def test_policies_without_thresholds_are_refused(policy, message):
    with pytest.raises(InputError, match=message):
        fit_thresholds(batch(200), CLUSTER, policy=policy)
    with pytest.raises(InputError, match="max_queues"):
        fit_thresholds(batch(200), CLUSTER, 0)


def test_candidates_are_quantiles_of_service():
    jobs = JobBatch({"id": [f"{i}" for i in range(101)], "submit_s": np.zeros(101), "gpus": np.full(101, 2),
                     "iterations": np.arange(101) + 1.0, "iteration_s": np.ones(101)})  # fmt: skip
    assert _candidates(jobs) == (62.0, 92.0, 122.0, 152.0, 182.0, 192.0)


def test_descent_finds_what_pays_and_prefers_fewer_queues():
    target = (3.0, 7.0)

    def cost(thresholds):
        return sum(min(abs(t - x) for x in thresholds) for t in target) + 0.01 * max(len(thresholds) - 2, 0)

    assert _descend(cost, (1.0, 3.0, 5.0, 7.0, 9.0), 4) == target
    assert _descend(lambda thresholds: 1.0, (1.0, 3.0), 4) == (1e15,)


def test_the_verdict_is_plain():
    def fit(fitted, default):
        values = {"fitted": fitted, "default": default, "fifo": 9.0, "srsf": 1.0}
        return Fit("f", "d", (1.0,), 2, (1.0,), values, values, 1, 1, 0, ())

    assert fit(3.0, 4.0).verdict == "on the second half the fitted thresholds beat d by 25.0%"
    assert "do not beat d: they are 25.0% worse" in fit(5.0, 4.0).verdict
    assert "do the same" in fit(4.0, 4.0).verdict
    assert not fit(4.0, 4.0).worth_it


def test_a_published_trace():
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
    path = root / "muri" / "trace3.csv"
    if not path.exists():
        pytest.skip("needs the published trace muri/trace3.csv; set PLAIT_DATA to the folder that has it")
    from plait.traces.formats import read_trace
    from plait.traces.load import load_jobs

    fit = fit_thresholds(load_jobs(read_trace(path)).jobs, Cluster.parse("8x8"), max_queues=2)
    assert (fit.jobs_first, fit.jobs_second) == (496, 496)
    assert fit.second["srsf"] < fit.second["fitted"] < fit.second["fifo"]
    assert all(math.isfinite(v) for v in fit.first.values())
