"""The state of the memory law for the jobs on a GPU, and its constants. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from plait.sharing.directive import Action, StepStats

#: Memory of the device that is never given away, and what the context of each process takes beside its limit.
MARGIN_BYTES, CONTEXT_BYTES = 512 << 20, 500_000_000
#: Room above a footprint: this part of it, at least so many bytes.
HEADROOM, LEAST_HEADROOM_BYTES = 0.05, 256 << 20
#: The footprint of the guaranteed job is the most of so many steps; after a burst it is not lowered for HOLD_S either.
FOOTPRINT_STEPS, HOLD_S = 50, 30.0


class Rung(IntEnum):
    """What is tried for an allocation that fails, in this order; the first two by the job itself."""

    RELEASE_CACHE = 1
    SPILL = 2
    PAUSE_NEIGHBOURS = 3
    SMALLER_BATCH = 4
    FAIL = 5


def next_rung(last: Rung | None, *, neighbours: bool, can_split: bool) -> Rung:
    """What to try after `last`, which did not help (None: nothing was tried).

    neighbours: opportunistic jobs beside it can still be paused; can_split: its steps may become micro-batches, which
    is repeated while it is possible.

    >>> next_rung(Rung.SPILL, neighbours=False, can_split=True).name
    'SMALLER_BATCH'
    """
    if last is None:
        return Rung.RELEASE_CACHE
    if last is Rung.RELEASE_CACHE:
        return Rung.SPILL
    if last <= Rung.PAUSE_NEIGHBOURS and neighbours:
        return Rung.PAUSE_NEIGHBOURS
    return Rung.SMALLER_BATCH if can_split else Rung.FAIL


@dataclass(frozen=True, slots=True)
class Grant:
    """Bytes above the least limit of an opportunistic job, and the relative speed that each of them brought."""

    size_bytes: int
    gain: float


@dataclass(frozen=True, slots=True)
class Meter:
    """Work and the job's own seconds in counted steps at one limit; the first step at a limit is not counted."""

    steps: int = -1
    work: float = 0.0
    own_s: float = 0.0

    def add(self, step: StepStats) -> Meter:
        """The meter with one step more."""
        if self.steps < 0:
            return Meter(0)
        return Meter(self.steps + 1, self.work + (step.work or 1.0), self.own_s + step.own_s)

    @property
    def speed(self) -> float:
        """Work a second of the job's own; steps a second if it does not state its work."""
        return self.work / self.own_s if self.own_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class JobMemory:
    """One job.

    cap_bytes         the limit in its last directive
    number            counts changes of it, and pauses, so that the job can report what it applied
    held_bytes        the most that it may still use: its limit until it has confirmed a lower one
    persistent_bytes  as its last step reported, before that as declared
    unlimited         it has confirmed a limit and keeps none: what it needs beyond could not go to the host
    unknown           nobody has said what persists: neither a declaration nor a step
    needed_bytes      the least limit that an out-of-memory error taught; of an unknown job, to start with
    demand_bytes      of the guaranteed job: reserved and spilled by the last steps
    grants            of an opportunistic job: what it has above the least limit, oldest first
    tried_at_s        when more memory last brought it nothing
    split             into how many micro-batches its steps are split
    rung              how far its allocation that fails has climbed the ladder
    leaving           its directive is to save its state and leave
    """

    cap_bytes: int = 0
    number: int = 0
    held_bytes: int = 0
    persistent_bytes: int = 0
    needed_bytes: int = 0
    demand_bytes: tuple[int, ...] = ()
    grants: tuple[Grant, ...] = ()
    meter: Meter = Meter()
    tried_at_s: float | None = None
    split: int = 1
    rung: Rung | None = None
    leaving: bool = False
    action: Action = Action.PAUSE
    unknown: bool = False
    unlimited: bool = False

    @property
    def least_bytes(self) -> int:
        """The limit below which it cannot run."""
        return max(self.persistent_bytes + headroom(self.persistent_bytes), self.needed_bytes)

    @property
    def granted_bytes(self) -> int:
        """Bytes above the least limit."""
        return sum(grant.size_bytes for grant in self.grants)

    @property
    def wanted_bytes(self) -> int:
        """The most that the last steps of the guaranteed job asked for, and headroom."""
        footprint = max(self.demand_bytes, default=0)
        return footprint + headroom(footprint)


@dataclass(frozen=True, slots=True)
class Trial:
    """More memory for one job, to see what it brings; `taken` is what another job gave for it, `giver` which one."""

    job: str
    size_bytes: int
    speed: float
    giver: str | None = None
    taken: Grant | None = None


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The state of the law. `hold_until_s`: the guaranteed limit is not lowered before; the rest are counts."""

    jobs: Mapping[str, JobMemory] = field(default_factory=dict)
    trial: Trial | None = None
    hold_until_s: float = 0.0
    bursts: int = 0
    partial_shrinks: int = 0


def headroom(size_bytes: int) -> int:
    """Bytes of room above a footprint."""
    return max(int(HEADROOM * size_bytes), LEAST_HEADROOM_BYTES)


def budget(capacity_bytes: int, jobs: int) -> int:
    """Bytes that the limits of so many jobs may add up to: without the margin and the contexts of the processes."""
    return max(capacity_bytes - MARGIN_BYTES - jobs * CONTEXT_BYTES, 0)
