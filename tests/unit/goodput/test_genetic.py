"""The published search: its allocations keep to the rules, its answers are repeatable, its rankings are right."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.core.goodput import MOST_TERM
from plait.goodput import genetic
from plait.goodput.fitness import FLOOR, after_restart, check, column_of, every_size, fitness, ladder, terms
from plait.goodput.knapsack import best_sizes
from sampling import examples


def question(seed: int, jobs: int, nodes: int, **more: object) -> genetic.Search:
    """Concave speed-ups, worse between nodes."""
    rng = np.random.default_rng(seed)
    configs = every_size(4, nodes)
    gpus = configs[:, 1]
    speedup = gpus / (1 + rng.uniform(0.05, 0.6, (jobs, 1)) * np.maximum(gpus - 1, 0))
    speedup *= np.where(configs[:, 0] > 1, rng.uniform(0.5, 1.0, (jobs, 1)), 1.0)
    running = np.zeros((jobs, nodes), dtype=np.int64)
    ones, cap = np.ones(jobs), np.full(jobs, 64)
    return genetic.Search(speedup, configs, running, np.full(nodes, 4), ones, cap, **more)  # type: ignore[arg-type]


def limits(jobs: int, nodes: int, artifact: bool = False, most: int = 64, least: int = 0) -> genetic.Limits:
    columns = np.full(jobs, most, dtype=np.int16), np.full(jobs, least, dtype=np.int16)
    return genetic.Limits(
        np.zeros((jobs, nodes), dtype=np.int16), np.full(nodes, 4, dtype=np.int16), *columns, artifact
    )


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 20), st.integers(1, 9), st.integers(0, 2))
def test_repaired_allocations_keep_to_every_limit(seed, jobs, nodes, most, least):
    rng = np.random.default_rng(seed)
    states = rng.integers(0, 5, (12, jobs, nodes)).astype(np.int16)
    rule = limits(jobs, nodes, bool(seed % 2), most, min(least, most))
    for _ in range(3):
        states = genetic.repair(genetic.mutate(genetic.cross(states, rng), rule, rng), rule, rng)
        used = states > 0
        gpus = states.sum(axis=2)
        assert (states >= 0).all()
        assert (states.sum(axis=1) <= 4).all()
        assert (gpus <= most).all()
        assert ((gpus == 0) | (gpus >= rule.least)).all()
        assert (used.sum(axis=2) <= genetic.MOST_NODES).all()
        distributed = used.sum(axis=2) > 1
        assert ((used & distributed[:, :, None]).sum(axis=1) <= 1).all()


def test_the_released_repair_takes_a_contested_node_from_every_later_job():
    state = np.array([[[1, 1], [1, 1], [0, 1]]], dtype=np.int16)
    rng = np.random.default_rng(0)
    assert genetic.repair(state.copy(), limits(3, 2), rng)[0].tolist() == [[1, 1], [0, 0], [0, 1]]
    assert genetic.repair(state.copy(), limits(3, 2, artifact=True), rng)[0].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_children_exchange_the_first_rows():
    parents = np.stack([np.zeros((6, 2)), np.ones((6, 2))] * 200).astype(np.int16)
    children = genetic.cross(parents, np.random.default_rng(1))
    assert (children[:200] + children[200:] == 1).all()
    swapped = children[:200, :, 0].sum(axis=1)
    assert (np.diff(children[:200, :, 0], axis=1) <= 0).all(), "only rows before a point come from the other"
    assert set(swapped.tolist()) == set(range(6))
    # one in ten pairs is not crossed, and one in six of the points is 0
    assert (swapped == 0).mean() == pytest.approx(0.1 + 0.9 / 6, abs=0.08)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=14), st.integers(1, 14))
def test_survivors_come_front_by_front(scores, keep):
    points = np.array(scores, dtype=np.float64)
    rows, rank, _ = genetic.survivors(points, keep)
    assert len(rows) == len(set(rows.tolist())) == min(keep, len(points))
    left, level = set(range(len(points))), {}
    while left:
        best = {i for i in left if not any(genetic.dominates(points)[j, i] for j in left)}
        level.update(dict.fromkeys(best, len(set(level.values()))))
        left -= best
    assert rank.tolist() == [level[i] for i in rows.tolist()]
    assert sorted(rank.tolist()) == sorted(level.values())[: len(rows)]


def test_crowding_is_the_room_between_neighbours():
    points = np.array([[0.0, 4.0], [1.0, 2.0], [1.0, 2.0], [4.0, 0.0]])
    assert genetic.crowding(points).tolist() == [np.inf, 1.0, 0.0, np.inf]


def test_tournaments_prefer_the_dominating_then_the_lonely():
    points = np.array([[0.0, 0.0], [1.0, 1.0]])
    won = genetic.tournaments(points, np.array([np.inf, 0.0]), 400, np.random.default_rng(0))
    assert (won == 1).mean() > 0.6  # it loses only where it was not drawn
    equal = np.array([[0.0, 1.0], [1.0, 0.0]])
    lonely = genetic.tournaments(equal, np.array([0.1, 0.2]), 400, np.random.default_rng(0))
    assert (lonely == 1).mean() > 0.6


def test_finds_the_optimum_of_a_small_cluster():
    search = question(4, 3, 2)
    best = 0.0
    for rows in product(product(range(5), repeat=2), repeat=3):
        state = np.array(rows)
        distributed = (state > 0).sum(axis=1) > 1
        if (state.sum(axis=0) > 4).any() or ((state > 0) & distributed[:, None]).sum(axis=0).max() > 1:
            continue
        value = {(n > 1, k): x for (n, k), x in zip(search.configs.tolist(), range(len(search.configs)), strict=True)}
        columns = [value.get((bool(d), int(k)), 0) for d, k in zip(distributed, state.sum(axis=1), strict=True)]
        best = max(best, float(fitness(search.speedup[[0, 1, 2], columns])))
    found = genetic.evolve(search, np.arange(3), np.arange(2), np.random.default_rng(0), generations=40)
    assert found.fitness == pytest.approx(best, rel=1e-12)


def test_the_same_seed_gives_the_same_allocation_and_a_front_is_a_better_start():
    search = question(2, 8, 4)
    names = np.arange(8), np.arange(4)
    once, again = (genetic.evolve(search, *names, np.random.default_rng(5), generations=12) for _ in range(2))
    assert once.gpus.tolist() == again.gpus.tolist()
    assert once.front.states.tolist() == again.front.states.tolist()
    warm = genetic.evolve(search, *names, np.random.default_rng(6), once.front, generations=2)
    assert warm.fitness >= once.fitness
    assert len(genetic.distinct(warm.front.states)) == len(warm.front.states)


def test_a_front_is_carried_to_other_jobs_and_nodes():
    front = genetic.Front(np.array([3, 5]), np.array([0, 1]), np.array([[[1, 2], [3, 4]]], dtype=np.int16))
    found = front.matched(np.array([5, 9, 3]), np.array([1, 7]))
    assert found.tolist() == [[[4, 0], [0, 0], [2, 0]]]


def test_staying_is_not_discounted():
    search = question(0, 2, 2)
    running = np.array([[2, 0], [0, 2]])
    stays = genetic.Search(search.speedup, search.configs, running, search.capacity, np.array([0.0, 0.0]), search.most)
    found = genetic.evolve(stays, np.arange(2), np.arange(2), np.random.default_rng(0), generations=10)
    assert found.gpus.tolist() == running.tolist()


def test_refuses_columns_of_another_length():
    search = question(0, 2, 2)
    with pytest.raises(InputError, match="a search over 2 jobs and 2 nodes got"):
        genetic.Search(search.speedup, search.configs, search.running, np.full(3, 4), search.factor, search.most)


# The mean of speed-ups, the ladder of sizes, and the discount of a restart.

NUMBERS = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=8)


@settings(max_examples=examples(80), deadline=None)
@given(NUMBERS, NUMBERS, st.sampled_from([-20.0, -1.0, 0.0, 0.5, 1.0, 3.0]))
def test_the_sum_of_terms_orders_as_fitness_does(a, b, p):
    count = min(len(a), len(b))
    one, other = np.array(a[:count]), np.array(b[:count])
    more, less = float(fitness(one, p)), float(fitness(other, p))
    if more > less * (1 + 1e-9):
        assert terms(one, p).sum() > terms(other, p).sum()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.floats(0.01, 50.0), min_size=1, max_size=8))
def test_means_grow_with_p_between_the_least_and_the_largest(x):
    means = [float(fitness(x, p, floor=0.0)) for p in (-60.0, -1.0, 0.0, 1.0, 60.0)]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(means))
    assert min(x) * (1 - 1e-9) <= means[0]
    assert means[-1] <= max(x) * (1 + 1e-9)


def test_known_means():
    x = [1.0, 4.0]
    assert float(fitness(x, 1.0)) == 2.5
    assert float(fitness(x, 0.0)) == pytest.approx(2.0)
    assert float(fitness(x, -1.0, floor=0.0)) == pytest.approx(1.6)
    assert float(fitness(x, -1000.0, floor=0.0)) == pytest.approx(1.0, rel=1e-3)
    assert float(fitness(x, 1.0, weights=np.array([3.0, 1.0]))) == 1.75
    assert float(fitness([0.0, 4.0], -1.0)) == pytest.approx(2e-3, rel=1e-3)
    assert float(fitness([0.0, 4.0], -1.0, floor=0.0)) == 0.0
    assert float(fitness([5.0], weights=np.array([0.0]))) == 0.0
    assert fitness(np.ones((3, 0))).tolist() == [0.0] * 3


def test_nan_marks_what_cannot_be_also_in_terms():
    assert np.isnan(terms([[0.0, np.nan]], -1.0)).tolist() == [[False, True]]


def test_refuses_a_p_that_is_no_number():
    with pytest.raises(InputError, match="p has to be finite"):
        fitness([1.0], float("-inf"))


@pytest.mark.parametrize(
    ("p", "floor", "words"),
    [
        (0.0, 0.0, "p=0 .* floor=0; give a floor above 0"),
        (-1.0, 0.0, "p=-1 .* or p above 0"),
        (
            -110.0,
            FLOOR,
            r"p=-110 with floor=0.001 .* p of at least -96, or a larger floor \(for this p at least 0.00232",
        ),
    ],
)
def test_refuses_terms_that_sums_cannot_hold(p, floor, words):
    for refused in (check, lambda p, floor: terms([0.0, 1.0], p, floor=floor)):
        with pytest.raises(InputError, match=words):
            refused(p, floor)
    check(-96.0)
    check(-110.0, 0.00232)
    check(1.0, 0.0)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8), st.floats(-96.0, 1e4), st.floats(0.0, 1e6))
def test_terms_are_finite_and_so_is_their_sum(x, p, weight):
    each = terms(x, p, weights=np.full(len(x), weight))
    assert np.isfinite(each).all()
    assert np.isfinite(each.sum())
    assert np.isfinite(np.full(10**6, MOST_TERM).sum())


@pytest.mark.parametrize("p", [-96.0, -1.0, 0.0, 1.0, 400.0])
def test_more_jobs_than_gpus_have_an_allocation_for_every_p_that_is_taken(p):
    table = np.tile([0.0, 1.0, 2.0, 4.0], (6, 1))
    chosen = best_sizes(table, np.array([0, 1, 2, 4]), 4, p)
    assert np.array([0, 1, 2, 4])[chosen].sum() == 4


def test_a_job_that_stays_is_not_discounted():
    table = np.array([[0.0, 2.0, 4.0], [0.0, 2.0, 4.0]])
    assert after_restart(table, np.array([0.5, 0.5]), np.array([1, -1])).tolist() == [[0, 2, 2], [0, 1, 2]]


@pytest.mark.parametrize("gpus_per_node", [1, 2, 3, 4, 6, 8, 10, 16])
def test_on_the_ladder_each_size_divides_the_next_up_to_a_node(gpus_per_node):
    sizes = ladder(gpus_per_node, 3)[:, 1].tolist()
    inside = [k for k in sizes if 0 < k <= gpus_per_node]
    assert inside[0] == 1
    assert inside[-1] == gpus_per_node
    assert all(b % a == 0 for a, b in pairwise(inside))
    assert sizes[len(inside) + 1 :] == [2 * gpus_per_node, 3 * gpus_per_node]


def test_sizes_are_capped_and_found_again():
    assert ladder(4, 8, most=9)[:, 1].tolist() == [0, 1, 2, 4, 8]
    sizes = every_size(4, 3, most=7)
    assert sizes.tolist() == [[0, 0], [1, 1], [1, 2], [1, 3], [1, 4], [2, 2], [2, 3], [2, 4], [2, 5], [2, 6], [2, 7]]
    assert column_of(sizes, np.array([2, 3, 1, 3]), np.array([3, 3, 3, 12])).tolist() == [6, 6, 3, -1]
    assert every_size(4, 1)[:, 0].max() == 1
    with pytest.raises(InputError, match="nodes with at least one GPU"):
        ladder(0, 2)
