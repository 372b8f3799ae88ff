"""The Gittins index of a job of unknown size (Gittins, Glazebrook and Weber 2011; Tiresias, section 3.2).

            P(S - a <= D | S > a)
  G(a, D) = -----------------------------        larger runs first
            E[min(S - a, D) | S > a]

S is the total service of a job at departure (GPU-seconds), a its service so far, D the service quantum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait.core.jobs import JobTable
from plait.core.policy import View

#: Departures after which an estimated distribution is refreshed.
REFRESH = 100


class GittinsIndex(Protocol):
    """Gittins indices of some jobs; may look at the departed jobs of the table."""

    def __call__(self, jobs: JobTable, service: FloatArray, quantum: float) -> FloatArray:
        """One index for each entry of `service`."""
        ...


@dataclass(frozen=True)
class Distribution:
    """A survival function F(x) = P(S > x) that is constant between `knots`.

    `survival[i]` holds from `knots[i]` on; before the first knot it is 1.

    >>> d = Distribution.of_samples([4, 8, 12])
    >>> [round(float(g), 4) for g in d.index(np.array([0.0, 4.0, 8.0]), 4.0)]
    [0.0833, 0.125, 0.25]
    """

    knots: FloatArray
    survival: FloatArray
    area: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        steps = np.diff(np.concatenate([[0.0], self.knots]))
        before = np.concatenate([[1.0], self.survival[:-1]])
        object.__setattr__(self, "area", np.cumsum(steps * before))

    @classmethod
    def of_samples(cls, values: Sequence[float] | FloatArray) -> Distribution:
        """The empirical distribution; raises `InputError` if there is nothing to learn from."""
        return cls.kaplan_meier(np.asarray(values, dtype=np.float64), np.zeros(0))

    @classmethod
    def kaplan_meier(cls, departed: FloatArray, censored: FloatArray) -> Distribution:
        """The product-limit estimate: `censored` jobs are known to need more than this (Kaplan, Meier 1958)."""
        if not len(departed) or not np.isfinite(departed).all() or (departed <= 0).any():
            raise InputError("a size distribution needs at least one departed job, sizes > 0 GPU-seconds")
        knots, deaths = np.unique(departed, return_counts=True)
        everyone = np.sort(np.concatenate([departed, censored]))
        # A job censored exactly at a knot was still there when it happened.
        at_risk = len(everyone) - np.searchsorted(everyone, knots, side="left")
        return cls(knots, np.cumprod(1.0 - deaths / at_risk).astype(np.float64))

    def above(self, x: FloatArray) -> FloatArray:
        """P(S > x), the share of sizes above each `x`."""
        at = np.searchsorted(self.knots, x, side="right")
        return np.where(at == 0, 1.0, self.survival[np.maximum(at - 1, 0)])

    def integral(self, x: FloatArray) -> FloatArray:
        """Integral of P(S > u) for u from 0 to x."""
        x = np.minimum(x, self.knots[-1])
        at = np.searchsorted(self.knots, x, side="right")
        base = np.where(at == 0, 0.0, self.area[np.maximum(at - 1, 0)])
        knot = np.where(at == 0, 0.0, self.knots[np.maximum(at - 1, 0)])
        return base + (x - knot) * self.above(x)

    def index(self, service: FloatArray, quantum: float) -> FloatArray:
        """G(a, D) for each a; 0 where no job was ever that large. `quantum` may be infinite."""
        spent = self.integral(service + quantum) - self.integral(service)
        return _ratio(self.above(service), self.above(service + quantum), spent)

    def supremum(self, service: FloatArray) -> FloatArray:
        """The true index, the largest G(a, D) over all D > 0: only D = knot - a can attain it.

        In the plane of (integral of F, F) the index is the steepest way down from a to a knot ahead, so only the
        lower convex hull of the knots ahead is examined.
        """
        here = np.searchsorted(self.knots, service, side="right")
        spent, left = self.integral(self.knots), self.survival
        return _steepest(spent, left, _next_on_hull(spent, left), here, self.integral(service), self.above(service))


def _ratio(now: FloatArray, then: FloatArray, spent: FloatArray) -> FloatArray:
    """G from F(a), F(a + D) and the integral of F over [a, a + D]; 0 where nothing is known."""
    known = (now > 0) & (spent > 0)
    return np.where(known, (now - then) / np.where(known, spent, 1.0), 0.0)


@kernel
def _next_on_hull(x: FloatArray, y: FloatArray) -> IntArray:
    """For each point, the next one on the lower convex hull of it and all after it; the last has itself."""
    after = np.arange(len(x))
    for i in range(len(x) - 2, -1, -1):
        k = i + 1
        while after[k] != k and (y[after[k]] - y[i]) * (x[k] - x[i]) <= (y[k] - y[i]) * (x[after[k]] - x[i]):
            k = after[k]
        after[i] = k
    return after


@kernel
def _steepest(
    x: FloatArray, y: FloatArray, after: IntArray, here: IntArray, from_x: FloatArray, from_y: FloatArray
) -> FloatArray:
    """The steepest way down from each (from_x, from_y) to a point from `here` on; 0 where there is none."""
    out = np.zeros(len(here))
    for i in range(len(here)):
        k = here[i]
        if k >= len(x) or from_y[i] <= 0:
            continue
        if x[k] <= from_x[i]:  # less apart than rounding errors
            continue
        best = (from_y[i] - y[k]) / (x[k] - from_x[i])
        while after[k] != k:
            k = after[k]
            slope = (from_y[i] - y[k]) / (x[k] - from_x[i])
            if slope < best:
                break
            best = slope
        out[i] = best
    return out


@dataclass(frozen=True)
class FixedIndex:
    """Index from a known distribution; `quantum` overrides the queue's, 0 means the supremum over all.

    Raises `InputError` for an invalid quantum.
    """

    distribution: Distribution
    quantum: float | None = None

    def __post_init__(self) -> None:
        _check_quantum(self.quantum)

    def __call__(self, jobs: JobTable, service: FloatArray, quantum: float) -> FloatArray:
        if self.quantum == 0:
            return self.distribution.supremum(service)
        return self.distribution.index(service, quantum if self.quantum is None else self.quantum)


@dataclass(frozen=True)
class LearntIndex:
    """Index from the jobs that have departed so far, refreshed every `every` departures; `quantum` as in `FixedIndex`.

    Jobs still in the cluster count as larger than what they have received (Kaplan-Meier), rounded down to
    powers of the square root of two so that the order does not jitter. Before the first `every` departures nothing
    is known and all indices are equal. Raises `InputError` for impossible values.
    """

    every: int = REFRESH
    quantum: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise InputError(f"every is {self.every!r}; it takes a whole number of departures >= 1")
        _check_quantum(self.quantum)

    def __call__(self, jobs: JobTable, service: FloatArray, quantum: float) -> FloatArray:
        sizes, sums = jobs.departed_sizes(jobs.departures // self.every * self.every)
        if not len(sizes):
            return np.zeros(len(service))
        attained = jobs.attained_gpu_s
        attained = attained[attained > 1.0]
        counts = np.bincount(np.floor(np.log2(attained) * 2).astype(np.int64))
        steps = np.flatnonzero(counts)
        learnt = CensoredSizes(sizes, sums, np.exp2(steps / 2), counts[steps])
        if self.quantum == 0:
            return learnt.distribution().supremum(service)
        return learnt.index(service, quantum if self.quantum is None else self.quantum)


@dataclass(frozen=True)
class ByGittins:
    """The largest index first, without queues (continuous 2D-Gittins, Tiresias, section 3.2).

    The index of what a job has received changes all the time, so this is for policies that decide again every quantum.
    Jobs larger than all that are known have index 0 and go last, by submission.
    """

    index: GittinsIndex

    def __call__(self, view: View) -> FloatArray:
        return -self.index(view.jobs, view.jobs.service_gpu_s, math.inf)


def _check_quantum(quantum: float | None) -> None:
    if quantum is not None and not quantum >= 0:
        raise InputError(f"quantum is {quantum}; it takes GPU-seconds > 0, or 0 for the supremum over all")


class CensoredSizes:
    """Kaplan-Meier over many departed jobs and few censoring values, without a pass over all jobs.

    Between two neighbouring values of `at` the number at risk differs from that of departed jobs ahead by the same
    count, so the product of the estimate telescopes: F(x) = F(c) * (ahead(x) + censored) / (ahead(c) + censored). Each
    call takes time in proportion to the number of values and of questions, times log(departed).

    `sizes`: service of departed jobs, GPU-seconds, ascending, > 0; `sums`: its running sums from 0 on. `at`, `counts`:
    how many are censored at which values, ascending.
    """

    def __init__(self, sizes: FloatArray, sums: FloatArray, at: FloatArray, counts: IntArray) -> None:
        """Scale and integral at the values of `at` below the largest size: nothing is known beyond that."""
        self.sizes, self.sums = sizes, sums
        known = int(at.searchsorted(sizes[-1]))
        self.starts = np.zeros(known + 1)
        self.starts[1:] = at[:known]
        #: censored at or beyond the end of each interval between two starts
        self.censored = np.zeros(known + 1)
        self.censored[: len(counts)] = counts[::-1].cumsum()[::-1][: known + 1]
        passed = sizes.searchsorted(self.starts, side="right")
        ahead = len(sizes) - passed
        self.area = sums[passed] + self.starts * ahead
        entering = ahead + self.censored
        kept = np.ones(known + 1)
        kept[1:] = (ahead[1:] + self.censored[:-1]) / entering[:-1]
        self.scale = kept.cumprod() / entering
        spent = np.zeros(known + 1)
        width = self.starts[1:] - self.starts[:-1]
        spent[1:] = self.scale[:-1] * (self.area[1:] - self.area[:-1] + self.censored[:-1] * width)
        self.base = spent.cumsum()

    def __call__(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """P(S > x), and the integral of P(S > u) for u from 0 to x."""
        x = np.minimum(x, self.sizes[-1])
        i = self.starts.searchsorted(x, side="right") - 1
        passed = self.sizes.searchsorted(x, side="right")
        ahead, censored, scale = len(self.sizes) - passed, self.censored[i], self.scale[i]
        spent = self.sums[passed] + x * ahead - self.area[i] + censored * (x - self.starts[i])
        return scale * (ahead + censored), self.base[i] + scale * spent

    def index(self, service: FloatArray, quantum: float) -> FloatArray:
        """G(a, D) for each a, as `Distribution.index` computes it."""
        n = len(service)
        above, area = self(np.concatenate([service, service + quantum]))
        return _ratio(above[:n], above[n:], area[n:] - area[:n])

    def distribution(self) -> Distribution:
        """The same with all its knots."""
        knots = np.unique(self.sizes)
        return Distribution(knots, self(knots)[0])
