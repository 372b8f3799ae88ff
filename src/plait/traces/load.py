"""From a canonical trace to the jobs of a simulation.

Jobs of a trace that adapt their batch: traces of Pollux give a model and no duration, which follows from the GPUs.

Work and batch limits are from the models that ship with plait (`plait.goodput.shipped`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.core.goodput import ANY
from plait.core.jobs import Checkpoints, InaRequest, JobBatch, JobClass
from plait.core.jobs.batch import BATCH_COLUMNS
from plait.core.words import counted
from plait.goodput.fixed_batch import fixed_s, parse_scaling, scaling_of
from plait.goodput.shipped import measured_node, shipped
from plait.traces.schema import Array
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
    as the prior of a fixed batch scales otherwise. Their cores and memory shrink with their GPUs.
    """
    most = _largest_gangs(jobs, cluster)
    large = (jobs.gpus > most) & (jobs.column("min_gpus") <= most)
    if not large.any():
        return jobs
    gpus = np.where(large, most, jobs.gpus)
    slower = np.ones(len(jobs))
    for j in np.flatnonzero(large).tolist():
        slower[j] = _slower(jobs, j, int(gpus[j]), int(cluster.node_gpus.max()))
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


def _slower(jobs: JobBatch, job: int, gpus: int, per_node: int) -> float:
    """How many times as long an iteration takes on `gpus` as on the requested GPUs, of nodes of `per_node`."""
    requested, adapts = int(jobs.gpus[job]), jobs.column("batch_size")[job] > 0
    model = shipped().get(str(jobs.column("model")[job])) if adapts else None
    if model is None or requested > model.most_gpus:
        sizes = np.array([gpus, requested])
        seconds = fixed_s(scaling_of(jobs.column("scaling")[job], per_node), -(-sizes // per_node), sizes)
        return float(seconds[0] / seconds[1])
    return _iteration_s(model.name, gpus) / _iteration_s(model.name, requested)


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
    columns: dict[str, Any] = {name: jobs.column(name).copy() for name in (*names, *BATCH_COLUMNS)}
    for j in np.flatnonzero(rows).tolist():
        model = shipped()[str(jobs.column("model")[j])]
        most = min(MOST_GPUS, model.most_gpus)
        gpus = min(int(columns["gpus"][j]), most)
        iteration_s = _iteration_s(model.name, gpus)
        for name, value in zip(names, (gpus, 1, most, model.iterations, iteration_s), strict=True):
            columns[name][j] = value
        for column, limit in BATCH_COLUMNS.items():
            columns[column][j] = int(getattr(model.batch, limit))
    return jobs.replace(**columns)


@dataclass(frozen=True)
class Workload:
    """Jobs ready to simulate, how many rows were left out by reason, and what a user should know.

    `first_dropped` has the id of the first job left out for each reason.
    """

    jobs: JobBatch
    dropped: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    first_dropped: Mapping[str, str] = field(default_factory=dict)


#: Explanations of the reasons for which jobs are left out of a simulation.
WITHOUT = {
    "cpu_only": "without GPUs",
    "no_duration": "without a duration, and without a model from which it follows",
    "censored": "without an end that was seen",
}


def load_jobs(table: TraceTable, *, censored: str = "as_is", seed: int = 0) -> Workload:
    """The GPU jobs of a trace, in order of (submission, natural id).

    Work is `duration_s`, the solo run time at the requested size; where the trace has iteration times it is
    counted in iterations. `censored` is the treatment of jobs whose end was not observed: `as_is` replays what was
    observed, `drop` leaves them out, `extend` adds a seeded draw from the durations that were longer.
    Rows without GPUs or without a duration are left out and counted. Raises `InputError` if nothing is left.
    Jobs without a duration of a model whose throughput plait knows adapt their batch (`traces.adaptive`).
    """
    if censored not in ("as_is", "drop", "extend"):
        raise InputError(f"censored is {censored!r}; use as_is, drop or extend")
    adapts = adaptive_rows(table)
    duration = np.array(table["duration_s"], dtype=np.float64)
    duration[adapts] = 1.0  # follows from the model
    open_ended = np.isin(table["duration_kind"].astype(str), ["right_censored", "lower_bound"])
    gpus = np.nan_to_num(np.asarray(table["gpus"], dtype=np.float64), nan=0.0)
    reasons = {"cpu_only": gpus < 1, "no_duration": ~(duration > 0)}
    if censored == "drop":
        reasons["censored"] = open_ended
    keep = np.ones(len(table), dtype=bool)
    dropped: dict[str, int] = {}
    first: dict[str, str] = {}
    for reason, rows in reasons.items():
        if (keep & rows).any():
            dropped[reason] = int((keep & rows).sum())
            first[reason] = str(table["job_id"][int(np.argmax(keep & rows))])
        keep &= ~rows
    if not keep.any():
        why = ", ".join(f"{counted(n, 'job')} {WITHOUT[reason]}" for reason, n in dropped.items()) or "there is none"
        raise InputError("; ".join([f"no job of this trace can be simulated: {why}", *table.meta["warnings"]]))
    if censored == "extend":
        # Censored durations are replaced by a draw among the known ones that were longer.
        which = open_ended & keep
        out = duration.copy()
        sure = np.sort(duration[keep & ~which])
        rng = np.random.default_rng((seed, 0xCE7))
        draws = rng.random(len(duration))
        for i in np.flatnonzero(which).tolist():
            longer = sure[np.searchsorted(sure, duration[i], side="right") :]
            if len(longer):
                out[i] = longer[int(draws[i] * len(longer))]
        duration = out
    jobs = _batch(table.select(keep), duration[keep])
    return Workload(made_adaptive(jobs, adapts[keep]), dropped, _warnings(table.select(keep & ~adapts)), first)


def cluster_of(table: TraceTable) -> Cluster:
    """The cluster a trace describes; raises `InputError` if it has no nodes with GPUs."""
    if table.nodes is None:
        raise InputError("this trace does not describe its cluster; give one, e.g. --cluster 8x8")
    nodes = table.nodes
    n = len(nodes["node_id"])

    def numbers(name: str) -> Array:
        column = nodes.get(name)
        return np.zeros(n) if column is None else np.nan_to_num(np.asarray(column, dtype=np.float64))

    kinds = nodes.get("gpu_kind")
    found = [
        Node(
            str(nodes["node_id"][i]),
            int(gpus),
            str(kinds[i]) if kinds is not None and kinds[i] else "gpu",
            cpus=float(cpus) / 1000,
            memory_bytes=float(memory),
            gpu_memory_bytes=int(gpu_memory),
            nic_bytes_per_s=float(nic),
        )
        for i, (gpus, cpus, memory, gpu_memory, nic) in enumerate(
            zip(
                *map(numbers, ("gpus", "cpu_milli", "memory_bytes", "gpu_memory_bytes", "nic_bytes_per_s")),
                strict=True,
            )
        )
        if gpus >= 1
    ]
    if not found:
        raise InputError("the nodes of this trace have no GPUs; give a cluster, e.g. --cluster 8x8")
    return Cluster(tuple(found))


def _batch(table: TraceTable, duration_s: Array) -> JobBatch:
    n = len(table)
    stages = np.column_stack([table[f"{r}_s"] for r in ("storage", "cpu", "gpu", "network")]).astype(np.float64)
    unit = np.array(table["iteration_s"], dtype=np.float64)
    unit = np.where(unit > 0, unit, 1.0)
    gpus = np.asarray(table["gpus"], dtype=np.int64)
    models = _texts(table["model"])
    classes = [_CLASSES[c] for c in table["job_class"].tolist()]
    share = model_skew()
    least, most = (np.asarray(table[name], dtype=np.float64) for name in ("min_gpus", "max_gpus"))
    # Each job's request for in-network aggregation; one object for equal requests
    column = table["ina"]
    known: dict[str | None, InaRequest] = {text: InaRequest.of(text) for text in set(column.tolist())}
    # Script with arguments and script alone of each job; () where the trace has no script
    rows = zip(table["script"].tolist(), table["arguments"].tolist(), strict=True)
    columns: dict[str, Any] = {
        "id": [str(i) for i in table["job_id"]],
        "submit_s": np.asarray(table["submit_s"], dtype=np.float64),
        "gpus": gpus,
        "iterations": duration_s / unit,
        "iteration_s": unit,
        "user": _texts(table["user"]),
        "project": _texts(table["project"]),
        "model": models,
        "like": [(f"{script} {arguments or ''}", script) if script else () for script, arguments in rows],
        "job_class": np.array([int(c) for c in classes], dtype=np.int64),
        "checkpoints": np.array([int(_CHECKPOINTS[c]) for c in table["checkpoints"].tolist()], dtype=np.int64),
        "min_gpus": np.where(least >= 1, least, gpus).astype(np.int64),
        "max_gpus": np.where(most >= 1, most, gpus).astype(np.int64),
        "scaling": [parse_scaling(text) if text else () for text in table["scaling"].tolist()],
        "gpu_kinds": [tuple(k.split("|")) if isinstance(k, str) and k else None for k in table["gpu_kinds"]],
        "gpu_memory_bytes": np.nan_to_num(table["gpu_memory_bytes"].astype(np.float64)),
        "cpus": np.nan_to_num(table["cpu_milli"].astype(np.float64)) / 1000.0,
        "memory_bytes": np.nan_to_num(table["memory_bytes"].astype(np.float64)),
        "skew": np.array([share.get(m, np.nan) for m in models], dtype=np.float64),
        "gradient_bytes": table["gradient_bytes"].astype(np.float64),
        "servers": np.nan_to_num(table["servers"].astype(np.float64)).astype(np.int64),
        "ina": [known[text] for text in column.tolist()],
        "deadline_s": table["deadline_s"].astype(np.float64),
        "priority": np.nan_to_num(table["priority"].astype(np.float64)),
        "weight": np.nan_to_num(table["weight"].astype(np.float64), nan=1.0),
        **_plans(table),
    }
    if len(stages) != n or np.isnan(stages).all():
        return JobBatch(columns)
    return JobBatch(columns, stages)


def _plans(table: TraceTable) -> dict[str, IntArray]:
    """The columns of `JobSpec.batch` by name: jobs with parameters hold their batch, and choose how to execute it."""
    names = ("batch_size", "parameters", "example_bytes", "zero_stage", "gpus")
    batch, parameters, example_bytes, stage, gpus = (table[name].astype(np.float64) for name in names)
    batch = np.where(table["batch_scope"] == "per_gpu", batch * gpus, batch)
    some = (batch > 0) & (parameters > 0)
    stage = np.nan_to_num(stage, nan=ANY)
    one = np.ones(len(table))
    values = (batch, batch, one, batch, one, parameters, np.nan_to_num(example_bytes), stage)
    return {name: np.where(some, value, 0).astype(np.int64) for name, value in zip(BATCH_COLUMNS, values, strict=True)}


_CLASSES: dict[str | None, JobClass] = {kind.name.lower(): kind for kind in JobClass}
_CLASSES[None] = JobClass.GUARANTEED
_CHECKPOINTS: dict[str | None, Checkpoints] = {kind.name.lower(): kind for kind in Checkpoints}
_CHECKPOINTS[None] = Checkpoints.ON_STOP


def _texts(column: Array) -> list[str]:
    return ["" if v is None else str(v) for v in column]


def _warnings(table: TraceTable) -> tuple[str, ...]:
    checks: tuple[tuple[Callable[[], bool], str], ...] = (
        (
            lambda: bool((table["gpu_milli"].astype(np.float64) < 1000).any()),
            "jobs that ask for part of a GPU are given a whole one",
        ),
    )
    return tuple(text for holds, text in checks if holds())


def model_skew() -> dict[str, float]:
    """Share of the largest tensor in all tensor bytes by model, from the table that ships with plait."""
    with (resources.files("plait.traces") / "data" / "tensors.csv").open(encoding="utf-8") as file:
        return {row["model"]: float(row["max_share"]) for row in csv.DictReader(file)}
