"""Whether a submission can be taken in, and the note of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from plait.control.job_store import refusal
from plait.control.plan_check.grants import never_granted
from plait.core.errors import Conflict, InputError, suggest
from plait.core.jobs import JobBatch, JobSpec
from plait.core.policy import has_grants, layers
from plait.core.resources import CPU_KIND
from plait.core.words import duration
from plait.live.layout import job_name
from plait.live.protocol.profile_keys import processes_per_gpu
from plait.live.protocol.requests import AFTER, channels_of, dependencies, kinds_of, most_gpus, needs_no_gpu, never_met
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.notes import Requested
from plait.policies.aggregation import aggregation_of
from plait.policies.quotas import Quotas, never_admitted
from plait.runtime.network.grant import MOST_WORKERS

#: Names of other jobs that the jobs of a submission may wait for, all together.
MOST_NAMED = 100_000


def take_in(
    ctx: Context, requests: Sequence[Mapping[str, Any]], owner: str, key: str | None,
    final_states: Callable[[Collection[int]], Mapping[int, str]],
    members: Callable[[Collection[str]], dict[str, list[int]]],
) -> Requested:  # fmt: skip
    """The note of new jobs; raises `InputError` for an invalid one.

    `key`: see `Submissions`. `final_states`: how jobs ended that are no longer in the state; `members`: the numbers of
    the jobs of those of these names that are arrays, such as a-5, or members, such as a-5.3.
    """
    first, now_s = ctx.state.numbers, ctx.now_s
    requests = [
        _whole_nodes(ctx, request) if request.get("exclusive") and not needs_no_gpu(request) else request
        for request in requests
    ]
    for i, request in enumerate(requests):
        if not request.get("command"):
            raise InputError("command is empty; give the program and its arguments")
        for name in channels_of(request):
            if name not in (known := ctx.options.channels):
                hint = suggest(name, known) if known else "this cluster has none: plait up --notify FILE"
                raise InputError(f"notify is {name[:80]!r}, and there is no such channel; {hint}")
        check_time(ctx, project_of(request), request.get("time_limit_s"))
        limited = ctx.state.with_time_limit(request)
        check_size(ctx, ctx.spec(first + i, limited, owner, project_of(request), now_s), limited)
    named = [name for request in requests for field in AFTER for name in request.get(field) or ()]
    if len(named) > MOST_NAMED:
        raise InputError(
            f"after, after_any and after_fail name {len(named):,} jobs in all {len(requests):,} jobs, at most "
            f"{MOST_NAMED:,} may be named; name an array (a-5) in place of its jobs, or submit in several parts"
        )
    arrays = members(sorted(set(named)))
    waits, meant = dependencies(requests, first, arrays)
    fields = {(awaited, field) for those in waits for awaited, field in those.items()}
    numbers = {number for those in meant.values() for number in those if number < first}
    states = dict(final_states([number for number in numbers if number not in ctx.state.jobs]))
    states |= {n: ctx.state.phase(job).name.lower() for n in numbers if (job := ctx.state.jobs.get(n)) is not None}
    for awaited, field in sorted(fields):
        _check_met(states, meant[awaited], field)
    met = sorted(number for number, state in states.items() if state in AFTER["after_any"])
    return Requested(now_s, first, owner, [dict(r) for r in requests], key, met, arrays or None)


def _whole_nodes(ctx: Context, request: Mapping[str, Any]) -> dict[str, Any]:
    """The request with as many GPUs as the nodes have that hold it; `InputError` where their sizes differ."""
    controller = ctx.state.controller
    nodes = [node for node in controller.cluster.nodes if node.gpu_kind != CPU_KIND] if controller else []
    kinds = kinds_of(request, {node.gpu_kind for node in nodes})
    sizes = sorted({node.gpus for node in nodes if node.gpus and (kinds is None or node.gpu_kind in kinds)})
    if len(sizes) != 1:
        have = f"have {' and '.join(map(str, sizes))} GPUs" if sizes else "are not there yet, or not of its GPU kind"
        raise InputError(f"exclusive is true, and the nodes {have}; give gpus alone, or the GPU kind of equal nodes")
    (size,) = sizes
    count = request.get("nodes") or math.ceil(int(request.get("gpus") or 1) / size)
    return {**{key: value for key, value in request.items() if key != "nodes"}, "gpus": count * size}


def check_time(ctx: Context, project: str, limit_s: float | None) -> None:
    """Raise `InputError` for a time limit (None: not stated, infinite: none) that the job's project does not allow."""
    most_s = ctx.state.projects.get(project, {}).get("most_time_s")
    if most_s is not None and limit_s is not None and limit_s > most_s:
        stated = "is removed" if math.isinf(limit_s) else f"is {duration(limit_s)}"
        raise InputError(
            f"time_limit_s {stated}, and jobs of project {project} may take {duration(most_s)}; give "
            f"{'a' if math.isinf(limit_s) else 'a shorter'} --time, or let the administrator raise it: plait project "
            "set --max-time"
        )


