"""A runner whose job's process starts before the attempt begins, while another attempt of the job still runs.

    python -S -P -m plait.live.agent.processes.successor_runner   < a task, one line, and later the task of the attempt

The process loads modules, reports that it is ready at the descriptor `READY`, and waits for this runner. The agent
closes the input of the runner after the attempt's task; if there is none (the attempt was not needed, or the agent has
died), both end. Before the task nothing is claimed and nothing of the job runs, so no lease is looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass

from plait.live.agent.processes.runner import Runner, Task, claim
from plait.live.system import cgroups, procs
from plait.runtime.command_line import SUCCESSOR

#: The descriptor with which this program is started, see the module.
READY = 3


@dataclass
class SuccessorRunner(Runner):
    """Holds a process, and carries out a task with it; see the module."""

    _go: int = -1

    def hold(self) -> None:
        """Start the process."""
        go, self._go = os.pipe2(os.O_CLOEXEC)
        self.task.env = self.task.env | {SUCCESSOR: f"{go} {READY}"}
        self._inherited = (go, READY)
        super()._make_child("")
        self._inherited = ()
        for fd in (go, READY):
            os.close(fd)

    def drop(self) -> None:
        """End the process."""
        if self.child and self.status is None:
            with contextlib.suppress(OSError):
                os.kill(self.child, signal.SIGKILL)
                os.waitpid(self.child, 0)

    def _make_child(self, group: str) -> tuple[int, str] | None:
        """Let the process begin, or start another if it has ended."""
        self._collect()
        if self.status is None:
            cgroups.enter(group, self.child)
            try:
                os.write(self._go, json.dumps({"env": self.task.env}).encode())
                os.close(self._go)
                return None
            except OSError:
                self.drop()
        self.status = None
        os.close(self._go)
        os.close(self._pipe)
        return super()._make_child(group)


def main() -> int:
    """Hold a process for the first task on standard input, and carry out the second one with it."""
    try:
        runner = SuccessorRunner(Task(**json.loads(sys.stdin.buffer.readline())))
    except ValueError:
        return 0  # the agent died while it wrote
    os.umask(0o077)
    procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)
    runner.hold()
    try:
        runner.task = Task(**json.loads(sys.stdin.buffer.read()))
    except ValueError:
        runner.drop()
        return 0
    if claim(runner.task.folder):
        runner.run()
    else:
        runner.drop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
