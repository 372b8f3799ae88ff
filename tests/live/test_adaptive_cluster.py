"""Real trainings that adapt, on CPU slots under `pollux`: sizes change, no sample is lost, nothing is learnt worse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from adaptive_world import LIMITS, Outcome, Paced, losses_of_fixed, samples_of, serve

from plait.core.goodput import THETA, Estimate
from plait.live.layout import Layout
from plait.testing import leaks

pytestmark = pytest.mark.engines

SAMPLES = 512


def paced(at_s: float, epochs: int, *, adaptive: bool = True, most_gpus: int = 2) -> Paced:
    return Paced(at_s, epochs, adaptive=adaptive, most_gpus=most_gpus, samples=SAMPLES, spread=3.0)


def run(home: Path, jobs: list[Paced], slots: int, interval_s: float) -> tuple[Outcome, list[int]]:
    """Jobs to their end, and what must always hold; also the numbers of those that have grown."""
    policy = f"pollux:interval_s={2 * interval_s:g},restart_s={interval_s:g}"
    result = serve(home, jobs, policy, slots=slots, interval_s=interval_s)
    assert [job.state for job in result.jobs] == ["finished"] * len(jobs)
    assert leaks(Layout(home.resolve())) == []
    assert result.difference is None, str(result.difference)
    for i, job in enumerate(jobs):
        epochs = samples_of(home.parent / "home-out", i)
        *whole, last = (epochs[epoch] for epoch in range(len(epochs)))
        assert all(len(samples) == SAMPLES and set(samples.values()) == {1} for samples in whole)
        assert set(last.values()) == {1}
        assert len(epochs) >= job.epochs  # as much progress at larger batches takes more samples
        assert len(last) == SAMPLES or job.adaptive
        assert result.sizes[i][0] == 1
        assert job.adaptive or result.sizes[i] == [1]
    for i, job in enumerate(jobs):
        expected = losses_of_fixed(job.epochs, SAMPLES, job.spread)
        assert abs(result.losses[i] - expected.mean()) < 5 * expected.std(), (i, result.losses[i])
    grown = [i for i in range(len(jobs)) if max(result.sizes[i]) > 1]
    # Where other processes take the cores a fit may say of one job that larger batches take as much longer: not of all.
    assert not grown or max(max(result.batches[i]) for i in grown) > LIMITS.initial
    for i in grown:
        known = result.estimates[i]
        assert (known[:THETA] >= 0).all()
        assert known[Estimate.RESTART_S] > 0  # measured, not NaN; how long a restart takes is the machine's affair
    return result, grown


def test_trainings_grow_as_slots_become_free_and_see_each_sample_once(tmp_path: Path) -> None:
    jobs = [paced(0.0, 16), paced(0.5, 4, adaptive=False), paced(1.0, 12)]
    _, grown = run(tmp_path / "home", jobs, slots=4, interval_s=2.0)
    assert grown


@pytest.mark.slow
@pytest.mark.skipif("PLAIT_SLOW" not in os.environ, reason="takes minutes; set PLAIT_SLOW=1")
def test_three_adaptive_and_two_fixed_trainings_share_a_cluster(tmp_path: Path) -> None:
    """Those that adapt start on one slot each and take what is left; simulated, all end about when they did."""
    jobs = [
        paced(0.0, 80, most_gpus=8), paced(4.0, 60, adaptive=False), paced(8.0, 60, most_gpus=8),
        paced(10.0, 40, adaptive=False), paced(14.0, 70, most_gpus=8),
    ]  # fmt: skip
    result, grown = run(tmp_path / "home", jobs, slots=8, interval_s=3.0)
    assert grown == [0, 2, 4]
    assert all(max(result.batches[i]) > LIMITS.initial for i in grown)
    assert max(max(sizes) for sizes in result.sizes) >= 4
    assert result.foretold is not None
    predicted, measured = (
        sum(getattr(job, name) for job in result.foretold.jobs) for name in ("predicted_s", "measured_s")
    )
    assert abs(predicted / measured - 1) < 0.15
