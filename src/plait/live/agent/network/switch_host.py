"""The switch that an agent serves: its processes are started and watched, its jobs follow the service, in one thread.

Whatever goes wrong here leaves the agent and its jobs alone: the trouble is reported, and tried again.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plait.core.errors import InputError
from plait.live.agent.network.leases import Leases
from plait.live.agent.network.plane_processes import NotReady, PlaneProcesses
from plait.live.layout import Layout
from plait.live.protocol.wire import Lease, SwitchOrder, SwitchSeen
from plait.live.system import procs

#: Between two looks at processes that start; at processes and counters; between two starts of a switch that dies at
#: once, first and longest.
START_TICK_S = 0.05
TICK_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 0.2, 30.0


class SwitchHost:
    """Serves the switch of the newest order, or none; `changed` is called when there is something new to report."""

    def __init__(
        self, layout: Layout, node: str, declared: str, log: Callable[..., None], changed: Callable[[], None]
    ) -> None:
        """Nothing runs before `start`. `declared`: the only switch that this node may serve, "" for any."""
        self._layout, self._node, self._log, self._changed = layout, node, log, changed
        self._mark = hashlib.sha256(str(layout.home).encode()).hexdigest()[:12]
        self._order: SwitchOrder | None = None
        self._contact: tuple[float, float] = (0.0, 0.0)
        self._seen = SwitchSeen(declared=declared)
        self._processes: PlaneProcesses | None = None
        self._leases: Leases | None = None
        #: The pids of its processes; pids of processes that have ended may still be in it.
        self.children: set[int] = set()
        self._starts, self._again_s, self._pause_s = 0, -math.inf, FIRST_PAUSE_S
        self._wake, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._guard, name="switch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the processes and the thread."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def follow(self, order: SwitchOrder | None, asked_s: float, lease_s: float) -> None:
        """Take the newest order, from the answer to the request sent at `asked_s` (CLOCK_BOOTTIME); from any thread.

        Without another one for `lease_s` seconds, all that jobs have is freed: the service may have given it to others.
        """
        self._contact = asked_s, lease_s
        if order != self._order:
            self._order = order
            self._wake.set()

    def seen(self) -> SwitchSeen:
        """The state to report; from any thread."""
        return self._seen

    def _guard(self) -> None:
        said = ""
        while not self._closed:
            self._wake.clear()
            try:
                self._look()
                said = ""
            except (OSError, InputError, NotReady, ValueError, KeyError) as error:
                if str(error) != said:
                    said = str(error)
                    self._log("switch", why=said, where="" if isinstance(error, NotReady) else traceback.format_exc(-3))
                self._end()
                self._tell(replace(self._seen, incarnation="", trouble=said, leases=[], held=0.0))
            self._wake.wait(START_TICK_S if self._processes is not None and self._leases is None else TICK_S)
        self._end()

    def _look(self) -> None:
        """One step: the processes of the order, its leases, and what is to be reported."""
        order, processes = self._order, self._processes
        if processes is not None and (order is None or _place(order) != _place(processes.order)):
            self._end()
        if order is None:
            self._tell(SwitchSeen(declared=self._seen.declared, restarts=self._seen.restarts))
            return
        if self._processes is not None and not self._processes.alive:
            self._log("switch died", switch=order.name)
            self._end()
        if self._processes is None:
            self._tell(replace(self._seen, name=order.name, incarnation="", leases=[], held=0.0))
            if time.monotonic() < self._again_s:
                return
            self._begin(order)
        assert self._processes is not None
        if not self._processes.ready():
            return
        if self._leases is None:
            self._leases = Leases(self._processes)
            self._starts += 1
            self._log("switch started", switch=order.name, port=self._processes.switch.port, starts=self._starts)
        trouble = self._leases.settle(self._in_force(order))
        held, leases = self._leases.seen()
        self._tell(
            SwitchSeen(
                order.name, self._seen.declared, self._processes.incarnation, trouble, self._processes.switch.port,
                self._processes.server.port, order.aggregators, held, self._starts - 1, leases,
            )
        )  # fmt: skip

    def _in_force(self, order: SwitchOrder) -> list[Lease]:
        """Leases that have not ended for want of contact to the service."""
        asked_s, lease_s = self._contact
        silent_s = procs.boot_s() - asked_s
        return [one for one in order.leases if silent_s < min(lease_s, one.ttl_s or math.inf)]

    def _begin(self, order: SwitchOrder) -> None:
        self._again_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        folder = self._layout.node(self._node)
        sockets = self._layout.gates.parent / f"switch-{self._node}"
        sockets.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.children = set()
        log, home = folder / "switch.log", self._layout.home
        self._processes = PlaneProcesses(order, sockets, log, self._mark, home, self.children)

    def _end(self) -> None:
        if self._processes is not None:
            self._processes.end()
        self._processes = self._leases = None

    def _tell(self, seen: SwitchSeen) -> None:
        before, self._seen = self._seen, seen
        if _news(before) != _news(seen):
            if seen.incarnation and seen.incarnation == before.incarnation:
                self._pause_s = FIRST_PAUSE_S  # it serves
            self._changed()


def _place(order: SwitchOrder) -> SwitchOrder:
    """The order without its jobs: another of it needs other processes."""
    return replace(order, leases=[])


def _news(seen: SwitchSeen) -> tuple[Any, ...]:
    """The part of a report that is sent at once; counters can wait for the next report."""
    return seen.name, seen.incarnation, seen.trouble, [(one.job, one.epoch, one.refused) for one in seen.leases]
