"""The interface of all managers of switch memory, and what they have in common. Start at `Manager`.

A manager decides for each admitted job how many aggregators it is to have (`Manager.targets`). Regions follow at
iteration boundaries, when no packet of the job is under way, so that nothing is disrupted: a job that gets less, or
other aggregators, changes at its own boundary, and whoever needs those waits for that. Our design.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from plait.core.errors import InputError, SimulationError
from plait.network.memory.records import Answer, Grant, Lease, Memory, Region, Request, Target
from plait.network.protocol.addressing import Index

# Regions of aggregators in the memory of one switch: first fit, contiguous. Our design.


def first_fit(taken: Iterable[Region], capacity: int, size: int) -> int | None:
    """The lowest offset at which `size` aggregators below `capacity` are in none of these regions; None without one.

    >>> from plait.network.protocol.addressing import Index
    >>> first_fit([Region(0, 4, Index.DEDICATED, 0, True), Region(6, 2, Index.DEDICATED, 0, True)], 12, 3)
    8
    """
    at = 0
    for region in sorted(taken, key=lambda one: one.offset):
        if region.offset - at >= size:
            return at
        at = max(at, region.end)
    return at if capacity - at >= size else None


def remainder(exclusive: Iterable[Region], capacity: int, most: int) -> tuple[int, int]:
    """Offset and size of what is left for all others behind regions of one job each: at most the last `most`."""
    start = max((region.end for region in exclusive), default=0)
    start = max(start, capacity - most)
    return start, max(capacity - start, 0)


_UNDECIDED = Target(None)


@dataclass(frozen=True)
class Manager(ABC):
    """Decides which job has which aggregators. Every method is a pure function: state in, state out."""

    @abstractmethod
    def targets(self, memory: Memory, now_s: float) -> Mapping[int, Target]:
        """What each job with a lease is to have, by its number; exclusive sizes fit on every switch together."""

    def preview(self, memory: Memory, request: Request, now_s: float) -> Answer:
        """The answer that `admit` would give; nothing changes."""
        return self.admit(memory, request, now_s)[1]

    def admit(self, memory: Memory, request: Request, now_s: float) -> tuple[Memory, Answer]:
        """Admit a job, if that is possible; otherwise the memory is as before.

        The job is between two iterations. Raises `InputError` for an unknown switch, or a job that has a lease.
        """
        for name in request.switches:
            memory.switch(name)
        if memory.find(request.job) is not None:
            raise InputError(f"job {request.job} has a lease of switch memory; renew or release it")
        if request.need == "off":
            return memory, Answer(request.job, False, "the job wants no aggregation in switches")
        lease = Lease(request, _UNDECIDED, (None,) * len(request.switches), now_s + request.ttl_s)
        asked = replace(memory, leases=(*memory.leases, lease))
        targets = self.targets(asked, now_s)
        target = targets[request.job]
        if target.mode is None:
            return memory, _answer(memory, replace(lease, target=target))
        return self.boundary(_decided(asked, targets), request.job)

    def renew(
        self, memory: Memory, job: int, now_s: float, request: Request | None = None
    ) -> tuple[Memory, tuple[Answer, ...]]:
        """Extend the lease of a job, with new facts about it if a `request` is given; the switches stay the same.

        Returns the answers to all jobs for which something else is decided now, those with an action first.
        Raises `InputError` for a job without lease, or for other switches.
        """
        lease = memory.lease(job)
        request = lease.request if request is None else request
        if request.job != job or request.switches != lease.request.switches:
            raise InputError(
                f"job {job}: its lease is for {', '.join(lease.request.switches)}; release it before it asks for others"
            )
        lease = replace(lease, request=request, until_s=now_s + request.ttl_s)
        return self.review(memory.with_lease(lease), now_s)

    def review(self, memory: Memory, now_s: float) -> tuple[Memory, tuple[Answer, ...]]:
        """Decide again for all jobs: the periodic step. Answers as of `renew`."""
        before = {lease.request.job: lease.target for lease in memory.leases}
        memory = _decided(memory, self.targets(memory, now_s))
        changed = [lease for lease in memory.leases if lease.target != before[lease.request.job]]
        changed.sort(key=lambda lease: not lease.target.action)
        return memory, tuple(_answer(memory, lease) for lease in changed)

    def review_due_s(self, memory: Memory, now_s: float) -> float:
        """When to decide again if no job comes or goes before; never by default."""
        return math.inf

    def release(self, memory: Memory, job: int, now_s: float) -> Memory:
        """Take back all that a job has; what others get of it they have after their next iteration boundary."""
        memory.lease(job)
        left = replace(memory, leases=tuple(lease for lease in memory.leases if lease.request.job != job))
        return self.review(left, now_s)[0]

    def expire(self, memory: Memory, now_s: float) -> tuple[Memory, tuple[int, ...]]:
        """Release leases that were not renewed in time; returns their jobs."""
        late = tuple(lease.request.job for lease in memory.leases if lease.until_s <= now_s)
        for job in late:
            memory = self.release(memory, job, now_s)
        return memory, late

    def boundary(self, memory: Memory, job: int) -> tuple[Memory, Answer]:
        """A job is between two iterations: it takes the regions that are decided for it, where they are free by now.

        A new region for the job alone goes to the lowest place where it fits (first fit). One that is there moves down
        to those below it, so memory is compacted here and nowhere else. Raises `InputError` for a job without lease.
        """
        lease = memory.lease(job)
        found = _places(memory, lease)
        if found != [region and _place(region) for region in lease.regions]:
            epoch = lease.epoch + 1
            regions = tuple(
                place and Region(place.offset, place.size, place.mode, epoch, place.exclusive) for place in found
            )
            lease = replace(lease, regions=regions, epoch=epoch)
            memory = memory.with_lease(lease)
        return memory, _answer(memory, lease)

    def settle(self, memory: Memory) -> Memory:
        """The memory after so many iterations of all jobs that nothing changes any more."""
        for _ in range(4 * len(memory.leases) + 4):  # each round compacts, shrinks or grows some region
            before = memory
            for lease in memory.leases:
                memory, _ = self.boundary(memory, lease.request.job)
            if memory == before:
                return memory
        raise SimulationError(
            f"memory manager {type(self).__name__}: regions of {len(memory.leases)} jobs never settle"
        )

    def answer(self, memory: Memory, job: int) -> Answer:
        """What a job with a lease has now; raises `InputError` without one."""
        return _answer(memory, memory.lease(job))


def _decided(memory: Memory, targets: Mapping[int, Target]) -> Memory:
    return replace(memory, leases=tuple(replace(lease, target=targets[lease.request.job]) for lease in memory.leases))


class _Place(NamedTuple):
    """Where a region is, without its epoch."""

    offset: int
    size: int
    mode: Index
    exclusive: bool


def _place(region: Region) -> _Place:
    return _Place(region.offset, region.size, region.mode, region.exclusive)


def _places(memory: Memory, lease: Lease) -> list[_Place | None]:
    """Where the regions of a job can be now, for each switch of its request.

    Regions for the job alone begin on all switches at once. Until they can, the job shares what is left for all, if its
    index allows.
    """
    target = lease.target
    if target.mode is None:
        return [None] * len(lease.regions)
    if not target.exclusive:
        return _shared_places(memory, lease, target.mode)
    if any(region is not None and region.exclusive for region in lease.regions):
        return [_moved(memory, lease, i) for i in range(len(lease.regions))]
    found: list[_Place | None] = []
    for switch, size in zip(lease.request.switches, target.sizes, strict=True):
        at = first_fit(memory.regions(switch, but=lease.request.job), memory.switch(switch).usable, size)
        found.append(None if at is None else _Place(at, size, target.mode, True))
    if None not in found:
        return found
    if target.mode in (Index.HYBRID_REGION, Index.HYBRID_MODULO):
        return _shared_places(memory, lease, Index.HYBRID_REGION)
    return [None] * len(found)


def _moved(memory: Memory, lease: Lease, i: int) -> _Place:
    """The region for a job alone on switch `i` of its request, on which it has one.

    It is to be right behind the regions below it, as large as these are to be. Because the order of regions stays, no
    two jobs wait for each other. As long as others are in that place, it stays where it is, and may shrink.
    """
    switch, region, target = lease.request.switches[i], lease.regions[i], lease.target
    assert region is not None
    assert target.mode is not None
    offset = 0
    for one in memory.leases:
        other = one.region_on(switch)
        if other is not None and other.exclusive and other.offset < region.offset and one.target.exclusive:
            offset += one.target.sizes[one.request.switches.index(switch)]
    place = _Place(offset, target.sizes[i], target.mode, True)
    wanted = Region(*place[:3], 0, True)
    if any(other.overlaps(wanted) for other in memory.regions(switch, but=lease.request.job)):
        return _Place(region.offset, min(region.size, target.sizes[i]), target.mode, True)
    return place


def _shared_places(memory: Memory, lease: Lease, mode: Index) -> list[_Place | None]:
    """What no job has, or is to have, for itself; None on a switch where nothing is left."""
    found: list[_Place | None] = []
    for switch in lease.request.switches:
        capacity = memory.switch(switch).usable
        alone = [region for region in memory.regions(switch, but=lease.request.job) if region.exclusive]
        at, size = remainder(alone, capacity, capacity - promised(memory, switch))
        found.append(_Place(at, size, mode, False) if size > 0 else None)
    return found


def promised(memory: Memory, switch: str) -> int:
    """Aggregators of a switch that are decided for jobs of their own."""
    for_one = (one for one in memory.leases if one.target.exclusive and switch in one.request.switches)
    return sum(one.target.sizes[one.request.switches.index(switch)] for one in for_one)


def _answer(memory: Memory, lease: Lease) -> Answer:
    """What a job has now, and why."""
    target, request = lease.target, lease.request
    if target.mode is None:
        return Answer(request.job, False, target.reason, action=target.action)
    got = [(name, one) for name, one in zip(request.switches, lease.regions, strict=True) if one is not None]
    window = target.window
    if target.exclusive and got and got[0][1].exclusive:  # may still be less than what is decided
        window = min(window, *(max(1, one.size // 2) for _, one in got))
    grants = tuple(Grant(name, region, window) for name, region in got)
    late = _late(memory, lease)
    reason = target.reason
    if late:
        names = ", ".join(map(str, late))
        reason += f"; waits for the next iteration boundary of job{'s' * (len(late) > 1)} {names}"
    return Answer(request.job, True, reason, grants, late, target.priority, target.action)


def _late(memory: Memory, lease: Lease) -> tuple[int, ...]:
    """Jobs that leave aggregators at their next boundary which this one is to have; empty if it has all it is to."""
    target = lease.target
    complete = all(
        region is not None and region.mode == target.mode and (not target.exclusive or region.size == size)
        for region, size in zip(lease.regions, target.sizes, strict=True)
    )
    if complete:
        return ()
    mine = set(lease.request.switches)
    others = (one for one in memory.leases if one.request.job != lease.request.job and any(one.regions))
    return tuple(
        sorted(
            one.request.job
            for one in others
            if mine.intersection(one.request.switches)
            and _places(memory, one) != [region and _place(region) for region in one.regions]
        )
    )


def bounded_window(request: Request, payload_bytes: int, most: float = math.inf) -> int:
    """The window of a request: what it asks for, else the bandwidth-delay product; at most `most`, at least 1."""
    asked = request.window or request.full_window(payload_bytes)
    return int(max(1, min(asked, most)))
