"""The controller's memory: one growing array a column, one row a job, finished jobs included.

Of a job that has ended only its service, kinds, duration, owner and times are still needed (by policies that learn
from them or share by past use), so a store may drop such jobs: numbers stay as they are, and `past_gpu_s`,
`past_kinds`, `past_s` and `past_use` keep these.
"""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from plait.control.plan_check.grants import never_granted
from plait.core.arrays import FloatArray, IntArray, objects
from plait.core.cluster import Cluster
from plait.core.codec.values import floats, plain_array
from plait.core.goodput import Estimate, shortage
from plait.core.jobs import FLOAT_ROW, WHOLE_ROW, JobBatch, JobSpec, Phase, gpu_use, work_done_s
from plait.core.resources import CPU_KIND, Resource
from plait.core.words import counted
from plait.grouping.interference import PairReports

_LAST_OPEN = int(Phase.RUNNING)

#: columns of the job's life: name -> (value of a new job, dtype)
LIFE_COLUMNS: dict[str, tuple[Any, Any]] = {
    "phase": (int(Phase.WAITING), np.int64),
    "iterations_done": (0.0, np.float64),
    "attained_gpu_s": (0.0, np.float64),
    "run_s": (0.0, np.float64),
    "shared_speed": (math.nan, np.float64),
    "slow_since_s": (math.nan, np.float64),
    "packed_s": (math.nan, np.float64),
    "spread_s": (math.nan, np.float64),
    "pending_since_s": (0.0, np.float64),
    "first_start_s": (math.nan, np.float64),
    "last_start_s": (math.nan, np.float64),
    "end_s": (math.nan, np.float64),
    "starts": (0, np.int64),
    "preemptions": (0, np.int64),
    "failures": (0, np.int64),
    "promotions": (0, np.int64),
    "position": (1 << 60, np.int64),
    "level": (-1, np.int64),
    "running_group": (-1, np.int64),
    "attained_base_gpu_s": (0.0, np.float64),
    "run_base_s": (0.0, np.float64),
    "wait_s": (0.0, np.float64),
    "competing_base": (0.0, np.float64),
    "saved_run_s": (0.0, np.float64),
    "keep_until_s": (math.nan, np.float64),
    "lost_s": (0.0, np.float64),
    "user_number": (0, np.int64),
    "project_number": (0, np.int64),
    "stamp": (0, np.int64),  # scratch of the plan review
    "reason": ("", object),
}


#: columns with several numbers a job
_WIDE = ("stage_s", "goodput")
#: columns that follow from what users said
_DERIVED = ("gpu_kinds", "kinds")
#: columns that are left out of snapshots as long as no job has a value
_RARE = ("slow_since_s", "packed_s", "spread_s")
#: columns of the spec that what was measured replaces
_MEASURED = ("iteration_s", "checkpoints", "restart_s", "gpu_memory_bytes")
#: Kinds of jobs whose measured memory is kept.
MOST_PEAKS = 4096
#: Weight of the last job in the speed of its kind of GPU.
SPEED_WEIGHT = 0.25
#: one flag for all jobs: whether the column differs from its default anywhere, so empty columns are skipped
_FLAGS = ("has_demands", "has_kinds", "has_losses")


