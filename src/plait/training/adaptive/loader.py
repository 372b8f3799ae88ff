"""Load data for jobs whose number of ranks and batch size change: every sample once in a pass.

    loader = AdaptiveDataLoader(dataset, 128, max_batch_size=4096, local_batch=(32, 256), shuffle=True)
    for epoch in job.epochs(10):              # ten passes over the data; loader.remaining_epochs(10) gives
        for x, y in loader:                   # the progress of ten epochs at batch 128, in as many passes
            ...

After a restart a pass continues with any number of ranks. The batch changes between two optimizer steps, by decision
of rank 0. Outside plait, and on one process, the number of ranks stays fixed and everything else works.

`AdaptiveLoader` does not depend on how samples are loaded; `AdaptiveDataLoader` loads them by torch's DataLoader, also
those of a stream. Batches of tokens are batches of groups of samples (`TokenGroups`, `TokenStream`), each of which has
nearly the same number of tokens.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.core.resources import Resource
from plait.training.adaptive.batch import Decisions, Noise, bounds, first_batch, interval, report_progress, warn_alone
from plait.training.adaptive.plan import EpochOrder, Microbatch, Plan, Progress, Watch, passes_left
from plait.training.adaptive.profile import Timings
from plait.training.adaptive.ranks import Ranks, ranks, world_size
from plait.training.attached_job import AttachedJob
from plait.training.attachment import current
from plait.training.loader.loader import marked
from plait.training.loader.prefetch import Untimed
from plait.training.stopping import ignore_in_worker

_END = object()
#: Seconds between two checks for a better batch size.
INTERVAL_S = 30.0
#: Relative difference up to which two batch sizes count as equal: rounding to the number of ranks changes them a bit.
ALIKE = 0.05


class AdaptiveLoader(ABC):
    """Base class of adaptive loaders; a subclass defines `batches`, which loads the samples."""

    def __init__(
        self,
        size: int,
        batch_size: int | None = None,
        *,
        max_batch_size: int | None = None,
        local_batch: tuple[int, int | None] = (1, None),
        accumulation: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        interval_s: float = INTERVAL_S,
        stream: bool = False,
    ) -> None:
        """Pass over `size` samples; all other arguments are those of `AdaptiveDataLoader`.

        `stream`: each pass is over the next `size` samples, whose indices continue those of the last one.
        """
        self.limits = bounds(batch_size, max_batch_size, local_batch, accumulation)
        if size < 1:
            raise InputError("an adaptive loader over no samples: give it a data set with one or more")
        self.size, self.batch_size = size, self.limits.initial
        self.plan = Plan(EpochOrder(size, shuffle=shuffle, seed=seed, stream=stream))
        self.progress = Progress(size, self.batch_size)
        self.timings = Timings(self._waited_s)
        self.decisions = Decisions(self.limits, self.plan, self.timings, interval(interval_s))
        self.planned = False  # whether an execution plan says how the model is spread
        self._begin: Callable[[Microbatch], None] | None = None
        self._end: Callable[[], None] | None = None
        self._counted = False  # whether `progress.made` is called for each step
        self._job: AttachedJob | None = None
        self._ranks: Ranks | None = None
        self._epoch, self._done, self._active, self._resume = 0, 0, False, False
        self._in_epochs, self._warned = False, False
        self._microbatch: Microbatch | None = None
        self._running: object = None

    @abstractmethod
    def batches(self, plan: Plan) -> Iterator[Any]:
        """Yield the batch of each list of indices of `plan`, in that order; `plan` may be read ahead."""

    # -- what is going on now -------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Number, from 0, of the current pass over the data, or of the next one between passes."""
        return self._epoch

    @property
    def microbatch(self) -> Microbatch | None:
        """Step and forward-backward pass of the current batch; None between passes over the data."""
        return self._microbatch

    @property
    def is_sync_pass(self) -> bool:
        """True if the optimizer steps after the current batch."""
        return self._microbatch is None or self._microbatch.is_sync

    @property
    def current_local_batch(self) -> int:
        """Examples in the current batch of this rank; between passes over the data, in the next one."""
        return self._microbatch.local if self._microbatch is not None else self._planned()[1]

    @property
    def accumulation_steps(self) -> int:
        """Passes of the current optimizer step before the one that reduces gradients."""
        return self._microbatch.step.passes - 1 if self._microbatch is not None else self._planned()[2]

    @property
    def current_batch_size(self) -> int:
        """Examples in the current optimizer step, all ranks together."""
        return self._microbatch.step.examples if self._microbatch is not None else self._planned_batch()

    def __len__(self) -> int:
        """Batches of this rank in a whole pass over the data, at the current batch size."""
        processes, local, accumulated = self._planned()
        return passes_left(0, self.size, processes, local, accumulated + 1)

    def _planned(self) -> tuple[int, int, int]:
        """(ranks, examples per pass, accumulated passes) of the next steps."""
        processes = world_size()
        return processes, *(self.plan.latest if self.plan.chosen else first_batch(self.limits, processes))

    def _planned_batch(self) -> int:
        processes, local, accumulated = self._planned()
        return processes * local * (accumulated + 1)

    # -- passes ---------------------------------------------------------------------------------------------------

    def join_job(self, job: AttachedJob) -> None:
        """Save the position in the checkpoints of `job` and report to its agent; called by `job.wrap_loader`."""
        if self._job is None:
            self._job = job
            job.page.set_limits(self.limits)
            self.decisions.page = job.page
            name = job.kept.free_name("loader")
            job.kept.add(name, self)
            job.kept.given.add(name)  # it holds the progress of the job

    def take_plan(self, limits: BatchLimits) -> None:
        """Keep to the ZeRO stage of an execution plan and the local batch that it leaves memory for."""
        self.limits = self.decisions.limits = limits
        self.timings.stage, self.planned = limits.zero_stage, True

    @property
    def followed(self) -> bool:
        """True if the batch size follows a gradient noise."""
        return self.decisions.noise is not None

    def follow(
        self,
        noise: Noise,
        begin: Callable[[Microbatch], None] | None = None,
        end: Callable[[], None] | None = None,
        *,
        counted: bool = False,
        halves: bool = False,
        every: int = 1,
    ) -> None:
        """Choose batch sizes and count progress by the gradient noise `noise`; without it the batch stays as given.

        `begin` is called with each batch before the script gets it, `end` when a pass over the data ends or is left.
        `counted`: a step counts as progress only when `progress.made` is called, not when its last batch is yielded.
        `halves`: on one rank, measured steps consist of two halves of their batch, if the limits allow such batches.
        `every`: after the first steps, every so many-th is measured.
        """
        self.plan.every = every
        self.plan.least_half = max(self.limits.least_local, 1) if halves else None
        self.decisions.noise, self._begin, self._end, self._counted = noise, begin, end, counted

    def remaining_epochs(self, epochs: float) -> Iterator[int]:
        """Yield the number of each pass over the data until progress equals `epochs` epochs at the initial batch.

        The last pass ends at that point. After a restart, continues from the checkpoint.
        """
        job = self._joined()
        if job is not None:
            job.resume()
        self.progress.aim(epochs)
        self._in_epochs = True
        try:
            with contextlib.nullcontext() if job is None else job.iterations.in_loop("epochs"):
                watch = Watch(self.progress)
                while self._resume or not self.progress.reached:
                    resumed = self._resume
                    watch.begin()
                    yield self._epoch
                    watch.end(trained=self._resume or not resumed)
                    if job is not None:
                        job.safe_point("epochs")
        finally:
            self._in_epochs, self.progress.target = False, None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of a pass: the rest of the one that a restart interrupted, else a whole one."""
        job = self._joined()
        if job is not None:
            job.safe_point("loader")
            job.resume()
        if self._active:  # the last pass was left early
            self._finish()
        again, self._resume = self._resume, False
        if self.decisions.noise is None and not self._warned:
            self._warned = True
            warn_alone(self.limits)
        self._ranks = found = ranks()
        self.decisions.prepare(found)
        self.plan.begin(self._epoch, self._done, rank=found.rank, world_size=found.world_size)
        self.timings.begin_epoch()
        if again and job is not None:
            job.kept.restore_streams()
        self._active, self._running = True, object()
        return self._pass(job, self._running)

    def _joined(self) -> AttachedJob | None:
        job = current()
        if job is not None:
            self.join_job(job)
        return self._job

    def _pass(self, job: AttachedJob | None, running: object) -> Iterator[Any]:
        if self._done >= self.size or self.progress.reached:  # the checkpoint was made at the end of the pass
            self._finish()
            return
        batches = self.batches(self.plan)
        assert self._ranks is not None
        nodes = self._ranks.nodes
        with contextlib.nullcontext() if job is None else job.iterations.in_loop("loader"):
            try:
                while (batch := next(batches, _END)) is not _END:
                    microbatch = self._microbatch = self.plan.next_microbatch()
                    if microbatch.is_sync:
                        step = microbatch.step
                        self._done = step.first + step.examples
                        scale = step.examples / self.batch_size
                        if self._planned_batch() <= (1 + ALIKE) * self.batch_size:
                            scale = max(scale, 1.0)  # the last step of an epoch is smaller, but counts as one iteration
                        self.progress.begin_step(self.decisions.worth(scale))
                        if not self._counted:
                            self.progress.made()
                    if job is not None:
                        job.compute.begin()
                    if self._begin is not None:
                        self._begin(microbatch)
                    self.timings.begin(microbatch, nodes)
                    yield batch
                    if self._running is not running:
                        raise InputError("this loader has begun another pass since: use one iterator at a time")
                    self.timings.end()
                    if job is not None:
                        job.compute.end()
                    over = microbatch.is_sync and (self._done >= self.size or self.progress.reached)
                    if microbatch.is_sync:
                        if self._job is not None:
                            report_progress(
                                self._job.page, self.progress.iterations, self._total(), self._planned_batch()
                            )
                        assert self._ranks is not None
                        self.decisions.stepped(self._ranks)
                    if job is not None:
                        job.safe_point("loader", last=over)
                        job.look_up(evaluating=False)
                    if over:
                        break
            finally:
                if job is not None:
                    job.compute.end()
                if self._running is running:
                    self._finish()

    def _finish(self) -> None:
        """End the current pass, complete or not; the next one is new."""
        if self._done < self.size:
            self.progress.abandon()
        self._epoch, self._done, self._active, self._microbatch, self._running = self._epoch + 1, 0, False, None, None
        if self._end is not None:
            self._end()

    def _total(self) -> float:
        """Estimated progress at the end of the job, in iterations at the initial batch; 0 if unknown.

        A job with a fixed number of passes makes less progress at larger batches. The remaining passes count at the
        current batch size.
        """
        if self.progress.target is not None:
            return self.progress.target
        epochs = self._job.total_epochs if self._job is not None else 0
        left = (epochs - self._epoch) * self.size - self._done
        if left < 0 or not epochs:
            return 0.0
        scale = max(self._planned_batch() / self.batch_size, 1.0)
        return self.progress.iterations + left / self.batch_size * self.decisions.worth(scale) / scale

    def _waited_s(self) -> tuple[float, float]:
        """Seconds so far that are no part of training: standing still, and reductions that waited for other jobs."""
        job = self._job
        if job is None:
            return 0.0, 0.0
        waited_s = job.page.waited_s
        return waited_s[Resource.GPU] + job.page.blocking_s + job.evaluated_s, waited_s[Resource.NETWORK]

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Position, progress, times and the newest fit, in plain numbers: loads with `weights_only=True`.

        What other ranks need is the same on all ranks, so the state fits any number of them.
        """
        epoch, done, active = self._epoch, self._done, (self._active or self._resume) and self._done > 0
        in_epochs = self._in_epochs or (self._job is not None and self._job.iterations.inside("epochs") > 0)
        if active and not in_epochs and (done >= self.size or self.progress.reached):
            epoch, done, active = epoch + 1, 0, False  # the script counts this pass as done
        return {
            "size": self.size,
            "batch_size": self.batch_size,
            "seed": self.plan.order.seed,
            "shuffle": self.plan.order.shuffle,
            "epoch": epoch,
            "done": done if active else 0,
            "active": active,
            "progress": self.progress.state_dict(),
            "timings": self.timings.state_dict(),
            "full_steps": self.plan.full,
            **self.decisions.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` at the next `iter`; raises `ValueError` for other data or another initial batch."""
        order = self.plan.order
        own = {"size": self.size, "batch_size": self.batch_size, "seed": order.seed, "shuffle": order.shuffle}
        other = [f"{name} {state[name]}, now {value}" for name, value in own.items() if state[name] != value]
        if other:
            raise ValueError(f"the loader had {'; '.join(other)}")
        self._epoch, self._done = int(state["epoch"]), int(state["done"])
        self._resume, self._active = bool(state["active"]), False
        self.progress.load_state_dict(state["progress"])
        self.timings.load_state_dict(state["timings"])
        self.plan.full = int(state["full_steps"])
        self.decisions.load_state_dict(state)


class AdaptiveDataLoader(AdaptiveLoader):
    """A torch DataLoader over a data set or a stream, with batches that follow the resources of the job."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        max_batch_size: int | None = None,
        local_batch: tuple[int, int | None] = (1, None),
        accumulation: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        interval_s: float = INTERVAL_S,
        size: int | None = None,
        **options: Any,
    ) -> None:
        """Load `dataset`, which has `__len__` and `__getitem__`, or is a stream (an `IterableDataset`).

        A stream yields the same samples in the same order on each rank and in each attempt, and `size` of them are a
        pass; a rank reads all and keeps its own. Where it ends, it begins again. It may have `skip(n)`, as streams of
        Hugging Face's datasets do, which a resumed job calls instead of reading what it has had.

        `batch_size` is the total batch of an optimizer step, over all ranks, for which the learning rate was tuned;
        `max_batch_size` is the largest allowed (the same if None); `local_batch` the least and most examples of one
        rank in one pass (None: limited by the total only); `accumulation`: whether several passes may make a step.
        Without `batch_size`, all four are those of the submission (`plait submit --batch-size`). `shuffle`: draw an
        order for each epoch from `seed`. `interval_s`: seconds > 0 between two checks for a better batch. Other
        `options` are those of DataLoader.

        Raises `InputError` for streams without `size`, with `shuffle` or with several workers, contradictory bounds,
        invalid intervals, and options that would determine the order of samples.
        """
        stream = isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
        name = type(dataset).__name__
        if stream != (size is not None):
            raise InputError(
                f"AdaptiveDataLoader({name}, size={size}): give size= for a stream alone, as the number of its samples "
                "that count as a pass over the data; a data set with __len__ and __getitem__ has a length of its own"
            )
        if stream and (shuffle or options.get("num_workers", 0) > 1):
            raise InputError(
                f"AdaptiveDataLoader({name}): a stream has one order and one reader; leave out shuffle= and "
                "num_workers= above 1, and shuffle within the stream, by a seed that is the same on all ranks"
            )
        if stream:
            dataset = _Walk(dataset)
        wrong = sorted({"sampler", "batch_sampler", "drop_last"} & options.keys())
        if wrong or options.get("in_order") is False:
            raise InputError(
                f"AdaptiveDataLoader({', '.join(wrong) or 'in_order=False'}): it decides the order of samples itself, "
                "each once in a pass; choose the order by shuffle= and seed=, and leave samples out in the data set"
            )
        super().__init__(
            len(dataset) if size is None else size,
            batch_size,
            max_batch_size=max_batch_size,
            local_batch=local_batch,
            accumulation=accumulation,
            shuffle=shuffle,
            seed=seed,
            interval_s=interval_s,
            stream=stream,
        )
        self.dataset = dataset
        self._options = options
        self._inner: DataLoader[Any] | None = None
        self._timer = Untimed()

    def batches(self, plan: Plan) -> Iterator[Any]:
        if self._inner is None:
            # The inner loader keeps persistent workers from pass to pass.
            job, options, dataset = self._job, dict(self._options), self.dataset
            if job is not None:
                workers = int(options.get("num_workers", 0))
                dataset, self._timer = marked(job, dataset, workers)
                options["worker_init_fn"] = partial(ignore_in_worker, options.get("worker_init_fn"))
            self._inner = DataLoader(dataset, batch_sampler=plan, **options)
        return iter(partial(self._timer.time, partial(next, iter(self._inner), _END)), _END)


class _Walk:
    """The samples of a stream by their place in it; places are requested in rising order, except after a restart."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._at = stream, 0
        self._samples: Iterator[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_stream": self._stream, "_at": 0, "_samples": None}  # iterators cannot be sent to a worker

    def __getitem__(self, place: int) -> Any:
        """Raises `InputError` if the stream is empty."""
        skipped = False
        if self._samples is None or place < self._at:
            skipped = place > 0 and hasattr(self._stream, "skip")
            self._samples = iter(self._stream.skip(place) if skipped else self._stream)
            self._at = place if skipped else 0
        while True:
            sample = next(self._samples, _END)
            if sample is _END and skipped:  # the place is in a later pass over the stream, whose length is not known
                self._at = 0
            skipped = False
            if sample is _END:  # of a pass over the stream
                self._samples = iter(self._stream)
                sample = next(self._samples, _END)
            if sample is _END:
                raise InputError(f"AdaptiveDataLoader({type(self._stream).__name__}): the stream has no samples")
            self._at += 1
            if self._at > place:
                return sample


def _groups(samples: Iterable[Any], tokens: int, length: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Consecutive samples of at most `tokens` tokens together; a longer one is a group of its own."""
    group: list[Any] = []
    total = 0
    for sample in samples:
        own = length(sample)
        if group and total + own > tokens:
            yield group
            group, total = [], 0
        group.append(sample)
        total += own
    if group:
        yield group


class TokenGroups(Dataset[list[Any]]):
    """A data set of groups of samples that have about `tokens` tokens each, for batches that are counted in tokens.

    Batch sizes of the loader then count groups: give `batch_size=tokens_of_a_step // tokens` and a `collate_fn` that
    takes a list of groups.
    """

    def __init__(self, dataset: Any, lengths: Sequence[int], tokens: int) -> None:
        """Group the samples of `dataset`, which have these `lengths`, by length: batches then need little padding."""
        self.dataset, order = dataset, sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
        self.groups = list(_groups(order, tokens, lengths.__getitem__))

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> list[Any]:
        return [self.dataset[i] for i in self.groups[index]]


class TokenStream(IterableDataset[list[Any]]):
    """A stream of groups of consecutive samples of `stream` that have at most `tokens` tokens; see `TokenGroups`."""

    def __init__(self, stream: Iterable[Any], tokens: int, length: Callable[[Any], int] = len) -> None:
        """`length` counts the tokens of a sample."""
        self._stream, self._tokens, self._length = stream, tokens, length

    def __iter__(self) -> Iterator[list[Any]]:
        return _groups(self._stream, self._tokens, self._length)
