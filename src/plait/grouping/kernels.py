"""The grouping kernels: time of a group, weights of all pairs, swaps between groups, pricing of columns.

All take the same packed description of a bucket, made by `model.Model`, so that each compiles once:
  rows[c]     one class of equal jobs: its k stage times twice in a row (so that offset + slot needs no modulo),
              its k shares, then WORTH, ALONE, MEMORY, SOLO (see below)
  numbers     interference factor of 1, 2, ... max_jobs jobs, then the memory limit
  shape       k, max_jobs, 1 for the worst order, 1 where shares count
  table       all turn vectors to try; those of p jobs are rows first[p] to first[p + 1]
A group is a sorted list of class numbers, and is always evaluated in that order: the same jobs give the same bits
whoever asks. `interleave.py` and `improve.py` hold the plain references.

All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it
calls.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel

#: Columns of `rows` after the stages and shares: numerator of the objective, objective of the job alone,
#: GPU memory, solo seconds an iteration.
WORTH, ALONE, MEMORY, SOLO = 0, 1, 2, 3

#: What a swap must gain, so that rounding cannot make the search go round in circles.
GAIN = 1e-9
#: Room for rounding in sums of shares.
SLACK = 1e-9


@kernel
def shares_fit(rows: FloatArray, group: IntArray, jobs: int, k: int, table: IntArray, at: int) -> bool:
    """Whether jobs that have the same turn together ask for at most all of each resource."""
    for i in range(1, jobs):
        for r in range(2 * k, 3 * k):
            asked = 0.0
            for other in range(i + 1):
                if table[at, other] == table[at, i]:
                    asked += rows[group[other], r]
            if asked > 1.0 + SLACK:
                return False
    return True


@kernel
def group_time(
    rows: FloatArray, group: IntArray, jobs: int, shape: IntArray, table: IntArray, first: IntArray
) -> tuple[float, int]:
    """Formula (3) under the best (or worst) order and the row of `table` that gives it; (inf, -1) if none may be."""
    k, worst, shared = shape[0], shape[2] == 1, shape[3] == 1
    best, at = (-1.0 if worst else np.inf), -1
    for c in range(first[jobs], first[jobs + 1]):
        if shared and not shares_fit(rows, group, jobs, k, table, c):
            continue
        time = 0.0
        for j in range(k):
            longest = 0.0
            for i in range(jobs):
                longest = max(longest, rows[group[i], table[c, i] + j])
            time += longest
            if time >= best and not worst:
                break
        if (time > best) if worst else (time < best):
            best, at = time, c
    return (best, at) if at >= 0 else (np.inf, -1)


@kernel
def group_value(
    rows: FloatArray,
    group: IntArray,
    jobs: int,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
) -> tuple[float, float]:
    """Objective and summed normalised throughput of a group; (0, 0) for one that may not be."""
    after = 3 * shape[0]
    if jobs == 1:
        return rows[group[0], after + ALONE], 1.0
    worth, solo, memory = 0.0, 0.0, 0.0
    for i in range(jobs):
        worth += rows[group[i], after + WORTH]
        solo += rows[group[i], after + SOLO]
        memory += rows[group[i], after + MEMORY]
    if jobs > shape[1] or memory > numbers[shape[1]]:
        return 0.0, 0.0
    time, at = group_time(rows, group, jobs, shape, table, first)
    if at < 0:
        return 0.0, 0.0
    time *= numbers[jobs - 1]
    return worth / time, solo / time


@kernel
def fill_times(
    rows: FloatArray,
    members: IntArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
    time: FloatArray,
    turn: IntArray,
    turn_row: IntArray,
) -> None:
    """Time and turns of many groups, one a row of `members`, padded with -1."""
    for g in range(len(members)):
        jobs = 0
        while jobs < members.shape[1] and members[g, jobs] >= 0:
            jobs += 1
        time[g], at = group_time(rows, members[g], jobs, shape, table, first)
        turn_row[g] = at
        for i in range(members.shape[1]):
            turn[g, i] = table[at, i] if at >= 0 and i < jobs else -1


@kernel
def merge(left: IntArray, right: IntArray, out: IntArray) -> int:
    """Two sorted groups padded with -1 into one; the number of members, which may be more than fit `out`."""
    i, j, size = 0, 0, len(left)
    jobs = 0
    while True:
        more_left = i < size and left[i] >= 0
        more_right = j < size and right[j] >= 0
        if not more_left and not more_right:
            return jobs
        if more_left and (not more_right or left[i] <= right[j]):
            out[jobs] = left[i]
            i += 1
        else:
            out[jobs] = right[j]
            j += 1
        jobs += 1


@kernel
def fill_weights(
    rows: FloatArray,
    nodes: IntArray,
    floor: float,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
    weight: FloatArray,
) -> None:
    """Objective of the union of every two nodes, also of a node with its like; 0 where they may not join.

    Nor may those whose summed normalised throughput does not exceed `floor`.
    """
    group = np.empty(2 * nodes.shape[1], dtype=np.int64)
    for u in range(len(nodes)):
        for v in range(u + 1):
            jobs = merge(nodes[u], nodes[v], group)
            value = 0.0
            if jobs <= shape[1]:
                value, speedup = group_value(rows, group, jobs, numbers, shape, table, first)
                if speedup <= floor:
                    value = 0.0
            weight[u, v] = value
            weight[v, u] = value
