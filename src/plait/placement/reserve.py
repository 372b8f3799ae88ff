"""GPUs held for the first waiting job while the running jobs in its way may not be stopped.

A policy starts jobs behind the first of its queue on GPUs that are too few for the first. If these jobs may be stopped,
the first job takes the GPUs back. Otherwise later jobs take each GPU that becomes free, and the first job never starts.
`hold_back` therefore removes starts that would delay the first job from the plan of any policy:

    While a running job that may not be stopped is in the way of the first waiting job, the GPUs on which the first job
    can start soonest are held for it. A job behind it starts on them only if it is known to end before the first job
    can start, or can be stopped by then.

The first job then waits at most for the jobs that were in its way when it became first. A node that is silent for some
seconds may respond again, so GPUs stay held for a job that would start with GPUs of such a node.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jobs import Checkpoints, JobClass
from plait.core.plan import Group, Groups, Plan, Reservation
from plait.core.policy import View
from plait.core.words import counted
from plait.placement import kernels
from plait.placement.packing import allowed_kinds, demands
from plait.placement.pinned import keep_grants

#: Waiting jobs that are considered, from the first: earlier ones may wait for something other than GPUs.
CANDIDATES = 16
#: Jobs in the way that a reason names.
NAMED = 3
_SCHEME, _LENIENT = np.array([kernels.CONSOLIDATED], dtype=np.int64), np.zeros(1, dtype=np.bool_)


def hold_back(view: View, plan: Plan, preempts: bool) -> Plan:
    """The plan without starts that would keep its first waiting job from starting, and with a reservation for it.

    `preempts`: whether the policy stops running jobs for jobs ahead of them in `Plan.order`. Plans with reservations of
    their own or with guests by class, and plans for jobs that may all be stopped, are returned unchanged.
    """
    if plan.reservations or not _some_stay(view) or _by_class(view, plan.groups.guests.jobs):
        return plan
    planned = _Planned(view, plan, preempts)
    if not planned.queue or not (planned.free.any() or planned.starts.any()):
        return plan
    for row in planned.queue[:CANDIDATES]:
        hold = planned.hold_for(row)
        if hold is not None:
            return _applied(planned, hold)
    return plan


def without_late(view: View, plan: Plan) -> View | None:
    """The view without jobs that may not start on the GPUs held by `plan`, if a job behind them may; otherwise None.

    A job may that has a time limit and ends before the first waiting job can start.
    """
    reasons = plan.reasons
    if not isinstance(reasons, _HoldReasons):
        return None
    jobs, shut_out = view.jobs, np.isin(view.jobs.number, list(reasons.shut_out))
    ends_s = view.now_s + jobs.most_left_s + np.nan_to_num(jobs.restart_s, nan=0.0)
    late = shut_out & ~(np.isfinite(reasons.free_at_s) & (ends_s <= reasons.free_at_s))
    if not late.any() or not (shut_out & ~late & ~np.isnan(jobs.time_limit_s)).any():
        return None
    return replace(view, jobs=jobs.subset(jobs.number[~late]))


def refilled(plan: Plan, other: Plan) -> Plan:
    """The plan `other`, which was made `without_late` jobs of `plan`, with the order and the reasons of all."""
    reasons = ChainMap(cast("dict[int, str]", other.reasons), cast("dict[int, str]", plan.reasons))
    return replace(
        other, order=plan.order, levels=plan.levels, promoted=plan.promoted, reasons=reasons, settled=False,
        valid_until_s=min(plan.valid_until_s, other.valid_until_s),
    )  # fmt: skip


def _some_stay(view: View) -> bool:
    """Whether some job of the view, once it runs, may not be stopped."""
    columns = view.jobs.columns
    if view.rule.may_lose_work or "has_losses" not in columns or not columns["has_losses"][0]:
        return False
    return bool((view.jobs.checkpoints == int(Checkpoints.NEVER)).any())


def _by_class(view: View, guests: IntArray) -> bool:
    """Whether guests are opportunistic jobs: they wait for no other guest, and their policy reserves for guaranteed."""
    return bool((view.jobs.job_class[np.isin(view.jobs.number, guests)] != int(JobClass.GUARANTEED)).any())


@dataclass(frozen=True, slots=True)
class _Hold:
    """GPUs (cluster,) that the job in row `head` gets when the groups `behind` have left them, seconds.

    `silent`: nodes of these that have to respond first.
    """

    head: int
    gpus: BoolArray
    behind: IntArray
    at_s: float
    silent: IntArray


@dataclass(frozen=True)
class _Planned:
    """A plan as arrays: one value a row of `view.jobs`, a group of `groups`, or a member of one."""

    view: View
    plan: Plan
    preempts: bool

    @cached_property
    def groups(self) -> Groups:
        """The plan's groups; those that share GPUs, as guests do, are one: the GPUs are free when all have left."""
        if self.plan.groups.guest is None:
            return self.plan.groups
        parts: dict[int, Group] = {}  # by GPU
        for group in self.plan.groups:
            met = {id(parts[gpu]): parts[gpu] for gpu in group.gpus if gpu in parts}.values()
            members = tuple(member for one in (group, *met) for member in one.members)
            gpus = tuple(sorted({gpu for one in (group, *met) for gpu in one.gpus}))
            parts |= dict.fromkeys(gpus, Group(members, gpus))
        return Groups.of({id(part): part for part in parts.values()}.values())

    @cached_property
    def row(self) -> IntArray:
        """The row of each member; -1 for one that has just ended."""
        number, jobs = self.view.jobs.number, self.groups.jobs
        row = np.minimum(np.searchsorted(number, jobs), len(number) - 1)
        return np.where(number[row] == jobs, row, -1)

    @cached_property
    def group(self) -> IntArray:
        return self.groups.group_of_member()

    @cached_property
    def starts(self) -> BoolArray:
        return (self.row >= 0) & (self.view.jobs.running_group[self.row] < 0)

    @cached_property
    def rank(self) -> IntArray:
        """The place of each row in the queue; rows that the plan's order leaves out come last, and are no heads."""
        jobs = self.view.jobs
        n = len(jobs)
        rank = np.full(n, n, dtype=np.int64)
        if self.plan.order is None:
            rank[np.lexsort((jobs.number, -jobs.priority, jobs.running_group < 0))] = np.arange(n)
        else:
            order = self.plan.order[np.isin(self.plan.order, jobs.number)]
            rank[np.searchsorted(jobs.number, order)] = np.arange(len(order))
        return rank

    @cached_property
    def queue(self) -> list[int]:
        """Rows that wait under the plan, first to last."""
        waits = self.rank < len(self.rank)
        waits[self.row[self.row >= 0]] = False
        rows = np.flatnonzero(waits)
        queue: list[int] = rows[np.argsort(self.rank[rows], kind="stable")].tolist()
        return queue

    @cached_property
    def silent(self) -> BoolArray:
        """Whether each node is down because it is silent, and may respond again."""
        return np.array([node.id in self.view.silent for node in self.view.cluster.nodes], dtype=np.bool_)

    @cached_property
    def free(self) -> BoolArray:
        """GPUs of nodes that are up or silent and on which no job of the plan runs."""
        cluster = self.view.cluster
        free = (cluster.node_up | self.silent)[cluster.gpu_node]
        free[self.groups.gpus] = False
        return free

    @cached_property
    def stays(self) -> BoolArray:
        """Whether each row, once it runs, is not stopped for a job ahead of it."""
        plain = self.view.jobs.checkpoints == int(Checkpoints.NEVER)
        stays: BoolArray = plain | self.view.keeps.lasting | (not self.preempts)
        return stays

    @cached_property
    def stays_s(self) -> FloatArray:
        """Known seconds until each running row ends or may be stopped; infinite where unknown."""
        kept_s, left_s = np.maximum(self.view.keeps.until_s - self.view.now_s, 0.0), self.view.jobs.most_left_s
        return np.where(self.stays, left_s, np.minimum(left_s, kept_s))

    @cached_property
    def room(self) -> _Room:
        """The search for GPUs next to groups of the plan."""
        return _Room(self, self.view.cluster.node_up)

    @cached_property
    def room_if_heard(self) -> _Room:
        """Where they would if silent nodes responded."""
        return _Room(self, self.view.cluster.node_up | self.silent)

    def _of_groups(self, members: IntArray, values: FloatArray, start: float) -> FloatArray:
        """The maximum of `values`, one a member in `members`, over each group."""
        out = np.full(len(self.groups), start)
        np.maximum.at(out, self.group[members], values)
        return out

    def hold_for(self, head: int) -> _Hold | None:
        """The GPUs to hold for a waiting row; None if no staying job is in its way, or it could never start."""
        ahead = self.rank[self.row] < self.rank[head]
        kept = self.stays | self.view.keeps.rows
        members = np.flatnonzero((self.row >= 0) & (ahead | (~self.starts & kept[self.row])))
        rows = self.row[members]
        since_s = np.where(self.starts[members], self.view.now_s, self.view.jobs.last_start_s[rows])
        left_s = np.where(ahead[members], self.view.jobs.most_left_s[rows], self.stays_s[rows])
        ends_s = self._of_groups(members, left_s, -1.0)
        begun_s = self._of_groups(members, np.nan_to_num(since_s, nan=self.view.now_s), -math.inf)
        staying = self._of_groups(members, kept[rows].astype(np.float64), 0.0) > 0
        blockers = np.flatnonzero(ends_s >= 0.0)
        blockers = blockers[np.lexsort((begun_s[blockers], ends_s[blockers]))]
        gpus = self._soonest(blockers, head)
        if gpus is None:
            return None
        held = np.zeros(self.view.cluster.gpus, dtype=np.bool_)
        held[gpus] = True
        behind = blockers[self.touches(held)[blockers]]
        silent = np.unique(self.view.cluster.gpu_node[gpus])
        silent = silent[self.silent[silent]]
        if not staying[behind].any() and not len(silent):
            return None
        at_s = math.inf if len(silent) else self.view.now_s + float(ends_s[behind].max())
        return _Hold(head, held, behind, at_s, silent)

    def _soonest(self, blockers: IntArray, head: int) -> IntArray | None:
        """GPUs for a row once the least number of `blockers`, first to last, has left; None if it needs none or all.

        A job without others in its way waits for something else, so nothing is held for it.
        """
        if self.room.find(blockers, head) is not None:
            return None
        room, gpus = self.room, self.room.find(blockers[:0], head)
        if gpus is None and self.silent.any():  # nodes that are up are too few
            room = self.room_if_heard
            if (gpus := room.find(blockers, head)) is not None:
                return gpus
            gpus = room.find(blockers[:0], head)
        low, high = 0, len(blockers)  # it does not fit after `low` have left, it does after `high`
        while gpus is not None and high - low > 1:
            middle = (low + high) // 2
            found = room.find(blockers[middle:], head)
            if found is None:
                low = middle
            else:
                high, gpus = middle, found
        return gpus

    def touches(self, gpus: BoolArray) -> BoolArray:
        """Whether each group has one of these GPUs (cluster,)."""
        groups = self.groups
        if not len(groups):
            return np.zeros(0, dtype=np.bool_)
        out: BoolArray = np.logical_or.reduceat(gpus[groups.gpus], groups.first_gpu[:-1])
        return out

    def in_the_way_of(self, hold: _Hold) -> BoolArray:
        """Members that would start on held GPUs and neither end in time nor make room."""
        behind = self.rank[self.row] > self.rank[hold.head]
        late: BoolArray = self.starts & behind & self.touches(hold.gpus)[self.group]
        if not late.any():
            return late
        jobs, groups, rows = self.view.jobs, self.groups, self.row
        restart_s = np.nan_to_num(jobs.restart_s[rows], nan=0.0)
        alone = (np.diff(groups.first_job) == 1)[self.group] & (groups.gpu_count()[self.group] >= jobs.gpus[rows])
        ends_s = jobs.most_left_s[rows] + restart_s
        makes_room_s = np.where(self.stays[rows], math.inf, self.view.rule.runs_for * restart_s)
        in_time = alone & (self.view.now_s + ends_s <= hold.at_s) & math.isfinite(hold.at_s)
        in_time |= np.isfinite(makes_room_s) & (self.view.now_s + makes_room_s <= hold.at_s)
        late &= ~in_time
        return late