class JobStore:
    """Columns of all jobs ever submitted; `columns[name]` may be longer than `count`."""

    def __init__(self) -> None:
        self.count = 0
        self.departed: IntArray = np.zeros(64, dtype=np.int64)  # jobs in order of departure; see `departures`
        self.departures = 0
        self._past_gpu_s: FloatArray = np.zeros(0)  # service of the first that departed; nothing else of them is kept
        self._past_kinds: IntArray = np.zeros((0, 6), dtype=np.int64)  # of the same
        self._past_s: FloatArray = np.zeros(0)
        self._past_use: FloatArray = np.zeros((0, 4))
        self.memo: dict[str, Any] = {}
        self.pair_reports = PairReports()
        self.peaks: dict[int, float] = {}  # GPU memory measured of jobs of the closest kind, bytes, the last kinds
        self.kind_speeds: dict[str, float] = {}  # of kinds of GPU, relative to known iteration times
        self._sorted = 0, np.zeros(0), np.zeros(1)  # of how many departures; what `departed_sizes` returns for them
        self.batches: list[tuple[int, JobBatch]] = []
        self.requiring: set[int] = set()  # jobs that require in-network aggregation and have not left
        self._updated: dict[int, JobSpec] = {}  # of jobs that were changed since they were submitted
        self._chosen: list[JobSpec] = []  # of the first jobs, where they do not come in batches; see `select`
        self.columns: dict[str, Any] = {
            "stage_s": np.zeros((0, len(Resource))),
            "goodput": np.zeros((0, len(Estimate))),
            "gpu_kinds": np.empty(0, dtype=object),
            "kinds": np.zeros((0, 6), dtype=np.int64),
            **{name: np.zeros(1, dtype=bool) for name in _FLAGS},
        }
        self._floats: FloatArray = np.empty((len(FLOAT_ROW), 0))
        self._whole: IntArray = np.empty((len(WHOLE_ROW), 0), dtype=np.int64)
        self._name_rows()
        for name, (value, dtype) in LIFE_COLUMNS.items():
            self.columns[name] = np.full(0, value, dtype=dtype)
        self._users: dict[str, int] = {}
        self._projects: dict[str, int] = {}
        self._kinds: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def append(self, batch: JobBatch, competing: float) -> IntArray:
        """Add new jobs; returns their numbers."""
        first, last = self.count, self.count + len(batch)
        if last > len(self.columns["phase"]):
            self._grow(last)
        self._place(slice(first, last), batch)
        self.columns["competing_base"][first:last] = competing
        self.batches.append((first, batch))
        self.count = last
        return np.arange(first, last, dtype=np.int64)

    def note_peak(self, job: int, peak_bytes: float) -> None:
        """Keep what a job was measured to need of a GPU's memory, for later ones of the closest kind."""
        kind = int(self.columns["kinds"][job, 0])
        if kind:
            self.peaks[kind] = max(self.peaks.pop(kind, 0.0), peak_bytes)
            if len(self.peaks) > MOST_PEAKS:
                del self.peaks[next(iter(self.peaks))]

    def note_kind_speed(self, kind: str, speed: float) -> None:
        """Keep how fast a job was on this kind of GPU; earlier ones count less with each later one."""
        before = self.kind_speeds.get(kind, speed)
        self.kind_speeds[kind] = before + SPEED_WEIGHT * (speed - before)

    def expect_peaks(self, jobs: IntArray, cluster: Cluster) -> None:
        """Take for jobs that state no GPU memory what earlier ones of the closest kind needed, if a GPU has that."""
        memory_bytes = self.columns["gpu_memory_bytes"]
        for job in jobs[memory_bytes[jobs] == 0].tolist() if self.peaks else ():
            mask, sizes = cluster.kind_mask(self.columns["gpu_kinds"][job]), cluster.kind_gpu_memory_bytes.tolist()
            most_bytes = max((size for i, size in enumerate(sizes) if mask >> i & 1), default=0.0)
            peak_bytes = self.peaks.get(int(self.columns["kinds"][job, 0]), 0.0)
            memory_bytes[job] = peak_bytes if peak_bytes <= most_bytes else 0.0

    def update(self, jobs: IntArray, batch: JobBatch) -> None:
        """Replace the requests of these jobs (numbers).

        Measurements stay, except for the speed and memory of jobs of another size, which are taken from `batch`.
        """
        columns = self.columns
        as_large = columns["gpus"][jobs] == batch.gpus
        kept = [(name, jobs) for name in ("checkpoints", "restart_s", "goodput", "pending_since_s")]
        kept += [(name, jobs[as_large]) for name in ("iteration_s", "stage_s")]
        kept.append(("gpu_memory_bytes", jobs[as_large & (batch.column("gpu_memory_bytes") == 0)]))
        values = [columns[name][rows] for name, rows in kept]
        self._place(jobs, batch)
        for (name, rows), value in zip(kept, values, strict=True):
            columns[name][rows] = value
        self._updated.update(zip(jobs.tolist(), batch, strict=True))

    def _place(self, rows: slice | IntArray, batch: JobBatch) -> None:
        """Write the requests of these jobs into their rows."""
        columns = self.columns
        self._floats[:, rows] = batch.floats
        self._whole[:, rows] = batch.whole
        columns["gpu_kinds"][rows] = batch.column("gpu_kinds") if batch.any_kinds else None
        columns["stage_s"][rows] = batch.stage_s
        columns["goodput"][rows] = math.nan
        columns["pending_since_s"][rows] = batch.submit_s
        for name, known in (("user", self._users), ("project", self._projects)):
            codes = [known.setdefault(text, len(known)) for text in batch.column(name).tolist()]
            columns[f"{name}_number"][rows] = codes
        alike = (batch.column(name).tolist() for name in ("user", "model", "gpus", "like"))
        kinds = [self._kinds.get(key) or self._kinds_of(*key) for key in zip(*alike, strict=True)]
        columns["kinds"][rows] = np.array(kinds, dtype=np.int64).reshape(-1, 6)
        if batch.any_requires:
            numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
            asked = batch.column("ina").tolist()
            self.requiring.update(number for number, one in zip(numbers, asked, strict=True) if one.required)
        if batch.any_demands:
            columns["has_demands"][0] = True
        if batch.any_kinds:
            columns["has_kinds"][0] = True
        if batch.any_losses:
            columns["has_losses"][0] = True

    @property
    def project_numbers(self) -> Mapping[str, int]:
        """Numbers of projects by their names, as the column `project_number` has them."""
        return self._projects

    def _kinds_of(self, user: str, model: str, gpus: int, like: tuple[str, ...]) -> tuple[int, ...]:
        """Numbers of the kinds of such jobs (`JobTable.kinds`), equal in all stores."""
        found = (
            _number("run", user, like[0], gpus) if like else 0,
            _number("script", user, like[-1]) if like else 0,
            _number("model", model, gpus) if model else 0,
            _number("size", user, gpus) if user else 0,
            _number("user", user) if user else 0,
            _number("gpus", gpus),
        )
        self._kinds[user, model, gpus, like] = found
        return found

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * len(self.columns["phase"]), 64)
        for attribute in ("_floats", "_whole"):
            old = getattr(self, attribute)
            table = np.empty((old.shape[0], capacity), dtype=old.dtype)
            table[:, : self.count] = old[:, : self.count]
            setattr(self, attribute, table)
        self._name_rows()
        for name in (*LIFE_COLUMNS, *_WIDE, *_DERIVED):
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
        """Note that these jobs have ended or failed and will not run again."""
        known = self.departures - len(self._past_gpu_s)
        needed = known + len(jobs)
        if needed > len(self.departed):
            self.departed = np.concatenate([self.departed, np.zeros(needed + len(self.departed), dtype=np.int64)])
        self.departed[known:needed] = jobs
        self.departures += len(jobs)
        if self.requiring:
            self.requiring.difference_update(jobs.tolist())

    def departed_gpu_s(self, count: int, first: int = 0) -> FloatArray:
        """Total service of the jobs that left, from number `first` to before `count` in order, GPU-seconds."""
        past = self._past_gpu_s
        if count <= len(past):
            return past[first:count]
        since = max(first - len(past), 0)
        service: FloatArray = self.columns["attained_gpu_s"][self.departed[since : count - len(past)]]
        return np.concatenate([past[first:], service]) if first < len(past) else service

    def departed_sizes(self, count: int) -> tuple[FloatArray, FloatArray]:
        """Service of the first `count` jobs that left, ascending, without jobs that got none; and its running sums."""
        known, sizes, sums = self._sorted
        if known != count:
            if known > count:
                known, sizes = 0, np.zeros(0)
            new = np.sort(self.departed_gpu_s(count, known))
            new = new[np.searchsorted(new, 0.0, side="right") :]
            sizes = np.insert(sizes, np.searchsorted(sizes, new), new) if len(sizes) else new
            sums = np.concatenate([[0.0], np.cumsum(sizes)])
            sizes.flags.writeable = sums.flags.writeable = False
            self._sorted = count, sizes, sums
        return sizes, sums

    def ended(self, first: int) -> tuple[IntArray, FloatArray]:
        """Kinds and durations of departed jobs, as `JobTable.ended` returns them."""
        past = len(self._past_s)
        jobs = self.departed[max(first - past, 0) : self.departures - past]
        kinds, seconds = self.columns["kinds"][jobs], work_done_s(self.columns, jobs)
        if first >= past:
            return kinds, seconds
        return np.concatenate([self._past_kinds[first:], kinds]), np.concatenate([self._past_s[first:], seconds])

    def departed_use(self, first: int) -> tuple[FloatArray, FloatArray]:
        """Use of GPUs by departed jobs, as `JobTable.departed_use` returns it."""
        past = len(self._past_use)
        jobs = self.departed[max(first - past, 0) : self.departures - past]
        use = np.concatenate([self._past_use[first:], gpu_use(self.columns, jobs)])
        return use, self.departed_gpu_s(self.departures, first)

    def _past(self, count: int) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
        """Copies of service, kinds, durations and use of the first `count` jobs that left."""
        kinds, seconds = self.ended(0)
        use, _ = self.departed_use(0)
        return self.departed_gpu_s(count).copy(), kinds[:count].copy(), seconds[:count].copy(), use[:count].copy()

    def spec(self, number: int) -> JobSpec:
        """The request of a job; raises `LookupError` if it is no longer kept."""
        if (updated := self._updated.get(number)) is not None:
            return updated
        if number < len(self._chosen):
            return self._chosen[number]
        lo, hi = 0, len(self.batches)
        while hi - lo > 1:  # the last batch that starts at or before `number`
            mid = (lo + hi) // 2
            lo, hi = (mid, hi) if self.batches[mid][0] <= number else (lo, mid)
        first, batch = self.batches[lo] if self.batches else (0, None)
        if batch is None or not 0 <= number - first < len(batch):
            raise LookupError(f"job number {number} has ended, and its request is not kept")
        return batch[number - first]

    def forget(self, recent: int) -> None:
        """Keep only the service of jobs that have left, except for the `recent` last ones."""
        kept = self.last_departed(recent)
        past = self._past(self.departures - len(kept))
        self._past_gpu_s, self._past_kinds, self._past_s, self._past_use = past
        self.departed = kept
        phase, wanted = self.columns["phase"], set(kept.tolist())
        gone = phase[: self.count] > _LAST_OPEN
        gone[kept] = False
        for name in ("goodput", "packed_s", "spread_s"):  # policies learn from these, and a snapshot lacks them
            self.columns[name][: self.count][gone] = math.nan
        self.batches = [
            (first, batch)
            for first, batch in self.batches
            if (phase[first : first + len(batch)] <= _LAST_OPEN).any()
            or not wanted.isdisjoint(range(first, first + len(batch)))
        ]
        self._updated = {n: spec for n, spec in self._updated.items() if phase[n] <= _LAST_OPEN or n in wanted}

    def __len__(self) -> int:
        return self.count

    def name(self, number: int) -> str:
        """Job's name and number as error messages show them."""
        try:
            return f"job {self.spec(number).id!r} (number {number})"
        except LookupError:
            return f"job number {number}"

    def to_json(self) -> dict[str, Any]:
        """All that `from_json` needs, as plain lists."""
        return self.frozen()()

    def frozen(self, keep: IntArray | None = None, recent: int = 0) -> Callable[[], dict[str, Any]]:
        """Copy what may change; the function returned makes plain lists of it, in any thread.

        `keep`: numbers of jobs, growing, to keep; these must include jobs that have not left, and the `recent` ones
        that left last. Of the others their number and service stay. Default: all.
        """
        from plait.control.messages import spec_to_json

        numbers = self._known() if keep is None else keep
        columns = {name: self.columns[name][numbers] for name in (*LIFE_COLUMNS, *_MEASURED, *_WIDE)}
        specs = [self._spec_if_kept(number) for number in numbers.tolist()]
        departed = self.last_departed(self.count if keep is None else recent)
        past_gpu_s, past_kinds, past_s, past_use = self._past(self.departures - len(departed))
        users, projects, count = list(self._users), list(self._projects), self.count
        pair_reports, peaks, kind_speeds = self.pair_reports.copy(), dict(self.peaks), dict(self.kind_speeds)
        flags = [bool(self.columns[name][0]) for name in _FLAGS]

        def plain() -> dict[str, Any]:
            out = {
                "count": count,
                "specs": [spec_to_json(spec) for spec in specs],
                "life": {
                    name: plain_array(column)
                    for name, column in columns.items()
                    if name not in _WIDE and not (name in _RARE and np.isnan(column).all())
                },
                "stage_s": plain_array(columns["stage_s"]),
                "goodput": _known_rows(columns["goodput"]),
                "users": users,
                "projects": projects,
                "flags": flags,
                "departed": departed.tolist(),
            }
            if pair_reports.sets:
                out["pair_reports"] = pair_reports.to_json()
            if peaks:
                out["peaks"] = peaks
            if kind_speeds:
                out["kind_speeds"] = kind_speeds
            if len(numbers) < count:
                out["numbers"] = numbers.tolist()
                out["past_gpu_s"] = base64.b64encode(past_gpu_s.astype("<f8").tobytes()).decode("ascii")
                out["past_s"] = _packed(past_s.astype("<f8"))
                out["past_kinds"] = _packed(past_kinds.astype("<i8").T)
                out["past_use"] = _packed(past_use.astype("<f8").T)
            return out

        return plain

    def _known(self) -> IntArray:
        parts = [np.arange(len(self._chosen))] + [np.arange(first, first + len(b)) for first, b in self.batches]
        return np.concatenate(parts).astype(np.int64)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> JobStore:
        """The store that `to_json` wrote."""
        from plait.control.messages import spec_from_json

        job_store = cls()
        specs = [spec_from_json(row) for row in data["specs"]]
        count = int(data.get("count", len(specs)))
        numbers = np.array(data.get("numbers", range(count)), dtype=np.int64)
        job_store._grow(max(count, 1))
        job_store.count = count
        job_store.columns["phase"][:count] = int(Phase.FINISHED)  # ends of left-out jobs are not kept
        if specs:
            batch = JobBatch.of(specs)
            job_store._place(numbers, batch)
            cuts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
            job_store.batches = [(int(numbers[lo]), batch[lo:hi]) for lo, hi in pairwise(cuts)]
        for name, values in data["life"].items():
            column = job_store.columns[name]
            filled = floats(values)
            column[numbers] = objects(filled) if column.dtype == object else filled
        for number, row in zip(numbers.tolist(), data["stage_s"], strict=True):
            job_store.columns["stage_s"][number] = floats(row)
        for place, row in data.get("goodput", ()):
            job_store.columns["goodput"][numbers[place]] = floats(row)
        past = base64.b64decode(data.get("past_gpu_s", ""))
        job_store._past_gpu_s = np.frombuffer(past, dtype="<f8").astype(np.float64)
        job_store.departures = len(job_store._past_gpu_s)
        seconds = np.frombuffer(_unpacked(data.get("past_s", "")), dtype="<f8").astype(np.float64)
        kinds = np.frombuffer(_unpacked(data.get("past_kinds", "")), dtype="<i8").reshape(-1, max(len(seconds), 1))
        job_store._past_s, job_store._past_kinds = seconds, np.zeros((len(seconds), 6), dtype=np.int64)
        job_store._past_kinds[:, : len(kinds)] = kinds.T  # an older snapshot lacks the last kinds: they are unknown
        # An older snapshot lacks it: these jobs count as if they had used nothing.
        use = np.frombuffer(_unpacked(data["past_use"]), dtype="<f8") if data.get("past_use") else None
        job_store._past_use = np.full((job_store.departures, 4), [0.0, 0.0, math.nan, math.nan])
        if use is not None:
            job_store._past_use[:] = use.reshape(4, -1).T
        job_store.depart(np.array(data["departed"], dtype=np.int64))
        job_store.pair_reports = PairReports.from_json(data.get("pair_reports", {}))
        job_store.peaks = {int(kind): float(peak) for kind, peak in data.get("peaks", {}).items()}
        job_store.kind_speeds = dict(data.get("kind_speeds", {}))
        job_store._users = {u: i for i, u in enumerate(data["users"])}
        job_store._projects = {p: i for i, p in enumerate(data["projects"])}
        for name, flag in zip(_FLAGS, data.get("flags", ()), strict=False):
            job_store.columns[name][0] = flag
        return job_store

    def select(self, numbers: IntArray, departed: IntArray) -> JobStore:
        """A separate store with these jobs only (numbers, growing), renumbered from 0 in the same order.

        `departed`: the ones of them that left last, in order of departure; of all earlier ones only the service is
        known.
        """
        job_store = JobStore()
        job_store._grow(max(len(numbers), 1))
        job_store.count = n = len(numbers)
        job_store._floats[:, :n], job_store._whole[:, :n] = self._floats[:, numbers], self._whole[:, numbers]
        for name in (*LIFE_COLUMNS, *_WIDE, *_DERIVED):
            job_store.columns[name][:n] = self.columns[name][numbers]
        for name in _FLAGS:
            job_store.columns[name][0] = self.columns[name][0]
        job_store._users, job_store._projects = dict(self._users), dict(self._projects)
        job_store._chosen = [self._spec_if_kept(number) for number in numbers.tolist()]
        job_store.requiring = {i for i, number in enumerate(numbers.tolist()) if number in self.requiring}
        past = self._past(self.departures - len(departed))
        job_store._past_gpu_s, job_store._past_kinds, job_store._past_s, job_store._past_use = past
        job_store.departures = len(job_store._past_gpu_s)
        job_store.pair_reports, job_store.peaks = self.pair_reports.copy(), dict(self.peaks)
        job_store.kind_speeds = dict(self.kind_speeds)
        job_store.depart(np.searchsorted(numbers, departed))
        return job_store

    def _spec_if_kept(self, number: int) -> JobSpec:
        try:
            return self.spec(number)
        except LookupError:  # it has left, and only the running groups still have its number
            return JobSpec(id=f"number {number}")

    def last_departed(self, most: int) -> IntArray:
        """Up to so many jobs that left last and of which everything is still known, in order of departure."""
        known = self.departures - len(self._past_gpu_s)
        return self.departed[max(known - most, 0) : known].copy()


