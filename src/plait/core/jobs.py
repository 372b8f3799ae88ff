"""Jobs: what the user said (`JobSpec`, `JobBatch`) and what is known now (`JobStatus`, `JobTable`).

A single job is a frozen object; many jobs are columns. The two say the same: `batch[i]` is a `JobSpec`,
`table[i]` a `JobStatus`. Jobs have a name (`id`, the user's) and a number (dense, in order of submission),
and events, commands and plans speak of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar, cast, overload

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray, ObjectArray, objects
from plait.core.codec import form
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.core.jit import kernel
from plait.core.preemption_kernels import stop_losses
from plait.core.resources import Resource, StageProfile, skew


class JobClass(IntEnum):
    """Whether a job owns its GPUs or lives from what others leave (AntMan, section 3)."""

    GUARANTEED = 0
    OPPORTUNISTIC = 1


class Checkpoints(IntEnum):
    """What of a job's work outlives a stop.

    NEVER: nothing, it begins again. PERIODIC: what its last checkpoint holds; it saves when it likes. ON_STOP: all, as
    it saves when it is told to stop.
    """

    NEVER = 0
    PERIODIC = 1
    ON_STOP = 2


class Phase(IntEnum):
    """Where a job is in its life; the last three are final."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4


#: phase -> phases it may go to. Anything else is a bug and raises. A waiting job finishes if it does its last iteration
#: while it is being stopped.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.FINISHED, Phase.FAILED, Phase.CANCELLED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.FINISHED, Phase.FAILED, Phase.CANCELLED}),
    Phase.FINISHED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.CANCELLED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the user said about a job; never changes.

    `gpus` is the gang: all at once or none. `iterations` is the work, `iteration_s` the seconds of one
    iteration alone at the asked size (from `profile` if not given); either may be unknown (None).
    `cpus` and `memory_bytes` are for the whole gang and spread evenly over its GPUs; 0 means no limit.
    `batch`: the job adapts its batch size within these limits; then `iterations` are worth one at the initial batch
    each, whatever the batch is (Pollux, section 3.1), and `iteration_s` is of those.
    `checkpoints` and `restart_s` (seconds that a stop and the start after it take; None unknown) are what is assumed
    until `StopCostReported` says otherwise.
    """

    id: str
    submit_s: float = field(default=0.0, metadata=form(omit=False))
    gpus: int = field(default=1, metadata=form(omit=False))
    iterations: float | None = None
    iteration_s: float | None = None
    user: str = ""
    group: str = ""
    model: str = ""
    profile: StageProfile | None = None
    job_class: JobClass = JobClass.GUARANTEED
    gpu_kinds: tuple[str, ...] | None = None
    gpu_memory_bytes: float = 0.0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    skew: float | None = None
    tensor_bytes: tuple[float, ...] | None = None
    deadline_s: float | None = None
    priority: float = 0.0
    weight: float = 1.0
    retries: int = 3
    network: str = "auto"
    batch: BatchLimits | None = None
    checkpoints: Checkpoints = Checkpoints.ON_STOP
    restart_s: float | None = None
    # Last, as logs have them: where they say something.
    min_gpus: int = field(default=0, metadata=form(omit=lambda spec: spec.min_gpus == spec.gpus))
    max_gpus: int = field(default=0, metadata=form(omit=lambda spec: spec.max_gpus == spec.gpus))

    def __post_init__(self) -> None:
        """Refuse a job that cannot run anywhere; the message names the job and the field."""
        self._require(bool(self.id), "id", self.id, "a non-empty name")
        self._require(math.isfinite(self.submit_s), "submit_s", self.submit_s, "a finite number of seconds")
        self._require(self.gpus >= 1, "gpus", self.gpus, "at least 1 GPU")
        for name in ("iterations", "iteration_s"):
            value = getattr(self, name)
            ok = value is None or (math.isfinite(value) and value > 0)
            self._require(ok, name, value, "a positive number, or None if unknown")
        for name in ("gpu_memory_bytes", "cpus", "memory_bytes"):
            value = getattr(self, name)
            self._require(math.isfinite(value) and value >= 0, name, value, "a number >= 0")
        known = self.restart_s is None or (math.isfinite(self.restart_s) and self.restart_s >= 0)
        self._require(known, "restart_s", self.restart_s, "a number of seconds >= 0, or None if unknown")
        self._require(self.network in ("auto", "require", "off"), "network", self.network, "auto, require, off")
        self._require(self.retries >= 0, "retries", self.retries, "a whole number >= 0")
        if self.iteration_s is None and self.profile is not None:
            object.__setattr__(self, "iteration_s", self.profile.iteration_s)
        if self.skew is None and self.tensor_bytes:
            object.__setattr__(self, "skew", skew(self.tensor_bytes))
        object.__setattr__(self, "min_gpus", self.min_gpus or self.gpus)
        object.__setattr__(self, "max_gpus", self.max_gpus or self.gpus)
        elastic = 1 <= self.min_gpus <= self.gpus <= self.max_gpus
        self._require(elastic, "min_gpus, max_gpus", (self.min_gpus, self.max_gpus), "min <= gpus <= max")
        if self.batch is not None:
            fed = self.batch.most_gpus
            wanted = (
                f"at most {fed}: no more take {self.batch.least_local} examples each of a batch of {self.batch.most}"
            )
            self._require(self.min_gpus <= fed, "min_gpus (if not given, gpus)", self.min_gpus, wanted)

    def _require(self, ok: bool, name: str, value: object, wanted: str) -> None:
        if not ok:
            raise InputError(f"job {self.id!r}: {name} is {value!r}, needs {wanted}")

    @property
    def duration_s(self) -> float | None:
        """Seconds of the whole job alone at the asked size, if known."""
        if self.iterations is None or self.iteration_s is None:
            return None
        return self.iterations * self.iteration_s


_FLOATS = {
    "submit_s": 0.0,
    "iterations": math.nan,
    "iteration_s": math.nan,
    "gpu_memory_bytes": 0.0,
    "cpus": 0.0,
    "memory_bytes": 0.0,
    "skew": math.nan,
    "deadline_s": math.nan,
    "priority": 0.0,
    "weight": 1.0,
    "restart_s": math.nan,
}
#: columns of `JobSpec.batch`, all 0 for jobs that do not adapt -> its fields
_BATCH = {
    "batch_size": "initial",
    "max_batch_size": "most",
    "min_local_batch": "least_local",
    "max_local_batch": "most_local",
    "accumulates": "accumulation",
}
_INTS = {
    "gpus": 1,
    "min_gpus": 0,
    "max_gpus": 0,
    "job_class": 0,
    "retries": 3,
    "checkpoints": int(Checkpoints.ON_STOP),
    **dict.fromkeys(_BATCH, 0),
}
_OBJECTS: dict[str, object] = {
    "id": "",
    "user": "",
    "group": "",
    "model": "",
    "gpu_kinds": None,
    "tensor_bytes": None,
    "network": "auto",
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

    __slots__ = ("_known", "any_demands", "any_kinds", "any_losses", "floats", "stage_s", "texts", "whole")

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
            if name in _BATCH:
                columns[name] = [0 if s.batch is None else int(getattr(s.batch, _BATCH[name])) for s in rows]
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
        """Gang sizes."""
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
        """Number of jobs."""
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
        batch.stage_s = self.stage_s[index]
        return batch

    def __iter__(self) -> Iterator[JobSpec]:
        """Iterate over specs."""
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
            limits: dict[str, Any] = {field: row.pop(name) for name, field in _BATCH.items()}
            if limits["initial"]:
                row["batch"] = BatchLimits(**{**limits, "accumulation": bool(limits["accumulation"])})
            stage = self.stage_s[i]
            profile = None
            if not math.isnan(stage[0]) and row["iteration_s"] is not None:
                profile = StageProfile.from_sequence(stage.tolist(), row["iteration_s"])
            self._known[i] = JobSpec(**row, profile=profile)
        return self._known[i]


def _batches_can_be(jobs: JobBatch) -> BoolArray:
    """Whether each job's limits of its batch are none, or such as `BatchLimits` and `JobSpec` take."""
    initial, most = jobs.column("batch_size"), jobs.column("max_batch_size")
    least_local, most_local = jobs.column("min_local_batch"), jobs.column("max_local_batch")
    some = (initial >= 1) & (initial <= most) & (least_local >= 1) & (least_local <= most_local)
    some &= (initial >= least_local) & ((initial <= most_local) | (jobs.column("accumulates") != 0))
    some &= -(-initial // np.maximum(most_local, 1)) * (least_local - 1) < most
    some &= jobs.column("min_gpus") <= most // np.maximum(least_local, 1)
    for_none = [jobs.column(name) == 0 for name in _BATCH]
    possible: BoolArray = np.logical_and.reduce(for_none) | some
    return possible


def _column(given: Any, n: int, default: float) -> Any:
    if given is None:
        return default
    array: Any = np.asarray(given)
    if array.shape != (n,):
        raise InputError(f"a job column has shape {array.shape}, expected ({n},)")
    return array


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known now about one job: one row of a `JobTable`.

    Times are seconds; `attained_gpu_s` is service received, `service_gpu_s`, `served_s` and `idled_s` count
    since the last promotion (Tiresias, section 3). `rank` and `level` are the job's place in the order and
    the queue of the last plan. `stop_loss_s` is what stopping it now would lose (`JobTable.stop_loss_s`).
    """

    spec: JobSpec
    number: int
    phase: Phase
    iterations_done: float
    attained_gpu_s: float
    run_s: float
    pending_since_s: float
    first_start_s: float | None
    last_start_s: float | None
    starts: int
    preemptions: int
    failures: int
    promotions: int
    rank: int
    level: int
    profile: StageProfile | None
    reason: str
    checkpoints: Checkpoints = Checkpoints.ON_STOP
    stop_loss_s: float = 0.0

    @property
    def restarts(self) -> int:
        """Starts after the first."""
        return max(self.starts - 1, 0)


A = TypeVar("A")


class Column(Generic[A]):
    """A column of a `JobTable`: gathered on first use, then an ordinary attribute."""

    def __init__(self, doc: str) -> None:
        """`doc` says what the column holds and in which unit."""
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember which column this is."""
        self.name = name

    @overload
    def __get__(self, table: None, owner: type) -> Column[A]: ...
    @overload
    def __get__(self, table: JobTable, owner: type) -> A: ...
    def __get__(self, table: JobTable | None, owner: type) -> A | Column[A]:
        """Gather the rows; a copy, so a policy cannot change the job store."""
        if table is None:
            return self
        values = table.columns[self.name].take(table.number, axis=0)
        table.__dict__[self.name] = values
        return cast("A", values)


class JobArchive(Protocol):
    """What a job table asks its owner about single jobs and about those that have left."""

    departures: int

    def spec(self, number: int) -> JobSpec:
        """What the user said about a job."""
        ...

    def departed_sizes(self, count: int) -> tuple[FloatArray, FloatArray]:
        """Service of the first `count` jobs that left, as `JobTable.departed_sizes` returns it."""
        ...


class JobTable:
    """Active jobs as columns, in order of submission.

    `table.remaining_s * table.gpus` is one expression over all jobs; `table[i]` is a `JobStatus`.
    Columns are arrays of `len(table)`. Estimates only: what profiling and monitoring have measured.
    """

    #: what the user said
    submit_s = Column[FloatArray]("submission, seconds")
    gpus = Column[IntArray]("gang size")
    min_gpus = Column[IntArray]("fewest GPUs an elastic job can use; `gpus` if not elastic")
    max_gpus = Column[IntArray]("most GPUs an elastic job can use; `gpus` if not elastic")
    iterations = Column[FloatArray]("work in iterations; NaN if unknown")
    job_class = Column[IntArray]("`JobClass`")
    user_number = Column[IntArray]("users numbered in order of appearance")
    group_number = Column[IntArray]("groups (queues, virtual clusters) numbered in order of appearance")
    cpus = Column[FloatArray]("CPU cores of the gang; 0 = no limit")
    memory_bytes = Column[FloatArray]("memory of the gang; 0 = no limit")
    gpu_memory_bytes = Column[FloatArray]("memory a GPU; 0 = unknown")
    skew = Column[FloatArray]("share of the largest tensor in all tensor bytes; NaN if unknown")
    deadline_s = Column[FloatArray]("seconds after submission; NaN if none")
    priority = Column[FloatArray]("larger is more important")
    weight = Column[FloatArray]("share in fair policies")
    batch_size = Column[IntArray]("total batch the user tuned, examples; 0 if the job does not adapt its batch")
    max_batch_size = Column[IntArray]("largest total batch, examples")
    min_local_batch = Column[IntArray]("fewest examples of one GPU in one pass")
    max_local_batch = Column[IntArray]("most examples of one GPU in one pass")
    accumulates = Column[IntArray]("1 if several passes may make one step of the optimiser")
    #: what has been measured
    phase = Column[IntArray]("`Phase`")
    iteration_s = Column[FloatArray]("measured seconds of an iteration alone; NaN if unknown")
    stage_s = Column[FloatArray]("measured stage seconds, shape (jobs, resources); NaN if unknown")
    goodput = Column[FloatArray]("what the job estimates of itself, shape (jobs, `Estimate`); NaN if unknown")
    iterations_done = Column[FloatArray]("progress")
    attained_gpu_s = Column[FloatArray]("GPU-seconds held so far")
    run_s = Column[FloatArray]("seconds on GPUs so far, overheads included")
    shared_speed = Column[FloatArray]("speed relative to alone when it last shared GPUs; NaN if never")
    #: what stopping it would lose
    checkpoints = Column[IntArray]("`Checkpoints`: what of its work outlives a stop")
    saved_run_s = Column[FloatArray]("run seconds whose work its last checkpoint holds; counts where PERIODIC")
    restart_s = Column[FloatArray]("seconds that a stop and the start after it take; NaN if unknown")
    keep_until_s = Column[FloatArray]("until then policies neither stop nor move it, seconds; NaN if free")
    #: its history
    pending_since_s = Column[FloatArray]("when it last began to wait, seconds")
    first_start_s = Column[FloatArray]("first start, seconds; NaN if never")
    last_start_s = Column[FloatArray]("last start, seconds; NaN if never")
    starts = Column[IntArray]("number of starts")
    preemptions = Column[IntArray]("number of times the scheduler stopped it")
    failures = Column[IntArray]("number of failures")
    promotions = Column[IntArray]("number of promotions")
    rank = Column[IntArray]("place in the order of the last plan; large if it was in none")
    level = Column[IntArray]("queue in the last plan; -1 if it was in none")
    running_group = Column[IntArray]("its group in `View.running`; -1 if it is not running")
    attained_base_gpu_s = Column[FloatArray]("attained GPU-seconds at the last promotion")
    run_base_s = Column[FloatArray]("run seconds at the last promotion")
    wait_s = Column[FloatArray]("closed waits between runs since the last promotion, seconds")
    competing_base = Column[FloatArray]("integral of active jobs over time at submission, job-seconds")

    def __init__(
        self,
        columns: Mapping[str, Any],
        number: IntArray,
        now_s: float,
        competing: float,
        specs: JobArchive | None = None,
    ) -> None:
        """`columns` hold all jobs ever; `number` selects the rows of this table."""
        self.columns = columns
        self.number = number
        self.now_s = now_s
        self._competing = competing
        self._specs = specs

    def subset(self, number: IntArray, **columns: Any) -> JobTable:
        """The jobs of these numbers, in this order, at the same time.

        `columns` replace columns of this table; each holds all jobs ever, as those of the constructor do.

        >>> table = JobTable({"gpus": np.array([1, 2, 4])}, np.arange(3), 0.0, 0.0)
        >>> table.subset(np.array([2, 0])).gpus.tolist()
        [4, 1]
        """
        known = {**self.columns, **columns} if columns else self.columns
        return JobTable(known, number, self.now_s, self._competing, self._specs)

    @property
    def departures(self) -> int:
        """How many jobs have left the cluster for good."""
        return 0 if self._specs is None else self._specs.departures

    def departed_sizes(self, count: int) -> tuple[FloatArray, FloatArray]:
        """Total service of the first `count` jobs that left, GPU-seconds, ascending, and its running sums from 0 on.

        Jobs that got no service are left out. A count that grows is cheap: what has been sorted stays so. Read only.
        """
        return (np.zeros(0), np.zeros(1)) if self._specs is None else self._specs.departed_sizes(count)

    def __getattr__(self, name: str) -> Any:
        """Derived columns, computed on first use."""
        make = _DERIVED.get(name)
        if make is None:
            raise AttributeError(f"a job table has no column {name!r}; {_known_columns()}")
        value = make(self)
        self.__dict__[name] = value
        return value

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.number)

    def __getitem__(self, i: int) -> JobStatus:
        """Row `i` as an object."""
        if self._specs is None:
            raise LookupError("this table was built without job specs")
        n = int(self.number[i])
        col = self.columns
        spec = self._specs.spec(n)
        stage, iteration_s = col["stage_s"][n], float(col["iteration_s"][n])
        known = not (math.isnan(iteration_s) or math.isnan(stage[0]))
        return JobStatus(
            spec=spec,
            number=n,
            phase=Phase(col["phase"][n]),
            iterations_done=float(col["iterations_done"][n]),
            attained_gpu_s=float(col["attained_gpu_s"][n]),
            run_s=float(col["run_s"][n]),
            pending_since_s=float(col["pending_since_s"][n]),
            first_start_s=_known(col["first_start_s"][n]),
            last_start_s=_known(col["last_start_s"][n]),
            starts=int(col["starts"][n]),
            preemptions=int(col["preemptions"][n]),
            failures=int(col["failures"][n]),
            promotions=int(col["promotions"][n]),
            rank=int(col["rank"][n]),
            level=int(col["level"][n]),
            profile=StageProfile.from_sequence(stage.tolist(), iteration_s) if known else None,
            reason=str(col["reason"][n]),
            checkpoints=Checkpoints(col["checkpoints"][n]) if "checkpoints" in col else Checkpoints.ON_STOP,
            stop_loss_s=float(self.stop_loss_s[i]) if "checkpoints" in col else 0.0,
        )

    running: BoolArray
    """derived: whether each job holds GPUs"""
    remaining_s: FloatArray
    """derived: seconds left alone at the asked size, on the clock's whole milliseconds; NaN if unknown"""
    duration_s: FloatArray
    """derived: seconds of the whole job alone; NaN if unknown"""
    service_gpu_s: FloatArray
    """derived: GPU-seconds since the last promotion"""
    served_s: FloatArray
    """derived: run seconds since the last promotion"""
    idled_s: FloatArray
    """derived: waiting seconds since the last promotion, counted once the job has run since"""
    waiting_s: FloatArray
    """derived: seconds of the current wait; 0 while running"""
    age_s: FloatArray
    """derived: seconds since submission"""
    mean_competitors: FloatArray
    """derived: time-average number of active jobs over the job's life, at least 1"""
    stop_loss_s: FloatArray
    """derived: seconds on its GPUs that stopping a running job now would lose: work since its last checkpoint and a
    restart (0 where that is unknown); inf if it cannot go on from a checkpoint, 0 if it is not running"""


