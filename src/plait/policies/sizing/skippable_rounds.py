"""Until when may a policy skip its rounds?

A round that moved no job repeats unless a job becomes due, stops being protected, or overtakes another in service.
These times are known. Only the restart discount varies continuously; it rises towards 1, so the policy checks that it
would decide the same with a discount of 1 (`without_restart_costs`), or tests the coming rounds one by one (`at_time`).
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import BoolArray, FloatArray
from plait.core.compile_policy import compiled, run
from plait.core.goodput import Estimate
from plait.core.jobs import Checkpoints, JobTable
from plait.core.policy import View
from plait.goodput.model.speedup import restart_factor
from plait.policies.sizing.line_kernels import first_change_s
from plait.policies.sizing.pools import Pool

#: Cost of finding the next change without its kernel, tenths of a millisecond.
WORK = 3


def restart_cost_s(view: View, restart_s: float) -> FloatArray:
    """(jobs,): seconds that a restart of each job costs: as measured, else `restart_s`."""
    measured = view.jobs.goodput[:, Estimate.RESTART_S]
    return np.where(np.isnan(measured), restart_s, measured)


def protected_run_s(jobs: JobTable, patience_s: float) -> FloatArray:
    """(jobs,): seconds for which a job that is due runs before others that are due may stop it.

    That is `patience_s`. For jobs that would lose as much by that stop it grows with each start; otherwise they would
    never get past the same point.
    """
    lose = jobs.stop_loss_s >= patience_s
    if not lose.any():
        return np.full(len(jobs), patience_s)
    return patience_s * np.where(lose, np.maximum(jobs.starts, 1.0), 1.0)


def unchanged_until(view: View, due: BoolArray, guaranteed: BoolArray, patience_s: float, restart_s: float) -> float:
    """The first second at which time alone changes which jobs are due, fresh, stoppable, or first.

    Infinite if never.

    `due` and `guaranteed` are one flag a row of `view.jobs`: due now, and ever entitled to be. A job whose next
    checkpoint is not foreseen may be stopped from any time on: then it is now.
    """
    if not compiled(first_change_s, WORK):
        return _unchanged_until(view, due, guaranteed, patience_s, restart_s)
    jobs, kept, c = view.jobs, view.keeps, view.jobs.columns
    return run(
        first_change_s, jobs.number, np.argsort(jobs.attained_gpu_s, kind="stable"), view.now_s, float(patience_s),
        float(restart_s), due, guaranteed, jobs.stop_loss_s, kept.rows, kept.until_s, kept.losses, view.rule.finishes,
        c["phase"], c["checkpoints"], c["starts"], c["gpus"], c["run_s"], c["run_base_s"], c["wait_s"],
        c["pending_since_s"], c["last_start_s"], c["attained_gpu_s"], c["iterations"], c["iterations_done"],
        c["iteration_s"], c["goodput"],
    )  # fmt: skip


def _unchanged_until(view: View, due: BoolArray, guaranteed: BoolArray, patience_s: float, restart_s: float) -> float:
    """`unchanged_until` in NumPy."""
    jobs, now = view.jobs, view.now_s
    running, waits, first = jobs.running, ~jobs.running & guaranteed & ~due, [math.inf]
    if (due & running & (jobs.checkpoints == int(Checkpoints.PERIODIC))).any():
        return now  # what it would lose decides how long it is protected
    first += (now + protected_run_s(jobs, patience_s) - jobs.served_s)[due & running].tolist()
    first += (now + patience_s - jobs.waiting_s[waits]).tolist()
    again = waits & (jobs.served_s > 0)
    first += (now + np.maximum(patience_s, jobs.served_s[again]) - jobs.idled_s[again]).tolist()
    begun = jobs.last_start_s[running] + 2 * restart_cost_s(view, restart_s)[running]
    first += begun[begun > now].tolist()
    return min(*first, _kept_until(view), *(_overtakes_s(view, jobs.running & some) for some in (due, ~due)))


def _overtakes_s(view: View, rows: BoolArray) -> float:
    """When one of these running jobs has first had more service than another one that is ahead of it now."""
    attained, gpus = view.jobs.attained_gpu_s[rows], view.jobs.gpus[rows]
    order = np.argsort(attained, kind="stable")
    lead, closing = np.diff(attained[order]), -np.diff(gpus[order])
    return view.now_s + float((lead[closing > 0] / closing[closing > 0]).min(initial=math.inf))


def _kept_until(view: View) -> float:
    """When the first job becomes stoppable, or stops being so because it is about to end."""
    kept, jobs = view.keeps, view.jobs
    out = float(kept.until_s[kept.rows].min(initial=math.inf))
    if not kept.losses:
        return out
    if (jobs.running & (jobs.checkpoints == int(Checkpoints.PERIODIC))).any():
        return view.now_s
    if view.rule.finishes:
        loss = jobs.stop_loss_s
        spare = (jobs.iterations - jobs.iterations_done) * jobs.iteration_s - loss
        ends = jobs.running & ~kept.rows & (loss > 0) & (spare > 0)  # unknown (NaN) compares false
        out = min(out, view.now_s + float(spare[ends].min(initial=math.inf)))
    return out


def at_time(view: View, pool: Pool, at_s: float, restart_s: float) -> Pool:
    """The pool at time `at_s`, with the part of each speed-up that a restart of `restart_s` seconds leaves then."""
    jobs, rows = view.jobs, pool.rows
    restarts, ran = np.maximum(jobs.starts[rows] - 1, 0), jobs.starts[rows] > 0
    delta = restart_cost_s(view, restart_s)[rows]
    return pool.with_kept(restart_factor(at_s - jobs.submit_s[rows], restarts, delta, ran=ran))


def without_restart_costs(pool: Pool, chosen: BoolArray) -> Pool:
    """The pool in which a restart costs the jobs (J,) that were not chosen nothing: the most that waiting can bring."""
    return pool.with_kept(np.where(chosen, pool.kept, 1.0))
