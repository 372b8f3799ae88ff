"""The integer program: no allocation of any size and placement is better, and what it says can be built."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.goodput.fitness import every_size, fitness, ladder
from plait.goodput.ilp import best_arrangement
from plait.goodput.knapsack import best_sizes
from plait.testing.allocations import random_round
from sampling import examples


def speedups(seed: int, jobs: int, configs: np.ndarray, kinks: bool) -> np.ndarray:
    """Concave in GPUs, worse between nodes; with kinks any size may be the one to have."""
    rng = np.random.default_rng(seed)
    gpus = configs[:, 1]
    values = gpus / (1 + rng.uniform(0.0, 0.6, (jobs, 1)) * np.maximum(gpus - 1, 0))
    values = values * np.where(configs[:, 0] > 1, rng.uniform(0.5, 1.2, (jobs, 1)), 1.0)
    return values * rng.uniform(0.3, 1.0, values.shape) if kinks else values


@cache
def allocations(jobs: int, per_node: int, nodes: int) -> np.ndarray:
    """Every matrix that keeps to capacity and to one distributed job a node, as (GPUs, several nodes) of each job."""
    rows = np.array(list(product(range(per_node + 1), repeat=nodes)))
    states = rows[np.array(list(product(range(len(rows)), repeat=jobs)))]
    used = states > 0
    several = used.sum(axis=2) > 1
    fits = (states.sum(axis=1) <= per_node).all(axis=1)
    fits &= ((used & several[:, :, None]).sum(axis=1) <= 1).all(axis=1)
    return np.unique(np.stack([states.sum(axis=2), several], axis=2)[fits], axis=0)


def check(found, configs, per_node):
    gpus = found.gpus
    several = (gpus > 0).sum(axis=1) > 1
    assert (gpus.sum(axis=1) == configs[found.columns, 1]).all()
    assert (several == (configs[found.columns, 0] > 1)).all()
    assert (gpus.sum(axis=0) <= per_node).all()
    assert ((gpus[several] > 0).sum(axis=0) <= 1).all()


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 4, 2), (2, 4, 2), (3, 2, 3), (3, 3, 2), (4, 2, 2)]),
    st.sampled_from([-10.0, -4.0, -2.0, -1.0, 0.0, 0.5, 1.0]),
    st.booleans(),
    st.booleans(),
)
def test_no_allocation_at_all_is_better(seed, shape, p, kinks, wide):
    jobs, per_node, nodes = shape
    configs = every_size(per_node, nodes)
    values = speedups(seed, jobs, configs, kinks)
    if wide:  # jobs far below their fair share beside jobs far above
        values *= np.random.default_rng(seed).choice([0.02, 0.2, 1.0, 5.0], (jobs, 1))
    column = {(k, n > 1): c for c, (n, k) in enumerate(configs.tolist())}
    table = np.array([[column.get((k, bool(s)), 0) for s in (0, 1)] for k in range(per_node * nodes + 1)])
    every = allocations(jobs, per_node, nodes)
    chosen = table[every[:, :, 0], every[:, :, 1].astype(np.int64)]
    best = fitness(values[np.arange(jobs), chosen], p).max()
    found = best_arrangement(values, configs, per_node, nodes, p)
    check(found, configs, per_node)
    assert found.optimal
    assert float(fitness(values[np.arange(jobs), found.columns], p)) == pytest.approx(float(best), rel=1e-6)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_equal_weights_change_nothing(seed):
    asked = random_round(seed, 20, 16)
    rows = np.arange(20)
    reached = []
    for weight in (1.0, 1e-9, 1e-6, 1e9):
        weights = np.full(20, weight)
        found = best_arrangement(asked.speedup, asked.configs, asked.gpus_per_node, asked.nodes, weights=weights)
        assert found.optimal
        reached.append(float(fitness(asked.speedup[rows, found.columns])))
    assert reached == pytest.approx([reached[0]] * 4, rel=1e-6)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 14), st.integers(1, 6), st.sampled_from([-10.0, -1.0, 0.0, 1.0]))
def test_never_below_the_ladder(seed, jobs, nodes, p):
    configs, steps = every_size(4, nodes), ladder(4, nodes)
    values = speedups(seed, jobs, configs, False)
    on_ladder = [
        next(c for c, (n, k) in enumerate(configs.tolist()) if k == K and (n > 1) == (N > 1)) for N, K in steps
    ]
    sizes = best_sizes(values[:, on_ladder], steps[:, 1], 4 * nodes, p)
    found = best_arrangement(values, configs, 4, nodes, p, most_nodes=200)
    check(found, configs, 4)
    rows = np.arange(jobs)
    reached = float(fitness(values[rows, found.columns], p))
    assert reached >= float(fitness(values[:, on_ladder][rows, sizes], p)) * (1 - 1e-9)


def test_jobs_are_on_as_few_nodes_as_their_size_needs():
    configs = every_size(4, 6)
    values = np.where(configs[:, 1] == 5, 5.0, 0.0)[None]
    found = best_arrangement(values, configs, 4, 6)
    assert sorted(found.gpus[0].tolist()) == [0, 0, 0, 0, 1, 4]


def test_solving_prints_nothing():
    """Standard output is for results; HiGHS 1.16 greets there, once a process."""
    program = """if True:
        import numpy as np
        from plait.goodput.ilp import best_arrangement
        from plait.goodput.fitness import every_size
        configs = every_size(4, 6)
        best_arrangement(np.where(configs[:, 1] == 5, 5.0, 0.0)[None], configs, 4, 6)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout + done.stderr == ""


def test_three_jobs_share_two_nodes_where_the_ladder_cannot():
    configs = every_size(4, 3)
    values = np.minimum(configs[:, 1], 3.0)[None].repeat(4, axis=0)
    found = best_arrangement(values, configs, 4, 3)
    assert found.optimal
    assert found.gpus.sum(axis=1).tolist() == [3, 3, 3, 3]
    assert ((found.gpus > 0).sum(axis=1) > 1).sum() == 1  # 3 + 3 + 3 on a node each, 1 + 1 + 1 beside them


def test_sizes_that_cannot_be_are_left_out_and_pinned_ones_kept():
    configs = every_size(4, 2)
    values = configs[:, 1][None].repeat(2, axis=0).astype(np.float64)
    values[0, configs[:, 1] != 3] = np.nan
    values[0, configs[:, 0] > 1] = np.nan
    found = best_arrangement(values, configs, 4, 2)
    assert found.gpus.sum(axis=1).tolist() == [3, 5]
    values[1] = values[0]
    values = np.concatenate([values, values[:1]])
    with pytest.raises(InputError, match="no arrangement of 3 jobs on 2 nodes of 4 GPUs"):
        best_arrangement(values, configs, 4, 2)


def test_nothing_to_arrange():
    configs = every_size(4, 2)
    assert best_arrangement(np.zeros((0, len(configs))), configs, 4, 2).columns.tolist() == []
    assert best_arrangement(np.zeros((2, 1)), configs[:1], 4, 0).gpus.shape == (2, 0)
    with pytest.raises(InputError, match="has to be nothing"):
        best_arrangement(np.zeros((1, len(configs) - 1)), configs[1:], 4, 2)
