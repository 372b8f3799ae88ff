"""Arranged nodes become real ones so that jobs stay."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.placement.elastic import place_arranged, place_sizes, rebuild
from sampling import examples


def random_arrangement(rng: np.random.Generator, jobs: int, nodes: int) -> np.ndarray:
    """Jobs on nodes of 4 GPUs, at most one that is spread on a node."""
    out = np.zeros((jobs, nodes), dtype=np.int64)
    owned = np.zeros(nodes, dtype=bool)
    for job in range(jobs):
        free = 4 - out.sum(axis=0)
        count = int(rng.integers(1, 3))
        open_nodes = np.flatnonzero((free > 0) & (~owned if count > 1 else True))
        if len(open_nodes) >= count:
            chosen = rng.choice(open_nodes, count, replace=False)
            out[job, chosen] = [rng.integers(1, free[n] + 1) for n in chosen]
            owned[chosen] |= count > 1
    return out


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 5))
def test_patterns_are_kept_and_no_numbering_of_nodes_keeps_more(seed, jobs, nodes):
    rng = np.random.default_rng(seed)
    arranged, running = random_arrangement(rng, jobs, nodes), random_arrangement(rng, jobs, nodes)
    capacity = np.full(nodes, 4)
    found = rebuild(arranged, running, capacity)
    assert (found.gpus.sum(axis=1) == arranged.sum(axis=1)).all()
    assert sorted(map(sorted, found.gpus.T.tolist())) == sorted(map(sorted, arranged.T.tolist()))
    spread = (found.gpus > 0).sum(axis=1) > 1
    assert ((found.gpus[spread] > 0).sum(axis=0) <= 1).all()
    if not ((arranged > 0).sum(axis=1) > 1).any():
        kept = (found.gpus == running).all(axis=1).sum()
        best = max((arranged[:, list(order)] == running).all(axis=1).sum() for order in permutations(range(nodes)))
        assert kept >= best


def test_a_running_arrangement_stays():
    rng = np.random.default_rng(5)
    running = random_arrangement(rng, 9, 6)
    shuffled = running[:, rng.permutation(6)]
    assert rebuild(shuffled, running, np.full(6, 4)).gpus.tolist() == running.tolist()


def test_the_placer_comes_first_and_the_arrangement_where_it_fails():
    running = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    easy = place_arranged(np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 3]]), running, np.full(3, 4))
    assert easy.moved.size == easy.unplaced.size == 0
    arranged = np.array([[4, 0], [0, 4], [3, 0], [3, 0], [0, 3], [0, 3]])  # the largest first: 4 + 4, 3 + 3 + 3, and 3
    running = np.zeros_like(arranged)
    assert place_sizes(arranged.sum(axis=1), running, np.full(2, 10)).unplaced.size == 1
    found = place_arranged(arranged, running, np.full(2, 10))
    assert found.unplaced.size == 0
    assert found.gpus.sum(axis=1).tolist() == [4, 4, 3, 3, 3, 3]
    assert found.gpus.sum(axis=0).tolist() == [10, 10]


def test_nodes_that_are_down_are_left_out_and_too_few_are_refused():
    arranged = np.array([[4, 0], [0, 2]])
    running = np.array([[0, 4, 0], [0, 0, 0]])
    found = rebuild(arranged, running, np.array([0, 4, 4]))
    assert found.gpus.tolist() == [[0, 4, 0], [0, 0, 2]]
    with pytest.raises(InputError, match="does not fit on nodes"):
        rebuild(arranged, running, np.array([0, 4, 1]))
