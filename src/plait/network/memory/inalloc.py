"""Memory by deadlines, after the description of INAlloc: the bandwidth that a deadline needs gives the region.

The description says: sort jobs by urgency; from the deadline and the iterations left follows the time of an iteration,
less the measured computation that for communication, from the bytes of the model a bandwidth, times the RTT a window,
and that is the memory. The remainder is shared by all others. Regions, their places and epochs, what happens to a
deadline that cannot be met, the margin, and who gets what others do not need (`spare`) are our design.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from plait.core.errors import InputError
from plait.core.options import option
from plait.network.fluid.max_min import Uses, max_min
from plait.network.memory.manager import Manager, bounded_window
from plait.network.memory.records import Lease, Memory, Request, Target, packets_under_way
from plait.network.protocol.addressing import Index

#: What may be done about a deadline that cannot be met.
ACTIONS = ("demote", "notify", "terminate")
INDICES = ("auto", "modulo", "hash")
#: Who gets memory that no deadline needs.
SPARE = ("all", "others")
#: Size of a region over its window: with the remainder half of it is a reserve; with a hash, 1 / (1 + window / size)
#: of the packets find their aggregator free, and 19 gives 95 %.
MODULO_FACTOR, HASH_FACTOR = 2, 19


@dataclass(frozen=True)
class Inalloc(Manager):
    """Jobs with deadlines get regions of their own, the most urgent first; the others share what is left.

    A job without deadline may ask for `memory`, and gets it behind the deadlines. A deadline cannot be met if its job
    has no time left for communication, needs more than its link carries, or more memory than is free. Then, by
    `on_infeasible`: `demote` lets it share what is left; `notify` gives it as large a region as is free, up to what its
    link can use; `terminate` takes its memory. The answer has that word as its action, so that its owner can be told,
    or the job ended; nothing else ends jobs. Without the facts that a deadline needs the job shares, too.
    """

    margin: float = option("Bandwidth granted over that which the deadline needs", default=1.1, least=1, most=10)
    index: str = option("In regions of one job: auto, modulo or hash; auto is modulo", default="auto")
    on_infeasible: str = option("For a deadline that cannot be met: demote, notify or terminate", default="demote")
    period_s: float = option(
        "Seconds between reviews of all jobs while regions could be larger", default=60.0, least=1e-3, most=1e6
    )
    spare: str = option(
        "Who gets memory that no deadline needs: all, or others, which are jobs without region", default="all"
    )

    def __post_init__(self) -> None:
        for name, known in (("index", INDICES), ("on_infeasible", ACTIONS), ("spare", SPARE)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}, needs {', '.join(known)}")
        if not 1 <= self.margin <= 10:
            raise InputError(f"margin is {self.margin:g}, needs 1 to 10")

    @property
    def factor(self) -> int:
        """Aggregators of a region for each packet of its window."""
        return HASH_FACTOR if self.index == "hash" else MODULO_FACTOR

    def targets(self, memory: Memory, now_s: float) -> Mapping[int, Target]:
        """By urgency, what the deadlines need; then what jobs ask for; all others share."""
        free = {one.id: one.usable for one in memory.switches}
        found: dict[int, Target] = {}
        urgent = sorted(memory.leases, key=lambda lease: (lease.request.deadline_s, lease.request.job))
        for lease in urgent:
            request = lease.request
            if math.isfinite(request.deadline_s):
                target = self._for_deadline(memory, request, free, now_s)
            elif request.memory:
                target = self._as_asked(memory, request, free)
            else:
                continue
            found[request.job] = target
            if target.exclusive:
                for switch, size in zip(request.switches, target.sizes, strict=True):
                    free[switch] -= size
        if self.spare == "all" and any(target.exclusive for target in found.values()):
            self._grow(memory, free, found)
        return {
            lease.request.job: self._sharing(memory, lease, free, found.get(lease.request.job))
            for lease in memory.leases
        }

    def _grow(self, memory: Memory, free: dict[str, int], found: dict[int, Target]) -> None:
        """Let regions for deadlines in `found` grow into what is `free`; each by the same on all of its switches.

        Jobs that share count as one with a region that is still empty, so that they are left as large a part.
        """
        part: list[tuple[Lease, int]] = []
        for lease in memory.leases:
            request, had = lease.request, found.get(lease.request.job)
            own = had is not None and had.exclusive
            if (own and not math.isfinite(request.deadline_s)) or (had is not None and had.action == "terminate"):
                continue  # as it asked for, or nothing
            full = self.factor * request.full_window(memory.switch(request.switches[0]).payload_bytes)
            part.append((lease, full - (had.sizes[0] if had is not None and own else 0)))
        part = [(lease, more) for lease, more in part if more >= self.factor]
        number = {name: i for i, name in enumerate(free)}
        uses = Uses.of([{number[name]: 1.0 for name in lease.request.switches} for lease, _ in part])
        limit = np.array([more for _, more in part], dtype=np.float64)
        gains, _ = max_min(np.array(list(free.values()), dtype=np.float64), uses, None, limit)
        for (lease, _), gain in zip(part, gains.tolist(), strict=True):
            request, had = lease.request, found.get(lease.request.job)
            packets = int(gain + 1e-6) // self.factor
            if had is None or not had.exclusive or not packets:
                continue
            why = f"{had.reason}, {packets * self.factor} more are spare"
            found[request.job] = replace(self._region(request, had.window + packets, why), action=had.action)
            for name in request.switches:
                free[name] -= packets * self.factor

    def review_due_s(self, memory: Memory, now_s: float) -> float:
        """After a period, if a deadline's region is smaller than what its job can use: needs change as time passes."""
        for lease in memory.leases:
            request, target = lease.request, lease.target
            full = request.full_window(memory.switch(request.switches[0]).payload_bytes)
            if math.isfinite(request.deadline_s) and target.exclusive and target.window < full:
                return now_s + self.period_s
        return math.inf

    def _for_deadline(self, memory: Memory, request: Request, free: Mapping[str, int], now_s: float) -> Target:
        """A region of its own, or a target without mode: the reason why not, and what is to be done."""
        unknown = [name for name in ("iterations_left", "computation_s") if math.isnan(getattr(request, name))]
        unknown += [] if request.gradient_bytes else ["gradient_bytes"]
        if unknown:
            return Target(None, reason=f"its deadline needs {' and '.join(unknown)}, which are unknown")
        left_s = (request.deadline_s - now_s) / max(request.iterations_left, 1e-9)
        communication_s = left_s - request.computation_s
        payload = memory.switch(request.switches[0]).payload_bytes
        ceiling = request.goodput_ceiling(payload)
        if communication_s <= 0:
            return self._infeasible(
                memory, request, free, f"its deadline leaves {left_s:.3g} s for an iteration, which computes for "
                f"{request.computation_s:.3g} s"
            )  # fmt: skip
        needed = 8 * request.gradient_bytes / communication_s
        if needed > ceiling:
            return self._infeasible(
                memory, request, free,
                f"its deadline needs {needed / 1e9:.3g} Gb/s of gradients; its link carries {ceiling / 1e9:.3g}"
            )  # fmt: skip
        window = packets_under_way(min(needed * self.margin, ceiling), request.rtt_s, payload)
        target = self._region(request, window, f"{needed / 1e9:.3g} Gb/s of gradients meet its deadline")
        short = [name for name in request.switches if free[name] < target.sizes[0]]
        if short:
            return self._infeasible(
                memory, request, free,
                f"its deadline needs {target.sizes[0]} aggregators; {short[0]} has {free[short[0]]} free"
            )  # fmt: skip
        return target

    def _as_asked(self, memory: Memory, request: Request, free: Mapping[str, int]) -> Target:
        """A region of the size that the job asks for."""
        least = min(free[name] for name in request.switches)
        if request.memory < self.factor or least < request.memory:
            return Target(None, reason=f"asks for {request.memory} aggregators; {least} are free")
        payload = memory.switch(request.switches[0]).payload_bytes
        window = bounded_window(request, payload, request.memory // self.factor)
        sizes = (request.memory,) * len(request.switches)
        return Target(self._mode, True, sizes, window, reason=f"{request.memory} aggregators, as it asks for")

    def _region(self, request: Request, window: int, reason: str) -> Target:
        size = window * self.factor
        return Target(self._mode, True, (size,) * len(request.switches), window, reason=reason)

    @property
    def _mode(self) -> Index:
        return Index.HYBRID_REGION if self.index == "hash" else Index.HYBRID_MODULO

    def _infeasible(self, memory: Memory, request: Request, free: Mapping[str, int], why: str) -> Target:
        """What is done about a deadline that cannot be met."""
        if self.on_infeasible == "notify":
            most = request.full_window(memory.switch(request.switches[0]).payload_bytes)
            window = min(most, min(free[name] for name in request.switches) // self.factor)
            if window > 0:
                target = self._region(request, window, why)
                return replace(target, action="notify")
        return Target(None, action=self.on_infeasible, reason=why)

    def _sharing(self, memory: Memory, lease: Lease, free: Mapping[str, int], decided: Target | None) -> Target:
        """The target of a job that has none of its own: the remainder, if there is some."""
        if decided is not None and (decided.exclusive or decided.action == "terminate"):
            return decided
        why = f"{decided.reason}; " if decided is not None else ""
        action = decided.action if decided is not None else ""
        request = lease.request
        sizes = tuple(free[name] for name in request.switches)
        if not any(sizes):
            return Target(None, action=action, reason=f"{why}no aggregators are left to share")
        payload = memory.switch(request.switches[0]).payload_bytes
        return Target(
            Index.HYBRID_REGION, False, sizes, bounded_window(request, payload), 0, action,
            f"{why}shares what regions of other jobs leave",
        )  # fmt: skip
