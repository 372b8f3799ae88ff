"""Pollux: GPU counts by goodput (Qiao et al., OSDI 2021), chosen exactly instead of by a genetic search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from plait.core.arrays import IntArray
from plait.core.errors import InputError, MissingExtra
from plait.core.policy import View, Wanted
from plait.goodput.allocate.fitness import after_restart, fitness
from plait.goodput.allocate.knapsack import best_of_only_sizes, best_sizes
from plait.goodput.allocate.ladder import column_of
from plait.goodput.allocate.solver import HAVE_HIGHS
from plait.policies.sizing.cluster_size import cluster_size
from plait.policies.sizing.exact import MOST_NODES, best_of_all
from plait.policies.sizing.pools import Pool
from plait.policies.sizing.rounds import ByFitness, Chosen, PoolAllocation, Sizes
from plait.policies.sizing.skippable_rounds import without_restart_costs
from plait.policies.sizing.steps import Ladder, every_speedup, guaranteed, patterns_apply

#: Up to how many GPUs, and how many pairs of job and size, `exact=auto` looks for the best of all sizes.
AUTO_GPUS, AUTO_PAIRS = 64, 4000

#: Gain in mean speed-up over the ladder that `auto` demands of the program, because its sizes change more often.
GAIN = 0.1

#: Relative tolerance of a bound for rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Pollux(ByFitness):
    """Sizes that make the mean of speed-ups largest, exactly.

    SPEEDUP is goodput relative to a fair share of the GPUs, and the mean one of exponent `p`: -1, the harmonic one,
    gains most where jobs have least. A size that changes is discounted by what a restart costs (Pollux, section 4.2).

    Either sizes are powers of two within a node and whole nodes, chosen by dynamic programming: all that fit in number
    find a place, and no two jobs that span nodes meet on one (Sia, section 3.4). Or they are chosen among all sizes and
    patterns of nodes, by an integer program (`exact=on`). `auto` solves the program too where it can matter and is
    quick, on up to 64 GPUs of equal nodes with more than two a job, and takes its sizes if they gain 10 % once placed:
    they change more often, which costs restarts. The reasons of waiting jobs name the method used.

    `autoscale`: whether backends whose nodes come and go request as many as adaptive jobs are worth.

    Each GPU kind is a cluster of its own here; `sia` chooses among kinds. Raises `InputError` for unknown words, and
    `MissingExtra` for `exact=on` without the solver.
    """

    exact: bool | Literal["auto"] = "auto"
    autoscale: bool = False
    name: str = "pollux"

    def __post_init__(self) -> None:
        """Check the options given by name."""
        super().__post_init__()
        if self.exact not in (True, False, "auto"):
            raise InputError(f"policy {self.name}: exact is {self.exact!r}; it takes on, off or auto")
        if self.exact is True and not HAVE_HIGHS:
            raise MissingExtra("highspy", "sim", f"policy {self.name} with exact=on")
        if not isinstance(self.autoscale, bool):
            raise InputError(f"policy {self.name}: autoscale is {self.autoscale!r}; it takes on or off")

    def wanted_gpus(self, view: View, most: int) -> Wanted | None:
        """GPUs of a cluster that jobs use well, with `autoscale`; None while no job has measured itself."""
        if not self.autoscale:
            return None
        return cluster_size(view, most, p=self.p, floor=self.floor, restart_s=self.restart_s)

    def allocate(self, pool: Pool, view: View) -> Sizes:
        """The best sizes, on the ladder or of all, placed close to the present allocation."""
        if not pool.total:
            return Sizes(np.zeros_like(pool.held), "none: no node is up")
        if not self._asks_program(pool):
            return self._best_of_ladder(pool)
        if self.exact != "auto":
            return self._best_of_all(pool) or self._best_of_ladder(pool)
        ladder = self._best_of_ladder(pool)
        merit = self._merit(pool, ladder.matrix)
        every = self._best_of_all(pool) if self._may_gain(pool, merit) else None
        if every is not None and self._gains(self._merit(pool, every.matrix), merit):
            return every
        said = f"(dynamic programming; an integer program over all sizes gains less than {GAIN:.0%})"
        return ladder._replace(method=f"the best of a ladder {said}")

    def _gains(self, new: tuple[float, ...], old: tuple[float, ...]) -> bool:
        """Whether the program's sizes serve more due jobs, or are better by the margin."""
        return new[:2] > old[:2] or (new[:2] == old[:2] and new[2] > (1 + GAIN) * old[2])

    def _may_gain(self, pool: Pool, merit: tuple[float, ...]) -> bool:
        """Whether the program's sizes can gain that much over this merit; mostly there is not as much to gain.

        The bound is the best mean of speed-ups if placement did not matter.
        """
        try:
            most = self._bound(pool)
        except InputError:
            return False  # nor is there anything for the program
        due, fresh, reached, _ = merit
        if pool.some_first:
            able = (np.cumsum(pool.least[pool.due]) <= pool.total).sum()
            if due < able or fresh < pool.fresh.sum():
                return True
        return most * (1 + ROUNDING) > (1 + GAIN) * reached

    def _bound(self, pool: Pool) -> float:
        """The largest mean of speed-ups, regardless of placement; raises `InputError` if no choice fits."""
        must = guaranteed(pool, pool.least)
        if pool.simple and pool.weights.all():
            worth = np.where(pool.running[1] > 0, 1.0, pool.kept)
            column = best_of_only_sizes(
                worth, np.where(pool.least <= pool.total, pool.least, 0), np.arange(pool.total + 1), pool.total, self.p,
                must=must, floor=self.floor, weights=pool.weights,
            )  # fmt: skip
            worth[column == 0] = 0.0
            return float(fitness(worth, self.p, floor=self.floor, weights=pool.weights))
        some = np.flatnonzero(pool.weights > 0)
        configs, speedup = every_speedup(pool, only_used=True)
        here = column_of(configs, *pool.running)[some]
        worth = after_restart(speedup[some], pool.kept[some], here)
        worth[np.isin(some, must), 0] = np.nan
        rising = np.argsort(configs[:, 1], kind="stable")
        weights, gpus = pool.weights[some], configs[rising, 1]
        column = best_sizes(worth[:, rising], gpus, pool.total, self.p, floor=self.floor, weights=weights)
        chosen = worth[np.arange(len(some)), rising[column]]
        return float(fitness(chosen, self.p, floor=self.floor, weights=weights))

    def would_repeat(self, pool: Pool, one: PoolAllocation, chosen: Chosen) -> bool:
        """Whether the same steps are the best, and neither a move nor the program gains more even without restarts."""
        found = one.found
        if found is None:
            return False
        restarts = (pool.kept != one.pool.kept).any()
        if restarts and (self._best_steps(pool, chosen.ladder) != chosen.steps).any():
            return False
        free = without_restart_costs(pool, np.zeros(len(pool.rows), dtype=bool))
        if (found.matrix != pool.held).any() and self._merit(free, found.matrix) > self._merit(free, pool.held):
            return False
        if not self._asks_program(pool):
            return True
        return not self._may_gain(free, self._merit(one.pool, chosen.placed))

    def _best_steps(self, pool: Pool, steps: Ladder) -> IntArray:
        """(J,): the step of each job."""
        if pool.simple and pool.weights.all():
            here = np.where(steps.running > 0, 1.0, pool.kept)
            return best_of_only_sizes(
                here, steps.first, steps.configs[:, 1], pool.total, self.p, must=steps.must(pool), floor=self.floor,
                weights=pool.weights,
            )  # fmt: skip
        worth = steps.worth(pool)
        worth[steps.must(pool), 0] = np.nan
        return best_sizes(worth, steps.configs[:, 1], pool.total, self.p, floor=self.floor, weights=pool.weights)

    def _best_of_ladder(self, pool: Pool) -> Sizes:
        steps = Ladder.of(pool)
        column = self._best_steps(pool, steps)
        placed = steps.placed(pool, column)
        return Sizes(placed, "the best of a ladder (dynamic programming)", Chosen(steps, column, placed))

    def _asks_program(self, pool: Pool) -> bool:
        """Whether an integer program solves this pool."""
        return patterns_apply(pool) and (self._worth_a_program(pool) if self.exact == "auto" else self.exact)

    def _worth_a_program(self, pool: Pool) -> bool:
        counted = max(int((pool.weights > 0).sum()), 1)
        small = pool.total <= AUTO_GPUS and counted * pool.total <= AUTO_PAIRS
        return HAVE_HIGHS and small and pool.total > 2 * counted

    def _best_of_all(self, pool: Pool) -> Sizes | None:
        """The best of every size and pattern of nodes, by an integer program; None if it cannot serve due jobs."""
        up = np.flatnonzero(pool.capacity > 0)
        some = np.flatnonzero(pool.weights > 0)
        at = np.ix_(some, up)
        configs, speedup = every_speedup(pool)
        speedup = speedup[some]
        speedup[np.isin(some, guaranteed(pool, pool.least)), 0] = np.nan
        try:
            found = best_of_all(
                speedup, configs, pool.held[at], pool.capacity[up], pool.kept[some], self.p, floor=self.floor,
                weights=pool.weights[some],
            )  # fmt: skip
        except InputError:
            return None
        matrix = np.zeros_like(pool.held)
        matrix[at] = found.gpus
        best = "the best" if found.optimal else f"the best after {MOST_NODES} branchings"
        return Sizes(matrix, f"{best} of all sizes (integer program)")
