"""The whole memory of a switch for all its jobs at once: ATP and A2TP, and ESA, where packets have priorities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.errors import InputError
from plait.core.options import option
from plait.network.memory.manager import Manager, bounded_window
from plait.network.memory.records import Memory, Request, Target
from plait.network.protocol.addressing import Index
from plait.network.protocol.priority import esa_priority

_INDICES = {"hash": Index.SHARED_HASH, "cycle": Index.SHARED_CYCLE}


@dataclass(frozen=True)
class Shared(Manager):
    """Every job may use every aggregator; packets that find theirs taken go to the parameter server.

    Best effort, as in ATP and A2TP (released code): every job is admitted where a switch has aggregators, and nobody
    is promised any. On switches without memory a job is not aggregated.
    """

    index: str = option(
        "How packets choose aggregators: hash, or cycle for slots distinct within a job", default="hash"
    )

    def __post_init__(self) -> None:
        if self.index not in _INDICES:
            raise InputError(f"index is {self.index!r}, needs {' or '.join(_INDICES)}")

    def targets(self, memory: Memory, now_s: float) -> Mapping[int, Target]:
        """All of each switch, for each job."""
        return {lease.request.job: self._target(memory, lease.request) for lease in memory.leases}

    def priority(self, request: Request) -> int:
        """The priority of the packets of a job; 0: packets have none."""
        return 0

    def _target(self, memory: Memory, request: Request) -> Target:
        switches = [memory.switch(name) for name in request.switches]
        sizes = tuple(one.usable for one in switches)
        if not any(sizes):
            return Target(
                None, reason=f"{' and '.join(request.switches)}: no aggregators; all packets go to the server"
            )
        most = min(size for size in sizes if size) if self.index == "cycle" else math.inf
        window = bounded_window(request, switches[0].payload_bytes, most)
        without = [one.id for one in switches if not one.usable]
        reason = "shares all aggregators with other jobs" + (f"; {', '.join(without)} has none" if without else "")
        return Target(_INDICES[self.index], False, sizes, window, self.priority(request), reason=reason)


@dataclass(frozen=True)
class Esa(Shared):
    """Shared memory in which packets of higher priority take aggregators from others, after the description of ESA.

    The priority is that of `protocol.priority.esa_priority`: (1 / layer rank) x (communication / computation) x
    (1 / remaining time), on a scale of logarithms from 1 to 255 (the scale is our design). Where the remaining time is
    unknown, the attained service stands for it; where the times of an iteration are unknown, their ratio is 1.
    """

    def priority(self, request: Request) -> int:
        """1 to 255 from the facts of the request."""
        known = not math.isnan(request.communication_s + request.computation_s)
        communication, computation = (request.communication_s, request.computation_s) if known else (1.0, 1.0)
        remaining = request.attained_s if math.isnan(request.remaining_s) else request.remaining_s
        return esa_priority(request.layer_rank, communication, computation, remaining)
