"""How many nodes a cluster should have for the jobs it has (Pollux, section 4.2.3 and 5.4.1).

Two rules. For one job: as long as a GPU is worth more than two thirds of what a lone one would be, grow to where it is
worth a half (`nodes_for_job`). For many: keep the size while the GPUs in use are worth 35 to 65 % of what they would
be if every job scaled linearly, or else look for the size at which they are worth a half (`resize`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.goodput.fitness import FLOOR, HARMONIC
from plait.goodput.knapsack import best_sizes
from plait.goodput.ladder import ladder
from plait.goodput.speedup import fair_share, speedup

#: Published thresholds of the rule for one job.
GROW_ABOVE, GROW_TO = 2 / 3, 1 / 2

#: Published band of the cluster's utility, and what is aimed at outside.
LOW, HIGH, TARGET = 0.35, 0.65, 0.5


def nodes_for_job(
    goodput: FloatArray,
    gpus: IntArray,
    nodes: IntArray,
    now: int,
    *,
    grow_above: float = GROW_ABOVE,
    grow_to: float = GROW_TO,
) -> int:
    """How many nodes a job should have that has the configuration of row `now`.

    `goodput`, `gpus`, `nodes` (C,): its goodput at the best batch on configurations that rise; one has 1 GPU. While
    goodput / K is above `grow_above` of the goodput of 1 GPU: as many nodes as keep it at `grow_to`. Below `grow_to`
    (the paper says nothing): back to that. Else what it has.
    """
    lone = np.flatnonzero(gpus == 1)
    if not len(lone) or not goodput[lone[0]] > 0:
        raise InputError(f"autoscaling needs the goodput of 1 GPU to compare with (got GPUs {gpus.tolist()})")
    ideal = np.maximum(gpus, 1) * goodput[lone[0]]
    worth = np.where(gpus > 0, goodput / ideal, 1.0)
    if grow_to <= worth[now] <= grow_above:
        return int(nodes[now])
    enough = np.flatnonzero((worth >= grow_to) & (gpus > 0))
    if worth[now] > grow_above:
        enough = enough[enough >= now]
    return int(nodes[enough].max(initial=1))


def utility(speedup_of_one: FloatArray, gpus: IntArray, active: int) -> float:
    """What the GPUs of the active nodes are worth, as a part of what they were if jobs scaled linearly.

    sum_j share_j * SPEEDUP_j / K_j: `speedup_of_one` (J,) is goodput over that on 1 GPU, `gpus` (J,) the GPUs K_j of
    each job, and share_j = K_j / `active`, the GPUs of all nodes on which any job runs. 0 when no node is.
    """
    held = np.where(gpus > 0, speedup_of_one, 0.0)
    return float(held.sum() / active) if active > 0 else 0.0


def utility_at(
    values: Callable[[IntArray], FloatArray],
    jobs: int,
    gpus_per_node: int,
    p: float = HARMONIC,
    *,
    floor: float = FLOOR,
) -> Callable[[int], float]:
    """Utility of a cluster of so many nodes under the exact allocation, from goodput tables, as `resize` asks for it.

    `values` gives goodputs (jobs, C) for configurations (C, 2) = nodes, gpus.
    """

    def of(nodes: int) -> float:
        steps = ladder(gpus_per_node, nodes)
        share = fair_share(nodes * gpus_per_node, jobs, gpus_per_node)
        table = values(np.concatenate([steps, [share, (1, 1)]]))
        gains = speedup(table[:, : len(steps)], table[:, -2])
        chosen = best_sizes(gains, steps[:, 1], nodes * gpus_per_node, p, floor=floor)
        gpus = steps[chosen, 1]
        alone = speedup(table[np.arange(jobs), chosen][:, None], table[:, -1])[:, 0]
        return utility(alone, gpus, -(-int(gpus.sum()) // gpus_per_node) * gpus_per_node)

    return of


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
    """How many nodes a cluster of `nodes` should have: as many while its utility is in the band, else by bisection.

    `utility_of(n)` falls with n, in the main. The size whose utility is nearest to `target` among those tried, between
    `least` and the smaller of `most` and twice as many as now; of equals the smaller.
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
    below, above = least, top  # the wanted size lies between
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if ask(middle) >= target else (below, middle)
    for end in (below, above):
        ask(end)
    return min(known, key=lambda count: (not least <= count <= top, abs(known[count] - target), count))
