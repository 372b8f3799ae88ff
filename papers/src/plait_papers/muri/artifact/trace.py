"""The artifact's trace files, as its loader reads them: milliseconds in, columns in seconds out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.sim.world import Overheads
from plait.traces.delimited import read_rows
from plait.traces.files import Pathish, Source

STRETCH = 1.015
"""The artifact lengthens every solo iteration by this, for every policy, also when a job runs alone."""

STAGES = tuple(f"resource_time_{k}" for k in range(3))
NUMBERS = ("submit_time", "iterations", "duration", "iteration_time", *STAGES)
COLUMNS = ("job_id", "num_gpu", "model_name", "priority", *NUMBERS)
PER_JOB = ("gpus", "submit_s", "duration_s", "iterations", "iteration_s", "data_s", "gpu_s", "network_s", "priority")


PERCENTILE_RULE = "sorted value at int(0.99 n), from 0, not interpolated"


def p99(values: FloatArray) -> float:
    """The artifact's 99th percentile, by `PERCENTILE_RULE`."""
    return float(np.sort(values)[int(0.99 * len(values))])


@dataclass(frozen=True, eq=False)
class ArtifactTrace:
    """Jobs of one artifact trace as columns, sorted by submission; shape (jobs,), seconds unless named otherwise.

    `row` is the row in the file, from 0; `iteration_s` is already lengthened by `STRETCH`; `data_s` is storage
    and CPU in one; `priority` is 0 for guaranteed and 1 for opportunistic jobs. Use `dataclasses.replace` for
    the same jobs with other stage times. Raises `InputError` for impossible columns.
    """

    row: IntArray
    model: tuple[str, ...]
    gpus: IntArray
    submit_s: FloatArray
    duration_s: FloatArray
    iterations: FloatArray
    iteration_s: FloatArray
    data_s: FloatArray
    gpu_s: FloatArray
    network_s: FloatArray
    priority: IntArray

    def __post_init__(self) -> None:
        for name in ("model", *PER_JOB):
            if len(getattr(self, name)) != len(self.row):
                raise InputError(f"column {name} has {len(getattr(self, name))} jobs, row has {len(self.row)}")
        if not len(self.row):
            raise InputError("an artifact trace needs at least one job")
        if (np.diff(self.submit_s) < 0).any():
            raise InputError("jobs of an artifact trace must be sorted by submit_s")
        for name in ("iterations", "iteration_s"):
            worst = float(np.min(getattr(self, name)))
            if not worst > 0:
                raise InputError(f"{name} of a job must be more than 0, got {worst:g}")
        unknown = sorted({int(g) for g in self.gpus} - set(sizes()))
        if unknown:
            raise InputError(f"no start overhead for a job on {unknown[0]} GPUs; known: {_listed(sizes())}")

    def __len__(self) -> int:
        return len(self.row)

    @property
    def overhead_s(self) -> FloatArray:
        """Seconds to start each job; 10 for a model that is not in the table."""
        costs = table()
        return np.array([costs.get((m, int(g)), costs["*", 1]) for m, g in zip(self.model, self.gpus, strict=True)])


def read(path: Pathish, jobs: int | None = None) -> ArtifactTrace:
    """Reads the first `jobs` rows of an artifact trace (all of them by default).

    Raises `TraceError`, an `InputError`, naming file, line and column.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    source = Source(path)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in read_rows(source, required=COLUMNS):
        for name in NUMBERS:
            value = row.number(name)
            if value < 0 or (value == 0 and name in ("iterations", "iteration_time")):
                raise row.error("must not be negative" if value < 0 else "must be more than 0", column=name)
            columns[name].append(value)
        if not any(columns[name][-1] for name in STAGES):
            raise row.error("at least one of the three stages must take time", column=STAGES[0])
        gpus = row.gang("num_gpu")
        if gpus not in sizes():
            raise row.error("no start overhead for this many GPUs", column="num_gpu", hint=f"known: {_listed(sizes())}")
        columns["num_gpu"].append(gpus)
        columns["model_name"].append(row.text("model_name"))
        columns["priority"].append(int(row.choice("priority", {"0": "0", "1": "1"})))
        columns["job_id"].append(row.text("job_id"))
        if len(columns["job_id"]) == jobs:
            break
    if not columns["job_id"]:
        raise source.error("the trace has no jobs")
    ms = {name: np.array(columns[name], dtype=np.float64) for name in NUMBERS}
    by_submit = np.argsort(ms["submit_time"] / 1000, kind="stable")
    ms = {name: values[by_submit] for name, values in ms.items()}
    return ArtifactTrace(
        row=by_submit.astype(np.int64),
        model=tuple(columns["model_name"][i] for i in by_submit),
        gpus=np.array(columns["num_gpu"], dtype=np.int64)[by_submit],
        submit_s=ms["submit_time"] / 1000,
        duration_s=ms["duration"] / 1000,
        iterations=ms["iterations"],
        iteration_s=(ms["iteration_time"] * STRETCH) / 1000,
        data_s=ms["resource_time_0"] / 1000,
        gpu_s=ms["resource_time_1"] / 1000,
        network_s=ms["resource_time_2"] / 1000,
        priority=np.array(columns["priority"], dtype=np.int64)[by_submit],
    )


@cache
def table() -> dict[tuple[str, int], float]:
    """Start overhead in seconds by (model, GPUs), from the table that ships with plait; `*` is any other model."""
    return {(model, int(row[0])): row[1] for model, rows in Overheads.measured().rows for row in rows}


@cache
def sizes() -> tuple[int, ...]:
    """The GPU counts a job may have."""
    return tuple(sorted({gpus for model, gpus in table() if model != "*"}))


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(v) for v in values)
