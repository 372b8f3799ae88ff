"""Whether a submission can be taken in, and the note of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.control.job_store import refusal
from plait.core.errors import InputError, suggest
from plait.core.jobs import JobClass, JobSpec
from plait.core.words import counted
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.notes import Requested
from plait.policies.quotas import AppliesQuotas


def take_in(
    ctx: Context, requests: Sequence[Mapping[str, Any]], owner: str, key: str | None, now_s: float
) -> Requested:
    """The note of new jobs; raises `InputError` for an invalid one. `key`: see `Submissions`."""
    first = ctx.state.numbers
    for i, request in enumerate(requests):
        if not request.get("command"):
            raise InputError("command is empty; give the program and its arguments")
        project = project_of(request)
        spec = ctx.spec(first + i, request, owner, project, now_s)
        if spec.ina.required:
            raise InputError("ina is require, and switches of live clusters do not aggregate yet; submit it with auto")
        _check_room(ctx, spec, request, now_s)
        quota = ctx.state.projects.get(project, {}).get("gpu_quota")
        counts = spec.job_class is JobClass.GUARANTEED or not isinstance(ctx.state.policy, AppliesQuotas)
        if quota is not None and counts and spec.gpus > quota:
            raise InputError(f"needs {counted(spec.gpus, 'GPU')}; the quota of project {project} is {quota}")
    return Requested(now_s, first, owner, [dict(r) for r in requests], key)


def project_of(request: Mapping[str, Any]) -> str:
    """The project that a job belongs to."""
    return request.get("project") or "default"


def check_project(ctx: Context, name: str) -> None:
    """Raise `InputError` for a project that nobody made."""
    if name not in (known := {"default": None, **ctx.state.projects}):
        raise InputError(f"no project {name!r}; {suggest(name, known, f'make it with: plait project set {name}')}")


def _check_room(ctx: Context, spec: JobSpec, request: Mapping[str, Any], now_s: float) -> None:
    """Refuse a job that no node has room for, nor any that may come; while nodes join nobody knows."""
    controller = ctx.state.controller
    if controller is None or now_s < ctx.timers.settle_s:
        return
    why = refusal(spec, controller.cluster, ctx.room(request))
    if why is not None:
        raise InputError(f"{why}; ask for less, or wait for nodes that are not there yet with --wait-for-nodes")
