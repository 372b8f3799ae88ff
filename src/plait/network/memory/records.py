"""What managers of switch memory take and give: requests, regions, leases, answers. Start at `Memory` and `Request`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from plait.core.cluster import Network
from plait.core.errors import InputError, suggest
from plait.network.protocol.addressing import Index

#: What a job says of aggregation in switches.
NEEDS = ("auto", "require", "off")
#: Bytes of headers of a packet, next to its payload.
HEADER_BYTES = 58


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job that asks for aggregators.

    job              its number
    switches         that would add up its gradients, by name
    need             auto: falls back without a grant; require: does not run without one; off: wants none
    memory           aggregators that it wants on each switch for itself; 0: as the manager decides
    window           packets that a worker may have under way; 0: as the manager decides
    ttl_s            the lease ends so long after it was given or renewed
    link_bits_per_s  of its slowest worker; `rtt_s` from a packet to its result without queues
    gradient_bytes   of one exchange; 0 unknown
    computation_s    of one iteration, without communication; `communication_s` of one iteration; NaN unknown
    iterations_left  until the job ends; NaN unknown
    deadline_s       a time on the clock of `now_s`; infinite without one
    remaining_s      of the job; NaN unknown. `attained_s`: service that it has received, used in its place
    layer_rank       of the tensor, 1 for the layer nearest to the input

    Raises `InputError` for values that no job can have.
    """

    job: int
    switches: tuple[str, ...]
    need: str = "auto"
    memory: int = 0
    window: int = 0
    ttl_s: float = math.inf
    link_bits_per_s: float = 100e9
    rtt_s: float = 10e-6
    gradient_bytes: float = 0.0
    computation_s: float = math.nan
    communication_s: float = math.nan
    iterations_left: float = math.nan
    deadline_s: float = math.inf
    remaining_s: float = math.nan
    attained_s: float = 0.0
    layer_rank: int = 1

    def __post_init__(self) -> None:
        self._require(self.need in NEEDS, "need", f"one of {', '.join(NEEDS)}")
        self._require(
            len(self.switches) == len(set(self.switches)) and bool(self.switches), "switches", "one or more, each once"
        )
        for name in ("memory", "window", "gradient_bytes", "attained_s"):
            self._require(0 <= getattr(self, name) < math.inf, name, "a number >= 0")
        for name in ("ttl_s", "link_bits_per_s", "rtt_s"):
            self._require(getattr(self, name) > 0, name, "a positive number")
        for name in ("computation_s", "communication_s", "iterations_left", "remaining_s"):
            self._require(not getattr(self, name) < 0, name, "a number >= 0, or NaN if unknown")
        self._require(not math.isnan(self.deadline_s), "deadline_s", "a time, or infinity without a deadline")
        self._require(self.layer_rank >= 1, "layer_rank", "a whole number of at least 1")

    def _require(self, ok: bool, name: str, wanted: str) -> None:
        if not ok:
            raise InputError(f"job {self.job}: {name} is {getattr(self, name)!r}, needs {wanted}")

    def goodput_ceiling(self, payload_bytes: int) -> float:
        """Bits of gradient a second that its link can carry beside the headers."""
        return self.link_bits_per_s * payload_bytes / (payload_bytes + HEADER_BYTES)

    def full_window(self, payload_bytes: int) -> int:
        """Packets of a worker under way at the rate of its link: the bandwidth-delay product."""
        return packets_under_way(self.goodput_ceiling(payload_bytes), self.rtt_s, payload_bytes)


def packets_under_way(bits_per_s: float, rtt_s: float, payload_bytes: int) -> int:
    """Packets that are under way at a rate of payload: ceil(rate * RTT / payload), at least 1."""
    return max(1, math.ceil(bits_per_s * rtt_s / (8 * payload_bytes) - 1e-9))


