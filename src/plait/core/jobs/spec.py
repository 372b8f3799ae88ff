"""The request of one job, and the words for its states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from plait.core.codec.values import form
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.core.ina_request import AUTO, InaRequest
from plait.core.resources import StageProfile, skew


class JobClass(IntEnum):
    """Whether a job owns its GPUs or uses what other jobs leave free (AntMan, section 3).

    AUTO: guaranteed where its quota and the GPUs allow it, else opportunistic until they do. Policies without classes
    treat it as guaranteed.
    """

    GUARANTEED = 0
    OPPORTUNISTIC = 1
    AUTO = 2


class Checkpoints(IntEnum):
    """How much of a job's work survives a stop.

    NEVER: nothing, the job starts over. PERIODIC: the work in its last checkpoint; the job saves at times of its own
    choice. ON_STOP: all, because the job saves when it receives the request to stop.
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
    """The request of a job. A change of it is another spec (`JobUpdated`).

    `user` submitted it, and quotas and shares count its `project` (a virtual cluster, a queue); "" if unknown. `like`
    is the program, the closest first: script and arguments, script; jobs of a user with equal entries take about as
    long; () if unknown. `gpus` is the gang: all at once or none. An elastic job may get `min_gpus` to `max_gpus`, both
    `gpus` if not given; `gpu_kinds` are the usable ones, None any. `iterations` is the work, `iteration_s` the seconds
    of one iteration alone at the requested size (from `profile` if not given); either may be unknown (None). `cpus` and
    `memory_bytes` are for the whole gang and spread evenly over its GPUs, `gpu_memory_bytes` is for each GPU; 0 means
    no limit. `tensor_bytes`: sizes of the model's tensors, from which `skew` follows, the largest one's share of all
    (Tiresias, section 3.3); None unknown. `deadline_s`: seconds from the submission in which the job should end; None
    for no deadline. `time_limit_s`: seconds on GPUs, of all attempts together, after which the job is ended; None for
    no limit. `priority`: higher goes first, where the policy uses it. `weight`: the share of a job where the policy is
    a fair one. `gradient_bytes`: bytes that each worker sends to the others in an iteration, before any reduction (the
    size of all gradients); None unknown. `servers`: ranks without GPUs that hold the parameters (Tiresias, section
    3.3), on nodes of its GPUs; 0: workers exchange among themselves. `retries`: restarts allowed after failures of its
    own. `ina`: its request for in-network aggregation. `batch`: the job adapts its batch size within these
    limits; then `iterations` are worth one at the initial batch each, whatever the batch is (Pollux, section 3.1), and
    `iteration_s` is the time of one. `scaling`: measured seconds of an iteration by GPUs of an elastic job with a fixed
    batch; () unknown. `checkpoints` and `restart_s` (seconds that a stop and the start after it take; None unknown) are
    assumed until a `StopCostReported`.

    Raises `InputError`, with the job and the field, for a value that no job can have.
    """

    id: str
    submit_s: float = field(default=0.0, metadata=form(omit=False))
    gpus: int = field(default=1, metadata=form(omit=False))
    iterations: float | None = None
    iteration_s: float | None = None
    user: str = ""
    project: str = ""
    model: str = ""
    like: tuple[str, ...] = ()
    profile: StageProfile | None = None
    job_class: JobClass = JobClass.GUARANTEED
    gpu_kinds: tuple[str, ...] | None = None
    gpu_memory_bytes: float = 0.0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    skew: float | None = None
    tensor_bytes: tuple[float, ...] | None = None
    gradient_bytes: float | None = None
    servers: int = 0
    deadline_s: float | None = None
    time_limit_s: float | None = None
    priority: float = 0.0
    weight: float = 1.0
    retries: int = 3
    ina: InaRequest = AUTO
    batch: BatchLimits | None = None
    scaling: tuple[tuple[int, float], ...] = ()
    checkpoints: Checkpoints = Checkpoints.ON_STOP
    restart_s: float | None = None
    # Last, as in logs: only where they differ.
    min_gpus: int = field(default=0, metadata=form(omit=lambda spec: spec.min_gpus == spec.gpus))
    max_gpus: int = field(default=0, metadata=form(omit=lambda spec: spec.max_gpus == spec.gpus))

    def __post_init__(self) -> None:
        self._require(bool(self.id), "id", self.id, "a non-empty name")
        self._require(math.isfinite(self.submit_s), "submit_s", self.submit_s, "a finite number of seconds")
        self._require(self.gpus >= 1, "gpus", self.gpus, "at least 1 GPU")
        for name in ("iterations", "iteration_s", "time_limit_s"):
            value = getattr(self, name)
            ok = value is None or (math.isfinite(value) and value > 0)
            self._require(ok, name, value, "a positive number, or None if unknown")
        for name in ("gpu_memory_bytes", "cpus", "memory_bytes"):
            value = getattr(self, name)
            self._require(math.isfinite(value) and value >= 0, name, value, "a number >= 0")
        sized = self.gradient_bytes is None or (math.isfinite(self.gradient_bytes) and self.gradient_bytes >= 0)
        self._require(sized, "gradient_bytes", self.gradient_bytes, "a number of bytes >= 0, or None if unknown")
        known = self.restart_s is None or (math.isfinite(self.restart_s) and self.restart_s >= 0)
        self._require(known, "restart_s", self.restart_s, "a number of seconds >= 0, or None if unknown")
        made = "an InaRequest, e.g. InaRequest.parse('require')"
        self._require(isinstance(self.ina, InaRequest), "ina", self.ina, made)
        for name in ("retries", "servers"):
            self._require(getattr(self, name) >= 0, name, getattr(self, name), "a whole number >= 0")
        if self.iteration_s is None and self.profile is not None:
            object.__setattr__(self, "iteration_s", self.profile.iteration_s)
        if self.skew is None and self.tensor_bytes:
            object.__setattr__(self, "skew", skew(self.tensor_bytes))
        object.__setattr__(self, "min_gpus", self.min_gpus or self.gpus)
        object.__setattr__(self, "max_gpus", self.max_gpus or self.gpus)
        elastic = 1 <= self.min_gpus <= self.gpus <= self.max_gpus
        self._require(elastic, "min_gpus, max_gpus", (self.min_gpus, self.max_gpus), "min <= gpus <= max")
        measured = all(gpus >= 1 and 0 < seconds < math.inf for gpus, seconds in self.scaling)
        self._require(measured, "scaling", self.scaling, "pairs of GPUs and positive seconds of an iteration")
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
        """Seconds of the whole job alone at the requested size, if known."""
        if self.iterations is None or self.iteration_s is None:
            return None
        return self.iterations * self.iteration_s
