"""One configuration for each job so that the sum of their terms is largest and the GPUs suffice, exactly.

With sizes that can always be placed (`ladder`) nothing but GPU counts couples the jobs: a multiple-choice knapsack,
solved by a table with a row for each job and a column for each number of GPUs used.

Terms of a low p range over tens of orders of magnitude (a job left out costs 1e30 at p = -10), so the sums carry
twice the digits of a float: a value and what rounding took from it (Knuth's two-sum).
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.errors import InputError
from plait.core.jit import kernel, long_kernel
from plait.goodput.fitness import FLOOR, HARMONIC, terms


def best_sizes(
    speedup: FloatArray,
    gpus: IntArray,
    total: int,
    p: float = HARMONIC,
    *,
    floor: float = FLOOR,
    weights: FloatArray | None = None,
) -> IntArray:
    """The column of `speedup` (J, C) for each job that makes FITNESS_p largest with at most `total` GPUs.

    `gpus` (C,) are the GPUs of a column, rising, the first 0; NaN in `speedup` marks columns that a job cannot have (a
    pinned job has one column that is not NaN). Jobs of weight 0 share the rest, by the same rule. Of equally good
    choices one with minimum GPUs is taken. Raises `InputError` if no choice fits.
    """
    jobs = len(speedup)
    if weights is None or (np.asarray(weights) > 0).all():
        return knapsack(terms(speedup, p, floor=floor, weights=weights), gpus, total)
    counted = np.asarray(weights, dtype=np.float64) > 0
    chosen = np.zeros(jobs, dtype=np.int64)
    chosen[counted] = knapsack(terms(speedup[counted], p, floor=floor, weights=weights[counted]), gpus, total)
    left = total - int(gpus[chosen[counted]].sum())
    chosen[~counted] = knapsack(terms(speedup[~counted], p, floor=floor), gpus, left)
    return chosen


def best_of_only_sizes(
    speedup: FloatArray,
    column: IntArray,
    gpus: IntArray,
    total: int,
    p: float = HARMONIC,
    *,
    must: IntArray,
    floor: float = FLOOR,
    weights: FloatArray,
) -> IntArray:
    """`best_sizes` where each job may have its `column` (J,), for its `speedup` (J,), or nothing; weights are > 0.

    Rows of `must` may not have nothing; a job whose column is 0 can have nothing else.
    """
    both = np.zeros((2, len(speedup)))
    both[1] = speedup
    nothing, its = terms(both.T, p, floor=floor, weights=weights).T
    nothing[must] = -np.inf
    return knapsack_of_one_size(its, nothing, column, gpus, total)


def knapsack_of_one_size(
    gain: FloatArray, nothing: FloatArray, column: IntArray, gpus: IntArray, total: int
) -> IntArray:
    """`knapsack` where each job gains `gain` (J,) with its `column` (J,), or `nothing` (J,) with column 0."""
    if total >= 0 and compiled(fill_one_size, _work(2 * len(gain), total)):
        chosen = np.zeros(len(gain), dtype=np.int64)
        if run(fill_one_size, _column(gain), _column(nothing), column, np.array(gpus, dtype=np.int64), total, chosen):
            return chosen
    every = np.full((len(gain), len(gpus)), -np.inf)
    every[np.arange(len(gain)), column] = gain
    every[:, 0] = nothing
    return knapsack(every, gpus, total)


def _column(values: FloatArray) -> FloatArray:
    """The values in the one layout that is compiled for."""
    return np.ascontiguousarray(values, dtype=np.float64)


def knapsack(gain: FloatArray, gpus: IntArray, total: int) -> IntArray:
    """The column of `gain` (J, C) for each job with the largest sum among columns with at most `total` GPUs together.

    Minimum GPUs among equals. NaN and -inf mark impossible columns. Raises `InputError` if nothing fits.
    """
    jobs, columns = gain.shape
    if columns != len(gpus) or columns == 0 or gpus[0] < 0 or (gpus[1:] < gpus[:-1]).any():
        raise InputError(
            f"a knapsack needs one rising GPU count for each of its {columns} columns (got {gpus.tolist()})"
        )
    sizes = np.array(gpus, dtype=np.int64)  # of one layout, for which the table is compiled
    gain = np.ascontiguousarray(gain, dtype=np.float64)
    chosen = np.zeros(jobs, dtype=np.int64)
    if total < 0 or not _fill(gain, sizes, total, chosen):
        raise InputError(
            f"no choice of configurations for {jobs} jobs fits in {total} GPUs; "
            "every job needs a configuration of 0 GPUs, or pinned jobs have to fit"
        )
    return chosen


def _fill(gain: FloatArray, gpus: IntArray, total: int, chosen: IntArray) -> bool:
    """The table, by whichever of its two forms takes less time."""
    if compiled(fill_table, _work(int((gain > -np.inf).sum()), total)):
        return run(fill_table, gain, gpus, total, chosen)
    return plain_table(gain, gpus, total, chosen)


def _work(choices: int, total: int) -> int:
    """Cost of plain Python, tenths of a millisecond: 30 us a choice, and more the longer its row is."""
    return choices // 3 + choices * total // 1000


@long_kernel
def fill_table(gain: FloatArray, gpus: IntArray, total: int, chosen: IntArray) -> bool:
    """Fill `chosen`; False if nothing fits.

    best[g], rest[g]: the largest sum with exactly g GPUs among the jobs so far, and what rounding took from it.
    """
    jobs, columns = gain.shape
    taken = np.zeros((jobs, total + 1), dtype=np.int32)
    best = np.full(total + 1, -np.inf)
    rest = np.zeros(total + 1)
    best[0] = 0.0
    reach = 0  # no more GPUs than this can be in use so far
    for j in range(jobs):
        fresh = np.full(total + 1, -np.inf)
        under = np.zeros(total + 1)
        largest = 0
        before = -np.inf
        for c in range(columns):
            size = gpus[c]
            more = gain[j, c]
            if size > total or not more > before:  # NaN, or no more than fewer GPUs gain
                continue
            before = more
            largest = size
            for g in range(size, min(reach + size, total) + 1):
                old = best[g - size]
                if old == -np.inf:
                    continue
                wide = old + more
                part = wide - old
                lost = (old - (wide - part)) + (more - part) + rest[g - size]
                whole = wide + lost
                lost -= whole - wide
                if whole > fresh[g] or (whole == fresh[g] and lost > under[g]):
                    fresh[g] = whole
                    under[g] = lost
                    taken[j, g] = c
        best, rest = fresh, under
        reach = min(reach + largest, total)
    at = 0
    for g in range(total + 1):
        if best[g] > best[at] or (best[g] == best[at] and rest[g] > rest[at]):
            at = g
    if best[at] == -np.inf:
        return False
    for j in range(jobs - 1, -1, -1):
        chosen[j] = taken[j, at]
        at -= gpus[taken[j, at]]
    return True


@kernel
def fill_one_size(
    gain: FloatArray, nothing: FloatArray, column: IntArray, gpus: IntArray, total: int, chosen: IntArray
) -> bool:
    """`fill_table` for jobs that gain `gain` (J,) with `column` (J,), or `nothing` (J,) with the first column."""
    every = np.full((len(gain), len(gpus)), -np.inf)
    for j in range(len(gain)):
        every[j, column[j]] = gain[j]
        every[j, 0] = nothing[j]
    return fill_table(every, gpus, total, chosen)


def plain_table(gain: FloatArray, gpus: IntArray, total: int, chosen: IntArray) -> bool:
    """`fill_table` (`gain`, `gpus`, `total`, `chosen`) by whole rows, without machine code; same results."""
    taken = np.zeros((len(gain), total + 1), dtype=np.int32)
    best, rest = np.full(total + 1, -np.inf), np.zeros(total + 1)
    best[0] = 0.0
    for j in range(len(gain)):
        fresh, under = np.full(total + 1, -np.inf), np.zeros(total + 1)
        before = -np.inf
        for c, (size, more) in enumerate(zip(gpus.tolist(), gain[j].tolist(), strict=True)):
            if size > total or not more > before:
                continue
            before = more
            old = best[: total + 1 - size]
            with np.errstate(invalid="ignore"):  # unreachable sums are -inf, and their rounding NaN
                wide = old + more
                part = wide - old
                lost = (old - (wide - part)) + (more - part) + rest[: total + 1 - size]
                whole = wide + lost
                lost -= whole - wide
            better = (whole > fresh[size:]) | ((whole == fresh[size:]) & (lost > under[size:]))
            np.copyto(fresh[size:], whole, where=better)
            np.copyto(under[size:], lost, where=better)
            taken[j, size:][better] = c
        best, rest = fresh, under
    top = best.max()
    if top == -np.inf:
        return False
    at = int(np.flatnonzero(best == top)[rest[best == top].argmax()])
    for j in range(len(gain) - 1, -1, -1):
        chosen[j] = taken[j, at]
        at -= int(gpus[taken[j, at]])
    return True
