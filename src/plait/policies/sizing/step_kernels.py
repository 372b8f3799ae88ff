"""Steps of a ladder for pools in which nothing but GPUs counts, compiled; `plait.policies.sizing.steps` says the same.

All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.jit import kernel


@kernel
def gpus_on_steps(
    charges: IntArray, charged: IntArray, held: IntArray, capacity: IntArray, stays: BoolArray, wanted: IntArray
) -> IntArray:
    """GPUs (J, N) of jobs that were put where `charges` (J, N) says, one-node jobs back home where that is free.

    `charged` and `held` (J, N): what each job is charged and has now; `stays` (J,): whether its step is the same as
    now; `wanted` (J,): the GPUs that it is to get.
    """
    jobs, nodes = charges.shape
    out, moved, free = np.zeros((jobs, nodes), dtype=np.int64), np.zeros(jobs, dtype=np.bool_), capacity.copy()
    for j in range(jobs):
        total, same, left = 0, stays[j], wanted[j]
        for n in range(nodes):
            total += charges[j, n]
            same &= charges[j, n] == charged[j, n]
        while left > 0 and total >= wanted[j] and not same:
            best = -1
            for n in range(nodes):
                if out[j, n] == 0 and charges[j, n] > 0 and (best < 0 or charges[j, n] > charges[j, best]):
                    best = n
            out[j, best] = min(left, charges[j, best])
            left -= out[j, best]
        before, now, parts_before, parts = 0, 0, 0, 0
        for n in range(nodes):
            if same:
                out[j, n] = held[j, n]
            moved[j] |= out[j, n] != held[j, n]
            before, parts_before = before + held[j, n], parts_before + (held[j, n] > 0)
            now, parts = now + out[j, n], parts + (out[j, n] > 0)
            free[n] -= out[j, n]
        moved[j] &= before == now and parts_before == 1 and parts == 1
    for j in range(jobs):
        for n in range(nodes):
            moved[j] &= held[j, n] <= free[n]
        if moved[j]:
            for n in range(nodes):
                free[n] += out[j, n] - held[j, n]
                out[j, n] = held[j, n]
    return out
