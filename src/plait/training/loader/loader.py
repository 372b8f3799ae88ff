"""A DataLoader that marks its stages and resumes in the middle of an epoch with exactly the same batches.

    loader                                        how it resumes
    DataLoader, subclasses, StatefulDataLoader    replays the sampler and skips finished batches as indices
    ... of an iterable dataset                    reads the stream again up to the position and compares there
    any other with state_dict and load_state_dict by its own state
    any other                                     reads again and compares, like a stream

If the same items do not come again (a stream of events, a sampler with hidden state), resuming in the middle of an
epoch raises `InputError`.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.training.loader.consumers import asks_for_one, count_on, counted_beside, cycled, numbers, part_of
from plait.training.loader.prefetch import LoadTimer, Marked, Streamed, Untimed, WorkerTimer
from plait.training.loader.sampler_replay import Order, fingerprint, generators_of, pass_seed
from plait.training.stages import IN_STAGE, STAGE_SINCE
from plait.training.state import random_streams
from plait.training.state.structure import NotRestorable
from plait.training.stopping import ignore_in_worker

if TYPE_CHECKING:
    from plait.training.job import Rank
    from plait.training.loader.consumers import EpochLoaders

STORAGE = Resource.STORAGE
_END = object()
#: More batches than any trainer fetches ahead.
AHEAD = 7
#: Passes of an epoch that are over: with iterations of the job, or without (an evaluation).
TRAINED, LOOKED = "t", "l"


def wrap(job: Rank, loader: Any, *, train: bool) -> Any:
    """Wrap `loader` for `job`, with the same batches; `train` as for `Job.wrap_loader`."""
    if isinstance(loader, StagedLoader | PassingLoader):
        return loader
    return StagedLoader(job, loader, train=train) if _known(loader) else PassingLoader(job, loader, train=train)


def _known(loader: Any) -> bool:
    """True if the loader iterates like DataLoader, over a dataset without own state."""
    kind = type(loader)
    if not isinstance(loader, DataLoader) or hasattr(loader.dataset, "load_state_dict"):
        return False
    if kind.__module__.startswith("torchdata.stateful_dataloader"):
        return True
    return all(getattr(kind, name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator", "__len__"))


def options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Constructor arguments of a DataLoader, without its data and their order."""
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "multiprocessing_context", "generator")
    options = {name: getattr(loader, name) for name in names}
    options["persistent_workers"] = loader.persistent_workers
    options["worker_init_fn"] = partial(ignore_in_worker, loader.worker_init_fn)
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
        options["in_order"] = getattr(loader, "in_order", True)
    return options


