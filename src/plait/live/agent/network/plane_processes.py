"""The two processes of a switch: the software switch itself, and the aggregation server for what it does not finish."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from plait.live.dataplane.control import SwitchControl
from plait.live.protocol.wire import SwitchOrder
from plait.live.system import procs
from plait.live.system.procs import Process

#: Seconds for a process to say that it is ready (compiling its kernels once takes long), and to end.
READY_S, END_S = 120.0, 3.0
#: Seconds for an answer of a control socket: a switch that stands still for longer is started again.
CONTROL_S = 15.0


class NotReady(Exception):
    """A process did not start; the message says why."""


@dataclass
class Running:
    """A process that has said that it is ready: its data port and a connection to its control socket."""

    process: Process
    port: int
    control: SwitchControl
    child: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        """Whether it runs."""
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


class PlaneProcesses:
    """Switch and server of one order: started together, ended together, because a new one of either knows nothing."""

    def __init__(self, order: SwitchOrder, sockets: Path, log: Path, mark: str, cwd: Path, children: set[int]) -> None:
        """Start both and wait until they are ready; raises `NotReady`, having ended what was started, and `OSError`.

        `sockets`: path of the control sockets without their ending; `log`: where they write errors to; `mark`: by
        which processes of this home are known; the pids of both are added to `children`.
        """
        self.order, self._sockets, self._log, self._mark, self._cwd = order, sockets, log, mark, cwd
        self._children = children
        self.server = self._start("server", {
            "payload": order.payload_bytes, "window": order.most_window, "jobs": order.most_jobs,
            "slots": order.aggregators,
        })  # fmt: skip
        try:
            self.switch = self._start("switch", {
                "payload": order.payload_bytes, "aggregators": order.aggregators,
                "server": f"{order.address}:{self.server.port}",
            })  # fmt: skip
        except BaseException:
            self.server.end()
            raise

    @property
    def incarnation(self) -> str:
        """New for every start."""
        return f"{self.switch.process.boot[:8]}-{self.switch.process.pid}-{self.switch.process.start_time}"

    @property
    def alive(self) -> bool:
        """Whether both run."""
        return self.switch.alive and self.server.alive

    def end(self) -> None:
        """End both."""
        self.switch.end()
        self.server.end()

    def _start(self, kind: str, values: dict[str, object]) -> Running:
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
        process = Process.of(child.pid)
        assert child.stdout is not None
        with child.stdout as said:
            line = _first_line(said, child)
        if line is None or process is None:
            child.kill()
            child.poll()
            raise NotReady(f"the {kind} of {self.order.name} did not start: {_last_line(self._log)}")
        return Running(process, int(json.loads(line)["data"][1]), SwitchControl(control, CONTROL_S), child)


def _first_line(said: IO[bytes], child: subprocess.Popen[bytes]) -> bytes | None:
    """What a process says when it is ready; None if it ends or takes too long."""
    until, text = time.monotonic() + READY_S, b""
    with selectors.DefaultSelector() as selector:
        selector.register(said, selectors.EVENT_READ)
        while time.monotonic() < until:
            if not selector.select(0.5):
                continue
            part = os.read(said.fileno(), 4096)
            if not part:
                return None
            text += part
            if b"\n" in text:
                return text.partition(b"\n")[0]
    return None


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it wrote nothing"
