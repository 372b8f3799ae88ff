"""What policies of sizes compile: the same as their plain Python on random pools."""

from __future__ import annotations

import numpy as np
import pytest

from plait.core.jit import HAVE_NUMBA
from plait.policies.sizing import seating
from plait.policies.sizing.pools import Pool
from plait.policies.sizing.seating import Seats

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="needs the compiler: the extra sim")


def allocation(rng: np.random.Generator, sizes: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """GPUs (J, N) of jobs in turn, each of which takes what is free from a random node on, if that suffices."""
    out, free = np.zeros((len(sizes), len(capacity)), dtype=np.int64), capacity.copy()
    for j in rng.permutation(len(sizes)).tolist():
        if free.sum() < sizes[j] or rng.random() < 0.3:
            continue
        for n in rng.permutation(len(free)).tolist():
            out[j, n] = min(free[n], sizes[j] - out[j].sum())
            free[n] -= out[j, n]
    return out


def random_pool(seed: int) -> Pool:
    """A pool in which anything may be: jobs due, fresh and of no weight, nodes that are down or differ."""
    rng = np.random.default_rng(seed)
    jobs, nodes = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    capacity = rng.choice([0, 2, 4, 4, 4], nodes)
    least = rng.choice([1, 1, 2, 3, 4, 6, 8], jobs)
    most = least if rng.random() < 0.5 else least + rng.integers(0, 6, jobs)
    held = allocation(rng, least, capacity)
    return Pool(
        np.arange(jobs), np.arange(nodes), capacity, np.full((nodes, 2), np.inf), np.zeros((jobs, 2)), held, least,
        most, most, rng.choice([0.0, 1.0, 1.0], jobs), rng.random(jobs) < 0.3, rng.random(jobs) < 0.2,
        rng.random(jobs), None,
    )  # fmt: skip


def both(monkeypatch: pytest.MonkeyPatch, module, call):
    """What a call gives without machine code and with it."""
    found = []
    for way in (False, True):
        monkeypatch.setattr(module, "compiled", lambda kernel, work, way=way: way)
        found.append(call())
    return found


def test_free_gpus_go_to_the_same_jobs_compiled(monkeypatch):
    changed = 0
    for seed in range(400):
        pool, rng = random_pool(seed), np.random.default_rng(seed)
        matrix = pool.held if seed % 2 else allocation(rng, pool.least, pool.capacity)
        want = None if seed % 3 else matrix.sum(axis=1)

        def fill(pool=pool, matrix=matrix, want=want):
            seats = Seats(pool, matrix)
            return seats.fill(want).tolist(), seats.free.tolist()

        plain, fast = both(monkeypatch, seating, fill)
        assert plain == fast, seed
        changed += plain[0] != matrix.tolist()
    assert changed > 100
