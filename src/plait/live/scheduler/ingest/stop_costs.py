"""Cost of a stop: whether the job can resume from a checkpoint, the work that is lost, and the time of restarts.

A job counts as unable to resume from a checkpoint until all of its processes have reported that they can (`saves`,
which attached scripts send with their first iteration). From then on it saves when it has to stop, unless its last
checkpoint could not be written: then no policy stops it until one is. A guest that waits for its first step loses
nothing: it might wait for ever where it is. The cost of a restart is measured: of the job itself if it had any,
otherwise its own start and the stops of others, otherwise starts and stops on this cluster, otherwise the value stated
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.messages import StopCostReported
from plait.core.jobs import Checkpoints, Phase
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.records.attempts import CAN, FAILS, FROM_START, NO_STEP, Attempt, JobRecord
from plait.live.scheduler.records.track_record import START_UP_S, STOP_S, TrackRecord

#: A cost counts as changed from this share on.
DRIFT = 0.2
#: Reasons for which work is lost.
LOSSES = ("preempted", "requeued", "drained", "node lost", "failed")


def restart_s(record: TrackRecord, job: JobRecord, attempt: Attempt | None) -> float:
    """Seconds that a stop and the start after it keep a job from training.

    The start of a guest is no measure: it may wait long for its host before its first step. Pass None for an attempt
    whose processes started next to the previous one: the next start may be cold.
    """
    if job.restart_s is not None:
        return job.restart_s
    stop_s = _median(list(record.stops_s), STOP_S)
    lead = None if attempt is None else attempt.lead
    if lead is not None and lead.first_step_s is not None and attempt is not None and not attempt.guest:
        return lead.first_step_s + stop_s
    return _median(list(record.starts_s), START_UP_S) + stop_s


def _median(values: list[float], unknown: float) -> float:
    return float(np.median(values)) if values else unknown


def report_stop_cost(ctx: Context, job: JobRecord, attempt: Attempt, now_s: float) -> Iterator[Step]:
    """Report to the controller what a stop of the job would lose, if that changed."""
    state = ctx.state
    if state.controller is None or not job.admitted or state.phase(job) > Phase.RUNNING:
        return
    columns, number = state.controller.job_store.columns, job.number
    known = Checkpoints(int(columns["checkpoints"][number]))
    says = [rank.seen.saves for rank in attempt.ranks if rank.seen is not None]
    now_it = known
    if any(one in (*FROM_START, FAILS) for one in says):
        now_it = Checkpoints.NEVER
    elif len(says) == len(attempt.ranks) and all(one == CAN or (one == NO_STEP and attempt.guest) for one in says):
        now_it = Checkpoints.ON_STOP
    before_s = float(columns["restart_s"][number])
    overlapped = ctx.overlapped.get(number) == attempt.epoch
    cost_s = before_s if overlapped and before_s > 0 else restart_s(state.record, job, None if overlapped else attempt)
    changed = math.isnan(before_s) or abs(cost_s - before_s) > DRIFT * max(cost_s, before_s)
    if now_it is known and (known is Checkpoints.NEVER or not changed):
        return
    unknown = np.array([math.nan])
    yield StopCostReported(now_s, np.array([number]), np.array([int(now_it)]), unknown, np.array([cost_s]))


def lost_work_s(attempt: Attempt, held_s: float, never: bool) -> float:
    """Seconds of work of a finished attempt from which no job resumes; 0 for one that finished its work.

    The work after its newest checkpoint; all of it, from its start on, for a job that has none. `held_s`: how long it
    had its GPUs; `never`: the job cannot resume from a checkpoint, as far as it has reported.
    """
    lead = attempt.lead
    if lead is None:  # it reported to an earlier service, and checkpoints since then are unknown
        return held_s if never else 0.0
    if lead.checkpoint_age_s is None or lead.saves in FROM_START:
        return max(attempt.held_s, 0.0)
    last_s, first_s = lead.last_step_s, lead.first_step_s
    if last_s is None or first_s is None:
        return 0.0  # it made no iteration, and begins where the last attempt had saved
    saved_s = max(lead.held_s - lead.checkpoint_age_s, first_s - (lead.step_s or 0.0))
    done = lead.checkpoint_steps is not None and lead.checkpoint_steps >= lead.steps
    return 0.0 if done else max(last_s - saved_s, 0.0)


def why_lost(attempt: Attempt, outcome: str) -> str:
    """The reason of a loss: one of `LOSSES`."""
    if attempt.stop in ("preempted", "moved", "yields"):
        return "preempted"
    if attempt.stop in ("requeued", "resized"):
        return "requeued"
    if attempt.stop in ("drained", "leaving"):
        return "drained"
    return "node lost" if outcome == "lost" or attempt.stop == "lost" else "failed"


def served_s(ctx: Context, job: JobRecord, attempt: Attempt) -> float:
    """Seconds an attempt had its GPUs, as far as anybody knows.

    If its node never reported to this service, what an earlier one had reported to the controller.
    """
    controller = ctx.state.controller
    if controller is None or not job.admitted:
        return attempt.held_s
    return max(attempt.held_s, float(controller.job_store.columns["run_s"][job.number]) - job.held_s)


def never_saved(ctx: Context, job: JobRecord) -> bool:
    """Whether the job cannot resume from a checkpoint, as far as its processes have reported."""
    controller = ctx.state.controller
    if controller is None or not job.admitted:
        return False
    return int(controller.job_store.columns["checkpoints"][job.number]) == int(Checkpoints.NEVER)


def kept(controller: Controller, number: int) -> bool:
    """Whether no policy may stop a job because it cannot resume from a checkpoint."""
    never = int(controller.job_store.columns["checkpoints"][number]) == int(Checkpoints.NEVER)
    return never and not controller.rule.may_lose_work


def shown(ctx: Context, job: JobRecord) -> dict[str, Any]:
    """Fields of an unfinished job for display: whether a policy may stop it, at which cost, and the costs so far."""
    controller = ctx.state.controller
    out: dict[str, Any] = {"lost_work_s": job.lost_work_s, "restarts": job.restarts, "restart_s": job.restart_s}
    if controller is None or not job.admitted:
        return out
    columns, number = controller.job_store.columns, job.number
    saves = Checkpoints(int(columns["checkpoints"][number]))
    cost_s = float(columns["restart_s"][number])
    lead = job.live.lead if job.live is not None else None
    return {
        **out,
        "unbegun": lead is not None and lead.saves == NO_STEP and saves is not Checkpoints.NEVER,
        "resumable": saves is not Checkpoints.NEVER,
        "kept": kept(controller, number),
        "stop_costs_s": None if saves is Checkpoints.NEVER or math.isnan(cost_s) else cost_s,
    }
