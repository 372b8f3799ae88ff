"""A GPU that several processes share, emulated: kernels in the order of their launch, never preempted, and memory.

The device is a file. A kernel takes the next free span of its time and its process sleeps until that is over, so a busy
machine hardly matters, and two kernels never run at the same time. A process holds a lock on its entry as long as it
lives: of one that was killed neither kernels nor memory remain.

    offset  word
         0  magic "PLAITFI1"
         8  memory of the device in bytes      f8
        64  32 entries of 32 bytes: end of the last kernel (CLOCK_MONOTONIC), bytes reserved, bytes at most, free
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plait.core.errors import InputError

MAGIC = b"PLAITFI1"
SIZE, FIRST, ENTRY, ENTRIES = 4096, 64, 32, 32
#: Who asks for its next kernel so soon after the last one had it ready: it is the machine that was late.
READY_S = 0.002
DEFAULT_BYTES = 32e9
_END, _RESERVED, _MOST = 0, 1, 2


class FifoDevice:
    """One process's end of the device at `path`, which the first process makes. Not to be used across a fork."""

    def __init__(self, path: str | os.PathLike[str], capacity_bytes: float = DEFAULT_BYTES) -> None:
        """Take part. `capacity_bytes` counts for who makes it. Raises `InputError` for a file that is no device."""
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._thread_lock = threading.Lock()
        with self._flock():
            if os.fstat(self._fd).st_size == 0:
                os.ftruncate(self._fd, SIZE)
                os.pwrite(self._fd, MAGIC, 0)
            elif os.fstat(self._fd).st_size < SIZE or os.pread(self._fd, 8, 0) != MAGIC:
                os.close(self._fd)
                self._fd = -1
                raise InputError(f"{self.path} is no emulated GPU; name a file that is not there yet")
            self._map = mmap.mmap(self._fd, SIZE)
            self._words = memoryview(self._map).cast("d")
            if not self._words[1]:
                self._words[1] = capacity_bytes
            self._mine = self._claim()
        self.capacity_bytes = self._words[1]
        self._free_s = 0.0  # when our last kernel ended
        #: `READY_S`, or more for a job that does nothing but launch kernels and call `host_work`: it catches up then.
        self.ready_s = READY_S

    def run(self, seconds: float) -> None:
        """Launch a kernel and wait until it is done."""
        with self._locked():
            now_s = time.monotonic()
            ready_s = self._free_s if now_s - self._free_s < self.ready_s else now_s
            busy_until_s = max((self._word(i, _END) for i in self._live()), default=0.0)
            self._free_s = max(ready_s, busy_until_s) + seconds
            self._set(self._mine, _END, self._free_s)
        self.sleep_until(self._free_s)

    def host_work(self, seconds: float) -> None:
        """Work on the host that takes so long, from when the last kernel ended."""
        now_s = time.monotonic()
        self._free_s = (self._free_s if now_s - self._free_s < self.ready_s else now_s) + seconds
        self.sleep_until(self._free_s)

    @staticmethod
    def sleep_until(when_s: float) -> None:
        """Until that time of CLOCK_MONOTONIC."""
        time.sleep(max(when_s - time.monotonic(), 0.0))

    def reserve(self, wanted_bytes: float, at_most: float = math.inf) -> float:
        """Have so many bytes of the device, within what other processes leave and `at_most`; how many it got."""
        with self._locked():
            others = sum(self._word(i, _RESERVED) for i in self._live() if i != self._mine)
            got = max(min(wanted_bytes, at_most, self.capacity_bytes - others), 0.0)
            self._set(self._mine, _RESERVED, got)
            self._set(self._mine, _MOST, max(self._word(self._mine, _MOST), got))
        return got

    @property
    def reserved_bytes(self) -> float:
        """What this process has."""
        return self._word(self._mine, _RESERVED)

    @property
    def used_bytes(self) -> float:
        """What all processes have that live."""
        with self._locked():
            return sum(self._word(i, _RESERVED) for i in self._live())

    def close(self) -> None:
        """Give everything back; twice does no harm."""
        if self._fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self._fd)  # and with it the lock
            self._fd = -1

    # -- entries -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _flock(self) -> Iterator[None]:
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if self._fd >= 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread_lock, self._flock():
            yield

    def _claim(self) -> int:
        for number in range(ENTRIES):
            if self._take(number):
                for word in range(ENTRY // 8):
                    self._set(number, word, 0.0)
                return number
        raise InputError(f"{self.path} has {ENTRIES} processes already")

    def _take(self, number: int) -> bool:
        """Lock an entry, if no living process has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, ENTRY, FIRST + number * ENTRY)
        except OSError:
            return False
        return True

    def _live(self) -> list[int]:
        """Entries in use by processes that live; those of others are cleared."""
        found = []
        for number in range(ENTRIES):
            if number == self._mine:
                found.append(number)
            elif self._word(number, _END) or self._word(number, _RESERVED):
                if self._take(number):
                    self._set(number, _END, 0.0)
                    self._set(number, _RESERVED, 0.0)
                    fcntl.lockf(self._fd, fcntl.LOCK_UN, ENTRY, FIRST + number * ENTRY)
                else:
                    found.append(number)
        return found

    def _word(self, number: int, word: int) -> float:
        return self._words[(FIRST + number * ENTRY) // 8 + word]

    def _set(self, number: int, word: int, value: float) -> None:
        self._words[(FIRST + number * ENTRY) // 8 + word] = value
