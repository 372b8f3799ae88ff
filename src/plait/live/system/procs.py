"""Processes as Linux shows them in /proc: who is it, is it still the same one, who descends from it, end them all.

A pid alone identifies no process, since the kernel reuses it. A process is its pid, its start time (clock ticks since
boot) and the boot it belongs to; signals go through a pidfd opened before the start time is compared.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from plait.core.files import OWNER_ONLY, replace_file
from plait.live.system import cgroups

# ---- whether processes make progress, however little of a busy machine they get ----


def thread_states(pid: int) -> tuple[bytes, int]:
    """States of a process's threads (proc(5): R, S, D, ...) and clock ticks of CPU time; nothing once it has ended."""
    states, ticks = b"", 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            if (fields := stat_fields(f"{pid}/task/{thread}")) is not None:
                states, ticks = states + fields[0], ticks + int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return states, ticks
    return states, ticks


def main_thread(pid: int) -> tuple[bytes, int]:
    """The same of a process's first thread alone."""
    fields = stat_fields(f"{pid}/task/{pid}")
    return (b"", 0) if fields is None else (fields[0], int(fields[11]) + int(fields[12]))


class Patience:
    """How long to wait for processes that come up: as long as one of them works.

    A process works if it has used CPU time since the last look, or waits for a CPU or a disk: what is slow then is the
    machine. Looks at which all slept are counted; time is not, so that a starved caller does not run out of patience.
    """

    def __init__(
        self, idle_looks: int, states: Callable[[int], tuple[bytes, int]] = thread_states, least_ticks: int = 1
    ) -> None:
        """Patience for `idle_looks` looks, in all, at which no process works: used `least_ticks` since the last."""
        self.left, self._states, self._least = idle_looks, states, least_ticks
        self._ticks: dict[int, int] = {}

    def over(self, pids: Iterable[int]) -> bool:
        """Look once; whether the patience is over."""
        found = {pid: self._states(pid) for pid in pids}
        works = any(
            b"R" in states or b"D" in states or ticks >= self._ticks.get(pid, -self._least) + self._least
            for pid, (states, ticks) in found.items()
            if states
        )
        self._ticks = {pid: ticks for pid, (_, ticks) in found.items()}
        self.left -= not works
        return self.left < 0


