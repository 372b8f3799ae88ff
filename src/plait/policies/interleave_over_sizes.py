"""Muri groups over Pollux sizes: more jobs than GPUs for them take turns on GPUs that goodput has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.policy import View
from plait.goodput.knapsack import best_sizes
from plait.grouping.interference import measured_interference
from plait.grouping.times import together_s
from plait.policies.interleave import Interleave, profiles
from plait.policies.pollux import Pollux
from plait.policies.sizing.free_gpus import FreeGpus
from plait.policies.sizing.pools import Pool, held_gpus
from plait.policies.sizing.rounds import PoolAllocation, Sizes
from plait.policies.sizing.steps import Ladder


@dataclass(frozen=True, kw_only=True)
class PolluxInterleaved(Pollux):
    """Pollux, but while jobs would wait, groups of equal size take turns on the same GPUs.

    Sizes are chosen as if there were twice, three times, ... as many GPUs, jobs of equal size are matched as Muri does
    (`share`), and each speed-up counts by the iteration time of its group. The allocation with the best mean, including
    the one without sharing, is applied. Stage times are the profiled ones of a job, whatever its size; jobs without a
    profile, and opportunistic ones, do not share.
    """

    share: Interleave = field(default_factory=Interleave)
    exact: bool | Literal["auto"] = False
    name: str = "pollux"

    def between(self, view: View, due: BoolArray) -> list[PoolAllocation]:
        """Keep groups as they are; waiting jobs take free GPUs."""
        mates, turns = _running(view)
        others = np.array([row for some in mates.values() for row in some], dtype=np.int64)
        out = []
        for pool in self.pools(view, due):
            pool = pool.some(~np.isin(pool.rows, others))
            mine = {row: some for row, some in mates.items() if row in pool.rows}
            sizes = Sizes(FreeGpus(pool, pool.held).fill(), "kept until the next round")
            out.append(PoolAllocation(pool, sizes, mine, turns))
        return out

    def choose_all(self, view: View, due: BoolArray) -> list[PoolAllocation]:
        """The best of sharing by one, two, three, ... jobs and of keeping the present allocation."""
        everywhere, kept = _held_by_all(view), self.between(view, due)
        out = []
        for pool in self.pools(view, due):
            whole = replace(pool, held=everywhere[np.ix_(pool.rows, pool.nodes)])
            old = [one for one in kept if np.isin(one.pool.rows, pool.rows).any()]
            found = self.allocate(pool, view)
            filled = FreeGpus(pool, found.matrix).fill(found.matrix.sum(axis=1))
            best = PoolAllocation(pool, found._replace(matrix=filled))
            merit = self._worth(view, whole, best)
            for jobs in range(2, self.share.max_jobs + 1):
                if not ((best.pool.weights > 0) & ~best.sizes.matrix.any(axis=1)).any():
                    break
                shared = self._shared(view, pool, jobs)
                if (value := self._worth(view, whole, shared)) > merit:
                    best, merit = shared, value
            same = f"kept, as {best.sizes.method} is not better"
            old = [one._replace(sizes=one.sizes._replace(method=same)) for one in old]
            out.append(next((one for one in old if self._worth(view, whole, one) >= merit), best))
        return out

    def _shared(self, view: View, pool: Pool, jobs: int) -> PoolAllocation:
        """Sizes for `jobs` times as many GPUs, and groups of them that fit on the real ones."""
        steps = Ladder.of(pool)
        weights = np.where(pool.weights > 0, pool.weights, 0.0)
        first = np.flatnonzero(weights > 0)
        column = np.zeros(len(pool.rows), dtype=np.int64)
        worth = steps.worth(pool)[first]
        column[first] = best_sizes(
            worth, steps.configs[:, 1], jobs * pool.total, self.p, floor=self.floor, weights=weights[first]
        )
        rows = pool.rows[column > 0]
        gpus = dict(zip(rows.tolist(), steps.gpus[np.arange(len(column)), column][column > 0].tolist(), strict=True))
        units = replace(self.share, sticky=False)(_sized(view, pool, gpus), rows)
        at = {int(row): j for j, row in enumerate(pool.rows.tolist())}
        mates: dict[int, tuple[int, ...]] = {}
        leads = []
        for row in units.order[: units.count].tolist():
            unit = (row, *units.companions.get(row, ()))
            lead = next((one for one in unit if pool.held[at[one]].sum() == gpus[row]), row)
            leads.append(at[lead])
            if len(unit) > 1:
                mates[lead] = tuple(one for one in unit if one != lead)
        chosen = np.zeros_like(column)
        chosen[leads] = column[leads]
        matrix = steps.placed(pool, chosen)
        others = np.array([row for some in mates.values() for row in some], dtype=np.int64)
        alone = pool.some(~np.isin(pool.rows, others))
        matrix = matrix[~np.isin(pool.rows, others)]
        filled = FreeGpus(alone, matrix).fill(matrix.sum(axis=1))
        placed = alone.rows[filled.any(axis=1)]
        mates = {row: some for row, some in mates.items() if row in placed}
        return PoolAllocation(
            alone, Sizes(filled, f"shared by up to {jobs} jobs (dynamic programming)"), mates, units.turns
        )

    def _worth(self, view: View, whole: Pool, found: PoolAllocation) -> tuple[float, ...]:
        """The merit of an allocation with its groups, over all jobs of the pool."""
        matrix = np.zeros_like(whole.held)
        at = {int(row): j for j, row in enumerate(whole.rows.tolist())}
        matrix[[at[row] for row in found.pool.rows.tolist()]] = found.sizes.matrix
        pace = np.ones(len(whole.rows))
        for row, some in found.mates.items():
            unit = [at[row], *(at[one] for one in some)]
            matrix[unit] = matrix[at[row]]
            pace[unit] = self._pace(view, [row, *some])
        return self._merit(whole, matrix, pace)

    def _pace(self, view: View, unit: list[int]) -> FloatArray:
        """Speed of each member relative to alone."""
        jobs = view.jobs
        alone_s = jobs.iteration_s[unit]
        group_s = together_s(jobs.stage_s[unit], alone_s) * measured_interference(len(unit), self.share.interference)
        costs = profiles(view, np.array(unit), self.share.max_jobs, self.share.learn).costs
        group_s *= 1.0 if costs is None else costs.factor(range(len(unit)))
        pace: FloatArray = alone_s / group_s
        return pace


def _running(view: View) -> tuple[dict[int, tuple[int, ...]], IntArray]:
    """Running groups: the row that counts as holding the GPUs -> the rows that share them; and the turn of each row."""
    turns = np.zeros(len(view.jobs), dtype=np.int64)
    mates: dict[int, tuple[int, ...]] = {}
    if view.running.single:
        return mates, turns
    by_group: dict[int, list[int]] = {}
    for row in np.flatnonzero(view.jobs.running_group >= 0).tolist():
        by_group.setdefault(int(view.jobs.running_group[row]), []).append(row)
    turn_of = {m.job: m.turn for group in by_group for m in view.running[group].members}
    for rows in by_group.values():
        turns[rows] = [turn_of[int(view.jobs.number[row])] for row in rows]
        if len(rows) > 1:
            mates[rows[0]] = tuple(rows[1:])
    return mates, turns


def _held_by_all(view: View) -> IntArray:
    """(jobs, nodes): GPUs of each job; jobs that share some all have them."""
    held = held_gpus(view)
    for row, some in _running(view)[0].items():
        held[list(some)] = held[row]
    return held


def _sized(view: View, pool: Pool, gpus: Mapping[int, int]) -> View:
    """The view with these rows in the given sizes, and only nodes of the pool."""
    jobs, cluster = view.jobs, view.cluster
    sized = {name: jobs.columns[name].copy() for name in ("cpus", "memory_bytes", "gpus")}
    numbers = jobs.number[list(gpus)]
    size = np.array(list(gpus.values()), dtype=np.int64)
    for name in ("cpus", "memory_bytes"):
        sized[name][numbers] *= size / sized["gpus"][numbers]
    sized["gpus"][numbers] = size
    up = np.isin(np.arange(len(cluster.nodes)), pool.nodes) & cluster.node_up
    return replace(
        view,
        cluster=replace(cluster, up=tuple(up.tolist())),
        jobs=jobs.subset(jobs.number, **sized),
    )
