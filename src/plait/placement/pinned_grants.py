"""Grants of switch memory of a plan that was repaired for running jobs that may not be stopped or moved.

`plait.placement.pinned.keep_running` makes such a plan, and jobs in it may be elsewhere than their policy put them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from plait.core.aggregation.grants import NetworkGrant, by_job
from plait.core.plan import Groups, Plan
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
    """The GPUs of each job."""
    return {member.job: group.gpus for group in groups for member in group.members}


def _requiring(view: View, jobs: Collection[int]) -> set[int]:
    """The ones of these jobs that run only with a grant."""
    rows = {number: row for row, number in enumerate(view.jobs.number.tolist()) if number in jobs}
    return {number for number, row in rows.items() if view.jobs.spec(row).ina.required}


def _waiting(plan: Plan, jobs: set[int]) -> Plan:
    """The plan without these jobs."""
    if not jobs:
        return plan
    left = [(group, tuple(member for member in group.members if member.job not in jobs)) for group in plan.groups]
    groups = [replace(group, members=members) for group, members in left if members]
    notes = {job: note for job, note in plan.network_notes.items() if job not in jobs}
    reasons = {**plan.reasons, **dict.fromkeys(sorted(jobs), HELD)}
    return replace(plan, groups=Groups.of(groups), reasons=reasons, network_notes=notes, settled=False)
