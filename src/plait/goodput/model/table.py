"""Goodput of every job on every configuration, in one call, for allocators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray
from plait.goodput.model.batch import Speed, best_batch
from plait.goodput.model.jobs import GoodputJobs
from plait.goodput.model.throughput import throughput


def goodput_table(
    jobs: GoodputJobs,
    configs: npt.ArrayLike,
    *,
    most_gpus: npt.ArrayLike | None = None,
    artifact: bool = False,
    speed: Speed = throughput,
) -> FloatArray:
    """Useful examples per second at the best batch, (J, C); `configs` holds a row (nodes, gpus) for each.

    0 where a job cannot run: no GPUs, so many that not each has its smallest batch, or more than its `most_gpus` (J,),
    for instance its exploration cap. A job without a fit is worth K. Configurations that the model cannot distinguish
    (same K, and one node or several) are computed once. `artifact` and `speed` are as in `best_batch`; a model other
    than `throughput` is called for every (nodes, gpus).
    """
    nodes, gpus = np.asarray(configs, dtype=np.int64).reshape(-1, 2).T
    if speed is throughput:
        nodes = 1 + (nodes > 1)
    (apart, many), kind = np.unique(np.stack([nodes, gpus]), axis=1, return_inverse=True)
    if most_gpus is not None:
        many = np.where(many <= np.asarray(most_gpus)[:, None], many, 0)
    values = best_batch(jobs, apart, many, artifact=artifact, speed=speed).goodput
    table: FloatArray = values[:, kind.reshape(-1)]
    return table
