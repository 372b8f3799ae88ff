"""Policies composed of parts: the order of jobs, preemption, grouping, placement.

srsf = Composed("srsf", order=by_remaining_service)
fifo = Composed("fifo", order=by_arrival, preempt=False, strict=True)

Orders: one key a job, smaller first.

Each is of a kind of `plait.core.jobs.keys`, where its expression is. An order may also be any function of a view.

Keys that precede a policy's own order: priority classes, and deadlines if the policy keeps them.

Guests: jobs on the same GPUs are one unit for placement, then a host and its guests in the plan. Which of them is the
host costs no restart. Start at `side_by_side`.

Batches: the set of waiting jobs that together fill the most free GPUs. Start at `by_batch`.

NetPack batches jobs and places them periodically. The choice of a batch by a knapsack over GPUs, and the value of a job
there, are our design.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait.core.jobs import JobTable, keys
from plait.core.jobs.keys import CLOCK_S, TICK_S
from plait.core.plan import NO_GROUPS, Gate, Groups, Plan
from plait.core.policy import DEADLINE, PRIORITY, View
from plait.placement import Scheme, place
from plait.placement.packing import How, Placement, allowed_kinds
from plait.policies.fair_share import levels

if TYPE_CHECKING:
    from plait.policies.interleave import Units


@dataclass(frozen=True, slots=True)
class OrderKey:
    """An order by a key of `kind` (`plait.core.jobs.keys`), of the unit that the kind has."""

    kind: int

    def __call__(self, view: View) -> FloatArray:
        jobs = view.jobs
        c, out = jobs.columns, np.empty(len(jobs))
        keys.fill_keys(
            self.kind, jobs.number, c["gpus"], c["iterations"], c["iterations_done"], c["iteration_s"], c["run_s"],
            c["attained_gpu_s"], out,
        )  # fmt: skip
        return out


#: First come, first served: numbers are in order of submission.
by_arrival = OrderKey(keys.ARRIVAL)
#: Shortest job first: whole solo run time, seconds.
by_duration = OrderKey(keys.DURATION)
#: Shortest remaining time first, seconds.
by_remaining_time = OrderKey(keys.REMAINING)
#: Shortest remaining service first: remaining time times GPUs (Tiresias; Muri-S), GPU-seconds.
by_remaining_service = OrderKey(keys.REMAINING_SERVICE)
#: Smallest gang first: GPUs of each job.
by_gpus = OrderKey(keys.SIZE)
#: Least attained service in one dimension: seconds on GPUs so far (Nuyens and Wierman 2008).
by_run_time = OrderKey(keys.RUN)
#: Least attained service in two dimensions: GPU-seconds so far (Tiresias, section 3; Muri-L).
by_attained_service = OrderKey(keys.ATTAINED)


#: A waiting job with a deadline takes the place of a running one only if its slack is smaller by this much, seconds.
#: Without it two jobs of equal slack would stop each other all the time: only the slack of the waiting one shrinks.
SWAP_S = 300.0

#: No job is short enough to go before others after a shorter wait than this one, seconds.
LEAST_WAIT_S = 600.0

#: Jobs that waited too long for their length go first on this part of the GPUs, at least the first of them. If all did,
#: a long queue would run in the order in which they became due, and short jobs wait behind long ones: on eight GPUs
#: recurring work took 8.8 h on average instead of 6.6 h.
DUE_SHARE = 0.5

#: Shares of past use are compared so often in a half-life, and after so many seconds at the earliest.
FAIR_LOOKS, LEAST_FAIR_S = 256, 60.0


@dataclass(frozen=True)
class Urgency:
    """Keys that precede the keys of an order, smaller first.

    Jobs of a higher `priority` go first. With `age_s` a job rises by one for every `age_s` seconds that it has spent
    waiting in all, so that it starves no longer than that per class. Ageing preempts no job: a job that runs keeps
    the class that it rose to, and yields only to jobs submitted in a higher one.

    With `deadlines`, inside a class, jobs that can still meet their deadline go by least slack (deadline less now less
    remaining time, seconds; an unknown remaining time counts as nothing left), before jobs that have no deadline or can
    no longer meet it.

    With `fair_s`, the half-life of past use, inside a class projects and then users go first that have used less than
    their share; see `plait.policies.fair_share`.
    """

    age_s: float = math.inf
    deadlines: bool = False
    fair_s: float = math.inf

    def __post_init__(self) -> None:
        if not (isinstance(self.age_s, (int, float)) and self.age_s > 0):
            raise InputError(f"age_s must be > 0 seconds, or inf for never, got {self.age_s}")
        if not isinstance(self.deadlines, bool):
            raise InputError(f"deadlines must be on or off, got {self.deadlines!r}")
        if not self.fair_s > 0:
            raise InputError(f"fair must be a half-life > 0 seconds, or inf for none, got {self.fair_s}")

    @property
    def uses(self) -> frozenset[str]:
        """The requests that a policy with these keys takes into account."""
        return frozenset({PRIORITY, DEADLINE} if self.deadlines else {PRIORITY})

    def __call__(self, jobs: JobTable) -> tuple[tuple[FloatArray | IntArray | BoolArray, ...], float]:
        """Keys of these jobs, none if all are alike, and the seconds until they change by themselves."""
        keys: tuple[FloatArray | IntArray | BoolArray, ...] = ()
        soonest = math.inf
        classes, priority = jobs.priority, np.zeros(0)
        if math.isfinite(self.age_s):
            waited = np.maximum(jobs.age_s - jobs.run_s, 0.0)
            steps = np.floor((waited + CLOCK_S) / self.age_s)
            priority = _risen(classes, steps, jobs.running)
            rises = ((steps + 1) * self.age_s - waited)[~jobs.running]
            soonest = max(float(rises.min(initial=math.inf)), TICK_S)
        elif classes.any():
            priority = classes
        if len(priority) and (priority != priority[0]).any():
            keys = (-priority,)
        if math.isfinite(self.fair_s) and len(jobs):
            of_fairness = [one for one in levels(jobs, self.fair_s) if (one != one[0]).any()]
            keys, soonest = (*keys, *of_fairness), min(soonest, max(self.fair_s / FAIR_LOOKS, LEAST_FAIR_S))
        if self.deadlines and not np.isnan(jobs.deadline_s).all():
            late, slack, changes_s = _by_slack(jobs)
            keys, soonest = (*keys, late, slack), min(soonest, changes_s)
        return keys, soonest


def _risen(classes: FloatArray, steps: FloatArray, running: BoolArray) -> FloatArray:
    """Classes after so many steps up; a running job keeps level with all that were not submitted above it."""
    priority = classes + steps
    if running.any() and not running.all():
        order = np.argsort(classes[~running], kind="stable")
        highest = np.maximum.accumulate(priority[~running][order])
        below = np.searchsorted(classes[~running][order], priority[running], side="right")
        level = np.concatenate([[-math.inf], highest])[below]
        priority[running] = np.maximum(priority[running], level)
    return priority


def _by_slack(jobs: JobTable) -> tuple[BoolArray, FloatArray, float]:
    """Who has no deadline to meet, the slack of the others, and the seconds until their order changes."""
    left = jobs.remaining_s
    slack = jobs.deadline_s - jobs.age_s - np.where(np.isnan(left), 0.0, left)
    can = slack >= -CLOCK_S  # NaN, no deadline, compares as false
    running = jobs.running
    key = np.where(can, slack - SWAP_S * running, 0.0)
    changes = slack[can & ~running]  # then such a job cannot meet its deadline any more
    held, waits = np.sort(key[can & running]), key[can & ~running]
    at = np.searchsorted(held, waits - CLOCK_S)
    overtakes = waits[at > 0] - held[at[at > 0] - 1]
    soonest = min(float(changes.min(initial=math.inf)), float(overtakes.min(initial=math.inf)))
    return ~can, key, max(soonest + CLOCK_S, TICK_S)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Keys of an order: smaller keys first, ties by submission.

    `keys` are compared from first to last. `levels` is each job's queue. `promoted` lists rows that start
    again from zero. `running_s` and `waiting_s`: seconds each job can run, or wait, before its place changes.
    `due` marks running jobs that would be promoted as soon as they had to wait: where a plan would stop some of them,
    `promoting(rows)` is the ranking with these promoted instead. `length_s`: seconds that each job takes alone in all,
    as far as the order knows.
    """

    keys: tuple[FloatArray | IntArray | BoolArray, ...]
    levels: IntArray | None = None
    promoted: IntArray = field(default_factory=lambda: NO_JOBS)
    running_s: FloatArray | None = None
    waiting_s: FloatArray | None = None
    due: BoolArray | None = None
    promoting: Callable[[IntArray], Ranking] | None = None
    length_s: FloatArray | None = None

    def changes_in_s(self, runs: BoolArray) -> float:
        """Seconds until the order changes by itself if exactly these rows run."""
        soonest = math.inf
        for seconds, rows in ((self.running_s, runs), (self.waiting_s, ~runs)):
            if seconds is not None and rows.any():
                soonest = min(soonest, float(seconds[rows].min()))
        return soonest


