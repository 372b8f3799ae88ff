"""Resources of a node and their use, from /proc and, where there is an NVIDIA driver, NVML.

`Monitor` is of the whole node. `GpuWindow` has how busy each GPU was over the last ten seconds: by the driver, and a
CPU slot by the GPU stages that its processes mark; that is unknown if one of them marks none. Marks are published when
a step ends, so that of steps longer than the window whole steps count. `ProcessUsage` samples the processes of each
attempt, in one pass over /proc for all. Counters of a process include ended children that were waited for, so that sums
over a tree of processes do not lose them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.resources import CPU_KIND
from plait.live.agent.journal import Key
from plait.live.agent.outside import SocketTraffic
from plait.live.protocol.wire import GpuMean, GpuUsage, NodeInfo, Resources, Usage
from plait.live.system import procs
from plait.live.system.procs import Process


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine: its number, kind, and the bytes of memory that processes can have."""

    index: int
    kind: str
    memory_bytes: float


class Nvml:
    """The driver's library, if it is installed and there is a driver; otherwise no GPUs."""

    def __init__(self) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
        except Exception:  # not installed, no driver, no permission: all mean no GPUs here
            return

    def gpus(self) -> list[Gpu]:
        if self._nvml is None:
            return []
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            name = self._nvml.nvmlDeviceGetName(handle)
            memory, _ = self._memory(handle)
            found.append(Gpu(index, name.decode() if isinstance(name, bytes) else str(name), memory))
        return found

    def usage(self, index: int) -> GpuUsage:
        """How busy one GPU is; zeros if it cannot be read."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            busy = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
            return GpuUsage(busy, self._memory(handle)[1])
        except Exception:  # lost GPU, or a driver without this figure
            return GpuUsage()

    def _memory(self, handle: Any) -> tuple[float, float]:
        """Bytes of a GPU that processes can have, and bytes in use.

        The total contains what driver and firmware reserve, some hundred MiB of a data-centre GPU. Whether the bytes in
        use contain it too differs between drivers, so they are computed from the free ones.
        """
        try:
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
            total = float(info.total - info.reserved)
        except Exception:  # a driver before 510 does not report its reserved bytes
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            total = float(info.total)
        return total, max(total - float(info.free), 0.0)


def cores() -> float:
    """CPU cores that processes here may use: affinity, and the container's quota."""
    count = float(len(os.sched_getaffinity(0)))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return count if quota == "max" else min(count, float(quota) / float(period))
    except (OSError, ValueError):
        return count


