"""Plans: which jobs run on which GPUs. A few groups are objects; thousands are columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import overload

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.codec.values import form
from plait.core.errors import InputError
from plait.core.network_grants import NetworkGrant


class Gate(IntEnum):
    """How the members of a group take turns.

    NONE: all at once, whatever happens. TOKENS: a stage waits for its resource. BARRIER: lock step, every
    member does one stage, then all rotate (Muri, section 4).
    """

    NONE = 0
    TOKENS = 1
    BARRIER = 2


@dataclass(frozen=True, slots=True)
class Member:
    """One job's part in a group: covers Muri (turn), Pollux (batch size) and AntMan (share, memory)."""

    job: int
    turn: int = 0
    batch_size: int = 0
    accumulation: int = 1
    gpu_share: float = 1.0
    gpu_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share these GPUs (numbers in the cluster, ascending).

    A `guest` group uses what other groups leave free (AntMan, section 3): its GPUs may belong to other groups, hosts
    and guests. All other groups are hosts, and no GPU has two hosts.
    """

    members: tuple[Member, ...]
    gpus: tuple[int, ...]
    gate: Gate = Gate.NONE
    guest: bool = False

    def __post_init__(self) -> None:
        if not self.members or not self.gpus:
            raise InputError("a group needs at least one member and one GPU")


#: per-member details that differ from `Member`'s defaults, as columns
_DETAILS = {"turn": 0.0, "batch_size": 0.0, "accumulation": 1.0, "gpu_share": 1.0, "gpu_memory_bytes": 0.0}
TURN, GPU_MEMORY_BYTES = list(_DETAILS).index("turn"), list(_DETAILS).index("gpu_memory_bytes")


def plain_details(members: int) -> FloatArray:
    """`Groups.details` of so many members, all defaults, to be filled in."""
    return np.tile(np.array(list(_DETAILS.values())), (members, 1))


class Groups:
    """A sequence of `Group`s held as columns.

    `jobs[first_job[g]:first_job[g+1]]` are the members and `gpus[first_gpu[g]:first_gpu[g+1]]` the GPUs of
    group `g`. `gate` has one value a group; `details` is None or one row of `_DETAILS` a member; `guest` is None, for
    no guests, or one flag a group.
    """

    __slots__ = ("details", "first_gpu", "first_job", "gate", "gpus", "guest", "jobs")

    def __init__(
        self,
        jobs: IntArray,
        gpus: IntArray,
        first_gpu: IntArray,
        first_job: IntArray | None = None,
        gate: IntArray | None = None,
        details: FloatArray | None = None,
        guest: BoolArray | None = None,
    ) -> None:
        """Without `first_job` every group has one member."""
        self.jobs = jobs
        self.gpus = gpus
        self.first_gpu = first_gpu
        self.first_job = np.arange(len(jobs) + 1, dtype=np.int64) if first_job is None else first_job
        self.gate = gate
        self.details = details
        self.guest = guest

    @classmethod
    def of(cls, groups: Iterable[Group]) -> Groups:
        rows = list(groups)
        members = [m for g in rows for m in g.members]
        details = np.array([[getattr(m, name) for name in _DETAILS] for m in members], dtype=np.float64)
        plain = not members or bool((details == list(_DETAILS.values())).all())
        gates = np.array([g.gate for g in rows], dtype=np.int64)
        guests = np.array([g.guest for g in rows], dtype=np.bool_)
        return cls(
            np.array([m.job for m in members], dtype=np.int64),
            np.array([gpu for g in rows for gpu in g.gpus], dtype=np.int64),
            _offsets([len(g.gpus) for g in rows]),
            _offsets([len(g.members) for g in rows]),
            gates if gates.any() else None,
            None if plain else details,
            guests if guests.any() else None,
        )

    def __len__(self) -> int:
        return len(self.first_gpu) - 1

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: IntArray) -> Groups: ...
    def __getitem__(self, index: int | IntArray) -> Group | Groups:
        if isinstance(index, np.ndarray):
            return self._take(index)
        lo, hi = int(self.first_job[index]), int(self.first_job[index + 1])
        members = tuple(self._member(i) for i in range(lo, hi))
        gpus = tuple(self.gpus[self.first_gpu[index] : self.first_gpu[index + 1]].tolist())
        gate = Gate.NONE if self.gate is None else Gate(self.gate[index])
        return Group(members, gpus, gate, self.guest is not None and bool(self.guest[index]))

    def _member(self, i: int) -> Member:
        job = int(self.jobs[i])
        if self.details is None:
            return Member(job)
        turn, batch, accumulation, share, memory = self.details[i].tolist()
        return Member(job, int(turn), int(batch), int(accumulation), share, memory)

    def _take(self, index: IntArray) -> Groups:
        if len(index) == 1 and self.single:
            g = int(index[0])
            lo, hi = self.first_gpu[g], self.first_gpu[g + 1]
            part = slice(g, g + 1)
            return Groups(
                self.jobs[part],
                self.gpus[lo:hi],
                np.array([0, hi - lo]),
                gate=None if self.gate is None else self.gate[part],
                details=None if self.details is None else self.details[part],
                guest=None if self.guest is None else self.guest[part],
            )
        members, first_job = _ragged(self.first_job, index)
        gpus, first_gpu = _ragged(self.first_gpu, index)
        return Groups(
            self.jobs[members],
            self.gpus[gpus],
            first_gpu,
            first_job,
            None if self.gate is None else self.gate[index],
            None if self.details is None else self.details[members],
            None if self.guest is None else self.guest[index],
        )

    def __iter__(self) -> Iterator[Group]:
        return (self[i] for i in range(len(self)))

    @property
    def single(self) -> bool:
        """Whether every group has exactly one member."""
        return len(self.jobs) == len(self)

    @property
    def hosts(self) -> Groups:
        """The groups that are no guests, in the same order."""
        return self if self.guest is None else self._take(np.flatnonzero(~self.guest))

    @property
    def guests(self) -> Groups:
        """The guest groups, in the same order."""
        return NO_GROUPS if self.guest is None else self._take(np.flatnonzero(self.guest))

    def gpu_count(self) -> IntArray:
        """GPUs of each group."""
        count: IntArray = self.first_gpu[1:] - self.first_gpu[:-1]
        return count

    def group_of_member(self) -> IntArray:
        """For each entry of `jobs`, the index of its group."""
        if self.single:
            return np.arange(len(self.jobs), dtype=np.int64)
        return np.repeat(np.arange(len(self), dtype=np.int64), self.first_job[1:] - self.first_job[:-1])


def _offsets(lengths: list[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))]).astype(np.int64)


def _ragged(first: IntArray, index: IntArray) -> tuple[IntArray, IntArray]:
    """Positions of all entries of the selected rows, and the offsets of the selection."""
    lengths = first[index + 1] - first[index]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    positions = np.arange(offsets[-1], dtype=np.int64) + np.repeat(first[index] - offsets[:-1], lengths)
    return positions, offsets


NO_REASONS: Mapping[int, str] = MappingProxyType({})
NO_GROUPS = Groups(NO_JOBS, NO_JOBS, np.zeros(1, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs (numbers in the cluster, ascending) without hosts, held for a waiting job; guests may use them."""

    job: int
    gpus: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.gpus:
            raise InputError(f"a reservation for job number {self.job} needs at least one GPU")


