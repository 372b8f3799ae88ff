"""Elastic jobs with a fixed batch: what is measured decides, and the prior where nothing was."""

import numpy as np
import pytest

from plait.control.history import History
from plait.control.metrics import measure
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.goodput import LEAST_S
from plait.core.jobs import JobBatch, JobSpec
from plait.core.policy import View
from plait.goodput.fixed_batch import SIZES, UNIT, fit_sizes, fixed_s, parse_scaling, prior, scaled_to, true_scaling
from plait.policies.catalog import make_policy
from plait.policies.themis import Themis
from plait.sim.run import simulate
from plait.sim.training import AdaptiveJobs, Training
from plait.sim.world import make_world

#: Seconds of an iteration by GPUs of a job that gains nothing beyond a node of four.
SCALING = ((1, 1.0), (2, 0.6), (4, 0.4), (8, 0.9), (16, 1.0))


def test_the_prior_is_a_second_on_one_gpu_and_less_than_linear() -> None:
    nodes, gpus = np.array(SIZES).T
    speed = 1 / fixed_s(prior(), nodes, gpus)
    assert speed[0] == pytest.approx(1.0)
    assert (speed[1:] < gpus[1:]).all()
    assert speed[2] > 3
    assert speed[4] < 12, "near linear in a node, far from it over four"


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_no_worse_than_scipys_and_goes_through_what_was_measured(seed: int) -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(seed)
    theta = np.array([*rng.uniform(0.01, 0.3, 6), 1.0])
    theta[[1, 3, 5]] *= (1 / UNIT, 0.02, 0.02)
    measured = {size: float(fixed_s(theta, *size)) for size in SIZES[: 3 + seed % 4]}
    fitted = fit_sizes(measured)
    for size, seconds in measured.items():
        assert float(fixed_s(fitted, *size)) == pytest.approx(seconds, rel=0.02)
    # The same problem, posed again: relative errors, unmeasured sizes of the scaled prior with weight 1e-4.
    expected = np.exp(np.mean([np.log(s / fixed_s(prior(), *size)) for size, s in measured.items()]))
    rows, weights = [], []
    for nodes, gpus in SIZES:
        seconds = measured.get((nodes, gpus), expected * float(fixed_s(prior(), nodes, gpus)))
        sync = [1.0, max(gpus - 2, 0)] if gpus > 1 else [0.0, 0.0]
        rows.append(np.array([1.0, UNIT / gpus, *(sync if nodes > 1 else [0, 0]), *(sync if nodes == 1 else [0, 0])]))
        rows[-1] = rows[-1] / seconds
        weights.append(1.0 if (nodes, gpus) in measured else 0.01)
    left, right = np.array(rows) * np.array(weights)[:, None], np.array(weights)
    ours = np.linalg.norm(left @ fitted[:6] - right)
    assert ours == pytest.approx(nnls(left, right)[1], abs=1e-5)


def test_one_measurement_scales_the_prior() -> None:
    theta = fit_sizes({(1, 4): 2.0})
    for size in SIZES:
        assert float(fixed_s(theta, *size)) == pytest.approx(
            2.0 * float(fixed_s(prior(), *size) / fixed_s(prior(), 1, 4)), rel=0.02
        )
    assert (theta >= LEAST_S).all()


def test_measurements_and_texts_that_are_none_are_refused() -> None:
    for wrong in ({}, {(1, 1): 0.0}, {(1, 1): float("nan")}):
        with pytest.raises(InputError, match="the scaling of a job needs positive seconds"):
            fit_sizes(wrong)
    assert parse_scaling("1:0.5 4:2e-1") == ((1, 0.5), (4, 0.2))
    for text in ("", "4", "0:1", "1:-2", "1:inf", "a:b"):
        with pytest.raises(InputError, match="give seconds of an iteration by GPUs"):
            parse_scaling(text)


def elastic(**changes: object) -> JobBatch:
    known = {"id": "e", "gpus": 4, "min_gpus": 1, "max_gpus": 16, "iterations": 30_000.0, "iteration_s": 0.4}
    return JobBatch.of([JobSpec(**{**known, "scaling": SCALING, **changes})])


