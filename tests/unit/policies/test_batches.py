"""Batches of waiting jobs: the best choice of all, and jobs that wait are not forgotten."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.policies.catalog import make_policy
from plait.policies.compose import knapsack
from plait.sim.run import simulate
from plait.sim.world import make_world


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_the_best_of_all_choices(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = int(draw.integers(0, 9))
    size, capacity = draw.integers(1, 9, count), int(draw.integers(0, 20))
    value = draw.integers(1, 10, count).astype(np.float64)
    chosen = knapsack(size, value, capacity)
    best = max(
        (
            float(value[list(pick)].sum())
            for flags in product((False, True), repeat=count)
            if size[(pick := np.flatnonzero(flags).tolist())].sum() <= capacity
        ),
        default=0.0,
    )
    assert size[chosen].sum() <= capacity
    assert value[chosen].sum() == pytest.approx(best)


def test_ties_go_to_the_first() -> None:
    assert knapsack(np.array([2, 2, 2]), np.full(3, 2.0), 4).tolist() == [True, True, False]


def starts(policy: str, *jobs: tuple[float, int, float]) -> list[float]:
    """First starts of jobs of (submission, GPUs, seconds) on four GPUs."""
    batch = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=at, gpus=gpus, iterations=seconds, iteration_s=1.0)
        for i, (at, gpus, seconds) in enumerate(jobs)
    )
    run = simulate(batch, Cluster.parse("1x4"), make_policy(policy), make_world("ideal"), check=True)
    return run.controller.job_store.columns["first_start_s"][: len(jobs)].tolist()


def test_what_fills_the_gpus_starts_before_what_came_first() -> None:
    """When the first job ends, jobs of 3 and 2 and 2 GPUs wait; the last two fill all four."""
    jobs = (0.0, 4, 100.0), (1.0, 3, 100.0), (2.0, 2, 100.0), (3.0, 2, 100.0)
    assert starts("knapsack", *jobs) == [0.0, 200.0, 100.0, 100.0]
    assert starts("fifo-backfill", *jobs) == [0.0, 100.0, 200.0, 200.0]


def test_a_job_that_has_waited_long_is_worth_more() -> None:
    jobs = (0.0, 4, 7200.0), (1.0, 3, 100.0), (7100.0, 4, 100.0)
    assert starts("knapsack", *jobs)[1:] == [7200.0, 7300.0]


def test_running_jobs_stay() -> None:
    assert starts("knapsack", (0.0, 3, 100.0), (10.0, 4, 100.0)) == [0.0, 100.0]
