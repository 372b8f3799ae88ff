"""The files of a running group, on which its gate works. The agent creates them, the members open them.

    <group>/plan.json               the current plan; replaced by rename after its folder is complete
    <group>/v<version>/page.bin     words shared by the members, mapped by them
    <group>/v<version>/token-<resource>-<slot>.lock      who holds it has a slot of the resource (flock)
    <group>/v<version>/alive-<member>-<rank>.lock        held as long as the process lives (flock)
    <group>/v<version>/row-<n>.lock                      held by the thread that waits under this number (flock)

**Versions.** Each change of a group has its own folder. The version word of older pages is overwritten, so a member
that still follows the old plan notices it at its next stage and continues without a gate until it has read the new one.

**Death.** Locks are flocks: the kernel frees them when the process dies, however it dies. A forked child closes the
inherited descriptors, or it would keep the locks of its dead parent.

**Words of the page** (8 bytes each, one writer a word unless noted):

    0 magic "PLAITG1"  1 layout  2 version (agent)  3 members  4 largest world size  5 rows
    8..11 when the resource was last freed, ns (written by any holder)
    then by slot of each resource: pid * 2**16 + member of its holder
    then by member: slot, target, state, in_stage, bell, pid, 2 spare, opened[4]
    then by member and rank: bell, pid, 2 spare, asked[4], inside[4]
    then for the rows: want[rows], since_ns[rows], need_ns[rows] (-1 unknown), bell[rows], member[rows]
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import platform
import shutil
import struct
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.core.files import replace_file
from plait.core.resources import Resource
from plait.runtime.page import GATES, WORD

# Sleep until another process changes a word of shared memory, by the kernel's futex through ctypes.
#
# A waiter reads the bell, checks its condition, and sleeps unless the bell was rung since it was read: so no ring is
# lost. Ringing costs about a microsecond, waking some tens. Without a futex, waiters poll every 0.2 ms. A process can
# die before it rings, so each sleep must be short and followed by a check.

_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF
_NUMBERS = {"x86_64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_NAP_S = 0.0002


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


def _find() -> tuple[object, int]:
    number = _NUMBERS.get(platform.machine(), 0)
    if not sys.platform.startswith("linux") or not number or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None, 0
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return None, 0
    void, u32 = ctypes.c_void_p, ctypes.c_uint32
    call.argtypes = (ctypes.c_long, void, ctypes.c_int, u32, void, void, u32)
    call.restype = ctypes.c_long
    return call, number


_syscall, _number = _find()


class FutexWords:
    """The words of a mapped page that are bells, by word number (8 bytes each; the low half rings)."""

    def __init__(self, page: mmap.mmap) -> None:
        """Use the words of `page`, which the caller keeps mapped."""
        self._words = memoryview(page).cast("q")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(page))

    def read(self, word: int) -> int:
        """The present value of a bell, for `wait`."""
        return self._words[word]

    def ring(self, word: int) -> None:
        """Wake all that sleep at this bell, or are about to."""
        self._words[word] = (self._words[word] + 1) & _ALL
        if _syscall is not None:
            _syscall(_number, self._address + 8 * word, _WAKE, _ALL, None, None, 0)  # type: ignore[operator]

    def wait(self, word: int, seen: int, timeout_s: float) -> None:
        """Sleep until the bell is rung, at most `timeout_s`; returns at once if it is no longer `seen`."""
        if self._words[word] != seen or timeout_s <= 0:
            return
        if _syscall is None:
            time.sleep(min(timeout_s, _NAP_S))
            return
        whole = int(timeout_s)
        until = _Timespec(whole, int((timeout_s - whole) * 1e9))
        _syscall(  # type: ignore[operator]
            _number, self._address + 8 * word, _WAIT, seen, ctypes.addressof(until), None, 0
        )


MAGIC = b"PLAITG1\0"
LAYOUT = 1
K = len(Resource)
VERSION_WORD = 2
FREED = 8
HEAD = 16
MEMBER_WORDS, RANK_WORDS = 12, 12
SLOT, TARGET, STATE, IN_STAGE, BELL, PID, OPENED = 0, 1, 2, 3, 4, 5, 8
RANK_BELL, RANK_PID, ASKED, INSIDE = 0, 1, 4, 8
#: States of a member of a barrier.
ABSENT, ACTIVE, AWAY, GONE = 0, 1, 2, 3


class GroupError(InputError):
    """The files of a group cannot be used; the message has the reason."""


@dataclass(frozen=True)
class GroupMember:
    """A job in a group: its number, its turn 0..3, and its number of processes."""

    job: int
    turn: int
    world_size: int = 1


@dataclass(frozen=True)
class Group:
    """A group whose files exist. `capacities[r]` jobs may be on resource r at once (tokens)."""

    folder: Path
    gate: str
    version: int
    members: tuple[GroupMember, ...]
    quantum_s: float = 0.01
    lease_s: float = 30.0
    rest_s: float = 1.0
    capacities: tuple[int, ...] = (1,) * K

    @property
    def files(self) -> Path:
        return self.folder / f"v{self.version}"

    def control(self, job: int, rank: int = 0) -> dict[str, Any]:
        """The entry "group" of control.json for a process of a member: what `open_gate` needs."""
        index = next((i for i, m in enumerate(self.members) if m.job == job), None)
        if index is None:
            raise GroupError(f"group {self.folder.name} has no job {job}; members: {[m.job for m in self.members]}")
        return {"index": index, "rank": rank, "dir": str(self.folder), "id": self.folder.name} | _plan(self)


def _plan(group: Group) -> dict[str, Any]:
    return {
        "gate": group.gate,
        "version": group.version,
        "quantum_s": group.quantum_s,
        "lease_s": group.lease_s,
        "rest_s": group.rest_s,
        "capacities": list(group.capacities),
        "members": [{"job": m.job, "turn": m.turn, "world": m.world_size} for m in group.members],
    }


def group_of(entry: Any) -> Group:
    """The group of an entry of control.json; raises `GroupError` for an invalid entry."""
    try:
        members = tuple(GroupMember(int(m["job"]), int(m["turn"]), int(m.get("world", 1))) for m in entry["members"])
        return _checked(
            Group(
                Path(entry["dir"]),
                str(entry["gate"]),
                int(entry["version"]),
                members,
                float(entry.get("quantum_s", 0.01)),
                float(entry.get("lease_s", 30.0)),
                float(entry.get("rest_s", 1.0)),
                tuple(int(c) for c in entry.get("capacities", (1,) * K)),
            )
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GroupError(f"the group in control.json cannot be read: {type(error).__name__}: {error}") from None


def _checked(group: Group) -> Group:
    problem = ""
    if group.gate not in GATES:
        problem = f"gate {group.gate!r}; known: {', '.join(GATES)}"
    elif not group.members or len({m.job for m in group.members}) != len(group.members):
        problem = f"members {[m.job for m in group.members]}; needs different jobs, at least one"
    elif any(not 0 <= m.turn < K or m.world_size < 1 for m in group.members):
        problem = f"a member whose turn is not in 0..{K - 1} or whose world size is below 1: {list(group.members)}"
    elif len(group.capacities) != K or any(not 1 <= c <= 1024 for c in group.capacities):
        problem = f"capacities {list(group.capacities)}; needs {K} numbers from 1 to 1024"
    elif not (group.quantum_s > 0 and group.lease_s > 0 and group.rest_s > 0):
        problem = f"quantum_s {group.quantum_s}, lease_s {group.lease_s}, rest_s {group.rest_s}; each must be > 0"
    if problem:
        raise GroupError(f"group {group.folder.name}: {problem}")
    return group


@dataclass(frozen=True)
class QueuePlaces:
    """Offsets of the words of a group's page, from its members and capacities."""

    members: int
    world_size: int
    rows: int
    slots: tuple[int, ...]  # first slot word of each resource
    first_member: int
    first_rank: int
    want: int
    since: int
    need: int
    bell: int
    owner: int
    words: int

    @classmethod
    def of(cls, group: Group) -> QueuePlaces:
        members, world_size = len(group.members), max(m.world_size for m in group.members)
        rows = max(64, 8 * sum(m.world_size for m in group.members))
        slots, at = [], HEAD
        for capacity in group.capacities:
            slots.append(at)
            at += capacity
        first_rank = at + members * MEMBER_WORDS
        want = first_rank + members * world_size * RANK_WORDS
        since, need, bell, owner = (want + n * rows for n in range(1, 5))
        return cls(
            members, world_size, rows, tuple(slots), at, first_rank, want, since, need, bell, owner, owner + rows
        )

    def member(self, index: int) -> int:
        return self.first_member + index * MEMBER_WORDS

    def rank(self, index: int, rank: int) -> int:
        return self.first_rank + (index * self.world_size + rank) * RANK_WORDS