@dataclass(frozen=True, slots=True)
class Region:
    """Aggregators `offset` to `offset + size - 1` of a switch, and how packets choose one of them.

    `epoch` counts the regions that the job has had. `exclusive`: no other job has any of them.
    """

    offset: int
    size: int
    mode: Index
    epoch: int
    exclusive: bool

    @property
    def end(self) -> int:
        """The first aggregator behind it."""
        return self.offset + self.size

    def overlaps(self, other: Region) -> bool:
        """Whether both have an aggregator in common."""
        return self.offset < other.end and other.offset < self.end


@dataclass(frozen=True, slots=True)
class Target:
    """What a manager has decided for a job; its regions follow at iteration boundaries.

    `sizes`: aggregators on each switch of the request; of a shared target those are the most that it may get.
    `mode` None: no memory. `action`: what the owner of the job has to do, "" or one of `inalloc.ACTIONS`.
    """

    mode: Index | None
    exclusive: bool = False
    sizes: tuple[int, ...] = ()
    window: int = 0
    priority: int = 0
    action: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """A job that was admitted: its request, what is decided for it, and the regions that it has now.

    `regions`: one for each switch of the request, None where it has none (yet).
    """

    request: Request
    target: Target
    regions: tuple[Region | None, ...]
    until_s: float
    epoch: int = 0

    def region_on(self, switch: str) -> Region | None:
        return dict(zip(self.request.switches, self.regions, strict=True)).get(switch)


@dataclass(frozen=True, slots=True)
class SwitchMemory:
    """The memory of a switch: aggregators that jobs may use, each with the payload of a packet."""

    id: str
    usable: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of all switches and who has it. Frozen: managers return another one.

    `leases` are in the order of admission.
    """

    switches: tuple[SwitchMemory, ...]
    leases: tuple[Lease, ...] = ()

    @classmethod
    def of(cls, network: Network) -> Memory:
        """The empty memory of the switches of a network."""
        return cls(tuple(SwitchMemory(one.id, one.usable, one.payload_bytes) for one in network.switches))

    def switch(self, name: str) -> SwitchMemory:
        """A switch by its name; raises `InputError` if there is none."""
        for one in self.switches:
            if one.id == name:
                return one
        raise InputError(f"switch {name!r} is unknown; {suggest(name, [one.id for one in self.switches])}")

    def find(self, job: int) -> Lease | None:
        """The lease of a job, or None."""
        return next((lease for lease in self.leases if lease.request.job == job), None)

    def lease(self, job: int) -> Lease:
        """The lease of a job; raises `InputError` if it has none."""
        found = self.find(job)
        if found is None:
            raise InputError(f"job {job} has no lease of switch memory; admit it first")
        return found

    def regions(self, switch: str, but: int | None = None) -> list[Region]:
        """Regions on a switch by offset, without those of the job `but`."""
        found = [lease.region_on(switch) for lease in self.leases if lease.request.job != but]
        return sorted((region for region in found if region is not None), key=lambda region: region.offset)

    def with_lease(self, lease: Lease) -> Memory:
        """With this lease in place of that of its job."""
        job = lease.request.job
        return replace(self, leases=tuple(lease if one.request.job == job else one for one in self.leases))


@dataclass(frozen=True, slots=True)
class Grant:
    """The region of a job on one switch, and the packets that a worker may have under way."""

    switch: str
    region: Region
    window: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a manager says to a request, with the reason in words.

    granted    whether the job is admitted; what it has of that now is in `grants`, one for each switch with a region
    waits_for  jobs whose next iteration boundary is awaited before the job has all that was decided for it
    mode       that is in use now, as text (`none` without a region)
    priority   of its packets, 1 to 255 under ESA, else 0
    action     what the owner of the job has to do: "" for nothing, or one of `inalloc.ACTIONS`
    """

    job: int
    granted: bool
    reason: str
    grants: tuple[Grant, ...] = ()
    waits_for: tuple[int, ...] = ()
    priority: int = 0
    action: str = ""

    @property
    def mode(self) -> str:
        """The mode of its regions, or `none`."""
        return self.grants[0].region.mode.name.lower() if self.grants else "none"

    @property
    def window(self) -> int:
        """Packets that a worker may have under way; 0 without a region."""
        return min((grant.window for grant in self.grants), default=0)