def _check_met(states: Mapping[int, str], numbers: Iterable[int], field: str) -> None:
    """Raise `InputError` for a job to wait for by `field` that has ended in another way than it has to."""
    for number in numbers:
        state = states.get(number)
        if state in AFTER["after_any"] and state not in AFTER[field]:
            raise InputError(never_met(job_name(number), state, field))


def check_open_jobs(ctx: Context, owner: str, projects: Sequence[str]) -> None:
    """Raise `Conflict` if so many more jobs of a user in these projects are more than they may have.

    A script in a loop must not fill the queue: a job that waits costs time in every decision, and others wait with it.
    """
    limits = [("user", owner, len(projects), ctx.options.user_jobs)]
    limits += [("project", name, more, ctx.options.project_jobs) for name, more in Counter(projects).items()]
    for what, name, more, limit in limits:
        if limit and (there := ctx.open_jobs[what, name]) + more > limit:
            raise Conflict(
                f"{what} {name} has {there} jobs that have not ended, and may have {limit}; wait for some (plait "
                f"wait), cancel some (plait cancel), or let the administrator raise it: plait up --{what}-jobs N"
            )


def check_size(ctx: Context, spec: JobSpec, request: Mapping[str, Any]) -> None:
    """Raise `InputError` for a job that could never run here, or never within the quotas of its project."""
    if spec.ina.required:
        _check_required(ctx, spec, request)
    _check_room(ctx, spec, request)
    if ctx.state.policy is not None:
        controller = ctx.state.controller
        kinds = () if controller is None or ctx.now_s < ctx.timers.settle_s else controller.cluster.kinds
        for policy in layers(ctx.state.limited_policy()):
            quotas = getattr(policy, "quotas", None)
            if isinstance(quotas, Quotas) and (refused := never_admitted(policy, quotas, JobBatch.of([spec]), kinds)):
                raise InputError(refused[0])


def _check_required(ctx: Context, spec: JobSpec, request: Mapping[str, Any]) -> None:
    """Refuse a job that requires in-network aggregation and can never get it, whatever else runs."""
    state, processes = ctx.state, most_gpus(request) * processes_per_gpu(request)
    why = None
    if state.network.declared is None:
        why = "this cluster has no network (plait up --network); submit it with auto"
    elif state.policy is not None and not has_grants(state.policy):
        why = f"policy {state.policy_text} grants no memory of switches; set one with ina=, or submit it with auto"
    elif (grants := aggregation_of(state.policy)) is not None and (other := grants.never_serves(spec.ina)) is not None:
        why = other
    elif processes < 2:
        why = "it has one process, which exchanges no gradients; submit it with auto"
    elif processes > MOST_WORKERS:
        why = f"it has {processes} processes, and switches add up at most {MOST_WORKERS}; ask for less, or auto"
    elif state.controller is not None and (never := never_granted(spec, state.controller.cluster)) is not None:
        why = never.removeprefix("requires in-network aggregation, and ")
    if why is not None:
        raise InputError(f"ina is require, and {why}")


def project_of(request: Mapping[str, Any]) -> str:
    """The project that a job belongs to."""
    return request.get("project") or "default"


def check_project(ctx: Context, name: str) -> None:
    """Raise `InputError` for a project that does not exist."""
    if name not in (known := {"default": None, **ctx.state.projects}):
        raise InputError(f"no project {name!r}; {suggest(name, known, f'make it with: plait project set {name}')}")


def _check_room(ctx: Context, spec: JobSpec, request: Mapping[str, Any]) -> None:
    """Refuse a job that no present or expected node has room for; while nodes join this is unknown."""
    controller = ctx.state.controller
    if controller is None or ctx.now_s < ctx.timers.settle_s:
        return
    why = refusal(spec, controller.cluster, ctx.room(request))
    if why is not None:
        raise InputError(f"{why}; ask for less, or wait for nodes that are to come: plait submit --wait-for-nodes")
