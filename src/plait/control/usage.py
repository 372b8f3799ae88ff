"""Figures of GPUs and jobs as they are reported: each report replaces what was known of those whom it names."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from plait.control.messages import UsageReported
from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.errors import PlaitError
from plait.core.policy import Usage

_OF_GPUS = {"utilisation": "gpu_utilisation", "memory_bytes": "gpu_memory_bytes"}
_OF_JOBS = tuple(field.name for field in fields(Usage) if field.name not in (*_OF_GPUS, "jobs"))
_NONE: FloatArray = np.zeros(0)
NOTHING_KNOWN = Usage(_NONE, _NONE, NO_JOBS, _NONE, _NONE, _NONE, _NONE)


def updated(usage: Usage | None, event: UsageReported, gpus: int, running_group: IntArray) -> Usage:
    """What is known after a report, of `gpus` GPUs and of the jobs that run.

    A GPU of which the report knows nothing keeps its figures; `running_group` is a column of the job store. Raises
    `PlaitError` for a report whose columns do not fit together or that names more GPUs than there are.
    """
    before = usage or NOTHING_KNOWN
    rows = {len(getattr(event, name)) for name in _OF_JOBS}
    if rows != {len(event.jobs)} or max(len(getattr(event, name)) for name in _OF_GPUS.values()) > gpus:
        raise PlaitError(
            f"usage reported at {event.at_s} s has columns of other lengths than its {len(event.jobs)} jobs and the "
            f"{gpus} GPUs of the cluster; send one figure for each"
        )
    of_gpus = {}
    for name, reported in _OF_GPUS.items():
        known, new = np.full(gpus, np.nan), getattr(event, reported)
        known[: len(before.utilisation)] = getattr(before, name)
        known[: len(new)] = np.where(np.isnan(new), known[: len(new)], new)
        of_gpus[name] = known
    jobs, last = np.unique(np.concatenate([event.jobs, before.jobs]), return_index=True)
    here = running_group[jobs] >= 0
    of_jobs = {n: np.concatenate([getattr(event, n), getattr(before, n)])[last[here]] for n in _OF_JOBS}
    return Usage(**of_gpus, jobs=jobs[here], **of_jobs)


def without_gpus(usage: Usage, lost: BoolArray) -> Usage:
    """The same figures, with nothing known of GPUs whose flag (gpus,) is set."""
    lost = lost[: len(usage.utilisation)]
    gone = {name: np.where(lost, np.nan, getattr(usage, name)) for name in _OF_GPUS}
    return replace(usage, **gone)


def of_jobs(usage: Usage, numbers: IntArray) -> Usage:
    """The figures of these jobs only (numbers, growing), renumbered from 0; GPUs keep theirs."""
    kept = np.isin(usage.jobs, numbers)
    columns = {name: getattr(usage, name)[kept] for name in _OF_JOBS}
    return replace(usage, jobs=np.searchsorted(numbers, usage.jobs[kept]), **columns)
