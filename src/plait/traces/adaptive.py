"""Jobs of a trace that adapt their batch: traces of Pollux give a model and no duration, which follows from the GPUs.

Work and batch limits are from the models that ship with plait (`plait.goodput.model.shipped`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.goodput.model.shipped import measured_node, shipped
from plait.traces.table import TraceTable

#: Most GPUs of an adaptive job, as in the published simulation.
MOST_GPUS = 64


def adaptive_rows(table: TraceTable) -> BoolArray:
    """Which jobs of a trace have no duration, but a model whose throughput is known."""
    unknown = np.isnan(np.array(table["duration_s"], dtype=np.float64))
    rows: BoolArray = unknown & np.isin(table["model"].astype(str), sorted(shipped()))
    return rows


def no_larger_than(jobs: JobBatch, cluster: Cluster) -> JobBatch:
    """The same jobs; elastic ones request at most the largest gang of a kind they may use.

    Their iterations then take as long as on so many GPUs: by their model if they adapt their batch and plait knows it,
    in inverse proportion otherwise, as in the simulator. Their cores and memory shrink with their GPUs.
    """
    most = _largest_gangs(jobs, cluster)
    large = (jobs.gpus > most) & (jobs.column("min_gpus") <= most)
    if not large.any():
        return jobs
    gpus = np.where(large, most, jobs.gpus)
    slower = np.ones(len(jobs))
    for j in np.flatnonzero(large).tolist():
        adapts = jobs.column("batch_size")[j] > 0
        slower[j] = _slower(str(jobs.column("model")[j]) if adapts else "", int(jobs.gpus[j]), int(gpus[j]))
    return jobs.replace(
        stage_s=jobs.stage_s * slower[:, None],
        gpus=gpus,
        max_gpus=np.where(large, gpus, jobs.column("max_gpus")),
        iteration_s=jobs.iteration_s * slower,
        cpus=jobs.column("cpus") * gpus / jobs.gpus,
        memory_bytes=jobs.column("memory_bytes") * gpus / jobs.gpus,
    )


def _largest_gangs(jobs: JobBatch, cluster: Cluster) -> IntArray:
    """(J,): GPUs of the largest gang of each job that the whole cluster holds, all of one kind."""
    if not jobs.any_kinds:
        return np.full(len(jobs), cluster.largest_gang())
    return np.array([cluster.largest_gang(kinds) for kinds in jobs.column("gpu_kinds").tolist()], dtype=np.int64)


def _slower(name: str, asked: int, gpus: int) -> float:
    """How many times as long an iteration takes on `gpus` as on the requested GPUs."""
    model = shipped().get(name)
    if model is None or asked > model.most_gpus:
        return asked / gpus
    return _iteration_s(name, gpus) / _iteration_s(name, asked)


@cache
def _iteration_s(name: str, gpus: int) -> float:
    """Mean seconds of an iteration of a shipped model, on as few nodes as in the measurements."""
    return shipped()[name].iteration_s(-(-gpus // measured_node()), gpus)


def made_adaptive(jobs: JobBatch, rows: BoolArray) -> JobBatch:
    """The same jobs, with `rows` adaptive and elastic from one GPU to `MOST_GPUS` or as many as have work.

    A job that requests more GPUs than that gets fewer. `iteration_s` is its mean at the requested size, on as few nodes
    as in the measurements.
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
    for j in np.flatnonzero(rows).tolist():
        model = shipped()[str(jobs.column("model")[j])]
        most = min(MOST_GPUS, model.most_gpus)
        gpus = min(int(columns["gpus"][j]), most)
        iteration_s = _iteration_s(model.name, gpus)
        for name, value in zip(names, (gpus, 1, most, model.iterations, iteration_s), strict=True):
            columns[name][j] = value
        for column, field in limits.items():
            columns[column][j] = int(getattr(model.batch, field))
    return jobs.replace(**columns)
