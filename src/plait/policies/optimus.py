"""Optimus: the next GPU goes to the job whose time it shortens the most (Peng et al., EuroSys 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.policy import View
from plait.placement.elastic import place_sizes
from plait.policies.sizing.pools import Pool
from plait.policies.sizing.rounds import InRounds, Sizes


@dataclass(frozen=True, kw_only=True)
class Optimus(InRounds):
    """Every job gets its minimum GPUs, in order of submission; then the job with the largest gain gets more.

    Remaining time is what is left of the iterations over goodput, the gain the difference per GPU granted (as the
    Pollux paper runs it, section 5.1). Jobs whose work is not known count as having as much left as the others have on
    average. Jobs whose number of GPUs stays keep theirs; the rest are placed close together.

    Memory and cores of nodes are checked when jobs are placed; a job that finds no room waits for the next round.
    """

    name: str = "optimus"

    def allocate(self, pool: Pool, view: View) -> Sizes:
        """Grant GPUs one by one, then place the jobs."""
        queued = np.where(pool.due, np.arange(len(pool.rows)), pool.rows)
        order = np.lexsort((queued, ~pool.fresh, ~pool.due))
        gpus = grants(self.left(pool, view), pool.least, pool.most, pool.total, order)
        spread = np.ones(len(gpus), dtype=bool)
        placed = place_sizes(gpus, pool.held, pool.capacity, spread=spread)
        return Sizes(placed.gpus, "by marginal gain")

    def left(self, pool: Pool, view: View) -> FloatArray:
        """(J, K): seconds that each job would still take on 1 to K GPUs of as few nodes as hold them; inf if never."""
        gpus = np.arange(1, max(int(pool.most.max(initial=1)), 1) + 1)
        gpus = gpus[gpus <= max(pool.total, 1)]
        jobs = view.jobs
        work = np.maximum(jobs.iterations - jobs.iterations_done, 0.0)[pool.rows]
        known = work[~np.isnan(work)]
        work = np.where(np.isnan(work), known.mean() if len(known) else 1.0, work)
        speed = pool.goodput(-(-gpus // pool.per_node), gpus)
        # Jobs of one size, or without a fit, are in proportion to their GPUs.
        one_s = view.jobs.iteration_s[pool.rows]
        one_s = np.where(np.isnan(one_s), 1.0, one_s)
        rate: FloatArray = gpus / (one_s * view.jobs.gpus[pool.rows])[:, None]
        if pool.jobs is not None:
            rate = np.where(pool.adapts[:, None], speed / pool.jobs.initial[:, None], rate)
        with np.errstate(divide="ignore"):
            return np.where(rate > 0, work[:, None] / rate, np.inf)


def grants(left_s: FloatArray, least: IntArray, most: IntArray, total: int, order: IntArray) -> IntArray:
    """GPUs (J,) by marginal gain: first `least` for each in `order` as they last, then one by one to the largest gain.

    `left_s` (J, K): seconds left on 1 to K GPUs. Ties go to the first in `order`. No job gets more than `most`
    or GPUs that do not shorten its time.

    >>> left_s = np.array([[8.0, 4.0, 3.0], [4.0, 2.0, 1.5]])
    >>> grants(left_s, np.array([1, 1]), np.array([3, 3]), 4, np.arange(2)).tolist()
    [2, 2]
    """
    gpus = np.zeros(len(least), dtype=np.int64)
    left, width = total, left_s.shape[1]
    for j in order.tolist():
        if least[j] <= min(left, width):
            gpus[j] = least[j]
            left -= int(least[j])

    def gain(j: int) -> float:
        k = int(gpus[j])
        return float(left_s[j, k - 1] - left_s[j, k]) if 0 < k < min(int(most[j]), width) else 0.0

    heap = [(-gain(j), place_sizes, j) for place_sizes, j in enumerate(order.tolist()) if gain(j) > 0]
    heapify(heap)
    while heap and left > 0:
        _, place_sizes, j = heappop(heap)
        gpus[j] += 1
        left -= 1
        if gain(j) > 0:
            heappush(heap, (-gain(j), place_sizes, j))
    return gpus
