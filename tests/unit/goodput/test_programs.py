"""The integer program: no allocation of any size and placement is better, and what it says can be built."""

import math
import subprocess
import sys
from functools import cache
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_rounds import random_round

from plait.core import compile_policy
from plait.core.errors import InputError
from plait.core.goodput import MOST_POWER
from plait.core.jit import plain
from plait.goodput.fitness import every_size, fitness, ladder, terms
from plait.goodput.ilp import best_arrangement, best_placement, realised
from plait.goodput.kinds import Limit, best_configurations, kind_configs, relative
from plait.goodput.knapsack import best_of_only_sizes, best_sizes, fill_table, knapsack, plain_table
from plait.policies.pollux import resize, utility
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


# Who stays, who restarts and where: against every allocation there is.


@cache
def states(jobs: int, capacity: tuple[int, ...]) -> np.ndarray:
    """Every matrix within capacity that has one distributed job on a node at most."""
    rows = np.array(list(product(*(range(c + 1) for c in capacity))))
    made = rows[np.array(list(product(range(len(rows)), repeat=jobs)))]
    used = made > 0
    several = used.sum(axis=2) > 1
    fits = (made.sum(axis=1) <= np.array(capacity)).all(axis=1)
    return made[fits & ((used & several[:, :, None]).sum(axis=1) <= 1).all(axis=1)]


def speedups_exact_placement(rng: np.random.Generator, jobs: int, configs: np.ndarray) -> np.ndarray:
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
    values, factor = speedups_exact_placement(rng, jobs, configs), rng.uniform(0.2, 1.0, jobs)
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


# Configurations on GPUs of several kinds, against every choice there is.


def goodputs(seed: int, jobs: int, configs: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(seed)
    slow = rng.uniform(0.0, 0.7, (jobs, 1))
    speed = rng.uniform(0.5, 3.0, (jobs, configs[:, 2].max() + 1))
    return speed[:, configs[:, 2]] * configs[:, 1] / (1 + slow * (configs[:, 1] - 1))


def score(values: np.ndarray, chosen: tuple[int, ...], p: float, penalty: float) -> float:
    total = 0.0
    for row, c in zip(values, chosen, strict=True):
        total += -penalty if c < 0 else (np.log(row[c]) if p == 0 else np.sign(p) * row[c] ** p)
    return float(total)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]),
    st.sampled_from([1.1, 0.2]),
    st.booleans(),
)
def test_no_choice_is_better(seed, jobs, p, penalty, limited):
    configs = kind_configs([2, 4], [2, 1])
    gpus, kind, capacity = configs[:, 1], configs[:, 2], np.array([4, 4])
    values = relative(goodputs(seed, jobs, configs))
    limits = [Limit(np.broadcast_to(gpus.astype(float), values.shape), high=5.0)] if limited else []
    found = best_configurations(values, gpus, kind, capacity, p, penalty=penalty, limits=limits)
    best = -np.inf
    for chosen in product(range(-1, len(configs)), repeat=jobs):
        some = [c for c in chosen if c >= 0]
        used = np.bincount(kind[some], gpus[some], minlength=2)
        if (used <= capacity).all() and (not limited or used.sum() <= 5):
            best = max(best, score(values, chosen, p, penalty))
    used = np.bincount(kind[found[found >= 0]], gpus[found[found >= 0]], minlength=2)
    assert (used <= capacity).all()
    assert score(values, tuple(found.tolist()), p, penalty) == pytest.approx(best, abs=1e-6)


def test_the_penalty_decides_whether_all_run_small_or_some_run_large():
    """At p = -0.5 two jobs of 2 GPUs and two of none cost 2 / sqrt(2) + 2.2, which is less than four of 1."""
    configs = kind_configs([4], [1])
    values = relative(np.tile(configs[:, 1].astype(float), (4, 1)))
    size = configs[:, 1], configs[:, 2], np.array([4])
    assert sorted(best_configurations(values, *size).tolist()) == [-1, -1, 1, 1]
    assert best_configurations(values, *size, penalty=3.0).tolist() == [0, 0, 0, 0]


