"""Exact matching: against brute force, two other libraries and its own proof of optimality."""

import itertools
import json
import os
import subprocess
import sys
from functools import cache
from unittest import mock

import networkx as nx
import numpy as np
import pytest
import rustworkx as rx
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.core.jit import plain
from plait.grouping import matching
from plait.grouping.matching import matching_with_bound, maximum_weight_matching
from plait.grouping.matching_kernels import MATE, assign, match, room


def how(way):
    """Force the compiled kernel or its plain twin, whatever the size."""
    return mock.patch.object(matching, "_worth_compiling", return_value=way == "kernel")


def symmetric(upper):
    upper = np.triu(upper, 1)
    return upper + upper.T


def random_weights(rng, n):
    """Whole numbers: many ties, few ties, negative and zero weights, sparse, in separate parts."""
    high = int(rng.choice([2, 3, 4, 6, 20, 1000, 10**9]))
    w = rng.integers(0, high, (n, n))
    kind = rng.integers(5)
    if kind == 1:
        w = w - high // 2
    elif kind == 2:
        w = w * (rng.random((n, n)) < 0.3)
    elif kind == 3:
        part = rng.integers(0, 3, n)
        w = w * (part[:, None] == part)
    elif kind == 4:  # few kinds of vertices, all of a kind alike
        kinds = rng.integers(0, 4, n)
        w = w[np.ix_(kinds % max(n, 1), kinds % max(n, 1))] if n else w
    return symmetric(w)


def efficiencies(rng, n, classes=0):
    """Interleaving efficiency of all pairs of random profiles, as in Muri's formula (4)."""
    p = np.exp(rng.standard_normal((classes or n, 4)))
    p = p[rng.integers(0, classes, n)] if classes else p
    shifted = [np.maximum(p[:, None, :], np.roll(p, s, axis=1)[None, :, :]).sum(-1) for s in (1, 2, 3)]
    return symmetric((p.sum(1)[:, None] + p.sum(1)) / (4 * np.minimum.reduce(shifted)))


def value(w, mate):
    """Weight of a matching, which must be one."""
    n = len(w)
    assert len(mate) == n
    for i, j in enumerate(mate):
        assert j == -1 or (0 <= j < n and j != i and mate[j] == i and w[i][j] > 0)
    return sum(w[i][j] for i, j in enumerate(mate) if j > i)


def brute_force(w):
    n = len(w)

    @cache
    def best(left):
        if not left:
            return 0
        i, rest = left[0], left[1:]
        with_i = (w[i][j] + best(tuple(k for k in rest if k != j)) for j in rest)
        return max(best(rest), *with_i) if rest else 0

    return best(tuple(range(n)))


def by_rustworkx(w):
    graph = rx.PyGraph()
    graph.add_nodes_from(range(len(w)))
    graph.add_edges_from([(i, j, int(w[i, j])) for i, j in itertools.combinations(range(len(w)), 2) if w[i, j] > 0])
    return sum(int(w[i, j]) for i, j in rx.max_weight_matching(graph, weight_fn=int))


def by_networkx(w):
    graph = nx.Graph()
    graph.add_weighted_edges_from(
        [(i, j, int(w[i, j])) for i, j in itertools.combinations(range(len(w)), 2) if w[i, j] > 0]
    )
    return sum(int(w[i, j]) for i, j in nx.max_weight_matching(graph))


