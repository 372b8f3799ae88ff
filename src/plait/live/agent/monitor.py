"""Resources of a node and their use, from /proc and, where there is an NVIDIA driver, NVML."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from plait.live.protocol.wire import GpuUsage, NodeInfo, Usage


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
        """All GPUs of the machine."""
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
        kind, memory = "cpu-slot", slot_memory_bytes
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
            cpus=cores(),
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
