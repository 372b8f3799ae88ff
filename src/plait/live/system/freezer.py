"""Freeze and thaw all processes of an attempt, also as often as a hundred times a second.

Where the attempt has a control group of its own (cgroup v2), the kernel's freezer does it: children, new sessions and
daemons are in the group, a parent does not see that its children stand still, and SIGKILL ends frozen processes.
Elsewhere, and for processes outside the group (started by a container engine), it is SIGSTOP and SIGCONT. Then a
process that starts between two scans runs on until the next one, and a process that the job itself has stopped stays
stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

from plait.live.system import cgroups, procs
from plait.live.system.procs import Process

#: Seconds between two scans for processes outside the control group, and for all of them where there is none.
STRAYS_EVERY_S, SCAN_EVERY_S = 5.0, 0.5


class Freezer:
    """The processes of one attempt. Close it when done."""

    def __init__(
        self, mark: str, find: Callable[[], Iterable[int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`mark`: of the attempt, which names its group; `find` returns all its processes, inside and outside of it."""
        self._mark, self._find, self._clock = mark, find, clock
        self._group = cgroups.open_freezer(mark)
        self._scan_s = -STRAYS_EVERY_S
        #: Processes that get signals, with a pidfd each; the ones among them that this object has frozen.
        self._fds: dict[Process, int] = {}
        self._stopped: set[Process] = set()

    @property
    def uses_group(self) -> bool:
        """Whether the kernel freezes the group; otherwise processes get signals."""
        return self._group >= 0

    def freeze(self) -> None:
        """Freeze the processes of the attempt; call it again meanwhile, for processes found by the next scan."""
        if self._group >= 0 and not _written(self._group, b"1"):
            self._leave_group()
        now_s = self._clock()
        if now_s - self._scan_s >= (STRAYS_EVERY_S if self._group >= 0 else SCAN_EVERY_S):
            self._scan_s = now_s
            self._stop(self._fds)
            while new := self._new():  # what they started before they stood still
                self._fds |= new
                self._stop(new)
        else:
            self._stop(self._fds)

    def thaw(self) -> None:
        """Let all processes run that `freeze` holds."""
        if self._group >= 0 and not _written(self._group, b"0"):
            self._leave_group()
        while self._stopped:
            process = self._stopped.pop()
            if process in self._fds:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._fds[process], signal.SIGCONT)

    def close(self) -> None:
        """Let all run, and forget them; may be called twice."""
        self.thaw()
        self._leave_group()
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def _leave_group(self) -> None:
        if self._group >= 0:
            os.close(self._group)
            self._group, self._scan_s = -1, -STRAYS_EVERY_S

    def _new(self) -> dict[Process, int]:
        """Processes that are to get signals and are not known yet."""
        pids = set(self._find()) - {os.getpid()}
        if self._group >= 0:
            pids -= cgroups.members(self._mark)
        known = {process.pid: process for process in self._fds}
        new = {}
        for pid in pids:
            process = Process.of(pid)
            if process is None or process == known.get(pid):
                continue
            if pid in known:
                self._forget(known[pid])
            if (fd := process.open()) is not None:
                new[process] = fd
        return new

    def _stop(self, processes: Iterable[Process]) -> None:
        for process in list(processes):
            fields = procs.stat_fields(process.pid)
            try:
                if fields is None or fields[0] in b"Tt":  # it has ended, or the job itself has stopped it
                    signal.pidfd_send_signal(self._fds[process], 0)
                    continue
                signal.pidfd_send_signal(self._fds[process], signal.SIGSTOP)
                self._stopped.add(process)
            except OSError:
                self._forget(process)

    def _forget(self, process: Process) -> None:
        os.close(self._fds.pop(process))
        self._stopped.discard(process)


def _written(fd: int, data: bytes) -> bool:
    try:
        return os.pwrite(fd, data, 0) == len(data)
    except OSError:
        return False
