"""A control group for the processes of each attempt, where the machine lets us make one (cgroup v2).

A daemon that changes its session, its parent and its environment stays in its group. This is no wall: a job has the
rights of its runner, so one that means to leave its group can. The runner makes the group below its own, the job's
process enters it before it becomes the job, and the process that ends the attempt finds all of it there. Where no group
can be made everything here finds nothing: processes are then known by descent, session and mark alone. No controller is
switched on: limits and accounting stay as they are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from functools import cache

_PREFIX = "plait."
_REMOVE_S = 1.0
#: Descriptors of the one group of a process that gave up root's rights: of its processes, and of its freezer.
_held: list[int] = []


@cache
def _mount() -> str:
    """Where cgroup v2 is mounted; "" if it is not, or shows a part of the hierarchy that paths do not begin at."""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            words, _, kind = line.partition(" - ")
            if kind.startswith("cgroup2 ") and words.split()[3] == "/":
                return words.split()[4]
    return ""


def _folder(mark: str) -> str:
    """The group of an attempt below the group of this process; "" if there can be none."""
    if not _mount():
        return ""
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("0::/") and "/.." not in line:  # not outside of what this namespace shows
                return os.path.join(_mount(), line[4:].strip(), _PREFIX + mark.replace(":", "."))
    return ""


def make(mark: str) -> str:
    """Make the group of an attempt; its folder, "" where it cannot be made."""
    folder = _folder(mark)
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    except OSError:
        return ""
    return folder


def hold(mark: str) -> None:
    """Make the group of an attempt and keep it open, as its files will be closed to this process: it gives up root."""
    if folder := make(mark):
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CLOEXEC
            _held.append(os.open(os.path.join(folder, "cgroup.procs"), flags))
            _held.append(os.open(os.path.join(folder, "cgroup.freeze"), flags))


def drop() -> None:
    """Close what `hold` has opened: the job has no more of it."""
    while _held:
        os.close(_held.pop())


def enter(folder: str, pid: int = 0) -> None:
    """Put a process (0: this one), and all that it starts from now on, into the group; does nothing if refused.

    `folder` is what `make` returned.
    """
    if not folder:
        return
    with contextlib.suppress(OSError):
        fd = os.dup(_held[0]) if _held else os.open(os.path.join(folder, "cgroup.procs"), os.O_WRONLY)
        try:
            os.write(fd, str(pid).encode())
        finally:
            os.close(fd)


def open_freezer(mark: str) -> int:
    """A descriptor at which 1 freezes and 0 thaws the group of an attempt; -1 if it has none with processes in it."""
    folder = _folder(mark)
    try:
        if len(_held) > 1:
            return os.dup(_held[1])
        return os.open(os.path.join(folder, "cgroup.freeze"), os.O_WRONLY | os.O_CLOEXEC) if _inside(folder) else -1
    except OSError:  # Linux before 5.2, or not permitted
        return -1


def members(mark: str) -> set[int]:
    """Processes of an attempt's group, and of groups that it made below."""
    folder = _folder(mark)
    return _inside(folder) if folder else set()


def remove(mark: str) -> None:
    """Remove the group of an attempt that has no processes any more."""
    if folder := _folder(mark):
        _remove(folder)


def inside_home(home: str) -> set[int]:
    """Processes of all groups of the home folder whose marks begin with this, wherever its agents were started."""
    return {pid for folder in _of_home(home) for pid in _inside(folder)}


def remove_home(home: str) -> None:
    """Remove the groups of a home folder that have no processes any more."""
    for folder in _of_home(home):
        _remove(folder)


def _of_home(home: str) -> list[str]:
    found = []
    for folder, names, _ in os.walk(_mount()) if _mount() else ():
        mine = [name for name in names if name.startswith(f"{_PREFIX}{home}.")]
        found += [os.path.join(folder, name) for name in mine]
        names[:] = [name for name in names if name not in mine]
    return found


def _inside(folder: str) -> set[int]:
    pids: set[int] = set()
    for below, _, _ in os.walk(folder):
        with contextlib.suppress(OSError), open(os.path.join(below, "cgroup.procs"), encoding="ascii") as file:
            pids.update(int(line) for line in file)
    return pids - {0}  # of another pid namespace: not ours to end


def _remove(folder: str) -> None:
    until = time.monotonic() + _REMOVE_S
    for below, _, _ in os.walk(folder, topdown=False):
        while os.path.isdir(below):
            try:
                os.rmdir(below)
            except OSError as error:  # the last one is still going
                if error.errno in (errno.EACCES, errno.EPERM) or _inside(below) or time.monotonic() > until:
                    return
                time.sleep(0.01)
