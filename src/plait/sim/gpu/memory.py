"""The memory of a simulated GPU: what each job has reserved, its limit, and what it had to put on the host."""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.errors import SimulationError
from plait.sharing import Directive, Reached, Rung, SpillReason, next_rung
from plait.sharing.memory_state import CONTEXT_BYTES, MARGIN_BYTES


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a step got: bytes reserved on the device, bytes on the host and why, bytes that could not be served."""

    reserved_bytes: int
    spill_bytes: int
    reason: SpillReason
    refused_bytes: int


@dataclass(slots=True)
class _Pool:
    limit_bytes: int
    number: int = 0
    reserved_bytes: int = 0


class SimDevice:
    """Memory pools of jobs with limits at step boundaries; a pool keeps what the last step used.

    Limits follow the published code of AntMan (adjust at a boundary, partial shrink, spill to a host pool).
    """

    def __init__(self, capacity_bytes: int, host_bytes: int = 64 << 30) -> None:
        """`host_bytes`: the most that each job may pin on the host."""
        self.capacity_bytes, self.host_bytes = capacity_bytes, host_bytes
        self._pools: dict[str, _Pool] = {}

    def bound(self, job: str, directive: Directive, live_bytes: int = 0) -> None:
        """Set the limit of a job at its boundary; its process starts with the first one.

        What is reserved is freed until the limit is reached; `live_bytes` are in use and stay: a shrink may be partial.
        """
        given = directive.memory_limit_bytes
        limit = self.capacity_bytes if given is None else given
        pool = self._pools.setdefault(job, _Pool(limit))
        pool.reserved_bytes = min(pool.reserved_bytes, max(limit, live_bytes))
        pool.limit_bytes, pool.number = max(limit, pool.reserved_bytes), directive.limit_number

    def step(self, job: str, demand_bytes: int, fragmented_bytes: int = 0) -> Allocation:
        """Allocate for a step: from the pool within the limit, then on the host, and what neither has is refused.

        `fragmented_bytes` of the cache are of no use until it is released.
        """
        pool = self._pools[job]
        reason, rung, spill = SpillReason.NONE, None, 0
        usable = pool.limit_bytes - fragmented_bytes
        while demand_bytes > usable + spill:
            rung = next_rung(rung, neighbours=False, can_split=False)
            if rung is Rung.RELEASE_CACHE:
                usable = pool.limit_bytes
            elif rung is Rung.SPILL:
                reason = SpillReason.OUT_OF_MEMORY
                spill = min(demand_bytes - usable, self.host_bytes)
            else:
                break
        served = min(demand_bytes, usable)
        pool.reserved_bytes = served
        return Allocation(served, spill, reason, demand_bytes - served - spill)

    def leave(self, job: str) -> None:
        """The process has ended."""
        self._pools.pop(job, None)

    def reached(self) -> dict[str, Reached]:
        """The limits as jobs report them."""
        return {job: Reached(pool.number, pool.limit_bytes) for job, pool in self._pools.items()}

    def verify(self) -> None:
        """Raise `SimulationError` if limits in force, contexts and margin exceed the capacity of a shared device."""
        if len(self._pools) < 2:
            return
        limits = sum(pool.limit_bytes for pool in self._pools.values())
        total = limits + len(self._pools) * CONTEXT_BYTES + MARGIN_BYTES
        if total > self.capacity_bytes:
            names = ", ".join(f"{job} {pool.limit_bytes:,}" for job, pool in self._pools.items())
            raise SimulationError(
                f"memory limits of a GPU with {self.capacity_bytes:,} bytes are over-committed by "
                f"{total - self.capacity_bytes:,}: {names}, {CONTEXT_BYTES:,} a context, {MARGIN_BYTES:,} margin"
            )
