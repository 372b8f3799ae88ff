"""The common case of `plait.placement.elastic.place_sizes`, compiled: all jobs fit and none is in the way.

All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.jit import kernel, part


@part
def _keep(
    sizes: IntArray, running: IntArray, capacity: IntArray, fixed: BoolArray, gpus: IntArray, free: IntArray,
    owned: BoolArray,
) -> bool:  # fmt: skip
    """Leave jobs of unchanged size on the board; False if one of them cannot stay or might come together."""
    largest = 0
    for n in range(len(capacity)):
        largest = max(largest, capacity[n])
    for j in range(len(sizes)):
        held, parts = 0, 0
        for n in range(len(capacity)):
            held += running[j, n]
            parts += running[j, n] > 0
        if held != sizes[j] or held == 0:
            continue
        if parts > 1 and not fixed[j] and (parts - 1) * largest >= held:
            return False
        for n in range(len(capacity)):
            if running[j, n] > 0:
                if running[j, n] > free[n] or (parts > 1 and owned[n]):
                    return False
                gpus[j, n] = running[j, n]
                free[n] -= running[j, n]
                owned[n] |= parts > 1
    return True


@part
def _best_fit(size: int, free: IntArray) -> int:
    """The node on which a job leaves least free, the first of equals; -1 if none has room."""
    best, least = -1, 1 << 60
    for n in range(len(free)):
        if size <= free[n] < least:
            best, least = n, free[n]
    return best


@part
def _whole_nodes(j: int, size: int, capacity: IntArray, gpus: IntArray, free: IntArray, owned: BoolArray) -> bool:
    """Nodes that are free, the largest first, and a part of one more; False if others would have to go."""
    need = size
    while need > 0:
        best = -1
        for n in range(len(free)):
            idle = free[n] == capacity[n] > 0 and not owned[n] and gpus[j, n] == 0
            if idle and capacity[n] <= need and (best < 0 or capacity[n] > capacity[best]):
                best = n
        if best < 0:
            break
        gpus[j, best] = capacity[best]
        free[best] = 0
        need -= capacity[best]
    if need > 0:
        for n in range(len(free)):
            if 0 < capacity[n] <= need and not owned[n] and gpus[j, n] == 0:
                return False
        last, least = -1, 1 << 60
        for n in range(len(free)):
            if need <= free[n] < least and not owned[n] and gpus[j, n] == 0:
                last, least = n, free[n]
        if last < 0:
            return False
        gpus[j, last] = need
        free[last] -= need
    for n in range(len(free)):
        owned[n] |= gpus[j, n] > 0
    return True


@kernel
def place_undisturbed(
    sizes: IntArray, order: IntArray, running: IntArray, capacity: IntArray, fixed: BoolArray, gpus: IntArray
) -> bool:
    """Fill `gpus` (J, N), zeros so far, with what `place_sizes` finds; False where that takes more than these steps.

    Jobs of unchanged size keep their GPUs, and none of them could use fewer nodes; the others, in `order` (J,), the
    largest first, get the node that they fit best or whole nodes, without moving others.
    """
    free, owned = capacity.copy(), np.zeros(len(capacity), dtype=np.bool_)
    if not _keep(sizes, running, capacity, fixed, gpus, free, owned):
        return False
    largest = 0
    for n in range(len(capacity)):
        largest = max(largest, capacity[n])
    for j in order:
        waits = sizes[j] > 0
        for n in range(len(free)):
            waits &= gpus[j, n] == 0
        if not waits:
            continue
        if sizes[j] > largest:
            if not _whole_nodes(j, sizes[j], capacity, gpus, free, owned):
                return False
            continue
        node = _best_fit(sizes[j], free)
        if node < 0:
            return False
        gpus[j, node] = sizes[j]
        free[node] -= sizes[j]
    return True