def _number(*parts: object) -> int:
    """A number that is equal for equal parts, in every process; hardly ever for others."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little", signed=True)


def _packed(values: FloatArray | IntArray) -> str:
    """Compressed: kinds and durations of many jobs are alike."""
    return base64.b64encode(zlib.compress(values.tobytes(), 1)).decode("ascii")


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text)) if text else b""


def _known_rows(table: FloatArray) -> list[tuple[int, list[Any]]]:
    """Rows in which anything is known, each with its place: most jobs have none."""
    known = np.flatnonzero(~np.isnan(table).all(axis=1))
    return list(zip(known.tolist(), plain_array(table[known]), strict=True))


def refusal(spec: JobSpec, cluster: Cluster, room: int = 0) -> str | None:
    """Why a job can never run on this cluster, or None if it can.

    `room`: gangs of up to this many GPUs may fit once the cluster has grown by nodes of yet unknown kinds and sizes.
    """
    if (why := never_granted(spec, cluster)) is not None:
        return why
    if spec.min_gpus <= room:
        return None
    mask = cluster.kind_mask(spec.gpu_kinds)
    kinds = cluster.kinds if spec.gpu_kinds is None else spec.gpu_kinds
    known = [kind for i, kind in enumerate(cluster.kinds) if mask >> i & 1]
    if not known and spec.gpu_kinds == (CPU_KIND,):
        return "needs no GPU, and this cluster has no CPU slots; add some with: plait up --cpu-slots N"
    if not known:
        present = ", ".join(kind for kind in cluster.kinds if kind != CPU_KIND) or "none"
        if spec.gpu_kinds is None:
            return f"needs {counted(spec.min_gpus, 'GPU')}; this cluster has CPU slots alone, for jobs with -g 0"
        return f"wants GPU kinds {', '.join(kinds)}; this cluster has {present}"
    most = {k: float(cluster.kind_gpu_memory_bytes[cluster.kinds.index(k)]) for k in known}
    known = [k for k in known if spec.gpu_memory_bytes <= most[k] * (1 + 1e-9)]
    if not known:
        there = ", ".join(f"{memory / 1e9:g} GB ({kind})" for kind, memory in most.items())
        return f"needs {spec.gpu_memory_bytes / 1e9:g} GB of GPU memory on each GPU; the GPUs it may use have {there}"
    if spec.batch is not None:
        # Policies that do not choose sizes start a job at the size that it requests, so a plan of that has to fit.
        lacking = {k: shortage(spec.batch, spec.gpus, most[k]) for k in known}
        known = [k for k in known if lacking[k] is None]
        if not known:
            return "; ".join(f"{kind}: {why}" for kind, why in lacking.items())
    best = room
    for kind in known:
        fits = (
            count * usable_gpus(spec, gpus, cpus, memory_bytes)
            for (of_kind, gpus, cpus, memory_bytes), count in cluster.shapes.items()
            if of_kind == kind
        )
        best = max(best, sum(fits))
    if best < spec.min_gpus:
        unit = "CPU slot" if known == [CPU_KIND] else "GPU"
        shapes = [shape for shape in cluster.shapes if shape[0] in known]
        wanted = (
            ("CPUs", spec.cpus, max(cpus for _, _, cpus, _ in shapes)),
            ("GB of memory", spec.memory_bytes / 1e9, max(memory_bytes for *_, memory_bytes in shapes) / 1e9),
        )
        each = [f"{total / spec.gpus:g} {what} (nodes have up to {most:g})" for what, total, most in wanted if total]
        more = f", each with {' and '.join(each)}" if each else ""
        return (
            f"needs {counted(spec.min_gpus, unit)} of one kind{more}; the largest gang that fits this cluster is {best}"
        )
    return None


def usable_gpus(spec: JobSpec, gpus: int, cpus: float, memory_bytes: float) -> int:
    """How many of a node's `gpus` a gang can use, as its `cpus` (cores) and `memory_bytes` allow."""
    if spec.cpus and cpus:
        gpus = min(gpus, int(cpus * spec.gpus / spec.cpus + 1e-9))
    if spec.memory_bytes and memory_bytes:
        gpus = min(gpus, int(memory_bytes * spec.gpus / spec.memory_bytes + 1e-9))
    return gpus
