"""The statistics of the guard: steps beside guests against steps without them, and how sure that difference is.

An *off* block of B steps has no guest; the *contrast* is the mean of 2B steps before and 2B after it, less its own. A
linear drift of the job cancels exactly. The same figure over a stretch in which nothing changed is a *placebo*: its
square is how much a contrast varies by chance, correlation between steps included.

Guests may take cores or storage from a job that marks its GPU stages, and it may wait for a clock, so that it loses
more than its delay. Both show in `WholeSteps` alone, which vary more than the stages that it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.sharing.grant import EPS

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
#: Standard deviations by which a contrast counts as at most beyond what guests can cause; weight of the noise of
#: placebos, in contrasts, where it is added to their scatter.
SLOPE_SIGMA, PRIOR = 2.0, 8.0
#: Contrasts of a ledger: at most, and at least; errors beyond which it is sure.
REMEMBERED, LEAST_LEDGER, SURELY = 128.0, 6.0, 2.0
#: A whole step counts as at most so many steps without guests: an evaluation or a checkpoint is not chance.
MOST_WHOLE = 2.5
#: So many contrasts after a guest came are tests, or until it surely costs less than ROUGH of its level, by so many
#: errors.
FIRST, ROUGH, SURE = 4, 0.04, 2.6
#: Periods that are looked for; values over which; a period explains so much, within so much of the best.
LONGEST_PERIOD, PERIOD_VALUES = 16, 160
EXPLAINS, EXPLAINS_FEW, WITHIN, OUTLIER = 0.5, 0.25, 1.3, 4.0
FEW_VALUES, VALUES_A_PERIOD = 96, 3
#: Medians beyond which a step is long, and the most of steps that are left out as such.
LONG_MEDIANS, LONG_MOST = 1.5, 0.12
#: The phase at which a guest meets a host is not random where steps hardly vary: to so much of eps its cost is unknown.
PHASE = 0.25
#: A job itself changed where two stretches differ by so much of a step, and by so many standard deviations at least.
MOVED, MOVED_SIGMA = 0.2, 4.0


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


def first_noise(ring: Sequence[float], block: int, period: int, base_s: float, of: int) -> tuple[float, bool]:
    """The variance of a contrast, in steps, by the first off stretch; whether placebos (B is `of`) show more of it."""
    most = (1.0 + LONG_MEDIANS) * median(ring)
    usual = tuple(value for value in ring if value <= most)
    if len(usual) < (1.0 - LONG_MOST) * len(ring):
        usual = tuple(ring)
    by_steps = local_variance(usual, period) * CONTRAST_VARIANCE / block
    squares = [placebo(usual[i : i + PLACEBO * of], of) ** 2 for i in range(len(usual) - PLACEBO * of + 1)]
    square = mean(squares) * of / block if squares else 0.0
    return max(square, by_steps, (1e-6 * base_s) ** 2) / base_s**2, square > by_steps


def moved_between(
    before: Sequence[float], after: Sequence[float], base_s: float, variance: float, by_guests: float = 0.0
) -> bool:
    """Whether the job itself changed between these steps: by more than chance, and than guests can cause."""
    change = abs(mean(after) - mean(before)) / base_s
    return change > by_guests + max(MOVED, MOVED_SIGMA * math.sqrt(variance))


def noise_of(ring: Sequence[float], block: int, base_s: float, variance: float, placebos: int) -> tuple[float, bool]:
    """The variance of a contrast after the placebo of 5B values, and whether that counts: the job did not change."""
    if moved_between(ring[: AROUND * block], ring[-AROUND * block :], base_s, variance):
        return variance, False
    return noise_after(variance, (placebo(ring, block) / base_s) ** 2, placebos), True


def sigma_of(
    variance: float, block: int, around: int, period: int, base_s: float, stretches: Sequence[Sequence[float]]
) -> float:
    """The standard deviation of a contrast with `around` steps on each side: by placebos or its own, the larger.

    `stretches`: its steps, without guests in the second.
    """
    by_placebo = variance * (1.0 / block + 0.5 / around) / (CONTRAST_VARIANCE / block)
    pairs = [(local_variance(one, period), len(one) - period) for one in stretches]
    count = sum(max(n, 0) for _, n in pairs)
    of_step = sum(v * n for v, n in pairs if n > 0) / count if count else 0.0
    return math.sqrt(max(by_placebo, of_step * (1.0 / len(stretches[1]) + 0.5 / around) / base_s**2, 1e-12))


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
class Costs:
    """What sharing costs a unit of level, by contrasts d with standard deviations sigma.

    weight, slope   sums of (level / sigma)^2 and of level d / sigma^2
    squares, tries  sum of (d / sigma)^2, and of how many contrasts
    """

    weight: float = 0.0
    slope: float = 0.0
    squares: float = 0.0
    tries: int = 0

    def add(self, level: float, d: float, sigma: float) -> Costs:
        """After a contrast at `level`, which counts as at most what guests can cause, chance included."""
        usual = min(max(d, -SLOPE_SIGMA * sigma), level + SLOPE_SIGMA * sigma)
        weight, slope = self.weight + (level / sigma) ** 2, self.slope + level * usual / sigma**2
        return Costs(weight, slope, self.squares + (usual / sigma) ** 2, self.tries + 1)

    @property
    def known(self) -> tuple[float, float]:
        """The cost of a unit of level, and how much that errs.

        Its scatter counts with the noise of placebos, of which there are few in a ramp.
        """
        slope = self.slope / self.weight
        scatter = max(self.squares - slope * self.slope, 0.0)
        return slope, math.sqrt((PRIOR + scatter) / (PRIOR + self.tries) / self.weight)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What guests had and what that cost, all contrasts alike: a rare long quantum is in few of them, which err most.

    count, level, cost, squares  of contrasts: how many, and sums of their level, of d and of d^2; older ones count less
    """

    count: float = 0.0
    level: float = 0.0
    cost: float = 0.0
    squares: float = 0.0

    def add(self, level: float, d: float) -> Ledger:
        keep = 1.0 if self.count < REMEMBERED else 1.0 - 1.0 / REMEMBERED
        old = [keep * value for value in (self.count, self.level, self.cost, self.squares)]
        return Ledger(old[0] + 1.0, old[1] + level, old[2] + d, old[3] + d * d)

    def most(self, cost: float) -> float:
        """The level, 1 at most, that costs so much, as far as contrasts are sure."""
        if self.count < LEAST_LEDGER or self.level <= 0.0:
            return 1.0
        mean_d = self.cost / self.count
        error = math.sqrt(max(self.squares / self.count - mean_d**2, 0.0) / (self.count - 1.0))
        return cost / max((mean_d - SURELY * error) * self.count / self.level, cost)


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


