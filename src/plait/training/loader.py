"""A DataLoader that marks its stages and can go on in the middle of an epoch with the very same batches.

What makes the order of an epoch is the state of the random streams when its sampler was started. The wrapper takes it
then; to resume, it puts it back, starts the sampler, and skips what was done as indices, so nothing is loaded for
nothing. In workers the streams are set by (epoch, batch) before each batch: augmentations do not depend on which
worker did what before.

Storage and CPU time are told apart in the workers: by the dataset's own `read(index)` and `decode(raw)` if it has
both; else by the kernel: a thread that is neither running nor waiting for a core waits for its data.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from plait.core.resources import Resource
from plait.training import streams
from plait.training.stagegate import NullGate
from plait.training.stages import Stages
from plait.training.stopping import ignore_in_worker
from plait.training.surroundings import ControlFile, Surroundings

if TYPE_CHECKING:
    from plait.training.job import AttachedJob

STORAGE, CPU = Resource.STORAGE, Resource.CPU
_END = object()


def wrap(job: AttachedJob, loader: Any, *, train: bool) -> Any:
    """A loader that yields the same batches; see `AttachedJob.wrap_loader`."""
    if isinstance(loader, StagedLoader | PassingLoader):
        return loader
    own_state = callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))
    if own_state or not isinstance(loader, DataLoader) or type(loader) is not DataLoader:
        return PassingLoader(job, loader, train=train)
    return StagedLoader(job, loader, train=train)


class _Batch(list[Any]):
    """The indices of a batch, with the seed of its random streams."""

    seed = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _batch, (list(self), self.seed)


def _batch(indices: list[Any], seed: int) -> _Batch:
    made = _Batch(indices)
    made.seed = seed
    return made


class _Order:
    """The batches of a sampler, replayed from where its streams were when it was started."""

    def __init__(self, sampler: Any, generators: list[Any]) -> None:
        self.sampler, self.generators = sampler, generators
        self.number = 0  # of the pass
        self.start: dict[str, Any] | None = None
        self.replay = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[_Batch]:
        if not self.replay:
            return self._batches(iter(self.sampler), 0, None)
        assert self.start is not None
        streams.restore(self.start, self.generators)
        batches = iter(self.sampler)
        skipped = sum(1 for _ in itertools.islice(batches, self.replay))
        return self._batches(batches, skipped, _seed(self.start, self.number))

    def _batches(self, batches: Iterator[Any], first: int, seed: int | None) -> Iterator[_Batch]:
        if seed is None:  # as late as the sampler itself looks at its streams
            self.start = streams.capture(self.generators)
            seed = _seed(self.start, self.number)
        for number, indices in enumerate(batches, first):
            yield _batch(indices if isinstance(indices, list) else [indices], (seed * 1_000_003 + number) & 0x7FFFFFFF)


def _seed(start: dict[str, Any], number: int) -> int:
    """A number that a pass has for itself and that a replay of it has too."""
    return zlib.crc32(start["torch"].numpy().tobytes(), number)


class _Marked:
    """A map-style dataset whose batches are loaded under marks, in a worker or in the job's own process."""

    def __init__(self, inner: Any, workers: int, stages: Stages) -> None:
        self.inner = inner
        # Busy seconds by worker and resource, in memory that workers and job share.
        self.seconds = torch.zeros((max(int(workers), 1), 2), dtype=torch.float64)
        if workers:
            self.seconds.share_memory_()  # type: ignore[no-untyped-call]
        self._stages: Stages | None = stages
        self._split = callable(getattr(inner, "read", None)) and callable(getattr(inner, "decode", None))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stages": None}

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "__getstate__", "__setstate__") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getitem__(self, batch: Any) -> Any:
        """One sample, when the loader does not collate."""
        return self.__getitems__(batch)[0]

    def __getitems__(self, batch: Any) -> list[Any]:
        worker = get_worker_info()
        if worker is None:
            assert self._stages is not None
            return self._load(batch, self._stages)
        self._stages = _stages_of_worker()
        streams.reseed(getattr(batch, "seed", 0))
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
        # One stage, at the gate for whichever of the two it has mostly been.
        mostly = CPU if stages.busy_s[CPU] > stages.busy_s[STORAGE] else STORAGE
        ran_s = _Ran()
        with stages.stage(mostly):
            loaded = self._fetch(indices)
        part = ran_s.storage_part()
        stages.split(mostly, {STORAGE: part, CPU: 1 - part})
        return loaded

    def _fetch(self, indices: list[Any]) -> list[Any]:
        several = getattr(self.inner, "__getitems__", None)
        return list(several(indices)) if several else [self.inner[index] for index in indices]


