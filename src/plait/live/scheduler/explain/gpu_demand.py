"""GPUs that jobs want, by which backends request nodes and give them back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from plait.control.job_store import usable_gpus
from plait.core.jobs import Phase
from plait.core.policy import Autoscaling, Wanted
from plait.live.scheduler.context import Context
from plait.live.scheduler.options import ANY_SIZE
from plait.live.scheduler.records.attempts import JobRecord
from plait.policies.quotas import WithinQuotas


class GpuDemand:
    """GPUs for all jobs within quotas: as requested, or as valued by the policy.

    The policy values jobs once per decision, and again if the jobs differ. `failure` is the exception of its last call,
    None if it returned: the jobs' requests count after a failure.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._asked: tuple[int, tuple[int, ...]] | None = None
        self._said: Wanted | None = None

    def of(self, ctx: Context, jobs: Iterable[JobRecord]) -> dict[str, Any]:
        """GPUs for these jobs, decided `by` jobs or policy (then backends may empty nodes), and why."""
        passed = _within_quotas(ctx, jobs)
        active = (Phase.WAITING, Phase.RUNNING)
        known = tuple(sorted(job.number for job in passed if job.admitted and ctx.state.phase(job) in active))
        if self._asked != (ctx.state.decision_seq, known):
            self._asked = (ctx.state.decision_seq, known)
            try:
                self._said, self.failure = _worth(ctx, known), None
            except Exception as error:  # a policy's bug must not take the status away
                self._said, self.failure = None, error
        if self._said is None:
            asked = sum(_room(ctx, job) for job in passed)
            return {"gpus": asked, "by": "jobs", "why": "what jobs ask for"}
        others = sum(_room(ctx, job) for job in passed if not job.admitted)
        return {"gpus": self._said.gpus + others, "by": "policy", "why": self._said.why}


def _worth(ctx: Context, numbers: tuple[int, ...]) -> Wanted | None:
    """The policy's values of these jobs; None if it gives none. Raises any exception of the policy."""
    state = ctx.state
    policy: object = state.policy.policy if isinstance(state.policy, WithinQuotas) else state.policy
    if state.controller is None or not numbers or not isinstance(policy, Autoscaling):
        return None
    view = state.controller.view()
    jobs = view.jobs.subset(np.array(numbers))
    return policy.wanted_gpus(replace(view, jobs=jobs), ctx.options.most_gpus or ANY_SIZE)


def _within_quotas(ctx: Context, jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """The jobs that `WithinQuotas` admits."""
    state = ctx.state
    left = {name: float(_quota(project)) for name, project in state.projects.items()}
    if not left:
        return list(jobs)
    passed = []
    for job in sorted(jobs, key=lambda job: (state.phase(job) is not Phase.RUNNING, job.number)):
        gpus = _asked(job)
        if gpus <= left.get(job.project, math.inf):
            passed.append(job)
            left[job.project] = left.get(job.project, math.inf) - gpus
        elif gpus <= _quota(state.projects[job.project]):
            left[job.project] = 0  # jobs behind it wait for it
    return passed


def _room(ctx: Context, job: JobRecord) -> int:
    """GPUs of nodes like the present ones that a gang takes up: more than its own if nodes have too few CPUs for all.

    0 if it fits none of them, however many.
    """
    controller, request, gpus = ctx.state.controller, job.request, _asked(job)
    if controller is None or not job.admitted or not (request.get("cpus") or request.get("memory")):
        return gpus
    spec = controller.job_store.spec(job.number)
    shares = [
        usable_gpus(spec, there, cpus, memory_bytes) / there
        for _, there, cpus, memory_bytes in controller.cluster.shapes
        if there
    ]
    share = max(shares, default=1.0)
    return math.ceil(gpus / share - 1e-9) if share else 0


def _asked(job: JobRecord) -> int:
    return int(job.request.get("gpus", 1))


def _quota(project: Mapping[str, Any]) -> float:
    return math.inf if project["gpu_quota"] is None else float(project["gpu_quota"])
