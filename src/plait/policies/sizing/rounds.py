"""Policies that choose all sizes again in each round: rounds, due jobs, and what happens between rounds.

Until when may a policy skip its rounds?

A round that moved no job repeats unless a job becomes due, stops being protected, or overtakes another in service.
These times are known. Only the restart discount varies continuously; it rises towards 1, so the policy checks that it
would decide the same with a discount of 1 (`without_restart_costs`), or tests the coming rounds one by one (`at_time`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.errors import InputError
from plait.core.goodput import Estimate
from plait.core.jobs import Checkpoints, JobClass, JobTable
from plait.core.plan import NO_GROUPS, Plan
from plait.core.policy import JOB_CLASS, View
from plait.core.words import counted
from plait.goodput.execution_plans import Speed
from plait.goodput.fitness import FLOOR, HARMONIC, check, fitness
from plait.goodput.models import throughput_model
from plait.goodput.throughput import restart_factor
from plait.placement.packing import LazyReasons
from plait.policies.sizing.free_gpus import FreeGpus, groups_of, with_companions, with_staying
from plait.policies.sizing.kernels import CLOCK_S, first_change_s, in_line
from plait.policies.sizing.pools import Pool, none_adapts, pools, staying, with_shared_fits
from plait.policies.sizing.steps import Ladder

#: Cost of finding the next change without its kernel, tenths of a millisecond.
LINE_WORK = 3


def restart_cost_s(view: View, restart_s: float) -> FloatArray:
    """(jobs,): seconds that a restart of each job costs: as measured, else `restart_s`."""
    measured = view.jobs.goodput[:, Estimate.RESTART_S]
    return np.where(np.isnan(measured), restart_s, measured)


def protected_run_s(jobs: JobTable, patience_s: float) -> FloatArray:
    """(jobs,): seconds for which a job that is due runs before others that are due may stop it.

    That is `patience_s`. For jobs that would lose as much by that stop it grows with each start; otherwise they would
    never get past the same point.
    """
    lose = jobs.stop_loss_s >= patience_s
    if not lose.any():
        return np.full(len(jobs), patience_s)
    return patience_s * np.where(lose, np.maximum(jobs.starts, 1.0), 1.0)


def unchanged_until(view: View, due: BoolArray, guaranteed: BoolArray, patience_s: float, restart_s: float) -> float:
    """The first second at which time alone changes which jobs are due, fresh, stoppable, or first.

    Infinite if never.

    `due` and `guaranteed` are one flag a row of `view.jobs`: due now, and ever entitled to be. A job whose next
    checkpoint is not foreseen may be stopped from any time on: then it is now.
    """
    if not compiled(first_change_s, LINE_WORK):
        return _unchanged_until(view, due, guaranteed, patience_s, restart_s)
    jobs, kept, c = view.jobs, view.keeps, view.jobs.columns
    return run(
        first_change_s, jobs.number, np.argsort(jobs.attained_gpu_s, kind="stable"), view.now_s, float(patience_s),
        float(restart_s), due, guaranteed, jobs.stop_loss_s, kept.rows, kept.until_s, kept.losses, view.rule.finishes,
        c["phase"], c["checkpoints"], c["starts"], c["gpus"], c["run_s"], c["run_base_s"], c["wait_s"],
        c["pending_since_s"], c["last_start_s"], c["attained_gpu_s"], c["iterations"], c["iterations_done"],
        c["iteration_s"], c["goodput"],
    )  # fmt: skip


def _unchanged_until(view: View, due: BoolArray, guaranteed: BoolArray, patience_s: float, restart_s: float) -> float:
    """`unchanged_until` in NumPy."""
    jobs, now = view.jobs, view.now_s
    running, waits, first = jobs.running, ~jobs.running & guaranteed & ~due, [math.inf]
    if (due & running & (jobs.checkpoints == int(Checkpoints.PERIODIC))).any():
        return now  # what it would lose decides how long it is protected
    first += (now + protected_run_s(jobs, patience_s) - jobs.served_s)[due & running].tolist()
    first += (now + patience_s - jobs.waiting_s[waits]).tolist()
    again = waits & (jobs.served_s > 0)
    first += (now + np.maximum(patience_s, jobs.served_s[again]) - jobs.idled_s[again]).tolist()
    begun = jobs.last_start_s[running] + 2 * restart_cost_s(view, restart_s)[running]
    first += begun[begun > now].tolist()
    return min(*first, _kept_until(view), *(_overtakes_s(view, jobs.running & some) for some in (due, ~due)))


def _overtakes_s(view: View, rows: BoolArray) -> float:
    """When one of these running jobs has first had more service than another one that is ahead of it now."""
    attained, gpus = view.jobs.attained_gpu_s[rows], view.jobs.gpus[rows]
    order = np.argsort(attained, kind="stable")
    lead, closing = np.diff(attained[order]), -np.diff(gpus[order])
    return view.now_s + float((lead[closing > 0] / closing[closing > 0]).min(initial=math.inf))


def _kept_until(view: View) -> float:
    """When the first job becomes stoppable, or stops being so because it is about to end."""
    kept, jobs = view.keeps, view.jobs
    out = float(kept.until_s[kept.rows].min(initial=math.inf))
    if not kept.losses:
        return out
    if (jobs.running & (jobs.checkpoints == int(Checkpoints.PERIODIC))).any():
        return view.now_s
    if view.rule.finishes:
        loss = jobs.stop_loss_s
        spare = (jobs.iterations - jobs.iterations_done) * jobs.iteration_s - loss
        ends = jobs.running & ~kept.rows & (loss > 0) & (spare > 0)  # unknown (NaN) compares false
        out = min(out, view.now_s + float(spare[ends].min(initial=math.inf)))
    return out


def at_time(view: View, pool: Pool, at_s: float, restart_s: float) -> Pool:
    """The pool at time `at_s`, with the part of each speed-up that a restart of `restart_s` seconds leaves then."""
    jobs, rows = view.jobs, pool.rows
    restarts, ran = np.maximum(jobs.starts[rows] - 1, 0), jobs.starts[rows] > 0
    delta = restart_cost_s(view, restart_s)[rows]
    return pool.with_kept(restart_factor(at_s - jobs.submit_s[rows], restarts, delta, ran=ran))


def without_restart_costs(pool: Pool, chosen: BoolArray) -> Pool:
    """The pool in which a restart costs the jobs (J,) that were not chosen nothing: the most that waiting can bring."""
    return pool.with_kept(np.where(chosen, pool.kept, 1.0))


NO_MATES: Mapping[int, tuple[int, ...]] = MappingProxyType({})

#: A level is the round in which the plan was made, times this, plus the number of further rounds it is valid for.
ROUNDS = 1 << 20

#: Rounds that begin less than this before a change already see it, seconds, because sums of times are rounded.
MARGIN_S = 1e-3

#: How many rounds ahead are examined one by one.
LOOK = 240

#: Cost of finding the due jobs without the kernel, tenths of a millisecond.
WORK = 1

#: The last round of a plan that time alone does not change.
FOREVER = 1 << 62


class Chosen(NamedTuple):
    """Ladder steps (J,) and the GPUs found for them (J, N)."""

    ladder: Ladder
    steps: IntArray
    placed: IntArray


class Sizes(NamedTuple):
    """An allocation of one pool, GPUs (J, N), and how it was found: completes "sizes are ...".

    `chosen`: the chosen steps, if sizes come from a ladder; `matrix` may also give what they leave to waiting jobs.
    """

    matrix: IntArray
    method: str
    chosen: Chosen | None = None


class PoolAllocation(NamedTuple):
    """A pool and the allocation that is applied there.

    `mates`: rows of the view that share the GPUs of a row and are not in the pool; `turns`: one a row of the view.
    `found`: the allocation that would be applied if moving cost nothing, with free GPUs for waiting jobs.
    """

    pool: Pool
    sizes: Sizes
    mates: Mapping[int, tuple[int, ...]] = NO_MATES
    turns: IntArray | None = None
    found: Sizes | None = None


@dataclass(frozen=True, kw_only=True)
class InRounds:
    """Common part of policies that choose sizes; `allocate` is the specific one.

    1. Every `interval_s` seconds all sizes are chosen again. A restart is taken to cost a job `restart_s` seconds until
       it has measured one.
    2. Between rounds no job is moved. Waiting jobs take free GPUs at once: a new job needs one to be profiled. Running
       jobs grow in the next round only, as every change of size costs a restart.
    3. Opportunistic jobs have weight 0: they use GPUs that others leave, and give them back at once.
    4. A job (not of weight 0) is due when it has waited for `patience_s`, or when its waits since it was last due add
       up to that and to more than it ran. Due jobs get their minimum GPUs first, in the order of their waits, and keep
       at least these until they have run for `patience_s`; where a stop would lose all that work, n times as long at
       the n-th start, or longer jobs would never end.
    5. A job is stopped before it has run for twice `restart_s` only if a due job needs its GPUs.

    From 1 and 4: a job that the nodes which are up can hold starts within `patience_s` + `interval_s`, and later by one
    such period for each time that jobs which were due before it fill the cluster.

    `share_fits`: jobs use the best fit of their model, of all kept jobs. `throughput` names the model of throughput
    (`plait.goodput.models`).

    Rounds that change nothing are skipped: a plan is valid until the first round in which time alone may change it
    (`plait.policies.sizing.rounds`), where the policy knows (`would_repeat`).

    In which round a plan was made, and for which ones it stands, is kept in the level of its jobs, and that a job is
    due in its promotions, so the policy is a function of the view. Raises `InputError` for times that make no rounds.
    """

    interval_s: float = 60.0
    restart_s: float = 30.0
    patience_s: float = 3600.0
    share_fits: bool = False
    throughput: str = "pollux"
    name: str = "rounds"

    def __post_init__(self) -> None:
        self._require("interval_s", lambda value: math.isfinite(value) and value > 0, "a finite number of seconds > 0")
        self._require("patience_s", lambda value: value > 0, "seconds > 0, or inf")
        self.speed  # noqa: B018 - raises for an unknown name
        self._require("restart_s", lambda value: math.isfinite(value) and value >= 0, "a finite number of seconds >= 0")

    @property
    def uses(self) -> frozenset[str]:
        """Job classes: opportunistic jobs are never due and may wait without limit."""
        return frozenset({JOB_CLASS})

    @property
    def longest_wait_s(self) -> float:
        """Longest wait in seconds of a job that fits next to the due ones; `plait policy check` tests it."""
        return self.patience_s + self.interval_s

    def _require(self, name: str, good: Callable[[float], bool], wanted: str) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or (isinstance(value, int) and abs(value) > sys.float_info.max) or not good(value):
            raise InputError(f"policy {self.name}: {name} is {value!r}; it takes {wanted}")

    def allocate(self, pool: Pool, view: View) -> Sizes:
        """The allocation of a pool for this round; jobs it leaves out may still find free GPUs.

        A policy defines this, or `choose_all` where it looks at all pools at once.
        """
        raise NotImplementedError(f"policy {self.name} has to define allocate(pool, view)")

    def choose(self, pool: Pool, found: Sizes, kept: Sizes) -> Sizes:
        """The allocation to apply: what `allocate` found, or the present one with free GPUs for waiting jobs."""
        return found

    def would_repeat(self, pool: Pool, one: PoolAllocation, chosen: Chosen) -> bool:
        """Whether a round that moved no job of a pool, as in `one`, would do so again.

        `pool` is that of `one` at a later time: jobs all have one size, and only `kept` is another. `chosen` is what
        was found then.
        """
        return False

    @cached_property
    def speed(self) -> Speed:
        """The model of throughput that `throughput` names."""
        return throughput_model(self.throughput)

    def pools(self, view: View, due: BoolArray, kinds: IntArray | None = None) -> Iterator[Pool]:
        """The pools of a view, by the model of throughput of this policy."""
        return pools(view, due=due, restart_s=self.restart_s, kinds=kinds, speed=self.speed)

    def between(self, view: View, due: BoolArray) -> list[PoolAllocation]:
        """Running jobs stay; waiting jobs get free GPUs."""
        found = [(pool, FreeGpus(pool, pool.held).fill()) for pool in self.pools(view, due)]
        return [PoolAllocation(pool, Sizes(matrix, "kept until the next round")) for pool, matrix in found]

    def choose_all(self, view: View, due: BoolArray) -> list[PoolAllocation]:
        """Choose all sizes again, pool by pool, or keep them where `choose` returns so."""
        out = []
        for pool, kept, *_ in self.between(view, due):
            found = self.allocate(pool, view)
            filled = FreeGpus(pool, found.matrix).fill(found.matrix.sum(axis=1))
            found = found._replace(matrix=filled)
            sizes = self.choose(pool, found, kept)
            out.append(PoolAllocation(pool, sizes, found=found))
        return out

    def decide(self, view: View) -> Plan:
        """Choose all sizes once a round; otherwise give free GPUs to waiting jobs."""
        if not len(view.jobs):
            return Plan(NO_GROUPS)
        view = with_shared_fits(view) if self.share_fits else view
        jobs = view.jobs
        now = math.floor((view.now_s + CLOCK_S) / self.interval_s)
        # A plan is valid from the first instant of a round on, except for events at that instant.
        level = int(view.jobs.level.max())
        made, more = divmod(level, ROUNDS) if level >= 0 else (-1, 0)
        began = view.now_s <= now * self.interval_s + CLOCK_S
        fresh = not made <= now <= made + more or (made < now and began)
        guaranteed, due, late = self._line(view)
        if not fresh:
            late = np.zeros(len(jobs), dtype=bool)
        allocations = self.choose_all(view, due | late) if fresh else self.between(view, due)
        groups = groups_of(view, [(one.pool, one.sizes.matrix) for one in allocations])
        order = np.concatenate([np.flatnonzero(staying(view)), *(one.pool.rows for one in allocations)])
        fixed = all(one.pool.rigid for one in allocations)
        settled = fixed and len(groups) == len(jobs) and not view.keeps.any
        last = now
        if fresh and not settled and not late.any() and self._all_stay(view, allocations):
            last = self._last_round(view, allocations, now, due, guaranteed)
        until_s = math.inf if settled or last == FOREVER else (last + 1) * self.interval_s
        mates = {row: some for one in allocations for row, some in one.mates.items()}
        if mates:
            turns = np.sum([one.turns for one in allocations if one.turns is not None and one.mates], axis=0)
            groups = with_companions(view, groups, mates, turns)
            order = np.concatenate([order, *(np.array(some, dtype=np.int64) for some in mates.values())])
        return Plan(
            with_staying(view, groups),
            jobs.number[order],
            np.full(len(order), now * ROUNDS + min(last - now, ROUNDS - 1)),
            jobs.number[late],
            LazyReasons(
                partial(_reasons, view, allocations, (last + 1) * self.interval_s if last < FOREVER else math.inf)
            ),
            until_s,
            settled=settled,
        )

    def _line(self, view: View) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Flags of the view's rows: rows that may ever be due, rows that are, and rows that become due now."""
        jobs, c = view.jobs, view.jobs.columns
        if compiled(in_line, WORK):
            return run(
                in_line, jobs.number, view.now_s, float(self.patience_s), jobs.stop_loss_s, c["phase"], c["job_class"],
                c["weight"], c["promotions"], c["starts"], c["run_s"], c["run_base_s"], c["wait_s"],
                c["pending_since_s"],
            )  # fmt: skip
        guaranteed = (
            (jobs.job_class != int(JobClass.OPPORTUNISTIC)) & (jobs.weight > 0) & math.isfinite(self.patience_s)
        )
        due = guaranteed & (jobs.promotions > 0) & (jobs.served_s < protected_run_s(jobs, self.patience_s))
        long = jobs.waiting_s >= self.patience_s - CLOCK_S
        often = ~jobs.running & (jobs.idled_s >= np.maximum(self.patience_s, jobs.served_s) - CLOCK_S)
        return guaranteed, due, guaranteed & ~due & (long | often)

    def _all_stay(self, view: View, allocations: list[PoolAllocation]) -> bool:
        """Whether every job stays where it is, and no job has another possible size."""
        return none_adapts(view) and all(
            pool.rigid and (sizes.matrix == pool.held).all() for pool, sizes, *_ in allocations
        )

    def _last_round(
        self, view: View, allocations: list[PoolAllocation], now: int, due: BoolArray, guaranteed: BoolArray
    ) -> int:
        """The last round that would find what this one did, as far as that is looked for."""
        until_s = unchanged_until(view, due, guaranteed, self.patience_s, self.restart_s)
        last = FOREVER if until_s == math.inf else math.ceil((until_s - MARGIN_S) / self.interval_s) - 1
        for one in allocations:
            if last <= now or one.found is None or one.found.chosen is None:
                return now
            chosen = one.found.chosen
            if self.would_repeat(without_restart_costs(one.pool, chosen.steps > 0), one, chosen):
                continue
            for at in range(now + 1, min(last, now + LOOK) + 1):
                if not self.would_repeat(at_time(view, one.pool, at * self.interval_s, self.restart_s), one, chosen):
                    last = at - 1
                    break
            else:
                last = min(last, now + LOOK)
        return max(now, last)


