"""Mark stages and seed random streams where samples are loaded, in workers or in the job's own process.

In workers the streams are seeded by (epoch, batch) before each batch, so augmentation does not depend on which worker
loads a batch. Storage and CPU time are separated by the dataset's `read(index)` and `decode(raw)` if it has both; else
by the kernel's accounting: a thread that neither runs nor waits for a core waits for data.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from plait.core.resources import Resource
from plait.training.device.emulation import make_stages
from plait.training.environment import ControlFile, Environment
from plait.training.stages import Stages
from plait.training.state import random_streams

STORAGE, CPU = Resource.STORAGE, Resource.CPU
#: One batch in `SHORT_S` is measured, which takes 25 microseconds, and stands for the others; a batch that takes
#: `LONG_S` counts for itself.
SHORT_S, LONG_S = 0.02, 0.005


class _Around:
    """Forwards all attributes to the dataset that it wraps."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "__getstate__", "__setstate__") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.inner, name)


class Marked(_Around):
    """A map-style dataset that marks the stages of loading."""

    def __init__(self, inner: Any, workers: int, stages: Stages) -> None:
        """Wrap `inner` for `workers` workers; `stages` are those of the job's own process."""
        self.inner = inner
        # Busy seconds by worker and resource, in shared memory.
        self.seconds = torch.zeros((max(int(workers), 1), 2), dtype=torch.float64)
        if workers:
            self.seconds.share_memory_()  # type: ignore[no-untyped-call]
        self._stages: Stages | None = stages
        self._unmeasured, self._measure_s = 0, 0.0  # batches since the last measured one; when the next one is
        self._split = callable(getattr(inner, "read", None)) and callable(getattr(inner, "decode", None))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the stages of this process."""
        return self.__dict__ | {"_stages": None}

    def __len__(self) -> int:
        """Samples."""
        return len(self.inner)

    def __getitem__(self, batch: Any) -> Any:
        """One sample, for loaders without batches."""
        return self.__getitems__(batch)[0]

    def __getitems__(self, batch: Any) -> list[Any]:
        """The samples of a batch of `sampler_replay.Indices`."""
        worker = get_worker_info()
        if worker is None:
            assert self._stages is not None
            return self._load(batch, self._stages)
        self._stages = _stages_of_worker()
        random_streams.reseed(getattr(batch, "seed", 0))
        before = list(self._stages.busy_s)
        try:
            return self._load(batch, self._stages)
        finally:
            for resource in (STORAGE, CPU):
                self.seconds[worker.id, resource] += self._stages.busy_s[resource] - before[resource]

    def _load(self, indices: list[Any], stages: Stages) -> list[Any]:
        if self._split:
            with stages.stage(STORAGE):
                raw = [self.inner.read(index) for index in indices]
            with stages.stage(CPU):
                return [self.inner.decode(item) for item in raw]
        begin_s = time.perf_counter()
        if begin_s < self._measure_s and stages.samples:
            return self._load_unmeasured(indices, stages, begin_s)
        # One stage, on the resource that has dominated so far.
        mostly = CPU if stages.busy_s[CPU] > stages.busy_s[STORAGE] else STORAGE
        timer = WaitTimer()
        with stages.stage(mostly, weight=self._unmeasured + 1):
            loaded = self._fetch(indices)
        waited_s, all_s = timer.waited_s()
        self._unmeasured, self._measure_s = 0, begin_s + SHORT_S
        part = waited_s / all_s if all_s > 0 else 0.0
        stages.split(mostly, {STORAGE: part, CPU: 1 - part})
        return loaded

    def _load_unmeasured(self, indices: list[Any], stages: Stages, begin_s: float) -> list[Any]:
        """Load a batch that the next measured one stands for, unless it takes long: then what it computes is known."""
        cpu_s = time.thread_time()
        stages.show(STORAGE)
        try:
            return self._fetch(indices)
        finally:
            stages.hide()
            took_s = time.perf_counter() - begin_s
            if took_s < LONG_S:
                self._unmeasured += 1
            else:
                computed_s = min(time.thread_time() - cpu_s, took_s)
                stages.add(CPU, computed_s, computed_s)
                stages.add(STORAGE, took_s - computed_s, took_s - computed_s)

    def _fetch(self, indices: list[Any]) -> list[Any]:
        several = getattr(self.inner, "__getitems__", None)
        return list(several(indices)) if several else [self.inner[index] for index in indices]


class Streamed(_Around, IterableDataset[Any]):
    """An iterable dataset; persistent workers seed their streams at each pass but the first."""

    def __init__(self, inner: Any) -> None:
        """Wrap `inner`; reads nothing yet."""
        self.inner = inner
        self.seed = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Samples, if the dataset has a length."""
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of a pass."""
        worker = get_worker_info()
        if worker is not None and int(self.seed):
            random_streams.reseed((int(self.seed) * 1_000_003 + worker.id) & 0x7FFFFFFF)
        yield from self.inner


class _Accounting:
    """The open file of one thread, closed when the thread ends."""

    descriptor = -1

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class WaitTimer:
    """Measures how long this thread waits for data, from its construction."""

    _files = threading.local()  # the open file of each thread: opening it takes ten times as long as reading it

    def __init__(self) -> None:
        self.begin_s, self.cpu_s, self.queued_s = self._now()

    def _now(self) -> tuple[float, float, float]:
        """Read all clocks at one moment: again if the thread waited for a core in between."""
        queued_s = self._queued_s()
        for _ in range(3):
            clocks, before_s = (time.perf_counter(), time.thread_time()), queued_s
            queued_s = self._queued_s()
            if queued_s == before_s:
                break
        return *clocks, queued_s

    def _queued_s(self) -> float:
        try:
            return int(os.pread(self._file(), 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # without this file, waiting for a core counts as storage
            return 0.0

    def _file(self) -> int:
        """The descriptor of this thread's accounting; a forked child does not use its parent's."""
        opened: _Accounting | None = getattr(self._files, "opened", None)
        if opened is None or opened.pid != os.getpid():
            opened = self._files.opened = _Accounting()
        return opened.descriptor

    def waited_s(self) -> tuple[float, float]:
        """Seconds of waiting for data so far, and all seconds so far."""
        now_s, cpu_s, queued_s = self._now()
        all_s = now_s - self.begin_s
        busy_s = (cpu_s - self.cpu_s) + (queued_s - self.queued_s)
        return min(max(all_s - busy_s, 0.0), all_s), all_s


_worker_stages: Stages | None = None


def _stages_of_worker() -> Stages:
    """The stages of this worker, with its own gate, created at first use."""
    global _worker_stages
    if _worker_stages is None:
        watch = ControlFile(Environment.of(os.environ), worker=True)
        _worker_stages = make_stages(None, refresh=watch.gate)
    return _worker_stages
