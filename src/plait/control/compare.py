"""Many runs side by side: groups over seeds, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.control.metrics import RunResult

#: Above this many values the mean is normal to all practical purposes and resampling only takes time.
RESAMPLE_UP_TO = 20_000
GROUP_BY = ("trace", "policy", "world", "cluster")


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """A mean and its 95 % interval; the interval is NaN for a single value."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs that differ only in their seed: `figures[name]` over the seeds, numbers only."""

    trace: str
    policy: str
    world: str
    cluster: str
    runs: int
    seeds: tuple[str, ...]
    figures: Mapping[str, GroupEstimate]


def bootstrap(values: npt.ArrayLike, seed: int = 0, n: int = 2000) -> tuple[float, float, float]:
    """Mean of the values (one a seed, or one a job) and its 95 % percentile bootstrap interval.

    `n` resamples; with more than 20,000 values mean plus and minus 1.96 standard errors, which is what
    resampling gives. NaN if a value is unknown.

    >>> bootstrap([2.0, 2.0, 2.0])
    (2.0, 2.0, 2.0)
    """
    data = np.asarray(values, dtype=np.float64)
    if not len(data) or np.isnan(data).any():
        return math.nan, math.nan, math.nan
    mean = float(data.mean())
    if len(data) == 1:
        return mean, math.nan, math.nan
    if len(data) > RESAMPLE_UP_TO:
        half = 1.959963984540054 * float(data.std(ddof=1)) / math.sqrt(len(data))
        return mean, mean - half, mean + half
    random = np.random.default_rng(seed)
    rows = max(1, 1_000_000 // len(data))
    means = [
        data[random.integers(0, len(data), (min(rows, n - done), len(data)))].mean(axis=1) for done in range(0, n, rows)
    ]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return mean, float(low), float(high)


def compare(results: Iterable[RunResult], seed: int = 0) -> list[Comparison]:
    """Group runs of the same trace, policy, world and cluster, in order of first appearance."""
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    for result in results:
        key = tuple(str(result.summary[name]) for name in GROUP_BY)
        groups.setdefault(key, []).append(result)
    return [_compared(key, runs, seed) for key, runs in groups.items()]


def is_of(result: RunResult, group: Comparison) -> bool:
    """Whether a result is one of the runs of a group that `compare` made."""
    return tuple(str(result.summary[name]) for name in GROUP_BY) == tuple(getattr(group, name) for name in GROUP_BY)


def _compared(key: tuple[str, ...], runs: Sequence[RunResult], seed: int) -> Comparison:
    figures: dict[str, GroupEstimate] = {}
    for name, value in runs[0].summary.items():
        if isinstance(value, str) or name in (*GROUP_BY, "seed"):
            continue
        values = [run.summary.get(name, math.nan) for run in runs]
        if not any(isinstance(v, str) for v in values):
            figures[name] = GroupEstimate(*bootstrap([float(v) for v in values], seed))
    seeds = tuple(str(run.summary["seed"]) for run in runs if "seed" in run.summary)
    trace, policy, world, cluster = key
    return Comparison(trace, policy, world, cluster, len(runs), seeds, figures)