def test_the_truth_takes_its_time_at_the_requested_size_exactly() -> None:
    for gpus, scaling in ((4, SCALING), (3, ()), (16, ())):
        jobs = elastic(gpus=gpus, scaling=scaling).replace(batch_size=np.array([UNIT]), max_batch_size=np.array([UNIT]),
            min_local_batch=np.array([1]), max_local_batch=np.array([UNIT]))  # fmt: skip
        assert float(fixed_s(true_scaling(jobs, 0, 4), -(-gpus // 4), gpus)) == pytest.approx(0.4, rel=1e-9)
    assert float(fixed_s(scaled_to(prior(), 7.0, 8, 4), 2, 8)) == pytest.approx(7.0)


def run(jobs: JobBatch, policy: str, cluster: str = "4x4"):
    kept: list[History] = []

    def observe(controller):
        kept.append(History(controller))
        return kept[-1]

    done = simulate(jobs, Cluster.parse(cluster), make_policy(policy), make_world("ideal"), observe=observe)
    return done, measure(done.controller, kept[0])


def test_at_its_requested_size_a_job_takes_what_its_trace_says() -> None:
    assert run(elastic(), "fifo")[1].summary["avg_jct_s"] == pytest.approx(12_000.0, abs=0.01)


@pytest.mark.parametrize("policy", ["optimus", "pollux", "sia"])
def test_a_policy_learns_that_more_gpus_do_not_pay(policy: str) -> None:
    """Linear scaling would give it 16 GPUs, on which an iteration takes 2.5 times as long as on 4."""
    done, result = run(elastic(), policy)
    assert result.summary["avg_jct_s"] == pytest.approx(12_000.0, rel=0.05)
    row = done.controller.job_store.columns["goodput"][0]
    assert float(fixed_s(row[:7], 1, 4)) == pytest.approx(0.4, rel=0.02), "as measured"


def test_a_job_without_measurements_scales_as_the_prior_in_physics() -> None:
    jobs = elastic(scaling=(), gpus=1, iteration_s=1.0)
    sized = AdaptiveJobs(*_sized(jobs))
    for gpus in (1, 2, 4, 8):
        sized.start(0, -(-gpus // 4), gpus, 0.0)
        assert sized.rate(0) == pytest.approx(1 / float(fixed_s(prior(), -(-gpus // 4), gpus)), rel=1e-6)


def test_a_noisy_profile_is_off_at_the_requested_size_too() -> None:
    """Before the job has run there, what it knows of that size is not its true time."""
    noisy = AdaptiveJobs(*_sized(elastic(scaling=())), per_node=4, noise=0.5)
    noisy.start(0, 4, 16, 0.0)
    noisy.measure(0)
    guess = float(fixed_s(noisy.estimates[0, :7], 1, 4))
    assert guess != pytest.approx(0.4, rel=0.02)
    noisy.start(0, 1, 4, 0.0)
    noisy.measure(0)
    assert float(fixed_s(noisy.estimates[0, :7], 1, 4)) == pytest.approx(guess), "as it measures it later"


def _sized(jobs: JobBatch) -> tuple[JobBatch, Training]:
    from plait.goodput.fixed_batch import with_fixed_batches

    fixed = with_fixed_batches(jobs)
    return fixed, Training.shipped(fixed, 4)


def test_themis_compares_an_elastic_job_with_its_own_time_on_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two jobs on 8 GPUs each has a share of 4: the elastic one takes its own 0.4 s there, the other twice 0.9 s."""
    seen: list[np.ndarray] = []

    def isolated_s(self: Themis, view: View) -> np.ndarray:
        seen.append(TRUE(self, view))
        return seen[-1]

    TRUE = Themis.isolated_s
    monkeypatch.setattr(Themis, "isolated_s", isolated_s)
    jobs = JobBatch.of(
        [elastic(gpus=8, iteration_s=0.9)[0], JobSpec(id="r", gpus=8, iterations=30_000.0, iteration_s=0.9)]
    )
    simulate(jobs, Cluster.parse("2x4"), Themis(), make_world("ideal"))
    part = float(fixed_s(prior(), 1, 4) / fixed_s(prior(), 2, 8))  # not measured yet
    assert seen[0] == pytest.approx([27_000.0 * part, 54_000.0])
