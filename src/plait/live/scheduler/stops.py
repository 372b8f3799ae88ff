"""Requests to stop an attempt, their reasons, and processes that start next to it before it stops.

A job that moves trains on while the processes of its next attempt start on their GPUs: Python begins, imports what the
job imported last time, and waits. A successor holds no GPU and runs nothing of the job, so whatever happens to it,
the next attempt begins without it. The scheduler waits for it for `Options.overlap_s` at most.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from plait.core.plan import RESERVED
from plait.core.words import counted, duration
from plait.live.layout import job_name
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.attempts import CAN, Attempt, JobRecord, Successor
from plait.live.scheduler.records.event_words import RESIZED
from plait.live.scheduler.records.notes import StopAsked

#: Reasons for stopping an attempt that could have continued.
GRACEFUL = frozenset({"preempted", "moved", "drained", "leaving", "yields", "requeued", "resized", "time limit"})
#: ... by the coordinator of its GPU: there is no room for a guest, which goes back to the queue.
YIELDS = "yields"
#: ... at the time limit of its job, which then fails.
TIME_LIMIT = "time limit"
#: Jobs that are named at most, and the place in the order of a job that no order has.
NAMED, UNPLACED = 4, 1 << 60


def ask_stop(ctx: Context, attempt: Attempt, why: str, reason: str = "", takers: Sequence[int] = ()) -> StopAsked:
    """Request an attempt's stop; if its node is about to go, its checkpoint has no longer than the node.

    `reason`: who wants it, in words; `takers`: jobs that get its GPUs. At a time limit it has the seconds
    of the warning.
    """
    grace_s = ctx.state.jobs[attempt.job].request.get("signal_s") if why == TIME_LIMIT else None
    if why == "leaving":
        nodes = [ctx.state.nodes[r.node] for r in attempt.ranks if not r.ended]
        left_s = [n.leaving_s for n in nodes if n.leaving and n.leaving_s is not None]
        grace_s = min(left_s, default=None)  # None after a restart, until the node has reported it again
    return StopAsked(ctx.now_s, attempt.job, attempt.epoch, why, grace_s, reason, tuple(takers))


def time_left_s(job: JobRecord) -> float:
    """Seconds on GPUs until an unfinished job reaches its time limit; infinite without one."""
    limit_s = job.request.get("time_limit_s")
    return math.inf if limit_s is None else float(limit_s) - job.held_s - (job.live.held_s if job.live else 0.0)


def out_of_time(job: JobRecord) -> bool:
    """Whether an unfinished job has to stop for its time limit, or for the warning before it."""
    return time_left_s(job) <= float(job.request.get("signal_s") or 0.0)


def limit_in_words(job: JobRecord) -> str:
    """The time limit of a job that has one, and the option that sets it."""
    return f"of {duration(job.request['time_limit_s'])} (--time)"


def stop_at_limits(ctx: Context) -> None:
    """Request the stop of attempts whose jobs are out of time."""
    for job, attempt in ctx.state.attempts:
        if attempt.stop is None and out_of_time(job):
            ctx.record(ask_stop(ctx, attempt, TIME_LIMIT, limit_in_words(job)))


def new_holders(ctx: Context) -> dict[int, list[int]]:
    """Jobs by the GPU (of the cluster) that they get by the last decision, and have not had until now."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, gpus in ctx.state.groups.of_job.items():
        live = ctx.state.jobs[number].live
        if live is None or live.gpus != gpus:
            for gpu in gpus:
                found[gpu].append(number)
    return found


def preemption_reason(ctx: Context, number: int, takers: Sequence[int]) -> str:
    """The reason of a preemption: the jobs or the size it serves in the last decision, and the decision's own words.

    Priorities are compared where these differ, otherwise places in the order; where neither decides, the policy's own
    words are used.
    """
    state, controller = ctx.state, ctx.state.in_charge
    named = ", ".join(f"{job_name(one)} of {state.jobs[one].owner}" for one in takers[:NAMED])
    if len(takers) > NAMED:
        named += f" and {len(takers) - NAMED} more"
    said = controller.plan.reasons.get(number, "")
    if RESERVED not in said:
        said = _order(ctx, number, takers) or said
    parts = [f"for {named}" * bool(named), said, f"policy {state.policy_text}"]
    live, gpus = state.jobs[number].live, state.groups.of_job.get(number)
    if live is not None and gpus is not None and len(gpus) != len(live.gpus):
        parts.insert(0, f"{RESIZED[len(gpus) > len(live.gpus)]} from {counted(len(live.gpus), 'GPU')} to {len(gpus)}")
    elif not named and RESERVED not in said:
        parts.insert(0, "to other GPUs" if gpus is not None else "though no other job gets its GPUs yet")
    return "; ".join(part for part in parts if part)


def _order(ctx: Context, number: int, takers: Sequence[int]) -> str:
    """Where the first of the takers stands in the order before the job that makes room."""
    if not takers:
        return ""
    columns = ctx.state.in_charge.job_store.columns
    position, priority = columns["position"], columns["priority"]
    first = min(takers, key=lambda one: int(position[one]))
    if priority[first] != priority[number]:
        return f"priority {priority[first]:g} against {priority[number]:g}"
    if position[first] >= position[number] or position[number] >= UNPLACED:
        return ""
    return f"place {int(position[first]) + 1} in its order against {int(position[number]) + 1}"


def may_overlap(ctx: Context, job: JobRecord, attempt: Attempt) -> bool:
    """Whether processes for the next attempt of a job that moves may start next to this one.

    Only for jobs that save on a stop, and that have their processes and GPUs to themselves. Grants of switches belong
    to one attempt.
    """
    alone = not attempt.merge and not attempt.guest and job.number not in ctx.state.groups.guests
    return (
        ctx.options.overlap_s > 0
        and alone
        and not job.request.get("container")
        and ctx.state.network.declared is None
        and all(rank.seen is not None and rank.seen.saves == CAN for rank in attempt.ranks)
    )


def waits_for(ctx: Context, successor: Successor) -> bool:
    """Whether a job trains on until its successor is ready."""
    nodes = ctx.state.nodes
    open_ranks = [rank for i, rank in enumerate(successor.attempt.ranks) if i not in successor.settled]
    late = ctx.now_s - successor.since_s >= ctx.options.overlap_s
    return bool(open_ranks) and not late and all(nodes[rank.node].state == "ready" for rank in open_ranks)


def end_successors(ctx: Context) -> None:
    """End successors whose attempt has begun, or whose job is to run elsewhere now, or nowhere."""
    for number, successor in list(ctx.successors.items()):
        job = ctx.state.jobs.get(number)
        begun = job is not None and job.live is not None and job.live.gpus == successor.attempt.gpus
        if job is None or begun or ctx.state.wanted(job) != successor.attempt.gpus:
            ctx.overlapped[number] = ctx.successors.pop(number).attempt.epoch
            ctx.reassign = True
