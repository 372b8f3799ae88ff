"""A policy that cannot decide, and one that changes sizes."""

from __future__ import annotations

from dataclasses import replace

from plait.core.plan import Plan
from plait.core.policy import View
from plait.policies.catalog import make_policy


class Broken:
    """Fails whenever it is asked."""

    name = "broken"

    def decide(self, view: View) -> Plan:
        """Never."""
        raise ZeroDivisionError("no plan")


class Breathing:
    """Jobs get their most GPUs while all fit so, else their fewest."""

    name = "breathing"

    def decide(self, view: View) -> Plan:
        """First come, first served, by these sizes."""
        jobs = view.jobs
        most = int(jobs.max_gpus.sum()) <= view.cluster.gpus_up
        sized = jobs.subset(jobs.number, gpus=jobs.columns["max_gpus" if most else "min_gpus"])
        return replace(make_policy("fifo-backfill").decide(replace(view, jobs=sized)), settled=False)