class _Room:
    """Finds GPUs next to groups of a plan, for jobs of the view or for whole groups."""

    def __init__(self, planned: _Planned, node_up: BoolArray) -> None:
        view, groups = planned.view, planned.groups
        self._cluster, self._jobs, self._node_up = view.cluster, view.jobs, node_up
        self._gpus, self._first = groups.gpus, groups.first_gpu
        per_gpu = demands(view.jobs)
        resources = view.cluster.node_spare.shape[1]
        self._per_gpu = per_gpu if len(per_gpu) == len(view.jobs) else np.zeros((len(view.jobs), resources))
        self._of_groups = np.zeros((len(groups), resources))
        known = planned.row >= 0
        np.add.at(self._of_groups, planned.group[known], self._per_gpu[planned.row[known]])
        kinds = allowed_kinds(view)
        self._kinds = kinds if len(kinds) == len(view.jobs) else np.full(len(view.jobs), kinds[0])

    def find(self, groups: IntArray, row: int) -> IntArray | None:
        """GPUs for the job in `row` next to these groups; GPUs of other groups are free. None if it does not fit."""
        jobs, up = self._jobs, int(self._cluster.node_gpus[self._node_up].sum())
        size = int(jobs.gpus[row] if jobs.gpus[row] <= up else jobs.min_gpus[row])
        return self._admit(groups, self._gpus, self._first, [(size, [row])])[0]

    def find_all(self, held: IntArray, asked: list[tuple[int, list[int]]]) -> list[IntArray | None]:
        """GPUs outside all groups and `held`, for several in this order: (how many, rows that share them)."""
        if not len(held):
            return self._admit(np.arange(len(self._first) - 1), self._gpus, self._first, asked)
        gpus = np.concatenate([self._gpus, held])
        return self._admit(np.arange(len(self._first)), gpus, np.append(self._first, len(gpus)), asked)

    def _admit(
        self, groups: IntArray, gpus: IntArray, first: IntArray, asked: list[tuple[int, list[int]]]
    ) -> list[IntArray | None]:
        """GPUs outside these `groups`, of which each has `gpus[first[g]:first[g + 1]]`, for all of `asked`."""
        cluster, n, more = self._cluster, len(first) - 1, len(asked)
        of_groups = np.vstack([self._of_groups, np.zeros((n - len(self._of_groups), self._per_gpu.shape[1]))])
        of_asked = np.array([self._per_gpu[rows].sum(axis=0) for _, rows in asked]).reshape(
            more, self._per_gpu.shape[1]
        )
        kinds = [int(np.bitwise_and.reduce(self._kinds[rows])) for _, rows in asked]
        _, positions, found, offsets = kernels.admit(
            np.concatenate([groups, np.arange(n, n + more)]),
            np.concatenate([np.diff(first), np.array([size for size, _ in asked], dtype=np.int64)]),
            np.concatenate([np.arange(n), np.full(more, -1)]),
            _SCHEME,
            _LENIENT,
            np.concatenate([np.full(n, cluster.any_kind[0]), np.array(kinds, dtype=np.int64)]),
            np.vstack([of_groups, of_asked]),
            gpus,
            first,
            0,
            cluster.cap_prefix,
            cluster.node_kind,
            cluster.node_rack,
            cluster.node_gpus,
            cluster.first_gpu,
            cluster.gpu_node,
            self._node_up,
            cluster.node_spare,
        )
        out: list[IntArray | None] = [None] * more
        for i, position in enumerate(positions.tolist()):
            if position >= len(groups):
                out[position - len(groups)] = found[offsets[i] : offsets[i + 1]]
        return out