def test_jobs_go_where_they_gain_most():
    configs = kind_configs([1, 1], [1, 1])
    values = relative(np.array([[1.0, 2.0], [1.0, 8.0]]))
    assert best_configurations(values, configs[:, 1], configs[:, 2], np.array([1, 1])).tolist() == [0, 1]
    runs = Limit(np.array([[0.0, 1.0], [0.0, 0.0]]), low=1.0)
    assert best_configurations(values, configs[:, 1], configs[:, 2], np.array([1, 1]), limits=[runs]).tolist() == [1, 0]


def test_weights_and_what_cannot_run():
    configs = kind_configs([1], [1])
    values = np.array([[1.0], [1.0], [np.nan]])
    size = configs[:, 1], configs[:, 2], np.array([1])
    assert best_configurations(values, *size, weights=np.array([1.0, 2.0, 9.0])).tolist() == [-1, 0, -1]
    assert best_configurations(np.full((2, 1), np.nan), *size).tolist() == [-1, -1]
    with pytest.raises(InputError, match="meets the 1 extra limits"):
        best_configurations(values, *size, limits=[Limit(np.ones((3, 1)), low=2.0)])
    with pytest.raises(InputError, match="limits of shape"):
        best_configurations(values, *size, limits=[Limit(np.ones((2, 1)))])


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 3.0]), st.sampled_from([1e-12, 1e-7, 1e9]))
def test_only_how_weights_compare_matters(seed, p, scale):
    configs = kind_configs([2, 4], [2, 1])
    values = relative(goodputs(seed, 4, configs))
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, 4)
    size = configs[:, 1], configs[:, 2], np.array([4, 4])
    expected = best_configurations(values, *size, p, weights=weights)
    assert best_configurations(values, *size, p, weights=weights * scale).tolist() == expected.tolist()


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([-4.0, -0.5, 0.5, 4.0]))
def test_no_choice_is_better_with_weights_far_apart(seed, p):
    configs = kind_configs([2, 4], [2, 1])
    gpus, kind, capacity = configs[:, 1], configs[:, 2], np.array([4, 4])
    values = relative(goodputs(seed, 3, configs))
    weights = 10 ** np.random.default_rng(seed).uniform(-5, 0, 3)
    found = best_configurations(values, gpus, kind, capacity, p, weights=weights)
    worth = weights[:, None] * np.column_stack([np.sign(p) * values**p, np.full(3, -1.1)])
    best = -np.inf
    for chosen in product(range(-1, len(configs)), repeat=3):
        some = [c for c in chosen if c >= 0]
        if (np.bincount(kind[some], gpus[some], minlength=2) <= capacity).all():
            best = max(best, worth[np.arange(3), chosen].sum())
    assert worth[np.arange(3), found].sum() == pytest.approx(best, rel=1e-9, abs=1e-7 * np.median(weights))


def test_exponents_of_which_numbers_can_hold_no_power_are_refused():
    size = np.array([1, 2]), np.array([0, 0]), np.array([2])
    for p in (MOST_POWER + 1.0, -MOST_POWER - 1.0, np.nan, np.inf):
        with pytest.raises(InputError, match=r"more of goodputs than numbers can hold; give p from -48 to 48"):
            best_configurations(np.array([[1.0, 2.0]]), *size, p)
    values = np.array([[1e-9, 1e6], [1.0, 2.0]])
    for p in (MOST_POWER, -MOST_POWER):  # at the very end, and one restart that loses nearly everything
        assert best_configurations(values, *size[:2], np.array([4]), p)[0] == 1


def test_goodput_is_relative_to_the_least_positive():
    assert np.array_equal(relative(np.array([[0.0, 2.0, 6.0]])), [[np.nan, 1.0, 3.0]], equal_nan=True)


# One size for each job: against every choice there is, and the compiled table against the plain one.