def make_group(
    folder: str | os.PathLike[str],
    gate: str,
    members: Iterable[GroupMember],
    *,
    version: int,
    quantum_s: float = 0.01,
    lease_s: float = 30.0,
    rest_s: float = 1.0,
    capacities: Sequence[int] = (1,) * K,
) -> Group:
    """Create the files of a group's plan in `folder`; later versions replace it, and the same version changes nothing.

    `gate`: tokens, barrier or none; `members`: the jobs with their turns. A barrier waits at most `lease_s` seconds for
    a member in one stage, and `rest_s` between two stages. Raises `GroupError` for an invalid plan, or one older than
    the present one.
    """
    folder = Path(folder)
    own = tuple(members)
    group = _checked(Group(folder, gate, version, own, quantum_s, lease_s, rest_s, tuple(capacities)))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    newest = max(_versions(folder), default=version)
    if newest > version:
        raise GroupError(f"group {folder.name}: version {version} is older than version {newest} in place")
    if not group.files.is_dir():
        made = folder / f".{group.files.name}.{os.getpid()}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700)
        words = QueuePlaces.of(group).words
        head = MAGIC + struct.pack("<5q", LAYOUT, version, len(own), max(m.world_size for m in own), 0)
        (made / "page.bin").write_bytes(head.ljust(words * WORD, b"\0"))
        made.rename(group.files)
    replace_file(folder / "plan.json", json.dumps(_plan(group)))
    for old in _versions(folder):
        if old < version:
            _retire(folder / f"v{old}", version)
    return group


