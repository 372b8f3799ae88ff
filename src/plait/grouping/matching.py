"""Exact maximum-weight matching of general graphs: a warm start from the assignment problem, then Edmonds' blossoms.

Method, for weights made whole, even and non-negative, on an even number of vertices:
  1. Solve the assignment problem on the matrix, a large one from the duals of its half. Its duals, u_i + v_i averaged,
     satisfy y_i + y_j >= 2 W_ij for every edge, and with equality along every cycle of the permutation, because the
     transposed permutation is best too.
  2. Match every cycle along; only odd cycles leave a vertex over, and they are few (0 to 16 at n = 2,000).
  3. That is a legal state of Edmonds' primal-dual method (J. Res. NBS 69B, 1965): it continues from the few vertices
     left over instead of from all, and ends with an optimum and a proof of it.

Pairs not worth matching get weight 0 and odd n a vertex with weights 0, so that a best perfect matching of the
complete graph is a best matching; pairs of weight 0 are dropped from it.

Ties: which of several best matchings is returned depends on the numbering of the vertices and on nothing else. In an
odd cycle the lowest vertex is left over, and among events that are due together the lowest vertex comes first.

Greedy matching improved by exchanges of two pairs: 99.6 % of the optimum, for buckets too large to match exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plait.core import compile_policy
from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jit import kernel, long_kernel, plain
from plait.grouping.matching_kernels import MATE, NEVER, PARENT, TOP, Y, assign, match, room

#: Minimum gain of an exchange, so that rounding cannot make the search go round in circles.
GAIN = 1e-12


@kernel
def take_greedily(order: IntArray, weight: FloatArray, mate: IntArray) -> None:
    """Take edges of the lower triangle of `weight` in `order` if both ends are free; fills `mate` (n,)."""
    n = len(weight)
    for at in order:
        u, v = at // n, at % n
        if u > v and mate[u] < 0 and mate[v] < 0 and weight[u, v] > 0.0:
            mate[u], mate[v] = v, u


@long_kernel
def two_opt(weight: FloatArray, mate: IntArray) -> None:
    """For every two pairs (a, b), (c, d) take (a, c)(b, d) or (a, d)(b, c) where that is better, until none is."""
    n = len(weight)
    better = True
    while better:
        better = False
        for a in range(n):
            for c in range(a + 1, n):
                b, d = mate[a], mate[c]
                if b < a or d < c or b == c:
                    continue
                now = weight[a, b] + weight[c, d]
                straight, crossed = weight[a, c] + weight[b, d], weight[a, d] + weight[b, c]
                if max(straight, crossed) <= now + GAIN:
                    continue
                if straight >= crossed:
                    mate[a], mate[c], mate[b], mate[d] = c, a, d, b
                else:
                    mate[a], mate[d], mate[b], mate[c] = d, a, c, b
                better = True


def greedy_matching(weight: FloatArray) -> IntArray:
    """A mate for each vertex, -1 if none: heaviest edges first, then `two_opt`.

    `weight` (n, n) is symmetric, >= 0, 0 on the diagonal. Equal weights: the edge with the lower vertices first.

    >>> greedy_matching(np.array([[0, 3, 0, 1], [3, 0, 4, 0], [0, 4, 0, 3], [1, 0, 3, 0.0]])).tolist()
    [1, 0, 3, 2]
    """
    mate = np.full(len(weight), -1, dtype=np.int64)
    u, v = np.tril_indices(len(weight), -1)
    order = np.argsort(-weight[u, v], kind="stable")
    take_greedily(u[order] * len(weight) + v[order], weight, mate)
    two_opt(weight, mate)
    return mate


# Up to here plain Python takes milliseconds (8 at most at 40 vertices), a compiler seconds.
SMALL = 40
COMPILE_CPU_S = 5
# Above, half of the vertices are assigned first; below, both ways take about as long, and equally good matchings stay.
HALVED = 1000
# Weights become whole numbers below 2^53, doubled. All sums of the kernels stay within 2^6 times the largest weight.
BITS = 53
ASYMMETRY = 1e-9  # of the largest weight: what rounding may do to one triangle and not to the other

Assign = Callable[[IntArray, IntArray, IntArray], None]
Match = Callable[[IntArray, IntArray, IntArray, IntArray], None]

_plain_assign, _plain_match = plain(assign), plain(match)


@dataclass(frozen=True)
class Matching:
    """A matching and the proof that none weighs more.

    mate         shape (n,): mate of each vertex, -1 if none
    weight       sum of the weights of its pairs
    upper_bound  no matching weighs more; above `weight` by rounding only
    duals        shape (n or n + 1,), whole: y of each vertex, in units of `unit`; one more vertex if n is odd
    blossoms     odd sets of vertices and their duals z > 0, in the same units
    unit         weight of 1: y_i + y_j + (z of blossoms with i and j inside) >= weights[i, j] / unit up to rounding

    Exactly, with W = rint(weights / (4 * unit)), 0 where negative: y_i + y_j + ... >= 4 W_ij for all pairs, with
    equality for pairs that are matched.
    """

    mate: IntArray
    weight: float
    upper_bound: float
    duals: IntArray
    blossoms: tuple[tuple[IntArray, int], ...]
    unit: float


def maximum_weight_matching(weights: FloatArray) -> IntArray:
    """Mate of each vertex in a maximum-weight matching, -1 if none.

    `weights` is n x n and symmetric; the diagonal is ignored, and pairs of weight zero or less (also -inf) come out
    unmatched. Exact for whole numbers up to 2^53; otherwise weights are rounded to 2^-53 of the largest. Where the
    triangles differ by no more than 1e-9 of the largest weight, their mean counts. The same weights always give the
    same matching, compiled or not. O(n^3) at worst, and about 30 n^2 bytes of memory.

    Raises `InputError` for an array that is not square, or that is not symmetric, or has a NaN or +inf in it.

    >>> maximum_weight_matching(np.array([[0, 5, 0, 0], [5, 0, 6, 0], [0, 6, 0, 5], [0, 0, 5, 0]]))
    array([1, 0, 3, 2])
    """
    worth = _checked(weights)
    return _mates(worth, _solved(_whole(worth)[0]))


def matching_with_bound(weights: FloatArray) -> Matching:
    """As `maximum_weight_matching`, with the weight, an upper bound on every matching, and the duals that prove it.

    >>> found = matching_with_bound(np.array([[0.0, 3.0, 3.0], [3.0, 0.0, 3.0], [3.0, 3.0, 0.0]]))
    >>> found.weight, round(found.upper_bound, 12)
    (3.0, 3.0)
    """
    worth = _checked(weights)
    cost, shift = _whole(worth)
    state, even = _solved(cost), len(cost)
    mate = _mates(worth, state)
    left = np.flatnonzero(mate > np.arange(len(mate)))
    blossoms = _blossoms(state, even)
    dual_value = sum(state[Y, :even].tolist()) + sum((len(inside) // 2) * z for inside, z in blossoms)
    return Matching(
        mate=mate,
        weight=float(worth[left, mate[left]].sum()),
        # half of a whole unit may have been lost in rounding the weight of each pair
        upper_bound=float(np.ldexp(float(dual_value), -shift - 2) + np.ldexp(even / 4.0, -shift)),
        duals=state[Y, :even].copy(),
        blossoms=blossoms,
        unit=float(np.ldexp(0.25, -shift)),
    )


def _whole(worth: FloatArray) -> tuple[IntArray, int]:
    """Input of the kernels, for an even number of vertices, and the power of two that made weights whole."""
    n = len(worth)
    shift = BITS - int(np.frexp(worth.max(initial=0.0))[1])  # a power of two keeps whole numbers and ties exact
    scaled = worth * 2.0 ** (shift // 2)  # in two steps: 2^shift alone may be out of range
    scaled *= 2.0 ** (shift - shift // 2)
    np.rint(scaled, out=scaled)
    cost = np.zeros((n + n % 2, n + n % 2), dtype=np.int64)
    np.multiply(scaled, -2.0, out=cost[:n, :n], casting="unsafe")  # exact: whole, and at most 2^54
    np.fill_diagonal(cost, 1 << (BITS + 3))
    return cost, shift


def _solved(cost: IntArray) -> IntArray:
    """State of the kernels at the optimum."""
    if not _worth_compiling(len(cost)):
        return solved(cost, _plain_assign, _plain_match)
    with compile_policy.waiting(match, "the matching kernels", COMPILE_CPU_S):
        return solved(cost, assign, match)


def solved(cost: IntArray, assigning: Assign, matching: Match) -> IntArray:
    """State of the kernels `assigning` and `matching` (compiled or plain) at the optimum of `cost` (n, n)."""
    n = len(cost)
    state = room(n)
    matching(cost, *_assigned(cost, assigning), state)
    return state


def _assigned(cost: IntArray, assigning: Assign) -> tuple[IntArray, IntArray]:
    """Columns and duals of the cheapest permutation, from the duals of every second vertex where there are many.

    Weights of interleaved jobs have a low rank, so many rows compete for the same columns. The start by column
    reduction leaves long paths then: it takes nine times as long at 4,000 vertices.
    """
    n = len(cost)
    column_of, dual = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    if n > HALVED:
        half = cost[::2, ::2].copy()
        columns, of_half = _assigned(half, assigning)
        worth = half[np.arange(len(half)), columns] - of_half[columns]
        dual[:] = NEVER
        for row, price in zip(cost[::2], worth.tolist(), strict=True):
            np.minimum(dual, row - price, out=dual)
    assigning(cost, column_of, dual)
    return column_of, dual


def _mates(worth: FloatArray, state: IntArray) -> IntArray:
    """Mates of the vertices given, without pairs that are worth nothing."""
    n = len(worth)
    mate = state[MATE, :n].copy()
    vertices = np.arange(n)
    mate[mate == n] = -1
    mate[worth[vertices, mate] == 0.0] = -1
    return mate


def _worth_compiling(n: int) -> bool:
    """Whether to use the compiled kernel: the problem is large, or it is at hand, or many small ones were solved.

    The results are the same. A thousand small problems take about as long as the compiler.
    """
    return n > SMALL or compile_policy.compiled(match, n * n // 100 + 1)


def _checked(weights: FloatArray) -> FloatArray:
    """The weights as floats >= 0, symmetric, with a zero diagonal."""
    given = np.asarray(weights, dtype=np.float64)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise InputError(f"weights of pairs need an n x n array, not one of shape {given.shape}")
    worth = np.maximum(given, 0.0)
    np.fill_diagonal(worth, 0.0)
    largest = worth.max(initial=0.0)
    if not np.isfinite(largest):
        i, j = np.argwhere(~np.isfinite(worth))[0]
        raise InputError(f"weights[{i}, {j}] is {given[i, j]}; use finite numbers, and 0 for a pair not to be matched")
    if not np.array_equal(worth, worth.T):
        apart = np.abs(worth - worth.T)
        i, j = np.unravel_index(apart.argmax(), apart.shape)
        if apart[i, j] > ASYMMETRY * largest:
            raise InputError(
                f"weights[{i}, {j}] is {given[i, j]} but weights[{j}, {i}] is {given[j, i]};"
                " a pair has one weight, so the array must be symmetric"
            )
        worth = worth / 2.0 + worth.T / 2.0
    return worth


def _blossoms(state: IntArray, n: int) -> tuple[tuple[IntArray, int], ...]:
    """Blossoms with a dual, each with its vertices."""
    inside: dict[int, list[int]] = {}
    for v in range(n):
        b = int(state[PARENT, v])
        while b >= 0:
            inside.setdefault(b, []).append(v)
            b = int(state[PARENT, b])
    return tuple(
        (np.array(inside[b], dtype=np.int64), int(state[Y, b]))
        for b in sorted(inside)
        if state[TOP, b] != -1 and state[Y, b] > 0
    )
