"""The switch that an agent serves: its processes are started and watched, its jobs follow the service, in one thread.

Whatever goes wrong here leaves the agent and its jobs alone: the trouble is reported, and tried again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.live.dataplane.control import SwitchControl
from plait.live.layout import Layout
from plait.live.protocol.wire import Lease, LeaseSeen, SwitchOrder, SwitchSeen
from plait.live.system import procs
from plait.live.system.procs import Process

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


#: Offset, size and window.
Region = tuple[int, int, int]


class Leases:
    """Leases of one incarnation of a switch; it begins with none, and only its agent changes them."""

    def __init__(self, processes: PlaneProcesses) -> None:
        """Of processes that have just started."""
        self._processes = processes
        #: Jobs that are registered, by their number on the wire, with the regions of their epochs.
        self.has: dict[int, Lease] = {}
        self._regions: dict[int, dict[int, Region]] = {}
        self._wanted: list[Lease] = []
        self._refused: dict[int, str] = {}

    def settle(self, wanted: Collection[Lease]) -> str:
        """Free, register and move jobs until the switch serves `wanted`; returns the first refusal, "" if none.

        Freed memory and numbers come first, so that they are available to others. A job whose other region is refused
        keeps its present one. Raises `OSError` if a process does not answer.
        """
        self._wanted, self._refused = list(wanted), {}
        by_wire = {lease.wire: lease for lease in wanted}
        for wire in list(self.has):
            if wire not in by_wire or _member(by_wire[wire]) != _member(self.has[wire]):
                self._free(wire)
        for wire in self.has:
            self._drain(by_wire[wire])
        for wire, lease in by_wire.items():
            try:
                self._serve(lease)
            except InputError as error:
                self._refused[wire] = str(error)
        return next(iter(self._refused.values()), "")

    def seen(self) -> tuple[float, list[LeaseSeen]]:
        """Aggregators in use, and of each job what the switch has counted, or why it does not serve its region.

        Raises `OSError`, `InputError`.
        """
        counted = self._processes.switch.control.statistics()
        rows: Mapping[int, Mapping[str, Any]] = {int(row["job"]): row for row in counted["jobs"]}
        found = []
        for lease in self._wanted:
            row = rows.get(lease.wire, {})
            held, came, collided, done = (
                float(row.get(name, 0)) for name in ("held", "packets_in", "collided", "aggregated")
            )
            why = self._refused.get(lease.wire, "")
            found.append(LeaseSeen(lease.job, lease.epoch, held, came, collided, done, why))
        return float(counted["held"]), found

    def _drain(self, lease: Lease) -> None:
        """Take back the memory of epochs that no rank uses any more."""
        regions = self._regions[lease.wire]
        if not lease.moving:
            for epoch in [one for one in regions if one != lease.epoch]:
                self._processes.switch.control.drain(lease.wire, epoch)
                del regions[epoch]

    def _serve(self, lease: Lease) -> None:
        """Register a job, or move it; raises `InputError` if it is refused."""
        switch, wire = self._processes.switch.control, lease.wire
        planes = self._planes(lease)
        if wire not in self.has:
            self._register(lease, planes)
        regions, region = self._regions[wire], (lease.offset, lease.size, lease.window)
        if regions.get(lease.epoch) != region:
            for plane in reversed(planes):  # the switch first, for it may refuse
                mode = str(lease.options["index"])
                plane.region(wire, lease.offset, lease.size, lease.epoch, mode, lease.window or None)
            for epoch in [one for one in regions if one != lease.epoch - 1]:
                del regions[epoch]
            regions[lease.epoch] = region
        if self.has[wire].priority != lease.priority:
            switch.priority(wire, lease.priority or None)
        self.has[wire] = lease

    def _register(self, lease: Lease, planes: Collection[SwitchControl]) -> None:
        try:
            for plane in planes:
                plane.register(lease.wire, lease.name, lease.workers, lease.options, lease.token)
        except InputError:
            self._free(lease.wire)
            raise
        self.has[lease.wire] = replace(lease, priority=-1)
        self._regions[lease.wire] = {}

    def _planes(self, lease: Lease) -> list[SwitchControl]:
        """Dedicated slots complete every sum, and a server takes no such job."""
        switch = self._processes.switch.control
        return [switch] if lease.options["protocol"] == "switchml" else [self._processes.server.control, switch]

    def _free(self, wire: int) -> None:
        self.has.pop(wire, None)
        self._regions.pop(wire, None)
        for plane in (self._processes.switch.control, self._processes.server.control):
            try:
                plane.free(wire)
            except InputError:
                continue  # it does not have the job: it was refused there


def _member(lease: Lease) -> tuple[object, ...]:
    """The registration of a job; a different one is a different job."""
    return lease.job, lease.token, lease.workers, tuple(sorted(lease.options.items()))


# -- The two processes of a switch: the software switch, and the server for what it does not finish -------

#: Seconds for a process to report that it is ready (compiling its kernels once takes long), and to end.
READY_S, END_S = 120.0, 3.0
#: Seconds for an answer of a control socket: a switch that stands still for longer is started again.
CONTROL_S = 15.0


class NotReady(Exception):
    """A process did not start; the message has the reason."""


@dataclass
class RunningPlane:
    """A process that has reported ready: its data port and a connection to its control socket."""

    process: Process
    port: int
    control: SwitchControl
    child: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.process.alive

    def end(self) -> None:
        """End it, by force if it does not."""
        self.control.close()
        self.process.send(signal.SIGTERM)
        until = time.monotonic() + END_S
        while self.process.alive and time.monotonic() < until:
            self.child.poll()
            time.sleep(0.01)
        self.process.send(signal.SIGKILL)
        self.child.poll()


class Starting:
    """A process that has not reported ready yet."""

    def __init__(self, kind: str, name: str, control: str, log: Path, child: subprocess.Popen[bytes]) -> None:
        """`kind`: switch or server, of the switch `name`; `control`: path of its control socket."""
        self._what, self._control, self._log, self._child = f"the {kind} of {name}", control, log, child
        self._process, self._until_s, self._said = Process.of(child.pid), time.monotonic() + READY_S, b""
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)

    def look(self) -> RunningPlane | None:
        """The process once it is ready; never waits. Raises `NotReady`, having ended it, if it ends or is too slow."""
        stdout = self._child.stdout
        assert stdout is not None
        try:
            part = os.read(stdout.fileno(), 4096)
        except BlockingIOError:
            if time.monotonic() < self._until_s:
                return None
            part = b""
        self._said += part
        line, whole, _ = self._said.partition(b"\n")
        if part and not whole:
            return None
        if not whole or self._process is None:
            self.end()
            raise NotReady(f"{self._what} did not start: {procs.last_line(self._log, 'it wrote nothing')[:300]}")
        stdout.close()
        port = int(json.loads(line)["data"][1])
        return RunningPlane(self._process, port, SwitchControl(self._control, CONTROL_S), self._child)

    def end(self) -> None:
        """End it by force: it has no users."""
        self._child.kill()
        self._child.wait(END_S)
        if self._child.stdout is not None:
            self._child.stdout.close()


class PlaneProcesses:
    """Switch and server of one order: started together, ended together, because a new one of either knows nothing."""

    def __init__(self, order: SwitchOrder, sockets: Path, log: Path, mark: str, cwd: Path, children: set[int]) -> None:
        """Begin to start both; raises `OSError`.

        `sockets`: path of the control sockets without their ending; `log`: where they write errors to; `mark`: by
        which processes of this home are known; the pids of both are added to `children`.
        """
        self.order, self._sockets, self._log, self._mark, self._cwd = order, sockets, log, mark, cwd
        self._children = children
        self._server: RunningPlane | None = None
        self._switch: RunningPlane | None = None
        self._starting: Starting | None = self._start("server", {
            "payload": order.payload_bytes, "window": order.most_window, "jobs": order.most_jobs,
            "slots": order.aggregators,
        })  # fmt: skip

    @property
    def server(self) -> RunningPlane:
        """The aggregation server, once both are `ready`."""
        assert self._server is not None
        return self._server

    @property
    def switch(self) -> RunningPlane:
        """The software switch, once both are `ready`."""
        assert self._switch is not None
        return self._switch

    def ready(self) -> bool:
        """Whether both serve; continues their start and never waits. Raises `NotReady` if one does not start."""
        if self._starting is None:
            return True
        found = self._starting.look()
        if found is None:
            return False
        if self._server is not None:
            self._switch, self._starting = found, None
            return True
        self._server, order = found, self.order
        self._starting = self._start("switch", {
            "payload": order.payload_bytes, "aggregators": order.aggregators,
            "server": f"{order.address}:{found.port}",
        })  # fmt: skip
        return False

    @property
    def incarnation(self) -> str:
        """New for every start."""
        return f"{self.switch.process.boot[:8]}-{self.switch.process.pid}-{self.switch.process.start_time}"

    @property
    def alive(self) -> bool:
        """Whether none that was ready has ended."""
        return all(one is None or one.alive for one in (self._switch, self._server))

    def end(self) -> None:
        for one in (self._starting, self._switch, self._server):
            if one is not None:
                one.end()

    def _start(self, kind: str, values: dict[str, object]) -> Starting:
        control = f"{self._sockets}.{kind}"
        given = {"name": self.order.name, "listen": f"{self.order.address}:0", "control": control, **values}
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        tether = [sys.executable, "-P", "-m", "plait.live.agent.tether", str(os.getpid())]
        command = [*tether, sys.executable, "-m", "plait.live.dataplane", kind, *words]
        environment = {**os.environ, procs.MARK: f"{self._mark}:{kind}-{self.order.name}:0:0"}
        with open(self._log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=self._cwd, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._children.add(child.pid)
        return Starting(kind, self.order.name, control, self._log, child)
