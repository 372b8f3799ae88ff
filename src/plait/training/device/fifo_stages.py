"""GPU stages on an emulated GPU that several processes share, for tests and demonstrations on CPU slots.

    PLAIT_FIFO_GPU=file=/tmp/gpu0,stage=100ms,kernel=5ms,persistent=1GB,peak=4GB

A GPU stage computes in earnest, and then runs kernels of so many milliseconds until `stage` is full; between two of
them is a yield point. The process declares its memory: what it has between two steps, and the most in a step. What the
device and its limit do not allow is on the host, and makes the step longer; what neither has is waited for.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.page import Page
from plait.sharing.directive import SpillReason
from plait.training.device.fifo import DEFAULT_BYTES, FifoDevice
from plait.training.stages import Stages

VARIABLE = "PLAIT_FIFO_GPU"
#: How much longer a step takes whose memory is all on the host, beside 1; as in the micro model (`plait.sim.gpu`).
SPILL_COST = 4.0
LOOK_S = 0.005
_UNITS = {"ms": 1e-3, "s": 1.0, "GB": 1e9, "MB": 1e6}


@dataclass(frozen=True)
class Declared:
    """What the environment declares. Seconds and bytes; `host`: the most on the host, `memory`: of the device."""

    file: str
    stage: float = 0.1
    kernel: float = 0.005
    persistent: float = 0.0
    peak: float = 0.0
    host: float = 64e9
    memory: float = DEFAULT_BYTES

    @classmethod
    def of(cls, text: str) -> Declared | None:
        """As the variable says; None for an empty one. Raises `InputError` for what is no declaration."""
        if not text:
            return None
        found: dict[str, Any] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            found[name] = value if name == "file" else _number(value)
            if name not in cls.__dataclass_fields__ or found[name] is None or found[name] == "":
                raise InputError(
                    f"{VARIABLE}={text!r}: {part!r} is not like file=/tmp/gpu0, stage=100ms, kernel=5ms, "
                    "persistent=1GB, peak=4GB, host=64GB or memory=32GB"
                )
        if "file" not in found:
            raise InputError(f"{VARIABLE}={text!r} has no file=..., the emulated GPU that processes share")
        return cls(**found)


def _number(text: str) -> float | None:
    unit = next((unit for unit in _UNITS if text.endswith(unit)), None)
    try:
        number = float(text.removesuffix(unit)) * _UNITS[unit] if unit else math.nan
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


class FifoMemory:
    """The memory of the emulated GPU as this process has it (`sharing.device_memory.DeviceMemory`)."""

    spills = True

    def __init__(self, device: FifoDevice, declared: Declared, page: Page | None) -> None:
        """Start without reservations; waits are written to `page`."""
        self._device, self._page, self._host_bytes = device, page, declared.host
        self.persistent_bytes, self.peak_bytes = declared.persistent, max(declared.peak, declared.persistent)
        self.capacity_bytes = int(device.capacity_bytes)
        self._limit_bytes = math.inf
        self._spilled_bytes = 0.0

    def demand(self, peak_bytes: float) -> None:
        """From the next step on the most of a step is this."""
        self.peak_bytes = peak_bytes

    def begin_step(self) -> float:
        """Allocate for a step, waiting for what nobody can serve; how many times as long the step takes.

        A job that was asked to stop waits no longer: it has to reach its checkpoint.
        """
        page = self._page
        while True:
            got = self._device.reserve(self.peak_bytes, max(self._limit_bytes, self.persistent_bytes))
            self._spilled_bytes = min(self.peak_bytes - got, self._host_bytes)
            refused = self.peak_bytes - got - self._spilled_bytes
            if page is not None:
                page.refused_bytes = refused
            if refused <= 0 or (page is not None and page.stop):
                return 1.0 + SPILL_COST * self._spilled_bytes / max(self.peak_bytes, 1.0)
            time.sleep(LOOK_S)
            if page is not None:  # a limit that is raised counts in the allocation that waits for it
                self._limit_bytes = max(self._limit_bytes, page.memory_limit_bytes or math.inf)

    def end_step(self, *, reset: bool = True) -> Any:
        """See `DeviceMemory`; always of one step."""
        from plait.training.sharing.device_memory import MemoryUse

        got, spilled = int(self._device.reserved_bytes), int(self._spilled_bytes)
        reason = SpillReason.OUT_OF_MEMORY if spilled else SpillReason.NONE
        return MemoryUse(got, int(self.persistent_bytes), got, spilled, reason)

    def bound(self, limit_bytes: float) -> float:
        """See `DeviceMemory`. Persistent memory stays where it is."""
        held = min(self._device.reserved_bytes, max(limit_bytes, self.persistent_bytes))
        self._limit_bytes = max(limit_bytes, self._device.reserve(held))
        return self._limit_bytes


class FifoStages(Stages):
    """Stages whose GPU is emulated; `memory` is that of the process."""

    may_sample = False

    def __init__(self, declared: Declared, page: Page | None, *args: Any, **options: Any) -> None:
        """`declared` and what `Stages` takes. Opens the device."""
        super().__init__(page, *args, **options)
        self.stage_s, self._kernel_s = declared.stage, declared.kernel
        self.device = FifoDevice(declared.file, declared.memory)
        self.memory: FifoMemory = FifoMemory(self.device, declared, page)
        self.served_s = 0.0  # seconds of kernels of this process
        self.factor = 1.0  # of the kernels of the next stage
        self._kernels = 0  # since `returned`

    def leave(self, resource: Resource, *, sync: bool = False) -> None:
        """See `Stages.leave`: the kernels of the stage run before it ends."""
        if resource is Resource.GPU and self.is_open(resource):
            self._run_kernels()
        super().leave(resource, sync=sync)

    def returned(self) -> tuple[int, int]:
        """See `Stages.returned`: the job waits for each kernel."""
        kernels, self._kernels = self._kernels, 0
        return kernels, super().returned()[1]

    def _run_kernels(self) -> None:
        stretch = self.memory.begin_step() * self.factor
        left_s, kernel_s = self.stage_s, self._kernel_s
        while left_s > 1e-9:
            took_s = min(kernel_s, left_s) * stretch
            self.device.run(took_s)
            self.served_s += took_s
            self._kernels += 1
            left_s -= kernel_s
            if left_s > 1e-9:
                self.yield_point()


def declared_fifo() -> Declared | None:
    """What the environment of this process declares."""
    return Declared.of(os.environ.get(VARIABLE, ""))
