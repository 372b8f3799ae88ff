"""Emulate devices slower than those of this machine, for demonstrations and tests on CPU slots.

    PLAIT_SLOWER=cpu=2,gpu=40ms     a CPU stage takes twice the processor time of its thread, a GPU stage 40 ms

`SlowerStages` wraps the marks of stages; `make_stages` takes it only where something is declared.
Where `PLAIT_FIFO_GPU` is set the GPU is a queue that several processes share (`FifoStages`), whatever this says.
A stage still does its real work and then holds its resource until the declared device would have finished. Declared
stages take the same time whatever other programs run, as long as there are enough cores, so the pace of several jobs
depends only on how they take turns.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.page import Page
from plait.runtime.stage_gate import NullGate, StageGate
from plait.sharing.directive import SpillReason
from plait.training.stages import Stages

# A GPU that several processes share, emulated: kernels in the order of their launch, never preempted, and memory.
#
# The device is a file. A kernel takes the next free span of its time and its process sleeps until that is over, so a
# busy machine hardly matters, and two kernels never run at the same time. A process holds a lock on its entry as long
# as it lives: of one that was killed neither kernels nor memory remain.
#
#     offset  word
#          0  magic "PLAITFI1"
#          8  memory of the device in bytes      f8
#         64  32 entries of 32 bytes: end of the last kernel (CLOCK_MONOTONIC), bytes reserved, bytes at most, free

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


# GPU stages on an emulated GPU that several processes share, for tests and demonstrations on CPU slots.
#
#     PLAIT_FIFO_GPU=file=/tmp/gpu0,stage=100ms,kernel=5ms,persistent=1GB,peak=4GB
#
# A GPU stage computes in earnest, and then runs kernels of so many milliseconds until `stage` is full; between two of
# them is a yield point. The process declares its memory: what it has between two steps, and the most in a step. What
# the device and its limit do not allow is on the host, and makes the step longer; what neither has is waited for.

FIFO_VARIABLE = "PLAIT_FIFO_GPU"
#: How much longer a step takes whose memory is all on the host, beyond 1; as in the micro model (`plait.sim.gpu`).
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
                    f"{FIFO_VARIABLE}={text!r}: {part!r} is not like file=/tmp/gpu0, stage=100ms, kernel=5ms, "
                    "persistent=1GB, peak=4GB, host=64GB or memory=32GB"
                )
        if "file" not in found:
            raise InputError(f"{FIFO_VARIABLE}={text!r} has no file=..., the emulated GPU that processes share")
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
        super().leave(resource, sync=sync)

    def returned(self) -> tuple[int, int]:
        """See `Stages.returned`: the job waits for each kernel."""
        kernels, self._kernels = self._kernels, 0
        return kernels, super().returned()[1]


def declared_fifo() -> Declared | None:
    return Declared.of(os.environ.get(FIFO_VARIABLE, ""))


VARIABLE = "PLAIT_SLOWER"


class SlowDevices:
    """Waits at the end of stages on the declared resources. A stage belongs to one thread."""

    def __init__(self, factors: dict[Resource, float], least_s: dict[Resource, float] | None = None) -> None:
        """By resource: a factor of the processor time of a stage's thread, and the least seconds of a stage."""
        self._factors, self._least_s = factors, least_s or {}
        self._begun: dict[Resource, tuple[int, float, float]] = {}

    @classmethod
    def declared(cls, text: str | None = None) -> SlowDevices:
        """Read the declaration `text`, by default from the environment; raises `InputError` if it is invalid."""
        text = os.environ.get(VARIABLE, "") if text is None else text
        known = {r.name.lower(): r for r in (Resource.CPU, Resource.GPU)}
        factors: dict[Resource, float] = {}
        least_s: dict[Resource, float] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            fixed = value.endswith("ms")
            try:
                number = float(value.removesuffix("ms"))
            except ValueError:
                number = math.nan
            if name not in known or not (0 if fixed else 1) <= number <= 1000:
                ways = "cpu=2 (times, from 1 to 1000) or gpu=40ms (up to 1000)"
                raise InputError(f"{VARIABLE}={text!r}: {part!r} is not like {ways}")
            if fixed:
                least_s[known[name]] = number / 1e3
            else:
                factors[known[name]] = number
        return cls(factors, least_s)

    def __bool__(self) -> bool:
        return bool(self._factors or self._least_s)

    def begin(self, resource: Resource) -> None:
        if resource in self._factors or resource in self._least_s:
            self._begun[resource] = threading.get_ident(), time.perf_counter(), time.thread_time()

    def end(self, resource: Resource) -> None:
        """End or pause the stage: wait until the declared device would have finished."""
        begun = self._begun.pop(resource, None)
        if begun is not None and begun[0] == threading.get_ident():
            computed_s = self._factors.get(resource, 0.0) * (time.thread_time() - begun[2])
            done_s = begun[1] + max(computed_s, self._least_s.get(resource, 0.0))
            time.sleep(max(0.0, done_s - time.perf_counter()))


class SlowerStages(Stages):
    """Stages that end, pause and give way only when the declared devices would have finished."""

    may_sample = False

    def __init__(self, slower: SlowDevices, *args: Any, **options: Any) -> None:
        """`slower`: the declared devices; other arguments are those of `Stages`."""
        super().__init__(*args, **options)
        self._slower = slower

    def enter(self, resource: Resource, *, gated: bool = True, weight: int = 1) -> None:
        super().enter(resource, gated=gated, weight=weight)
        self._slower.begin(resource)

    def leave(self, resource: Resource, *, sync: bool = False) -> None:
        self._slower.end(resource)
        super().leave(resource, sync=sync)

    def sleep(self, resource: Resource) -> None:
        self._slower.end(resource)
        super().sleep(resource)

    def wake(self, resource: Resource) -> bool:
        slept = super().wake(resource)
        if slept:
            self._slower.begin(resource)
        return slept

    def _give_way(self) -> float:
        for resource in Resource:
            self._slower.end(resource)
        return super()._give_way()

    def _go_on(self, gave_way_s: float) -> None:
        super()._go_on(gave_way_s)
        for resource in filter(self.is_open, Resource):
            self._slower.begin(resource)


def make_stages(page: Page | None, *, refresh: Callable[[StageGate], StageGate], **options: Any) -> Stages:
    """The stages of this process, on devices as slow as the environment declares them; `options` as for `Stages`.

    Raises `InputError` for what is no declaration.
    """
    if (fifo := declared_fifo()) is not None:
        return FifoStages(fifo, page, NullGate(), refresh=refresh, **options)
    slower = SlowDevices.declared()
    if slower:
        return SlowerStages(slower, page, NullGate(), refresh=refresh, **options)
    return Stages(page, NullGate(), refresh=refresh, **options)
