"""The Gittins index of a job of unknown size (Gittins, Glazebrook and Weber 2011; Tiresias, section 3.2).

            P(S - a <= D | S > a)
  G(a, D) = -----------------------------        larger runs first
            E[min(S - a, D) | S > a]

S is the total service of a job at departure (GPU-seconds), a its service so far, D the service quantum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.core.jobs import JobTable


class Index(Protocol):
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
        """Integrate once."""
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
        """P(S > x)."""
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
        now = self.above(service)
        then = self.above(service + quantum)
        spent = self.integral(service + quantum) - self.integral(service)
        known = (now > 0) & (spent > 0)
        return np.where(known, (now - then) / np.where(known, spent, 1.0), 0.0)

    def supremum(self, service: FloatArray) -> FloatArray:
        """The true index, the largest G(a, D) over all D > 0: only D = knot - a can attain it."""
        out = np.zeros(len(service))
        for i, a in enumerate(service.tolist()):
            ahead = self.knots[self.knots > a]
            now = float(self.above(np.array([a]))[0])
            if len(ahead) and now > 0:
                spent = self.integral(ahead) - self.integral(np.array([a]))
                out[i] = float(((now - self.above(ahead)) / spent).max())
        return out


@dataclass(frozen=True)
class FixedIndex:
    """Index from a known distribution; `quantum` overrides the queue's, 0 means the supremum over all."""

    distribution: Distribution
    quantum: float | None = None

    def __call__(self, jobs: JobTable, service: FloatArray, quantum: float) -> FloatArray:
        """One index for each entry of `service`."""
        if self.quantum == 0:
            return self.distribution.supremum(service)
        return self.distribution.index(service, quantum if self.quantum is None else self.quantum)


@dataclass(frozen=True)
class LearntIndex:
    """Index from the jobs that have departed so far, refreshed every `every` departures.

    Jobs still in the cluster count as larger than what they have received (Kaplan-Meier), rounded down to
    powers of the square root of two so that ranks do not jitter. Before the first `every` departures nothing
    is known and all indices are equal.
    """

    every: int = 100
    _memo: dict[bytes, Distribution] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, jobs: JobTable, service: FloatArray, quantum: float) -> FloatArray:
        """One index for each entry of `service`."""
        count = jobs.departures // self.every * self.every
        departed = jobs.departed_gpu_s(count)
        departed = departed[departed > 0]
        if not len(departed):
            return np.zeros(len(service))
        attained = jobs.attained_gpu_s[jobs.attained_gpu_s > 1.0]
        censored = np.sort(np.exp2(np.floor(np.log2(attained) * 2) / 2))
        key = count.to_bytes(8, "little") + censored.tobytes()
        if key not in self._memo:  # only remembers what would be computed again: decisions stay pure
            self._memo.clear()
            self._memo[key] = Distribution.kaplan_meier(departed, censored)
        return self._memo[key].index(service, quantum)


def gittins_of_survival(now: float, then: float, area: float) -> float:
    """G from F(a), F(a + D) and the integral of F over [a, a + D].

    >>> import math
    >>> rate, a, D = 0.5, 3.0, 2.0
    >>> F = lambda x: math.exp(-rate * x)
    >>> round(gittins_of_survival(F(a), F(a + D), (F(a) - F(a + D)) / rate), 12)
    0.5
    """
    return (now - then) / area if now > 0 and area > 0 else 0.0
