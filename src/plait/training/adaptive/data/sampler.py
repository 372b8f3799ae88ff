"""Assign samples to optimizer steps on any number of ranks: every sample once an epoch, also across a resize.

The order of an epoch depends on (seed, epoch) only, and a position in it is one number: the samples that all ranks
together have taken. So a job can continue there with another number of ranks, another batch size, or both. A step is
a range of that order, cut into (passes x ranks) parts whose sizes differ by at most one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


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

    >>> EpochOrder(4, shuffle=False).of(7).tolist()
    [0, 1, 2, 3]
    """

    def __init__(self, size: int, *, shuffle: bool, seed: int = 0) -> None:
        """Order `size` samples, in random order if `shuffle`."""
        self.size, self.shuffle, self.seed = size, shuffle, seed

    def of(self, epoch: int) -> torch.Tensor:
        """The indices, shape (size,), in the order of `epoch`."""
        if not self.shuffle:
            return torch.arange(self.size)
        # Mix two numbers into one seed, such that neighbours of either are far apart.
        mixed = (self.seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xBF58476D1CE4E5B9) & 0x7FFFFFFFFFFFFFFF
        return torch.randperm(self.size, generator=torch.Generator().manual_seed(mixed))
