"""What runs is made what should run: attempts begin, are told to stop, and end.

One job has at most one attempt that is not over. A new one begins when every process of the last one has ended, or is
on a lost node and the epoch keeps it from committing anything. A failure of one process stops the whole gang.
"""

from __future__ import annotations

import signal
import zlib
from typing import TYPE_CHECKING

import numpy as np

from plait.control.messages import JobFailed, JobFinished, LaunchFailed
from plait.core.jobs import Phase
from plait.live.protocol.wire import RUNNING
from plait.live.scheduler import stop_costs
from plait.live.scheduler.attempts import FAILED, REQUEUE, START, Attempt, JobRecord
from plait.live.scheduler.profiles import processes_per_gpu
from plait.live.scheduler.stop_costs import lost_work_s, why_lost

if TYPE_CHECKING:
    from plait.live.scheduler.engine import Engine

#: Why an attempt was told to stop although it could have gone on with a checkpoint.
GRACEFUL = frozenset({"preempted", "moved", "drained", "leaving"})
#: Signals by which programs crash of themselves.
CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGBUS))
#: Those that can wait until the attempt has got something out of its start.
ROOM = frozenset({"preempted", "moved"})


def reconcile(engine: Engine, now: float) -> None:
    """One pass over jobs that run or should."""
    state = engine.state
    engine.deferred = False
    for number in sorted(engine.live):
        job = state.jobs[number]
        attempt = job.live
        if attempt is None:
            engine.live.discard(number)
            continue
        wanted = state.wanted(job)
        if attempt.stop is None:
            why = _why_stop(engine, job, attempt, wanted)
            if why in ROOM and _begins(engine, attempt):
                engine.deferred = True
            elif why:
                ask_stop(engine, attempt, why, now)
        if _may_close(engine, job, attempt, wanted):
            _close(engine, job, attempt, now)
    ports: set[int] | None = None
    for number, gpus in list(state.groups.of_job.items()):
        job = state.jobs[number]
        if job.live is None and state.wanted(job) == gpus and not _troubled(engine, gpus):
            if ports is None:  # once a pass: a round may begin thousands
                ports = {attempt.port for n in engine.live if (attempt := state.jobs[n].live)}
            _begin(engine, job, gpus, ports, now)


def _why_stop(engine: Engine, job: JobRecord, attempt: Attempt, wanted: tuple[int, ...] | None) -> str:
    if attempt.fault:
        return attempt.fault
    if wanted == attempt.gpus:
        return ""
    if wanted is not None:
        return "moved"
    if engine.state.phase(job) is Phase.CANCELLED:
        return "cancelled"
    nodes = [engine.state.nodes[r.node] for r in attempt.ranks if not r.ended]
    if any(n.lost for n in nodes):
        return "lost"
    if any(n.leaving for n in nodes):
        return "leaving"
    return "drained" if any(n.drained for n in nodes) else "preempted"


def ask_stop(engine: Engine, attempt: Attempt, why: str, now: float) -> None:
    """Tell an attempt to stop; one whose node is about to go has no longer for its checkpoint than the node has."""
    note = {"type": "StopAsked", "at_s": now, "job": attempt.job, "epoch": attempt.epoch, "why": why}
    if why == "leaving":
        nodes = [engine.state.nodes[r.node] for r in attempt.ranks if not r.ended]
        left_s = [n.leaving_s for n in nodes if n.leaving and n.leaving_s is not None]
        note["grace_s"] = min(left_s, default=None)  # None after a restart, until the node has said it again
    engine.do(note)


def _begins(engine: Engine, attempt: Attempt) -> bool:
    """Whether it has processes that have not made a step yet, and still some time for it."""
    if attempt.held_s >= engine.options.first_step_s or any(engine.state.nodes[r.node].lost for r in attempt.ranks):
        return False
    seen = [rank.seen for rank in attempt.ranks if rank.seen is not None]
    return any(s.state == RUNNING for s in seen) and not any((s.step_s or 0.0) > 0 for s in seen)


def _may_close(engine: Engine, job: JobRecord, attempt: Attempt, wanted: tuple[int, ...] | None) -> bool:
    """All have ended; or some are on lost nodes, and there is a replacement or nobody waits for them.

    Nobody waits for a node either that its backend says is dead.
    """
    nodes = engine.state.nodes
    if not all(r.ended or nodes[r.node].lost for r in attempt.ranks):
        return False
    if all(r.ended or nodes[r.node].gone for r in attempt.ranks) or engine.state.phase(job) > Phase.RUNNING:
        return True
    return attempt.fault != "" or (wanted is not None and not _troubled(engine, wanted))


def _outcome(attempt: Attempt) -> str:
    if all(r.ended and r.exit_code == 0 for r in attempt.ranks):
        return "finished"
    if not all(r.ended for r in attempt.ranks):
        return "lost"  # with a node; those of its gang that failed did so for want of it
    named = {FAILED: "failed", START: "start failed", REQUEUE: "requeued"}
    if attempt.fault:
        return named[attempt.fault]
    return "cancelled" if attempt.stop == "cancelled" else "preempted"


