"""Upper bounds on every grouping of a bucket into the same number of groups.

trivial   every group has gamma <= min(1, p/k) and a job of a group at most its own share of it
matching  a group of p jobs is pairs and, if p is odd, one more. Its T is at least the T of each of its pairs, so it is
          worth at most what its pairs are worth as groups of two plus the job left over alone; and all pairs
          together are a matching, worth at most the maximum-weight matching of the first round
exact     the linear program over all kinds of groups, or the integer program if it had all that matter
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import FloatArray
from plait.grouping.algorithm1 import MOST_NODES, Bucket
from plait.grouping.model import kernels


def bound_of(bucket: Bucket) -> tuple[float, str]:
    """The smallest bound that is known for a bucket, and its name."""
    options = bucket.model.options
    factors = [options.factor(p) for p in range(1, options.max_jobs + 1)]
    alone = _alone(bucket, min(1.0, *factors))
    bounds = [(_trivial(bucket, alone, factors), "trivial")]
    matching = _by_matching(bucket, alone, factors)
    if matching is not None:
        bounds.append((matching, "matching"))
    if bucket.bound is not None and bucket.bound[0] == len(bucket.nodes):
        bounds.append((bucket.bound[1], "exact"))
    return min(bounds)


def _alone(bucket: Bucket, factor: float) -> FloatArray:
    """The most that one job of each class can add to a group: T >= its own stages and iteration, or it is alone."""
    model = bucket.model
    after = model.rows[:, 3 * model.resources :]
    inside = after[:, kernels.WORTH] / after[:, kernels.LEAST] / factor
    best: FloatArray = np.maximum(inside, after[:, kernels.ALONE])
    return best


def _trivial(bucket: Bucket, alone: FloatArray, factors: list[float]) -> float:
    jobs_only = math.fsum((alone * bucket.model.counts).tolist())
    if bucket.model.options.objective == "efficiency" and not bucket.model.shared:
        return min(jobs_only, len(bucket.nodes) / min(1.0, *factors))
    return jobs_only


def _by_matching(bucket: Bucket, alone: FloatArray, factors: list[float]) -> float | None:
    options = bucket.model.options
    exact = not bucket.greedy and len(bucket.jobs) <= MOST_NODES
    if bucket.pair_weight is None or not exact or not options.monotone(bucket.model.shared) or options.max_jobs < 2:
        return None
    worst = max(factors[1] / f for f in factors[1:])
    empty = options.max_jobs * len(bucket.nodes) - len(bucket.jobs)
    odd = min(len(bucket.nodes), empty if options.max_jobs % 2 == 0 else len(bucket.nodes))
    most = np.sort(np.repeat(alone, bucket.model.counts))[::-1][:odd]
    return bucket.pair_weight * worst + math.fsum(most.tolist())