#: Words by which a reason names a reservation.
RESERVED = "reserved for project"


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """These `nodes` are for jobs of `project` alone from `from_s` until `until_s`, seconds; `by`: who reserved them.

    `key`: under which the same user may request it again.
    Raises `InputError` for one without nodes, project or time.
    """

    id: str
    nodes: tuple[str, ...]
    project: str
    from_s: float
    until_s: float
    by: str = field(default="", metadata=form(omit=True))
    key: str = field(default="", metadata=form(omit=True))

    def __post_init__(self) -> None:
        if not (self.nodes and self.project):
            raise InputError(f"reservation {self.id}: needs a node and a project")
        if not -math.inf < self.from_s < self.until_s < math.inf:
            raise InputError(f"reservation {self.id}: ends at {self.until_s:g} s, needs an end after {self.from_s:g} s")

    def __str__(self) -> str:
        nodes = self.nodes[0] if len(self.nodes) == 1 else f"{', '.join(self.nodes[:-1])} and {self.nodes[-1]}"
        return f"{nodes} {'is' if len(self.nodes) == 1 else 'are'} {RESERVED} {self.project}, {self.id}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The complete plan: a job that it does not name should not run.

    `order` lists jobs best first (place in the queue) and `levels` their queue, both kept in `JobStatus` for the next
    decision. `promoted` jobs start counting service and waiting from zero (Tiresias, section 3). `reasons`: by waiting
    job, why it waits. `valid_until_s`: when the policy wants to decide again if nothing happens before. `suspend`: jobs
    that lose their GPUs stay in host memory, so that they resume quickly (Gandiva, section 3). `settled`: every active
    job runs and would continue unchanged if others left, so departures alone are no reason to decide again.
    `reservations` hold GPUs for waiting jobs. `kills` are jobs that lose their GPUs without a checkpoint: they resume
    from the last one they wrote. In a live cluster they save one first, like all others. `grants` give jobs of the plan
    memory of switches: a grant that the plan does not repeat ends. `network_notes`: by job that wants aggregation, why
    it runs without.
    """

    groups: Groups
    order: IntArray | None = None
    levels: IntArray | None = None
    promoted: IntArray = field(default_factory=lambda: NO_JOBS)
    reasons: Mapping[int, str] = field(default_factory=lambda: NO_REASONS)
    valid_until_s: float = math.inf
    suspend: bool = False
    settled: bool = False
    reservations: tuple[Reservation, ...] = ()
    kills: IntArray = field(default_factory=lambda: NO_JOBS)
    grants: tuple[NetworkGrant, ...] = ()
    network_notes: Mapping[int, str] = field(default_factory=lambda: NO_REASONS)

    @classmethod
    def of(
        cls,
        groups: Iterable[Group],
        reasons: Mapping[int, str] | None = None,
        valid_until_s: float = math.inf,
        reservations: tuple[Reservation, ...] = (),
        grants: tuple[NetworkGrant, ...] = (),
    ) -> Plan:
        """A plan from group objects, for policies that think in small numbers."""
        return cls(
            Groups.of(groups), reasons=reasons or {}, valid_until_s=valid_until_s, reservations=reservations,
            grants=grants,
        )  # fmt: skip