def _close(engine: Engine, job: JobRecord, attempt: Attempt, now: float) -> None:
    engine.report_progress(now, [job.number])
    outcome = _outcome(attempt)
    steps = attempt.steps or 0.0
    ago = min((r.seen.ended_s_ago for r in attempt.ranks if r.seen), default=0.0)
    lead = attempt.lead
    held_s, never = _served_s(engine, job, attempt), stop_costs.never_saved(engine, job)
    lost: dict[str, object] = {}
    if outcome not in ("finished", "cancelled") and (lost_s := lost_work_s(attempt, held_s, never)) > 0:
        lost = {"lost_work_s": lost_s, "why_lost": why_lost(attempt, outcome)}
    engine.do(
        {
            "type": "AttemptOver", "at_s": now, "job": job.number, "epoch": attempt.epoch, "outcome": outcome,
            "held_s": held_s, "steps": steps, "ended_s": max(now - max(ago, 0.0), attempt.began_s),
            "first_step_s": lead.first_step_s if lead else None, "last_step_s": lead.last_step_s if lead else None,
            **({"batch_size": lead.adaptive.batch_size} if lead and lead.adaptive else {}), **lost,
        }
    )  # fmt: skip
    engine.live.discard(job.number)
    phase, jobs = engine.state.phase(job), np.array([job.number])
    if phase > Phase.RUNNING:
        return
    if outcome == "finished":
        end_s = max(now - max(ago, 0.0), attempt.began_s)
        engine.do(JobFinished(now, jobs, np.array([end_s])))
    elif outcome == "failed":
        engine.do(_failed(engine, job, attempt, now))
    elif outcome in ("start failed", "requeued"):
        options = engine.options
        if job.launch_failures >= options.launch_tries or job.requeues > options.requeues:
            engine.do(_failed(engine, job, attempt, now))
        elif phase is Phase.RUNNING:
            engine.do(LaunchFailed(now, jobs, attempt.cause))


def _served_s(engine: Engine, job: JobRecord, attempt: Attempt) -> float:
    """Seconds an attempt had its GPUs, as far as anybody knows.

    If its node never reported to this service, what an earlier one had reported to the controller.
    """
    controller = engine.state.controller
    if controller is None or not job.admitted:
        return attempt.held_s
    return max(attempt.held_s, float(controller.books.columns["run_s"][job.number]) - job.held_s)


def _failed(engine: Engine, job: JobRecord, attempt: Attempt, now: float) -> JobFailed:
    """What a failure means: a program that fails at once would do so again, so nobody starts it unless asked to."""
    codes = {rank.exit_code for rank in attempt.ranks if rank.ended}
    own = attempt.fault == START or any(code is not None and (code > 0 or code in CRASHES) for code in codes)
    at_once = attempt.held_s < engine.options.crash_s and not job.mark and not attempt.steps
    jobs = np.array([job.number])
    if own and at_once and attempt.fault != REQUEUE and job.request.get("retries") is None:
        return JobFailed(now, jobs, f"failed at once (no retries unless --retries asks): {attempt.cause}", again=False)
    return JobFailed(now, jobs, attempt.cause)


def _troubled(engine: Engine, gpus: tuple[int, ...]) -> bool:
    """Whether a node of these GPUs has not been heard of lately."""
    controller = engine.state.controller
    assert controller is not None
    cluster = controller.cluster
    nodes = {cluster.nodes[int(n)].id for n in cluster.gpu_node[list(gpus)]}
    return any(engine.state.nodes[n].suspect or engine.state.nodes[n].lost for n in nodes)


def _begin(engine: Engine, job: JobRecord, gpus: tuple[int, ...], ports: set[int], now: float) -> None:
    """A new attempt; `ports` are the master ports in use, and its own is added."""
    controller = engine.state.controller
    assert controller is not None
    cluster = controller.cluster
    ranks = []
    for gpu in sorted(gpus):
        node = int(cluster.gpu_node[gpu])
        ranks += [[cluster.nodes[node].id, gpu - int(cluster.first_gpu[node])]] * processes_per_gpu(job.request)
    try:
        epoch = engine.next_epoch(job)
    except OSError:
        engine.deferred = True  # a disk that is full or gone: try again soon
        return
    port = _port(engine, ports) if len(ranks) > 1 else 0
    ports.add(port)
    engine.do(
        {
            "type": "AttemptBegan", "at_s": now, "job": job.number, "epoch": epoch, "gpus": list(gpus),
            "ranks": ranks, "port": port,
        }
    )  # fmt: skip
    engine.live.add(job.number)
    engine.unfenced[job.number] = ""


def _port(engine: Engine, taken: set[int]) -> int:
    """A master port that no other gang has; one just freed comes last, so that it has time to close.

    Where it begins depends on the home folder: clusters on one machine then seldom take the same ones.
    """
    first, count = engine.options.first_port, engine.options.ports
    begin = zlib.crc32(str(engine.layout.home).encode()) + engine.state.ports_given
    for i in range(count):
        port = first + (begin + i) % count
        if port not in taken:
            return port
    return first + begin % count