@kernel
def work_left_s(number: IntArray, iterations: FloatArray, done: FloatArray, iteration_s: FloatArray) -> FloatArray:
    """Seconds of work left, rounded to the clock's resolution.

    The rounding makes equal work compare equal whatever its iteration time.
    """
    out = np.empty(len(number))
    for i in range(len(number)):
        n = number[i]
        out[i] = np.rint((iterations[n] - done[n]) * iteration_s[n] * 1e3) / 1e3
    return out


def _remaining(t: JobTable) -> FloatArray:
    c = t.columns
    return work_left_s(t.number, c["iterations"], c["iterations_done"], c["iteration_s"])


def _stop_loss(t: JobTable) -> FloatArray:
    c = t.columns
    return stop_losses(t.number, c["running_group"], c["checkpoints"], c["run_s"], c["saved_run_s"], c["restart_s"])


def _idled(t: JobTable) -> FloatArray:
    counts = ~t.running & (t.served_s > 0)
    return t.wait_s + np.where(counts, t.now_s - t.pending_since_s, 0.0)


def _mean_competitors(t: JobTable) -> FloatArray:
    age = t.age_s
    mean = (t._competing - t.competing_base) / np.maximum(age, 1e-9)
    return np.maximum(np.where(age > 0, mean, float(len(t))), 1.0)


_DERIVED: Mapping[str, Any] = {
    "running": lambda t: t.phase == int(Phase.RUNNING),
    "remaining_s": _remaining,
    "duration_s": lambda t: np.rint(t.iterations * t.iteration_s * 1e3) / 1e3,
    "service_gpu_s": lambda t: t.attained_gpu_s - t.attained_base_gpu_s,
    "served_s": lambda t: t.run_s - t.run_base_s,
    "idled_s": _idled,
    "waiting_s": lambda t: np.where(t.running, 0.0, t.now_s - t.pending_since_s),
    "age_s": lambda t: t.now_s - t.submit_s,
    "mean_competitors": _mean_competitors,
    "stop_loss_s": _stop_loss,
}


def _known_columns() -> str:
    names = [n for n, c in vars(JobTable).items() if isinstance(c, Column)] + list(_DERIVED)
    return "known: " + ", ".join(sorted(names))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
