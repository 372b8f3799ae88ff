"""Mark stages and seed random streams where samples are loaded, in workers or in the job's own process.

In workers the streams are seeded by (epoch, batch) before each batch, so augmentation does not depend on which worker
loads a batch. Storage and CPU time are separated by the dataset's `read(index)` and `decode(raw)` if it has both; else
by the kernel's accounting: a thread that neither runs nor waits for a core waits for data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from plait.core.resources import Resource
from plait.training.emulation import make_stages
from plait.training.environment import ControlFile, Environment
from plait.training.passive import queued_s
from plait.training.stages import Stages
from plait.training.state import random_streams

STORAGE, CPU = Resource.STORAGE, Resource.CPU
T = TypeVar("T")
#: One batch in `SHORT_S` is measured, which takes 25 microseconds, and shows the parts of the others. One that takes
#: `LONG_S` counts for itself; in steps that are only counted, loads have the parts of all loads so far.
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
        self._timer: LoadTimer | None = LoadTimer(stages)
        self.split = callable(getattr(inner, "read", None)) and callable(getattr(inner, "decode", None))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the stages of this process."""
        return self.__dict__ | {"_timer": None}

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, batch: Any) -> Any:
        return self.__getitems__(batch)[0]

    def __getitems__(self, batch: Any) -> list[Any]:
        """The samples of a batch of `sampler_replay.Indices`."""
        worker = get_worker_info()
        if worker is None:
            assert self._timer is not None
            return self._load(batch, self._timer)
        timer = self._timer = _timer_of_worker()
        random_streams.reseed(getattr(batch, "seed", 0))
        before = list(timer.stages.busy_s)
        try:
            return self._load(batch, timer)
        finally:
            for resource in (STORAGE, CPU):
                self.seconds[worker.id, resource] += timer.stages.busy_s[resource] - before[resource]

    def _load(self, indices: list[Any], timer: LoadTimer) -> list[Any]:
        if self.split:
            with timer.stages.stage(STORAGE):
                raw = [self.inner.read(index) for index in indices]
            with timer.stages.stage(CPU):
                return [self.inner.decode(item) for item in raw]
        several = getattr(self.inner, "__getitems__", None)
        return timer.time(lambda: list(several(indices)) if several else [self.inner[index] for index in indices])


class Untimed:
    """Loads batches of data that mark their own stages. Base of what times others.

    A step that is only counted does not call `time`: it adds the seconds of its load to `glanced_s`.
    """

    glanced_s = 0.0

    def time(self, load: Callable[[], T]) -> T:
        """Call `load`, which loads one batch."""
        return load()


class LoadTimer(Untimed):
    """Measures how long a process loads batches, and which part of that it waits for data."""

    def __init__(self, stages: Stages, *, waits: bool = False) -> None:
        """Mark in `stages`; `waits`: True if all of it counts as waiting, False: by the kernel's accounting."""
        self.stages, self._waits, self._measure_s = stages, waits, 0.0
        self._short_s = 0.0  # of short batches since the last measured one
        self._waited_s = self._all_s = 0.0  # so far, without steps that were only counted

    def time(self, load: Callable[[], T]) -> T:
        """Call `load`. Only the whole time of most batches is measured; the next one shows their parts."""
        stages, begin_s = self.stages, time.perf_counter()
        if begin_s >= self._measure_s or not stages.samples:
            return self._measured(load, begin_s)
        cpu_s = time.thread_time()
        stages.show(STORAGE, begin_s)
        try:
            return load()
        finally:
            stages.hide()
            took_s = time.perf_counter() - begin_s
            if took_s < LONG_S:
                self._short_s += took_s
            else:
                self._add(took_s, max(took_s - time.thread_time() + cpu_s, 0.0) / took_s)

    def _measured(self, load: Callable[[], T], begin_s: float) -> T:
        stages = self.stages
        # One stage, on the resource that has dominated so far.
        mostly = CPU if stages.busy_s[CPU] > stages.busy_s[STORAGE] and not self._waits else STORAGE
        timer = WaitTimer()
        with stages.stage(mostly):
            loaded = load()
        waited_s, all_s = timer.waited_s()
        part = waited_s / all_s if all_s > 0 else 0.0
        if not self._waits:
            stages.split(mostly, {STORAGE: part, CPU: 1 - part})
        self._waited_s, self._all_s = self._waited_s + waited_s, self._all_s + all_s
        short_s, glanced_s, self._short_s, self.glanced_s = self._short_s, self.glanced_s, 0.0, 0.0
        self._add(short_s, part)
        self._add(glanced_s, self._waited_s / self._all_s if self._all_s else 0.0)
        self._measure_s = begin_s + SHORT_S
        return loaded

    def _add(self, all_s: float, part: float) -> None:
        """Add seconds of loading, of which `part` was waiting for data."""
        part = 1.0 if self._waits else part
        self._waited_s, self._all_s = self._waited_s + all_s * part, self._all_s + all_s
        for resource, seconds in ((STORAGE, all_s * part), (CPU, all_s * (1 - part))):
            self.stages.add(resource, seconds, seconds)


