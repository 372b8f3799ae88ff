"""Assign samples to optimizer steps, for any number of ranks and any batch size: every sample once an epoch.

The order of an epoch depends on (seed, epoch) only, and a position in it is one number: the samples that all ranks
together have taken. So a job can continue there with another number of ranks, another batch size, or both. A step is
a range of that order, cut into (passes x ranks) parts whose sizes differ by at most one.

`Plan` does so step by step, so that the batch size may change between two steps. Loaders with workers request batches
long before the script gets them. Therefore a change takes effect at the first step that no rank has planned yet, and
each batch carries its step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from plait.core.errors import InputError
from plait.training.loader.sampler_replay import indices_of


@dataclass(frozen=True, slots=True)
class Step:
    """The samples of one optimizer step: `examples` of them, from position `first` of the order.

    Each of `ranks` ranks takes them in `passes` passes. `full`: each part has the requested size; the last steps of an
    epoch may be smaller. `halves`: the pass of one rank was cut in two, so that its two gradients show their noise.
    """

    first: int
    examples: int
    passes: int
    ranks: int
    full: bool
    halves: bool = False

    def part(self, index: int, rank: int) -> range:
        """Positions that `rank` takes in pass `index`, 0 <= index < passes.

        With fewer examples than ranks, some ranks get an example of another, since all take part in each reduction.
        """
        parts, number = self.passes * self.ranks, index * self.ranks + rank
        begin, end = (self.first + self.examples * n // parts for n in (number, number + 1))
        if self.examples < parts:
            begin = min(begin, self.first + self.examples - 1)
            end = begin + 1
        return range(begin, end)


def next_step(done: int, size: int, ranks: int, local: int, passes: int) -> Step:
    """The step after `done` of `size` samples, where `ranks` ranks take `local` in each of `passes` passes.

    All sizes are in samples. The rest of an epoch is taken in as few passes as possible. A rest too small to give each
    rank one sample joins the previous step; the two steps then halve what is left, so that no rank takes more than
    `local` at once (with `local` 1 this is impossible, and some take two). Ranks share a sample only if an epoch is
    resumed with fewer samples left than ranks.
    """
    left, whole = size - done, ranks * local
    batch = whole * passes
    if left > batch and left - batch >= ranks:
        return Step(done, batch, passes, ranks, True)
    if left == batch:
        return Step(done, left, passes, ranks, True)
    take = left
    if left > batch and left // 2 >= ranks:
        take = left - left // 2
    needed = -(-take // whole)
    if take < needed * ranks:  # a part of each pass would be empty
        needed = max(take // ranks, 1)
    return Step(done, take, needed, ranks, False)


def steps_left(done: int, size: int, ranks: int, local: int, passes: int) -> Iterator[Step]:
    """Yield the steps from `done` to the end of an epoch; the arguments are those of `next_step`."""
    while done < size:
        step = next_step(done, size, ranks, local, passes)
        yield step
        done += step.examples


def passes_left(done: int, size: int, ranks: int, local: int, passes: int) -> int:
    """Batches of each rank from `done` to the end of an epoch; the arguments are those of `next_step`."""
    batch = ranks * local * passes
    sure = max((size - done) // batch - 2, 0)  # far from the end all steps are full
    return sure * passes + sum(s.passes for s in steps_left(done + sure * batch, size, ranks, local, passes))


class EpochOrder:
    """The order of the samples of an epoch, by (seed, epoch): position -> index in the data set.

    >>> EpochOrder(4, shuffle=False).of(7)
    range(0, 4)
    """

    def __init__(self, size: int, *, shuffle: bool, seed: int = 0, stream: bool = False) -> None:
        """Order `size` samples, in random order if `shuffle`; of a `stream`, the next `size` in each epoch."""
        self.size, self.shuffle, self.seed, self.stream = size, shuffle, seed, stream

    def of(self, epoch: int) -> torch.Tensor | range:
        """The indices, `size` of them, in the order of `epoch`."""
        if not self.shuffle:
            first = epoch * self.size if self.stream else 0
            return range(first, first + self.size)
        # Mix two numbers into one seed, such that neighbours of either are far apart.
        mixed = (self.seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xBF58476D1CE4E5B9) & 0x7FFFFFFFFFFFFFFF
        return torch.randperm(self.size, generator=torch.Generator().manual_seed(mixed))


#: The first full steps, in all of which gradient noise is measured; later it is measured in every `Plan.every`-th.
MEASURED_FIRST = 24
#: On one rank, measured steps after these consist of two halves of their batch. The first ones are whole, so that a
#: loop with several backward passes is detected before a step is cut.
HALVES_AFTER = 8


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One batch of this rank: pass `index` of an optimizer step, `local` examples.

    `number`: the full steps of the job up to this one; 0 for an uneven step. `measured`: whether it shows the gradient
    noise. Both are the same on all ranks.
    """

    step: Step
    index: int
    local: int
    number: int = 0
    measured: bool = False

    @property
    def is_sync(self) -> bool:
        """True if gradients are reduced and the optimizer steps after this pass; earlier passes accumulate."""
        return self.index == self.step.passes - 1