P = [-10.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]


def speedups_knapsack(seed: int, jobs: int, gpus: np.ndarray) -> np.ndarray:
    """Concave in the number of GPUs, some with a kink that makes whole nodes worth less."""
    rng = np.random.default_rng(seed)
    slow = rng.uniform(0.02, 0.9, (jobs, 1))
    return gpus / (1 + slow * gpus) * np.where(gpus > 4, rng.uniform(0.3, 1.0, (jobs, 1)), 1.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 3), st.sampled_from(P), st.booleans())
def test_nothing_is_better_and_no_equal_takes_fewer(seed, jobs, nodes, p, capped):
    gpus = ladder(4, nodes)[:, 1]
    values = speedups_knapsack(seed, jobs, gpus)
    if capped:
        values[0, gpus > 2] = np.nan
    found = best_sizes(values, gpus, 4 * nodes, p)
    choices = [c for c in product(range(len(gpus)), repeat=jobs) if gpus[list(c)].sum() <= 4 * nodes]
    rows = np.arange(jobs)
    scores = {c: float(fitness(values[rows, list(c)], p)) for c in choices if not np.isnan(values[rows, list(c)]).any()}
    best = max(scores.values())
    assert scores[tuple(found.tolist())] == pytest.approx(best, rel=1e-12)
    fewest = min(gpus[list(c)].sum() for c, s in scores.items() if s == best)
    assert gpus[found].sum() <= fewest


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 5), st.sampled_from(P))
def test_the_kernel_and_the_plain_table_agree(seed, jobs, nodes, p):
    gpus = ladder(4, nodes)[:, 1]
    gain = terms(speedups_knapsack(seed, jobs, gpus), p)
    chosen = [np.zeros(jobs, dtype=np.int64) for _ in range(3)]
    fits = [
        table(gain, np.array(gpus), 4 * nodes, out)
        for table, out in zip((fill_table, plain(fill_table), plain_table), chosen, strict=True)
    ]
    assert fits == [True] * 3
    assert chosen[0].tolist() == chosen[1].tolist() == chosen[2].tolist()


@pytest.mark.skipif(not hasattr(fill_table, "overloads"), reason="needs the compiler: the extra sim")
def test_the_table_is_compiled_for_one_layout_of_its_arguments():
    gpus = ladder(4, 3)[:, 1]
    gain = terms(speedups_knapsack(0, 3, gpus))
    fill_table(gain, np.array(gpus), 12, np.zeros(3, dtype=np.int64))
    known = len(fill_table.overloads)
    knapsack(gain, gpus, 12)
    knapsack(np.asfortranarray(gain), gpus.astype(np.int32), 12)
    assert len(fill_table.overloads) == known


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from(P), st.sampled_from([0, math.inf]))
def test_jobs_of_one_size_each_are_chosen_as_among_all_sizes(seed, jobs, p, patience):
    rng, gpus, rows = np.random.default_rng(seed), ladder(4, 3)[:, 1], np.arange(jobs)
    column, its = rng.integers(0, len(gpus), jobs), np.where(rng.random(jobs) < 0.5, 1.0, rng.random(jobs).round(1))
    weights = rng.choice([1.0, 1.0, 2.5], jobs)
    must = np.flatnonzero((rng.random(jobs) < 0.3) & (column > 0))[:1]
    values = np.full((jobs, len(gpus)), np.nan)
    values[rows, column], values[:, 0] = its, 0.0
    values[must, 0] = np.nan
    with (
        mock.patch.object(compile_policy, "_loaded", set()),
        mock.patch.object(compile_policy, "PATIENCE", patience),
        mock.patch.object(compile_policy, "READING", patience),
    ):
        found = best_of_only_sizes(its, column, gpus, 12, p, must=must, weights=weights)
    assert found.tolist() == best_sizes(values, gpus, 12, p, weights=weights).tolist()


