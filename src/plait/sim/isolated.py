"""How long adaptive jobs would take alone on a fixed part of the cluster: the baseline of finish-time fairness.

On k GPUs such a job makes `best goodput / M0` iterations a second, at the batch that is best for the gradient noise
that it has then (Pollux, OSDI'21, section 3): more GPUs bring less each, and what they bring changes as it trains.
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.goodput.model.batch import best_batch
from plait.goodput.model.jobs import GoodputJobs
from plait.sim.training import Training


def isolated_s(jobs: JobBatch, training: Training, cluster: Cluster, share: FloatArray) -> FloatArray:
    """Seconds (J,) of each job on `share` (J,) GPUs of its own, on as few nodes as they fit on, without start-up.

    NaN for jobs that do not adapt or cannot run, and where the share is NaN. A share below the fewest GPUs of the job
    gives it those for a part of the time, one between two numbers of GPUs both in turn; GPUs that would slow it down
    stay idle.
    """
    seconds = np.full(len(jobs), math.nan)
    for job in np.flatnonzero(training.adapts & np.isfinite(share)).tolist():
        seconds[job] = _seconds(jobs, training, cluster, job, float(share[job]))
    return seconds


def _seconds(jobs: JobBatch, training: Training, cluster: Cluster, job: int, share: float) -> float:
    own = {name: int(jobs.column(name)[job]) for name in _LIMITS}
    least = own["min_gpus"]
    most = min(own["max_gpus"], own["max_batch_size"] // own["min_local_batch"], cluster.gpus)
    share = max(min(share, float(most)), 0.0)
    sizes = _sizes(least, share)
    speed = np.maximum.accumulate(_speed(jobs, training, job, sizes, _nodes(cluster, sizes)), axis=1)  # (levels, sizes)
    if share < least:
        rate = speed[:, 0] * share / least
    else:
        part = share - math.floor(share)
        rate = speed[:, -1] * part + speed[:, -2] * (1.0 - part) if part else speed[:, -1]
    if not rate.all():
        return math.nan
    ends = np.minimum(training.ends[job], jobs.iterations[job])
    ends[-1] = jobs.iterations[job]  # the last level lasts to the end
    return float((np.diff(ends, prepend=0.0) / rate).sum())


def _sizes(least: int, share: float) -> IntArray:
    """Numbers of GPUs to look at, rising: powers of two on the way, and the whole numbers around the share."""
    sizes = {least, max(least, math.floor(share)), max(least, math.ceil(share))}
    size = 1
    while size < share:
        sizes.add(max(size, least))
        size *= 2
    return np.array(sorted(sizes), dtype=np.int64)


def _nodes(cluster: Cluster, sizes: IntArray) -> IntArray:
    """The fewest nodes that have so many GPUs."""
    held = np.cumsum(np.sort(cluster.node_gpus)[::-1])
    nodes: IntArray = np.minimum(np.searchsorted(held, sizes), len(held) - 1) + 1
    return nodes


def _speed(jobs: JobBatch, training: Training, job: int, sizes: IntArray, nodes: IntArray) -> FloatArray:
    """Iterations at the initial batch a second, (levels of noise, sizes)."""
    noise = training.noise[job]
    levels = len(noise)
    own = [np.full(levels, int(jobs.column(name)[job])) for name in _BATCH]
    variance = noise / own[0]
    row = np.broadcast_to(training.theta[job], (levels, training.theta.shape[1]))
    known = GoodputJobs(row, np.ones(levels), variance, *own)
    speed: FloatArray = best_batch(known, nodes, sizes).goodput / own[0][:, None]
    return speed


_BATCH = ("batch_size", "max_batch_size", "min_local_batch", "max_local_batch", "accumulates")
_LIMITS = ("min_gpus", "max_gpus", "max_batch_size", "min_local_batch")