def _memory() -> tuple[float, float]:
    """Bytes there are and bytes that are free to be used."""
    values = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            values[name] = float(rest.split()[0]) * 1024
    total, free = values["MemTotal"], values.get("MemAvailable", values["MemFree"])
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = float(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            free = min(free, limit - float(file.read()))
        total = min(total, limit)
    except (OSError, ValueError):  # no container, or "max"
        pass
    return total, free


def _ticks() -> tuple[float, float]:
    """CPU time since boot over all cores: spent working, and in all."""
    with open("/proc/stat", encoding="ascii") as file:
        values = [float(value) for value in file.readline().split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


class Monitor:
    """The hardware of a node and its use, read at most once a second.

    `cuda` numbers of the machine's GPUs that are the node's 0, 1, ...; None = slots of CPU, `slots` of them. `rack` and
    `gpu_kind` are the configured values of the node; without a kind, the driver's. `slot_memory_bytes`: what a slot is
    declared to have, 0: not limited.
    """

    def __init__(
        self,
        node: str,
        slots: int,
        cuda: list[int] | None,
        *,
        rack: int = 0,
        gpu_kind: str | None = None,
        slot_memory_bytes: float = 0.0,
    ) -> None:
        self.cuda = cuda
        self._nvml = Nvml() if cuda is not None else None
        kind, memory = "emulated", slot_memory_bytes
        if self._nvml is not None and cuda:
            known = {gpu.index: gpu for gpu in self._nvml.gpus()}
            mine = [known[index] for index in cuda if index in known]
            kind = mine[0].kind if mine else "gpu"
            memory = min((gpu.memory_bytes for gpu in mine), default=0.0)
        total, _ = _memory()
        self.node = NodeInfo(
            id=node,
            gpus=slots if cuda is None else len(cuda),
            gpu_kind=gpu_kind or kind,
            gpu_memory_bytes=memory,
            cpus=float(slots) if gpu_kind == CPU_KIND else cores(),
            memory_bytes=total,
            rack=rack,
        )
        self._before = _ticks()
        self._read_at = time.monotonic()
        self._usage = Usage()

    def usage(self) -> Usage:
        """Use of the node over the last second or so."""
        now = time.monotonic()
        if now - self._read_at >= 1.0 or not self._usage.memory_bytes:
            busy, all_ = _ticks()
            spent = all_ - self._before[1]
            cpu = (busy - self._before[0]) / spent if spent > 0 else 0.0
            total, free = _memory()
            gpus = [self._nvml.usage(index) for index in self.cuda or []] if self._nvml is not None else []
            self._usage = Usage(min(max(cpu, 0.0), 1.0), total - free, gpus)
            self._before, self._read_at = (busy, all_), now
        return self._usage

    def busy(self, gpus: Sequence[int]) -> float:
        """How busy the driver reports these GPUs of the node to be now, their mean, 0..1."""
        if self._nvml is None or not self.cuda or not gpus:
            return 0.0
        return sum(self._nvml.usage(self.cuda[gpu]).utilisation for gpu in gpus) / len(gpus)


#: The window, and the least time between two samples, seconds.
WINDOW_S, GPU_SAMPLE_S = 10.0, 0.5
#: A process that has ended no step for so many of its steps does no GPU work.
LONG_STEPS = 3.0


@dataclass(frozen=True)
class Busy:
    """A process on a GPU: seconds of marked GPU work until its last step ended at `at_s` (monotonic); None: unknown.

    `memory_bytes` of the device that it uses; None: unknown.
    """

    key: Key
    gpu: int
    busy_s: float | None
    at_s: float = 0.0
    memory_bytes: float | None = None


class GpuWindow:
    """Samples of the last ten seconds."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._samples: deque[tuple[float, list[float]]] = deque()
        #: Ends of steps that were seen, and the seconds marked until then.
        self._steps: dict[Key, deque[tuple[float, float]]] = {}

    def slots(self, now_s: float, processes: Iterable[Busy]) -> list[GpuMean]:
        """Mean use of each slot, from the marks of its processes; `now_s`: monotonic seconds."""
        here: list[list[Busy]] = [[] for _ in range(self._gpus)]
        for one in processes:
            if 0 <= one.gpu < self._gpus:
                here[one.gpu].append(one)
        keys = {one.key for some in here for one in some}
        self._steps = {key: steps for key, steps in self._steps.items() if key in keys}
        return [GpuMean(_sum([self._share(now_s, one) for one in some]), _bytes_in_use(some)) for some in here]

    def _share(self, now_s: float, one: Busy) -> float | None:
        """The part of the time that a process marked as GPU work, between ends of steps; open steps do not count."""
        if one.busy_s is None:
            return None
        steps = self._steps.setdefault(one.key, deque())
        if steps and one.busy_s < steps[-1][1]:
            steps.clear()
        if not steps or one.at_s > steps[-1][0]:
            steps.append((one.at_s, one.busy_s))
        while len(steps) > 2 and now_s - steps[1][0] >= WINDOW_S:
            steps.popleft()
        (first_s, before_s), (last_s, after_s) = steps[0], steps[-1]
        if last_s <= first_s:
            return None
        step_s = (last_s - first_s) / (len(steps) - 1)
        until_s = now_s if now_s - last_s > max(WINDOW_S, LONG_STEPS * step_s) else last_s
        return (after_s - before_s) / (until_s - first_s)

    def gpus(self, now_s: float, read: Sequence[GpuUsage]) -> list[GpuMean]:
        """Mean use of each GPU, from readings of the driver; `now_s`: monotonic seconds."""
        # Take a sample unless there has just been one.
        values = [one.utilisation for one in read]
        if not self._samples or now_s - self._samples[-1][0] >= GPU_SAMPLE_S:
            self._samples.append((now_s, list(values)))
        while len(self._samples) > 2 and now_s - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        rows = [values for _, values in self._samples if len(values) == len(read)]
        return [
            GpuMean(sum(row[gpu] for row in rows) / len(rows), one.memory_bytes) if rows else GpuMean()
            for gpu, one in enumerate(read)
        ]


def _sum(shares: Sequence[float | None]) -> float | None:
    """How busy a slot is, 0..1; None if that is unknown of one of its processes."""
    known = [share for share in shares if share is not None]
    return min(sum(known), 1.0) if len(known) == len(shares) else None


def _bytes_in_use(processes: Sequence[Busy]) -> float | None:
    """Bytes in use on a slot; None if that is unknown of one of its processes."""
    known = [one.memory_bytes for one in processes if one.memory_bytes is not None]
    return sum(known) if len(known) == len(processes) else None


#: Least time between two samples, seconds.
SAMPLE_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Counters:
    """Sums over a tree of processes: CPU seconds, bytes of disks and of sockets so far, resident bytes now.

    Bytes are None if the kernel does not count them.
    """

    cpu_s: float
    memory_bytes: float
    read_bytes: float | None
    written_bytes: float | None
    sent_bytes: float | None = None
    received_bytes: float | None = None


class ProcessUsage:
    """Samples of the attempts of a node, some seconds apart."""

    def __init__(self, sample_s: float = SAMPLE_S) -> None:
        self._sample_s, self._at_s = sample_s, -sample_s
        self._before: dict[Key, Counters] = {}
        self._traffic = SocketTraffic()
        self._known: dict[Key, Resources] = {}

    def read(self, now_s: float, runners: Mapping[Key, Process]) -> Mapping[Key, Resources]:
        """Use of each attempt since the previous sample, new if that is old enough.

        `now_s`: monotonic seconds. `runners`: the process of each attempt from which all others of it descend. An
        attempt is in the answer once it was sampled twice.
        """
        passed_s = now_s - self._at_s
        if passed_s < self._sample_s:
            return self._known
        counted = {}
        if runners:
            counted = counters({key: one.pid for key, one in runners.items() if one.alive}, self._traffic)
        self._known = {
            key: _rates(self._before[key], now, passed_s) for key, now in counted.items() if key in self._before
        }
        self._before, self._at_s = counted, now_s
        return self._known


def counters(roots: Mapping[Key, int], traffic: SocketTraffic) -> dict[Key, Counters]:
    """Sums over each tree of processes, by the pid of its root; roots that have ended are left out."""
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[float, float]] = {}
    for pid, fields in procs.living():
        children.setdefault(int(fields[1]), []).append(pid)
        found[pid] = sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE
    trees = {key: _tree(root, children) for key, root in roots.items() if root in found}
    moved = traffic.read(trees)
    return {key: _summed(tree, found, moved[key] or (None, None)) for key, tree in trees.items()}


def _tree(root: int, children: Mapping[int, Iterable[int]]) -> list[int]:
    """A process and all that descend from it."""
    tree = [root]
    for pid in tree:  # it grows meanwhile
        tree += children.get(pid, ())
    return tree


def _summed(
    pids: Iterable[int], found: Mapping[int, tuple[float, float]], moved: tuple[float | None, float | None]
) -> Counters:
    cpu_s = memory = 0.0
    disk = [0.0, 0.0]
    told = False
    for pid in pids:
        cpu_s += found[pid][0]
        memory += found[pid][1]
        if (both := disk_bytes(pid)) is not None:
            told, disk = True, [disk[0] + both[0], disk[1] + both[1]]
    return Counters(cpu_s, memory, disk[0] if told else None, disk[1] if told else None, *moved)


def disk_bytes(pid: int) -> tuple[float, float] | None:
    """Bytes that a process has read from disks and written to them; None if the kernel does not count them."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            rows = dict(line.split(b": ", 1) for line in file.read().splitlines())
        return float(rows[b"read_bytes"]), float(rows[b"write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def _rates(before: Counters, now: Counters, passed_s: float) -> Resources:
    """Means over so many seconds; a counter that fell, because a process was lost, counts as none."""

    def rate(old: float | None, new: float | None) -> float | None:
        return None if old is None or new is None else max(new - old, 0.0) / passed_s

    return Resources(
        max(now.cpu_s - before.cpu_s, 0.0) / passed_s, now.memory_bytes,
        rate(before.read_bytes, now.read_bytes), rate(before.written_bytes, now.written_bytes),
        rate(before.sent_bytes, now.sent_bytes), rate(before.received_bytes, now.received_bytes),
    )  # fmt: skip