#: Environment variable by which every process of an attempt is known, wherever it moved to.
MARK = "PLAIT_ATTEMPT"
#: Of the environment of who started the service or an agent: not for jobs, nor for what runs in allocations.
PRIVATE = ("PLAIT_TOKEN", "PLAIT_URL", "PLAIT_DB", "PGPASSWORD", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_JSON_BYTES = 1 << 20
_PF_EXITING = 0x4  # the exit code is set; freeing the memory of a large process takes seconds


def boot_id() -> str:
    """A name of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boot_s() -> float:
    """Seconds since boot, suspended time included; never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Process:
    """One process, not to be confused with a later one of the same pid."""

    pid: int
    start_time: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now; None if there is none (a dead one not yet collected is none)."""
        start = start_time(pid)
        return None if start is None else cls(pid, start, boot_id())

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return start_time(self.pid) == self.start_time and self.boot == boot_id()

    @property
    def age_s(self) -> float:
        """Seconds since it started; 0 for one of another boot."""
        return max(0.0, boot_s() - self.start_time / _TICKS) if self.boot == boot_id() else 0.0

    def open(self) -> int | None:
        """A pidfd of it (readable once it has ended); None if it has ended. The caller closes it."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return None
        if self.alive:
            return fd
        os.close(fd)
        return None

    def send(self, number: int) -> bool:
        """Send a signal to this process and no other; False if it has ended."""
        fd = self.open()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def stat_fields(pid: int | str) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on (field 3 of proc(5) is the first); None if it has ended.

    A text, such as 7/task/8, is a thread.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    return text[text.rindex(b")") + 2 :].split()  # the name before may hold blanks and brackets


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None if it has ended."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in b"ZX" else int(fields[19])


def heeds(pid: int, number: int) -> bool:
    """Whether a signal that is sent now can change how the process ends: it is not ending yet, and does not ignore it.

    A handler, a default action and a thread in `sigwait` look alike here: the kernel shows the signals that a thread
    waits for as neither caught nor blocked.
    """
    fields = stat_fields(pid)
    if fields is None or fields[0] in b"ZX":
        return False
    flags, ignored = int(fields[6]), int(fields[30])  # fields 9 and 33 of proc(5); a mask of the first 31 signals
    return not flags & _PF_EXITING and not ignored >> number - 1 & 1


def pids() -> list[int]:
    """All processes that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def living() -> Iterator[tuple[int, list[bytes]]]:
    """All processes that can be seen, with their `stat_fields`; dead ones not yet collected are left out."""
    for pid in pids():
        fields = stat_fields(pid)
        if fields is not None and fields[0] not in b"ZX":
            yield pid, fields


def descendants(root: int) -> list[int]:
    """Children of a process, their children and so on; dead ones not yet collected are left out."""
    children: dict[int, list[int]] = {}
    for pid, fields in living():
        children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def children(parent: int) -> list[int]:
    """Processes whose parent this is; dead ones not yet collected are left out."""
    return [pid for pid, fields in living() if int(fields[1]) == parent]


def in_session(session: int) -> set[int]:
    """Processes of a session; dead ones not yet collected are left out."""
    return {pid for pid, fields in living() if int(fields[3]) == session}


def environment(pid: int) -> dict[str, str]:
    """Environment of a process at its start; empty if unreadable."""
    words = (word.decode(errors="replace") for word in environment_words(pid))
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def environment_words(pid: int) -> list[bytes]:
    """The same as `NAME=VALUE` each."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def marked(mark: str) -> list[int]:
    """Processes of an attempt, whatever their parent is by now: of its environment, and of its control group."""
    found = set(with_environment(MARK, mark))
    return sorted(found | {pid for pid in cgroups.members(mark) if start_time(pid) is not None})


def with_environment(name: str, value: str) -> list[int]:
    """Processes that were started with this variable."""
    wanted = f"{name}={value}".encode()
    return [pid for pid in pids() if wanted in environment_words(pid) and start_time(pid) is not None]


def kill_until_none(find: Callable[[], Iterable[int]], collect: Callable[[], None], patience_s: float = 5.0) -> bool:
    """SIGKILL what `find` gives until it gives nothing, since processes may fork while they are being killed.

    `collect` takes in the dead between two rounds. False if some were left when patience ended (stuck in the kernel).
    """
    until = time.monotonic() + patience_s
    pause_s = 0.001
    while True:
        found = [pid for pid in find() if pid not in (os.getpid(), 1)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        collect()
        if not found:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def memory_bytes(processes: Iterable[int], limit: float) -> float:
    """Bytes that processes use; shared pages count once, but only if the plain sum is above `limit`."""
    processes = list(processes)
    plain = sum(_resident(pid) for pid in processes)
    return plain if plain <= limit else sum(_proportional(pid) for pid in processes)


def _resident(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return float(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0.0


def _proportional(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident(pid)


def prctl(option: int, value: int) -> None:
    """Set a property of this process; raises OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write_json(path: str | os.PathLike[str], value: object, *, durable: bool = False) -> None:
    """Replace the file at `path` as a whole by `value` as JSON, for its owner only; `durable`: synced to the disk."""
    replace_file(path, json.dumps(value), mode=OWNER_ONLY, durable=durable)


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file to read; raises OSError for anything else.

    Jobs can write to their folders: a pipe there must not hold the agent up, nor a link lead it elsewhere.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", os.fspath(path))
    return os.fdopen(fd, "rb")


def open_to_append(path: str | os.PathLike[str]) -> int:
    """A descriptor that appends to a regular file, made for its owner if missing; raises OSError for anything else."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ENXIO, "not a regular file", os.fspath(path))
    return fd


def last_line(path: Path, nothing: str) -> str:
    """The last line of a text file, or `nothing` if it is empty or unreadable."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else nothing


def read_json(path: str | os.PathLike[str]) -> dict[str, object] | None:
    """The object in a file; None if there is no such file or no object in it."""
    try:
        with open_plain(path) as file:
            value = json.loads(file.read(_MOST_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
