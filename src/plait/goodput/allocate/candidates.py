"""Shared parts of integer programs for allocation: configurations worth offering, their losses, patterns of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.goodput.allocate.knapsack import knapsack

#: No loss is more than this many units: solvers work with 1e-7 relative accuracy.
MOST_COST = 1e6


def useful(gain: FloatArray, configs: IntArray, total: int) -> BoolArray:
    """Columns (J, C) of `gain` that can be in an optimum of `total` GPUs: each worth more than all smaller ones.

    Configurations `configs` (C, 2) on one node and on several are compared separately.
    """
    found = np.zeros(gain.shape, dtype=bool)
    found[:, 0] = np.isfinite(gain[:, 0])
    for several in (False, True):
        at = np.flatnonzero(((configs[:, 0] > 1) == several) & (configs[:, 1] > 0) & (configs[:, 1] <= total))
        at = at[np.argsort(configs[at, 1], kind="stable")]
        least = np.where(found[:, 0], gain[:, 0], -np.inf)[:, None]
        before = np.maximum.accumulate(np.concatenate([least, gain[:, at]], axis=1), axis=1)[:, :-1]
        found[:, at] = gain[:, at] > before
    return found


def still_possible(gain: FloatArray, usable: BoolArray, gpus: IntArray, total: int, first: IntArray) -> BoolArray:
    """Which columns an arrangement better than `first` can hold, besides `first` itself.

    If every size could be placed, a knapsack would bound the optimum; if that is no better, none is. Else `affordable`.
    """
    rows = np.arange(len(gain))
    mine = np.zeros(gain.shape, dtype=bool)
    mine[rows, first] = True
    order = np.argsort(gpus, kind="stable")
    bound = order[knapsack(np.where(usable | mine, gain, -np.inf)[:, order], gpus[order], total)]
    if fsum([*gain[rows, bound].tolist(), *(-gain[rows, first]).tolist()]) <= 0:  # exact, as terms differ widely
        return mine
    return mine | affordable(gain, usable | mine, np.broadcast_to(gpus, gain.shape), total, gain[rows, first])


def affordable(gain: FloatArray, usable: BoolArray, gpus: IntArray, total: int, reached: FloatArray) -> BoolArray:
    """Which columns an allocation can hold whose gain is larger than that of one already known, `reached` (J,).

    A price for GPUs bounds the gain of all (Lagrange), also if a job takes a column against its interest at that price:
    what then falls short is dropped. `gain`, `usable`, `gpus` (J, C).
    """
    offered = np.where(usable, gain, -np.inf)
    low, high = 0.0, float((offered.max(axis=1) - reached).max() + np.abs(reached).max())
    rows = np.arange(len(gain))
    for _ in range(60):  # the price at which total demand equals supply
        price = (low + high) / 2
        wanted = gpus[rows, (offered - price * gpus).argmax(axis=1)].sum()
        low, high = (price, high) if wanted > total else (low, price)
    net = offered - high * gpus
    best = net.max(axis=1)
    spare = best.sum() + high * total - reached.sum()  # none is better than the known one by more than this
    slack = 1e-9 * (np.abs(best).sum() + high * total)
    kept: BoolArray = usable & (best[:, None] - net <= spare + slack)
    return kept


def losses(gain: FloatArray, usable: BoolArray, single: BoolArray) -> tuple[FloatArray, float]:
    """Loss of each usable (job, column) pair, in order, against the best of its job, and the factor of its unit.

    The unit is a typical loss: the median of the pairs of one GPU (`single`) that lose anything. Where losses differ
    too widely for a solver, the unit is coarser by that factor, and much smaller losses vanish.
    """
    job, column = np.nonzero(usable)
    best: FloatArray = np.where(usable, gain, -np.inf).max(axis=1)
    loss: FloatArray = best[job] - gain[job, column]
    typical = loss[single & (loss > 0)] if (loss[single] > 0).any() else loss[loss > 0]
    if not len(typical):
        return loss, 1.0
    unit = float(np.median(typical))
    coarse = max(float(loss.max()) / (unit * MOST_COST), 1.0)
    return loss / (unit * coarse), coarse


def patterns(most: int, largest: int | None = None) -> Iterator[tuple[int, ...]]:
    """All multisets of positive integers that sum to `most` or less, each falling.

    >>> sorted(patterns(2))
    [(), (1,), (1, 1), (2,)]
    """
    yield ()
    for k in range(min(most, largest or most), 0, -1):
        for rest in patterns(most - k, k):
            yield (k, *rest)


def fill(row: IntArray, size: int, parts: list[tuple[int, int]]) -> None:
    """`size` GPUs over (node, room) parts, the roomiest first, but on two nodes at least; writes into `row`."""
    for i, (node, room) in enumerate(parts):
        share = min(room, size - (1 if i == 0 else 0))
        row[node] = share
        size -= share