@dataclass(frozen=True, kw_only=True)
class ByFitness(InRounds):
    """A policy whose aim is the mean of speed-ups of exponent `p`; `floor` is what a job without GPUs counts as.

    A new allocation is applied unless keeping the present one gives a larger mean once moves are charged (methods
    count a size that stays as unmoved).
    """

    p: float = HARMONIC
    floor: float = FLOOR

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("p", math.isfinite, "a finite number, e.g. -1 (fair) or 1 (efficient)")
        self._require("floor", lambda value: math.isfinite(value) and value >= 0, "a finite number >= 0")
        try:
            check(self.p, self.floor)
        except InputError as error:
            raise InputError(f"policy {self.name}: {error}") from None

    def choose(self, pool: Pool, found: Sizes, kept: Sizes) -> Sizes:
        """`found` if its fitness is higher than that of `kept`, else `kept`."""
        other = (found.matrix != kept.matrix).any()
        if other and self._merit(pool, found.matrix) > self._merit(pool, kept.matrix):
            return found
        return kept._replace(method=f"kept, as {found.method} is not better")

    def _merit(self, pool: Pool, matrix: IntArray, pace: FloatArray | float = 1.0) -> tuple[float, ...]:
        """Due and fresh jobs that have GPUs, the fitness at a `pace` relative to alone, and that of weight 0."""
        worth, first = pool.worth(matrix) * pace, pool.weights > 0
        if first.all():
            fit = [float(fitness(worth, self.p, floor=self.floor, weights=pool.weights)), 0.0]
        else:
            fit = [
                float(fitness(worth[some], self.p, floor=self.floor, weights=weights))
                for some, weights in ((first, pool.weights[first]), (~first, None))
            ]
        if not pool.some_first:
            return (0.0, 0.0, *fit)
        return (float(_in_line(pool, matrix)), float(matrix[pool.fresh].any(axis=1).sum()), *fit)


