"""How many GPUs jobs want, by which backends ask for nodes and give them back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from plait.control.books import usable_gpus
from plait.core.jobs import Phase
from plait.live.attempts import JobRecord

if TYPE_CHECKING:
    from plait.live.engine import Engine


def wanted_gpus(engine: Engine, jobs: Iterable[JobRecord]) -> int:
    """GPUs for all these jobs, but no more than `Quotas` lets pass."""
    state, wanted = engine.state, 0
    left = {name: float(_quota(project)) for name, project in state.projects.items()}
    for job in sorted(jobs, key=lambda job: (state.phase(job) is not Phase.RUNNING, job.number)) if left else jobs:
        gpus = int(job.request.get("gpus") or 1)
        if gpus <= left.get(job.project, math.inf):
            wanted += _room(engine, job, gpus)
            left[job.project] = left.get(job.project, math.inf) - gpus
        elif gpus <= _quota(state.projects[job.project]):
            left[job.project] = 0  # those behind it wait for it
    return wanted


def _room(engine: Engine, job: JobRecord, gpus: int) -> int:
    """GPUs of nodes like those there are that a gang takes up: more than its own if nodes have too few CPUs for all.

    0 if it fits none of them, however many.
    """
    controller, request = engine.state.controller, job.request
    if controller is None or not job.admitted or not (request.get("cpus") or request.get("memory")):
        return gpus
    spec = controller.books.spec(job.number)
    shares = [
        usable_gpus(spec, there, cpus, memory_bytes) / there
        for _, there, cpus, memory_bytes in controller.cluster.shapes
        if there
    ]
    share = max(shares, default=1.0)
    return math.ceil(gpus / share - 1e-9) if share else 0


def _quota(project: Mapping[str, Any]) -> float:
    return math.inf if project["gpu_quota"] is None else float(project["gpu_quota"])
