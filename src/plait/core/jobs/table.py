"""The present state of jobs: one as an object, many as columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast, overload

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.goodput import BatchLimits
from plait.core.jobs.batch import BATCH_COLUMNS
from plait.core.jobs.spec import Checkpoints, JobSpec, Phase
from plait.core.resources import CPU_KIND, StageProfile


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The present state of one job: one row of a `JobTable`.

    Times are seconds; `attained_gpu_s` is service received, `service_gpu_s`, `served_s` and `idled_s` count
    since the last promotion (Tiresias, section 3). `position` and `level` are the job's place in the order and
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
    position: int
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


class JobColumn(Generic[A]):
    """A column of a `JobTable`: gathered on first use, then an ordinary attribute."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, table: None, owner: type) -> JobColumn[A]: ...
    @overload
    def __get__(self, table: JobTable, owner: type) -> A: ...
    def __get__(self, table: JobTable | None, owner: type) -> A | JobColumn[A]:
        """Gather the rows; a copy, so a policy cannot change the job store."""
        if table is None:
            return self
        values = table.columns[self.name].take(table.number, axis=0)
        table.__dict__[self.name] = values
        return cast("A", values)


#: Seconds of running after which progress is taken as the speed of a kind of GPU.
LEAST_RUN_S = 600.0


class JobArchive(Protocol):
    """Lookups of a job table in its owner: single jobs, and jobs that have left."""

    departures: int

    def spec(self, number: int) -> JobSpec: ...

    #: What parts of policies derive from departed jobs, kept from one decision to the next: a function of departures.
    memo: dict[str, Any]

    #: What was reported of jobs that shared GPUs (`plait.grouping.interference.PairReports`).
    pair_reports: Any

    #: Speed of kinds of GPU by name, relative to known iteration times, from jobs that finished there.
    kind_speeds: dict[str, float]

    def departed_sizes(self, count: int) -> tuple[FloatArray, FloatArray]:
        """Service of the first `count` jobs that left, as `JobTable.departed_sizes` returns it."""
        ...

    def ended(self, first: int) -> tuple[IntArray, FloatArray]:
        """Kinds and durations of the jobs that left, as `JobTable.ended` returns them."""
        ...

    def departed_use(self, first: int) -> tuple[FloatArray, FloatArray]:
        """Use of GPUs by the jobs that left, as `JobTable.departed_use` returns it."""
        ...


