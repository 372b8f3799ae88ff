"""GPU quotas of projects, as a policy around a policy.

A quota limits the GPUs that the *started* jobs of a project asked for, so jobs that share GPUs count in full. Within a
project jobs pass in order of submission, running ones first; the policy inside decides among those that passed.
Holding jobs back here, and not at submission, keeps everybody in the queue under the number they were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from plait.core.plan import Plan
from plait.core.policy import Policy, UsesRequests, View
from plait.core.words import counted


@dataclass(frozen=True)
class Quotas:
    """A policy that sees only jobs within their project's quota; the others wait, and are told why."""

    policy: Policy
    limits: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The name of the policy inside."""
        return str(getattr(self.policy, "name", "") or type(self.policy).__name__)

    @property
    def uses(self) -> frozenset[str]:
        """What the policy inside takes into account."""
        return self.policy.uses if isinstance(self.policy, UsesRequests) else frozenset()

    def decide(self, view: View) -> Plan:
        """The inner policy's plan for the jobs that may run."""
        held = self._held(view)
        if not held:
            return self.policy.decide(view)
        jobs = view.jobs
        keep = np.array([number not in held for number in jobs.number.tolist()], dtype=bool)
        table = jobs.subset(jobs.number[keep])
        plan = self.policy.decide(replace(view, jobs=table)) if len(table) else Plan.of([])
        # When a job leaves, one of those held back may start: the plan is never settled.
        return replace(plan, reasons={**plan.reasons, **held}, settled=False)

    def _held(self, view: View) -> Mapping[int, str]:
        jobs = view.jobs
        limits = dict(self.limits)
        used: dict[str, int] = {}
        full: set[str] = set()
        held: dict[int, str] = {}
        numbers, gpus, stays = jobs.number.tolist(), jobs.gpus.tolist(), view.keeps.rows.tolist()
        for row in np.lexsort((jobs.number, ~jobs.running)).tolist():
            project = jobs[row].spec.project
            limit = limits.get(project)
            if limit is None:
                continue
            taken = used.get(project, 0)
            if stays[row]:  # a quota is no reason to throw work away
                used[project] = taken + gpus[row]
            elif gpus[row] > limit:
                held[numbers[row]] = (
                    f"needs {counted(int(gpus[row]), 'GPU')}; the quota of project {project} is {limit}"
                )
            elif project in full or taken + gpus[row] > limit:
                full.add(project)
                held[numbers[row]] = (
                    f"the quota of project {project}, {counted(limit, 'GPU')}, is used up ({taken} in use)"
                )
            else:
                used[project] = taken + gpus[row]
        return held
