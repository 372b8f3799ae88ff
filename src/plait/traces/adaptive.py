"""Jobs of a trace that adapt their batch: traces of Pollux give a model and no duration, which follows from the GPUs.

Work and batch limits are those of the models that ship with plait (`plait.goodput.models`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plait.core.arrays import BoolArray
from plait.core.jobs import JobBatch
from plait.goodput.models import measured_node, shipped
from plait.traces.table import TraceTable

#: Adaptive jobs may grow to so many GPUs, as in the published simulation.
MOST_GPUS = 64


def adaptive_rows(table: TraceTable) -> BoolArray:
    """Which jobs of a trace have no duration, but a model whose throughput is known."""
    unknown = np.isnan(np.array(table["duration_s"], dtype=np.float64))
    rows: BoolArray = unknown & np.isin(table["model"].astype(str), sorted(shipped()))
    return rows


def no_larger_than(jobs: JobBatch, gpus: int) -> JobBatch:
    """The same jobs; elastic ones that ask for more than all `gpus` of a cluster ask for those."""
    large = (jobs.gpus > gpus) & (jobs.column("min_gpus") <= gpus)
    if not large.any():
        return jobs
    most = np.where(large, gpus, jobs.column("max_gpus"))
    return jobs.replace(gpus=np.where(large, gpus, jobs.gpus), max_gpus=most)


def made_adaptive(jobs: JobBatch, rows: BoolArray) -> JobBatch:
    """The same jobs, those of `rows` adaptive and elastic from one GPU to `MOST_GPUS` or as many as have work.

    A job that asks for more GPUs than that gets fewer. `iteration_s` is its mean at the size it asks for, on as few
    nodes as those of the measurements.
    """
    if not rows.any():
        return jobs
    names = ("gpus", "min_gpus", "max_gpus", "iterations", "iteration_s")
    limits = {
        "batch_size": "initial",
        "max_batch_size": "most",
        "min_local_batch": "least_local",
        "max_local_batch": "most_local",
        "accumulates": "accumulation",
    }
    columns: dict[str, Any] = {name: jobs.column(name).copy() for name in (*names, *limits)}
    known: dict[tuple[str, int], float] = {}
    for j in np.flatnonzero(rows).tolist():
        model = shipped()[str(jobs.column("model")[j])]
        most = min(MOST_GPUS, model.most_gpus)
        gpus = min(int(columns["gpus"][j]), most)
        if (model.name, gpus) not in known:
            known[model.name, gpus] = model.iteration_s(-(-gpus // measured_node()), gpus)
        iteration_s = known[model.name, gpus]
        for name, value in zip(names, (gpus, 1, most, model.iterations, iteration_s), strict=True):
            columns[name][j] = value
        for column, field in limits.items():
            columns[column][j] = int(getattr(model.batch, field))
    return jobs.replace(**columns)