def _in_line(pool: Pool, matrix: IntArray) -> int:
    """Due jobs that have GPUs, up to the first that has none: due jobs do not overtake each other."""
    missing = np.flatnonzero(~matrix[pool.due].any(axis=1))
    return int(missing[0]) if len(missing) else int(pool.due.sum())


def _reasons(view: View, allocations: list[PoolAllocation], until_s: float) -> Mapping[int, str]:
    """Why each waiting job waits, and how sizes were chosen."""
    out: dict[int, str] = {}
    then = f"next chosen at {until_s:g} s" if until_s < math.inf else "chosen again when jobs or nodes come or go"
    for pool, (matrix, method, _), *_ in allocations:
        waits = np.flatnonzero(~matrix.any(axis=1))
        if not len(waits):
            continue
        left = pool.capacity - matrix.sum(axis=0)
        free = np.full(len(waits), left.sum())
        if view.cluster.reserved:  # GPUs of nodes that a job is barred from are not free for it
            free -= (pool.per_gpu[waits, 2:] @ (pool.spare[:, 2:] == 0).T > 0) @ left
        counts = list(zip(pool.least[waits].tolist(), free.tolist(), strict=True))
        why = {
            (gpus, idle): f"needs {counted(gpus, 'GPU')} together; of {pool.total} GPUs {idle} are free; sizes are "
            f"{method}, {then}"
            for gpus, idle in set(counts)
        }
        out.update(zip(view.jobs.number[pool.rows[waits]].tolist(), map(why.__getitem__, counts), strict=True))
    return out
