"""The lease of a node: how long its processes may run without an answer from the service. A dead-man clock.

The agent writes the time of the request that the service answered last. Each runner reads that, and ends its job when
the lease is over, whether or not the agent lives: `Deadman`. The service takes a node as lost only later than that, so
no job runs twice at once. Times are of CLOCK_BOOTTIME, which continues while the machine sleeps.

    request        stop_s                    kill_s  until_s                 the service takes the node as lost
    |--------------|-------------------------|-------|-----------------------|
                   SIGTERM, for a checkpoint SIGKILL the kernel kills the runner, and with it the job

A parked lease has no end: `plait down` has stopped the service, so that the job cannot start elsewhere. The start of a
service ends that first (`unpark`), with a whole lease from then on.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from plait.live.layout import make_private
from plait.live.system import procs

_RECORD = struct.Struct("<4sIddd")
_MAGIC = b"plL1"
#: For its checkpoint a job gets its grace, but at most this share of the lease; the last share is for the kill.
_GRACE_SHARE, _KILL_SHARE, _KILL_S = 0.25, 0.05, 1.0
#: A runner looks so often whether there is a newer one: this share of the lease, seconds at most and at least.
_LOOK_SHARE, _LONGEST_LOOK_S, _SHORTEST_LOOK_S = 0.1, 5.0, 0.2


@dataclass(frozen=True)
class Lease:
    """Time of the request that the service answered last, and the seconds that it counts for; both finite.

    `parked`: it does not end.
    """

    asked_s: float
    lease_s: float
    parked: bool = False

    @property
    def until_s(self) -> float:
        """When nothing runs any more."""
        return math.inf if self.parked else self.asked_s + self.lease_s

    @property
    def kill_s(self) -> float:
        """When what is left is killed."""
        return self.until_s - min(_KILL_S, _KILL_SHARE * self.lease_s)

    def stop_s(self, grace_s: float = math.inf) -> float:
        """When a job with this grace period must begin to stop."""
        return self.kill_s - min(max(grace_s, 0.0), _GRACE_SHARE * self.lease_s)

    @property
    def look_s(self) -> float:
        """How often to look for a newer one."""
        return min(max(_LOOK_SHARE * self.lease_s, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)

    def __str__(self) -> str:
        return f"no contact with the service for its lease of {self.lease_s:g} s"


def sound_lease_s(lease_s: float) -> float:
    """The service's value in seconds, if it is possible; otherwise so few that nothing relies on them."""
    return lease_s if 0 < lease_s < 1e9 else 0.001


def read(path: str | os.PathLike[str]) -> Lease | None:
    """The lease in a file; None if there is none, or one of another user (not root), or of another boot."""
    for _ in range(3):  # a read in the middle of a write is repeated
        try:
            with procs.open_plain(path) as file:
                if os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
                    return None
                data = file.read(_RECORD.size + 4)
        except OSError:
            return None
        if len(data) == _RECORD.size + 4 and zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little"):
            magic, boot, asked_s, lease_s, parked = _RECORD.unpack(data[:-4])
            good = (
                (magic, boot) == (_MAGIC, _boot()) and math.isfinite(asked_s) and math.isfinite(lease_s) and lease_s > 0
            )
            return Lease(asked_s, lease_s, bool(parked)) if good else None
    return None


def _boot() -> int:
    return zlib.crc32(procs.boot_id().encode())


def write(path: Path, lease: Lease) -> None:
    """Write it in place, which needs no room on a full disk once it is there. Raises OSError."""
    data = _RECORD.pack(_MAGIC, _boot(), lease.asked_s, lease.lease_s, float(lease.parked))
    make_private(path.parent)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, 0o644)  # runners of other accounts read it, where its folder lets them
        os.pwrite(fd, data + zlib.crc32(data).to_bytes(4, "little"), 0)
    finally:
        os.close(fd)


@dataclass
class NodeLease:
    """The lease of a node in its agent's memory, and the file that has it."""

    path: Path
    now: Lease
    #: The last lease that was over before it was renewed.
    over: Lease | None = None

    @classmethod
    def of(cls, path: Path, lease_s: float) -> NodeLease:
        """The lease that an earlier agent wrote; otherwise one from now on, which counts for no running job."""
        return cls(path, read(path) or Lease(procs.boot_s(), lease_s))

    def renew(self, lease: Lease) -> None:
        """It is this one from now on, unless a later question was answered already. Raises OSError, being renewed."""
        if lease.asked_s >= self.now.asked_s:
            if self.now.until_s <= procs.boot_s():
                self.over = self.now
            self.now = lease
            write(self.path, lease)

    def over_since(self, began_s: float) -> Lease | None:
        """The lease that has ended what began then, if one has."""
        ended = [one for one in (self.now, self.over) if one is not None and began_s < one.until_s <= procs.boot_s()]
        return ended[0] if ended else None

    def forget(self) -> None:
        """Nothing runs there, and no agent."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()  # in shared memory, if no gate and no other lease is left


def unpark(paths: list[Path]) -> None:
    """From now on a service leads: leases without an end have one, a whole lease from now."""
    for path in paths:
        lease = read(path)
        if lease is not None and lease.parked:
            with contextlib.suppress(OSError):
                write(path, Lease(procs.boot_s(), lease.lease_s))


class Deadman:
    """The clock of one runner. The kernel kills the runner when the lease is over, even if it was stopped meanwhile."""

    def __init__(self, path: str, first: Lease, *, kills: bool = True) -> None:
        """By the lease at `path`, or `first` where that cannot be read. `kills`: the kernel ends this process by it."""
        self._path = path
        self.lease = first
        self._timer = KillTimer() if kills else None
        self._armed_s = -1.0
        self.look()

    def look(self) -> Lease:
        """The newest lease; the timer goes by it."""
        found = read(self._path)
        if found is not None and found.asked_s >= self.lease.asked_s:
            self.lease = found  # which may also be shorter: its node is leaving
        if self._timer is not None and self.lease.until_s != self._armed_s:
            self._armed_s = self.lease.until_s
            self._timer.set(self._armed_s)
        return self.lease


class KillTimer:
    """SIGKILL for this process at a time of CLOCK_BOOTTIME; also if it is stopped then. Not for its children."""

    def __init__(self) -> None:
        """Not set. Where the kernel refuses, it never comes: the runner's own clock is left."""
        self._timer = ctypes.c_void_p()
        self._libc = ctypes.CDLL(None, use_errno=True)
        event = _Event(None, signal.SIGKILL, 0)
        self._there = self._libc.timer_create(7, ctypes.byref(event), ctypes.byref(self._timer)) == 0  # CLOCK_BOOTTIME

    def set(self, at_s: float) -> None:
        """Then, and no more at the time set before; never, if that is infinite."""
        if not self._there:
            return
        seconds = 0.0 if math.isinf(at_s) else max(at_s, 1e-6)
        value = _Times(_Time(0, 0), _Time(int(seconds), int(seconds % 1 * 1e9)))
        self._libc.timer_settime(self._timer, 1, ctypes.byref(value), None)  # TIMER_ABSTIME


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Times(ctypes.Structure):
    _fields_ = (("every", _Time), ("first", _Time))