class Plan:
    """A batch sampler: yields the rest of an epoch as lists of indices for one rank."""

    def __init__(self, order: EpochOrder) -> None:
        """Plan the samples of `order`; `begin` sets the position."""
        self.order = order
        self.steps = 0  # planned since `begin`
        self._epoch, self._done, self._rank, self._world_size = 0, 0, 0, 1
        self._now, self._later = (1, 0), deque[tuple[int, tuple[int, int]]]()
        self.chosen = False  # whether a batch size was set
        self._microbatches: deque[Microbatch] = deque()
        #: Least examples of a half, if one-pass steps of one rank may be cut in two; else None.
        self.least_half: int | None = None
        #: Every so many-th full step measures gradient noise; depends on no clock, so that all ranks measure together.
        self.every = 1
        self.full = 0  # full steps that the loader has handed out, in this job
        self._planned = 0  # full steps so far

    def begin(self, epoch: int, done: int, *, rank: int, world_size: int) -> None:
        """Set the position: `epoch` after `done` samples of all ranks, as `rank` of `world_size` ranks."""
        self._epoch, self._done, self._rank, self._world_size = epoch, done, rank, world_size
        self._now, self.steps, self._planned = self.latest, 0, self.full
        self._later.clear()
        self._microbatches.clear()

    def change(self, local: int, accumulated: int, at: int) -> None:
        """Change the batch from step `at` after `begin`, or from the next `begin`.

        `local`: examples per pass and rank. `accumulated`: passes before the one that all-reduces.
        """
        self._later.append((at, (local, accumulated)))
        self.chosen = True

    @property
    def latest(self) -> tuple[int, int]:
        """The newest (examples per pass, accumulated passes)."""
        return self._later[-1][1] if self._later else self._now

    def next_microbatch(self) -> Microbatch:
        """Step and pass of the next batch that the loader hands out."""
        microbatch = self._microbatches.popleft()
        if microbatch.is_sync:
            self.full = max(self.full, microbatch.number)
        return microbatch

    def __len__(self) -> int:
        """Batches from the position to the end of the epoch, at the newest batch size."""
        local, accumulated = self.latest
        return passes_left(self._done, self.order.size, self._world_size, local, accumulated + 1)

    def __iter__(self) -> Iterator[list[Any]]:
        done, epoch, rank = self._done, self._epoch, self._rank
        order = self.order.of(epoch)
        while done < self.order.size:
            while self._later and self._later[0][0] <= self.steps:
                self._now = self._later.popleft()[1]
            local, accumulated = self._now
            step = next_step(done, self.order.size, self._world_size, local, accumulated + 1)
            number, measured = self._number(step)
            if measured and number > HALVES_AFTER and self.halves(step):
                step = replace(step, passes=2, full=step.examples % 2 == 0, halves=True)
            self.steps += 1
            done += step.examples
            for index in range(step.passes):
                places = step.part(index, rank)
                self._microbatches.append(Microbatch(step, index, len(places), number, measured))
                seed = (self.order.seed * 1_000_003 + epoch * 7_368_787 + places.start) & 0x7FFFFFFF
                indices = order[places.start : places.stop]
                yield indices_of(list(indices) if isinstance(indices, range) else indices.tolist(), seed)

    def _number(self, step: Step) -> tuple[int, bool]:
        """The number of this step among the full ones, 0 for an uneven one, and whether it is measured."""
        if not step.full:
            return 0, False
        self._planned += 1
        return self._planned, self._planned <= MEASURED_FIRST or self._planned % self.every == 0

    def halves(self, step: Step) -> bool:
        """True if this step, a whole one, may consist of two halves."""
        least = self.least_half
        return least is not None and step.ranks * step.passes == 1 and step.examples // 2 >= least


