"""Pollux: GPU counts by goodput (Qiao et al., OSDI 2021), chosen exactly instead of by a genetic search.

`cluster_size` is the number of nodes that a cluster should have for its jobs (Pollux, OSDI'21, on cloud auto-scaling):
the present number while the GPUs in use are worth 35 to 65 % of what they would be if every job scaled linearly, or
else the number at which they are worth about a half (`resize`). One job alone grows and shrinks by the same rule; the
paper's experiment with one has a band from a half to two thirds.

Utility is what the GPUs of a cluster are worth to jobs that adapt, as a part of what they were if jobs scaled linearly.
The published code counts nodes on which a job runs; here all GPUs that other jobs leave count, so that nodes that bring
no gain are given back too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.highs import HAVE_HIGHS, need_highs
from plait.core.policy import View, Wanted
from plait.goodput.execution_plans import Speed
from plait.goodput.fitness import after_restart, column_of, fitness
from plait.goodput.knapsack import best_of_only_sizes, best_sizes
from plait.goodput.throughput import throughput
from plait.policies.sizing.pools import Pool, pools
from plait.policies.sizing.rounds import ByFitness, Chosen, PoolAllocation, Sizes, without_restart_costs
from plait.policies.sizing.steps import MOST_NODES, Ladder, best_of_all, every_speedup, guaranteed, patterns_apply

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


def cluster_size(
    view: View, most: int, *, p: float, floor: float, restart_s: float, speed: Speed = throughput
) -> Wanted | None:
    """GPUs that a cluster should have for the jobs of a view, of all GPU kinds together, at most `most`.

    Sized by utility are jobs with a fit that may grow or shrink, and are not opportunistic: the cluster keeps its nodes
    while they are used well, or else has as many as bring utility near a half, at most twice the present ones, and
    enough for the minimum GPUs of every job. All other jobs count by their requests. None if there are no others.
    """
    asked = view.jobs.gpus
    total, said = 0, []
    nobody = np.zeros(len(view.jobs), dtype=bool)
    for pool in pools(view, due=nobody, restart_s=restart_s, include_staying=True, speed=speed):
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
        super().__post_init__()
        if self.exact not in (True, False, "auto"):
            raise InputError(f"policy {self.name}: exact is {self.exact!r}; it takes on, off or auto")
        if self.exact is True:
            need_highs(f"policy {self.name} with exact=on")
        if not isinstance(self.autoscale, bool):
            raise InputError(f"policy {self.name}: autoscale is {self.autoscale!r}; it takes on or off")

    def wanted_gpus(self, view: View, most: int) -> Wanted | None:
        """GPUs of a cluster that jobs use well, with `autoscale`; None while no job has measured itself."""
        if not self.autoscale:
            return None
        return cluster_size(view, most, p=self.p, floor=self.floor, restart_s=self.restart_s, speed=self.speed)

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
