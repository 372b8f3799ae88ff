"""The disk and the link of a machine that has slower ones than this: shared by all its jobs, as fast as declared.

    PLAIT_DEMO_DISK_MB_S=64       a disk of 64 MB/s, which all jobs that have the same PLAIT_DEMO_DEVICES share
    PLAIT_DEMO_LINK_MBIT_S=160    the link of each worker, in each direction
    PLAIT_DEMO_DEVICES=/folder    where the machine's devices keep their clocks

Without these variables everything goes as fast as the machine. With them files are still read and gradients still sent;
who is done earlier than the declared device would be, waits for it. A device serves one after the other, first come
first served: two jobs that read at the same time get half the speed each, which a sleep in each job would not do.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A request made so soon after the last one was served was ready then, as a queue of requests is.
READY_S = 0.005


class Device:
    """Serves bytes at a pace, one request after the other over all processes that name the same file."""

    def __init__(self, file: Path, bytes_s: float) -> None:
        """The clock is made if it is not there."""
        self.bytes_s, self._file = bytes_s, file
        self._fd, self._pid, self._served_s = -1, 0, 0.0
        self._clock: mmap.mmap | None = None

    def serve(self, size: int) -> float:
        """Reserve the next free time for so many bytes; returns when they are served (monotonic seconds)."""
        # The clock of this process: a forked child needs a lock of its own.
        if self._clock is None or self._pid != os.getpid():
            self._fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.ftruncate(self._fd, 8)
            self._clock, self._pid, self._served_s = mmap.mmap(self._fd, 8), os.getpid(), 0.0
        clock = self._clock
        now_s = time.monotonic()
        asked_s = self._served_s if 0 <= now_s - self._served_s < READY_S else now_s
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            free_s = struct.unpack("<d", clock[:])[0]
            self._served_s = max(asked_s, free_s) + size / self.bytes_s
            clock[:] = struct.pack("<d", self._served_s)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return self._served_s

    def wait(self, size: int) -> None:
        time.sleep(max(0.0, self.serve(size) - time.monotonic()))


def declared(name: str, unit: str, bytes_per_unit: float, number: int = 0) -> Device | None:
    """The device that the environment declares; None if it declares none."""
    pace, folder = os.environ.get(f"PLAIT_DEMO_{name}_{unit}"), os.environ.get("PLAIT_DEMO_DEVICES")
    if not pace or not folder:
        return None
    return Device(Path(folder) / f"{name.lower()}-{number}", float(pace) * bytes_per_unit)


_disk = declared("DISK", "MB_S", 1e6)


def read(path: Path) -> bytes:
    """A file from the disk: not from the page cache, and not faster than declared."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        data = file.read()
    if _disk is not None:
        _disk.wait(len(data))
    return data


def link() -> Callable[[Any, Any], Any] | None:
    """A communication hook for DDP over the declared link; None if there is none.

    An all-reduce of n bytes among p workers takes 2 (p - 1) / p n bytes through each worker's link, in each direction.
    """
    device = declared("LINK", "MBIT_S", 125_000.0, int(os.environ.get("LOCAL_RANK", "0")))
    if device is None:
        return None
    import torch.distributed as dist

    def all_reduce(state: Any, bucket: Any) -> Any:
        workers, data = dist.get_world_size(), bucket.buffer()
        served_s = device.serve(int(2 * (workers - 1) / workers * data.nbytes))
        sent = dist.all_reduce(data.mul_(1.0 / workers), async_op=True).get_future()

        def arrived(future: Any) -> Any:
            time.sleep(max(0.0, served_s - time.monotonic()))
            return future.value()[0]

        return sent.then(arrived)

    all_reduce.__annotations__.clear()  # DDP insists on its own types, or none
    return all_reduce
