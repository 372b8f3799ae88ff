"""Steps of a ladder for pools in which nothing but GPUs counts, compiled; rules as in `plait.policies.sizing.steps`.

All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.jit import kernel, part


@kernel
def gpus_on_steps(
    charges: IntArray, charged: IntArray, held: IntArray, capacity: IntArray, stays: BoolArray, wanted: IntArray
) -> IntArray:
    """GPUs (J, N) of jobs placed by `charges` (J, N), one-node jobs back home where that is free.

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


@kernel
def only_steps(
    least: IntArray, held: IntArray, capacity: IntArray, configs: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """(gpus, running, held) of a `Ladder` with `configs` (C, 2) for jobs that have one size each, `least` (J,)."""
    jobs, nodes = held.shape
    gpus, charged = np.zeros((jobs, len(configs)), dtype=np.int64), np.zeros((jobs, nodes), dtype=np.int64)
    running = np.full(jobs, -1, dtype=np.int64)
    for j in range(jobs):
        step = 0
        while step < len(configs) and configs[step, 1] < least[j]:
            step += 1
        now, parts, charge = 0, 0, 0
        for n in range(nodes):
            now += held[j, n]
            parts += held[j, n] > 0
            charged[j, n] = min(held[j, n], capacity[n])
            charge += charged[j, n]
        if step == len(configs):
            continue
        gpus[j, step] = least[j]
        if now != least[j] or (configs[step, 0] > 1) != (parts > 1):
            continue
        running[j] = step
        for n in range(nodes if charge != configs[step, 1] else 0):
            if held[j, n] > 0:
                charged[j, n] = min(configs[step, 1], capacity[n]) if parts == 1 else capacity[n]
    return gpus, running, charged


@part
def _add_those_that_fit(
    which: BoolArray, but: BoolArray, charge: IntArray, left: int, rows: IntArray, count: int
) -> tuple[int, int]:
    """Append jobs of `which` and not of `but`, as long as they fit; (GPUs left, how many rows there are)."""
    asked, fits = 0, left
    for j in range(len(which)):
        if which[j] and not but[j] and charge[j] > 0:
            asked += charge[j]
            if asked <= fits:
                rows[count] = j
                count, left = count + 1, fits - asked
    return left, count


@kernel
def first_served(due: BoolArray, fresh: BoolArray, charge: IntArray, total: int) -> IntArray:
    """Rows of jobs that get GPUs in any case (`steps.guaranteed`), of `total` GPUs; the rest have shape (J,)."""
    rows = np.empty(len(due), dtype=np.int64)
    left, count = _add_those_that_fit(due, np.zeros(len(due), dtype=np.bool_), charge, total, rows, 0)
    left, count = _add_those_that_fit(fresh, due, charge, left, rows, count)
    return rows[:count]
