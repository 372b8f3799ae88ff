"""The best of all sizes on real nodes: an integer program over sizes, its placement, and another one where that costs.

The first program (`allocate.ilp`) does not name nodes and counts a size that stays as unmoved. Mostly a placement
is worth what that promised, and nothing is better. Else the second (`allocate.exact_placement`) decides who moves.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.goodput.allocate.exact_placement import ExactPlacement, best_placement, realised
from plait.goodput.allocate.fitness import FLOOR, HARMONIC, after_restart, fitness
from plait.goodput.allocate.ilp import best_arrangement
from plait.goodput.allocate.ladder import column_of
from plait.placement.rebuild import place_arranged

#: Branchings of an integer program after which the best found so far is taken: the same on every machine.
MOST_NODES = 2000

#: Values that differ by less, relatively, differ by rounding.
ALIKE = 1e-9


def best_of_all(
    speedup: FloatArray,
    configs: IntArray,
    running: IntArray,
    capacity: IntArray,
    factor: FloatArray,
    p: float = HARMONIC,
    *,
    floor: float = FLOOR,
    weights: FloatArray | None = None,
    most_nodes: int | None = MOST_NODES,
) -> ExactPlacement:
    """The allocation with the largest FITNESS_p on nodes that are alike, restarts counted.

    `speedup` (J, C) over `configs` (C, 2) as `ladder.every_size` gives them, not discounted, NaN where a job cannot
    be; `running` (J, N), `capacity` (N,) GPUs of each node, `factor` (J,) what a restart leaves of a speed-up. Raises
    `InputError` if due jobs cannot be served, or nothing was found within the limit.
    """
    here = column_of(configs, (running > 0).sum(axis=1), running.sum(axis=1))
    worth = after_restart(speedup, factor, here)
    sizes = best_arrangement(
        worth, configs, int(capacity.max(initial=0)), len(capacity), p,
        floor=floor, weights=weights, most_nodes=most_nodes,
    )  # fmt: skip
    placed = place_arranged(sizes.gpus, running, capacity).gpus
    promised = fitness(worth[np.arange(len(worth)), sizes.columns], p, floor=floor, weights=weights)
    reached = fitness(realised(placed, speedup, configs, running, factor), p, floor=floor, weights=weights)
    if reached >= promised * (1 - ALIKE):
        return ExactPlacement(placed, sizes.optimal)
    return best_placement(
        speedup, configs, running, capacity, factor, placed, p,
        floor=floor, weights=weights, most_nodes=most_nodes,
    )  # fmt: skip