#: A loop of epochs fails after so many passes over the data without a step; a loss scale halves in each.
MOST_IDLE = 50


class Progress:
    """Scale-invariant iterations: each optimizer step adds its progress in steps at the initial batch.

    An epoch of progress is as many iterations as the data set has initial batches. A pass over the data at a larger
    batch makes less progress, by its statistical efficiency (Pollux, section 3.1).
    """

    def __init__(self, size: int, batch_size: int) -> None:
        """Start at zero, for `size` samples and the initial batch `batch_size`."""
        self.an_epoch = -(-size // batch_size)
        self.iterations = 0.0
        self.tried = 0  # steps that were made, or skipped by a gradient scaler
        self._due = 0.0  # progress of the current step, added once it is made
        self.target: float | None = None  # at which `remaining_epochs` ends

    @property
    def epochs(self) -> float:
        return self.iterations / self.an_epoch

    @property
    def reached(self) -> bool:
        """True if there is a target and it is reached, up to rounding error."""
        return self.target is not None and self.iterations >= self.target - 1e-6 * max(self.target, 1.0)

    def begin_step(self, worth: float) -> None:
        """Begin a step of `worth` iterations of progress; steps without an optimizer step add up."""
        self._due += worth

    def made(self) -> None:
        """Count the step that the optimizer makes now."""
        self.iterations += self._due
        self.tried += 1
        self._due = 0.0

    def left_out(self) -> None:
        """Drop a step that was skipped because its gradients were not finite."""
        self.tried += 1
        self._due = 0.0

    def abandon(self) -> None:
        """Drop the current step: its pass over the data was left."""
        self._due = 0.0

    def aim(self, epochs: float) -> None:
        """Set the target to `epochs` epochs since the beginning of the job."""
        self.target = epochs * self.an_epoch

    def state_dict(self) -> dict[str, Any]:
        return {"iterations": self.iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iterations = float(state["iterations"])


class Watch:
    """Detects a loop of epochs that would never end: call `begin` before and `end` after each pass."""

    def __init__(self, progress: Progress) -> None:
        """Watch a loop that runs until `progress` reaches its target."""
        self._progress, self._idle = progress, 0
        self.begin()

    def begin(self) -> None:
        """Note that the body of the loop begins."""
        self._iterations, self._tried = self._progress.iterations, self._progress.tried

    def end(self, *, trained: bool) -> None:
        """Note its end. `trained`: it should have made a step. Raises `InputError` if the loop would never end."""
        if trained and self._progress.tried == self._tried:
            raise InputError(
                "remaining_epochs: no optimizer step was made in this pass, so there is no end; "
                "iterate over the loader inside the loop, and call optimizer.step() for each batch"
            )
        self._idle = self._idle + 1 if self._progress.iterations == self._iterations else 0
        if self._idle == MOST_IDLE:
            raise InputError(
                f"remaining_epochs: no step of {MOST_IDLE} passes over the data was progress (a gradient scaler has "
                f"left out every step of {MOST_IDLE} passes, or the loss is NaN): gradients were not finite; look for "
                "the first loss that is not"
            )
