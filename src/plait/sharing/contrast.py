"""The statistics of the guard: steps beside guests against steps without them, and how sure that difference is.

An *off* block of B steps has no guest; the *contrast* is the mean of 2B steps before and 2B after it, less its own. A
linear drift of the job cancels exactly. The same figure over a stretch in which nothing changed is a *placebo*: its
square is how much a contrast varies by chance, correlation between steps included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Steps of an off block: at least, seconds it has to take, and at most; above LONG_S a step, LONG_BLOCK_S and at least.
LEAST, LEAST_S, MOST = 6, 0.5, 400
LONG_S, LONG_BLOCK_S, LONG_LEAST = 3.0, 20.0, 3
#: Steps around an off block in its contrast, and in a whole placebo, as multiples of B.
AROUND, PLACEBO = 2, 5
#: How fast the noise follows placebos that are larger and smaller than it, and what they count as at most.
RISE, FALL, CLIP = 1 / 40, 1 / 160, 25.0
#: The first placebos count as so many already: they overlap, and the first estimate is none of one value alone.
FIRST_PLACEBOS = 16
#: A change of the logarithm of the likelihood: at most; sum that makes suspect; sum of an alarm; contrasts of an alarm.
MOST_RISE, SUSPECT, ALARM, LEAST_CONTRASTS = 4.0, 2.5, 7.0, 2
#: Standard deviations by which a contrast may be below what is expected, and by which the two sums look for more.
LOWEST_Z, SMALL_SHIFT, LARGE_SHIFT = -3.0, (0.2, 2.0), 1.5
#: Contrasts of a sum that are kept.
KEPT = 64
#: A contrast has 1.25 / B times the variance of a step, where steps are independent; one of three off blocks 1.5 / B.
CONTRAST_VARIANCE, OFF_VARIANCE = 1.25, 1.5
#: Periods that are looked for; values over which; a period explains so much, within so much of the best.
LONGEST_PERIOD, PERIOD_VALUES = 16, 160
EXPLAINS, EXPLAINS_FEW, WITHIN, OUTLIER = 0.5, 0.25, 1.3, 4.0
FEW_VALUES, VALUES_A_PERIOD = 96, 3


def block_steps(step_s: float, period: int) -> int:
    """B: the steps of an off block of a job with steps of `step_s` seconds; a multiple of the period of its steps.

    >>> block_steps(0.2, 1), block_steps(0.004, 1), block_steps(10.0, 1), block_steps(0.2, 4)
    (6, 125, 3, 8)
    """
    steps = min(max(LEAST, math.ceil(LEAST_S / step_s)), MOST)
    if step_s > LONG_S:
        steps = min(steps, max(LONG_LEAST, math.ceil(LONG_BLOCK_S / step_s)))
    return -(-steps // period) * period


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def median(values: Sequence[float]) -> float:
    """The middle of at least one value; of an even number the mean of the two."""
    ranked, half = sorted(values), len(values) // 2
    return ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2.0


def contrast(before: Sequence[float], off: Sequence[float], after: Sequence[float]) -> float:
    """The mean of both sides less the mean of the off block, in the unit of the values."""
    return (mean(before) + mean(after)) / 2.0 - mean(off)


def placebo(values: Sequence[float], block: int) -> float:
    """The contrast of 5B values in which nothing changed."""
    two = AROUND * block
    return contrast(values[:two], values[two : two + block], values[two + block :])


def local_variance(values: Sequence[float], period: int) -> float:
    """The variance of a step from differences between values a period apart; 0 if there are none."""
    if len(values) <= period:
        return 0.0
    return sum((b - a) ** 2 for a, b in zip(values, values[period:], strict=False)) / (2.0 * (len(values) - period))


def noise_after(variance: float, square: float, placebos: int) -> float:
    """The variance of a contrast after one more placebo with this square: quick to rise, slow to fall; first a mean."""
    square = min(square, CLIP * variance)
    rate = max(RISE if square > variance else FALL, 1.0 / (FIRST_PLACEBOS + placebos))
    return variance + rate * (square - variance)


def period_of(values: Sequence[float], least: float = 0.0) -> int:
    """The least period of steps, in steps: 1 for steps that do not repeat, or whose differences are below `least`.

    >>> period_of([0.15, 0.25] * 40), period_of([0.15, 0.25] * 40, 0.2)
    (2, 1)
    """
    longest = min(LONGEST_PERIOD, len(values) // VALUES_A_PERIOD)
    if longest < 2:
        return 1
    most = OUTLIER * median(values)
    clipped = [min(value, most) for value in values]
    apart = [2.0 * local_variance(clipped, period) for period in range(1, longest + 1)]
    best = min(apart)
    if apart[0] < least**2 or best >= apart[0] * (EXPLAINS if len(values) >= FEW_VALUES else EXPLAINS_FEW):
        return 1
    return next(period for period, one in enumerate(apart, 1) if one <= WITHIN * best)


def small_shift(eps: float, sigma: float) -> float:
    """The standard deviations that the first sum looks for: those of `eps`."""
    return min(max(eps / sigma, SMALL_SHIFT[0]), SMALL_SHIFT[1])


@dataclass(frozen=True, slots=True)
class Sum:
    """A CUSUM: the log likelihood ratio of a shift, never below 0, and the contrasts since it was 0."""

    height: float = 0.0
    since: tuple[float, ...] = ()

    def add(self, contrast: float, z: float, shift: float) -> Sum:
        """After a contrast that is z standard deviations above what is expected; `shift`: those of the alternative."""
        height = max(0.0, self.height + min(shift * max(z, LOWEST_Z) - shift * shift / 2.0, MOST_RISE))
        return Sum(height, (*self.since, contrast)[-KEPT:]) if height > 0.0 else Sum()

    @property
    def suspect(self) -> bool:
        """Whether the next blocks are a test."""
        return self.height > SUSPECT

    @property
    def alarm(self) -> bool:
        """Whether the shift is real, at the stated rate of error."""
        return self.height > ALARM and len(self.since) >= LEAST_CONTRASTS
