"""AntMan without backfilling: opportunistic jobs, too, start in the order in which they came."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from plait.core.jobs import JobClass
from plait.core.plan import Plan
from plait.core.policy import JOB_CLASS, View
from plait.policies.antman import AntMan
from plait.policies.quotas import Quotas

#: Why an opportunistic job waits that would fit.
BEHIND = "waits behind an opportunistic job that came before it and does not fit yet"


@dataclass(frozen=True)
class InOrder:
    """AntMan, in which no opportunistic job starts while an earlier one waits.

    AntMan places these jobs in the order of submission, each where the earlier ones left room. So its plan without the
    jobs behind the first that waits is the plan of a strict queue.
    """

    policy: AntMan
    name: str = "antman, in order"
    guests: ClassVar[bool] = True
    uses: ClassVar[frozenset[str]] = frozenset({JOB_CLASS})

    def decide(self, view: View) -> Plan:
        """AntMan's plan without new guests that overtook another job."""
        plan, jobs = self.policy.decide(view), view.jobs
        if plan.groups.guest is None:
            return plan
        lowly = jobs.job_class == int(JobClass.OPPORTUNISTIC)
        waiting = jobs.number[lowly & ~np.isin(jobs.number, plan.groups.jobs)]
        if not len(waiting):
            return plan
        new = ~np.isin(plan.groups.jobs, jobs.number[jobs.running]) & (plan.groups.jobs > waiting.min())
        late = plan.groups.guest & new[plan.groups.first_job[:-1]]
        if not late.any():
            return plan
        names = plan.groups.jobs[plan.groups.first_job[:-1][late]].tolist()
        reasons = {**plan.reasons, **dict.fromkeys(names, BEHIND)}
        return replace(plan, groups=plan.groups[np.flatnonzero(~late)], reasons=reasons, settled=False)


def in_order(quota: str = "") -> InOrder:
    """The policy within quotas as text, for `make_policy`."""
    rules = Quotas.parse(quota).rules if quota else ()
    return InOrder(AntMan(order="fifo", backfill=False, crowding=False, guest_age_s=math.inf, quota=rules))
