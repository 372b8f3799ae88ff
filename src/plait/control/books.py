"""The controller's memory: one growing array a column, one row a job, finished jobs included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray, IntArray, objects
from plait.core.cluster import Cluster
from plait.core.jobs import FLOAT_ROW, WHOLE_ROW, JobBatch, JobSpec, Phase
from plait.core.resources import Resource

#: columns of the job's life: name -> (value of a new job, dtype)
LIFE_COLUMNS: dict[str, tuple[Any, Any]] = {
    "phase": (int(Phase.WAITING), np.int64),
    "iterations_done": (0.0, np.float64),
    "attained_gpu_s": (0.0, np.float64),
    "run_s": (0.0, np.float64),
    "shared_speed": (math.nan, np.float64),
    "pending_since_s": (0.0, np.float64),
    "first_start_s": (math.nan, np.float64),
    "last_start_s": (math.nan, np.float64),
    "end_s": (math.nan, np.float64),
    "starts": (0, np.int64),
    "preemptions": (0, np.int64),
    "failures": (0, np.int64),
    "promotions": (0, np.int64),
    "rank": (1 << 60, np.int64),
    "level": (-1, np.int64),
    "slot": (-1, np.int64),
    "attained_base_gpu_s": (0.0, np.float64),
    "run_base_s": (0.0, np.float64),
    "wait_s": (0.0, np.float64),
    "competing_base": (0.0, np.float64),
    "user_number": (0, np.int64),
    "group_number": (0, np.int64),
    "stamp": (0, np.int64),  # scratch of the plan review
    "reason": ("", object),
}


class Books:
    """Columns of all jobs ever submitted; `columns[name]` may be longer than `count`."""

    def __init__(self) -> None:
        """Empty books."""
        self.count = 0
        self.departed: IntArray = np.zeros(64, dtype=np.int64)  # jobs in order of departure; see `departures`
        self.departures = 0
        self.batches: list[tuple[int, JobBatch]] = []
        self.columns: dict[str, Any] = {
            "stage_s": np.zeros((0, len(Resource))),
            "gpu_kinds": np.empty(0, dtype=object),
            "has_demands": np.zeros(1, dtype=bool),
            "has_kinds": np.zeros(1, dtype=bool),
        }
        self._floats: FloatArray = np.empty((len(FLOAT_ROW), 0))
        self._whole: IntArray = np.empty((len(WHOLE_ROW), 0), dtype=np.int64)
        self._name_rows()
        for name, (value, dtype) in LIFE_COLUMNS.items():
            self.columns[name] = np.full(0, value, dtype=dtype)
        self._users: dict[str, int] = {}
        self._groups: dict[str, int] = {}

    def append(self, batch: JobBatch, competing: float) -> IntArray:
        """Add new jobs; returns their numbers."""
        first, last = self.count, self.count + len(batch)
        if last > len(self.columns["phase"]):
            self._grow(last)
        numbers = np.arange(first, last, dtype=np.int64)
        columns = self.columns
        self._floats[:, first:last] = batch.floats
        self._whole[:, first:last] = batch.whole
        columns["gpu_kinds"][first:last] = batch.column("gpu_kinds") if batch.any_kinds else None
        columns["stage_s"][first:last] = batch.stage_s
        columns["pending_since_s"][first:last] = batch.submit_s
        columns["competing_base"][first:last] = competing
        for name, known in (("user", self._users), ("group", self._groups)):
            codes = [known.setdefault(text, len(known)) for text in batch.column(name).tolist()]
            columns[f"{name}_number"][first:last] = codes
        if batch.any_demands:
            columns["has_demands"][0] = True
        if batch.any_kinds:
            columns["has_kinds"][0] = True
        self.batches.append((first, batch))
        self.count = last
        return numbers

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * len(self.columns["phase"]), 64)
        for attribute in ("_floats", "_whole"):
            old = getattr(self, attribute)
            table = np.empty((old.shape[0], capacity), dtype=old.dtype)
            table[:, : self.count] = old[:, : self.count]
            setattr(self, attribute, table)
        self._name_rows()
        for name in (*LIFE_COLUMNS, "stage_s", "gpu_kinds"):
            old = self.columns[name]
            new = np.empty((capacity, *old.shape[1:]), dtype=old.dtype)
            new[: self.count] = old[: self.count]
            if name in LIFE_COLUMNS:
                new[self.count :] = LIFE_COLUMNS[name][0]
            self.columns[name] = new

    def _name_rows(self) -> None:
        """The columns of the spec are rows of two tables, so that a batch is copied in two steps."""
        for name, row in FLOAT_ROW.items():
            self.columns[name] = self._floats[row]
        for name, row in WHOLE_ROW.items():
            self.columns[name] = self._whole[row]

    def depart(self, jobs: IntArray) -> None:
        """Note that these jobs have left the cluster for good."""
        needed = self.departures + len(jobs)
        if needed > len(self.departed):
            self.departed = np.concatenate([self.departed, np.zeros(needed + len(self.departed), dtype=np.int64)])
        self.departed[self.departures : needed] = jobs
        self.departures = needed

    def departed_gpu_s(self, count: int) -> FloatArray:
        """Total service of the first `count` jobs that left, GPU-seconds."""
        service: FloatArray = self.columns["attained_gpu_s"][self.departed[:count]]
        return service

    def spec(self, number: int) -> JobSpec:
        """What the user said about a job."""
        lo, hi = 0, len(self.batches)
        while hi - lo > 1:  # the last batch that starts at or before `number`
            mid = (lo + hi) // 2
            lo, hi = (mid, hi) if self.batches[mid][0] <= number else (lo, mid)
        first, batch = self.batches[lo]
        return batch[number - first]

    def __len__(self) -> int:
        """Number of jobs ever submitted."""
        return self.count

    def name(self, number: int) -> str:
        """Job's name and number as error messages show them."""
        return f"job {self.spec(number).id!r} (number {number})"

    def to_json(self) -> dict[str, Any]:
        """All that `from_json` needs, as plain lists."""
        from plait.control.messages import spec_to_json

        life: dict[str, list[Any]] = {}
        for name in (*LIFE_COLUMNS, "iteration_s"):
            column = self.columns[name][: self.count]
            life[name] = [None if isinstance(v, float) and math.isnan(v) else v for v in column.tolist()]
        stages = [[None if math.isnan(v) else v for v in row] for row in self.columns["stage_s"][: self.count].tolist()]
        return {
            "specs": [spec_to_json(self.spec(i)) for i in range(self.count)],
            "life": life,
            "stage_s": stages,
            "users": list(self._users),
            "groups": list(self._groups),
            "departed": self.departed[: self.departures].tolist(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Books:
        """The books that `to_json` wrote."""
        from plait.control.messages import spec_from_json

        books = cls()
        specs = [spec_from_json(row) for row in data["specs"]]
        if specs:
            books.append(JobBatch.of(specs), 0.0)
        for name, values in data["life"].items():
            column = books.columns[name]
            filled = [math.nan if v is None else v for v in values]
            column[: books.count] = objects(filled) if column.dtype == object else filled
        for i, row in enumerate(data["stage_s"]):
            books.columns["stage_s"][i] = [math.nan if v is None else v for v in row]
        books.depart(np.array(data["departed"], dtype=np.int64))
        books._users = {u: i for i, u in enumerate(data["users"])}
        books._groups = {g: i for i, g in enumerate(data["groups"])}
        return books


def refusal(spec: JobSpec, cluster: Cluster) -> str | None:
    """Why a job can never run on this cluster, or None if it can."""
    kinds = cluster.kinds if spec.gpu_kinds is None else spec.gpu_kinds
    known = [k for k in kinds if k in cluster.kinds]
    if not known:
        return f"wants GPU kinds {', '.join(kinds)}; this cluster has {', '.join(cluster.kinds)}"
    best = 0
    for kind in known:
        fits = 0
        for node in cluster.nodes:
            if node.gpu_kind == kind:
                fits += _fits(spec, node.gpus, node.cpus, node.memory_bytes)
        best = max(best, fits)
    if best < spec.min_gpus:
        what = "GPUs" if not (spec.cpus or spec.memory_bytes) else "GPUs with its CPUs and memory"
        return f"needs {spec.min_gpus} {what} of one kind; the largest gang that fits this cluster is {best}"
    return None


def _fits(spec: JobSpec, gpus: int, cpus: float, memory_bytes: float) -> int:
    if spec.cpus and cpus:
        gpus = min(gpus, int(cpus * spec.gpus / spec.cpus + 1e-9))
    if spec.memory_bytes and memory_bytes:
        gpus = min(gpus, int(memory_bytes * spec.gpus / spec.memory_bytes + 1e-9))
    return gpus
