"""Sleep until another process changes a word of shared memory, by the kernel's futex through ctypes.

A waiter reads the bell, checks its condition, and sleeps unless the bell was rung since it was read: so no ring is
lost. Ringing costs about a microsecond, waking some tens. Without a futex, waiters poll every 0.2 ms. A process can die
before it rings, so each sleep must be short and followed by a check.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
import time

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
