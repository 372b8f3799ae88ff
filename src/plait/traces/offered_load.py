"""Offered load: how busy the jobs of a trace keep a cluster while they are submitted.

    load = sum over jobs of GPUs x |[submit, submit + duration] in W| / (GPUs of the cluster x |W|)

W, the busy period, runs from the 5th percentile of the submissions to the last one: before it the cluster fills up,
after it the cluster empties. The numerator is the work that is due in W if no job waits. For a stream without end this
is the utilisation factor of queueing theory, arrival rate x mean work / servers. A cluster at load L is therefore about
min(1, L) busy during W, if the policy finds GPUs for the jobs that wait; above 1 the queue grows until the last
submission.

GPU-seconds of all jobs over the span of submissions count work that is due only after the last submission. In traces
with heavy tails this is most of the work, and a cluster at load 1 by that measure has no queue.
"""

from __future__ import annotations

import numpy as np

from plait.core.errors import InputError
from plait.traces.schema import Array

#: Percentile of the submissions at which the busy period begins.
WARM_UP = 5.0
#: Halvings of the interval of the stretch factor: more than the bits of a float.
HALVINGS = 64


def busy_period(submit_s: Array) -> tuple[float, float]:
    """First and last second of the busy period; equal if (nearly) all jobs are submitted at one time."""
    return float(np.percentile(submit_s, WARM_UP)), float(np.max(submit_s))


def offered_load(submit_s: Array, gpus: Array, duration_s: Array, cluster_gpus: int) -> float:
    """Load of these jobs on `cluster_gpus` GPUs, as this module defines it; infinite without a busy period.

    `submit_s`, `duration_s`: seconds (n,), NaN durations count as 0; `gpus`: GPUs of each job (n,).

    >>> import numpy as np
    >>> offered_load(np.arange(100.0), np.ones(100), np.full(100, 4.0), 4)
    1.0
    """
    if cluster_gpus < 1:
        raise InputError(f"a cluster needs at least one GPU (got {cluster_gpus})")
    if not len(submit_s):
        return 0.0
    first, last = busy_period(submit_s)
    if not last > first:
        return float("inf")
    end_s = np.minimum(submit_s + np.nan_to_num(duration_s), last)
    inside_s = np.maximum(end_s - np.maximum(submit_s, first), 0.0)
    return float((gpus * inside_s).sum() / (cluster_gpus * (last - first)))


def stretch_factor(submit_s: Array, gpus: Array, duration_s: Array, cluster_gpus: int, load: float) -> float:
    """Factor by which submissions after the first are stretched for the offered load to be `load`.

    Arguments as for `offered_load`. Raises `InputError` if no factor does: the load has an upper bound, which it has
    when every job runs from its submission to the end of the busy period.
    """
    if not 0 < load < float("inf"):
        raise InputError(f"load must be more than 0 (got {load})")
    if not np.nansum(gpus * duration_s) > 0:
        raise InputError("no job of this trace has a duration, so it has no load to stretch; leave load out")
    after_s = submit_s - submit_s.min()
    endless = np.where(duration_s > 0, np.inf, 0.0)
    most = offered_load(after_s, gpus, endless, cluster_gpus)
    if most == float("inf"):
        raise InputError(
            "the jobs of this trace are submitted at one time, which has no load to stretch; leave load out"
        )
    if not load < most:
        raise InputError(
            f"load {load:g} needs more jobs: these {len(after_s):,} reach at most {most:.2g} on {cluster_gpus} GPUs"
        )
    # The load falls with the factor: each job's part of a longer period is at most as large.
    low, high = np.log(1e-9), np.log(1e9)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if offered_load(after_s * np.exp(middle), gpus, duration_s, cluster_gpus) > load:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))
