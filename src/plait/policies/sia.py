"""Sia: sizes and GPU kinds in one integer program (Jayaram Subramanya et al., SOSP 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import MOST_POWER
from plait.core.highs import need_highs
from plait.core.policy import View
from plait.goodput.kinds import PENALTY, POWER, best_configurations, best_of_one_kind, relative
from plait.placement.packing import allowed_kinds
from plait.policies.sizing.free_gpus import FreeGpus
from plait.policies.sizing.pools import Pool, every_pool, none_adapts
from plait.policies.sizing.rounds import Chosen, InRounds, PoolAllocation, Sizes
from plait.policies.sizing.steps import MOST_NODES, Ladder


@dataclass(frozen=True, kw_only=True)
class Sia(InRounds):
    """Every job one configuration of nodes, GPUs and kind, so that the sum of goodputs to the power `p` is largest.

    Goodputs count relative to each job's smallest, and `penalty` is the cost of a job without GPUs (Sia, section 3.3).
    Sizes are the ladder of each kind. The speed of a job on another kind follows `speeds`: its own estimates on one
    kind are carried over in proportion (section 3.2); kinds without a speed count 1.

    Raises `InputError` for impossible values, `MissingExtra` without the solver.
    """

    p: float = POWER
    penalty: float = PENALTY
    speeds: Mapping[str, float] = field(default_factory=dict)
    name: str = "sia"

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = f"a number from {-MOST_POWER} to {MOST_POWER}, e.g. -0.5 (fair) or 0.5"
        self._require("p", lambda value: abs(value) <= MOST_POWER, bounds)
        self._require("penalty", lambda value: math.isfinite(value) and value >= 0, "a finite number >= 0")
        wrong = [f"{kind}={speed}" for kind, speed in self.speeds.items() if not 0 < speed < math.inf]
        if wrong:
            raise InputError(f"policy {self.name}: speeds of GPU kinds must be finite and > 0, got {', '.join(wrong)}")
        need_highs(f"policy {self.name}")

    def choose_all(self, view: View, due: BoolArray) -> list[PoolAllocation]:
        """Choose among all kinds at once, then place kind by kind."""
        if len(view.cluster.kinds) == 1 and none_adapts(view):
            found = list(self.pools(view, due))
            if all(pool.rigid for pool in found):
                return [self._of_one_kind(pool) for pool in found]
        kinds, step = self._chosen(view, due)
        out = []
        for pool in self.pools(view, due, kinds):
            matrix = Ladder.of(pool).placed(pool, step[pool.rows])
            out.append(
                PoolAllocation(pool, Sizes(_filled(pool, matrix), "the best of all GPU kinds (integer program)"))
            )
        return out

    def _of_one_kind(self, pool: Pool) -> PoolAllocation:
        """The jobs to run of jobs with one size each: a knapsack; ties keep as many running jobs as possible."""
        ladder = Ladder.of(pool)
        step = self._who_runs(pool, ladder)
        placed = ladder.placed(pool, step)
        chosen = Chosen(ladder, step, placed)
        sizes = Sizes(_filled(pool, placed), "the best that fit (dynamic programming)", chosen)
        return PoolAllocation(pool, sizes, found=sizes)

    def would_repeat(self, pool: Pool, one: PoolAllocation, chosen: Chosen) -> bool:
        """Whether the same jobs are to run."""
        same = (pool.kept == one.pool.kept).all()
        return bool(same or (self._who_runs(pool, chosen.ladder) == chosen.steps).all())

    def _who_runs(self, pool: Pool, ladder: Ladder) -> IntArray:
        """(J,): the step of each job that has one size, 0 for nothing."""
        stays = ladder.running > 0
        steps, worth = ladder.first, np.where(stays, 1.0, pool.kept)
        some = np.flatnonzero(pool.weights > 0)
        some = some[np.argsort(~stays[some], kind="stable")]
        out = np.zeros(len(pool.rows), dtype=np.int64)
        if len(some):
            out[some] = best_of_one_kind(
                worth[some], steps[some], ladder.configs[:, 1], pool.total, self.p, penalty=self.penalty,
                weights=pool.weights[some], stay=stays[some],
            )  # fmt: skip
        return out

    def _chosen(self, view: View, due: BoolArray) -> tuple[IntArray, IntArray]:
        """(jobs,), (jobs,): the kind of each job and its step on that kind's ladder, 0 for nothing."""
        every = list(every_pool(view, due=due, restart_s=self.restart_s, speed=self.speed))
        ladders = [Ladder.of(pool) for pool in every]
        steps = [np.arange(1, len(ladder.configs)) for ladder in ladders]
        kind = np.repeat(np.arange(len(every)), [len(some) for some in steps])
        charge = np.concatenate([ladder.configs[1:, 1] for ladder in ladders])
        running = np.concatenate(
            [ladder.running[:, None] == some for ladder, some in zip(ladders, steps, strict=True)], 1
        )
        allowed = (np.broadcast_to(allowed_kinds(view), len(view.jobs))[:, None] >> np.arange(len(every))) & 1 == 1
        goodput = np.concatenate([self._goodput(view, i, every[i], ladders[i]) for i in range(len(every))], axis=1)
        goodput = relative(np.where(allowed[:, kind], goodput, np.nan))
        goodput = np.where(running, goodput, goodput * every[0].kept[:, None])
        capacity = np.array([pool.total for pool in every], dtype=np.int64)
        weights = every[0].weights
        some = np.flatnonzero(weights > 0)
        column = np.full(len(view.jobs), -1, dtype=np.int64)
        if len(some):
            column[some] = best_configurations(
                goodput[some], charge, kind, capacity, self.p, penalty=self.penalty, weights=weights[some],
                most_nodes=MOST_NODES,
            )  # fmt: skip
        has = column >= 0
        of_job = np.full(len(column), -1, dtype=np.int64)
        of_job[has] = kind[column[has]]
        free = capacity - np.bincount(kind[column[has]], charge[column[has]], len(every)).astype(np.int64)
        _spread_out(of_job, allowed, free, every)
        chosen = np.zeros(len(column), dtype=np.int64)
        chosen[has] = np.concatenate(steps)[column[has]]
        return of_job, chosen

    def _goodput(self, view: View, kind: int, pool: Pool, ladder: Ladder) -> FloatArray:
        """(J, C - 1): goodput on each step but the first; NaN where a job cannot run."""
        gpus = ladder.gpus[:, 1:]
        speed = self.speeds.get(view.cluster.kinds[kind], 1.0)
        return np.where(gpus > 0, pool.goodput(ladder.configs[1:, 0], gpus) * speed, np.nan)


def _filled(pool: Pool, matrix: IntArray) -> IntArray:
    """The allocation with free GPUs for waiting jobs; the present one if no job gains by moving."""
    filled = FreeGpus(pool, matrix).fill(matrix.sum(axis=1))
    nodes, gpus = pool.running
    same = (filled.sum(axis=1) == gpus).all() and ((filled > 0).sum(axis=1) == nodes).all()
    return pool.held if same else filled


def _spread_out(kind: IntArray, allowed: BoolArray, free: IntArray, every: list[Pool]) -> None:
    """Send jobs without a kind (-1) to where they run, or else to where most GPUs are free, to use what is left."""
    for j in np.flatnonzero(kind < 0).tolist():
        may = np.flatnonzero(allowed[j]) if allowed[j].any() else np.arange(len(every))
        here = [i for i in may.tolist() if every[i].held[j].any()]
        kind[j] = here[0] if here else int(may[free[may].argmax()])
        free[kind[j]] -= every[0].least[j]
