"""Smallest first, elastic jobs at their most GPUs while all fit so, else at their fewest: for `test_backends.py`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from plait.core.plan import Plan
from plait.core.policy import Policy, View
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
