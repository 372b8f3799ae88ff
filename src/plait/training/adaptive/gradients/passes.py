"""A forward and backward pass as gradient hooks see it, and their measurements at the end of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from plait.training.adaptive.gradients.noise import Estimate, from_pair, from_samples


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass of this rank, the `index`-th; `passes` of each of `ranks` ranks make a step.

    `examples` are those of this rank in this pass, `batch` those of the whole step; `full` says whether all parts of
    the step are of equal size. `halves`: they are the two halves of one, of which one may have one example more.
    `pairs`: where a step has one sample, it is compared with the step before; else such steps say nothing. `measured`:
    whether the samples of a step that has several are measured.
    """

    ranks: int
    passes: int
    index: int
    examples: int
    batch: int
    full: bool = True
    halves: bool = False
    pairs: bool = True
    measured: bool = True

    @property
    def samples(self) -> float:
        """Equivalent number of samples of equal size in this step; 0 if it gives no estimate.

        For two parts of a and b examples, the mean of both squared norms has the variance of (a + b)^2 / 2ab parts.
        """
        if self.halves:
            less = self.batch // 2
            return self.batch**2 / (2 * less * (self.batch - less))
        return float(self.ranks * self.passes) if self.full else 0.0

    @property
    def last(self) -> bool:
        """True if the optimizer steps after this pass."""
        return self.index == self.passes - 1

    @property
    def weight(self) -> float:
        """Factor of its mean gradient, so that all examples of an uneven step count alike."""
        parts = self.ranks * self.passes
        return 1.0 if self.full or self.batch < parts else self.examples * parts / self.batch


@dataclass(slots=True)
class Squares:
    """Measurements of one step: two rows of one float64 per parameter group, on the gradients' device.

    `first` and `second` are the arguments of `from_samples` if there were `samples` > 1, else of `from_pair`. `batch`
    is that of the step. `divided`: by the optimizer's pre-conditioner.
    """

    first: torch.Tensor
    second: torch.Tensor
    samples: float
    batch: int
    divided: bool = False

    def estimate(self, initial_batch: int) -> Estimate:
        """The estimate from these measurements; waits for the device."""
        rows = torch.stack([self.first, self.second]).tolist()
        return estimate(rows, self.samples, self.batch / initial_batch, divided=self.divided)


def estimate(rows: list[list[float]], samples: float, scale: float, *, divided: bool = False) -> Estimate:
    """From the two rows of `Squares` as numbers."""
    first, second = rows
    found = from_samples(first, second, samples, scale) if samples > 1 else from_pair(first, second, scale)
    return replace(found, divided=divided)