class _Passes:
    """Counts passes and batches; between two batches the job may save and stop."""

    def __init__(self, job: Rank, loader: Any, *, train: bool) -> None:
        self.job, self.loader, self.train = job, weakref.ref(loader), train
        self.done, self.active = 0, False
        self.origin = 0  # batches before the first of this pass, where an `itertools.cycle` goes on
        self._batches: weakref.ref[Any] = weakref.ref(self)  # the iterator of the newest pass
        self._first: weakref.ref[Any] = weakref.ref(self)  # a part of its first batch
        self._looked = False  # at how the loop counts
        self.made_in_epoch: EpochLoaders | None = None  # where the position is saved of a loader that an epoch makes
        self._epoch: int | None = None  # to which `_finished` belongs
        self._finished = ""  # passes of this epoch that are over
        self._earlier = ""  # at a resume: those of the epoch that precede the next one
        self._earlier_of: int | None = None  # their epoch

    def begin(self) -> None:
        if self.train:
            if self.made_in_epoch is None:  # else only in a pass can its position be found again
                self.job.safe_point("loader")
            self.job.resume()
            if self.made_in_epoch is not None:
                self.made_in_epoch.take(self)
            if self._epoch_now != self._earlier_of:
                self._earlier = ""

    @property
    def _epoch_now(self) -> int | None:
        return self.job.epoch if self.job.iterations.inside("epochs") else None

    @property
    def finished(self) -> str:
        """The passes of this epoch that are over, by kind; "" outside `job.epochs`."""
        return self._finished if self._epoch is not None and self._epoch == self._epoch_now else ""

    def _ended(self, kind: str) -> None:
        self._finished = self.finished + kind
        self._epoch = self._epoch_now

    def repeat(self, finished: str) -> None:
        """After a resume: the next passes of this epoch are those of `finished`, which were over at the checkpoint."""
        self._earlier, self._earlier_of = finished, self.job.epoch

    def next_pass(self, begin: Callable[[bool], Iterator[Any]]) -> Iterator[Any]:
        """The next pass: `begin(again)`, where `again` leaves the position of the checkpoint to a later one."""
        return self._earlier_pass(begin) if self._earlier else begin(False)

    def _earlier_pass(self, begin: Callable[[bool], Iterator[Any]]) -> Iterator[Any]:
        """Yield nothing if the pass has trained before the checkpoint, else a whole pass.

        A script that calls `next` continues: it begins passes as it needs them, and expects a batch in each.
        """
        kind, self._earlier = self._earlier[:1], self._earlier[1:]
        if not kind or asks_for_one(sys._getframe(1)):
            self._earlier = ""
            yield from begin(False)
        elif kind == LOOKED:
            yield from begin(True)
        else:
            self._ended(TRAINED)
            self.job.advice.note_left_out()

    def run(
        self,
        load: Callable[[], Any],
        timer: Untimed,
        first: int,
        length: int | None = None,
        *,
        again: bool,
        counted: list[int] | None = None,
    ) -> Iterator[Any]:
        """An iterator over batches, each from `load()`; arguments as for `_run`."""
        # A script may hold nothing but this iterator, and the checkpoint needs the loader.
        made = self._run(load, timer, first, length, again=again, counted=counted, _loader=self.loader())
        self._batches = weakref.ref(made)
        return made

    def _run(
        self,
        load: Callable[[], Any],
        timer: Untimed,
        first: int,
        length: int | None,
        *,
        again: bool,
        counted: list[int] | None,
        _loader: Any,
    ) -> Iterator[Any]:
        """Yield batches, each from `load()`, which `timer` times. `first`: batches done already.

        `length`: of a whole pass, if known. `again`: the pass continues after a resume, with the random streams of the
        checkpoint. `counted`: the numbers of the script's `enumerate` objects at a resume.
        """
        job, train, compute, stop = self.job, self.train, self.job.compute, self.job.boundary.stop
        iterations, floats, ints = job.iterations, job.stages.floats, job.stages.ints
        if again:
            job.kept.restore_streams()
        self.done, self.active, before = first, train, job.iterations.counted
        with job.iterations.in_loop("loader") if train else job.in_evaluation():
            try:
                while True:
                    skips = train and compute.glances
                    if skips:  # as below, in this function: in a short step, a call takes a microsecond
                        compute.glancing = True
                        begin_s = floats[STAGE_SINCE] = time.monotonic()
                        ints[IN_STAGE] = STORAGE + 1
                        batch = load()
                        now_s = floats[STAGE_SINCE] = time.monotonic()
                        ints[IN_STAGE] = compute.shown
                        timer.glanced_s += now_s - begin_s
                        if now_s >= compute.late_s:
                            compute.measure()
                            skips = compute.glancing = False
                    else:
                        batch = timer.time(load)
                    if batch is _END:
                        break
                    self.done += 1
                    if self.done == first + 1:
                        self._first_batch(batch, counted)
                    if train and self.made_in_epoch is not None:
                        self.made_in_epoch.take(self)
                    if not skips:
                        skips = compute.begin(evaluating=not train)
                        if train:
                            job.batch_begins(self, length, batch)
                    yield batch
                    only_counted = compute.glances and compute.only_counted
                    if skips and self.done != length and not stop.level and (only_counted or not train):
                        if train and not iterations.in_steps:
                            iterations.pending = False
                            compute.stepped_lately.clear()
                        continue
                    compute.end()
                    if train:
                        job.batch_ended()
                        job.safe_point("loader", last=self.done == length)
                    job.look_up(evaluating=not train)
            finally:
                compute.end()
                if train and job.iterations.inside("loader") == 1:  # not one of several at a time, or inside another
                    self._ended(TRAINED if again or job.iterations.counted > before else LOOKED)
                self.active = False

    def _first_batch(self, batch: Any, counted: list[int] | None) -> None:
        """The first batch of a pass is about to be handed out: let the script's counters go on after a resume."""
        if not self.train:
            return
        part = part_of(batch)
        self._first = weakref.ref(self if part is None else part)
        made = self._batches()
        if counted:
            count_on(made, counted)
        self.job.advice.look_at_loop(sys._getframe(2))
        if not self._looked and not self.job.iterations.in_steps:
            self._looked = True
            way = counted_beside(made, sys._getframe(2))
            if way:
                self.job.advice.warn_count(way)

    def place(self, *, begun: bool, replays: bool) -> dict[str, Any]:
        """What a checkpoint contains of the script's objects that draw from this loader.

        `begun`: the pass is to be continued; `replays`: a part of a pass can be loaded again. `counted`: the numbers
        of its `enumerate` objects; `cycled`: batches that an `itertools.cycle` has given in all, None without one.
        """
        made = self._batches() if self.active else None
        first = self._first()
        beyond = cycled(made, first) if self.train and (self.active or first not in (None, self)) else None
        at = None if beyond is None else self.origin + self.done + beyond
        if at is not None and not replays:
            self.job.advice.warn_cycle()
        return {"counted": numbers(made) if self.train and begun and made is not None else [], "cycled": at}