def _applied(planned: _Planned, hold: _Hold) -> Plan:
    """The plan with what is held, and without what is in its way."""
    view, plan = planned.view, planned.plan
    late, new = planned.in_the_way_of(hold), plan
    if late.any():
        new = replace(plan, groups=_without(planned, hold, late))
    cluster = view.cluster
    held = hold.gpus & cluster.node_up[cluster.gpu_node]
    held[new.groups.gpus] = False
    gpus = tuple(np.flatnonzero(held).tolist())
    waits = ~np.isin(view.jobs.number, new.groups.jobs) & (planned.rank < len(planned.rank))
    shut_out = waits & (planned.rank > planned.rank[hold.head]) & (view.jobs.gpus <= len(gpus))
    shut_out[np.searchsorted(view.jobs.number, np.setdiff1d(planned.groups.jobs[late], new.groups.jobs))] = True
    new = replace(
        new,
        reasons=_HoldReasons(plan.reasons, planned, hold, shut_out),
        settled=False,
        reservations=(Reservation(int(view.jobs.number[hold.head]), gpus),) if gpus else (),
    )
    return keep_grants(view, plan, new) if late.any() and (plan.grants or view.grants) else new


def _without(planned: _Planned, hold: _Hold, late: BoolArray) -> Groups:
    """The plan's groups without members that are `late`.

    Running groups that would have been stopped for these continue, and whole groups, but no guests, start elsewhere if
    they fit there.
    """
    view, plan = planned.view, planned.plan
    names = set(planned.groups.jobs[late].tolist())
    kept, whole = [], []
    for group in plan.groups:
        left = tuple(member for member in group.members if member.job not in names)
        if left:
            kept.append(group if len(left) == len(group.members) else replace(group, members=left))
        elif not group.guest:
            whole.append(group)
    kept += _continued(view, kept, {gpu for group in whole for gpu in group.gpus})
    groups = Groups.of(kept)
    room = _Planned(view, replace(plan, groups=groups), planned.preempts).room
    rows = [[int(np.searchsorted(view.jobs.number, member.job)) for member in group.members] for group in whole]
    order = sorted(range(len(whole)), key=lambda i: int(planned.rank[rows[i]].min()))
    free = hold.gpus.copy()
    free[groups.gpus] = False
    elsewhere = room.find_all(np.flatnonzero(free), [(len(whole[i].gpus), rows[i]) for i in order])
    moved = [
        replace(whole[i], gpus=tuple(gpus.tolist()))
        for i, gpus in zip(order, elsewhere, strict=True)
        if gpus is not None
    ]
    return Groups.of([*kept, *moved]) if moved else groups


