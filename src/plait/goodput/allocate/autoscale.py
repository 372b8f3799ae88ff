"""Number of nodes that a cluster should have for its jobs (Pollux, OSDI'21, on cloud auto-scaling).

The present number while the GPUs in use are worth 35 to 65 % of what they would be if every job scaled linearly, or
else the number at which they are worth about a half (`resize`). One job alone grows and shrinks by the same rule; the
paper's experiment with one has a band from a half to two thirds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError

#: Published band of the cluster's utility, and the target outside it.
LOW, HIGH, TARGET = 0.35, 0.65, 0.5


def utility(speedup_of_one: FloatArray, gpus: IntArray, active: int) -> float:
    """Worth of the GPUs of active nodes, relative to their worth if jobs scaled linearly.

    sum_j share_j * SPEEDUP_j / K_j: `speedup_of_one` (J,) is goodput over that on 1 GPU, `gpus` (J,) the GPUs K_j of
    each job, and share_j = K_j / `active`, the GPUs of all nodes on which any job runs. 0 when no node is.
    """
    held = np.where(gpus > 0, speedup_of_one, 0.0)
    return float(held.sum() / active) if active > 0 else 0.0


def resize(
    nodes: int,
    utility_of: Callable[[int], float],
    *,
    low: float = LOW,
    high: float = HIGH,
    target: float = TARGET,
    least: int = 1,
    most: int | None = None,
) -> int:
    """Target size of a cluster of `nodes`: the same while its utility is from `low` to `high`, else by bisection.

    `utility_of(n)` falls with n, in the main. The tried size whose utility is nearest to `target`, between `least` and
    the smaller of `most` and twice as many as now; of equals the smaller.
    """
    top = max(least, 2 * nodes if most is None else min(most, 2 * nodes))
    if least < 1 or not low <= target <= high:
        raise InputError(
            "autoscaling needs at least one node and a target in its band "
            f"(got least={least}, {low} <= {target} <= {high})"
        )
    known: dict[int, float] = {}

    def ask(count: int) -> float:
        if count not in known:
            known[count] = utility_of(count)
        return known[count]

    if least <= nodes <= top and low <= ask(nodes) <= high:
        return nodes
    below, above = least, top  # the target size lies between
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if ask(middle) >= target else (below, middle)
    for end in (below, above):
        ask(end)
    return min(known, key=lambda count: (not least <= count <= top, abs(known[count] - target), count))
