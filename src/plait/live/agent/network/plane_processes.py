"""The two processes of a switch: the software switch itself, and the aggregation server for what it does not finish."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from plait.live.dataplane.control import SwitchControl
from plait.live.protocol.wire import SwitchOrder
from plait.live.system import procs
from plait.live.system.procs import Process

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
            raise NotReady(f"{self._what} did not start: {_last_line(self._log)}")
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
        tether = [sys.executable, "-P", "-m", "plait.live.agent.network.tether", str(os.getpid())]
        command = [*tether, sys.executable, "-m", "plait.live.dataplane", kind, *words]
        environment = {**os.environ, procs.MARK: f"{self._mark}:{kind}-{self.order.name}:0:0"}
        with open(self._log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=self._cwd, env=environment,
                start_new_session=True,
            )  # fmt: skip
        self._children.add(child.pid)
        return Starting(kind, self.order.name, control, self._log, child)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it wrote nothing"
