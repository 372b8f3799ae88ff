"""Input and output of the coordinator of a GPU: statistics of jobs in, directives out.

All values are frozen and go to JSON and back by `plait.core.codec.values`. Times are seconds, sizes bytes.

After Xiao et al., AntMan, OSDI 2020, sections 3 and 4: statistics after each step, a memory limit and a share back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from plait.core.errors import InputError


class Action(Enum):
    """What a job does at its next boundary between two steps.

    RUN         it trains, within its share and its memory limit
    PAUSE       it waits there and frees all that is not persistent
    CHECKPOINT  it saves its state and leaves the GPU, to be resumed elsewhere
    STOP        it ends without saving: its own demand exceeds the GPU
    """

    RUN = 0
    PAUSE = 1
    CHECKPOINT = 2
    STOP = 3


class SpillReason(Enum):
    """Why a step used host memory: not at all, the pool is fragmented, or the demand exceeds the pool.

    Demand above the pool is OUT_OF_MEMORY, all else FRAGMENT; the published code has the two the wrong way round.
    """

    NONE = 0
    FRAGMENT = 1
    OUT_OF_MEMORY = 2


@dataclass(frozen=True, slots=True)
class Directive:
    """Limits of a job from its next boundary on; they stay in force until the next directive.

    share                part of the time in which the job may use the GPU, 0 to 1
    memory_limit_bytes   most device memory it may reserve; None: no limit
    limit_number         counts limits and pauses of the job, so that it can report which one it applied
    share_number         counts changes of the shares on the GPU, so that a guest can report which one it obeys
    micro_batches        into how many micro-batches it splits each step

    Raises `InputError` if a value is out of its range.
    """

    share: float = 1.0
    memory_limit_bytes: int | None = None
    limit_number: int = 0
    action: Action = Action.RUN
    micro_batches: int = 1
    share_number: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise InputError(f"share of a GPU is {self.share!r}, needs a number from 0 to 1")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 0:
            raise InputError(f"memory limit is {self.memory_limit_bytes!r} bytes, needs at least 0, or none")
        if self.micro_batches < 1:
            raise InputError(f"micro-batches are {self.micro_batches!r}, need at least 1")


@dataclass(frozen=True, slots=True)
class StepStats:
    """One finished step of a job.

    step                     its number; grows, and a number that was seen before is ignored
    step_s                   seconds from the end of the last step to the end of this one
    stage_s                  seconds in each stage by name; their sum is the job's own time, without waiting
    device_peak_bytes        most bytes in use during the step
    device_persistent_bytes  bytes kept from step to step: parameters, optimiser state; 0: unknown
    device_reserved_bytes    bytes that the allocator holds, in use or cached
    host_spill_bytes         bytes that had to be allocated on the host
    quantum_s                longest GPU work that the job starts without looking at its share
    phase                    label of what the job does: training, evaluation, ...
    work                     samples or tokens of the step; 0 if the job does not report it
    operations               GPU operations of the step; 0 if unknown, or if it differs from step to step
    left_out                 the step contains a checkpoint, an evaluation or a compilation: judge nothing by it
    ended_s                  when it ended, by the monotonic clock of the node; 0: not reported
    returns                  how often it returned to an idle GPU: stages that it entered, and waits for the GPU inside
    entries                  GPU stages that it entered after more than the linger of the gate; 0: not reported

    Raises `InputError` for a negative or undefined number.
    """

    step: int
    step_s: float
    stage_s: Mapping[str, float] = field(default_factory=dict)
    device_peak_bytes: int = 0
    device_persistent_bytes: int = 0
    device_reserved_bytes: int = 0
    host_spill_bytes: int = 0
    spill_reason: SpillReason = SpillReason.NONE
    quantum_s: float = 0.0
    phase: str = ""
    work: float = 0.0
    operations: int = 0
    left_out: bool = False
    ended_s: float = 0.0
    returns: int = 0
    entries: int = 0

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"step {self.step}: {name} is {value!r}, needs a number >= 0")

    @property
    def own_s(self) -> float:
        """Seconds in which the job itself computed; the whole step if it names no stages."""
        return math.fsum(self.stage_s.values()) or self.step_s


_NUMBERS = (
    "step", "step_s", "quantum_s", "work", "operations", "device_peak_bytes", "device_persistent_bytes",
    "device_reserved_bytes", "host_spill_bytes", "ended_s", "returns", "entries",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sharer:
    """A job that is on the GPU, or about to start there.

    guaranteed          it keeps its dedicated speed; at most one a GPU. Otherwise it is opportunistic
    weight              its part of what opportunistic jobs get together
    persistent_bytes    bytes of parameters and optimiser state, until a step reports them; None: not known
    most_micro_batches  into how many micro-batches a step may be split when memory is short; 1: never
    latency             a server with an objective for its latency, whose steps are requests
    quantum_s           longest GPU work without a look at the share: of the unfinished step, or of a job that is paced
                        from outside; 0: none yet

    Raises `InputError` for an invalid weight or number.
    """

    guaranteed: bool
    weight: float = 1.0
    persistent_bytes: int | None = 0
    most_micro_batches: int = 1
    latency: bool = False
    quantum_s: float = 0.0

    def __post_init__(self) -> None:
        """Weights divide a share, so none is 0."""
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InputError(f"weight of a job is {self.weight!r}, needs a number above 0")
        if (self.persistent_bytes or 0) < 0 or self.most_micro_batches < 1:
            raise InputError(
                f"a job with {self.persistent_bytes!r} persistent bytes and at most {self.most_micro_batches!r} "
                "micro-batches cannot be; needs at least 0 and at least 1"
            )


@dataclass(frozen=True, slots=True)
class Reached:
    """The number of the last memory limit that a job applied, and the limit in bytes that it reached.

    It is above the one it was given after a partial shrink: what is in use cannot be freed before the step that uses it
    has ended. A job without a limit has reached the capacity of the device. `share_number`: the last change of shares
    that it obeys; None: it does not report that.
    """

    number: int
    limit_bytes: int
    share_number: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU and the jobs on it now.

    capacity_bytes  memory of the device
    jobs            by name, in order of arrival; a job that is not in it holds no memory there any more
    reached         limits as jobs reported them; a job that has never started is not in it
    refused_bytes   jobs that wait in an allocation which neither the device nor the host could serve, and its size
    gated           opportunistic jobs start only while the guaranteed one is outside its GPU stage

    Raises `InputError` if more than one job is guaranteed.
    """

    capacity_bytes: int
    jobs: Mapping[str, Sharer]
    reached: Mapping[str, Reached] = field(default_factory=dict)
    refused_bytes: Mapping[str, int] = field(default_factory=dict)
    gated: bool = False

    def __post_init__(self) -> None:
        promised = [name for name, job in self.jobs.items() if job.guaranteed]
        if len(promised) > 1:
            raise InputError(f"jobs {', '.join(promised)} are guaranteed on one GPU; at most one can be")
        if self.capacity_bytes <= 0:
            raise InputError(f"memory of a GPU is {self.capacity_bytes!r} bytes, needs more than 0")

    @property
    def guaranteed(self) -> str | None:
        return next((name for name, job in self.jobs.items() if job.guaranteed), None)

    @property
    def opportunistic(self) -> tuple[str, ...]:
        """All others, in order of arrival."""
        return tuple(name for name, job in self.jobs.items() if not job.guaranteed)
