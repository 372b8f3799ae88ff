"""Requests of many jobs, as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast, overload

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray, ObjectArray, objects
from plait.core.errors import InputError
from plait.core.goodput import ANY, ZERO_STAGES, BatchLimits
from plait.core.ina_request import AUTO
from plait.core.jobs.spec import Checkpoints, JobClass, JobSpec
from plait.core.resources import Resource, StageProfile

_FLOATS = {
    "submit_s": 0.0,
    "iterations": math.nan,
    "iteration_s": math.nan,
    "gpu_memory_bytes": 0.0,
    "cpus": 0.0,
    "memory_bytes": 0.0,
    "skew": math.nan,
    "gradient_bytes": math.nan,
    "deadline_s": math.nan,
    "priority": 0.0,
    "weight": 1.0,
    "restart_s": math.nan,
    "time_limit_s": math.nan,
}
#: columns of `JobSpec.batch`, all 0 for jobs that do not adapt -> its fields
BATCH_COLUMNS = {
    "batch_size": "initial",
    "max_batch_size": "most",
    "min_local_batch": "least_local",
    "max_local_batch": "most_local",
    "accumulates": "accumulation",
    "parameters": "parameters",
    "example_bytes": "example_bytes",
    "zero_stage": "zero_stage",
}
_INTS = {
    "gpus": 1,
    "min_gpus": 0,
    "max_gpus": 0,
    "job_class": 0,
    "retries": 3,
    "servers": 0,
    "checkpoints": int(Checkpoints.ON_STOP),
    **dict.fromkeys(BATCH_COLUMNS, 0),
}
_OBJECTS: dict[str, object] = {
    "id": "",
    "user": "",
    "project": "",
    "model": "",
    "like": (),
    "gpu_kinds": None,
    "tensor_bytes": None,
    "ina": AUTO,
    "scaling": (),
}

#: where each column lies in `JobBatch.floats`, `.whole` and `.texts`
FLOAT_ROW = {name: row for row, name in enumerate(_FLOATS)}
WHOLE_ROW = {name: row for row, name in enumerate(_INTS)}
_TEXT_ROW = {name: row for row, name in enumerate(_OBJECTS)}


class JobBatch:
    """Specs of many jobs as columns, in order of submission.

    Every field of `JobSpec` is an attribute holding an array of `len(batch)`; unknown numbers are NaN.
    `stage_s` has shape (jobs, resources) and NaN rows where there is no profile. The numbers of one type lie
    in one array (`floats`, `whole`: a row a column), so that batches are cut and copied in a few steps.
    """

    __slots__ = (
        "_known", "any_demands", "any_kinds", "any_losses", "any_requires", "floats", "stage_s", "texts", "whole",
    )  # fmt: skip

    def __init__(self, columns: Mapping[str, Any], stage_s: FloatArray | None = None) -> None:
        """Take columns by name; `id` is required, the rest have the defaults of `JobSpec`."""
        n = len(columns["id"])
        unknown = set(columns) - set(_FLOATS) - set(_INTS) - set(_OBJECTS)
        if unknown:
            raise InputError(f"unknown job columns {sorted(unknown)}")
        self.floats: FloatArray = np.empty((len(_FLOATS), n))
        self.whole: IntArray = np.empty((len(_INTS), n), dtype=np.int64)
        self.texts: ObjectArray = np.empty((len(_OBJECTS), n), dtype=object)
        for table, defaults in ((self.floats, _FLOATS), (self.whole, _INTS)):
            for row, (name, default) in enumerate(defaults.items()):
                table[row] = _column(columns.get(name), n, default)
        for row, (name, value) in enumerate(_OBJECTS.items()):
            given = columns.get(name)
            self.texts[row] = objects([value] * n if given is None else list(given))
        for name in ("min_gpus", "max_gpus"):
            column = self.column(name)
            column[column == 0] = self.gpus[column == 0]
        self.stage_s: FloatArray = (
            np.full((n, len(Resource)), math.nan) if stage_s is None else np.asarray(stage_s, dtype=np.float64)
        )
        self._known: dict[int, JobSpec] = {}
        #: whether any job (of the batch this was cut from) states CPUs or memory, or GPU kinds
        self.any_demands = bool(self.column("cpus").any() or self.column("memory_bytes").any())
        self.any_kinds = any(kinds is not None for kinds in self.column("gpu_kinds").tolist())
        #: whether any requires in-network aggregation
        self.any_requires = any(asked is not AUTO and asked.required for asked in self.column("ina").tolist())
        #: whether stopping any of them loses anything
        always = self.column("checkpoints") == int(Checkpoints.ON_STOP)
        self.any_losses = bool((self.column("restart_s") > 0).any() or not always.all())
        self._check()

    def _check(self) -> None:
        rules = {
            "submit_s": np.isfinite(self.submit_s),
            "gpus": self.gpus >= 1,
            "iterations": ~(self.iterations <= 0) & ~np.isinf(self.iterations),
            "iteration_s": ~(self.iteration_s <= 0) & ~np.isinf(self.iteration_s),
            "batch_size": _batches_can_be(self),
        }
        for name, ok in rules.items():
            if not ok.all():
                self[int(np.argmin(ok))]  # building the spec raises the error that names the job
                raise InputError(f"column {name} holds a value no job can have")

    @classmethod
    def of(cls, specs: Iterable[JobSpec]) -> JobBatch:
        """Columns of these specs, in this order."""
        rows = list(specs)
        columns: dict[str, list[Any]] = {}
        for name in (*_FLOATS, *_INTS, *_OBJECTS):
            if name in BATCH_COLUMNS:
                field = BATCH_COLUMNS[name]
                columns[name] = [0 if s.batch is None else int(getattr(s.batch, field)) for s in rows]
                continue
            values = [getattr(spec, name) for spec in rows]
            columns[name] = [math.nan if v is None else v for v in values] if name in _FLOATS else values
        missing = (math.nan,) * len(Resource)
        stages = np.array([s.profile.stage_s if s.profile else missing for s in rows], dtype=np.float64)
        return cls(columns, stages.reshape(len(rows), len(Resource)))

    @property
    def submit_s(self) -> FloatArray:
        """Seconds since the origin of time."""
        return cast("FloatArray", self.column("submit_s"))

    @property
    def gpus(self) -> IntArray:
        """GPUs of each gang (jobs,)."""
        return cast("IntArray", self.column("gpus"))

    @property
    def iterations(self) -> FloatArray:
        """Work in iterations; NaN unknown."""
        return cast("FloatArray", self.column("iterations"))

    @property
    def iteration_s(self) -> FloatArray:
        """Seconds of one iteration alone; NaN unknown."""
        return cast("FloatArray", self.column("iteration_s"))

    @property
    def id(self) -> ObjectArray:
        """Names given by users."""
        return cast("ObjectArray", self.column("id"))

    def column(self, name: str) -> Any:
        """The column of this name, as in `JobSpec`."""
        if name in FLOAT_ROW:
            return self.floats[FLOAT_ROW[name]]
        if name in WHOLE_ROW:
            return self.whole[WHOLE_ROW[name]]
        return self.texts[_TEXT_ROW[name]]

    def replace(self, *, stage_s: FloatArray | None = None, **columns: Any) -> JobBatch:
        """The same jobs with some columns exchanged."""
        known = {name: self.column(name) for name in (*_FLOATS, *_INTS, *_OBJECTS)}
        return JobBatch({**known, **columns}, self.stage_s if stage_s is None else stage_s)

    def __len__(self) -> int:
        return int(self.floats.shape[1])

    @overload
    def __getitem__(self, index: int) -> JobSpec: ...
    @overload
    def __getitem__(self, index: slice | IntArray | BoolArray) -> JobBatch: ...
    def __getitem__(self, index: int | slice | IntArray | BoolArray) -> JobSpec | JobBatch:
        """One job as a spec, or some jobs as a batch (a slice shares memory)."""
        if isinstance(index, (int, np.integer)):
            return self._spec(int(index))
        batch = object.__new__(JobBatch)
        batch.floats, batch.whole, batch.texts = self.floats[:, index], self.whole[:, index], self.texts[:, index]
        batch._known = {}
        batch.any_demands, batch.any_kinds, batch.any_losses = self.any_demands, self.any_kinds, self.any_losses
        batch.any_requires = self.any_requires
        batch.stage_s = self.stage_s[index]
        return batch

    def __iter__(self) -> Iterator[JobSpec]:
        return (self._spec(i) for i in range(len(self)))

    def _spec(self, i: int) -> JobSpec:
        if i not in self._known:
            row: dict[str, Any] = {name: self.column(name)[i] for name in (*_FLOATS, *_INTS, *_OBJECTS)}
            for name in _FLOATS:
                row[name] = None if math.isnan(row[name]) else float(row[name])
            for name in _INTS:
                row[name] = int(row[name])
            row["job_class"] = JobClass(row["job_class"])
            row["checkpoints"] = Checkpoints(row["checkpoints"])
            limits: dict[str, Any] = {field: row.pop(name) for name, field in BATCH_COLUMNS.items()}
            if limits["initial"]:
                row["batch"] = BatchLimits(**{**limits, "accumulation": bool(limits["accumulation"])})
            stage = self.stage_s[i]
            profile = None
            if not math.isnan(stage[0]) and row["iteration_s"] is not None:
                profile = StageProfile.from_sequence(stage.tolist(), row["iteration_s"])
            self._known[i] = JobSpec(**row, profile=profile)
        return self._known[i]


def placement_skew(share: FloatArray, servers: IntArray) -> FloatArray:
    """How much a job suffers from spreading, 0 to 1: of its largest tensor's `share` and its parameter `servers`.

    Without servers the share itself. With them the part of the time in which the others wait for the busiest server,
    which a tensor that is not divided may overload (Tiresias, section 3.3).

    >>> placement_skew(np.array([0.7, 0.7, 0.1]), np.array([0, 4, 4])).round(2).tolist()
    [0.7, 0.64, 0.0]
    """
    return np.where(servers > 0, 1.0 - 1.0 / np.maximum(servers * share, 1.0), share)


def _batches_can_be(jobs: JobBatch) -> BoolArray:
    """Whether each job has no limits of its batch, or limits that `BatchLimits` and `JobSpec` accept."""
    initial, most = jobs.column("batch_size"), jobs.column("max_batch_size")
    least_local, most_local = jobs.column("min_local_batch"), jobs.column("max_local_batch")
    some = (initial >= 1) & (initial <= most) & (least_local >= 1) & (least_local <= most_local)
    some &= (initial >= least_local) & ((initial <= most_local) | (jobs.column("accumulates") != 0))
    some &= -(-initial // np.maximum(most_local, 1)) * (least_local - 1) < most
    some &= jobs.column("min_gpus") <= most // np.maximum(least_local, 1)
    some &= np.isin(jobs.column("zero_stage"), (ANY, *ZERO_STAGES))
    for_none = [jobs.column(name) == 0 for name in BATCH_COLUMNS]
    possible: BoolArray = np.logical_and.reduce(for_none) | some
    return possible


def _column(given: Any, n: int, default: float) -> Any:
    if given is None:
        return default
    array: Any = np.asarray(given)
    if array.shape != (n,):
        raise InputError(f"a job column has shape {array.shape}, expected ({n},)")
    return array
