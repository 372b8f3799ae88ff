"""Processes that start next to a running attempt, for the next one of their job.

Python starts, imports what the job imported last time, and waits (`plait.training.successor`). When the attempt begins,
its process becomes that of the attempt (`successor_runner`). Until then it holds no GPU, runs nothing of the job, is in
no journal and ends with the agent; an attempt whose successor is not ready starts as any other.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from plait.live.agent.lease import NodeLease
from plait.live.agent.processes import launch
from plait.live.layout import Layout
from plait.live.protocol.wire import Run
from plait.live.system import procs
from plait.live.system.accounts import in_name_of
from plait.live.system.procs import Process
from plait.runtime.command_line import START_FILE

#: The one variable that may differ between a successor and its attempt: it is known only when the attempt begins.
_LATE = "MASTER_PORT"


@dataclass
class Successor:
    """A process that waits for the attempt of `run`, with its environment.

    `task`: descriptor to which the attempt's task is written, -1 if there is no process; `report`: one that becomes
    readable when the process is ready or has ended, -1 after that. `ready`: whether it waits for its task.
    """

    run: Run
    env: dict[str, str]
    process: Process | None = None
    task: int = -1
    report: int = -1
    ready: bool = False

    @classmethod
    def start(cls, run: Run, layout: Layout, env: dict[str, str], lease: NodeLease) -> Successor:
        """Start a process for `run`, or none where none can wait.

        `layout`: of the home folder; `env`: environment of the job; `lease`: file of the node's lease.

        The job must have run by the same command and counted steps: so the hook of plait runs in the process that the
        command starts, and keeps the script from beginning.
        """
        successor = cls(run, env)
        with in_name_of(layout.job(run.job)):
            started = procs.read_json(layout.job(run.job) / START_FILE) or {}
        if started.get("argv") == run.argv and not run.group.guest:
            with contextlib.suppress(OSError, ValueError):
                pid, successor.task, successor.report = launch.spawn_successor(run, layout, env, lease)
                successor.process = Process.of(pid)
        return successor

    def look(self) -> None:
        """Read whether the process is ready or has ended; `report` is closed."""
        with contextlib.suppress(OSError):
            self.ready = os.read(self.report, 1) != b""
        os.close(self.report)
        self.report = -1

    def fits(self, run: Run, env: dict[str, str]) -> bool:
        """Whether it is ready to become the process of `run` with this environment."""
        alike = {**self.env, _LATE: ""} == {**env, _LATE: ""}
        alike = alike and (self.run.argv, self.run.workdir) == (run.argv, run.workdir) and not run.group.guest
        return self.ready and alike and self.process is not None and self.process.alive

    def begin(self, task: bytes) -> Process | None:
        """Let it become the process of its attempt; None if it has just ended."""
        try:
            launch.write_all(self.task, task)
        except OSError:
            return None
        finally:
            self.close()
        return self.process

    def close(self) -> None:
        """End it, unless it has got its task."""
        for fd in (self.task, self.report):
            if fd >= 0:
                os.close(fd)
        self.task = self.report = -1
