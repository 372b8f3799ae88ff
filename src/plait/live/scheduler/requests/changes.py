"""Requests of users about unfinished jobs: to cancel them, to requeue them, to change their requests.

A cancelled job stops at once. A requeued one stops after a checkpoint, like one that a policy preempts, and waits again
by the order of the policy; neither a failure nor a preemption is counted. A changed priority, class or deadline counts
from the next decision on, and touches no process; a changed time limit counts at once. A changed size is that of the
next attempt: a job that runs on a number of GPUs that no longer fits is stopped after a checkpoint and waits, any other
stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from plait.control.messages import JobCancelled, JobRequeued, JobUpdated
from plait.core.errors import Conflict, InputError
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.live.layout import job_name
from plait.live.protocol.requests import check_sizes, needs_no_gpu
from plait.live.scheduler.context import Context
from plait.live.scheduler.decide import withhold
from plait.live.scheduler.records.attempts import JobRecord
from plait.live.scheduler.records.notes import CancelAsked, RequeueAsked, UpdateAsked
from plait.live.scheduler.requests.admission import check_size, check_time
from plait.live.scheduler.requests.losses import losses, refuse
from plait.live.scheduler.stops import TIME_LIMIT, ask_stop

#: Fields of a request for its number of GPUs, and all that may change while a job waits or runs.
SIZES = ("gpus", "min_gpus", "max_gpus")
CHANGEABLE = ("priority", "class", "deadline_s", "time_limit_s", "hold", *SIZES)
#: Values of fields that are not given.
DEFAULTS: Mapping[str, Any] = {"priority": 0.0, "class": "guaranteed", "gpus": 1, "hold": False}


def cancel(ctx: Context, number: int, by: str) -> None:
    """Cancel job `number`. `Conflict` if it has ended, `LookupError` if it does not exist."""
    job = _open(ctx, number)
    now_s = ctx.now_s
    ctx.record(JobCancelled(now_s, np.array([number]), by) if job.admitted else CancelAsked(now_s, number, by))


def requeue(ctx: Context, number: int, by: str, key: str | None = None, may_lose_work: bool = False) -> None:
    """Send job `number` back to the queue; a waiting one keeps waiting.

    Raises `Conflict` if it has ended, or if it would begin at the beginning and not `may_lose_work`; `LookupError` if
    there is none of this number.
    """
    if ctx.state.keys.done(by, key, number, None):
        return
    job = _open(ctx, number, f"run it again as a new job: plait clone {job_name(number)}")
    if not may_lose_work:
        refuse(losses(ctx, [job]))
    ctx.record(RequeueAsked(ctx.now_s, number, by, key))
    if ctx.state.phase(job) is Phase.RUNNING:
        ctx.record(JobRequeued(ctx.now_s, np.array([number])))
    if (attempt := job.live) is not None and attempt.stop is None:
        ctx.record(ask_stop(ctx, attempt, "requeued", f"by {by}"))


def update(
    ctx: Context, number: int, fields: Mapping[str, Any], by: str, key: str | None = None,
    may_lose_work: bool = False,
) -> None:  # fmt: skip
    """Change `fields` of the request of job `number`; None: as if the field had not been given.

    Raises `InputError` for a field or a value that no job can have; `Conflict` if the job has ended, or if it would
    have to begin at the beginning and not `may_lose_work`; `LookupError` if it does not exist.
    """
    if ctx.state.keys.done(by, key, number, fields):
        return
    job = _open(ctx, number, f"run it again as a new job with other options: plait clone {job_name(number)}")
    wrong = [name for name in fields if name not in CHANGEABLE]
    if wrong:
        raise InputError(f"{wrong[0]} of a job cannot be changed; these can: {', '.join(CHANGEABLE)}")
    _check_whole(job_name(number), fields)
    if needs_no_gpu(job.request) and any(field in fields for field in SIZES):
        name = job_name(number)
        raise InputError(f"job {name} has no GPUs, which cannot be changed; run it again: plait clone {name} -g 1")
    before = {name: job.request.get(name) for name in fields}
    if all(_meant(name, before[name]) == _meant(name, value) for name, value in fields.items()):
        if key is not None:  # sent again after another change, it must still do nothing
            ctx.record(UpdateAsked(ctx.now_s, number, by, dict(fields), before, key))
        return
    request = {name: value for name, value in {**job.request, **fields}.items() if value is not None}
    spec = _spec(ctx, job, request, fields)
    if fields.get("hold") and ctx.state.phase(job) is Phase.RUNNING:
        name = job_name(number)
        raise Conflict(f"job {name} is running and cannot be held; send it to the queue first: plait requeue {name}")
    if "time_limit_s" in fields:
        check_time(ctx, job.project, math.inf if fields["time_limit_s"] is None else fields["time_limit_s"])
    if "time_limit_s" in fields and job.live is not None and job.live.stop == TIME_LIMIT:
        name = job_name(number)
        raise Conflict(f"job {name} has reached its time limit and is being stopped; run it again: plait clone {name}")
    leaves = job.live is not None and job.live.stop is None and _resized(ctx, job, spec)
    if leaves and not may_lose_work:
        refuse(losses(ctx, [job]))
    ctx.record(UpdateAsked(ctx.now_s, number, by, dict(fields), before, key))
    if job.admitted:
        ctx.record(JobUpdated(ctx.now_s, np.array([number]), JobBatch.of([spec])))
        withhold(ctx, [number])
    if leaves and job.live is not None:
        ctx.record(ask_stop(ctx, job.live, "resized", f"by {by}, {_sizes_in_words(before, fields)}"))


def _open(ctx: Context, number: int, instead: str = "") -> JobRecord:
    """The job of this number; `instead` names what works for one that has ended."""
    if not 0 <= number < ctx.state.numbers:
        raise LookupError(f"no job {job_name(number)}")
    job = ctx.state.jobs.get(number)
    if job is None or ctx.state.phase(job) > Phase.RUNNING:
        raise Conflict(f"job {job_name(number)} has already ended" + (f"; {instead}" if instead else ""))
    return job


def _check_whole(name: str, fields: Mapping[str, Any]) -> None:
    for field in SIZES:
        value = fields.get(field)
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"job {name}: {field} {value!r}: needs a whole number of GPUs, 1 or more")


def _spec(ctx: Context, job: JobRecord, request: Mapping[str, Any], fields: Mapping[str, Any]) -> JobSpec:
    """The job as policies see it with this request; `InputError` if it could not be submitted so."""
    name, controller = job_name(job.number), ctx.state.controller
    check_sizes(request, f"job {name}", (), command=False)
    spec = ctx.spec(job.number, request, job.owner, job.project, job.created_s)
    if any(_meant(one, job.request.get(one)) != _meant(one, fields[one]) for one in (*SIZES, "class") if one in fields):
        try:
            check_size(ctx, spec, request)
        except InputError as error:
            raise InputError(f"job {name}: {error}") from None
    if job.admitted and controller is not None:
        known = controller.job_store.spec(job.number)
        # The weight of its project when it was admitted stays, and the iterations that its script reports.
        spec = replace(spec, weight=known.weight, iterations=known.iterations)
    return spec


def _resized(ctx: Context, job: JobRecord, spec: JobSpec) -> bool:
    """Whether the job has to leave the GPUs it has for another number of them."""
    wanted = ctx.state.wanted(job)
    return wanted is not None and not spec.min_gpus <= len(wanted) <= spec.max_gpus


def _meant(name: str, value: Any) -> Any:
    return DEFAULTS.get(name) if value is None else value


def _sizes_in_words(before: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """The change of the size, in words.

    >>> _sizes_in_words({"gpus": 2, "priority": None}, {"gpus": 4, "priority": 3.0})
    'gpus 2 to 4'
    """
    return ", ".join(
        f"{name} {_meant(name, before[name])} to {_meant(name, fields[name])}"
        for name in SIZES
        if name in fields and before[name] != fields[name]
    )
