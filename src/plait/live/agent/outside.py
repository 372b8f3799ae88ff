"""Stages of programs that are seen only from outside: by what their processes use, relative to the peaks of the node.

Muri (section 4.2) takes the resource with the highest use, relative to its peak, as the one in use at a moment, and
none where all uses are low. `OutsideWatch` samples the processes of an attempt ten times a second for ten seconds; the
part of the samples in which a resource is the one in use is its part of an iteration. Only programs whose iterations
hooks cannot see are watched (JAX, TensorFlow, C++, inference), and only while they have their GPUs to themselves.

    resource   use
    storage    bytes of disks a second / peak; 1 where the main thread waits for a disk
    CPU        cores in use / cores of the node, or of one thread the part of the time that it runs, if that is more
    GPU        busy, by NVML; on a CPU slot the use of the CPU, because a core is what a job has there
    network    bytes of sockets a second, in the busier direction / peak

Peaks are measured once, by `measure_peaks`, and kept with the boot in the folder of the node. A use above a peak
raises it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from plait.core.resources import Resource
from plait.live.protocol.wire import Peaks, Profile
from plait.live.system import procs

Key = TypeVar("Key")

# -- sockets ------------------------------------------------------------------------------------------------------

#: Of linux/sock_diag.h, linux/inet_diag.h and linux/tcp.h: messages, and where `tcp_info` has its counters of bytes.
_BY_FAMILY, _DUMP, _DONE, _ERROR, _TCP_INFO, _BYTES_AT = 20, 0x301, 3, 2, 2, 120
_HEADER, _ATTRIBUTE, _COUNTS = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=QQ")
_INODE_AT, _ATTRIBUTES_AT = 68, 72


def socket_bytes() -> dict[int, tuple[int, int]]:
    """Bytes that each TCP socket of this network namespace has sent (acknowledged) and received, by inode.

    Raises `OSError` where the kernel has no `inet_diag`.
    """
    found: dict[int, tuple[int, int]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:  # NETLINK_SOCK_DIAG
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0xFFF) + bytes(48)
            diag.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
            while _take_messages(diag.recv(1 << 16), found):
                pass
    return found


def _take_messages(data: bytes, found: dict[int, tuple[int, int]]) -> bool:
    """Add the sockets of one answer; returns whether more answers follow."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if kind == _DONE:
            return False
        if kind == _ERROR:
            number = -int.from_bytes(data[16:20], "little", signed=True)
            raise OSError(number, f"sockets cannot be counted: {os.strerror(number)}")
        message, at = data[_HEADER.size : length], _ATTRIBUTES_AT
        while at + _ATTRIBUTE.size <= len(message):
            size, what = _ATTRIBUTE.unpack_from(message, at)
            if size < _ATTRIBUTE.size:
                break
            if what == _TCP_INFO and size >= _ATTRIBUTE.size + _BYTES_AT + _COUNTS.size:
                inode = int.from_bytes(message[_INODE_AT : _INODE_AT + 4], "little")
                found[inode] = _COUNTS.unpack_from(message, at + _ATTRIBUTE.size + _BYTES_AT)
            at += (size + 3) & ~3
        data = data[(length + 3) & ~3 :]
    return True


def _inodes(pid: int) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError, ValueError):
                if (target := os.readlink(entry.path)).startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def _namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _interfaces(pid: int) -> tuple[float, float]:
    """Bytes sent and received by the interfaces of a namespace that is not the agent's, without its loopback."""
    sent = received = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/net/dev", encoding="ascii") as file:
        for line in file.read().splitlines()[2:]:
            name, _, counts = line.partition(":")
            if name.strip() != "lo":
                fields = counts.split()
                sent, received = sent + int(fields[8]), received + int(fields[0])
    return sent, received


