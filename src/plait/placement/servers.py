"""The best servers for a gang, by a dynamic programme over servers and racks. Start at `best_servers`. Our design."""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray

#: Additional racks to try, beyond the minimum.
MORE_RACKS = 2
#: Values that differ by less are equal.
TIE = 1e-12


def best_servers(room: IntArray, rack: IntArray, need: int, value: FloatArray) -> list[IntArray]:
    """GPUs on each server, shape (nodes,), best by sum of values, for each number of racks from the minimum on.

    `F[i][k] = max over m of F[i - 1][k - m] + v_i(m)` inside a rack, and the same over racks with their number as a
    further index. `room` (nodes,) GPUs that each can give; `rack` (nodes,); `value[i, m]` of m GPUs on server i, shape
    (nodes, need + 1). Ties: fewer servers with lower numbers. Empty if there are not enough GPUs.
    """
    racks = [np.flatnonzero((rack == r) & (room > 0)) for r in np.unique(rack[room > 0])]
    if int(room.sum()) < need:
        return []
    inside = [_in_rack(room[nodes], need, value[nodes]) for nodes in racks]
    totals = np.sort([int(room[nodes].sum()) for nodes in racks])[::-1].cumsum()
    fewest = int(np.searchsorted(totals, need)) + 1
    most = min(fewest + MORE_RACKS, len(racks))
    best = np.full((most + 1, need + 1), -np.inf)
    best[0, 0] = 0.0
    given = np.zeros((len(racks), most + 1, need + 1), dtype=np.int64)
    for i, (worth, _) in enumerate(inside):
        for count in range(most, 0, -1):
            best[count], given[i, count] = _joined(best[count - 1], worth, best[count])
    counts = [count for count in range(fewest, most + 1) if np.isfinite(best[count, need])]
    return [_traced(count, need, given, racks, inside, len(room)) for count in counts]


#: Values of 0 to `need` GPUs in a rack, and what each server gives of them.
_Rack = tuple[FloatArray, IntArray]


def _in_rack(room: IntArray, need: int, value: FloatArray) -> _Rack:
    """The best value of each number of GPUs in one rack, and what each server gives; shape (servers, need + 1)."""
    best = np.full(need + 1, -np.inf)
    best[0] = 0.0
    gives = np.zeros((len(room), need + 1), dtype=np.int64)
    for i in range(len(room)):
        worth = np.full(need + 1, -np.inf)
        most = min(int(room[i]), need)
        worth[1 : most + 1] = value[i, 1 : most + 1]
        best, gives[i] = _joined(best, worth, best)
    best[0] = -np.inf  # a rack that is used gives at least one GPU
    return best, gives


def _joined(before: FloatArray, worth: FloatArray, otherwise: FloatArray) -> tuple[FloatArray, IntArray]:
    """For each k the best of `before[k - m] + worth[m]` over m >= 1, and that m; 0 where `otherwise[k]` is as good."""
    size = len(before)
    k, m = np.indices((size, size))
    sums = np.where(m <= k, before[k - m], -np.inf) + worth[m]
    sums[:, 0] = -np.inf
    most = sums.max(axis=1)
    pick = (sums >= most[:, None] - TIE).argmax(axis=1)
    with np.errstate(invalid="ignore"):
        better = most > otherwise + TIE
    better |= np.isfinite(most) & ~np.isfinite(otherwise)
    return np.where(better, most, otherwise), np.where(better, pick, 0)


def _traced(count: int, need: int, given: IntArray, racks: list[IntArray], inside: list[_Rack], nodes: int) -> IntArray:
    """The servers behind the best value of `need` GPUs in `count` racks."""
    take = np.zeros(nodes, dtype=np.int64)
    for i in reversed(range(len(racks))):
        part = int(given[i, count, need])
        if not part:
            continue
        count, need = count - 1, need - part
        gives = inside[i][1]
        for at in reversed(range(len(racks[i]))):
            amount = int(gives[at, part])
            take[racks[i][at]] = amount
            part -= amount
    return take
