"""GPU memory of this process: what it uses, and a limit that it keeps to from a boundary between two steps on.

As in the public code of AntMan (Xiao et al., OSDI 2020): a limit changes between steps only; a lower one frees cached
regions, and where what is in use exceeds it, the process keeps to that instead, says so and tries again after the next
step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from plait.sharing.directive import SpillReason
from plait.training.device.cuda import torch_cuda


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of a step that has ended: the most in use, in use now, held by the allocator, and put on the host.

    `failed`: how often the process has run out of memory so far, also where its script caught that.
    """

    peak_bytes: int = 0
    persistent_bytes: int = 0
    reserved_bytes: int = 0
    spilled_bytes: int = 0
    reason: SpillReason = SpillReason.NONE
    failed: int = 0


class DeviceMemory(Protocol):
    """The memory of a GPU as one process has it."""

    @property
    def spills(self) -> bool:
        """Whether what exceeds the limit within a step comes from the host, instead of an error."""

    def end_step(self, *, reset: bool = True) -> MemoryUse:
        """What the step that has just ended used; the next one begins. Without `reset`: the most since the last one."""

    def bound(self, limit_bytes: float) -> float:
        """Keep to a limit (infinite: to none) between two steps; the limit that is kept to now, above it if partial."""


class CudaMemory:
    """The caching allocator of torch on the current GPU. `host_bytes`: the arena on the host that it also counts."""

    #: Whether a limit of plait is in force in this process; a script without one keeps a limit of its own.
    limited = False

    def __init__(self, cuda: Any) -> None:
        """`cuda`: torch.cuda, initialised."""
        self._cuda, self._device = cuda, cuda.current_device()
        self.capacity_bytes = int(cuda.get_device_properties(self._device).total_memory)
        self.host_bytes = 0

    @property
    def spills(self) -> bool:
        """See `DeviceMemory`."""
        return self.host_bytes > 0

    def end_step(self, *, reset: bool = True) -> MemoryUse:
        """See `DeviceMemory`. What the peak has above the memory of the device came from the host."""
        stats = self._cuda.memory_stats_as_nested_dict(self._device)
        used, held = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        peak = int(used["peak"])
        most, reserved = (max(int(held[which]) - self.host_bytes, 0) for which in ("peak", "current"))
        if reset:
            self._cuda.reset_peak_memory_stats(self._device)
        spilled = min(max(peak - most, 0), self.host_bytes)
        reason = SpillReason.OUT_OF_MEMORY if spilled else SpillReason.NONE
        return MemoryUse(peak, int(used["current"]), reserved, spilled, reason, int(stats.get("num_ooms", 0)))

    def bound(self, limit_bytes: float) -> float:
        """See `DeviceMemory`. Lowering torch's limit frees nothing by itself, so the cache goes first."""
        cuda = self._cuda
        if limit_bytes == math.inf and not CudaMemory.limited:
            return math.inf
        CudaMemory.limited = limit_bytes < math.inf
        reached = limit_bytes
        if cuda.memory_reserved(self._device) - self.host_bytes > limit_bytes:
            cuda.empty_cache()
            reached = max(limit_bytes, float(cuda.memory_reserved(self._device) - self.host_bytes))
        allowed = min((reached + self.host_bytes) / self.capacity_bytes, 1.0)
        cuda.set_per_process_memory_fraction(allowed, self._device)
        return math.inf if reached >= self.capacity_bytes else reached


def find_device_memory() -> DeviceMemory | None:
    """That of the GPU this process uses; None while it uses none."""
    cuda = torch_cuda()
    return CudaMemory(cuda) if cuda is not None else None