def test_equal_choices_take_the_fewest_gpus():
    gpus = np.array([0, 1, 2, 4])
    flat = np.array([[0.0, 1.0, 1.0, 1.0]] * 3)
    assert best_sizes(flat, gpus, 16).tolist() == [1, 1, 1]


def test_the_last_gpus_count_beside_a_job_left_out_at_a_low_p():
    """At p = -12 a job without GPUs costs 1e36, and the rest a few: single floats would not see the rest."""
    gpus = ladder(4, 2)[:, 1]
    values = speedups_knapsack(3, 9, gpus)
    found = best_sizes(values, gpus, 8, -12.0)
    assert gpus[found].tolist().count(0) == 1
    assert gpus[found].sum() == 8
    values[0] = np.nan
    values[0, 0] = 0.0  # one job can have nothing at all: the others get what they would have had without it
    alone = best_sizes(values[1:4], gpus, 8, -12.0)
    assert best_sizes(values[:4], gpus, 8, -12.0)[1:].tolist() == alone.tolist()


def test_jobs_of_weight_zero_get_what_is_left():
    gpus = np.array([0, 1, 2, 4])
    values = np.array([[0.0, 1.0, 1.5, 1.5], [0.0, 1.0, 2.0, 4.0], [0.0, 1.0, 2.0, 4.0]])
    assert best_sizes(values, gpus, 8, weights=np.array([1.0, 0.0, 1.0])).tolist() == [2, 2, 3]
    assert best_sizes(values, gpus, 4, weights=np.array([1.0, 0.0, 1.0])).tolist() == [2, 0, 2]


def test_a_pinned_job_keeps_its_size_and_too_many_are_refused():
    gpus = np.array([0, 1, 2, 4])
    values = np.array([[0.0, 1.0, 1.5, 1.5], [np.nan, np.nan, np.nan, 0.1]])
    assert best_sizes(values, gpus, 4).tolist() == [0, 3]
    with pytest.raises(InputError, match="no choice of configurations for 2 jobs fits in 3 GPUs"):
        best_sizes(values, gpus, 3)
    with pytest.raises(InputError, match="one rising GPU count for each of its 4 columns"):
        knapsack(values, gpus[::-1], 4)


def test_no_jobs_and_no_gpus():
    gpus = ladder(4, 0)[:, 1]
    assert best_sizes(np.zeros((0, 1)), gpus, 0).tolist() == []
    assert best_sizes(np.zeros((2, 1)), gpus, 0).tolist() == [0, 0]


# The size of the cluster: its utility, and the bisection for it.


def test_utility_is_one_when_every_job_scales_linearly_on_full_nodes():
    assert utility(np.array([4.0, 2.0, 0.0]), np.array([4, 2, 0]), 6) == 1.0
    assert utility(np.array([4.0, 1.0]), np.array([4, 2]), 8) == 0.625
    assert utility(np.array([0.0]), np.array([0]), 0) == 0.0


@given(st.integers(1, 40), st.floats(0.5, 60.0), st.integers(1, 5), st.integers(1, 60))
def test_the_size_found_is_the_nearest_to_the_target_of_a_falling_utility(nodes, scale, least, most):
    def falling(n: int) -> float:
        return scale / (scale + n)

    most = max(most, least)
    found = resize(nodes, falling, least=least, most=most)
    top = max(least, min(most, 2 * nodes))
    assert least <= found <= top
    if least <= nodes <= top and 0.35 <= falling(nodes) <= 0.65:
        assert found == nodes
    else:
        assert abs(falling(found) - 0.5) == min(abs(falling(n) - 0.5) for n in range(least, top + 1))


def test_a_cluster_at_most_doubles_and_never_empties():
    assert resize(8, lambda n: 1.0 - n / 1000) == 16
    assert resize(8, lambda n: 0.1 / n) == 1
    assert resize(8, lambda n: 0.5) == 8
    with pytest.raises(InputError, match="a target in its band"):
        resize(4, lambda n: 0.5, low=0.6)