def _continued(view: View, kept: list[Group], free: set[int]) -> list[Group]:
    """Running groups that a plan stopped for GPUs that are `free` again."""
    planned = {member.job for group in kept for member in group.members}
    hosted = {gpu for group in kept for gpu in group.gpus}
    active = set(view.jobs.number[view.jobs.running_group >= 0].tolist())
    out = []
    for group in view.running:
        members = tuple(member for member in group.members if member.job in active)
        if not members or free.isdisjoint(group.gpus) or not hosted.isdisjoint(group.gpus):
            continue
        if planned.isdisjoint(member.job for member in members):
            out.append(replace(group, members=members))
    return out


class _HoldReasons(Mapping[int, str]):
    """Reasons of a plan, replaced for the first waiting job and for jobs that may not take its GPUs."""

    def __init__(self, base: Mapping[int, str], planned: _Planned, hold: _Hold, shut_out: BoolArray) -> None:
        """`shut_out`: one flag a row of the view."""
        self._base, self._planned, self._hold = base, planned, hold
        self._head = int(planned.view.jobs.number[hold.head])
        self.shut_out, self.free_at_s = set(planned.view.jobs.number[shut_out].tolist()), hold.at_s

    def __getitem__(self, job: int) -> str:
        if job != self._head and job not in self.shut_out:
            return self._base[job]
        jobs = self._planned.view.jobs
        needs = f"needs {counted(int(jobs.gpus[np.searchsorted(jobs.number, job)]), 'GPU')}"
        if job == self._head:
            return f"{needs}; {self._waits_until}"
        first = _name(self._planned.view, self._hold.head)
        return f"{needs}; free ones are held for {first}, which is ahead of it and {self._waits_until}"

    def __iter__(self) -> Iterator[int]:
        own = {self._head, *self.shut_out}
        yield from own
        yield from (job for job in self._base if job not in own)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _waits_until(self) -> str:
        """For which jobs the first waiting job waits."""
        planned = self._planned
        rows = planned.row[(planned.row >= 0) & np.isin(planned.group, self._hold.behind)]
        names = [_name(planned.view, row) for row in rows[:NAMED].tolist()]
        if len(rows) > NAMED:
            names.append(counted(len(rows) - NAMED, "other job"))
        nodes = [f"node {planned.view.cluster.nodes[i].id}" for i in self._hold.silent.tolist()]
        ends = f"{_listed(names)} {'has' if len(rows) == 1 else 'have'} ended or may be stopped" if names else ""
        responds = f"{_listed(nodes)} {'responds' if len(nodes) == 1 else 'respond'} again" if nodes else ""
        return f"waits until {', and '.join(filter(None, (ends, responds)))}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _name(view: View, row: int) -> str:
    """A job's id, or its number where the view has no specs."""
    try:
        return view.jobs.spec(row).id
    except LookupError:
        return f"job number {view.jobs.number[row]}"
