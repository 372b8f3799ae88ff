"""Jobs whose batch adapts (Pollux, OSDI'21) as the service sees them: their work, what they estimate, what is shown.

Policies count the work of such a job in iterations at its first batch size (its progress), whatever its batch is now;
users see the steps that its optimizer makes. Estimates of a job reach the job store as `GoodputReported`, when they
have changed so much that a decision could; the cost of a restart is measured here, not reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from plait.control.messages import GoodputReported
from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, Estimate
from plait.core.jobs import Phase
from plait.goodput.model.efficiency import efficiency, gain
from plait.live.protocol.requests import limits_of
from plait.live.protocol.wire import Adaptive, Seen
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.records.attempts import Attempt, JobRecord
from plait.live.scheduler.records.notes import Restarted
from plait.live.scheduler.records.observations import EstimateTaken, TotalReported

#: An estimate counts as changed from this share on; numbers below `SMALL` are alike (parameters that are not used).
DRIFT, SMALL = 0.05, 1e-6
#: A script that adapts has reported so after as many steps.
MANY_STEPS = 10
_NOBODY = np.full(len(Estimate), math.nan)


@dataclass(frozen=True, slots=True)
class Work:
    """Work done by a job, its total, and the current seconds of one iteration, as policies count; None unknown.

    In iterations: steps of the optimizer, of an adaptive job such as one at its first batch size is worth.
    """

    done: float | None
    total: float | None
    each_s: float | None


def work_of(ctx: Context, job: JobRecord, attempt: Attempt) -> Work:
    """The work of a job by the last reports of its processes."""
    lead, limits = attempt.lead, limits_of(job.request)
    if lead is None:
        return Work(None, job.total, None)
    if limits is None:
        return Work(attempt.steps, lead.total_steps, lead.step_s)
    said = lead.adaptive
    if said is None:  # it has not begun, or its script does not adapt
        return Work(None, job.total, None)
    each_s = None
    if lead.step_s and said.batch_size:
        sqr, var = _noise(row_of(ctx, job))
        each_s = lead.step_s / float(gain(sqr, var, _scale(said.batch_size, limits)))
    return Work(attempt.progress, job.total, each_s)


def report_estimate(ctx: Context, job: JobRecord, seen: Seen, now_s: float) -> Iterator[Step]:
    """Report a job's estimate of itself to the controller if it changed and the last one is old enough.

    `seen`: report of the job's first process.
    """
    said = seen.adaptive
    if said is None or not job.request.get("batch"):
        return
    if said.batch_size:  # it has made a step, and reports with each the number of steps to come, or that it is unknown
        yield TotalReported(job.number, said.total or None)
    if said.estimate is None:
        return
    if ctx.state.controller is None or ctx.state.phase(job) > Phase.RUNNING:
        return
    if now_s < job.estimated_s + ctx.options.estimate_s:
        return
    known = row_of(ctx, job)
    new = np.array([math.nan if x is None else x for x in said.estimate])
    most = Estimate.PROFILED_GPUS
    new[most] = np.fmax(new[most], known[most])
    new[Estimate.RESTART_S] = known[Estimate.RESTART_S]  # measured here: a job cannot know what its end and start cost
    if differs(new, known):
        yield EstimateTaken(now_s, job.number)
        yield _estimate(job, new, now_s)


def report_restart(ctx: Context, job: JobRecord, seen: Seen, now_s: float) -> Iterator[Step]:
    """At the first step after a requested stop: report how long the job was kept from training; not of a guest."""
    if job.down_s is None or seen.first_step_s is None or (job.live is not None and job.live.guest):
        return
    cost_s = job.down_s + seen.first_step_s
    yield Restarted(now_s, job.number, seen.epoch, cost_s)
    if ctx.state.controller is not None and job.admitted and ctx.state.phase(job) <= Phase.RUNNING:
        new = row_of(ctx, job).copy()
        new[Estimate.RESTART_S] = job.restart_s
        yield _estimate(job, new, now_s)


def differs(new: FloatArray, known: FloatArray) -> bool:
    """Whether an estimate has changed noticeably; both by `Estimate`, NaN not known."""
    unknown = np.isnan(new)
    if (unknown != np.isnan(known)).any():
        return True
    a, b = new[~unknown], known[~unknown]
    larger = np.maximum(a, b)
    return bool(((larger > SMALL) & (np.abs(a - b) > DRIFT * larger)).any())


def shown(ctx: Context, job: JobRecord) -> dict[str, Any] | None:
    """Fields of an unfinished adaptive job for display; None for others.

    `goodput` is progress in examples a second (examples at the first batch size that would have taught as much),
    `efficiency` the part of it that an example is worth compared to one at that size.
    """
    limits = limits_of(job.request)
    if limits is None:
        return None
    asked = int(job.request.get("gpus") or 1)
    out: dict[str, Any] = {
        "min_gpus": int(job.request.get("min_gpus") or asked),
        "max_gpus": int(job.request.get("max_gpus") or asked),
        "limits": asdict(limits),
        "restarts": job.restarts,
        "restart_s": job.restart_s,
    }
    attempt = job.live
    said = attempt.lead.adaptive if attempt is not None and attempt.lead is not None else None
    if said is not None or job.total is not None:  # also while it starts again, or waits for that
        done = (attempt.progress if attempt is not None else None) or _done(ctx, job)
        out.update(progress=done, total_progress=job.request.get("iterations") or job.total)
    if attempt is None or said is None:
        if attempt is not None and (attempt.steps or 0.0) >= MANY_STEPS:
            out["difference"] = "its script does not adapt; load its data by plait.training.adaptive.AdaptiveDataLoader"
        return out
    work = work_of(ctx, job, attempt)
    out["batch_size"] = said.batch_size
    if said.batch_size:
        sqr, var = _noise(row_of(ctx, job))
        out["efficiency"] = float(efficiency(sqr, var, _scale(said.batch_size, limits)))
    if work.each_s:
        out["goodput"] = limits.initial / work.each_s
    if difference := difference_of(limits, said):
        out["difference"] = difference
    if said.not_finite:
        number = "its newest step was" if said.not_finite == 1 else f"its newest {said.not_finite:,.0f} steps were"
        out["not_finite"] = f"{number} no progress: gradients are not finite, as of a loss that is NaN"
    return out


def difference_of(limits: BatchLimits, said: Adaptive) -> str:
    """The difference between the bounds of the script and of the submission, in words; empty if there is none."""
    if said.limits is None:
        return ""
    *bounds, accumulation = said.limits
    try:
        own = BatchLimits(
            initial=bounds[0], most=bounds[1], least_local=bounds[2], most_local=bounds[3],
            accumulation=bool(accumulation),
        )  # fmt: skip
    except (InputError, IndexError):
        return ""
    pairs = [(name, asdict(own)[name], value) for name, value in asdict(limits).items() if asdict(own)[name] != value]
    if not pairs:
        return ""
    text = ", ".join(f"{name} {mine} and not {asked}" for name, mine, asked in pairs)
    return f"its script uses batch {text}: it keeps to that, but its GPUs are chosen by what was submitted"


def _estimate(job: JobRecord, row: FloatArray, now_s: float) -> GoodputReported:
    return GoodputReported(now_s, np.array([job.number]), row.reshape(1, -1))


def row_of(ctx: Context, job: JobRecord) -> FloatArray:
    """The values of a job in the job store, by `Estimate`."""
    controller = ctx.state.controller
    if controller is None or not job.admitted:
        return _NOBODY
    row: FloatArray = controller.job_store.columns["goodput"][job.number]
    return row


def _done(ctx: Context, job: JobRecord) -> float | None:
    """The progress that the job store has."""
    if ctx.state.controller is None or not job.admitted:
        return None
    return float(ctx.state.controller.job_store.columns["iterations_done"][job.number])


def _noise(row: FloatArray) -> tuple[float, float]:
    """Squared gradient norm and variance; before any statistics a batch of any size is worth its examples."""
    sqr, var = float(row[Estimate.SQR]), float(row[Estimate.VAR])
    return (0.0, 1.0) if math.isnan(sqr) or math.isnan(var) else (sqr, var)


def _scale(batch: float, limits: BatchLimits) -> float:
    """First batch sizes in a step; less than one counts as one, as training counts it: a gain is never 0 then."""
    return max(batch / limits.initial, 1.0)