NOTHING, NO_LEDGER = Sum(), Ledger()


@dataclass(frozen=True, slots=True)
class WholeSteps:
    """Seconds of whole steps in this block and in the last on and off blocks, as `ShareState` has values.

    variance, placebos  of a contrast, and by how many placebos; to_placebo: steps to the next one
    small, large        the two CUSUMs
    contrasts, ledger   since guests came
    """

    ring: tuple[float, ...] = ()
    tail: tuple[float, ...] = ()
    off: tuple[float, ...] = ()
    variance: float | None = None
    placebos: int = 0
    to_placebo: int = 0
    small: Sum = NOTHING
    large: Sum = NOTHING
    contrasts: int = 0
    ledger: Ledger = NO_LEDGER

    @property
    def suspect(self) -> bool:
        """Whether the next blocks are a test."""
        return (self.variance is not None and self.contrasts < FIRST) or self.small.suspect or self.large.suspect

    def after(self, step_s: float, block: int, pace_s: float) -> WholeSteps:
        """With one more step of this block of a job whose steps without guests take `pace_s` (0: not known)."""
        value = min(step_s, MOST_WHOLE * pace_s) if pace_s else step_s
        out = replace(self, ring=(*self.ring, value)[-PLACEBO * block :], to_placebo=self.to_placebo - 1)
        if self.variance is None or not pace_s or len(out.ring) < PLACEBO * block or out.to_placebo > 0:
            return out
        variance, seen = noise_of(out.ring, block, pace_s, self.variance, self.placebos)
        return replace(out, to_placebo=-(-block // 3), variance=variance, placebos=self.placebos + seen)

    def off_ended(self, block: int, period: int, pace_s: float, *, keep: bool) -> WholeSteps:
        """The off block has ended, which a contrast is to be made of if `keep`; an on block begins."""
        variance = self.variance
        if variance is None and len(self.ring) > period:
            variance = first_noise(self.ring, block, period, pace_s, max(block // 2 // period, 1) * period)[0]
        return replace(self, variance=variance, off=self.ring if keep else (), ring=(), to_placebo=0)

    def judged(self, block: int, around: int, period: int, pace_s: float, level: float, expected: float) -> WholeSteps:
        """After the contrast of the last off block at `level`, which is expected to cost `expected` of a step."""
        parts = before, _, after = self.tail[-around:], self.off, self.ring[:around]
        if self.variance is None or not all(parts) or moved_between(before, after, pace_s, self.variance):
            return replace(self, off=(), contrasts=0)
        d = contrast(*parts) / pace_s
        error = max(sigma_of(self.variance, block, around, period, pace_s, parts), PHASE * EPS)
        z = (d - expected) / error
        return replace(
            self,
            off=(),
            small=self.small.add(d, z, small_shift(EPS, error)),
            large=self.large.add(d, z, LARGE_SHIFT),
            contrasts=FIRST if d + SURE * error < ROUGH * level else self.contrasts + 1,
            ledger=self.ledger.add(level, d),
        )
