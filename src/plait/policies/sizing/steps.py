"""Sizes that jobs of a pool may be given, what each is worth to them, and where they go; J jobs, N nodes.

`best_of_all` is the best of all sizes on real nodes: an integer program over sizes, its placement, and another one
where that costs. The first program does not name nodes and counts a size that stays as unmoved. Mostly a placement
is worth what that promised, and nothing is better. Else the second (`goodput.ilp.best_placement`) decides who moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.goodput.fitness import FLOOR, HARMONIC, after_restart, column_of, every_size, fitness, ladder
from plait.goodput.ilp import ExactPlacement, best_arrangement, best_placement, realised
from plait.placement.elastic import place_arranged, place_sizes
from plait.policies.sizing.kernels import first_served, gpus_on_steps, only_steps
from plait.policies.sizing.pools import Pool

#: Cost of finding the GPUs of a pool's jobs without the kernel, tenths of a millisecond.
WORK = 2


def patterns_apply(pool: Pool) -> bool:
    """Whether nodes are alike and no job takes more than its share of their cores and memory, as the program needs."""
    return pool.total > 0 and pool.alike and pool.plain


def guaranteed(pool: Pool, charge: IntArray) -> IntArray:
    """Rows of jobs that get GPUs in any case: due ones from the first on, as many as fit; then fresh ones.

    `charge` (J,) is the minimum that each takes of the GPUs; 0 for jobs that cannot be given any.
    """
    if not pool.some_first:
        return NO_JOBS
    if compiled(first_served, WORK):
        return run(first_served, pool.due, pool.fresh, charge, pool.total)
    able = charge > 0
    due = np.flatnonzero(pool.due & able)
    due = due[np.cumsum(charge[due]) <= pool.total]
    fresh = np.flatnonzero(pool.fresh & ~pool.due & able)
    fresh = fresh[np.cumsum(charge[fresh]) <= pool.total - charge[due].sum()]
    return np.concatenate([due, fresh])


def every_speedup(pool: Pool, *, only_used: bool = False) -> tuple[IntArray, FloatArray]:
    """All configurations (C, 2), nothing first, and the speed-ups of each job (J, C); NaN where it cannot run.

    `only_used` leaves out steps on which no job can run.
    """
    nodes = int((pool.capacity > 0).sum())
    configs = every_size(pool.per_node, nodes, int(pool.most.max(initial=1)))
    fits = (configs[:, 1] >= pool.least[:, None]) & (configs[:, 1] <= pool.most[:, None])
    if only_used:
        used = fits.any(axis=0) | (configs[:, 1] == 0)
        configs, fits = configs[used], fits[:, used]
    speedup = pool.goodput(configs[:, 0], np.where(fits, configs[:, 1], 0)) / pool.base[:, None]
    speedup[~fits] = np.nan
    speedup[:, 0] = 0.0
    return configs, speedup


class Ladder(NamedTuple):
    """The steps of a pool, and what each job would get on each of them; J jobs, C steps.

    A step is a charge, in GPUs; most jobs get as many. A job that takes more than its share of a node's cores or memory
    gets fewer, and a job that can only run in sizes between two steps is charged the upper one.
    """

    configs: IntArray
    """(C, 2): nodes and GPUs of a step, from none upwards."""
    gpus: IntArray
    """(J, C): GPUs that each job gets; 0 where it does not run."""
    running: IntArray
    """(J,): the step on which each job is now, -1 if on none."""
    held: IntArray
    """(J, N): what each running job is charged on each node now."""

    @classmethod
    def of(cls, pool: Pool) -> Ladder:
        """The steps that the jobs of a pool may take."""
        if pool.rigid and not pool.demanding and compiled(only_steps, WORK):
            configs = _configs(pool, int(pool.least.max(initial=1)))
            return cls(configs, *run(only_steps, pool.least, pool.held, pool.capacity, configs))
        configs = _configs(pool, int(np.ceil((pool.most * pool.share).max(initial=1.0) - 1e-9)))
        gpus = _only_size(pool, configs[:, 1]) if pool.plain and pool.rigid else _every_size(pool, configs)
        nodes = configs[:, 0]
        spread, held = pool.running
        same = (gpus == held[:, None]) & ((nodes > 1) == (spread > 1)[:, None]) & (gpus > 0)
        at = same.argmax(axis=1)
        running = np.where(same[np.arange(len(at)), at], at, -1)
        return cls(configs, gpus, running, _charged(pool, configs, running))

    def worth(self, pool: Pool) -> FloatArray:
        """(J, C): speed-ups, discounted where the job would have to restart; NaN where it cannot run."""
        speedup = pool.goodput(self.configs[:, 0], self.gpus) / pool.base[:, None]
        worth = after_restart(speedup, pool.kept, self.running)
        worth[self.gpus == 0] = np.nan
        worth[:, 0] = 0.0
        return worth

    @property
    def first(self) -> IntArray:
        """(J,): the lowest step on which each job runs; 0 if on none."""
        steps: IntArray = (self.gpus > 0).argmax(axis=1)
        return steps

    def must(self, pool: Pool) -> IntArray:
        """Rows of jobs that get GPUs in any case."""
        return guaranteed(pool, self.configs[self.first, 1])

    def placed(self, pool: Pool, column: IntArray) -> IntArray:
        """The allocation (J, N) in which every job is on its step; jobs that find no place have no GPUs."""
        sizes = self.configs[column, 1]
        mixed = np.full(len(sizes), not pool.alike)
        found = place_sizes(sizes, self.held, pool.capacity, spread=mixed)
        if pool.demanding or not compiled(gpus_on_steps, WORK):
            # One-node jobs go back where they are if they were moved for a charge, not for GPUs.
            matrix = self._gpus(pool, column, found.gpus)
            changed = (matrix != pool.held).any(axis=1)
            if not changed.any():
                return matrix
            free = pool.capacity - matrix.sum(axis=0)
            single = (pool.running[0] == 1) & ((matrix > 0).sum(axis=1) == 1) & ~pool.per_gpu.any(axis=1)
            moved = single & (matrix.sum(axis=1) == pool.running[1]) & changed
            for j in np.flatnonzero(moved).tolist():
                if (pool.held[j] <= free).all():
                    free += matrix[j] - pool.held[j]
                    matrix[j] = pool.held[j]
            return matrix
        wanted = self.gpus[np.arange(len(column)), column]
        stays: BoolArray = column == self.running
        return run(gpus_on_steps, found.gpus, self.held, pool.held, pool.capacity, stays, wanted)

    def _gpus(self, pool: Pool, column: IntArray, charges: IntArray) -> IntArray:
        """GPUs (J, N) of jobs on these steps, placed by `charges` (J, N)."""
        same: BoolArray = (charges == self.held).all(axis=1) & (column == self.running)
        out = np.where(same[:, None], pool.held, 0)
        placed = ~same & charges.any(axis=1)
        if not placed.any():
            return out
        wanted = self.gpus[np.arange(len(column)), column]
        exact = placed & (pool.share == 1.0) & (charges.sum(axis=1) == wanted)
        out[exact] = charges[exact]
        for j in np.flatnonzero(placed & ~exact).tolist():
            left = int(wanted[j])
            for node in np.argsort(-charges[j], kind="stable").tolist():
                out[j, node] = min(left, int(charges[j, node] / pool.share[j] + 1e-9))
                left -= int(out[j, node])
            if left:
                out[j] = 0
        return out


def _configs(pool: Pool, needed: int) -> IntArray:
    """(C, 2): nodes and GPUs of the steps up to one of the `needed` GPUs, or more."""
    per_node = pool.per_node
    needed = -(-needed // per_node) * per_node if needed > per_node else per_node
    return ladder(per_node, pool.total // per_node, needed)


def _only_size(pool: Pool, charge: IntArray) -> IntArray:
    """(J, C): as `_every_size`, for jobs that have one size each and are charged the GPUs that they have."""
    step = charge.searchsorted(pool.least)
    fits = (step < len(charge)).nonzero()[0]
    gpus = np.zeros((len(step), len(charge)), dtype=np.int64)
    gpus[fits, step[fits]] = pool.least[fits]
    return gpus


def _every_size(pool: Pool, configs: IntArray) -> IntArray:
    """(J, C): GPUs that each job gets on each step; 0 where it does not run."""
    nodes, charge = configs.T
    per_node, share = pool.per_node, pool.share
    within = np.floor(charge / share[:, None] + 1e-9).astype(np.int64)
    whole = nodes * np.floor(per_node / share + 1e-9).astype(np.int64)[:, None]
    gpus = np.where(charge >= per_node, whole, within)
    least, most = pool.least[:, None], _within_reach(pool, gpus)[:, None]
    fits = (gpus >= least) & (gpus <= most)
    between = ~fits.any(axis=1) & (gpus >= least).any(axis=1)
    first = (gpus >= least).argmax(axis=1)
    rows = np.flatnonzero(between)
    fits[rows, first[rows]] = True
    gpus = np.where(fits, np.minimum(gpus, most), 0)
    gpus[:, 0] = 0
    return gpus


def _within_reach(pool: Pool, gpus: IntArray) -> IntArray:
    """(J,): most GPUs of each job: the next step where the ladder has none up to twice what the job has explored.

    On nodes of 6 GPUs 6 come after 2: if the limit were twice the GPUs profiled, no job would ever reach 6.
    """
    above = np.where(gpus > pool.most[:, None], gpus, np.iinfo(np.int64).max).min(axis=1)
    below = np.where(gpus <= pool.most[:, None], gpus, 0).max(axis=1)
    stuck = (2 * below <= pool.most) & (above <= pool.limit) & (below >= pool.least)
    return np.where(stuck, above, pool.most)


def _charged(pool: Pool, configs: IntArray, running: IntArray) -> IntArray:
    """(J, N): what each job is charged where it runs; as much as its step is, if that can be."""
    asked = pool.held if pool.plain else np.ceil(pool.held * pool.share[:, None] - 1e-9).astype(np.int64)
    charge = np.minimum(asked, pool.capacity)
    due = configs[running, 1]
    single = pool.running[0] == 1
    for j in ((running >= 0) & (charge.sum(axis=1) != due)).nonzero()[0].tolist():
        at = pool.held[j] > 0
        charge[j, at] = np.minimum(due[j], pool.capacity[at]) if single[j] else pool.capacity[at]
    return charge


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
