"""Sizes chosen anew every minute: whoever gains most from twice its GPUs gets them, while that is worth it."""

from dataclasses import dataclass

import numpy as np

from plait import View
from plait.placement.elastic import place_sizes
from plait.policies.sizing.pools import Pool
from plait.policies.sizing.rounds import InRounds, Sizes


@dataclass(frozen=True, kw_only=True)
class DoublingSizes(InRounds):
    least_gain: float = 1.3
    name: str = "doubling-sizes"

    def allocate(self, pool: Pool, view: View) -> Sizes:
        sizes = np.arange(1, pool.total + 1)
        worth = pool.goodput(-(-sizes // pool.per_node), sizes)  # useful examples/s of each job on 1, 2, ... GPUs
        gpus, left = np.zeros(len(pool.rows), dtype=np.int64), pool.total
        # First the fewest GPUs for each: who waited too long, who has just started, then in the order of the pool.
        for j in np.lexsort((~pool.fresh, ~pool.due)):
            if pool.least[j] <= left:
                gpus[j] = pool.least[j]
                left -= gpus[j]
        while True:
            may = np.flatnonzero((gpus > 0) & (2 * gpus <= pool.most) & (gpus <= left))
            gain = worth[may, 2 * gpus[may] - 1] / np.maximum(worth[may, gpus[may] - 1], 1e-9)
            if not len(may) or gain.max() < self.least_gain:
                break
            j = may[gain.argmax()]
            left -= gpus[j]
            gpus[j] *= 2
        spread = np.ones(len(gpus), dtype=bool)
        return Sizes(place_sizes(gpus, pool.held, pool.capacity, spread=spread).gpus, "doubled where that gains most")
