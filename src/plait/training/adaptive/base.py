"""Passes over data of which each takes every sample once, while ranks and batch sizes come and go.

What is said here holds for any way to load samples; `loader` does it by torch's DataLoader.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.training.adaptive.bounds import bounds, interval, warn_alone
from plait.training.adaptive.choosing import Noise, first_batch
from plait.training.adaptive.data.passes_done import Progress, Watch
from plait.training.adaptive.data.plan import Microbatch, Plan
from plait.training.adaptive.data.sampler import EpochOrder, passes_left
from plait.training.adaptive.deciding import Decisions
from plait.training.adaptive.profile import Timings
from plait.training.adaptive.ranks import Ranks, ranks, world_size
from plait.training.adaptive.report import report_progress
from plait.training.attachment import current
from plait.training.job import AttachedJob

_END = object()
#: Seconds between two checks for a better batch size.
INTERVAL_S = 30.0
#: By what part two batches may differ and count as one: ranks that do not divide a batch change it a bit.
ALIKE = 0.05


class AdaptiveLoader(ABC):
    """The part of an adaptive loader that does not know how samples are loaded; for those, define `batches`."""

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
    ) -> None:
        """Over `size` samples. The rest as for `AdaptiveDataLoader`."""
        self.limits = bounds(batch_size, max_batch_size, local_batch, accumulation)
        if size < 1:
            raise InputError("an adaptive loader over no samples: give it a data set with one or more")
        self.size, self.batch_size = size, self.limits.initial
        self.plan = Plan(EpochOrder(size, shuffle=shuffle, seed=seed))
        self.progress = Progress(size, self.batch_size)
        self.timings = Timings(self._waited_s)
        self.decisions = Decisions(self.limits, self.plan, self.timings, interval(interval_s))
        self._begin: Callable[[Microbatch], None] | None = None
        self._end: Callable[[], None] | None = None
        self._counted = False  # whether somebody says of each step that it was made
        self._job: AttachedJob | None = None
        self._ranks: Ranks | None = None
        self._epoch, self._done, self._active, self._resume = 0, 0, False, False
        self._in_epochs, self._warned = False, False
        self._microbatch: Microbatch | None = None
        self._running: object = None

    @abstractmethod
    def batches(self, plan: Plan) -> Iterator[Any]:
        """The batch of each list of indices that `plan` yields, in that order; they may be asked for ahead."""

    # -- what is going on now -------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Number, from 0, of the pass over the data that is under way or comes next."""
        return self._epoch

    @property
    def microbatch(self) -> Microbatch | None:
        """Which pass of which optimizer step the batch in hand is; None between passes over the data."""
        return self._microbatch

    @property
    def is_sync_pass(self) -> bool:
        """Whether the optimizer steps after the batch in hand: no more passes are accumulated."""
        return self._microbatch is None or self._microbatch.is_sync

    @property
    def current_local_batch(self) -> int:
        """Examples in the batch in hand; between passes over the data those of the next one."""
        return self._microbatch.local if self._microbatch is not None else self._planned()[1]

    @property
    def accumulation_steps(self) -> int:
        """Passes of the optimizer step in hand before the one that reduces."""
        return self._microbatch.step.passes - 1 if self._microbatch is not None else self._planned()[2]

    @property
    def current_batch_size(self) -> int:
        """Examples in the optimizer step in hand, of all ranks together."""
        return self._microbatch.step.examples if self._microbatch is not None else self._planned_batch()

    def __len__(self) -> int:
        """Batches of this rank in a whole pass, if nothing changes."""
        processes, local, accumulated = self._planned()
        return passes_left(0, self.size, processes, local, accumulated + 1)

    def _planned(self) -> tuple[int, int, int]:
        """(ranks, m, s) of the steps that come."""
        processes = world_size()
        return processes, *(self.plan.latest if self.plan.chosen else first_batch(self.limits, processes))

    def _planned_batch(self) -> int:
        processes, local, accumulated = self._planned()
        return processes * local * (accumulated + 1)

    # -- passes ---------------------------------------------------------------------------------------------------

    def join_job(self, job: AttachedJob) -> None:
        """Keep the place in this job's checkpoints and tell its agent; `job.wrap_loader` does it."""
        if self._job is None:
            self._job = job
            job.page.set_limits(self.limits)
            self.decisions.page = job.page
            name = job.kept.free_name("loader")
            job.kept.add(name, self)
            job.kept.given.add(name)  # it holds the progress of the job

    @property
    def followed(self) -> bool:
        """Whether its batch follows some gradient noise."""
        return self.decisions.noise is not None

    def follow(
        self,
        noise: Noise,
        begin: Callable[[Microbatch], None] | None = None,
        end: Callable[[], None] | None = None,
        *,
        counted: bool = False,
        halves: bool = False,
    ) -> None:
        """Choose the batch, and count progress, by this gradient noise; without any the batch stays as it was given.

        `begin` is called before each batch with what it is, `end` when a pass over the data is over or was left.
        `counted`: a step is progress only when `progress.made` is called; else as soon as its last batch is handed out.
        `halves`: of a rank alone some steps are made of two halves of their batch, if those are allowed as batches.
        """
        self.plan.least_half = max(self.limits.least_local, 1) if halves else None
        self.decisions.noise, self._begin, self._end, self._counted = noise, begin, end, counted

    def remaining_epochs(self, epochs: float) -> Iterator[int]:
        """Passes over the data until progress is that of so many epochs at the initial batch; the last one ends there.

        Yields the number of each pass. Goes on where the checkpoint ended.
        """
        job = self._joined()
        if job is not None:
            job.resume()
        self.progress.aim(epochs)
        self._in_epochs = True
        try:
            with contextlib.nullcontext() if job is None else job.in_loop("epochs"):
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
        """The batches of a pass: the one that was interrupted by a restart, else a whole one."""
        job = self._joined()
        if job is not None:
            job.safe_point("loader")
            job.resume()
        if self._active:  # of a pass that was left without an end
            self._finish()
        again, self._resume = self._resume, False
        if self.decisions.noise is None and not self._warned:
            self._warned = True
            warn_alone(self.limits)
        self._prepare()
        if again and job is not None:
            job.kept.restore_streams()
        self._active, self._running = True, object()
        return self._pass(job, self._running)

    def _joined(self) -> AttachedJob | None:
        job = current()
        if job is not None:
            self.join_job(job)
        return self._job

    def _prepare(self) -> None:
        """Before a pass: know the ranks, agree on a batch if they are others than before."""
        self._ranks = found = ranks()
        self.decisions.prepare(found)
        self.plan.begin(self._epoch, self._done, rank=found.rank, world_size=found.world_size)
        self.timings.begin_epoch()

    def _pass(self, job: AttachedJob | None, running: object) -> Iterator[Any]:
        if self._done >= self.size or self.progress.reached:  # it was over when it was saved
            self._finish()
            return
        batches = self.batches(self.plan)
        assert self._ranks is not None
        nodes = self._ranks.nodes
        with contextlib.nullcontext() if job is None else job.in_loop("loader"):
            try:
                while (batch := next(batches, _END)) is not _END:
                    microbatch = self._microbatch = self.plan.next_microbatch()
                    if microbatch.is_sync:
                        self._count(microbatch)
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
                        self._stepped()
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
        """The pass is over, or was left: the next one is another."""
        if self._done < self.size:
            self.progress.abandon()
        self._epoch, self._done, self._active, self._microbatch, self._running = self._epoch + 1, 0, False, None, None
        if self._end is not None:
            self._end()

    def _count(self, microbatch: Microbatch) -> None:
        """A step is about to be made."""
        step = microbatch.step
        self._done = step.first + step.examples
        scale = step.examples / self.batch_size
        if self._planned_batch() <= (1 + ALIKE) * self.batch_size:
            scale = max(scale, 1.0)  # the last step of an epoch has what is left, and is an iteration all the same
        self.progress.begin_step(self.decisions.worth(scale))
        if not self._counted:
            self.progress.made()

    def _stepped(self) -> None:
        """Between two steps."""
        if self._job is not None:
            report_progress(self._job.page, self.progress.iterations, self._total(), self._planned_batch())
        assert self._ranks is not None
        self.decisions.stepped(self._ranks)

    def _total(self) -> float:
        """Progress at the end of the job as far as it can be told; 0 if it cannot.

        A job that ends after so many passes ends with less progress than one at the initial batch; how much less its
        batch decides, so what is left is counted at the present one.
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
        """Seconds so far of what may happen while a script has a batch and is no part of training on it.

        First those in which it stands still, then those in which its reductions wait for other jobs'.
        """
        job = self._job
        if job is None:
            return 0.0, 0.0
        waited_s = job.page.waited_s
        return waited_s[Resource.GPU] + job.page.blocking_s + job.evaluated_s, waited_s[Resource.NETWORK]

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Place, progress, times and the newest fit, in plain numbers: loads with `weights_only=True`.

        The same on all ranks as far as others need it, so that it fits any number of them.
        """
        epoch, done, active = self._epoch, self._done, (self._active or self._resume) and self._done > 0
        in_epochs = self._in_epochs or (self._job is not None and self._job.in_epochs)
        if active and not in_epochs and (done >= self.size or self.progress.reached):
            epoch, done, active = epoch + 1, 0, False  # the script will count this pass as done
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
            **self.decisions.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there at the next `iter`; raises `ValueError` if it is of other data or another initial batch."""
        order = self.plan.order
        own = {"size": self.size, "batch_size": self.batch_size, "seed": order.seed, "shuffle": order.shuffle}
        other = [f"{name} {state[name]}, now {value}" for name, value in own.items() if state[name] != value]
        if other:
            raise ValueError(f"the loader had {'; '.join(other)}")
        self._epoch, self._done = int(state["epoch"]), int(state["done"])
        self._resume, self._active = bool(state["active"]), False
        self.progress.load_state_dict(state["progress"])
        self.timings.load_state_dict(state["timings"])
        self.decisions.load_state_dict(state)