def check_proof(w, found):
    """The certificate: duals that no edge exceeds, that matched edges meet, and that add up to the bound."""
    n, even = len(w), len(found.duals)
    whole = np.zeros((even, even), dtype=np.int64)
    whole[:n, :n] = np.rint(np.maximum(w, 0) / (4 * found.unit))
    total = found.duals[:, None] + found.duals
    for inside, z in found.blossoms:
        assert z > 0
        assert len(inside) % 2 == 1
        assert len(inside) >= 3
        total[np.ix_(inside, inside)] += z
    slack = total - 4 * whole
    np.fill_diagonal(slack, 0)
    assert slack.min() >= 0
    left = np.flatnonzero(found.mate > np.arange(n))
    assert (slack[left, found.mate[left]] == 0).all()
    dual_value = sum(found.duals.tolist()) + sum(len(inside) // 2 * z for inside, z in found.blossoms)
    assert dual_value == 4 * sum(whole[left, found.mate[left]].tolist())
    assert found.upper_bound >= found.weight * (1 - 1e-12)
    assert found.upper_bound == pytest.approx(found.weight, rel=1e-9)


weights_of_pairs = st.integers(0, 10).flatmap(
    lambda n: st.lists(st.integers(-3, 6), min_size=n * n, max_size=n * n).map(
        lambda flat: symmetric(np.array(flat, dtype=np.int64).reshape(n, n))
    )
)


@given(weights_of_pairs, st.sampled_from(["kernel", "plain"]))
def test_brute_force(w, way):
    best = brute_force(w.tolist())
    with how(way):
        assert value(w, maximum_weight_matching(w)) == best


@pytest.mark.parametrize("n", [11, 12])
def test_brute_force_twelve(n):
    rng = np.random.default_rng(n)
    for _ in range(6):
        w = random_weights(rng, n)
        with how("kernel"):
            assert value(w, maximum_weight_matching(w)) == brute_force(w.tolist())


@given(
    st.integers(2, 8).flatmap(
        lambda n: st.lists(st.floats(-1.0, 1e6, allow_nan=False), min_size=n * n, max_size=n * n).map(
            lambda flat: symmetric(np.array(flat).reshape(n, n))
        )
    )
)
def test_brute_force_floats(w):
    with how("plain"):
        found = matching_with_bound(w)
    best = brute_force(w.tolist())
    assert value(w, found.mate) == pytest.approx(best, rel=1e-12)
    assert found.weight == pytest.approx(best, rel=1e-12)
    assert best <= found.upper_bound * (1 + 1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_rustworkx(seed):
    rng = np.random.default_rng(seed)
    for _ in range(500):
        w = random_weights(rng, int(rng.integers(0, 33)))
        with how("kernel"):
            assert value(w, maximum_weight_matching(w)) == by_rustworkx(w)


def test_networkx_and_the_reference():
    rng = np.random.default_rng(11)
    for _ in range(150):
        w = random_weights(rng, int(rng.integers(0, 23)))
        expected = by_networkx(w)
        with how("kernel"):
            assert value(w, maximum_weight_matching(w)) == expected


@pytest.mark.parametrize("classes", [0, 3, 8])
def test_efficiencies(classes):
    rng = np.random.default_rng(classes)
    for _ in range(40):
        w = efficiencies(rng, int(rng.integers(2, 41)), classes)
        whole = np.rint(w * 1e7).astype(np.int64)
        with how("kernel"):
            exact = value(whole, maximum_weight_matching(whole))
            assert exact == by_rustworkx(whole)
            assert value(w, maximum_weight_matching(w)) == pytest.approx(exact / 1e7, rel=1e-6)


def test_blossoms_from_a_cold_start():
    """All vertices free at first, so that the blossom phases do everything: they nest, expand and expand again."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        n = 2 * int(rng.integers(1, 21))
        w = np.maximum(random_weights(rng, n), 0)
        cost = -2 * w
        np.fill_diagonal(cost, -2 * w.max())  # every vertex a cycle of its own, with a dual that is large enough
        state = room(n)
        match(cost, np.arange(n), np.zeros(n, dtype=np.int64), state)
        mate = state[MATE, :n]
        assert (mate[mate] == np.arange(n)).all()
        assert w[np.arange(n), mate].sum() == 2 * by_rustworkx(w)


@pytest.mark.parametrize(("n", "classes"), [(4, 0), (41, 0), (60, 8), (150, 0), (300, 0), (300, 8), (299, 3)])
def test_proof(n, classes):
    w = efficiencies(np.random.default_rng(n), n, classes)
    with how("kernel"):
        found = matching_with_bound(w)
    assert value(w, found.mate) == pytest.approx(found.weight)
    check_proof(w, found)


@pytest.mark.parametrize("seed", range(60))
def test_proof_of_small_problems(seed):
    rng = np.random.default_rng(seed)
    w = random_weights(rng, int(rng.integers(1, 30)))
    for way, halved in (("kernel", matching.HALVED), ("plain", matching.HALVED), ("kernel", 5), ("plain", 5)):
        with how(way), mock.patch.object(matching, "HALVED", halved):
            found = matching_with_bound(w)
        assert value(w, found.mate) == found.weight
        check_proof(w, found)


def test_no_more_than_half_the_assignment():
    rng = np.random.default_rng(3)
    for _ in range(100):
        n = 2 * int(rng.integers(1, 20))
        w = np.maximum(random_weights(rng, n), 0)
        cost = -2 * w
        np.fill_diagonal(cost, 8 * w.max() + 8)
        column_of, dual = np.full(n, -1), np.zeros(n, dtype=np.int64)
        assign(cost, column_of, dual)
        assert (np.sort(column_of) == np.arange(n)).all()
        assert (column_of != np.arange(n)).all()
        assert not (dual % 2).any()
        rows = cost[np.arange(n), column_of] - dual[column_of]  # duals of rows: feasible proves the permutation best
        assert (cost - rows[:, None] - dual >= 0).all()
        assert value(w, maximum_weight_matching(w)) <= w[np.arange(n), column_of].sum() / 2


def test_order_of_vertices_does_not_change_the_weight():
    rng = np.random.default_rng(4)
    for n in (7, 30, 101):
        w = random_weights(rng, n)
        best = value(w, maximum_weight_matching(w))
        for _ in range(5):
            order = rng.permutation(n)
            shuffled = w[np.ix_(order, order)]
            assert value(shuffled, maximum_weight_matching(shuffled)) == best


def test_same_matching_compiled_or_plain_and_again():
    rng = np.random.default_rng(6)
    for n in (2, 3, 9, 20, 33, 40, 41, 64):
        for w in (random_weights(rng, n), efficiencies(rng, n, 4), efficiencies(rng, n)):
            mates = []
            for way in ("kernel", "plain", "kernel"):
                with how(way):
                    mates.append(maximum_weight_matching(w).tolist())
            assert mates[0] == mates[1] == mates[2]


def test_plain_python():
    """Without the compiler: other processes, same results."""
    w = efficiencies(np.random.default_rng(7), 50, 8)
    program = (
        "import sys, json, numpy as np; from plait.grouping.matching import maximum_weight_matching as m;"
        "print(m(np.array(json.load(sys.stdin))).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(w.tolist()),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == str(maximum_weight_matching(w).tolist())


def test_small_problems_wait_for_no_compiler_and_many_do_once():
    ones = np.ones((matching.SMALL, matching.SMALL))
    with (
        mock.patch.object(matching.compile_policy, "compiled", return_value=False) as patience,
        mock.patch.object(matching, "assign", side_effect=AssertionError("compiles")),
    ):
        assert maximum_weight_matching(ones).min() >= 0
        assert patience.called
        with pytest.raises(AssertionError, match="compiles"):
            maximum_weight_matching(np.ones((matching.SMALL + 1, matching.SMALL + 1)))
        patience.return_value = True
        with pytest.raises(AssertionError, match="compiles"):
            maximum_weight_matching(ones)


def test_known_blossoms():
    """Two triangles joined by one edge; a five-cycle with a tail. A bipartite method gets both wrong."""
    w = np.zeros((6, 6))
    for i, j in [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]:
        w[i, j] = w[j, i] = 10
    w[2, 3] = w[3, 2] = 1
    assert maximum_weight_matching(w).tolist() == [1, 0, 3, 2, 5, 4]
    assert matching_with_bound(w).weight == 21
    tail = np.zeros((6, 6))
    for i, j, x in [(0, 1, 8), (1, 2, 9), (2, 3, 8), (3, 4, 9), (4, 0, 8), (0, 5, 3)]:
        tail[i, j] = tail[j, i] = x
    assert maximum_weight_matching(tail).tolist() == [5, 2, 1, 4, 3, 0]


def test_trivial_sizes():
    assert maximum_weight_matching(np.zeros((0, 0))).tolist() == []
    assert maximum_weight_matching(np.array([[5.0]])).tolist() == [-1]
    assert maximum_weight_matching(np.array([[9.0, 1.0], [1.0, 9.0]])).tolist() == [1, 0]
    assert maximum_weight_matching(np.zeros((5, 5))).tolist() == [-1] * 5
    assert maximum_weight_matching(np.full((5, 5), -np.inf)).tolist() == [-1] * 5
    assert matching_with_bound(np.zeros((3, 3))).upper_bound == pytest.approx(0, abs=1e-15)


def test_excluded_pairs_do_not_count():
    w = np.full((4, 4), -np.inf)
    w[0, 1] = w[1, 0] = 2.0
    w[2, 3] = w[3, 2] = -5.0
    assert maximum_weight_matching(w).tolist() == [1, 0, -1, -1]


@pytest.mark.parametrize("factor", [1e-308, 1e-30, 1.0, 1e30, 1e306])
def test_any_magnitude(factor):
    w = random_weights(np.random.default_rng(8), 12).clip(0, 8)
    found = matching_with_bound(w * factor)
    assert value(w, found.mate) == value(w, maximum_weight_matching(w))
    assert found.weight <= found.upper_bound


def test_large_whole_numbers_are_exact():
    """A difference of 1 in 2^53 decides."""
    big = 2**52
    w = np.zeros((4, 4), dtype=np.int64)
    for i, j, x in [(0, 1, big), (2, 3, big), (0, 2, big), (1, 3, big + 1)]:
        w[i, j] = w[j, i] = x
    assert maximum_weight_matching(w).tolist() == [2, 3, 0, 1]


def test_small_asymmetry_is_averaged_and_the_input_left_alone():
    w = efficiencies(np.random.default_rng(9), 20)
    skew = w * (1 + 1e-13 * np.triu(np.ones((20, 20)), 1))
    before = skew.copy()
    assert matching_with_bound(skew).weight == pytest.approx(matching_with_bound(w).weight)
    assert (skew == before).all()


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (np.zeros((2, 3)), r"n x n array, not one of shape \(2, 3\)"),
        (np.zeros(4), r"shape \(4,\)"),
        (np.array([[0, np.nan], [np.nan, 0]]), r"weights\[0, 1\] is nan"),
        (np.array([[0, 1, 2], [1, 0, np.inf], [2, np.inf, 0]]), r"weights\[1, 2\] is inf"),
        (np.array([[0, 1, 2], [1, 0, 3], [4, 3, 0]]), r"weights\[0, 2\] is 2.0 but weights\[2, 0\] is 4.0"),
    ],
)
def test_bad_input(w, message):
    with pytest.raises(InputError, match=message):
        maximum_weight_matching(w)


def test_nan_on_the_diagonal_is_ignored():
    assert maximum_weight_matching(np.array([[np.nan, 1.0], [1.0, np.inf]])).tolist() == [1, 0]


def test_plain_twins_are_plain():
    for kernel in (assign, match):
        twin = plain(kernel)
        assert not hasattr(twin, "py_func")
        assert not any(hasattr(twin.__globals__.get(name), "py_func") for name in twin.__code__.co_names)