class SocketTraffic:
    """Bytes that trees of processes have sent and received since they were first read.

    A socket that closed between two reads loses what it moved since the first of them; another namespace (a container)
    is counted by its interfaces.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        self._sums: dict[object, tuple[float, float]] = {}
        self._home = _namespace("self")
        self._works = True

    def read(self, trees: Mapping[Key, Sequence[int]]) -> dict[Key, tuple[float, float] | None]:
        """Bytes sent and received by each tree of pids so far; None where the kernel does not count them."""
        try:
            counts = socket_bytes() if self._works and trees else {}
        except OSError:
            self._works, counts = False, {}
        self._sums = {key: self._sums.get(key, (0.0, 0.0)) for key in trees}
        last, self._last = self._last, counts
        found: dict[Key, tuple[float, float] | None] = {}
        for key, pids in trees.items():
            away = next((pid for pid in pids if _namespace(pid) not in ("", self._home)), None)
            if away is not None:
                found[key] = _interfaces(away)
            elif not self._works:
                found[key] = None
            else:
                sent, received = self._sums[key]
                for inode in set().union(*map(_inodes, pids)) & counts.keys():
                    now, before = counts[inode], last.get(inode, (0, 0))
                    sent, received = sent + max(now[0] - before[0], 0), received + max(now[1] - before[1], 0)
                found[key] = self._sums[key] = sent, received
        return found


# -- peaks --------------------------------------------------------------------------------------------------------

#: The file in the folder of the node, and the largest amount and time of a measurement.
PEAKS, PROBE_BYTES, PROBE_S = "peaks.json", 32 << 20, 0.3
_BLOCK = 1 << 20


def _disk_bytes_s(folder: Path) -> float:
    """The higher of the speeds at which a file in `folder` is written to its disk and read from it; 0 if unknown."""
    speeds = [0.0]
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as file, mmap.mmap(-1, _BLOCK) as block:
        block.write(os.urandom(_BLOCK))  # zeros might be compressed or left out
        begin_s, size = time.perf_counter(), 0
        while size < PROBE_BYTES and time.perf_counter() - begin_s < PROBE_S:
            size += os.write(file.fileno(), block)
        os.fsync(file.fileno())
        speeds.append(size / (time.perf_counter() - begin_s))
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        direct = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT)  # EINVAL on tmpfs and the like
        try:
            begin_s, read = time.perf_counter(), 0
            while time.perf_counter() - begin_s < PROBE_S:
                read += os.preadv(direct, [block], read % size)
            speeds.append(read / (time.perf_counter() - begin_s))
        finally:
            os.close(direct)
    return max(speeds)


def _link_bytes_s() -> float:
    """Speed of the interface of the default route if its driver reports it, otherwise that of the loopback."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        rows = Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]
        name = next(row.split()[0] for row in rows if row.split()[1] == "00000000")
        if (mbit_s := int(Path(f"/sys/class/net/{name}/speed").read_text(encoding="ascii"))) > 0:
            return mbit_s * 1e6 / 8
    size = 0
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        threading.Thread(target=_send_blocks, args=(sender,), daemon=True).start()
        receiver, _ = server.accept()
        begin_s = time.perf_counter()
        with receiver:
            while time.perf_counter() - begin_s < PROBE_S:
                size += len(receiver.recv(_BLOCK))
    return size / PROBE_S


def _send_blocks(sender: socket.socket) -> None:
    with contextlib.suppress(OSError), sender:
        while True:
            sender.sendall(bytes(_BLOCK))


def measure_peaks(folder: Path) -> Peaks:
    """Peaks of this node, from `PEAKS` in its `folder` if they were measured since it booted, otherwise measured now.

    Takes about a second, most of it waiting for the disk.
    """
    boot, kept = procs.boot_id(), procs.read_json(folder / PEAKS) or {}
    with contextlib.suppress(TypeError, ValueError, KeyError):
        if kept.pop("boot") == boot:
            return Peaks(**{name: float(str(value)) for name, value in kept.items()})
    peaks = Peaks(_disk_bytes_s(folder), _link_bytes_s())
    with contextlib.suppress(OSError):
        procs.write_json(folder / PEAKS, {"boot": boot, **vars(peaks)})
    return peaks


# -- samples ------------------------------------------------------------------------------------------------------

#: Seconds between two samples, their number, and the use below which a resource does not count (the paper names none).
SAMPLE_S, SAMPLES, LEAST_USE = 0.1, 100, 0.1
#: Seconds after its start from which on an attempt is watched: programs import and read before they train.
BEGIN_S = 10.0
#: Iteration of a program that counts none, seconds: only the parts matter then.
NOMINAL_S = 1.0
#: A resource of a smaller part of the samples is no stage, as in `plait.training.passive`.
LEAST_PART = 0.02


