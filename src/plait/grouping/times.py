"""Interleaving: members of a group take turns on the resources in lock step (Muri, sections 3 and 4).

A job of turn s is on resource (s + j) mod k in slot j, and a slot lasts as long as its longest stage. With turns
s_i the group's iteration takes T(s) = sum_j max_i stage_s[i, (s_i + j) mod k]  (formula (3)). T does not change
when all turns move together, so the first job's is 0.

**Capacities.** By default a stage needs all of its resource, and no two jobs have the same turn: that is formula (3).
With `shares` (the part of each resource that a job's stage needs, 1 = all of it) jobs may have the same turn, and
so be on each resource together, if for every resource their shares sum to at most 1. Two jobs whose CPU stage needs
3 of 96 cores and that each fill half a GPU can have the same turn; two jobs that each need a whole GPU still cannot.
More jobs than resources then fit a group.

**Alone.** An iteration alone may be longer than its stages (gaps that no stage accounts for). A group is never faster
than a member alone, so its iteration takes max(T, the longest solo iteration): `together_s`. Which turns are best does
not depend on it, so the functions that only know stages give T.

`group_times` is the fast way for many groups; the rest of this file is the plain reference, on `core.turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.errors import InputError
from plait.core.turns import lock_step_s, turn_vectors
from plait.grouping import kernels

Order = Literal["best", "worst"]
ORDERS = ("best", "worst")


@lru_cache(maxsize=64)
def packed_turns(resources: int, most: int, idle_slots: bool, shared: bool) -> tuple[IntArray, IntArray]:
    """`turn_vectors` of 1 to `most` jobs under each other, and where the rows of p jobs begin (`first[p]`)."""
    blocks = [turn_vectors(resources, p, idle_slots, shared) for p in range(1, most + 1)]
    first = np.zeros(most + 2, dtype=np.int64)
    first[2:] = np.cumsum([len(b) for b in blocks])
    table = np.full((max(int(first[-1]), 1), most), -1, dtype=np.int64)
    for p, block in enumerate(blocks, start=1):
        if block:
            table[first[p] : first[p + 1], :p] = block
    return table, first


def _allowed(turns: tuple[int, ...], shares: FloatArray) -> bool:
    """Whether jobs of the same turn together need at most all of each resource."""
    for turn in set(turns):
        together = [i for i, t in enumerate(turns) if t == turn]
        if len(together) > 1 and shares[together].sum(axis=0).max() > 1.0 + kernels.SLACK:
            return False
    return True


def best_turns(
    stage_s: FloatArray,
    *,
    order: Order = "best",
    idle_slots: bool = True,
    shares: FloatArray | None = None,
) -> tuple[float, tuple[int, ...]]:
    """Seconds of one iteration of a group, and the turn of each job, the first job's 0.

    `stage_s` and `shares` have shape (p jobs, k resources). Of equally good turns the first in lexicographic
    order counts. Raises `InputError` if no turns are possible: more jobs than resources, without shares.

    >>> best_turns(np.array([[4.0, 1.0, 1.0, 1.0], [1.0, 1.0, 4.0, 1.0]]))
    (7.0, (0, 2))
    >>> half = np.array([[1.0, 0.25, 0.5, 1.0]]).repeat(2, axis=0)
    >>> best_turns(np.array([[0.0, 2.0, 3.0, 0.0], [0.0, 2.0, 3.0, 0.0]]))
    (8.0, (0, 1))
    >>> best_turns(np.array([[0.0, 2.0, 3.0, 0.0], [0.0, 2.0, 3.0, 0.0]]), shares=half * [0.5, 1, 1, 0.5])
    (5.0, (0, 0))
    """
    _check_order(order)
    jobs, resources = stage_s.shape
    rows = stage_s.tolist()
    times = [
        (lock_step_s(rows, turns), turns)
        for turns in turn_vectors(resources, jobs, idle_slots, shares is not None)
        if shares is None or _allowed(turns, shares)
    ]
    if not times:
        more = f"at most {resources} fit a group" if shares is None else "their shares leave no room"
        raise InputError(f"{jobs} jobs cannot take turns on {resources} resources; {more}")
    return min(times) if order == "best" else min(times, key=lambda found: (-found[0], found[1]))


def interleaved_iteration_s(
    stage_s: FloatArray,
    *,
    order: Order = "best",
    idle_slots: bool = True,
    shares: FloatArray | None = None,
) -> float:
    """Seconds of one iteration of the whole group under its best (or worst) stage order.

    `stage_s` has shape (p jobs, k resources). Raises `InputError` for more jobs than resources.

    >>> interleaved_iteration_s(np.array([[2.0, 1.0], [1.0, 2.0]]))
    3.0
    >>> interleaved_iteration_s(np.array([[4.0, 1.0, 1.0, 1.0], [1.0, 1.0, 4.0, 1.0]]))
    7.0
    """
    return best_turns(stage_s, order=order, idle_slots=idle_slots, shares=shares)[0]


def together_s(stage_s: FloatArray, iteration_s: FloatArray, **how: Any) -> float:
    """Seconds of one iteration of a group: formula (3), but no less than any member's iteration alone.

    `stage_s` (p jobs, k resources), `iteration_s` (p,) alone; `how` as for `best_turns`. Raises as it does.

    >>> together_s(np.array([[0.0, 0.0, 0.25, 0.0], [0.0, 0.0, 0.25, 0.0]]), np.array([1.0, 0.5]))
    1.0
    """
    return max(best_turns(stage_s, **how)[0], float(np.max(iteration_s)))


def efficiency(stage_s: FloatArray, iteration_s: float) -> float:
    """Gamma, formula (4): mean over the resources of the part of the group's iteration in which they are busy.

    `stage_s` (p, k) holds all members, `iteration_s` is T of the group.

    >>> efficiency(np.array([[2.0, 1.0], [2.0, 1.0]]), 4.0)
    0.75
    """
    busy_s: float = stage_s.sum()
    return float(busy_s / (stage_s.shape[1] * iteration_s))


def speedup(iteration_s: Sequence[float] | FloatArray, group_s: float) -> float:
    """Summed normalised throughput: what the members, alone `iteration_s` each, get done while sharing.

    Above 1 grouping pays: the group finishes more than its members one after another.

    >>> speedup([2.0, 4.0], 4.0)
    1.5
    """
    return float(sum(float(t) for t in iteration_s)) / group_s


def group_times(
    stage_s: FloatArray,
    members: IntArray,
    *,
    order: Order = "best",
    idle_slots: bool = True,
    shares: FloatArray | None = None,
) -> tuple[FloatArray, IntArray]:
    """Time and turns of many groups at once: T (m,) in seconds and turns (m, p_max), -1 where there is no job.

    `stage_s` and `shares` (n, k); `members` (m, p_max) holds rows of `stage_s`, padded with -1 at the end. A group that
    cannot take turns has T = inf and turns -1. For one job T is the sum of its stages. Same bits as `best_turns`.

    >>> stages = np.array([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]])
    >>> time, turns = group_times(stages, np.array([[0, 1], [0, 2], [1, -1]]))
    >>> time.tolist(), turns.tolist()
    ([3.0, 4.0, 3.0], [[0, 1], [0, 1], [0, -1]])
    """
    _check_order(order)
    count, most = members.shape
    resources = stage_s.shape[1]
    table, first = packed_turns(resources, most, idle_slots, shares is not None)
    rows = packed_rows(stage_s, shares)
    shape = _shape(resources, most, order == "worst", shares is not None)
    members = np.ascontiguousarray(members, dtype=np.int64)
    if not members.flags.writeable:
        members = members.copy()
    if not compiled(kernels.fill_times, members.size):
        time, at = times_by_columns(rows, members, shape, table, first)
        turns = np.where((at >= 0)[:, None] & (members >= 0), table[at], -1)
        return time, turns
    time = np.empty(count)
    turns = np.empty((count, most), dtype=np.int64)
    run(kernels.fill_times, rows, members, shape, table, first, time, turns, np.empty(count, dtype=np.int64))
    return time, turns


@lru_cache(maxsize=64)
def _shape(resources: int, most: int, worst: bool, shared: bool) -> IntArray:
    return np.array([resources, most, worst, shared], dtype=np.int64)


def packed_rows(stage_s: FloatArray, shares: FloatArray | None = None, more: int = 0) -> FloatArray:
    """Rows as the kernels want them: the stages twice, the shares, and `more` columns to fill in."""
    count, k = stage_s.shape
    rows = np.empty((count, 3 * k + more))
    rows[:, :k] = stage_s
    rows[:, k : 2 * k] = stage_s
    rows[:, 2 * k : 3 * k] = 1.0 if shares is None else shares
    return rows


def times_by_columns(
    rows: FloatArray, members: IntArray, shape: IntArray, table: IntArray, first: IntArray
) -> tuple[FloatArray, IntArray]:
    """The result of `kernels.group_time`, for many groups by NumPy: slower, but nothing has to be compiled.

    T (m,) and the row of `table` (m,). Additions are in the same order, so the bits are the same.
    """
    k, worst, shared = int(shape[0]), shape[2] == 1, shape[3] == 1
    best = np.full(len(members), -np.inf if worst else np.inf)
    at = np.full(len(members), -1, dtype=np.int64)
    sizes = (members >= 0).sum(axis=1)
    for p in np.unique(sizes).tolist():
        where = np.flatnonzero(sizes == p)
        inside = rows[members[where, :p]]
        for c in range(int(first[p]), int(first[p + 1])):
            turns = table[c, :p].tolist()
            time = np.zeros(len(where))
            for j in range(k):
                longest = inside[:, 0, turns[0] + j]
                for i in range(1, p):
                    longest = np.maximum(longest, inside[:, i, turns[i] + j])
                time += longest
            better = (time > best[where]) if worst else (time < best[where])
            if shared:
                better &= _allowed_columns(inside[:, :, 2 * k : 3 * k], turns)
            best[where[better]] = time[better]
            at[where[better]] = c
    best[at < 0] = np.inf
    return best, at


def _allowed_columns(shares: FloatArray, turns: list[int]) -> np.ndarray:
    fits = np.ones(len(shares), dtype=bool)
    for turn in set(turns):
        together = [i for i, t in enumerate(turns) if t == turn]
        if len(together) > 1:
            asked = np.zeros((len(shares), shares.shape[2]))
            for i in together:
                asked += shares[:, i]
            fits &= (asked <= 1.0 + kernels.SLACK).all(axis=1)
    return fits


def _check_order(order: str) -> None:
    if order not in ORDERS:
        raise InputError(f"order must be 'best' or 'worst', got {order!r}")
