"""The one interface every scheduling policy has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from plait.core.cluster import Cluster
from plait.core.jobs import JobTable
from plait.core.plan import Groups, Plan


@dataclass(frozen=True, slots=True)
class View:
    """All that a policy may see: the time, the hardware, the active jobs, and what runs now.

    `jobs.slot` says which entry of `running` a job is in. A group may still name a member that has just
    ended; such a job is no longer in `jobs`.
    """

    now_s: float
    cluster: Cluster
    jobs: JobTable
    running: Groups


@runtime_checkable
class Policy(Protocol):
    """Decides who runs where. A pure function of the view: same view, same plan."""

    def decide(self, view: View) -> Plan:
        """The complete plan from now on."""
        ...
