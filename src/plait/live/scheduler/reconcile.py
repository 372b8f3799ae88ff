"""Start, stop and close attempts until what runs is what the plan wants.

A job has at most one attempt that is not over. A new one begins when every process of the last one has ended, or is on
a lost node, where the epoch keeps it from committing anything. When one process fails, the whole gang stops.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from plait.control.messages import JobFailed, JobFinished, LaunchFailed
from plait.core.goodput import BatchLimits
from plait.core.jobs import Phase
from plait.core.words import duration, noted
from plait.goodput.batch import ordered
from plait.live.layout import job_name
from plait.live.protocol.profile_keys import processes_per_gpu
from plait.live.protocol.requests import limits_of
from plait.live.protocol.wire import RUNNING
from plait.live.scheduler import stops
from plait.live.scheduler.context import FENCE_TRIES, Context
from plait.live.scheduler.measured import lost_work_s, never_saved, report_progress, served_s, settle_total, why_lost
from plait.live.scheduler.records.attempts import (
    FAILED,
    FROM_START,
    REQUEUE,
    START,
    Attempt,
    JobRecord,
    Rank,
    Successor,
)
from plait.live.scheduler.records.end_words import same_end
from plait.live.scheduler.records.notes import AttemptBegan, AttemptOver, RankEnded

#: See `reconcile`.
NextEpoch: TypeAlias = Callable[[int, int], int]
#: Signals by which programs crash of themselves.
CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGBUS))
#: Stops that can wait until the attempt has got something out of its start.
DEFERRABLE = frozenset({"preempted", "moved"})


def reconcile(ctx: Context, next_epoch: NextEpoch) -> bool:
    """One pass over jobs that run or should.

    `next_epoch(job, epoch)`: the epoch of the next attempt of a job whose last one had `epoch`; an `OSError` from it
    puts the attempt off. Returns whether something was put off and has to be tried again soon.
    """
    state, deferred = ctx.state, False
    holders: dict[int, list[int]] | None = None
    for number in sorted(state.live):
        job = state.jobs[number]
        attempt = job.live
        assert attempt is not None, "a live job has an attempt"
        wanted = state.wanted(job)
        if attempt.stop is None:
            why = _why_stop(ctx, job, attempt, wanted)
            put_off = why in DEFERRABLE and _before_first_step(ctx, attempt)
            if not put_off and why == "moved":
                put_off = _overlaps(ctx, job, attempt, wanted, next_epoch)
            if put_off:
                deferred = True
            elif why in DEFERRABLE:
                holders = stops.new_holders(ctx) if holders is None else holders  # once a pass, as it looks at all jobs
                takers = sorted({taker for gpu in attempt.gpus for taker in holders.get(gpu, ())} - {number})
                ctx.record(stops.ask_stop(ctx, attempt, why, stops.preemption_reason(ctx, number, takers), takers))
            elif why:
                ctx.record(stops.ask_stop(ctx, attempt, why))
        _end_unfenced(ctx, number, attempt)
        if _may_close(ctx, job, attempt, wanted):
            _close(ctx, job, attempt)
    ports: set[int] | None = None
    for number, gpus in list(state.groups.of_job.items()):
        job = state.jobs[number]
        if job.live is None and state.wanted(job) == gpus and not _on_unresponsive_node(ctx, gpus):
            if ports is None:  # once a pass: a round may begin thousands
                ports = {attempt.port for _, attempt in state.attempts}
            try:
                epoch = next_epoch(number, job.epoch)
            except OSError:
                deferred = True  # a disk that is full or gone: try again soon
                continue
            # Record a new attempt; `ports` are the master ports in use, and its own is added
            ranks = _ranks(ctx, job, gpus)
            port = _port(ctx, ports) if len(ranks) > 1 else 0
            ports.add(port)
            successor = ctx.successors.get(number)
            # Estimates go on changing while successors wait: another plan than theirs would waste them.
            waits = successor is not None and successor.attempt.gpus == gpus
            limits = successor.attempt.limits if successor and waits else _plan(ctx, job, gpus)
            ctx.record(AttemptBegan(ctx.now_s, job.number, epoch, list(gpus), ranks, port, limits))
    stops.end_successors(ctx)
    return deferred


def _end_unfenced(ctx: Context, number: int, attempt: Attempt) -> None:
    """End an attempt that no agent runs, if its folder cannot be written or it is not wanted any more."""
    waits = ctx.unfenced.get(number)
    if waits is None or not (waits.fresh or _unknown_to_agents(ctx, attempt)):
        return
    if waits.tries >= FENCE_TRIES:
        why = f"{waits.why}; the folder of the job could not be written in {waits.tries} tries"
    elif waits.why and attempt.stop is not None:
        why = "stopped before it started"
    else:
        return
    for i, rank in enumerate(attempt.ranks):
        if not rank.ended:
            ctx.record(RankEnded(ctx.now_s, number, attempt.epoch, i, None, why, started=False))


def _unknown_to_agents(ctx: Context, attempt: Attempt) -> bool:
    """Whether no agent runs an attempt of an earlier service: a report that lists it would have made it known.

    Each agent has reported since it follows this service; from then on it accepts nothing of an earlier one.
    """
    nodes = [ctx.state.nodes[rank.node] for rank in attempt.ranks if not rank.ended]
    return all(node.lost or node.term == ctx.term for node in nodes)


def _why_stop(ctx: Context, job: JobRecord, attempt: Attempt, wanted: tuple[int, ...] | None) -> str:
    """Why an attempt has to stop, as agents, events and people see it; "" if it continues.

    A fault of its own ("failed", "start", "requeue"), the plan ("moved", "preempted"), its user ("cancelled"), or its
    node ("lost", "leaving", "drained").
    """
    if attempt.fault:
        return attempt.fault
    if wanted == attempt.gpus:
        return ""
    if wanted is not None:
        return "moved"
    if ctx.state.phase(job) is Phase.CANCELLED:
        return "cancelled"
    nodes = [ctx.state.nodes[r.node] for r in attempt.ranks if not r.ended]
    if any(n.lost for n in nodes):
        return "lost"
    if any(n.leaving for n in nodes):
        return "leaving"
    return "drained" if any(n.drained for n in nodes) else "preempted"


def _overlaps(
    ctx: Context, job: JobRecord, attempt: Attempt, wanted: tuple[int, ...] | None, next_epoch: NextEpoch
) -> bool:
    """Start the next processes of a job that moves, if that can be; returns whether its stop waits for them."""
    open_ranks = [rank for rank in attempt.ranks if not rank.ended]
    unseen = any(rank.seen is None and ctx.state.nodes[rank.node].state == "ready" for rank in open_ranks)
    if ctx.options.overlap_s > 0 and unseen and job.number not in ctx.unfenced:
        return True  # this service has just begun to lead: whether the job saves is reported within a second
    if wanted is None or not stops.may_overlap(ctx, job, attempt) or _on_unresponsive_node(ctx, wanted):
        return False
    successor = ctx.successors.get(job.number)
    if successor is None or successor.attempt.gpus != wanted:
        try:
            epoch = next_epoch(job.number, job.epoch)
        except OSError:
            return False
        ranks = [Rank(node, gpu) for node, gpu in _ranks(ctx, job, wanted)]
        attempt = Attempt(job.number, epoch, wanted, ranks, ctx.now_s, limits=_plan(ctx, job, wanted))
        successor = Successor(attempt, ctx.now_s)
        ctx.successors[job.number], ctx.reassign = successor, True
    return stops.waits_for(ctx, successor)


def _before_first_step(ctx: Context, attempt: Attempt) -> bool:
    """Whether it has processes that have not made a step yet, and still some time for it."""
    if attempt.held_s >= ctx.options.first_step_s or any(ctx.state.nodes[r.node].lost for r in attempt.ranks):
        return False
    seen = [rank.seen for rank in attempt.ranks if rank.seen is not None]
    return any(s.state == RUNNING for s in seen) and not any((s.step_s or 0.0) > 0 for s in seen)


def _may_close(ctx: Context, job: JobRecord, attempt: Attempt, wanted: tuple[int, ...] | None) -> bool:
    """Whether all ranks have ended; or the rest are on lost nodes, and there is a replacement or no need to wait.

    There is no need to wait for a node that its backend reports as dead.
    """
    nodes = ctx.state.nodes
    if not all(r.ended or nodes[r.node].lost for r in attempt.ranks):
        return False
    if all(r.ended or nodes[r.node].gone for r in attempt.ranks) or ctx.state.phase(job) > Phase.RUNNING:
        return True
    return attempt.fault != "" or (wanted is not None and not _on_unresponsive_node(ctx, wanted))


def _outcome(attempt: Attempt) -> str:
    if all(r.ended and r.exit_code == 0 for r in attempt.ranks):
        return "finished"
    if not all(r.ended for r in attempt.ranks):
        return "lost"  # with a node; ranks of its gang that failed did so because it was gone
    if attempt.stop == stops.TIME_LIMIT:
        return stops.TIME_LIMIT
    named = {FAILED: "failed", START: "start failed", REQUEUE: "requeued"}
    if attempt.fault:
        return named[attempt.fault]
    return "cancelled" if attempt.stop == "cancelled" else "preempted"


def _close(ctx: Context, job: JobRecord, attempt: Attempt) -> None:
    now_s = ctx.now_s
    report_progress(ctx, [job.number])
    over = _over(ctx, job, attempt)
    previous = "" if over.steps > job.mark else job.reason  # of the last attempt, if this one got no further
    ctx.record(over)
    phase, jobs = ctx.state.phase(job), np.array([job.number])
    if phase > Phase.RUNNING:
        return
    if over.outcome == "finished":
        settle_total(ctx, job, attempt)
        ctx.record(JobFinished(now_s, jobs, np.array([over.ended_s])))
    elif stops.out_of_time(job):
        reason = f"time limit {stops.limit_in_words(job)} reached"
        if (left_s := stops.time_left_s(job)) > 0:
            reason = (
                f"ended {duration(left_s)} before its time limit {stops.limit_in_words(job)}, at the warning (--signal)"
            )
        if (lead := attempt.lead) is not None and lead.checkpoint_age_s is not None and lead.saves not in FROM_START:
            reason += f"; to go on from its checkpoint: plait clone {job_name(job.number)} --from-checkpoint"
        ctx.record(JobFailed(now_s, jobs, reason, again=False))
    elif over.outcome == "failed":
        ctx.record(_failed(job, attempt, previous, now_s))
    elif over.outcome in ("start failed", "requeued"):
        options = ctx.options
        if job.launch_failures >= options.launch_tries or job.requeues > options.requeues:
            ctx.record(_failed(job, attempt, previous, now_s))
        elif phase is Phase.RUNNING:
            ctx.record(LaunchFailed(now_s, jobs, attempt.cause))
    elif attempt.stop == stops.YIELDS and phase is Phase.RUNNING:
        ctx.record(LaunchFailed(now_s, jobs, attempt.leaves or "left the GPU to the job whose guest it was"))


def _over(ctx: Context, job: JobRecord, attempt: Attempt) -> AttemptOver:
    """How an attempt ended, what it had, and what of its work is lost."""
    outcome, lead, now_s = _outcome(attempt), attempt.lead, ctx.now_s
    ago = min((r.seen.ended_s_ago for r in attempt.ranks if r.seen), default=0.0)
    held_s, never = served_s(ctx, job, attempt), never_saved(ctx, job)
    lost_s = 0.0 if outcome in ("finished", "cancelled") else lost_work_s(attempt, held_s, never)
    return AttemptOver(
        now_s, job.number, attempt.epoch, outcome, held_s, attempt.steps or 0.0,
        ended_s=max(now_s - max(ago, 0.0), attempt.began_s),
        first_step_s=lead.first_step_s if lead and not attempt.guest else None,  # a guest waits for its host
        last_step_s=lead.last_step_s if lead else None,
        batch_size=lead.adaptive.batch_size if lead and lead.adaptive else 0.0,
        lost_work_s=lost_s if lost_s > 0 else 0.0,
        why_lost=why_lost(attempt, outcome) if lost_s > 0 else "",
    )  # fmt: skip


def _failed(job: JobRecord, attempt: Attempt, previous: str, now_s: float) -> JobFailed:
    """The failure of an attempt; `previous`: the cause of the one before, "" if this one got further.

    A program that ends in the same way twice would do so again, so it is not retried unless its user allows retries.
    How long it ran is no criterion: that depends on what else the machine does.
    """
    codes = {rank.exit_code for rank in attempt.ranks if rank.ended}
    own = attempt.fault == START or any(code is not None and (code > 0 or code in CRASHES) for code in codes)
    jobs = np.array([job.number])
    if own and attempt.fault != REQUEUE and same_end(previous, attempt.cause) and job.request.get("retries") is None:
        why = "not retried, because it ended in the same way twice without getting further (--retries)"
        return JobFailed(now_s, jobs, noted(attempt.cause, why), again=False)
    return JobFailed(now_s, jobs, attempt.cause)


def _on_unresponsive_node(ctx: Context, gpus: tuple[int, ...]) -> bool:
    """Whether a node of these GPUs has not reported lately."""
    cluster = ctx.state.in_charge.cluster
    nodes = {cluster.nodes[int(n)].id for n in cluster.gpu_node[list(gpus)]}
    return any(ctx.state.nodes[n].suspect or ctx.state.nodes[n].lost for n in nodes)


def _ranks(ctx: Context, job: JobRecord, gpus: tuple[int, ...]) -> list[tuple[str, int]]:
    """Node and number of the node's GPU of each process that a job has on these GPUs of the cluster."""
    cluster = ctx.state.in_charge.cluster
    ranks: list[tuple[str, int]] = []
    for gpu in sorted(gpus):
        node = int(cluster.gpu_node[gpu])
        ranks += [(cluster.nodes[node].id, gpu - int(cluster.first_gpu[node]))] * processes_per_gpu(job.request)
    return ranks


def _plan(ctx: Context, job: JobRecord, gpus: tuple[int, ...]) -> BatchLimits | None:
    """The bounds of the batch of a job with execution plans, by what is known of it when it starts on these GPUs.

    None for other jobs, and where no plan fits, which the job itself reports.
    """
    limits, controller = limits_of(job.request), ctx.state.controller
    if limits is None or not limits.parameters or controller is None:
        return None
    cluster, row = controller.cluster, controller.job_store.columns["goodput"][job.number]
    nodes = cluster.gpu_node[list(gpus)]
    return ordered(limits, row, len(set(nodes.tolist())), len(gpus), float(cluster.node_gpu_memory_bytes[nodes].min()))


def _port(ctx: Context, taken: set[int]) -> int:
    """A master port that no other gang has; one just freed comes last, so that it has time to close."""
    first, count = ctx.options.first_port, ctx.options.ports
    begin = ctx.port_seed + ctx.state.ports_given
    for i in range(count):
        port = first + (begin + i) % count
        if port not in taken:
            return port
    return first + begin % count
