"""The batches of this rank in an epoch, planned step by step, so that batch sizes may change between two of them.

Loaders with workers ask for batches long before the script gets them. So a change takes effect at the first step that
no rank has planned yet, and each batch remembers which step it is of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from plait.training.adaptive.sampler import EpochOrder, Step, next_step, passes_left
from plait.training.order import indices_of


@dataclass(frozen=True, slots=True)
class Turn:
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
        self._epoch, self._done, self._rank, self._world = 0, 0, 0, 1
        self._now, self._later = (1, 0), deque[tuple[int, tuple[int, int]]]()
        self.chosen = False  # whether anybody has said how large batches are
        self._turns: deque[Turn] = deque()

    def begin(self, epoch: int, done: int, *, rank: int, world: int) -> None:
        """The next iteration is this epoch from `done` samples on, as `rank` of `world` ranks."""
        self._epoch, self._done, self._rank, self._world = epoch, done, rank, world
        self._now, self.steps = self.latest, 0
        self._later.clear()
        self._turns.clear()

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

    def turn(self) -> Turn:
        """What the next batch is that the loader hands out."""
        return self._turns.popleft()

    def __len__(self) -> int:
        """Batches from where it begins to the end of the epoch, if nothing changes."""
        local, accumulated = self.latest
        return passes_left(self._done, self.order.size, self._world, local, accumulated + 1)

    def __iter__(self) -> Iterator[list[Any]]:
        """The indices of each batch."""
        done, epoch, rank = self._done, self._epoch, self._rank
        order = self.order.of(epoch)
        while done < self.order.size:
            while self._later and self._later[0][0] <= self.steps:
                self._now = self._later.popleft()[1]
            local, accumulated = self._now
            step = next_step(done, self.order.size, self._world, local, accumulated + 1)
            self.steps += 1
            done += step.examples
            for index in range(step.passes):
                places = step.part(index, rank)
                self._turns.append(Turn(step, index, len(places)))
                seed = (self.order.seed * 1_000_003 + epoch * 7_368_787 + places.start) & 0x7FFFFFFF
                yield indices_of(order[places.start : places.stop].tolist(), seed)
