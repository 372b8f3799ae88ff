"""Smallest first, elastic jobs at their most GPUs while all fit so, else at their fewest: for tests of backends."""

from dataclasses import dataclass, field, replace

from plait.core.plan import Plan
from plait.core.policy import Policy, View, Wanted
from plait.policies.catalog import make_policy


@dataclass(frozen=True)
class Resizing:
    """A policy around a policy that knows one size of each job."""

    name: str = "resizing"
    inner: Policy = field(default_factory=lambda: make_policy("smallest-first"))

    def decide(self, view: View) -> Plan:
        jobs = view.jobs
        grown = int(jobs.max_gpus.sum()) <= view.cluster.gpus_up
        sized = jobs.subset(jobs.number, gpus=jobs.columns["max_gpus" if grown else "min_gpus"])
        return replace(self.inner.decide(replace(view, jobs=sized)), settled=False)

    def wanted_gpus(self, view: View, most: int) -> Wanted:
        """As many as one job can use, or as several need."""
        alone = len(view.jobs) == 1
        return Wanted(
            int((view.jobs.max_gpus if alone else view.jobs.min_gpus).sum()), "for one" if alone else "for all"
        )
