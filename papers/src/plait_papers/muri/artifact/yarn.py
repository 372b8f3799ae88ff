"""The artifact's placement "yarn": 8 nodes of 8 GPUs, first node that fits, whole nodes for large jobs.

A job of up to 8 GPUs takes the first node with enough free ones; a larger one the first completely free nodes, all or
nothing. A job that does not fit is skipped. The place of a job is one number with a bit per node. Moving is free in the
artifact, so the GPUs of a job within a node are not recorded.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.jit import kernel

NODES = 8
NODE_GPUS = 8
GPUS = NODES * NODE_GPUS


@kernel
def take(gpus: int, free: IntArray) -> int:
    """Take room for one job; its nodes as bits, 0 if it does not fit."""
    if gpus <= NODE_GPUS:
        for node in range(NODES):
            if free[node] >= gpus:
                free[node] -= gpus
                return 1 << node
        return 0
    idle = 0
    for node in range(NODES):
        if free[node] == NODE_GPUS:
            idle += 1
    needed = gpus // NODE_GPUS
    if idle < needed:
        return 0
    where = 0
    for node in range(NODES):
        if needed > 0 and free[node] == NODE_GPUS:
            free[node] = 0
            where |= 1 << node
            needed -= 1
    return where


@kernel
def lay_out(order: IntArray, group: IntArray, gpus: IntArray, running: BoolArray, where: IntArray) -> None:
    """Place jobs in order; jobs with the same `group` share GPUs, jobs with -1 do not run.

    Writes `running` and `where` of the jobs in `order`.
    """
    free = np.full(NODES, NODE_GPUS)
    left = GPUS
    shared = np.zeros(len(group), dtype=np.int64)
    for job in order:
        g = group[job]
        bits = 0
        if g >= 0:
            bits = shared[g]
            if bits == 0 and left >= gpus[job]:
                bits = take(gpus[job], free)
                shared[g] = bits
                if bits != 0:
                    left -= gpus[job]
        running[job] = bits != 0
        where[job] = bits


@kernel
def fits(gpus: IntArray) -> BoolArray:
    """Which of these gangs can be placed together, tried in this order."""
    free = np.full(NODES, NODE_GPUS)
    out = np.zeros(len(gpus), dtype=np.bool_)
    left = GPUS
    for i in range(len(gpus)):
        if left >= gpus[i] and take(gpus[i], free) != 0:
            out[i] = True
            left -= gpus[i]
    return out


@kernel
def count_out(order: IntArray, gpus: IntArray, running: BoolArray) -> None:
    """Set `running` of jobs in `order` while enough of all GPUs are free for `gpus`; no nodes, no fragmentation."""
    left = GPUS
    for job in order:
        running[job] = left >= gpus[job]
        if running[job]:
            left -= gpus[job]


@kernel
def candidates(order: IntArray, gpus: IntArray, share: int) -> tuple[IntArray, IntArray]:
    """The jobs that go into the grouping, as (jobs, bucket of each).

    Buckets are GPU counts, numbered in order of first appearance. Every job that would fit, alone, adds `share`
    jobs of its bucket.
    """
    free = np.full(NODES, NODE_GPUS)
    n = len(order)
    sizes = np.zeros(GPUS + 1, dtype=np.int64) - 1  # GPU count -> bucket
    buckets = 0
    bucket = np.zeros(n, dtype=np.int64)
    place = np.zeros(n, dtype=np.int64)
    length = np.zeros(n, dtype=np.int64)
    for i in range(n):
        need = gpus[order[i]]
        if sizes[need] < 0:
            sizes[need] = buckets
            buckets += 1
        bucket[i] = sizes[need]
        place[i] = length[bucket[i]]
        length[bucket[i]] += 1
    reserved = np.zeros(n, dtype=np.int64)
    left = GPUS
    for i in range(n):
        b, need = bucket[i], gpus[order[i]]
        if place[i] >= reserved[b] and left >= need and take(need, free) != 0:
            reserved[b] = min(reserved[b] + share, length[b])
            left -= need
    total = 0
    for b in range(buckets):
        total += reserved[b]
    jobs, of = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    begin = np.zeros(n, dtype=np.int64)
    for b in range(1, buckets):
        begin[b] = begin[b - 1] + reserved[b - 1]
    for i in range(n):
        b = bucket[i]
        if place[i] < reserved[b]:
            jobs[begin[b] + place[i]] = order[i]
            of[begin[b] + place[i]] = b
    return jobs, of
