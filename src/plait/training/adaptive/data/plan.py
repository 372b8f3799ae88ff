"""Plan the batches of this rank in an epoch step by step, so that the batch size may change between two steps.

Loaders with workers request batches long before the script gets them. Therefore a change takes effect at the first
step that no rank has planned yet, and each batch carries its step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from plait.training.adaptive.data.sampler import EpochOrder, Step, next_step, passes_left
from plait.training.loader.sampler_replay import indices_of

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
        """Yield the indices of each batch."""
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
                yield indices_of(order[places.start : places.stop].tolist(), seed)

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
