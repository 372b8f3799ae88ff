"""Which aggregators jobs may use, and the priorities of their packets."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.errors import InputError
from plait.network.packets.scenario import PacketJob
from plait.network.protocol.addressing import Index, check_cycle, check_partitions
from plait.network.protocol.priority import esa_priority


def regions(jobs: Sequence[PacketJob], aggregators: int) -> list[tuple[int, int]]:
    """(First aggregator, how many) of each job, the same at all of its switches, of which each has so many.

    Jobs with memory of their own come first, one after the other. Of what is left each job has an equal part: those
    with dedicated slots their own, and not more than their windows use; all others have the rest together. Regions
    with a first aggregator lie there, whoever has it too. Raises `InputError` where memory is not enough, or dedicated
    slots would be somebody else's, too.
    """
    placed = [j for j, job in enumerate(jobs) if job.first is not None]
    own = [0 if job.collective or job.first is not None else job.memory if _exclusive(job) else None for job in jobs]
    granted = sum(size for size in own if size is not None)
    equal = [j for j, job in enumerate(jobs) if job.dedicated and job.memory is None]
    if granted > aggregators:
        raise InputError(f"jobs want {granted} aggregators of their own; the switch has {aggregators}")
    part = (aggregators - granted) // max(1, own.count(None))
    for j in equal:
        own[j] = min(part, 2 * jobs[j].options.window)
    check_partitions([size or 0 for size, job in zip(own, jobs, strict=True) if job.dedicated], aggregators)
    at, found = 0, []
    for size in own:
        found.append((at, size or 0))
        at += size or 0
    rest = at, aggregators - at
    for j, (job, size) in enumerate(zip(jobs, own, strict=True)):
        if size is None:
            found[j] = rest
        if job.options.mode == Index.SHARED_CYCLE:
            check_cycle(job.options.cycle_slots, job.options.window, rest[1])
    slots = {
        at for (first, size), job in zip(found, jobs, strict=True) if job.dedicated for at in range(first, first + size)
    }
    for j in placed:
        found[j] = first, size = jobs[j].first or 0, jobs[j].memory or 0
        if first + size > aggregators or not slots.isdisjoint(range(first, first + size)):
            raise InputError(
                f"job {j}: a region of {size} aggregators from {first} on; the switch has {aggregators}, of which "
                f"dedicated slots have {len(slots)}"
            )
    return found


def _exclusive(job: PacketJob) -> bool:
    """Whether the memory of a job is its own: dedicated slots, and regions that were asked for."""
    return job.options.mode in (Index.DEDICATED, Index.HYBRID_MODULO, Index.HYBRID_REGION)


def priorities(job: PacketJob, bits_per_s: float) -> list[int]:
    """The priority of each tensor of a job, over all of its iterations; 0 where the protocol has none."""
    count = len(job.tensors)
    if job.priority is not None:
        return [job.priority] * (count * job.iterations)
    if job.options.protocol != "esa":
        return [0] * (count * job.iterations)
    exchange_s = job.bits / bits_per_s
    return [
        esa_priority(count - k, exchange_s, job.compute_s, (job.iterations - i) * (exchange_s + job.compute_s))
        for i in range(job.iterations)
        for k in range(count)
    ]
