"""The published search: its allocations keep to the rules, its answers are repeatable, its rankings are right."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.goodput.fitness import every_size, fitness
from plait.goodput.genetic.nsga2 import crowding, dominates, survivors, tournaments
from plait.goodput.genetic.operators import MOST_NODES, Limits, cross, distinct, mutate, repair
from plait.goodput.genetic.search import Front, Search, evolve
from sampling import examples


def question(seed: int, jobs: int, nodes: int, **more: object) -> Search:
    """Concave speed-ups, worse between nodes."""
    rng = np.random.default_rng(seed)
    configs = every_size(4, nodes)
    gpus = configs[:, 1]
    speedup = gpus / (1 + rng.uniform(0.05, 0.6, (jobs, 1)) * np.maximum(gpus - 1, 0))
    speedup *= np.where(configs[:, 0] > 1, rng.uniform(0.5, 1.0, (jobs, 1)), 1.0)
    running = np.zeros((jobs, nodes), dtype=np.int64)
    ones, cap = np.ones(jobs), np.full(jobs, 64)
    return Search(speedup, configs, running, np.full(nodes, 4), ones, cap, **more)  # type: ignore[arg-type]


def limits(jobs: int, nodes: int, artifact: bool = False, most: int = 64, least: int = 0) -> Limits:
    columns = np.full(jobs, most, dtype=np.int16), np.full(jobs, least, dtype=np.int16)
    return Limits(np.zeros((jobs, nodes), dtype=np.int16), np.full(nodes, 4, dtype=np.int16), *columns, artifact)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 20), st.integers(1, 9), st.integers(0, 2))
def test_repaired_allocations_keep_to_every_limit(seed, jobs, nodes, most, least):
    rng = np.random.default_rng(seed)
    states = rng.integers(0, 5, (12, jobs, nodes)).astype(np.int16)
    rule = limits(jobs, nodes, bool(seed % 2), most, min(least, most))
    for _ in range(3):
        states = repair(mutate(cross(states, rng), rule, rng), rule, rng)
        used = states > 0
        gpus = states.sum(axis=2)
        assert (states >= 0).all()
        assert (states.sum(axis=1) <= 4).all()
        assert (gpus <= most).all()
        assert ((gpus == 0) | (gpus >= rule.least)).all()
        assert (used.sum(axis=2) <= MOST_NODES).all()
        distributed = used.sum(axis=2) > 1
        assert ((used & distributed[:, :, None]).sum(axis=1) <= 1).all()


def test_the_released_repair_takes_a_contested_node_from_every_later_job():
    state = np.array([[[1, 1], [1, 1], [0, 1]]], dtype=np.int16)
    rng = np.random.default_rng(0)
    assert repair(state.copy(), limits(3, 2), rng)[0].tolist() == [[1, 1], [0, 0], [0, 1]]
    assert repair(state.copy(), limits(3, 2, artifact=True), rng)[0].tolist() == [[1, 1], [0, 0], [0, 0]]


def test_children_exchange_the_first_rows():
    parents = np.stack([np.zeros((6, 2)), np.ones((6, 2))] * 200).astype(np.int16)
    children = cross(parents, np.random.default_rng(1))
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
    rows, rank, _ = survivors(points, keep)
    assert len(rows) == len(set(rows.tolist())) == min(keep, len(points))
    left, level = set(range(len(points))), {}
    while left:
        best = {i for i in left if not any(dominates(points)[j, i] for j in left)}
        level.update(dict.fromkeys(best, len(set(level.values()))))
        left -= best
    assert rank.tolist() == [level[i] for i in rows.tolist()]
    assert sorted(rank.tolist()) == sorted(level.values())[: len(rows)]


def test_crowding_is_the_room_between_neighbours():
    points = np.array([[0.0, 4.0], [1.0, 2.0], [1.0, 2.0], [4.0, 0.0]])
    assert crowding(points).tolist() == [np.inf, 1.0, 0.0, np.inf]


def test_tournaments_prefer_the_dominating_then_the_lonely():
    points = np.array([[0.0, 0.0], [1.0, 1.0]])
    won = tournaments(points, np.array([np.inf, 0.0]), 400, np.random.default_rng(0))
    assert (won == 1).mean() > 0.6  # it loses only where it was not drawn
    equal = np.array([[0.0, 1.0], [1.0, 0.0]])
    lonely = tournaments(equal, np.array([0.1, 0.2]), 400, np.random.default_rng(0))
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
    found = evolve(search, np.arange(3), np.arange(2), np.random.default_rng(0), generations=40)
    assert found.fitness == pytest.approx(best, rel=1e-12)


def test_the_same_seed_gives_the_same_allocation_and_a_front_is_a_better_start():
    search = question(2, 8, 4)
    names = np.arange(8), np.arange(4)
    once, again = (evolve(search, *names, np.random.default_rng(5), generations=12) for _ in range(2))
    assert once.gpus.tolist() == again.gpus.tolist()
    assert once.front.states.tolist() == again.front.states.tolist()
    warm = evolve(search, *names, np.random.default_rng(6), once.front, generations=2)
    assert warm.fitness >= once.fitness
    assert len(distinct(warm.front.states)) == len(warm.front.states)


def test_a_front_is_carried_to_other_jobs_and_nodes():
    front = Front(np.array([3, 5]), np.array([0, 1]), np.array([[[1, 2], [3, 4]]], dtype=np.int16))
    found = front.matched(np.array([5, 9, 3]), np.array([1, 7]))
    assert found.tolist() == [[[4, 0], [0, 0], [2, 0]]]


def test_staying_is_not_discounted():
    search = question(0, 2, 2)
    running = np.array([[2, 0], [0, 2]])
    stays = Search(search.speedup, search.configs, running, search.capacity, np.array([0.0, 0.0]), search.most)
    found = evolve(stays, np.arange(2), np.arange(2), np.random.default_rng(0), generations=10)
    assert found.gpus.tolist() == running.tolist()


def test_refuses_columns_of_another_length():
    search = question(0, 2, 2)
    with pytest.raises(InputError, match="a search over 2 jobs and 2 nodes got"):
        Search(search.speedup, search.configs, search.running, np.full(3, 4), search.factor, search.most)
