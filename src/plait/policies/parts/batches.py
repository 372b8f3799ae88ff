"""Batches: the set of waiting jobs that together fill the most free GPUs. Start at `by_batch`.

NetPack batches jobs and places them periodically. The choice of a batch by a knapsack over GPUs, and the value of a job
there, are our design.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.policy import View

#: A job that has waited so long is worth twice its GPUs.
AGE_S = 3600.0
#: Jobs of a batch at most, the oldest ones.
MOST_JOBS = 1000


def by_batch(view: View) -> IntArray:
    """0 for running jobs and jobs of the batch, 1 for the others.

    The batch is the best choice of waiting jobs for the GPUs that are free: a job is worth its GPUs times
    1 + waiting time / `AGE_S`, so that none waits because others always fit better.
    """
    jobs = view.jobs
    waiting = np.flatnonzero(~jobs.running)[:MOST_JOBS]
    free = int(view.node_gpus.sum()) - int(jobs.gpus[jobs.running].sum())
    value = jobs.gpus[waiting] * (1 + np.maximum(jobs.waiting_s[waiting], 0.0) / AGE_S)
    key = np.ones(len(jobs), dtype=np.int64)
    key[jobs.running] = 0
    key[waiting[knapsack(jobs.gpus[waiting], value, free)]] = 0
    return key


def knapsack(size: IntArray, value: FloatArray, capacity: int) -> BoolArray:
    """Which items give the largest sum of values with sizes of at most `capacity` in all; ties: the first ones.

    `size` >= 1 and `value` > 0, both shape (items,). Exact, by a table of items x capacity.

    >>> knapsack(np.array([3, 4, 5]), np.array([3.0, 4.0, 5.0]), 8).tolist()
    [True, False, True]
    """
    chosen = np.zeros(len(size), dtype=np.bool_)
    if capacity <= 0 or not len(size):
        return chosen
    best = np.zeros(capacity + 1)
    takes = np.zeros((len(size), capacity + 1), dtype=np.bool_)
    for i in reversed(range(len(size))):
        if size[i] <= capacity:
            with_it = best[: capacity + 1 - size[i]] + value[i]
            takes[i, size[i] :] = with_it >= best[size[i] :]
            best[size[i] :] = np.maximum(best[size[i] :], with_it)
    for i in range(len(size)):
        if takes[i, capacity]:
            chosen[i] = True
            capacity -= int(size[i])
    return chosen
