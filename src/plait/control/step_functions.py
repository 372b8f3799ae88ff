"""Step functions of time, for exact time averages: queue lengths, GPUs held, nodes down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """`values[i]` from `times_s[i]` until `times_s[i + 1]`; `before` until `times_s[0]`.

    >>> queue = Steps.of(np.array([0.0, 5.0]), np.array([10.0, 15.0]))
    >>> queue.mean(0.0, 20.0), queue.max(0.0, 20.0)
    (1.0, 2.0)
    """

    times_s: FloatArray
    values: FloatArray
    before: float = 0.0

    @classmethod
    def of(cls, from_s: FloatArray, to_s: FloatArray, weights: FloatArray | None = None, before: float = 0.0) -> Steps:
        """The sum over half-open intervals of their weights (1 each), on top of `before`."""
        weights = np.ones(len(from_s)) if weights is None else weights
        keep = to_s > from_s
        if not keep.all():
            from_s, to_s, weights = from_s[keep], to_s[keep], weights[keep]
        return cls.changes(np.concatenate([from_s, to_s]), np.concatenate([weights, -weights]), before)

    @classmethod
    def several(cls, from_s: FloatArray, to_s: FloatArray, weights: Iterable[FloatArray]) -> list[Steps]:
        """`of` for many weights on the same intervals, sorted once; the results share their times."""
        times_s = np.concatenate([from_s, to_s])
        order = np.argsort(times_s, kind="stable")
        times_s = times_s[order]
        last = np.append(times_s[1:] != times_s[:-1], True)[: len(times_s)]
        times_s = times_s[last]
        return [cls(times_s, np.cumsum(np.concatenate([w, -w])[order])[last]) for w in weights]

    @classmethod
    def changes(cls, times_s: FloatArray, deltas: FloatArray, before: float = 0.0) -> Steps:
        """`before`, and from each of these times on its delta more; minus infinity means always."""
        always = times_s == -np.inf
        if always.any():
            before += float(deltas[always].sum())
        use = np.isfinite(times_s)
        if not use.all():
            times_s, deltas = times_s[use], deltas[use]
        order = np.argsort(times_s, kind="stable")
        times_s, values = times_s[order], before + np.cumsum(deltas[order])
        last = np.append(times_s[1:] != times_s[:-1], True)[: len(times_s)]
        return cls(times_s[last], values[last], before)

    def at(self, times_s: FloatArray) -> FloatArray:
        """The values at these times."""
        index = np.searchsorted(self.times_s, times_s, side="right")
        return np.concatenate([[self.before], self.values])[index]

    def integral(self, times_s: FloatArray) -> FloatArray:
        """Area from the first change to each of these times; differences of it are exact areas."""
        if not len(self.times_s):
            return self.before * times_s
        area = np.concatenate([[0.0], np.cumsum(np.diff(self.times_s) * self.values[:-1])])
        index = np.searchsorted(self.times_s, times_s, side="right") - 1
        inside = np.maximum(index, 0)
        value = np.where(index < 0, self.before, self.values[inside])
        result: FloatArray = area[inside] + (times_s - self.times_s[inside]) * value
        return result

    def bins(self, edges_s: FloatArray) -> FloatArray:
        """Time average between neighbouring edges."""
        result: FloatArray = np.diff(self.integral(edges_s)) / np.diff(edges_s)
        return result

    def mean(self, from_s: float, to_s: float) -> float:
        """Time average; NaN over no time."""
        return self.area(from_s, to_s) / (to_s - from_s) if to_s > from_s else float("nan")

    def area(self, from_s: float, to_s: float) -> float:
        """Value times seconds between two times."""
        low, high = self.integral(np.array([from_s, to_s]))
        return float(high - low)

    def max(self, from_s: float, to_s: float) -> float:
        """Largest value held for some time between two times; 0 over no time."""
        if not to_s > from_s:
            return 0.0
        lo, hi = np.searchsorted(self.times_s, [from_s, to_s], side="left")
        start = float(self.at(np.array([from_s]))[0])
        return max([start, *([float(self.values[lo:hi].max())] if hi > lo else [])])