class JobTable:
    """Active jobs as columns, in order of submission.

    `table.remaining_s * table.gpus` is one expression over all jobs; `table[i]` is a `JobStatus`.
    Columns are arrays of `len(table)`. Estimates only: what profiling and monitoring have measured.
    """

    #: the users' requests
    submit_s = JobColumn[FloatArray]("submission, seconds")
    gpus = JobColumn[IntArray]("gang size")
    min_gpus = JobColumn[IntArray]("minimum GPUs an elastic job can use; `gpus` if not elastic")
    max_gpus = JobColumn[IntArray]("most GPUs an elastic job can use; `gpus` if not elastic")
    iterations = JobColumn[FloatArray]("work in iterations; NaN if unknown")
    job_class = JobColumn[IntArray]("`JobClass`")
    kinds = JobColumn[IntArray]("numbers of what jobs are alike in, shape (jobs, 6), the closest first; 0 if unknown")
    user_number = JobColumn[IntArray]("users numbered in order of appearance")
    project_number = JobColumn[IntArray]("projects (queues, virtual clusters) numbered in order of appearance")
    cpus = JobColumn[FloatArray]("CPU cores of the gang; 0 = no limit")
    memory_bytes = JobColumn[FloatArray]("memory of the gang; 0 = no limit")
    gpu_memory_bytes = JobColumn[FloatArray]("memory a GPU; 0 = unknown")
    skew = JobColumn[FloatArray]("share of the largest tensor in all tensor bytes; NaN if unknown")
    gradient_bytes = JobColumn[FloatArray]("bytes that each worker exchanges in an iteration; NaN if unknown")
    servers = JobColumn[IntArray]("ranks without GPUs that hold the parameters; 0 if none")
    deadline_s = JobColumn[FloatArray]("seconds after submission; NaN if none")
    time_limit_s = JobColumn[FloatArray]("seconds on GPUs after which it is ended; NaN if none")
    priority = JobColumn[FloatArray]("larger is more important")
    weight = JobColumn[FloatArray]("share in fair policies")
    batch_size = JobColumn[IntArray]("total batch the user tuned, examples; 0 if the job does not adapt its batch")
    max_batch_size = JobColumn[IntArray]("largest total batch, examples")
    min_local_batch = JobColumn[IntArray]("minimum examples of one GPU in one pass")
    max_local_batch = JobColumn[IntArray]("most examples of one GPU in one pass")
    accumulates = JobColumn[IntArray]("1 if several passes may make one step of the optimiser")
    parameters = JobColumn[IntArray]("parameters of the model, if the job chooses an execution plan; else 0")
    example_bytes = JobColumn[IntArray]("activations of an example on a GPU, bytes")
    zero_stage = JobColumn[IntArray]("the only ZeRO stage of its plans; -1 for any")
    #: what has been measured
    phase = JobColumn[IntArray]("`Phase`")
    iteration_s = JobColumn[FloatArray]("measured seconds of an iteration alone; NaN if unknown")
    stage_s = JobColumn[FloatArray]("measured stage seconds, shape (jobs, resources); NaN if unknown")
    goodput = JobColumn[FloatArray]("what the job estimates of itself, shape (jobs, `Estimate`); NaN if unknown")
    iterations_done = JobColumn[FloatArray]("progress")
    attained_gpu_s = JobColumn[FloatArray]("GPU-seconds held so far")
    run_s = JobColumn[FloatArray]("seconds on GPUs so far, overheads included")
    shared_speed = JobColumn[FloatArray]("speed relative to alone when it last shared GPUs; NaN if never")
    packed_s = JobColumn[FloatArray](
        "seconds an iteration on the minimum nodes, where placements are tried; NaN unknown"
    )
    spread_s = JobColumn[FloatArray]("the same on more nodes")
    slow_since_s = JobColumn[FloatArray](
        "since when it has got next to nothing as a guest, seconds; NaN if it gets more"
    )
    #: what stopping it would lose
    checkpoints = JobColumn[IntArray]("`Checkpoints`: what of its work outlives a stop")
    saved_run_s = JobColumn[FloatArray]("run seconds whose work its last checkpoint holds; counts where PERIODIC")
    restart_s = JobColumn[FloatArray]("seconds that a stop and the start after it take; NaN if unknown")
    keep_until_s = JobColumn[FloatArray]("until then policies neither stop nor move it, seconds; NaN if free")
    #: its history
    pending_since_s = JobColumn[FloatArray]("when it last began to wait, seconds")
    first_start_s = JobColumn[FloatArray]("first start, seconds; NaN if never")
    last_start_s = JobColumn[FloatArray]("last start, seconds; NaN if never")
    starts = JobColumn[IntArray]("number of starts")
    preemptions = JobColumn[IntArray]("number of times the scheduler stopped it")
    failures = JobColumn[IntArray]("number of failures")
    promotions = JobColumn[IntArray]("number of promotions")
    position = JobColumn[IntArray]("place in the order of the last plan; large if it was in none")
    level = JobColumn[IntArray]("queue in the last plan; -1 if it was in none")
    running_group = JobColumn[IntArray]("its group in `View.running`; -1 if it is not running")
    attained_base_gpu_s = JobColumn[FloatArray]("attained GPU-seconds at the last promotion")
    run_base_s = JobColumn[FloatArray]("run seconds at the last promotion")
    wait_s = JobColumn[FloatArray]("closed waits between runs since the last promotion, seconds")
    competing_base = JobColumn[FloatArray]("integral of active jobs over time at submission, job-seconds")

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

        `columns` replace columns of this table; each holds all jobs ever, like the columns of the constructor.

        >>> table = JobTable({"gpus": np.array([1, 2, 4])}, np.arange(3), 0.0, 0.0)
        >>> table.subset(np.array([2, 0])).gpus.tolist()
        [4, 1]
        """
        known = {**self.columns, **columns} if columns else self.columns
        return JobTable(known, number, self.now_s, self._competing, self._specs)

    @property
    def departures(self) -> int:
        """How many jobs have left the cluster and will not return."""
        return 0 if self._specs is None else self._specs.departures

    def departed_sizes(self, count: int) -> tuple[FloatArray, FloatArray]:
        """Total service of the first `count` jobs that left, GPU-seconds, ascending, and its running sums from 0 on.

        Jobs that got no service are left out. A count that grows is cheap: what has been sorted stays so. Read only.
        """
        return (np.zeros(0), np.zeros(1)) if self._specs is None else self._specs.departed_sizes(count)

    def ended(self, first: int) -> tuple[IntArray, FloatArray]:
        """Of the jobs that left, from departure `first` on in order: `kinds` and `done_s`, 0 if they never ran."""
        return (np.zeros((0, 6), np.int64), np.zeros(0)) if self._specs is None else self._specs.ended(first)

    def departed_use(self, first: int) -> tuple[FloatArray, FloatArray]:
        """Of the jobs that left, from departure `first` on in order: rows of `gpu_use`, and GPU-seconds held."""
        return (np.zeros((0, 4)), np.zeros(0)) if self._specs is None else self._specs.departed_use(first)

    @property
    def memo(self) -> dict[str, Any]:
        """What parts of policies derive from departed jobs, kept from one decision to the next."""
        return {} if self._specs is None else self._specs.memo

    @property
    def pair_reports(self) -> Any:
        """What was reported of jobs that shared GPUs (`plait.grouping.interference.PairReports`); None if not kept."""
        return None if self._specs is None else self._specs.pair_reports

    @property
    def kind_speeds(self) -> dict[str, float]:
        """Speed of kinds of GPU by name, relative to known iteration times, from jobs that finished there alone."""
        return {} if self._specs is None else self._specs.kind_speeds

    def __getattr__(self, name: str) -> Any:
        make = _DERIVED.get(name)
        if make is None:
            raise AttributeError(f"a job table has no column {name!r}; {_known_columns()}")
        value = make(self)
        self.__dict__[name] = value
        return value

    def __len__(self) -> int:
        return len(self.number)

    def limits(self, row: int) -> BatchLimits:
        """The bounds of the batch and the plans of the job in a row; it has to adapt its batch."""
        given: dict[str, Any] = {name: int(getattr(self, column)[row]) for column, name in BATCH_COLUMNS.items()}
        return BatchLimits(**{**given, "accumulation": bool(given["accumulation"])})

    def spec(self, i: int) -> JobSpec:
        """The request of the job in row `i`; `table[i]` has its state, too."""
        if self._specs is None:
            raise LookupError("this table was built without job specs")
        return self._specs.spec(int(self.number[i]))

    def __getitem__(self, i: int) -> JobStatus:
        spec, n = self.spec(i), int(self.number[i])
        col = self.columns
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
            position=int(col["position"][n]),
            level=int(col["level"][n]),
            profile=StageProfile.from_sequence(stage.tolist(), iteration_s) if known else None,
            reason=str(col["reason"][n]),
            checkpoints=Checkpoints(col["checkpoints"][n]) if "checkpoints" in col else Checkpoints.ON_STOP,
            stop_loss_s=float(self.stop_loss_s[i]) if "checkpoints" in col else 0.0,
        )

    running: BoolArray
    """derived: whether each job holds GPUs"""
    remaining_s: FloatArray
    """derived: seconds left alone at the requested size, on the clock's whole milliseconds; NaN if unknown"""
    most_left_s: FloatArray
    """derived: seconds on GPUs that each job still has at most, by its work or its time limit; inf if unknown"""
    done_s: FloatArray
    """derived: seconds of work done, alone at the requested size; seconds on GPUs where that is unknown"""
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
    restart (0 where that is unknown); inf if it cannot resume from a checkpoint, 0 if it is not running"""


def _remaining(t: JobTable) -> FloatArray:
    from plait.core.jobs.keys import fill_left_s  # only those who decide need the compiler

    c, out = t.columns, np.empty(len(t))
    fill_left_s(t.number, c["iterations"], c["iterations_done"], c["iteration_s"], out)
    return out


def work_done_s(columns: Mapping[str, Any], number: IntArray) -> FloatArray:
    """Seconds of work of jobs (numbers) alone at the requested size; seconds on GPUs where that is unknown."""
    done_s = columns["iterations_done"][number] * columns["iteration_s"][number]
    found: FloatArray = np.where(np.isnan(done_s), columns["run_s"][number], done_s)
    return found


def gpu_use(columns: Mapping[str, Any], number: IntArray) -> FloatArray:
    """Project, user, first start and end of jobs (numbers), shape (jobs, 4).

    The first start is NaN of jobs that have used no GPU: ones that never started, and jobs on CPU slots.
    """
    used = np.column_stack([columns[n][number] for n in ("project_number", "user_number", "first_start_s", "end_s")])
    if columns["has_kinds"][0]:
        on_cpus = [kinds == (CPU_KIND,) for kinds in columns["gpu_kinds"][number].tolist()]
        used[np.array(on_cpus, dtype=bool), 2] = math.nan
    return used


def _most_left(t: JobTable) -> FloatArray:
    """See `JobTable.most_left_s`; a time limit is of all attempts together."""
    left = np.fmin(t.remaining_s, t.time_limit_s - t.run_s)
    return np.where(np.isnan(left), math.inf, np.maximum(left, 0.0))


def _stop_loss(t: JobTable) -> FloatArray:
    from plait.core.preemption_kernels import stop_losses

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
    "most_left_s": _most_left,
    "done_s": lambda t: work_done_s(t.columns, t.number),
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
    names = [n for n, c in vars(JobTable).items() if isinstance(c, JobColumn)] + list(_DERIVED)
    return "known: " + ", ".join(sorted(names))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
