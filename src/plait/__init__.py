"""plait: a multi-resource scheduler and simulator for deep-learning clusters.

    from plait import Plan, View, place

    class Smallest:
        def decide(self, view: View) -> Plan: ...

Everything public is named in `__all__` and loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plait.core.version import __version__

if TYPE_CHECKING:
    from plait.control.controller import Controller
    from plait.control.history import History
    from plait.control.metrics import RunResult, measure
    from plait.core.cluster import Cluster
    from plait.core.errors import InputError, PlaitError, PlanError, SimulationError, TraceError
    from plait.core.jobs import JobBatch, JobSpec, JobStatus, JobTable
    from plait.core.plan import Gate, Groups, Plan
    from plait.core.policy import Policy, View
    from plait.core.resources import Resource, StageProfile
    from plait.placement import Scheme, place
    from plait.policies.catalog import make_policy
    from plait.policies.compose import Composed, Ranking
    from plait.sim.run import simulate
    from plait.sim.studies.tune import fit_policy
    from plait.sim.world import World, make_world
    from plait.traces.formats.registry import read_trace
    from plait.traces.load import load_jobs

__all__ = [
    "Cluster",
    "Composed",
    "Controller",
    "Gate",
    "Groups",
    "History",
    "InputError",
    "JobBatch",
    "JobSpec",
    "JobStatus",
    "JobTable",
    "PlaitError",
    "Plan",
    "PlanError",
    "Policy",
    "Ranking",
    "Resource",
    "RunResult",
    "Scheme",
    "SimulationError",
    "StageProfile",
    "TraceError",
    "View",
    "World",
    "__version__",
    "fit_policy",
    "load_jobs",
    "make_policy",
    "make_world",
    "measure",
    "place",
    "read_trace",
    "simulate",
]

#: name -> module it lives in
_HOME = {
    **dict.fromkeys(("Controller",), "plait.control.controller"),
    **dict.fromkeys(("History",), "plait.control.history"),
    **dict.fromkeys(("RunResult", "measure"), "plait.control.metrics"),
    **dict.fromkeys(("Cluster",), "plait.core.cluster"),
    **dict.fromkeys(("InputError", "PlaitError", "PlanError", "SimulationError", "TraceError"), "plait.core.errors"),
    **dict.fromkeys(("JobBatch", "JobSpec", "JobStatus", "JobTable"), "plait.core.jobs"),
    **dict.fromkeys(("Gate", "Groups", "Plan"), "plait.core.plan"),
    **dict.fromkeys(("Policy", "View"), "plait.core.policy"),
    **dict.fromkeys(("Resource", "StageProfile"), "plait.core.resources"),
    **dict.fromkeys(("Scheme", "place"), "plait.placement"),
    **dict.fromkeys(("make_policy",), "plait.policies.catalog"),
    **dict.fromkeys(("Composed", "Ranking"), "plait.policies.compose"),
    **dict.fromkeys(("simulate",), "plait.sim.run"),
    **dict.fromkeys(("fit_policy",), "plait.sim.studies.tune"),
    **dict.fromkeys(("World", "make_world"), "plait.sim.world"),
    **dict.fromkeys(("read_trace",), "plait.traces.formats.registry"),
    **dict.fromkeys(("load_jobs",), "plait.traces.load"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