class _Ran:
    """The part of a stretch of this thread's time in which it waited for data."""

    path = Path("/proc/thread-self/schedstat")

    def __init__(self) -> None:
        self.begin_s, self.cpu_s, self.queued_s = self._now()

    def _now(self) -> tuple[float, float, float]:
        try:
            queued_s = int(self.path.read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # a system that does not say: waiting for a core counts as storage
            queued_s = 0.0
        return time.perf_counter(), time.thread_time(), queued_s

    def storage_part(self) -> float:
        now_s, cpu_s, queued_s = self._now()
        all_s = now_s - self.begin_s
        busy_s = (cpu_s - self.cpu_s) + (queued_s - self.queued_s)
        return min(max(1 - busy_s / all_s, 0.0), 1.0) if all_s > 0 else 0.0


_worker_stages: Stages | None = None


def _stages_of_worker() -> Stages:
    """The marks of this worker, with a gate of its own, opened when it is first needed."""
    global _worker_stages
    if _worker_stages is None:
        watch = ControlFile(Surroundings.of(os.environ), worker=True)
        _worker_stages = Stages(None, NullGate(), refresh=watch.gate)
    return _worker_stages


class _Passes:
    """Counts passes and batches, and has the state to go on; shared by both kinds of loaders."""

    def __init__(self, job: AttachedJob, *, train: bool) -> None:
        self.job, self.train = job, train
        self.done, self.active = 0, False

    def run(self, batches: Iterator[Any], first: int, load: Any) -> Iterator[Any]:
        """Hand out batches; between two of them is where the job may save and stop."""
        job = self.job
        self.done, self.active = first, self.train
        with job.in_loop("loader") if self.train else nullcontext():
            try:
                while (batch := load(batches)) is not _END:
                    self.done += 1
                    job.compute.begin()
                    yield batch
                    job.compute.end()
                    if self.train:
                        job.safe_point("loader")
            finally:
                job.compute.end()
                self.active = False


class StagedLoader(DataLoader[Any]):
    """See `AttachedJob.wrap_loader`."""

    def __init__(self, job: AttachedJob, inner: DataLoader[Any], *, train: bool) -> None:
        """The same loader with dataset and sampler under our eyes."""
        self._job, self._passes = job, _Passes(job, train=train)
        self._resume: dict[str, Any] | None = None
        self._seen_s = [0.0, 0.0]
        options: dict[str, Any] = {
            "num_workers": inner.num_workers,
            "collate_fn": inner.collate_fn,
            "pin_memory": inner.pin_memory,
            "timeout": inner.timeout,
            "worker_init_fn": partial(ignore_in_worker, inner.worker_init_fn),
            "multiprocessing_context": inner.multiprocessing_context,
            "generator": inner.generator,
            "persistent_workers": inner.persistent_workers,
        }
        if inner.num_workers:
            options["prefetch_factor"] = inner.prefetch_factor
        self._order: _Order | None = None
        self._marked: _Marked | None = None
        if isinstance(inner.dataset, IterableDataset):
            super().__init__(inner.dataset, batch_size=inner.batch_size, drop_last=inner.drop_last, **options)
        else:
            marked = self._marked = _Marked(inner.dataset, inner.num_workers, job.stages)
            sampler = inner.batch_sampler if inner.batch_sampler is not None else inner.sampler
            order = self._order = _Order(sampler, _generators(inner))
            if inner.batch_sampler is not None:
                super().__init__(marked, batch_sampler=order, **options)  # type: ignore[arg-type]
            else:
                super().__init__(marked, sampler=order, batch_size=None, **options)  # type: ignore[arg-type]
        self._given_sampler = inner.sampler
        self._generators = self._order.generators if self._order else _generators(inner)
        self._start: dict[str, Any] | None = None  # of an iterable dataset's pass

    @property
    def given_sampler(self) -> Any:
        """The sampler of the loader that was wrapped: for `set_epoch`."""
        return self._given_sampler

    def __iter__(self) -> Any:
        """The batches, from where the checkpoint was if this is the first pass after it."""
        if self._passes.train:
            self._job.safe_point("loader")
            self._job.resume()
        resume, self._resume = self._resume, None
        if resume is None:
            self._start = streams.capture(self._generators) if self._order is None else None
            if self._order is not None:
                self._order.number += 1
            return self._passes.run(super().__iter__(), 0, self._next)
        batches = self._replayed(resume)
        self._job.kept.restore_streams()
        return self._passes.run(batches, resume["done"], self._next)

    def _replayed(self, state: dict[str, Any]) -> Iterator[Any]:
        """The iterator of a pass that was begun before the checkpoint, without what was done."""
        order = self._order
        if order is not None:
            order.number, order.start, order.replay = state["number"], state["start"], state["done"]
            batches = super().__iter__()
            order.replay = 0
            return batches
        self._start = state["start"]
        streams.restore(self._start or {}, self._generators)
        batches = super().__iter__()
        for _ in range(state["done"]):  # a stream cannot be skipped as indices
            next(batches, None)
        return batches

    def _next(self, batches: Iterator[Any]) -> Any:
        """The next batch; the wait for it is the exposed part of loading."""
        stages, marked = self._job.stages, self._marked
        if marked is None or not self.num_workers:
            if marked is None:
                with stages.stage(STORAGE):
                    return next(batches, _END)
            return next(batches, _END)
        begin_s = time.perf_counter()
        batch = next(batches, _END)
        waited_s = time.perf_counter() - begin_s
        total = marked.seconds.sum(0).tolist()
        busy = [now - before for now, before in zip(total, self._seen_s, strict=True)]
        self._seen_s = total
        both = sum(busy)
        for resource in (STORAGE, CPU):
            part = busy[resource] / both if both else 0.5
            stages.add(resource, busy[resource], waited_s * part)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where it is: pass, batches done, the streams that made the order."""
        passes = self._passes
        start = self._order.start if self._order else self._start
        begun = passes.active and passes.done > 0 and start is not None
        if begun and self._order is not None and passes.done >= len(self) and not self._job.in_epochs:
            begun = False  # the script will count this pass as done
        return {
            "active": begun,
            "done": passes.done if begun else 0,
            "number": self._order.number if self._order else 0,
            "start": start if begun else None,
            "generators": [generator.get_state() for generator in self._generators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there at the next `iter`."""
        for generator, stream in zip(self._generators, state["generators"], strict=False):
            generator.set_state(stream)
        if self._order is not None:
            self._order.number = state["number"]
        self._resume = state if state["active"] else None


class PassingLoader:
    """Around a loader that keeps its own state (torchdata's StatefulDataLoader), or of a kind not known here.

    Marks and step boundaries only; the state is the loader's, if it has one.
    """

    def __init__(self, job: AttachedJob, inner: Any, *, train: bool) -> None:
        """Around `inner`."""
        self._job, self._inner, self._passes = job, inner, _Passes(job, train=train)
        self._resumed = False
        if isinstance(inner, DataLoader) and inner.num_workers:
            inner.worker_init_fn = partial(ignore_in_worker, inner.worker_init_fn)

    def __len__(self) -> int:
        """Of the inner loader."""
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        """Anything else is the inner loader's."""
        return getattr(self.__dict__["_inner"], name)

    def __iter__(self) -> Iterator[Any]:
        """The inner loader's batches under marks."""
        if self._passes.train:
            self._job.safe_point("loader")
            self._job.resume()
        batches = iter(self._inner)
        if self._resumed:
            self._resumed = False
            self._job.kept.restore_streams()
        return self._passes.run(batches, 0, self._next)

    def _next(self, batches: Iterator[Any]) -> Any:
        with self._job.stages.stage(STORAGE):
            return next(batches, _END)

    def state_dict(self) -> dict[str, Any]:
        """The inner loader's state, while a pass is under way."""
        known = callable(getattr(self._inner, "state_dict", None))
        return {"inner": self._inner.state_dict() if known and self._passes.active else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give it back to the inner loader."""
        if state["inner"] is not None:
            self._inner.load_state_dict(state["inner"])
            self._resumed = True


def _generators(loader: DataLoader[Any]) -> list[Any]:
    """The torch generators that the order of a loader may come from, each once."""
    owners = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = {id(g): g for g in (getattr(owner, "generator", None) for owner in owners) if g is not None}
    return list(found.values())
