"""GPU memory of this process: what it uses, and a limit that it keeps to from a boundary between two steps on.

As in the public code of AntMan (Xiao et al., OSDI 2020): a limit changes between steps only; a lower one frees cached
regions, and where what is in use exceeds it, the process keeps to that instead, says so and tries again after the next
step.

`MemoryLimit` follows the limit in the page, and reports which was reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from plait.core.errors import InputError
from plait.runtime.page import Page
from plait.sharing.directive import SpillReason
from plait.training.process import torch_cuda


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


#: What a host without a pool leaves to guests is the device less its budget: the most of its steps, from so many steps
#: on, and room above (a part, at least bytes). A cache of torch keeps what it has, so few steps show the most.
BUDGET_STEPS, BUDGET_ROOM, LEAST_ROOM_BYTES = 50, 0.25, 1 << 30


class MemoryLimit:
    """Of one process. The GPU is looked for until it is used; a process that uses none has reached every limit."""

    def __init__(
        self,
        page: Page,
        find: Callable[[], DeviceMemory | None],
        *,
        own_process: bool,
        note: Callable[[str], object],
        ran_out: Path | None = None,
    ) -> None:
        """`own_process`: whether the job has its process to itself; torch's limit is one for the whole process.

        `ran_out`: a file that exists once an attempt of this job ran out of memory as a host without a pool.
        """
        self._page, self._find, self._own, self._note = page, find, own_process, note
        self._ran_out = ran_out
        self._most_bytes, self._steps = 0, 0  # reserved by a step, and how many were seen
        self._failed = 0  # allocations, so far
        self._budget_bytes = math.inf  # of a host without a pool
        self._exceeds = ran_out is not None and ran_out.exists()  # the budget, so that there is none
        self._memory: DeviceMemory | None = None
        self._number, self._given_bytes, self._reached_bytes = -1, 0.0, math.inf
        self._applied = False  # to a GPU
        self._refused = self._stepped = False

    @property
    def memory(self) -> DeviceMemory | None:
        """The memory of the GPU, once the process uses one."""
        if self._memory is None and self._own:
            self._memory = self._find()
        return self._memory

    @property
    def given_bytes(self) -> float:
        """The limit that was applied last; infinite: none."""
        return self._given_bytes or math.inf

    @property
    def due(self) -> bool:
        """True if a limit must be applied: a new one, one reached only in part, or the first one on a GPU."""
        page = self._page
        if page.limit_number != self._number or page.memory_limit_bytes != self._given_bytes:
            return True
        late = bool(self._given_bytes) and not self._applied and self.memory is not None
        return late or self._reached_bytes > self.given_bytes

    def act(self, *, guest: bool) -> None:
        """Between two steps: keep to the limit as far as possible and say which was reached.

        A host keeps none before its first step, nor where nothing that it needs beyond can go to the memory of the
        host. There it states its budget as the limit that it has reached, and all of the device once it needed more.

        Raises `InputError` for a limit of a `guest` that shares its process: it could not keep to it.
        """
        page = self._page
        self._number, given = page.limit_number, page.memory_limit_bytes
        self._given_bytes = given if 0 < given < math.inf else 0.0
        if self._given_bytes and not self._own:
            self._refuse(guest)
            page.set_reached(self._number, math.inf)
            return
        memory = self.memory
        self._applied = memory is not None
        if memory is None:
            self._reached_bytes = self.given_bytes
        else:
            keeps = guest or (memory.spills and self._stepped)
            self._reached_bytes = memory.bound(self.given_bytes if keeps else math.inf)
            if not guest and not memory.spills:
                # Bytes that a host without a pool counts as its own; all of the device once a step reserved more
                self._exceeds = self._exceeds or self._most_bytes > self._budget_bytes
                if self._exceeds:
                    self._budget_bytes = math.inf
                elif self._steps >= BUDGET_STEPS and self._budget_bytes == math.inf:
                    self._budget_bytes = self._most_bytes + max(BUDGET_ROOM * self._most_bytes, LEAST_ROOM_BYTES)
                self._reached_bytes = max(self._budget_bytes, self.given_bytes)
        page.set_reached(self._number, self._reached_bytes)

    def end_step(self, *, reset: bool = True) -> MemoryUse:
        """Memory that the step that has ended used; all zero without a GPU. `reset`: begin the peaks of the next."""
        memory, self._stepped = self.memory, True
        if memory is None:
            return MemoryUse()
        use = memory.end_step(reset=reset)
        self._most_bytes, self._steps = max(self._most_bytes, use.peak_bytes, use.reserved_bytes), self._steps + 1
        if use.failed > self._failed:  # the script goes on, but with less than it needs
            self._lacked()
        self._failed = use.failed
        return use

    def failed(self, error: type[BaseException]) -> None:
        """Note that the script of a host ends by `error`: without memory, its next attempts share with nobody."""
        if any(kind.__name__ == "OutOfMemoryError" for kind in error.__mro__):
            self._lacked()

    def _lacked(self) -> None:
        """Keep to no budget any more, now and in later attempts, if there was one while memory ran out."""
        if self._budget_bytes < math.inf and self._ran_out is not None:
            self._exceeds = True
            self._ran_out.touch()

    def _refuse(self, guest: bool) -> None:
        why = (
            f"a memory limit of {self._given_bytes / 2**30:.2f} GiB cannot be kept by a job that shares its process "
            "(merged): torch's limit is one for the whole process; run the job in a process of its own"
        )
        if guest:
            raise InputError(why)
        if not self._refused:
            self._refused = True
            self._note(why)