class WorkerTimer(Untimed):
    """Measures what loading in workers takes: the wait for them is its exposed part."""

    def __init__(self, stages: Stages, marked: Marked) -> None:
        """Mark in `stages` of the job's own process; the workers load from `marked`."""
        self._stages, self._marked = stages, marked
        self._seen_s, self._measure_s = [0.0, 0.0], 0.0

    def time(self, load: Callable[[], T]) -> T:
        """Call `load`, which waits for a worker."""
        stages, begin_s = self._stages, time.perf_counter()
        stages.show(STORAGE, begin_s)
        try:
            return load()
        finally:
            stages.hide()
            now_s = time.perf_counter()
            self.glanced_s += now_s - begin_s
            if now_s >= self._measure_s or not stages.samples:
                self._measure_s = now_s + SHORT_S
                self._add()

    def _add(self) -> None:
        """Add what the workers have measured since the last call."""
        total = self._marked.seconds.sum(0).tolist()
        busy = [now - before for now, before in zip(total, self._seen_s, strict=True)]
        waited_s, both_s = self.glanced_s, sum(busy)
        self._seen_s, self.glanced_s = total, 0.0
        for resource in (STORAGE, CPU):
            part = busy[resource] / both_s if both_s else 0.5
            self._stages.add(resource, busy[resource], waited_s * part)


class Streamed(_Around, IterableDataset[Any]):
    """An iterable dataset; persistent workers seed their streams at each pass but the first."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.seed = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and int(self.seed):
            random_streams.reseed((int(self.seed) * 1_000_003 + worker.id) & 0x7FFFFFFF)
        yield from self.inner


class WaitTimer:
    """Measures how long this thread waits for data, from its construction."""

    def __init__(self) -> None:
        self.begin_s, self.cpu_s, self.queued_s = self._now()

    def _now(self) -> tuple[float, float, float]:
        """Read all clocks at one moment: again if the thread waited for a core in between."""
        waited_s = queued_s()
        for _ in range(3):
            clocks, before_s = (time.perf_counter(), time.thread_time()), waited_s
            waited_s = queued_s()
            if waited_s == before_s:
                break
        return *clocks, waited_s

    def waited_s(self) -> tuple[float, float]:
        """Seconds of waiting for data so far, and all seconds so far."""
        now_s, cpu_s, queued_s = self._now()
        all_s = now_s - self.begin_s
        busy_s = (cpu_s - self.cpu_s) + (queued_s - self.queued_s)
        return min(max(all_s - busy_s, 0.0), all_s), all_s


_worker_timer: LoadTimer | None = None


def _timer_of_worker() -> LoadTimer:
    """The timer of this worker, whose stages have their own gate, created at first use."""
    global _worker_timer
    if _worker_timer is None:
        watch = ControlFile(Environment.of(os.environ), worker=True)
        _worker_timer = LoadTimer(make_stages(None, refresh=watch.gate))
    return _worker_timer