def remove_group(folder: str | os.PathLike[str]) -> None:
    """Remove the files of a group, if any; members that still use them continue without a gate."""
    folder = Path(folder)
    for version in _versions(folder):
        _retire(folder / f"v{version}", -1)
    shutil.rmtree(folder, ignore_errors=True)


def _versions(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(n[1:]) for n in names if n[:1] == "v" and n[1:].isdigit())


def _retire(files: Path, version: int) -> None:
    """Mark the page of an old plan as replaced, then unlink its files; their locks stay valid."""
    with contextlib.suppress(OSError):
        fd = os.open(files / "page.bin", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if found.st_nlink == 1 and found.st_uid == os.geteuid():  # members can put other files in its place
                os.pwrite(fd, struct.pack("<q", version), VERSION_WORD * WORD)
        finally:
            os.close(fd)
    shutil.rmtree(files, ignore_errors=True)


_open_files: weakref.WeakSet[LockFiles] = weakref.WeakSet()


class LockFiles:
    """Lock files of a version of a group, opened at first use; a forked child starts without any."""

    def __init__(self, files: Path) -> None:
        self._files, self._fds = files, dict[str, int]()
        _open_files.add(self)

    def lock(self, name: str, *, shared: bool = False) -> bool:
        """Take a lock if it is free; returns False if another process has it."""
        fd = self._fds.get(name)
        if fd is None:
            fd = self._fds[name] = os.open(self._files / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, name: str) -> None:
        fcntl.flock(self._fds[name], fcntl.LOCK_UN)

    def is_free(self, name: str) -> bool:
        """True if no process holds the lock; for files of other processes."""
        if not self.lock(name, shared=True):
            return False
        self.unlock(name)
        return True

    def close(self) -> None:
        """Close all files and so release their locks, unless an unknown child holds the descriptors, too."""
        while self._fds:
            _, fd = self._fds.popitem()
            with contextlib.suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        """Release the locks of a thread that ends."""
        self.close()


def _forget_in_child() -> None:
    for files in list(_open_files):
        files.close()


os.register_at_fork(after_in_child=_forget_in_child)


class GroupPage:
    """The mapped page of a group, for one process of one member."""

    def __init__(self, group: Group) -> None:
        """Map it; raises `GroupError` if it does not exist or belongs to another plan."""
        self.group, self.at = group, QueuePlaces.of(group)
        try:
            fd = os.open(group.files / "page.bin", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise GroupError(f"group {group.folder.name}: version {group.version} is gone: {error.strerror}") from None
        try:
            size = os.fstat(fd).st_size
            if size != self.at.words * WORD or os.pread(fd, 8, 0) != MAGIC:
                raise GroupError(f"group {group.folder.name}: page.bin has {size} bytes, needs {self.at.words * WORD}")
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.words = memoryview(self._map).cast("q")
        self.bells = FutexWords(self._map)
        if self.stale:
            raise GroupError(f"group {group.folder.name}: version {group.version} has been replaced")

    @property
    def stale(self) -> bool:
        return self.words[VERSION_WORD] != self.group.version


def come_alive(files: LockFiles, index: int, rank: int) -> None:
    """Hold the lock that shows that process `rank` of member `index` lives.

    Others check it by taking it for some microseconds, so the attempt is repeated for a second. Raises
    `GroupError` if another process holds it.
    """
    until = time.monotonic() + 1.0
    while not files.lock(f"alive-{index}-{rank}.lock"):
        if time.monotonic() > until:
            raise GroupError(f"another process is member {index} rank {rank} of this group; it must end first")
        time.sleep(0.001)
