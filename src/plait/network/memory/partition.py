"""Equal parts of the memory of a switch for each of its jobs, as SwitchML needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.core.options import option
from plait.network.memory.manager import Manager, bounded_window
from plait.network.memory.records import Lease, Memory, Target
from plait.network.protocol.addressing import Index

#: Aggregators that a job needs at least: a window of one packet, twice.
LEAST = 2


@dataclass(frozen=True)
class EqualPartition(Manager):
    """Each job has a part of each switch for itself; the window is half of the smallest part.

    SwitchML's slots belong to one job, and its code has no arbitration beside partitioning (released code). Parts are
    equal (our design): `parts` of them, or as many as there are jobs, so that parts shrink as jobs come. A request
    with `memory` gets that much instead. A job for which no part of two aggregators is left on every switch is
    refused: without memory SwitchML cannot run.
    """

    parts: int = option(
        "Equal parts of each switch; 0: as many as it has jobs, which shrink as jobs come",
        default=0,
        least=0,
        most=4096,
    )

    def targets(self, memory: Memory, now_s: float) -> Mapping[int, Target]:
        """In the order of admission, jobs get parts while two aggregators are left for each."""
        kept: list[Lease] = []
        refused: dict[int, Target] = {}
        for lease in memory.leases:
            problem = self._problem(memory, [*kept, lease], lease)
            if problem:
                refused[lease.request.job] = Target(None, reason=problem)
            else:
                kept.append(lease)
        return {**refused, **{lease.request.job: self._target(memory, kept, lease) for lease in kept}}

    def _part(self, memory: Memory, leases: Sequence[Lease], switch: str) -> tuple[int, int]:
        """The size of an equal part of a switch, an even number, and what the jobs with a size of their own take."""
        usable = memory.switch(switch).usable
        here = [lease.request for lease in leases if switch in lease.request.switches]
        fixed = sum(_even(request.memory) for request in here if request.memory)
        count = self.parts or sum(not request.memory for request in here)
        return _even((usable if self.parts else usable - fixed) // count) if count else 0, fixed

    def _problem(self, memory: Memory, leases: Sequence[Lease], newest: Lease) -> str:
        """Why these jobs cannot have parts together; empty if they can."""
        if 0 < newest.request.memory < LEAST:
            return f"asks for {newest.request.memory} aggregator; dedicated slots need {LEAST} or more"
        for switch in newest.request.switches:
            usable = memory.switch(switch).usable
            part, fixed = self._part(memory, leases, switch)
            equal = sum(switch in lease.request.switches and not lease.request.memory for lease in leases)
            if (equal and part < LEAST) or fixed + equal * part > usable:
                shared = f"{usable} aggregators" if usable else "no aggregators"
                others = sum(switch in lease.request.switches for lease in leases) - 1
                return (
                    f"{switch} has {shared} for {others} job{'s' * (others != 1)} ahead of it; no part of at least "
                    f"{newest.request.memory or (part if self.parts and part >= LEAST else LEAST)} is left"
                )
        return ""

    def _target(self, memory: Memory, leases: Sequence[Lease], lease: Lease) -> Target:
        request = lease.request
        sizes = tuple(_even(request.memory) or self._part(memory, leases, switch)[0] for switch in request.switches)
        payload = memory.switch(request.switches[0]).payload_bytes
        window = bounded_window(request, payload, min(sizes) // 2)
        what = ", ".join(f"{size} of {switch}" for size, switch in zip(sizes, request.switches, strict=True))
        return Target(Index.DEDICATED, True, sizes, window, reason=f"aggregators for this job alone: {what}")


def _even(size: int) -> int:
    return size - size % 2