def parts_of(samples: Sequence[tuple[float, ...]]) -> list[float] | None:
    """The part of the samples in which each resource is the one in use, by `Resource`; None if none ever is.

    `samples`: the use of each resource relative to its peak, by `Resource`.

    >>> parts_of([(0.9, 0.3, 0, 0), (0, 0.05, 0, 0), (0, 1, 1, 0), (0, 0, 0.4, 0)])
    [0.25, 0.0, 0.5, 0.0]
    """
    counts = [0] * len(Resource)
    # A host that waits for its GPU runs in a loop: of equal uses the GPU's counts.
    order = (Resource.GPU, Resource.STORAGE, Resource.NETWORK, Resource.CPU)
    for use in samples:
        most = max(order, key=use.__getitem__)
        counts[most] += use[most] >= LEAST_USE
    parts = [count / len(samples) if count >= LEAST_PART * len(samples) else 0.0 for count in counts]
    return parts if any(parts) else None


@dataclass(frozen=True)
class _Counted:
    at_s: float
    threads_s: dict[int, float]
    disk_bytes: float
    moved: tuple[float, float]
    waits: bool


class OutsideWatch:
    """Watches attempts of a node one after the other, in a thread that ends when none is left."""

    def __init__(self, folder: Path, cores: float, disk: Callable[[int], tuple[float, float] | None]) -> None:
        """Watch on a node with so many `cores`; `folder` keeps its peaks, `disk` counts the bytes of a process."""
        self._folder, self._cores, self._disk = folder, cores, disk
        self._thread: threading.Thread | None = None
        #: None until they were measured.
        self.peaks: Peaks | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, run: Callable[[], object] = lambda: None) -> None:
        """Measure the peaks unless that was done, then `run`, beside everything else; the caller checks `busy`."""

        def work() -> None:
            self.peaks = self.peaks or measure_peaks(self._folder)
            run()

        self._thread = threading.Thread(target=work, name="plait-outside", daemon=True)
        self._thread.start()

    def parts(self, root: int, gpu: Callable[[], float] | None) -> list[float] | None:
        """Watch the tree of processes from `root`; returns the parts of the samples, None if it ended meanwhile.

        `gpu` reads how busy the attempt's GPUs are, 0..1; None on CPU slots.
        """
        traffic, samples = SocketTraffic(), list[tuple[float, ...]]()
        before = self._sample(root, traffic)
        while before is not None and len(samples) < SAMPLES:
            time.sleep(SAMPLE_S)
            now = self._sample(root, traffic)
            if now is None:
                return None
            samples.append(self._use(before, now, gpu))
            before = now
        return parts_of(samples) if samples else None

    def _sample(self, root: int, traffic: SocketTraffic) -> _Counted | None:
        if procs.stat_fields(root) is None:
            return None
        pids = [root, *procs.descendants(root)]
        threads: dict[int, float] = {}
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                        threads[int(thread)] = int(file.read().split()[0]) / 1e9
        disk = sum(sum(self._disk(pid) or ()) for pid in pids)
        waits = any(procs.main_thread(pid)[0] == b"D" for pid in pids)
        return _Counted(time.monotonic(), threads, disk, traffic.read({root: pids})[root] or (0.0, 0.0), waits)

    def _use(self, before: _Counted, now: _Counted, gpu: Callable[[], float] | None) -> tuple[float, ...]:
        assert self.peaks is not None
        passed_s = max(now.at_s - before.at_s, 1e-3)
        ran = [(s - before.threads_s.get(thread, s)) / passed_s for thread, s in now.threads_s.items()]
        # One thread that always runs is all that its program can do, on however many cores.
        cpu = min(max(max(ran, default=0.0), sum(ran) / self._cores), 1.0)
        disk_s = max(now.disk_bytes - before.disk_bytes, 0.0) / passed_s
        link_s = max(after - earlier for after, earlier in zip(now.moved, before.moved, strict=True)) / passed_s
        # A use above a peak was measured while others used the node, too.
        peaks = self.peaks = Peaks(max(self.peaks.disk_bytes_s, disk_s), max(self.peaks.link_bytes_s, link_s))
        storage = 1.0 if now.waits else disk_s / peaks.disk_bytes_s if peaks.disk_bytes_s else 0.0
        network = link_s / peaks.link_bytes_s if peaks.link_bytes_s else 0.0
        return (storage, 0.0, cpu, network) if gpu is None else (storage, cpu, gpu(), network)


def profile_of(parts: Iterable[float], iteration_s: float | None) -> Profile:
    """The profile of these parts of an iteration of so many seconds, `NOMINAL_S` if its length is not known."""
    whole_s = iteration_s or NOMINAL_S
    return Profile([part * whole_s for part in parts], whole_s, SAMPLES, outside=True)
