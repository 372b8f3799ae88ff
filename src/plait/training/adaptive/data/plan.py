"""The batches of this rank in an epoch, planned step by step, so that batch sizes may change between two of them.

Loaders with workers ask for batches long before the script gets them. So a change takes effect at the first step that
no rank has planned yet, and each batch remembers which step it is of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from plait.training.adaptive.data.sampler import EpochOrder, Step, next_step, passes_left
from plait.training.loader.sampler_replay import indices_of

#: Of a rank alone, steps are made of two halves of their batch from the one on to the other, and then every so many-th.
#: The first ones are whole, so that a loop with several backward passes is known before one of them is cut.
HALVES_FROM, HALVES_TO, HALVES_EVERY = 8, 24, 16


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One batch of this rank: pass `index` of an optimizer step, `local` examples."""

    step: Step
    index: int
    local: int

    @property
    def is_sync(self) -> bool:
        """Whether gradients are reduced and the optimizer steps after this one; the passes before it accumulate."""
        return self.index == self.step.passes - 1


class Plan:
    """The order of an epoch from a place on, as lists of indices for one rank: a batch sampler."""

    def __init__(self, order: EpochOrder) -> None:
        """Of this data; `begin` says where."""
        self.order = order
        self.steps = 0  # planned since `begin`
        self._epoch, self._done, self._rank, self._world_size = 0, 0, 0, 1
        self._now, self._later = (1, 0), deque[tuple[int, tuple[int, int]]]()
        self.chosen = False  # whether anybody has said how large batches are
        self._microbatches: deque[Microbatch] = deque()
        #: The least examples of a half, if steps of one pass of one rank may be cut in two; None if not.
        self.least_half: int | None = None
        self._whole = 0  # such steps so far

    def begin(self, epoch: int, done: int, *, rank: int, world_size: int) -> None:
        """The next iteration is this epoch from `done` samples on, as `rank` of `world_size` ranks."""
        self._epoch, self._done, self._rank, self._world_size = epoch, done, rank, world_size
        self._now, self.steps = self.latest, 0
        self._later.clear()
        self._microbatches.clear()

    def change(self, local: int, accumulated: int, at: int) -> None:
        """From step `at` since `begin` on, or from the next `begin`: `local` examples a pass.

        `accumulated`: passes of a step before the one that reduces.
        """
        self._later.append((at, (local, accumulated)))
        self.chosen = True

    @property
    def latest(self) -> tuple[int, int]:
        """(m, s) of the last step there will be, if nothing is changed any more."""
        return self._later[-1][1] if self._later else self._now

    def next_microbatch(self) -> Microbatch:
        """What the next batch is that the loader hands out."""
        return self._microbatches.popleft()

    def __len__(self) -> int:
        """Batches from where it begins to the end of the epoch, if nothing changes."""
        local, accumulated = self.latest
        return passes_left(self._done, self.order.size, self._world_size, local, accumulated + 1)

    def __iter__(self) -> Iterator[list[Any]]:
        """The indices of each batch."""
        done, epoch, rank = self._done, self._epoch, self._rank
        order = self.order.of(epoch)
        while done < self.order.size:
            while self._later and self._later[0][0] <= self.steps:
                self._now = self._later.popleft()[1]
            local, accumulated = self._now
            step = next_step(done, self.order.size, self._world_size, local, accumulated + 1)
            if self._cut(step):
                step = replace(step, passes=2, full=step.examples % 2 == 0, halves=True)
            self.steps += 1
            done += step.examples
            for index in range(step.passes):
                places = step.part(index, rank)
                self._microbatches.append(Microbatch(step, index, len(places)))
                seed = (self.order.seed * 1_000_003 + epoch * 7_368_787 + places.start) & 0x7FFFFFFF
                yield indices_of(order[places.start : places.stop].tolist(), seed)

    def _cut(self, step: Step) -> bool:
        """Whether this step is one of those that are made of two halves."""
        if self.least_half is None or not step.full or step.ranks * step.passes > 1:
            return False
        if step.examples // 2 < self.least_half:
            return False
        self._whole += 1
        return HALVES_FROM < self._whole <= HALVES_TO or (self._whole > HALVES_TO and self._whole % HALVES_EVERY == 0)