def marked(job: Rank, dataset: Any, workers: int, *, batched: bool = True) -> tuple[Any, Untimed]:
    """`dataset` as a loader of `job` with `workers` workers needs it, and what times the loading of a batch.

    `batched`: False for a loader without batches.
    """
    around = Marked(dataset, workers, job.stages)
    if workers:
        return around, WorkerTimer(job.stages, around)
    return (around, Untimed()) if around.split or not batched else (dataset, LoadTimer(job.stages))


class StagedLoader(DataLoader[Any]):
    """A loader that marks its stages and saves its position; created by `AttachedJob.wrap_loader`."""

    #: Whether the loader that it wraps lives as long as this one.
    keeps_inner = False

    def __init__(self, job: Rank, inner: DataLoader[Any], *, train: bool) -> None:
        """Rebuild `inner` for `job` with a marked dataset and a recorded sampler; `train`: for training."""
        self._job, self._passes = job, _Passes(job, self, train=train)
        self._resume: dict[str, Any] | None = None
        self._counted: list[int] | None = None
        self._generators = generators_of(inner)
        self._order: Order | None = None
        self._stream: _Stream | None = None
        options = options_of(inner)
        if isinstance(inner.dataset, IterableDataset):
            streamed = Streamed(inner.dataset)
            self._stream = _Stream(inner.dataset, self._generators, streamed, inner.persistent_workers)
            self._timer: Untimed = LoadTimer(job.stages, waits=True)
            super().__init__(streamed, batch_size=inner.batch_size, drop_last=inner.drop_last, **options)
        else:
            batched = inner.batch_sampler is not None
            dataset, self._timer = marked(job, inner.dataset, inner.num_workers, batched=batched)
            sampler = inner.batch_sampler if inner.batch_sampler is not None else inner.sampler
            order = self._order = Order(sampler, self._generators, batched=batched)
            order.prefetched = inner.num_workers > 0
            if batched:
                super().__init__(dataset, batch_sampler=order, **options)
            else:
                super().__init__(dataset, sampler=order, batch_size=None, **options)

    @property
    def done(self) -> int:
        return self._passes.done

    @property
    def next_pass(self) -> int:
        """Number, from 0, of the pass that `iter` begins or continues; valid after `job.resume()`."""
        return self._order.number - (self._resume is not None) if self._order is not None else 0

    def __iter__(self) -> Any:
        """Yield the batches; in the first pass after a resume, from the position of the checkpoint."""
        self._passes.begin()
        return self._passes.next_pass(self._begin)

    def _begin(self, again: bool) -> Iterator[Any]:
        """Begin a pass; see `_Passes.next_pass`."""
        resume, counted = self._resume, self._counted
        if again:
            resume = counted = None
        else:
            self._resume = self._counted = None
        order, stream = self._order, self._stream
        batches: Iterator[Any]
        if order is not None:
            with order.replay(resume):
                batches = super().__iter__()
            if (
                resume is not None and not self.num_workers
            ):  # the loader has drawn a seed after the replay, not before it
                self._put_generators(resume)
        else:
            assert stream is not None
            batches = stream.begin(super().__iter__, resume)
        length = order.length if order is not None else None
        at = (resume or {}).get("cycled")
        self._passes.origin = at % (length or 1) if at is not None else 0
        first = resume["done"] if resume and at is None else 0
        load: Callable[[], Any] = partial(next, batches, _END)
        if stream is not None:
            load = partial(stream.next, load)
        if at is not None:
            load = partial(self._next_of_cycle, max((length or 0) - at, 0), load)
        return self._passes.run(load, self._timer, first, length, again=resume is not None, counted=counted)

    def _next_of_cycle(self, new: int, load: Callable[[], Any]) -> Any:
        """The next batch for an `itertools.cycle`: after `new` ones those that it had, which draw nothing again."""
        streams = random_streams.capture() if self._passes.done >= new else None
        batch = load()
        if streams is not None:
            random_streams.restore(streams)
        return batch

    def state_dict(self, ahead: int = 0) -> dict[str, Any]:
        """The position: pass, finished batches, and the random streams that determine the order.

        `ahead`: batches that a trainer has fetched but not used yet.
        """
        passes, order, stream = self._passes, self._order, self._stream
        source = order if order is not None else stream  # Order has a length: it may be false
        assert source is not None
        done = passes.done - ahead
        begun = passes.active and done > 0 and source.start is not None
        if begun and order is not None and done == order.length and not self._job.iterations.inside("epochs"):
            begun = False  # the script will count this pass as done
        if begun and self.trouble(done):
            if done != len(self):
                raise NotRestorable(self.trouble(done))
            last = None  # the pass is over
        else:
            last = order.at(done) if order is not None else stream.mark(ahead) if stream is not None else None
        place = passes.place(begun=begun, replays=order is not None)
        cycles = order is not None and place["cycled"] is not None
        return {
            "active": begun,
            "done": done if begun else 0,
            "number": source.number,
            "start": source.start if begun or cycles else None,
            "last": last if begun else None,
            "sampler": order.state.changes() if order is not None else {},
            "finished": passes.finished,
            **place,
            "generators": [generator.get_state() for generator in self._generators],
        }

    def trouble(self, done: int | None = None) -> str:
        """Why no process could go on after `done` batches of this pass (None: as many as were used); "" if it could."""
        order = self._order
        if order is None or order.repeats(self._passes.done if done is None else done):
            return ""
        return (
            f"{order.kind} does not repeat its order, so no training can go on in the middle of an epoch: only the end "
            "of an epoch is saved, and a stop loses the epoch. Let the sampler draw from the random streams, from the "
            "loader's generator=, or from generators that are its attributes"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._put_generators(state)
        if self._order is not None:
            self._order.number = state["number"]
            if state["sampler"]:
                self._order.state.put(state["sampler"])
        if self._stream is not None:
            self._stream.number = state["number"]
        cycles = state.get("cycled") is not None  # over a stream, nothing is better than another pass
        self._resume = state if (self._order is not None if cycles else state["active"]) else None
        self._counted = state.get("counted", [state["done"]])
        self._passes.repeat("" if cycles else state.get("finished", ""))

    def made_in_epoch(self, loaders: EpochLoaders) -> None:
        """The script has made this loader in an epoch: `loaders` saves its position."""
        self._passes.made_in_epoch = loaders
        if self._order is not None:
            self._order.state.save_all()

    def _put_generators(self, state: dict[str, Any]) -> None:
        for generator, stream in zip(self._generators, state["generators"], strict=False):
            generator.set_state(stream)


class _Stream:
    """Position in a pass over a stream, which cannot skip items: it is read again and compared."""

    def __init__(
        self, source: Any, generators: list[Any], streamed: Streamed | None = None, stays: bool = False
    ) -> None:
        self.source, self._generators = source, generators
        self._streamed, self._stays = streamed, stays  # what workers iterate over, and whether they outlive a pass
        self.number = 0  # of the pass
        self.start: dict[str, Any] | None = None
        self._marks: deque[int] = deque(maxlen=AHEAD + 1)  # fingerprints of the newest batches

    def begin(self, start: Callable[[], Iterator[Any]], resume: Any) -> Iterator[Any]:
        """Begin a pass; after a resume, skip the finished batches."""
        self.number = resume["number"] if resume is not None else self.number + 1
        if resume is not None:
            random_streams.restore(resume["start"], self._generators)
        self.start = resume["start"] if resume is not None else random_streams.capture(self._generators)
        if self._streamed is not None:
            self._streamed.seed[0] = pass_seed(self.start, self.number) if self._stays and self.number > 1 else 0
        batches = start()
        if resume is not None:
            batch: Any = None
            for _ in range(resume["done"]):
                batch = next(batches, _END)
            if batch is _END or fingerprint(batch) != resume["last"]:
                raise InputError(
                    f"{type(self.source).__name__} does not give the same items again, so the epoch cannot go on after "
                    f"batch {resume['done']}: give the dataset state_dict() and load_state_dict() and use torchdata's "
                    "StatefulDataLoader, or make what it yields depend on nothing but random streams of its own (those "
                    "of a loader worker are)"
                )
        return batches

    def next(self, load: Callable[[], Any]) -> Any:
        """The next batch, from `load()`; records its fingerprint."""
        batch = load()
        if batch is not _END:
            self._marks.append(fingerprint(batch))
        return batch

    def mark(self, ahead: int = 0) -> int | None:
        """Fingerprint of the newest batch, or of the one `ahead` batches before it; None if unknown."""
        return self._marks[-1 - ahead] if ahead < len(self._marks) else None


class PassingLoader:
    """Adds marks and step boundaries to a loader with own state, or of an unknown kind."""

    keeps_inner = True  # see `StagedLoader`

    def __init__(self, job: Rank, inner: Any, *, train: bool) -> None:
        self._job, self._inner, self._passes = job, inner, _Passes(job, self, train=train)
        self._stateful = all(callable(getattr(inner, name, None)) for name in ("state_dict", "load_state_dict"))
        self._stateful &= getattr(inner, "use_stateful_dataloader", True)  # Accelerate's have both always
        self._stream = _Stream(inner, generators_of(inner) if isinstance(inner, DataLoader) else [])
        self._timer = LoadTimer(job.stages, waits=True)
        self._resume: dict[str, Any] | None = None
        self._counted: list[int] | None = None
        if isinstance(inner, DataLoader) and inner.num_workers:
            inner.worker_init_fn = partial(ignore_in_worker, inner.worker_init_fn)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __iter__(self) -> Iterator[Any]:
        self._passes.begin()
        return self._passes.next_pass(self._begin)

    def _begin(self, again: bool) -> Iterator[Any]:
        """Begin a pass; see `_Passes.next_pass`."""
        resume, counted = self._resume, self._counted
        if again:
            resume = counted = None
        else:
            self._resume = self._counted = None
        done = resume["done"] if resume else 0
        batches = iter(self._inner) if self._stateful else self._stream.begin(lambda: iter(self._inner), resume)
        load: Callable[[], Any] = partial(next, batches, _END)
        if not self._stateful:
            load = partial(self._stream.next, load)
        return self._passes.run(load, self._timer, done, again=resume is not None, counted=counted)

    @property
    def done(self) -> int:
        return self._passes.done

    def state_dict(self, ahead: int = 0) -> dict[str, Any]:
        """The inner loader's state during a pass, or the position in it.

        `ahead` as for `StagedLoader.state_dict`; a loader that keeps its own state knows nothing of it.
        """
        active = self._passes.active
        return {
            "inner": self._inner.state_dict() if self._stateful and active else None,
            "done": max(self._passes.done - ahead, 0) if active else 0,
            "number": self._stream.number,
            "start": self._stream.start if active else None,
            "last": self._stream.mark(ahead),
            "finished": self._passes.finished,
            **self._passes.place(begun=active, replays=False),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counted = state.get("counted", [state["done"]])
        if state["inner"] is not None:
            self._inner.load_state_dict(state["inner"])
            self._resume = state
        elif state["done"] and state.get("cycled") is None:
            self._resume = state
        self._passes.repeat("" if state.get("cycled") is not None else state.get("finished", ""))

    def made_in_epoch(self, loaders: EpochLoaders) -> None:
        self._passes.made_in_epoch = loaders

    @property
    def made_anew(self) -> bool:
        """True if an epoch has made this loader, and no pass of it runs."""
        return self._passes.made_in_epoch is not None and not self._passes.active
