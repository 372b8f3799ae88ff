"""Running jobs that a policy may not stop or move (`View.keeps`), and plans that respect them.

`place` respects them by itself. `broken` finds kept jobs that a plan would stop or move, and `keep_running` repairs
such a plan, for policies that name GPUs themselves: impossible parts are dropped, so a third-party policy can neither
discard the work of a job nor stop the cluster.

Grants of switch memory of a plan that was repaired for running jobs that may not be stopped or moved.

Jobs of such a plan may be elsewhere than their policy put them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.jit import kernel
from plait.core.network_grants import NetworkGrant, by_job
from plait.core.plan import Group, Groups, Plan, Reservation
from plait.core.policy import View

#: Why jobs run without aggregation, or wait for it, where others keep the memory that was granted to them.
HELD = "its memory of switches is that of running jobs that may not be stopped yet"


def keep_grants(view: View, planned: Plan, kept: Plan) -> Plan:
    """The plan `kept`, which `keep_running` made of `planned`, with grants that go with it.

    Jobs where the plan put them get what it grants. Jobs that stay elsewhere keep what they have, and others do not get
    aggregators of their regions: they keep what they have, too, or if they start, have none. Of these, jobs that
    require aggregation wait.
    """
    wanted, there, now = _gpus(planned.groups), _gpus(kept.groups), _gpus(view.running)
    new, old = by_job(planned.grants), by_job(view.grants)
    back = {job for job in there if there[job] != wanted.get(job)}

    def held(jobs: Collection[int]) -> list[NetworkGrant]:
        return [one for job in sorted(jobs) if there[job] == now.get(job) for one in old.get(job, ())]

    while True:  # in each round at least one more job goes back to what it has
        taken = held(back)
        late = {j for j in there.keys() - back if any(a.clashes(b) for a in new.get(j, ()) for b in taken)}
        if not late:
            break
        back |= late
    granted = [*taken, *(one for job in sorted(there.keys() - back) for one in new.get(job, ()))]
    have = {one.job for one in granted}
    without = {job for job in back if job in new and job not in have}
    notes = {job: note for job, note in planned.network_notes.items() if job in there and job not in have}
    plan = replace(kept, grants=tuple(granted), network_notes={**notes, **dict.fromkeys(sorted(without), HELD)})
    return _waiting(plan, {job for job in without if now.get(job) != there[job]} & _requiring(view, without))


def _gpus(groups: Groups) -> dict[int, tuple[int, ...]]:
    return {member.job: group.gpus for group in groups for member in group.members}


def _requiring(view: View, jobs: Collection[int]) -> set[int]:
    rows = {number: row for row, number in enumerate(view.jobs.number.tolist()) if number in jobs}
    return {number for number, row in rows.items() if view.jobs.spec(row).ina.required}


def _waiting(plan: Plan, jobs: set[int]) -> Plan:
    if not jobs:
        return plan
    left = [(group, tuple(member for member in group.members if member.job not in jobs)) for group in plan.groups]
    groups = [replace(group, members=members) for group, members in left if members]
    notes = {job: note for job, note in plan.network_notes.items() if job not in jobs}
    reasons = {**plan.reasons, **dict.fromkeys(sorted(jobs), HELD)}
    return replace(plan, groups=Groups.of(groups), reasons=reasons, network_notes=notes, settled=False)


#: Of a job that does not run: its GPUs, and whether it is a guest.
NOWHERE: tuple[tuple[int, ...], bool] = ((), False)
#: Reason of a job that should have joined others on a silent node.
SILENT = "its GPUs are on a node that has not reported lately"


@kernel
def elsewhere(
    rows: IntArray,
    group_of: IntArray,
    gpus: IntArray,
    first_gpu: IntArray,
    running_group: IntArray,
    now_gpus: IntArray,
    now_first: IntArray,
) -> IntArray:
    """The ones of these running `rows` that are not in a group on exactly their present GPUs.

    `group_of[row]` is the row's group in a plan, -1 if it is in none; group g has
    `gpus[first_gpu[g]:first_gpu[g + 1]]`.
    """
    out = np.empty(len(rows), dtype=np.int64)
    n = 0
    for row in rows:
        g, s = group_of[row], running_group[row]
        same = g >= 0 and first_gpu[g + 1] - first_gpu[g] == now_first[s + 1] - now_first[s]
        if same:
            for i in range(first_gpu[g + 1] - first_gpu[g]):
                if gpus[first_gpu[g] + i] != now_gpus[now_first[s] + i]:
                    same = False
                    break
        if not same:
            out[n] = row
            n += 1
    return out[:n]


def broken(view: View, plan: Plan) -> IntArray:
    """Rows of `view.jobs` that may not be stopped or moved now and that this plan stops or moves."""
    kept = view.keeps
    if not kept.any:
        return np.zeros(0, dtype=np.int64)
    groups, number = plan.groups, view.jobs.number
    group_of = np.full(len(number), -1, dtype=np.int64)
    row = np.minimum(np.searchsorted(number, groups.jobs), len(number) - 1)
    known = number[row] == groups.jobs
    group_of[row[known]] = groups.group_of_member()[known]
    return elsewhere(
        np.flatnonzero(kept.rows), group_of, groups.gpus, groups.first_gpu, view.jobs.running_group, view.running.gpus,
        view.running.first_gpu,
    )  # fmt: skip


def keep_running(view: View, plan: Plan) -> Plan:
    """The plan, or if it stops or moves kept jobs, one that does not.

    They stay where they are, with kept jobs only; groups planned on their GPUs wait, except hosts and guests that share
    these GPUs with them now. A staying job remains host or guest, as long as that goes with the others. No job joins
    jobs on a silent node. Grants of switch memory follow (`pinned_grants.keep_grants`).
    """
    kept = _kept_running(view, plan)
    return kept if kept is plan or not (plan.grants or view.grants) else keep_grants(view, plan, kept)


def _kept_running(view: View, plan: Plan) -> Plan:
    """`keep_running` for GPUs alone."""
    plan = _without_new_members(view, plan)
    moved = broken(view, plan)
    if not len(moved):
        return plan
    jobs, running = view.jobs, view.running
    kept, held = view.keeps, set(jobs.running_group[moved].tolist())
    numbers = {group: set(jobs.number[kept.rows & (jobs.running_group == group)].tolist()) for group in held}
    stay = [_only(running[group], numbers[group]) for group in sorted(held)]
    names, held = set().union(*numbers.values()), {gpu for group in stay for gpu in group.gpus}
    reasons = dict(plan.reasons)
    groups = stay + _beside_kept(view, plan, stay, names, held, set(jobs.number[kept.rows].tolist()))
    placed = {member.job for group in groups for member in group.members}
    for group in plan.groups:
        late = (m.job for m in group.members if m.job not in placed)
        reasons.update(dict.fromkeys(late, "its GPUs are held by running jobs that may not be stopped yet"))
    for job in names:
        reasons.pop(job, None)
    until = float(kept.until_s[moved].min())
    return replace(
        plan,
        groups=Groups.of(groups),
        reasons=reasons,
        valid_until_s=min(plan.valid_until_s, until),
        settled=False,
        reservations=_possible(plan.reservations, groups),
    )


def _beside_kept(
    view: View, plan: Plan, stay: Sequence[Group], names: set[int], held: set[int], kept: set[int]
) -> list[Group]:
    """Groups of the plan that are compatible with `stay`, without the jobs `names` of these, in the plan's order.

    `held`: the GPUs of `stay`; `kept`: jobs that may not be stopped. Kept jobs choose first, then jobs on their present
    GPUs, then new ones.
    """
    now = _gpus_now(view) if view.running.guest is not None else {}
    taken = _Taken(stay, view, plan)
    found: dict[int, Group] = {}
    waiting: list[tuple[int, int, Group]] = []
    for at, group in enumerate(plan.groups):
        members = tuple(member for member in group.members if member.job not in names)
        if members:
            stays = all(now.get(m.job, NOWHERE)[0] == group.gpus for m in members)
            rank = 0 if any(m.job in kept for m in members) else 1 if stays else 2
            waiting.append((rank, at, replace(group, members=members)))
    for rank, at, group in sorted(waiting, key=lambda one: one[:2]):
        gpus, guest = now.get(group.members[0].job, NOWHERE)
        stays = rank < 2 and gpus == group.gpus
        if not stays and held.intersection(group.gpus):
            continue
        for flag in dict.fromkeys((guest, group.guest)) if stays else (group.guest,):
            if taken.take(group.gpus, flag):
                found[at] = replace(group, guest=flag)
                break
    return [found[at] for at in sorted(found)]


class _Taken:
    """Who is on each GPU: at most one host, and no more guests than there are now or would be by the plan."""

    def __init__(self, stay: Sequence[Group], view: View, plan: Plan) -> None:
        self._hosts, self._guests = set[int](), Counter[int]()
        self._most = _guests_of(plan.groups) | _guests_of(view.running)
        for group in stay:
            self.take(group.gpus, group.guest)

    def take(self, gpus: Sequence[int], guest: bool) -> bool:
        """Use these GPUs, if that is possible; whether it is."""
        if guest:
            if any(self._guests[gpu] >= self._most[gpu] for gpu in gpus):
                return False
            self._guests.update(gpus)
        else:
            if not self._hosts.isdisjoint(gpus):
                return False
            self._hosts.update(gpus)
        return True


def _guests_of(groups: Iterable[Group]) -> Counter[int]:
    return Counter(gpu for group in groups if group.guest for gpu in group.gpus)


def _gpus_now(view: View) -> dict[int, tuple[tuple[int, ...], bool]]:
    return {member.job: (group.gpus, group.guest) for group in view.running for member in group.members}


def _possible(reservations: tuple[Reservation, ...], groups: list[Group]) -> tuple[Reservation, ...]:
    """Reservations without GPUs on which hosts run, and without jobs that run."""
    jobs = {member.job for group in groups for member in group.members}
    hosts = {gpu for group in groups if not group.guest for gpu in group.gpus}
    left = ((one.job, tuple(gpu for gpu in one.gpus if gpu not in hosts)) for one in reservations)
    return tuple(Reservation(job, rest) for job, rest in left if rest and job not in jobs)


def _without_new_members(view: View, plan: Plan) -> Plan:
    """The plan, in which groups on silent nodes have no other members than now."""
    away = view.on_silent_nodes
    if not away.any():
        return plan
    there = set(view.jobs.number[away].tolist())
    groups, reasons, cut = [], dict(plan.reasons), False
    for group in plan.groups:
        new = {member.job for member in group.members} - there
        if new and len(new) < len(group.members):
            reasons.update(dict.fromkeys(new, SILENT))
            group, cut = _only(group, there), True
        groups.append(group)
    if not cut:
        return plan
    return replace(plan, groups=Groups.of(groups), reasons=reasons, settled=False)


def _only(group: Group, jobs: set[int]) -> Group:
    return replace(group, members=tuple(member for member in group.members if member.job in jobs))


def kept_units(
    view: View, order: IntArray, companions: Mapping[int, Sequence[int]], kept: BoolArray, *, alone: bool = False
) -> tuple[IntArray, Mapping[int, Sequence[int]], IntArray]:
    """Units whose `kept` members all run on the same GPUs: (order, companions, rows taken out of others).

    Units in the form for `place`; `kept` is one flag a row of `view.jobs`. Kept jobs that share GPUs are in one unit,
    kept jobs on other GPUs in others. Where a unit has to be split for that, its kept members stay unchanged and the
    rest stays together. Units with kept jobs come first, then the rest in its order. `alone`: no job joins them.
    """
    running_group, rows = view.jobs.running_group, np.flatnonzero(kept)
    size = view.running.gpu_count()
    if not companions and len(np.unique(running_group[rows])) == len(rows):
        taken_out = rows[size[running_group[rows]] != view.jobs.gpus[rows]]
        return np.concatenate([rows, order[~kept[order]]]), companions, taken_out
    units = {row: (row, *companions.get(row, ())) for row in order.tolist()}
    unit_of = {row: lead for lead, members in units.items() for row in members}
    by_group: dict[int, list[int]] = {}
    for row in rows.tolist():
        by_group.setdefault(int(running_group[row]), []).append(row)
    first: list[int] = []  # keys of units that hold their GPUs
    taken_out = []
    for at, mine in by_group.items():
        leads = {unit_of.get(row, -1) for row in mine}
        lead = leads.pop()
        whole = lead >= 0 and not leads and int(view.jobs.gpus[lead]) == int(size[at])
        whole = whole and not (alone and len(units[lead]) > len(mine))
        if whole and sum(bool(kept[row]) for row in units[lead]) == len(mine):
            first.append(lead)
            continue
        for row in mine:
            if row in unit_of:
                units[unit_of[row]] = tuple(one for one in units[unit_of[row]] if one != row)
        units[-1 - at] = tuple(mine)  # no row has this number
        first.append(-1 - at)
        taken_out += mine
    ahead = set(first)
    leads_in_order = [units[key][0] for key in (*first, *(key for key in units if key not in ahead)) if units[key]]
    found = {members[0]: members[1:] for members in units.values() if len(members) > 1}
    return np.array(leads_in_order, dtype=np.int64), found, np.array(taken_out, dtype=np.int64)
