"""What becomes of single jobs in the columns of the job store, and the loops over many."""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import kernel, lean_part
from plait.core.jobs import Phase

WAITING, RUNNING, FINISHED = int(Phase.WAITING), int(Phase.RUNNING), int(Phase.FINISHED)


@lean_part
def job_starts(
    job: int,
    now_s: float,
    ran_s: float,
    run_base_s: FloatArray,
    wait_s: FloatArray,
    pending_since_s: FloatArray,
    first_start_s: FloatArray,
    last_start_s: FloatArray,
    starts: IntArray,
    phase: IntArray,
) -> None:
    """Write into the job store that a job, which has run for `ran_s`, starts at `now_s`; the rest are its columns.

    A wait counts for promotion once the job has run since its last promotion.
    """
    if ran_s > run_base_s[job]:
        wait_s[job] += now_s - pending_since_s[job]
    if math.isnan(first_start_s[job]):
        first_start_s[job] = now_s
    last_start_s[job] = now_s
    starts[job] += 1
    phase[job] = RUNNING


@lean_part
def job_waits(job: int, now_s: float, phase: IntArray, running_group: IntArray, pending_since_s: FloatArray) -> None:
    """Write into the job store that a job waits from `now_s` on; the arrays are its columns."""
    phase[job] = WAITING
    running_group[job] = -1
    pending_since_s[job] = now_s


@kernel
def start_jobs(
    jobs: IntArray,
    now_s: float,
    run_s: FloatArray,
    run_base_s: FloatArray,
    wait_s: FloatArray,
    pending_since_s: FloatArray,
    first_start_s: FloatArray,
    last_start_s: FloatArray,
    starts: IntArray,
    phase: IntArray,
) -> None:
    """`job_starts` of each of `jobs`."""
    for job in jobs:
        job_starts(
            job, now_s, run_s[job], run_base_s, wait_s, pending_since_s, first_start_s, last_start_s, starts, phase
        )


@kernel
def record_progress(
    jobs: IntArray,
    done: FloatArray,
    attained: FloatArray,
    ran: FloatArray,
    iterations_done: FloatArray,
    attained_gpu_s: FloatArray,
    run_s: FloatArray,
    iteration_s: FloatArray,
    lost_s: FloatArray,
) -> None:
    """Write what the monitors measured into the job store: iterations that are no longer `done` were lost.

    `done` (iterations), `attained` (GPU-seconds) and `ran` (seconds) have one entry per entry of `jobs` (numbers); the
    rest are columns of the store, changed in place.
    """
    for i in range(len(jobs)):
        lost = (iterations_done[jobs[i]] - done[i]) * iteration_s[jobs[i]]
        if lost > 1e-6:  # unknown (NaN) compares false
            lost_s[jobs[i]] += lost
        iterations_done[jobs[i]] = done[i]
        attained_gpu_s[jobs[i]] = attained[i]
        run_s[jobs[i]] = ran[i]


@kernel
def record_completion(jobs: IntArray, iterations: FloatArray, iterations_done: FloatArray) -> None:
    """Set `iterations_done` of finished `jobs` (numbers) to `iterations`, where that is known."""
    for job in jobs:
        if not math.isnan(iterations[job]):
            iterations_done[job] = iterations[job]


@kernel
def record_shared_speed(
    jobs: IntArray,
    paced_s: FloatArray,
    first_job: IntArray,
    guest: BoolArray,
    running_group: IntArray,
    iteration_s: FloatArray,
    shared_speed: FloatArray,
    same: float,
) -> IntArray:
    """Write the speeds of guests and of groups in which every member reports one; return the groups with news.

    From other groups a member has just left, so the reported speeds of the rest are outdated. `paced_s` has an entry a
    job: seconds an iteration, NaN if unknown. `guest` has flags of groups, or none. A relative difference of at most
    `same` is no news. The rest are columns of the store.
    """
    groups = len(first_job) - 1
    reporting, news = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.bool_)
    for i in range(len(jobs)):
        group = running_group[jobs[i]]
        if group >= 0 and not math.isnan(paced_s[i]):
            reporting[group] += 1
    for i in range(len(jobs)):
        job = jobs[i]
        group = running_group[job]
        if group < 0 or math.isnan(paced_s[i]):
            continue
        members = first_job[group + 1] - first_job[group]
        if (members > 1 and reporting[group] == members) or (len(guest) > 0 and guest[group]):
            speed = iteration_s[job] / paced_s[i]
            if not abs(speed - shared_speed[job]) <= same * speed:  # so is the first report, after NaN
                news[group] = True
            shared_speed[job] = speed
    return np.flatnonzero(news)
