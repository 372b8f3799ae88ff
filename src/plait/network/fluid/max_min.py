"""Max-min fair rates of jobs that use several resources at once: water-filling, compiled. Start at `max_min`.

All jobs rise together; the first resource that is full stops the jobs on it; the others rise on (Bertsekas and
Gallager, Data Networks, section 6.5). `reference` has the same rule without tricks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel, part

#: Levels that differ by less, relatively, are one level: a tie of sums that were rounded differently.
TIE = 1e-12


@dataclass(frozen=True)
class Uses:
    """What a unit of rate of each job takes of each resource, as sparse rows.

    Job `j` uses `resource[k]` with `amount[k] > 0` for `first[j] <= k < first[j + 1]`.
    """

    first: IntArray
    resource: IntArray
    amount: FloatArray

    @classmethod
    def of(cls, rows: Sequence[Mapping[int, float]]) -> Uses:
        """From a mapping of resources to amounts for each job; amounts of zero are left out."""
        kept = [[(resource, amount) for resource, amount in row.items() if amount > 0] for row in rows]
        flat = [pair for row in kept for pair in row]
        return cls(
            np.concatenate([[0], np.cumsum([len(row) for row in kept], dtype=np.int64)]).astype(np.int64),
            np.array([resource for resource, _ in flat], dtype=np.int64),
            np.array([amount for _, amount in flat], dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.first) - 1

    def load(self, rate: FloatArray, resources: int) -> FloatArray:
        """What jobs at these rates take of each resource, shape (resources,). Jobs that use some have finite rates."""
        jobs = np.repeat(np.arange(len(self)), np.diff(self.first))
        return np.bincount(self.resource, self.amount * rate[jobs], minlength=resources).astype(np.float64)


def max_min(
    capacity: FloatArray, uses: Uses, weight: FloatArray | None = None, limit: FloatArray | None = None
) -> tuple[FloatArray, IntArray]:
    """The max-min fair rates of jobs, and the bottleneck of each: -1 if it is its own limit.

    `capacity`, shape (resources,), is finite and >= 0; `limit` is the largest rate of each job, infinite by default;
    `weight > 0`, by default 1, is what a job gets relative to others on the same bottleneck. Rates are in the unit
    of capacity over that of amounts. A job that uses nothing and has no limit has an infinite rate.
    """
    jobs = len(uses)
    weight = np.ones(jobs) if weight is None else np.asarray(weight, dtype=np.float64)
    limit = np.full(jobs, np.inf) if limit is None else np.asarray(limit, dtype=np.float64)
    capacity = np.asarray(capacity, dtype=np.float64)
    assert np.isfinite(capacity).all()
    assert (capacity >= 0).all()
    assert (weight > 0).all()
    assert (uses.amount > 0).all()
    by_limit = np.argsort(limit / weight, kind="stable")
    return _fill(capacity, uses.first, uses.resource, uses.amount, weight, limit, by_limit)


@part
def _users(first: IntArray, resource: IntArray, resources: int) -> tuple[IntArray, IntArray]:
    """The jobs of each resource: `user[k]` for `start[r] <= k < start[r + 1]`, in the order of jobs."""
    start = np.zeros(resources + 1, np.int64)
    for k in range(len(resource)):
        start[resource[k] + 1] += 1
    for r in range(resources):
        start[r + 1] += start[r]
    user = np.empty(len(resource), np.int64)
    filled = start[:-1].copy()
    for j in range(len(first) - 1):
        for k in range(first[j], first[j + 1]):
            user[filled[resource[k]]] = j
            filled[resource[k]] += 1
    return start, user


@kernel
def _fill(
    capacity: FloatArray,
    first: IntArray,
    resource: IntArray,
    amount: FloatArray,
    weight: FloatArray,
    limit: FloatArray,
    by_limit: IntArray,
) -> tuple[FloatArray, IntArray]:
    """Raise all jobs until each is stopped by a resource or its limit; `by_limit`: jobs by their level at the limit."""
    jobs, resources = len(first) - 1, len(capacity)
    start, user = _users(first, resource, resources)
    left = capacity.copy()  # what stopped jobs do not use
    slope = np.zeros(resources)  # what the rising jobs use at level 1
    rising = np.zeros(resources, np.int64)  # entries of rising jobs
    for j in range(jobs):
        for k in range(first[j], first[j + 1]):
            slope[resource[k]] += weight[j] * amount[k]
            rising[resource[k]] += 1
    rate = np.full(jobs, -1.0)  # negative: still rising
    bottleneck = np.full(jobs, -1, np.int64)
    live = np.flatnonzero(rising)  # resources of rising jobs: the first `count`
    count = len(live)
    next_limit, done = 0, 0
    stop = np.empty(jobs, np.int64)
    while done < jobs:
        level = np.inf
        kept = 0
        for i in range(count):
            r = live[i]
            if rising[r] > 0:
                live[kept] = r
                kept += 1
                level = min(level, max(left[r], 0.0) / slope[r]) if slope[r] > 0 else level
        count = kept
        while rate[by_limit[next_limit]] >= 0:
            next_limit += 1
        own = by_limit[next_limit]
        stops = 0
        if count == 0 or limit[own] / weight[own] <= level:
            rate[own] = limit[own]
            stop[0] = own
            stops = 1
        else:
            for i in range(count):
                r = live[i]
                if slope[r] > 0 and max(left[r], 0.0) / slope[r] <= level * (1.0 + TIE):
                    for k in range(start[r], start[r + 1]):
                        j = user[k]
                        if rate[j] < 0:
                            rate[j] = weight[j] * level
                            bottleneck[j] = r
                            stop[stops] = j
                            stops += 1
        for i in range(stops):
            j = stop[i]
            for k in range(first[j], first[j + 1]):
                r = resource[k]
                left[r] -= amount[k] * rate[j]
                slope[r] -= weight[j] * amount[k]
                rising[r] -= 1
        done += stops
    return rate, bottleneck
