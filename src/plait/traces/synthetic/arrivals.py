"""Arrival processes for synthetic traces: seconds of each submission, and the first job of each job's
burst.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from plait.traces.schema import Array

Arrivals = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""(stream, jobs) -> (ascending submissions in seconds, index of the first job of the same burst)."""

MEAN_GAP_S = 114.0
"""Mean gap between submissions in the Philly-derived table, seconds."""
BURST_GAP_S = 465.0
"""Mean time between bursts, seconds."""
INSIDE_GAP_S = 9.0
"""Mean gap inside a burst, seconds."""
LARGEST_BURST = 1099
BURST_EXPONENT = 2.032
"""Of the power law of burst sizes, cut at the largest: chosen for a mean of 4.3 jobs, median 1."""

WEEKDAY = np.array([0.86, 1.07, 1.14, 1.29, 1.44, 0.61, 0.59])
"""Rate of bursts by weekday, Monday first, relative to the mean."""
HOUR = np.array(
    [0.95, 0.95, 0.93, 0.93, 1.05, 1.50, 2.05, 2.09, 1.40, 1.00, 0.95, 0.90]
    + [0.85, 0.80, 0.75, 0.70, 0.66, 0.64, 0.66, 0.70, 0.75, 0.85, 0.95, 0.95]
)
"""Rate by hour: the published extremes (0.64, 2.09 at hours 6-7) joined smoothly; the shape between is
assumed."""


def poisson(rng: np.random.Generator, jobs: int) -> tuple[Array, Array]:
    """Exponential gaps of the Philly mean; no bursts."""
    return np.cumsum(rng.exponential(MEAN_GAP_S, jobs)), np.arange(jobs)


def uniform(rng: np.random.Generator, jobs: int) -> tuple[Array, Array]:
    """Uniform over a span that gives the Philly mean gap."""
    return np.sort(rng.uniform(0.0, MEAN_GAP_S * jobs, jobs)), np.arange(jobs)


def bursty(rng: np.random.Generator, jobs: int) -> tuple[Array, Array]:
    """Bursts that start by a Poisson process with a weekly rhythm, from a Monday midnight on."""
    sizes = _burst_sizes(rng, jobs)
    burst = np.repeat(np.arange(len(sizes)), sizes)[:jobs]
    first = (np.cumsum(sizes) - sizes)[burst]
    starts = rhythmic(np.cumsum(rng.exponential(BURST_GAP_S, len(sizes))))
    gaps = rng.exponential(INSIDE_GAP_S, jobs)
    gaps[first[np.arange(jobs) == first]] = 0.0
    along = np.cumsum(gaps)
    submit_s = starts[burst] + along - along[first]
    order = np.argsort(submit_s, kind="stable")
    place = np.empty(jobs, dtype=np.int64)
    place[order] = np.arange(jobs)
    return submit_s[order], place[first[order]]


def _burst_sizes(rng: np.random.Generator, jobs: int) -> Array:
    """Sizes of bursts that hold at least `jobs` jobs together."""
    edges = _size_distribution()
    sizes = np.empty(0, dtype=np.int64)
    while sizes.sum() < jobs:
        draws = rng.random(max(64, jobs // 4))
        sizes = np.concatenate([sizes, 1 + np.searchsorted(edges, draws, side="right")])
    return sizes[: int(np.searchsorted(np.cumsum(sizes), jobs)) + 1]


@cache
def _size_distribution() -> Array:
    weights = np.arange(1, LARGEST_BURST + 1, dtype=np.float64) ** -BURST_EXPONENT
    edges: Array = np.cumsum(weights) / weights.sum()
    return np.minimum(edges, 1.0)[:-1]


def rhythmic(plain_s: Array) -> Array:
    """Times of a process of constant rate, moved so that the rate follows the week."""
    rate = np.outer(WEEKDAY / WEEKDAY.mean(), HOUR / HOUR.mean()).ravel()
    knots = np.concatenate([[0.0], np.cumsum(rate)]) * 3600.0
    weeks, inside = np.divmod(plain_s, knots[-1])
    moved: Array = weeks * 168 * 3600.0 + np.interp(inside, knots, np.arange(169) * 3600.0)
    return moved
