"""Effects of a choice on the jobs of a past: for all, in the tail, and for each user and project."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.advice.choices import Choice, Outcome
from plait.advice.past import Past
from plait.control.figures.prices import Prices
from plait.core.arrays import FloatArray, IntArray

WEEK_S = 7 * 86400.0
#: Weeks that a bootstrap needs; a shorter past is cut into so many parts of equally many jobs.
LEAST_WEEKS, PARTS = 8, 20
RESAMPLES = 2000
#: Owners of fewer jobs are not listed as winners or losers.
LEAST_JOBS = 5


@dataclass(frozen=True)
class Change:
    """Mean completion time of some jobs before and after, seconds, over `jobs`."""

    name: str
    jobs: int
    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        """After over before, minus one; NaN without a time before."""
        return self.after_s / self.before_s - 1.0 if self.before_s > 0 else math.nan

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"name": self.name, "jobs": self.jobs, "before_s": self.before_s, "after_s": self.after_s}


@dataclass(frozen=True)
class Effect:
    """A choice compared with the policy that was used, on the same jobs.

    `figures` and `before` have mean, p95 and p99 of completion and waiting times in seconds, idle GPU-hours and cost.
    `low` and `high` bound the relative change of the mean completion time in 95 % of resampled pasts. `round` is the
    last one in which it was simulated, and `final` whether that is the last of all. `recorded_s` is the mean completion
    time of the jobs as it happened.
    """

    choice: Choice
    round: int
    final: bool
    jobs: int
    figures: dict[str, float]
    before: dict[str, float]
    low: float
    high: float
    users: tuple[Change, ...]
    projects: tuple[Change, ...]
    preempts: bool
    recorded_s: float

    @property
    def change(self) -> float:
        """Relative change of the mean completion time."""
        return self.figures["mean_jct_s"] / self.before["mean_jct_s"] - 1.0

    def to_json(self) -> dict[str, Any]:
        """As plain values; null for what is unknown."""
        return {
            "kind": self.choice.kind, "choice": self.choice.label, "policy": self.choice.policy,
            "cluster": str(self.choice.cluster), "gpus": self.choice.cluster.gpus, "round": self.round,
            "final": self.final, "jobs": self.jobs, "knows_durations": self.choice.oracle, "preempts": self.preempts,
            "recorded_mean_jct_s": _known(self.recorded_s),
            "change": _known(self.change), "change_low": _known(self.low), "change_high": _known(self.high),
            "figures": {name: _known(value) for name, value in self.figures.items()},
            "before": {name: _known(value) for name, value in self.before.items()},
            "users": [one.to_json() for one in self.users], "projects": [one.to_json() for one in self.projects],
        }  # fmt: skip


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def effect(
    past: Past, choice: Choice, number: int, final: bool, outcome: Outcome, base: Choice, before: Outcome,
    prices: Prices | None, seed: int,
) -> Effect:  # fmt: skip
    """The effect of `choice`, whose `outcome` is of the same blocks as that of `base`, `before`."""
    rows, mine, theirs = np.intersect1d(outcome.rows, before.rows, return_indices=True)
    after_s, before_s = outcome.jct_s[mine], before.jct_s[theirs]
    low, high = _interval(past.jobs.submit_s[rows], before_s, after_s, seed)
    return Effect(
        choice, number, final, len(rows), figures(outcome, choice, prices), figures(before, base, prices), low, high,
        changes(past.jobs.column("user")[rows], before_s, after_s),
        changes(past.jobs.column("project")[rows], before_s, after_s), outcome.preemptions > 0,
        float(past.jct_s[rows].mean()) if len(rows) else math.nan,
    )  # fmt: skip


def figures(outcome: Outcome, choice: Choice, prices: Prices | None) -> dict[str, float]:
    """The figures of one outcome."""
    found: dict[str, float] = {}
    for name, values in (("jct", outcome.jct_s), ("wait", outcome.queue_s)):
        known = len(values) > 0 and not outcome.unfinished
        at = np.percentile(values, [95, 99]).tolist() if known else [math.nan, math.nan]
        found |= {f"mean_{name}_s": float(values.mean()) if known else math.nan}
        found |= {f"p95_{name}_s": at[0], f"p99_{name}_s": at[1]}
    found["idle_gpu_h"] = max(0.0, outcome.gpu_h - outcome.busy_gpu_h)
    found["gpu_h"] = outcome.gpu_h
    found["preemptions"] = float(outcome.preemptions)
    if prices is not None:
        found["cost"] = float(prices.of_gpus(choice.cluster).sum()) * outcome.hours
    return found


def changes(owners: Any, before_s: FloatArray, after_s: FloatArray) -> tuple[Change, ...]:
    """One change for each owner, who loses most first."""
    names, row = np.unique([str(owner) for owner in owners.tolist()], return_inverse=True)
    jobs = np.bincount(row, minlength=len(names))
    sums = [np.bincount(row, weights=values, minlength=len(names)) for values in (before_s, after_s)]
    found = [
        Change(str(name), int(jobs[i]), float(sums[0][i] / jobs[i]), float(sums[1][i] / jobs[i]))
        for i, name in enumerate(names.tolist())
    ]
    return tuple(sorted(found, key=lambda one: -one.ratio if one.before_s > 0 else math.inf))


def _interval(submit_s: FloatArray, before_s: FloatArray, after_s: FloatArray, seed: int) -> tuple[float, float]:
    """Bounds of the relative change of the mean: parts of the past are drawn with replacement (block bootstrap)."""
    part = parts(submit_s)
    count = int(part.max()) + 1 if len(part) else 0
    if count < 2:
        return math.nan, math.nan
    old = np.bincount(part, weights=before_s, minlength=count)
    new = np.bincount(part, weights=after_s, minlength=count)
    drawn = np.random.default_rng((seed, 0xADE)).integers(0, count, (RESAMPLES, count))
    ratio = new[drawn].sum(axis=1) / np.maximum(old[drawn].sum(axis=1), 1e-12) - 1.0
    low, high = np.percentile(ratio, [2.5, 97.5])
    return float(low), float(high)


def parts(submit_s: FloatArray) -> IntArray:
    """The part (jobs,) in which each job came: its week, or one of `PARTS` of equally many jobs."""
    if not len(submit_s):
        return np.zeros(0, dtype=np.int64)
    weeks = np.unique(((submit_s - submit_s.min()) // WEEK_S).astype(np.int64), return_inverse=True)[1]
    if int(weeks.max()) + 1 >= LEAST_WEEKS:
        return weeks
    count = min(PARTS, len(submit_s))
    order = np.empty(len(submit_s), dtype=np.int64)
    order[np.argsort(submit_s, kind="stable")] = np.arange(len(submit_s))
    result: IntArray = order * count // len(submit_s)
    return result


def losers(found: Sequence[Change]) -> list[Change]:
    """Owners of at least `LEAST_JOBS` jobs who wait longer, by 1 % at least."""
    return [one for one in found if one.jobs >= LEAST_JOBS and one.ratio > 0.01]
