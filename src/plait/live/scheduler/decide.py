"""When the policy decides, and for which jobs.

Decisions are made in rounds: at most every `round_s`, and only if something changed or the plan requires it. A job that
arrives while GPUs are free need not wait for the round: one early decision is let through once submissions have paused
for a moment, and never so often that deciding takes more than a fifth of the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import groupby

import numpy as np

from plait.control.job_store import refusal
from plait.control.messages import JobCancelled, JobFailed, JobHeld, JobSubmitted
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.live.scheduler.context import Context
from plait.live.scheduler.measured import pass_on_fits
from plait.live.scheduler.network.tell import due_s
from plait.live.scheduler.records.attempts import JobRecord
from plait.live.scheduler.records.obstacles import begin_s, obstacle, turn_of

#: Nodes are looked at this often at most, seconds.
WATCH_S = 0.25
#: A call that comes so many seconds later than requested means that the process stood still.
LATE_S = 0.5
#: Submissions have paused when none came for so long; an early decision waits so many times this at most.
QUIET_S, QUIETS = 0.05, 4
#: Rounds longer than this are meant to spare preemptions, and an early decision may preempt: there is none.
LONG_ROUND_S = 5.0
#: After a decision the next early one waits so many times as long as that one took.
REST = 4.0


def admit(ctx: Context) -> None:
    """Add new jobs to the controller, in order. The first that fits no node yet holds up the jobs behind it."""
    state, now_s = ctx.state, ctx.now_s
    controller = state.controller
    if controller is None:
        return
    specs: list[JobSpec] = []
    rooms: list[int] = []
    for number in state.pending:
        job = state.jobs[number]
        spec = ctx.spec(number, job.request, job.owner, job.project, job.created_s)
        room = ctx.room(job.request)
        if now_s < ctx.timers.settle_s and not job.cancelled and refusal(spec, controller.cluster, room) is not None:
            break
        specs.append(spec)
        rooms.append(room)
    first = number = controller.job_store.count
    for room, batch in groupby(zip(rooms, specs, strict=True), key=lambda pair: pair[0]):
        several = [spec for _, spec in batch]
        ctx.record(JobSubmitted(now_s, number, JobBatch.of(several), room))
        withhold(ctx, range(number, number + len(several)))
        number += len(several)
    pass_on_fits(ctx, range(first, first + len(specs)))
    for number in range(first, first + len(specs)):
        job = state.jobs[number]
        if job.cancelled and state.phase(job) <= Phase.RUNNING:
            ctx.record(JobCancelled(now_s, np.array([number])))


def withhold(ctx: Context, numbers: Iterable[int]) -> None:
    """Hide those of these waiting jobs from the policy that may not run yet."""
    controller = ctx.state.controller
    known = set() if controller is None else set(controller.held.tolist())
    jobs = [ctx.state.jobs[number] for number in numbers if number not in known]
    turns = _Turns(ctx, jobs, {job.number for job in jobs})
    away = [
        job.number
        for job in jobs
        if ctx.state.phase(job) is Phase.WAITING and (obstacle(job, ctx.now_s) or not turns.take(job))
    ]
    if away:
        ctx.record(JobHeld(ctx.now_s, np.array(away), np.ones(len(away), dtype=np.int64)))


class _Turns:
    """How many members of the arrays of `jobs` may run, `without` some; each array has a limit of its own or none."""

    def __init__(self, ctx: Context, jobs: Iterable[JobRecord], without: Collection[int] = ()) -> None:
        state, self._taken = ctx.state, Counter[str]()
        limited = {turn[0] for job in jobs if (turn := turn_of(job)) is not None}
        if not limited or state.controller is None:
            return
        held = set(state.controller.held.tolist())
        for job in state.jobs.values():
            turn = turn_of(job)
            if turn is None or turn[0] not in limited or job.number in without or not job.admitted:
                continue
            if job.live is not None or (job.number not in held and state.phase(job) <= Phase.RUNNING):
                self._taken[turn[0]] += 1

    def take(self, job: JobRecord) -> bool:
        """Count the job among those that may run, unless its array has enough of them."""
        turn = turn_of(job)
        if turn is None:
            return True
        self._taken[turn[0]] += 1
        return self._taken[turn[0]] <= turn[1]


def release(ctx: Context) -> None:
    """Let jobs run whose last obstacle is gone, and end those that never may."""
    controller = ctx.state.controller
    if controller is None or not len(controller.held):
        return
    held = [ctx.state.jobs[number] for number in controller.held.tolist()]
    turns = _Turns(ctx, held)
    back = [job.number for job in held if not obstacle(job, ctx.now_s) and turns.take(job)]
    if back:
        ctx.record(JobHeld(ctx.now_s, np.array(back), np.zeros(len(back), dtype=np.int64)))
    for job in held:
        if job.unmet:
            ctx.record(JobFailed(ctx.now_s, np.array([job.number]), job.unmet, again=False))


def may_start(ctx: Context, first: int) -> bool:
    """Whether GPUs are free that one of the jobs from this number on could take."""
    controller = ctx.state.controller
    if controller is None or controller.job_store.count <= first:
        return False
    least = int(controller.job_store.columns["min_gpus"][first : controller.job_store.count].min())
    # GPUs of nodes that answer which no job holds or was given; guests are not counted.
    state = ctx.state
    held = {gpu for gpus in state.groups.by_gpus for gpu in gpus}
    held.update(gpu for _, attempt in state.attempts if not attempt.guest for gpu in attempt.gpus)
    there = (n.info.gpus for n in state.nodes.values() if n.state == "ready" and n.info)
    return least <= (sum(there) - len(held))


def decision_s(ctx: Context) -> float:
    """When the next decision is due; infinite if none is."""
    state, options = ctx.state, ctx.options
    controller = state.controller
    if controller is None or not ctx.ready:
        return math.inf
    pause = max(options.round_s, 5.0) if state.policy_error else options.round_s
    earliest = state.decision_s + pause
    if not controller.changed:
        return max(earliest, controller.plan.valid_until_s)
    return min(earliest, _early_s(ctx))


def _early_s(ctx: Context) -> float:
    """When a decision may be made before its round, for jobs that arrived while GPUs are free."""
    state, options = ctx.state, ctx.options
    timers = ctx.timers
    if timers.arrived is None or state.policy_error or options.round_s > LONG_ROUND_S:
        return math.inf
    first, last = timers.arrived
    quiet_s = min(last + QUIET_S, first + QUIETS * QUIET_S)
    return max(quiet_s, state.decision_s + max(options.early_s, REST * timers.took_s))


def wake_s(ctx: Context) -> float:
    """When there is something to do even if nothing happens before."""
    timers, now_s = ctx.timers, ctx.now_s
    times = [decision_s(ctx)]
    if ctx.state.pending and now_s < timers.settle_s:
        times.append(timers.settle_s)
    if ctx.state.live:
        times.append(timers.reported_s + ctx.options.progress_s)
    # When the next job may run because its time has come; infinite if none waits for that
    controller = ctx.state.controller
    held = [] if controller is None else [ctx.state.jobs[number] for number in controller.held.tolist()]
    waiting = (begin_s(job) for job in held if not (job.request.get("hold") or job.waits_for))
    times.append(min((at_s for at_s in waiting if at_s > ctx.now_s), default=math.inf))
    if ctx.unfenced or ctx.deferred:
        times.append(now_s + 1.0)
    if ctx.state.network.declared is not None:
        times.append(due_s(ctx))
    times.append(max(timers.silence_s, timers.watched_s + WATCH_S))
    return max(min(times), now_s)
