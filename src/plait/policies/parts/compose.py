"""Policies composed of parts: the order of jobs, preemption, grouping, placement.

srsf = Composed("srsf", order=by_remaining_service)
fifo = Composed("fifo", order=by_arrival, preempt=False, strict=True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait.core.plan import NO_GROUPS, Plan
from plait.core.policy import View
from plait.placement import Scheme, place
from plait.placement.packing import How, Placement
from plait.policies.interleave import Units
from plait.policies.parts.urgency import Urgency

#: Times closer than this are the same time, seconds.
CLOCK_S = 1e-6


@dataclass(frozen=True, slots=True)
class Ranking:
    """Keys of an order: smaller keys first, ties by submission.

    `keys` are compared from first to last. `levels` is each job's queue. `promoted` lists rows that start
    again from zero. `running_s` and `waiting_s`: seconds each job can run, or wait, before its place changes.
    `due` marks running jobs that would be promoted as soon as they had to wait: where a plan would stop some of them,
    `promoting(rows)` is the ranking with these promoted instead.
    """

    keys: tuple[FloatArray | IntArray | BoolArray, ...]
    levels: IntArray | None = None
    promoted: IntArray = field(default_factory=lambda: NO_JOBS)
    running_s: FloatArray | None = None
    waiting_s: FloatArray | None = None
    due: BoolArray | None = None
    promoting: Callable[[IntArray], Ranking] | None = None

    def changes_in_s(self, runs: BoolArray) -> float:
        """Seconds until the order changes by itself if exactly these rows run."""
        soonest = math.inf
        for seconds, rows in ((self.running_s, runs), (self.waiting_s, ~runs)):
            if seconds is not None and rows.any():
                soonest = min(soonest, float(seconds[rows].min()))
        return soonest


_PLAIN = Urgency()
Order = Callable[[View], "Ranking | FloatArray | IntArray"]
Grouping = Callable[[View, IntArray], Units]


@dataclass(frozen=True)
class Composed:
    """A policy made of parts.

    order          one key a job (smaller first), or a `Ranking`
    group          which jobs share GPUs (`Interleave`); None = every job alone
    place          a `Scheme` for all, or a function that chooses one for each job
    preempt        whether a waiting job may take the GPUs of a running one that ranks after it
    strict         whether the first job that does not fit blocks all after it (head of line)
    reserve_after_s  a job that waited this long becomes strict, so that narrow jobs cannot starve it
    quantum_s      how often to decide while jobs wait, for orders that change continuously
    min_run_s      a started job is not preempted before it ran this long
    urgency        priority classes, and deadlines if enabled, go before `order`

    Raises `InputError` for a combination that cannot work.
    """

    name: str
    order: Order
    place: Scheme | Placement = Scheme.CONSOLIDATED
    group: Grouping | None = None
    preempt: bool = True
    strict: bool = False
    reserve_after_s: float = math.inf
    quantum_s: float = math.inf
    min_run_s: float = 0.0
    seed: int = 0
    urgency: Urgency = _PLAIN

    def __post_init__(self) -> None:
        if not self.quantum_s > 0:
            raise InputError(f"policy {self.name}: quantum_s must be > 0 seconds, got {self.quantum_s}")
        if self.min_run_s < 0 or self.reserve_after_s < 0:
            raise InputError(f"policy {self.name}: min_run_s and reserve_after_s must be >= 0 seconds")
        if self.group is not None and (self.strict or not self.preempt):
            raise InputError(
                f"policy {self.name}: groups change as jobs come and go, so grouping goes with preemption and without "
                "strict; min_run_s and reserve_after_s keep jobs where they are and from starving"
            )
        if self.strict and self.preempt:
            raise InputError(f"policy {self.name}: strict head of line makes sense only without preemption")

    @property
    def uses(self) -> frozenset[str]:
        """User requests that this policy takes into account."""
        return self.urgency.uses

    @property
    def preempts(self) -> bool:
        """Whether running jobs give up their GPUs to jobs ahead of them, without a shortest run that delays it."""
        return self.preempt and not self.min_run_s > 0

    def ranked(self, view: View) -> IntArray:
        """The rows of the view in the order of the next decision, without placing any."""
        ranking = self.order(view)
        keys = ranking.keys if isinstance(ranking, Ranking) else (ranking,)
        return sort((*self.urgency(view.jobs)[0], *keys))

    def decide(self, view: View) -> Plan:
        """Rank, protect, place."""
        jobs = view.jobs
        ranking = self.order(view)
        if not isinstance(ranking, Ranking):
            ranking = Ranking((ranking,))
        plan = self._follow(view, ranking)
        while ranking.due is not None and ranking.promoting is not None and ranking.due.any():
            stopped = np.flatnonzero(ranking.due & ~np.isin(jobs.number, plan.groups.jobs))
            if not len(stopped):
                break
            ranking = ranking.promoting(stopped)  # else they would be back in the next moment
            plan = self._follow(view, ranking)
        return plan

    def _follow(self, view: View, ranking: Ranking) -> Plan:
        """The plan for a ranking."""
        jobs = view.jobs
        until = view.now_s + self.quantum_s
        urgent, changes_in_s = self.urgency(jobs)
        until = min(until, view.now_s + changes_in_s)
        keys: tuple[FloatArray | IntArray | BoolArray, ...] = (*urgent, *ranking.keys)
        if not self.preempt:
            keys = (~jobs.running, *keys)
        elif self.min_run_s > 0:
            ends = np.where(jobs.running, jobs.last_start_s + self.min_run_s, -math.inf)
            if self.group is None:
                keys = (ends <= view.now_s + CLOCK_S, *keys)
            else:
                view = view.keeping(ends)
            until = min(until, _next(ends, view.now_s))
        strict: bool | BoolArray = self.strict
        if math.isfinite(self.reserve_after_s):
            ends = np.where(jobs.running, math.inf, jobs.pending_since_s + self.reserve_after_s)
            strict = ends <= view.now_s + CLOCK_S
            if self.group is not None:  # units are placed in an order of their own: due jobs come first
                keys = (~strict, *keys)
            until = min(until, _next(ends, view.now_s))
        scheme = self.place if isinstance(self.place, Scheme) else self.place(view)
        if self.group is not None:
            plan = self._in_groups(view, sort(keys), scheme, ranking)
        else:
            plan = place(
                view,
                sort(keys),
                scheme=scheme,
                strict=strict,
                seed=self.seed,
                levels=ranking.levels,
                promoted=ranking.promoted,
            )
        until = min(until, plan.valid_until_s)
        if until == math.inf and ranking.running_s is None and ranking.levels is None:
            return plan
        until = self._valid_until(view, ranking, plan, until)
        settled = plan.settled and ranking.levels is None
        return Plan(plan.groups, plan.order, plan.levels, plan.promoted, plan.reasons, until, settled=settled)

    def _in_groups(self, view: View, order: IntArray, scheme: How, ranking: Ranking) -> Plan:
        """Largest units first, so that gangs find whole nodes; if a better unit loses by that, best first.

        Units that still find too few cores or too little memory next to the others are split.
        """
        assert self.group is not None
        units = self.group(view, order)
        place_of = np.empty(len(order), dtype=np.int64)
        place_of[order] = np.arange(len(order))
        best_first = units.order[np.argsort(place_of[units.order])]
        plan = Plan(NO_GROUPS)
        for attempt in (units.order, best_first):
            plan = place(
                view, attempt, scheme=scheme, companions=units.companions, gate=units.gate, turns=units.turns,
                seed=self.seed,
            )  # fmt: skip
            placed = np.isin(view.jobs.number[units.order[: units.count]], plan.groups.jobs)
            if placed.all():
                break
        numbers = view.jobs.number
        shut_out = [row for row in units.order[: units.count][~placed].tolist() if row in units.companions]
        if shut_out and view.jobs.columns["has_demands"][0]:  # else the leading job finds no room alone
            together = {lead: others for lead, others in units.companions.items() if lead not in shut_out}
            apart = [other for lead in shut_out for other in units.companions[lead]]
            rows = np.concatenate([units.order, np.array(apart, dtype=np.int64)])
            plan = place(
                view, rows[np.argsort(place_of[rows])], scheme=scheme, companions=together, gate=units.gate,
                turns=units.turns, seed=self.seed,
            )  # fmt: skip
        return replace(
            plan,
            order=numbers[order],
            levels=None if ranking.levels is None else ranking.levels[order],
            promoted=numbers[ranking.promoted] if len(ranking.promoted) else NO_JOBS,
            settled=plan.settled and units.settles,
            valid_until_s=min(plan.valid_until_s, units.until_s),
        )

    def _valid_until(self, view: View, ranking: Ranking, plan: Plan, until: float) -> float:
        """When to decide again, given the jobs that run under this plan."""
        all_alone = len(plan.groups) == len(view.jobs)  # each alone: groups would be split if there were room
        if all_alone and ranking.levels is None and (self.group is None or plan.settled):
            return plan.valid_until_s  # time cannot change that, except for jobs kept at another size
        if ranking.running_s is not None or ranking.waiting_s is not None:
            runs = np.isin(view.jobs.number, plan.groups.jobs, assume_unique=True)
            until = min(until, view.now_s + ranking.changes_in_s(runs))
        return until


@kernel
def has_ties(key: FloatArray | IntArray | BoolArray, order: IntArray) -> bool:
    """Whether neighbours in this order have equal keys (or keys that are no numbers)."""
    for i in range(1, len(order)):  # noqa: SIM110 - a loop compiles
        if not key[order[i]] > key[order[i - 1]]:
            return True
    return False


def sort(keys: tuple[FloatArray | IntArray | BoolArray, ...]) -> IntArray:
    """Rows by the first key, ties by the next ones, then by submission.

    >>> sort((np.array([1, 0, 1]), np.array([5.0, 9.0, 4.0]))).tolist()
    [1, 2, 0]
    """
    if len(keys) == 1:
        key = keys[0]
        order = key.argsort()  # several times faster than a stable sort, and the same unless keys are equal
        return np.argsort(key, kind="stable") if has_ties(key, order) else order
    return np.lexsort(keys[::-1])


def _next(times: FloatArray, now_s: float) -> float:
    later = times[times > now_s + CLOCK_S]
    return float(later.min()) if len(later) else math.inf
