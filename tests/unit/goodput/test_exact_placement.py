"""Who stays, who restarts and where: against every allocation there is."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.goodput.fitness import every_size, fitness
from plait.goodput.ilp import best_placement, realised
from sampling import examples


@cache
def states(jobs: int, capacity: tuple[int, ...]) -> np.ndarray:
    """Every matrix within capacity that has one distributed job on a node at most."""
    rows = np.array(list(product(*(range(c + 1) for c in capacity))))
    made = rows[np.array(list(product(range(len(rows)), repeat=jobs)))]
    used = made > 0
    several = used.sum(axis=2) > 1
    fits = (made.sum(axis=1) <= np.array(capacity)).all(axis=1)
    return made[fits & ((used & several[:, :, None]).sum(axis=1) <= 1).all(axis=1)]


def speedups(rng: np.random.Generator, jobs: int, configs: np.ndarray) -> np.ndarray:
    gpus = configs[:, 1]
    values = gpus / (1 + rng.uniform(0.0, 0.6, (jobs, 1)) * np.maximum(gpus - 1, 0))
    return values * np.where(configs[:, 0] > 1, rng.uniform(0.6, 1.3, (jobs, 1)), 1.0)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(2, (4, 4)), (3, (2, 2, 2)), (3, (3, 3)), (3, (3, 1, 0)), (3, (2, 4)), (4, (2, 2))]),
    st.sampled_from([-1.0, 0.0, 1.0]),
)
def test_no_allocation_is_better_with_restarts_counted(seed, shape, p):
    jobs, capacity = shape
    rng = np.random.default_rng(seed)
    every = states(jobs, capacity)
    configs = every_size(4, 2)
    values, factor = speedups(rng, jobs, configs), rng.uniform(0.2, 1.0, jobs)
    running = every[rng.integers(len(every))]
    known = running if rng.random() < 0.5 else every[rng.integers(len(every))]
    found = best_placement(values, configs, running, np.array(capacity), factor, known, p)
    assert found.optimal
    assert (every == found.gpus).all(axis=(1, 2)).any(), "not an allocation that keeps the rules"
    table = {(int(k), n > 1): c for c, (n, k) in enumerate(configs.tolist())}
    worth = np.array([[[table.get((k, s), 0) for s in (False, True)] for k in range(sum(capacity) + 1)]])[0]
    column = worth[every.sum(axis=2), ((every > 0).sum(axis=2) > 1).astype(int)]
    stays = (every == running).all(axis=2)
    best = fitness(values[np.arange(jobs), column] * np.where(stays, 1.0, factor), p).max()
    mine = fitness(realised(found.gpus, values, configs, running, factor), p)
    assert float(mine) == pytest.approx(float(best), rel=1e-6)


def test_an_equal_size_elsewhere_is_a_restart_and_pinned_jobs_stay():
    configs = every_size(4, 2)
    running = np.array([[2, 0], [0, 2], [0, 0]])
    values = np.zeros((3, len(configs)))
    for job, size in enumerate((2, 2, 4)):
        values[job, (configs[:, 1] == size) & (configs[:, 0] == 1)] = 1.0
    capacity = np.full(2, 4)
    moves = best_placement(values, configs, running, capacity, np.array([0.9, 0.5, 1.0]), running)
    assert moves.gpus.tolist() == [[0, 2], [0, 2], [4, 0]]
    pinned = best_placement(values, configs, running, capacity, np.array([np.nan, 0.5, 1.0]), running)
    assert pinned.gpus.tolist() == [[2, 0], [2, 0], [0, 4]]
    both = best_placement(values, configs, running, capacity, np.array([np.nan, np.nan, 1.0]), running)
    assert both.gpus.tolist() == running.tolist()


def test_nothing_to_choose():
    configs = every_size(4, 2)
    empty = np.zeros((0, 2), dtype=np.int64)
    assert best_placement(np.zeros((0, len(configs))), configs, empty, np.full(2, 4), np.zeros(0), empty).optimal
    with pytest.raises(InputError, match="has to be nothing"):
        best_placement(np.zeros((0, 1)), configs[1:2], empty, np.full(2, 4), np.zeros(0), empty)
