"""Size of a cluster for jobs that adapt: the rule of `plait.goodput.allocate.autoscale` on the pools of a view.

Utility is what the GPUs of a cluster are worth to jobs that adapt, as a part of what they were if jobs scaled linearly.
The published code counts nodes on which a job runs; here all GPUs that other jobs leave count, so that nodes that bring
no gain are given back too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.policy import View, Wanted
from plait.goodput.allocate.autoscale import HIGH, LOW, resize, utility
from plait.goodput.allocate.knapsack import best_sizes
from plait.policies.sizing.pools import Pool, pools
from plait.policies.sizing.steps import Ladder


def cluster_size(view: View, most: int, *, p: float, floor: float, restart_s: float) -> Wanted | None:
    """GPUs that a cluster should have for the jobs of a view, of all GPU kinds together, at most `most`.

    Sized by utility are jobs with a fit that may grow or shrink, and are not opportunistic: the cluster keeps its nodes
    while they are used well, or else has as many as bring utility near a half, at most twice the present ones, and
    enough for the minimum GPUs of every job. All other jobs count by their requests. None if there are no others.
    """
    asked = view.jobs.gpus
    total, said = 0, []
    for pool in pools(view, due=np.zeros(len(view.jobs), dtype=bool), restart_s=restart_s, include_staying=True):
        typical = _typical(view, pool)
        sized = pool.adapts & (pool.least < pool.limit) & (pool.weights > 0)
        taken = int(_charge(typical, asked[pool.rows])[~sized].sum())
        left = most - total
        if sized.any():
            gpus, why = _sized(typical.some(sized), int((pool.capacity > 0).sum()), taken, left, p, floor)
            said.append(why)
        else:
            gpus = min(taken, left)
        total += gpus
    return Wanted(total, "; ".join(said)) if said else None


def _typical(view: View, pool: Pool) -> Pool:
    """The jobs of a pool on one empty node like its largest one; nodes that are down count only if all are."""
    gpus = pool.capacity if pool.total else view.cluster.node_gpus[pool.nodes]
    at = int(gpus.argmax())
    return _of_nodes(replace(pool, spare=pool.spare[[at]], kept=np.ones(len(pool.rows))), 1, int(gpus[at]))


def _of_nodes(pool: Pool, nodes: int, per_node: int, taken: int = 0) -> Pool:
    """The jobs of a pool, none of which runs, on so many nodes alike, `taken` GPUs of which are used by others."""
    capacity = np.clip(nodes * per_node - taken - per_node * np.arange(nodes), 0, per_node)
    spare = np.repeat(pool.spare[:1], nodes, axis=0)
    held = np.zeros((len(pool.rows), nodes), dtype=np.int64)
    return replace(pool, nodes=np.arange(nodes), capacity=capacity, spare=spare, held=held)


def _charge(pool: Pool, gpus: IntArray) -> IntArray:
    """(J,): GPUs of nodes alike that a job with so many takes up; 0 for one that no such node can hold."""
    usable = np.floor(pool.per_node / pool.share + 1e-9)
    charge: IntArray = np.ceil(
        np.divide(gpus * pool.per_node, usable, out=np.zeros(len(gpus)), where=usable > 0) - 1e-9
    )
    return charge.astype(np.int64)


def _sized(pool: Pool, now: int, taken: int, most: int, p: float, floor: float) -> tuple[int, str]:
    """GPUs that a pool of `now` nodes should have for jobs that are all sized by utility, and why."""
    per_node = pool.per_node
    least, reach = (-(-(int(_charge(pool, gpus).sum()) + taken) // per_node) for gpus in (pool.least, pool.most))
    top = max(most // per_node, 1)
    least = min(max(least, 1), top)
    utility_of = _utility_of(pool, per_node, taken, max(min(top, reach, 2 * now), least, now), p, floor)
    nodes = resize(now, utility_of, least=least, most=max(min(top, reach), least))
    jobs = len(pool.rows)
    who = "1 job that adapts uses" if jobs == 1 else f"{jobs} jobs that adapt use"
    why = f"{who} {_nodes(now)} at {utility_of(now):.0%} of linear scaling" if now else ""
    if nodes != now:
        why = f"{why}, {nodes} at {utility_of(nodes):.0%}" if why else f"{_nodes(nodes)} for jobs that adapt"
    elif LOW <= utility_of(now) <= HIGH:
        why += f", which is within {LOW:.0%} to {HIGH:.0%}"
    else:
        why += ", and no number of nodes that they may have comes nearer to 50%"
    return min(nodes * per_node, most), why


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _utility_of(pool: Pool, per_node: int, taken: int, top: int, p: float, floor: float) -> Callable[[int], float]:
    """Utility of so many nodes, up to `top`, under the exact allocation; `taken` GPUs are used by others."""
    steps = Ladder.of(_of_nodes(pool, top, per_node))
    nodes, charge = steps.configs.T
    goodput = np.where(steps.gpus > 0, pool.goodput(nodes, steps.gpus), np.nan)
    goodput[:, 0] = 0.0
    alone = pool.goodput(-(-pool.least // per_node)[:, None], pool.least[:, None])[:, 0] / pool.least
    alone = np.where(alone > 0, alone, np.inf)

    @cache
    def of(count: int) -> float:
        room = count * per_node - taken
        if room <= 0:
            return 1.0  # the first GPU of a job is worth a whole one
        few: BoolArray = nodes <= count
        speedup = goodput[:, few] / _of_nodes(pool, count, per_node, taken).base[:, None]
        chosen = best_sizes(speedup, charge[few], room, p, floor=floor, weights=pool.weights)
        rows = np.arange(len(pool.rows))
        return utility(goodput[rows, chosen] / alone, steps.gpus[rows, chosen], room)

    return of