_PLAIN = Urgency()
Order = Callable[[View], "Ranking | FloatArray | IntArray"]
#: From the view and the plan without moves to the plan; the last makes plans of a view, with rows that give up their
#: GPUs as `move`.
Upgrade = Callable[[View, Plan, Callable[..., Plan]], Plan]
#: From the view, an order of rows, and which rows have waited too long for their length.
Grouping = Callable[[View, IntArray, BoolArray], "Units"]


@dataclass(frozen=True)
class Composed:
    """A policy made of parts.

    order          one key a job (smaller first), or a `Ranking`
    group          which jobs share GPUs (`Interleave`); None = every job alone
    place          a `Scheme` for all, or a function that chooses one for each job
    preempt        whether a waiting job may take the GPUs of a running one that ranks after it
    strict         whether the first job that does not fit blocks all after it (head of line)
    reserve_after_s  a job that waited this long becomes strict, so that narrow jobs cannot starve it; with `preempt` it
                   also goes before all others, and of such jobs the one that has waited the longest
    wait_lengths   a job that waited so many times its own length in all, and `LEAST_WAIT_S`, goes before the others of
                   its class, too, until it ends or turns out to be longer; for orders that state lengths. Such jobs
                   have half of the GPUs, and the first of them as many as it needs (`DUE_SHARE`)
    due_run_s      a job that started after `reserve_after_s` stays first until it ran this long, seconds
    quantum_s      how often to decide while jobs wait, for orders that change continuously
    min_run_s      a started job is not preempted before it ran this long
    urgency        priority classes, and deadlines if enabled, go before `order`
    upgrade        moves running groups to faster kinds of GPU that are free; None = they stay

    Raises `InputError` for a combination that cannot work.
    """

    name: str
    order: Order
    place: Scheme | Placement = Scheme.CONSOLIDATED
    group: Grouping | None = None
    preempt: bool = True
    strict: bool = False
    reserve_after_s: float = math.inf
    wait_lengths: float = math.inf
    due_run_s: float = 0.0
    quantum_s: float = math.inf
    min_run_s: float = 0.0
    seed: int = 0
    urgency: Urgency = _PLAIN
    upgrade: Upgrade | None = None

    def __post_init__(self) -> None:
        if not self.quantum_s > 0:
            raise InputError(f"policy {self.name}: quantum_s must be > 0 seconds, got {self.quantum_s}")
        if not self.wait_lengths > 0:
            raise InputError(f"policy {self.name}: wait_lengths must be > 0, got {self.wait_lengths}")
        if self.min_run_s < 0 or self.reserve_after_s < 0 or self.due_run_s < 0:
            raise InputError(f"policy {self.name}: min_run_s, reserve_after_s and due_run_s must be >= 0 seconds")
        if self.group is not None and (self.strict or not self.preempt):
            raise InputError(
                f"policy {self.name}: groups change as jobs come and go, so grouping goes with preemption and without "
                "strict; min_run_s and reserve_after_s keep jobs where they are and from starving"
            )
        if self.group is not None and self.tries_placements:
            raise InputError(f"policy {self.name}: placement=trial moves jobs that are alone; it goes with no groups")
        if self.strict and self.preempt:
            raise InputError(f"policy {self.name}: strict head of line makes sense only without preemption")

    @property
    def uses(self) -> frozenset[str]:
        """User requests that this policy takes into account."""
        return self.urgency.uses

    @property
    def memory_kept(self) -> float:
        """See `plait.core.policy.memory_kept`."""
        return float(getattr(self.group, "memory_kept", 1.0))

    @property
    def tries_placements(self) -> bool:
        """Whether its placement learns from the pace of jobs spread and packed."""
        return hasattr(self.place, "moves")

    @property
    def preempts(self) -> bool:
        """Whether running jobs give up their GPUs to jobs ahead of them, without a shortest run that delays it."""
        return self.preempt and not self.min_run_s > 0

    @property
    def learns(self) -> bool:
        """Whether decisions depend on what is reported of jobs that share GPUs."""
        return bool(getattr(self.group, "learn", False))

    @property
    def guests(self) -> bool:
        """Whether jobs may be guests of others."""
        return bool(getattr(self.group, "guests", 0))

    def ranked(self, view: View) -> IntArray:
        """The rows of the view in the order of the next decision, without placing any."""
        ranking = self.order(view)
        ranking = ranking if isinstance(ranking, Ranking) else Ranking((ranking,))
        return sort(self._keys(view, ranking)[0])

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

    def first_in_s(self, jobs: JobTable, length_s: FloatArray | None) -> FloatArray | None:
        """Seconds of waiting until each job is past the bound of `wait_lengths`, <= 0: it is; None without a bound."""
        if length_s is None or not math.isfinite(self.wait_lengths):
            return None
        # Time on hold, which mostly precedes the first start, is no wait: jobs behind others would go first at once.
        waited_s = np.where(jobs.starts > 0, jobs.age_s - jobs.run_s, jobs.waiting_s)
        left_s: FloatArray = np.maximum(self.wait_lengths * length_s, LEAST_WAIT_S) - waited_s
        return left_s

    def due(self, view: View, left_s: FloatArray) -> BoolArray:
        """Which jobs go first by `wait_lengths`: of those past the bound (`first_in_s`) the first on `DUE_SHARE`."""
        jobs = view.jobs
        due = _possible(view, left_s <= CLOCK_S)
        first = np.flatnonzero(due)[np.argsort(_due_at_s(view, left_s)[due], kind="stable")]
        before = np.cumsum(jobs.gpus[first]) - jobs.gpus[first]
        due[first[before >= DUE_SHARE * view.node_gpus.sum()]] = False
        return due

    def _keys(
        self, view: View, ranking: Ranking
    ) -> tuple[tuple[FloatArray | IntArray | BoolArray, ...], BoolArray, float]:
        """Keys of classes, of jobs that waited too long for their length, and of the order; these; until when it holds.

        The time is in seconds.
        """
        jobs = view.jobs
        urgent, changes_in_s = self.urgency(jobs)
        until = view.now_s + changes_in_s
        left_s = self.first_in_s(jobs, ranking.length_s)
        if left_s is None:
            return (*urgent, *ranking.keys), np.zeros(len(jobs), dtype=np.bool_), until
        due = self.due(view, left_s)
        since_s = np.where(due, _due_at_s(view, left_s), 0.0)
        until = min(until, _next(np.where(jobs.running, math.inf, view.now_s + left_s), view.now_s))
        return (*urgent, ~due, since_s, *ranking.keys), due, until

    def _follow(self, view: View, ranking: Ranking) -> Plan:
        """The plan for a ranking."""
        jobs = view.jobs
        keys, due, until = self._keys(view, ranking)
        until = min(until, view.now_s + self.quantum_s)
        strict: bool | BoolArray = self.strict
        if math.isfinite(self.reserve_after_s):
            due_s = jobs.pending_since_s + self.reserve_after_s
            ends = np.where(jobs.running, math.inf, due_s)
            strict = _possible(view, ends <= view.now_s + CLOCK_S)
            if self.due_run_s > 0:
                late = jobs.running & (due_s <= jobs.last_start_s + CLOCK_S)
                stays = np.where(late, jobs.last_start_s + self.due_run_s, -math.inf)
                strict |= stays > view.now_s + CLOCK_S
                ends = np.where(late, stays, ends)
            if self.preempt and strict.any():
                waits_since_s = np.where(jobs.running, -math.inf, jobs.pending_since_s)
                keys = (~strict, np.where(strict, waits_since_s, 0.0), *keys)
            until = min(until, _next(ends, view.now_s))
        if not self.preempt:
            keys = (~jobs.running, *keys)
        elif self.min_run_s > 0:
            ends = np.where(jobs.running, jobs.last_start_s + self.min_run_s, -math.inf)
            if self.group is None:
                keys = (ends <= view.now_s + CLOCK_S, *keys)
            else:
                view = view.keeping(ends)
            until = min(until, _next(ends, view.now_s))
        scheme = self.place if isinstance(self.place, Scheme) else self.place(view)
        if self.group is not None:
            plan = self._in_groups(view, sort(keys), scheme, ranking, due)
        else:
            move, tried_s = self.place.moves(view) if self.tries_placements else (None, math.inf)  # type: ignore[union-attr]
            plan = place(
                view,
                sort(keys),
                scheme=scheme,
                strict=strict,
                move=move,
                seed=self.seed,
                valid_until_s=tried_s,
                levels=ranking.levels,
                promoted=ranking.promoted,
            )
        until = min(until, plan.valid_until_s)
        if until == math.inf and ranking.running_s is None and ranking.levels is None:
            return plan
        until = self._valid_until(view, ranking, plan, until)
        settled = plan.settled and ranking.levels is None
        return Plan(plan.groups, plan.order, plan.levels, plan.promoted, plan.reasons, until, settled=settled)

    def _in_groups(self, view: View, order: IntArray, scheme: How, ranking: Ranking, due: BoolArray) -> Plan:
        """Largest units first, so that gangs find whole nodes; if a better unit loses by that, best first.

        Units that still find too few cores or too little memory next to the others are split.
        """
        assert self.group is not None
        seen, view = view, side_by_side(view)
        units = self.group(view, order, due)
        place_of = np.empty(len(order), dtype=np.int64)
        place_of[order] = np.arange(len(order))
        best_first = units.order[np.argsort(place_of[units.order])]
        plan = Plan(NO_GROUPS)
        put = partial(place, scheme=scheme, gate=units.gate, turns=units.turns, seed=self.seed)
        for attempt in (units.order, best_first):
            put = partial(put, order=attempt, companions=units.companions)
            plan = put(view)
            runs = set(plan.groups.jobs.tolist())
            placed = np.array(
                [job in runs for job in view.jobs.number[units.order[: units.count]].tolist()], dtype=bool
            )
            if placed.all():
                break
        numbers = view.jobs.number
        shut_out = [row for row in units.order[: units.count][~placed].tolist() if row in units.companions]
        if shut_out and view.jobs.columns["has_demands"][0]:  # else the leading job finds no room alone
            together = {lead: others for lead, others in units.companions.items() if lead not in shut_out}
            apart = [other for lead in shut_out for other in units.companions[lead]]
            rows = np.concatenate([units.order, np.array(apart, dtype=np.int64)])
            put = partial(put, order=rows[np.argsort(place_of[rows])], companions=together)
            plan = put(view)
        if self.upgrade is not None and len(view.cluster.kinds) > 1:
            plan = self.upgrade(view, plan, put)
        return replace(
            plan,
            groups=hosts_apart(seen, without_gates(view, plan.groups, units), units),
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


def side_by_side(view: View) -> View:
    """The same view in which all jobs that hold the same GPUs are one group; the view itself without guests.

    A guest on a part of a host's GPUs, or on those of several hosts, remains a group of its own. A host with guests has
    a gate, so that it does not look like jobs that hold nobody up.
    """
    running = view.running
    if running.guest is None:
        return view
    bounds = running.first_gpu.tolist()
    seen: dict[bytes, int] = {}
    firsts: list[int] = []
    unit = np.empty(len(running), dtype=np.int64)
    for g, (lo, hi) in enumerate(pairwise(bounds)):
        unit[g] = seen.setdefault(running.gpus[lo:hi].tobytes(), len(seen))
        if unit[g] == len(firsts):
            firsts.append(g)
    of_member = unit[running.group_of_member()]
    order = np.argsort(of_member, kind="stable")
    on = running[np.array(firsts, dtype=np.int64)]
    gate = np.where(np.bincount(unit) > 1, int(Gate.TOKENS), 0 if on.gate is None else on.gate)
    merged = Groups(
        running.jobs[order],
        on.gpus,
        on.first_gpu,
        np.concatenate([[0], np.cumsum(np.bincount(of_member, minlength=len(firsts)))]).astype(np.int64),
        gate,
        None if running.details is None else running.details[order],
    )
    jobs = copy(view.jobs)
    runs = jobs.running_group >= 0
    jobs.__dict__["running_group"] = np.where(runs, unit[jobs.running_group], -1)
    return replace(view, jobs=jobs, running=merged)


def without_gates(view: View, groups: Groups, units: Units) -> Groups:
    """The groups of a plan, those of the leads in `units.free` without a gate."""
    if not units.free or groups.gate is None:
        return groups
    free = np.isin(groups.jobs, view.jobs.number[list(units.free)])
    gate = np.where(np.bincount(groups.group_of_member()[free], minlength=len(groups)) > 0, 0, groups.gate)
    return Groups(groups.jobs, groups.gpus, groups.first_gpu, groups.first_job, gate, groups.details, groups.guest)


def hosts_apart(view: View, groups: Groups, units: Units) -> Groups:
    """The groups of a plan, those with a host among `units` as a host and its guests.

    Placement may leave jobs together that are no unit, because they may not be stopped: they stay host and guests if
    they are now. A unit that placement spreads over several nodes takes turns: ranks of a guest can pause together on
    one node only. `view` is the one of `View.running` with guests.
    """
    running, lends = view.running, set[int]()
    if running.guest is not None:
        lends = set(running.jobs[running.guest[running.group_of_member()]].tolist())
    if groups.single or not (units.hosts or lends):
        return groups
    number = view.jobs.number
    host: dict[frozenset[int], int | None] = {}
    for lead, others in units.companions.items():
        row = units.hosts.get(lead)
        host[frozenset(number[[lead, *others]].tolist())] = None if row is None else int(number[row])
    shared = np.flatnonzero(np.diff(groups.first_job) > 1).tolist()
    copies, leads = np.ones(len(groups), dtype=np.int64), dict[int, int]()
    for g in shared:
        members = groups.jobs[groups.first_job[g] : groups.first_job[g + 1]].tolist()
        together = frozenset(members)
        first = host.get(together)
        if together not in host and not lends.isdisjoint(members):
            first = next((job for job in members if job not in lends), members[0])
        nodes = view.cluster.gpu_node[groups.gpus[groups.first_gpu[g] : groups.first_gpu[g + 1]]]
        if first is not None and (nodes == nodes[0]).all():
            copies[g], leads[g] = len(members), first
    if not leads:
        return groups
    return _split(groups, copies, leads)


def _split(groups: Groups, copies: IntArray, hosts: dict[int, int]) -> Groups:
    """Each member of the groups of `hosts` as a group of its own; all but the job named there are guests."""
    index = np.repeat(np.arange(len(groups)), copies)
    within = np.arange(len(index)) - np.repeat(np.cumsum(copies) - copies, copies)
    each = groups[index]
    of_member, size = each.group_of_member(), np.diff(each.first_job)
    at = np.arange(len(each.jobs)) - np.repeat(each.first_job[:-1], size)
    lone = copies[index] > 1
    stays = ~lone[of_member] | (at == within[of_member])
    jobs = each.jobs[stays]
    first_job = np.concatenate([[0], np.cumsum(np.where(lone, 1, size))]).astype(np.int64)
    lead = np.array([hosts.get(g, -1) for g in index.tolist()], dtype=np.int64)
    guest = lone & (jobs[first_job[:-1]] != lead)
    return Groups(
        jobs,
        each.gpus,
        each.first_gpu,
        first_job,
        None if each.gate is None else np.where(lone, 0, each.gate),
        None if each.details is None else each.details[stays],
        guest,
    )


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


def _due_at_s(view: View, left_s: FloatArray) -> FloatArray:
    """When each job was past its bound, seconds from now: before it started, if it runs."""
    # If jobs that run went before the others, a stream of late narrow ones would let no late wide one start.
    at_s: FloatArray = np.where(view.jobs.running, view.jobs.last_start_s - view.now_s + left_s, left_s)
    return at_s


def _possible(view: View, late: BoolArray) -> BoolArray:
    """Which of these jobs need no more GPUs than are up; others would keep GPUs free until nodes come back."""
    if late.any():
        up = ((allowed_kinds(view)[:, None] >> view.cluster.node_kind) & 1) @ view.node_gpus
        late = late & (view.jobs.gpus <= up)
    return late


def _next(times: FloatArray, now_s: float) -> float:
    later = times[times > now_s + CLOCK_S]
    return float(later.min()) if len(later) else math.inf


#: A job that has waited so long is worth twice its GPUs.
AGE_S = 3600.0
#: Jobs of a batch at most, the oldest ones.
MOST_JOBS = 1000


def by_batch(view: View) -> IntArray:
    """0 for running jobs and jobs of the batch, 1 for the others.

    The batch is the best choice of waiting jobs for the GPUs that are free: a job is worth its GPUs times
    1 + waiting time / `AGE_S`, so that none waits because others always fit better.
    """
    jobs = view.jobs
    waiting = np.flatnonzero(~jobs.running)[:MOST_JOBS]
    free = int(view.node_gpus.sum()) - int(jobs.gpus[jobs.running].sum())
    value = jobs.gpus[waiting] * (1 + np.maximum(jobs.waiting_s[waiting], 0.0) / AGE_S)
    key = np.ones(len(jobs), dtype=np.int64)
    key[jobs.running] = 0
    key[waiting[knapsack(jobs.gpus[waiting], value, free)]] = 0
    return key


def knapsack(size: IntArray, value: FloatArray, capacity: int) -> BoolArray:
    """Which items give the largest sum of values with sizes of at most `capacity` in all; ties: the first ones.

    `size` >= 1 and `value` > 0, both shape (items,). Exact, by a table of items x capacity.

    >>> knapsack(np.array([3, 4, 5]), np.array([3.0, 4.0, 5.0]), 8).tolist()
    [True, False, True]
    """
    chosen = np.zeros(len(size), dtype=np.bool_)
    if capacity <= 0 or not len(size):
        return chosen
    best = np.zeros(capacity + 1)
    takes = np.zeros((len(size), capacity + 1), dtype=np.bool_)
    for i in reversed(range(len(size))):
        if size[i] <= capacity:
            with_it = best[: capacity + 1 - size[i]] + value[i]
            takes[i, size[i] :] = with_it >= best[size[i] :]
            best[size[i] :] = np.maximum(best[size[i] :], with_it)
    for i in range(len(size)):
        if takes[i, capacity]:
            chosen[i] = True
            capacity -= int(size[i])
    return chosen
