"""The mean of speed-ups, the ladder of sizes, and the discount of a restart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.goodput.fitness import FLOOR, MOST, after_restart, check, column_of, every_size, fitness, ladder, terms
from plait.goodput.knapsack import best_sizes
from sampling import examples

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
    assert np.isfinite(np.full(10**6, MOST).sum())


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
