"""What becomes of single jobs in the columns of the job store, and the loops over many."""

from __future__ import annotations

import math

from plait.core.arrays import FloatArray, IntArray
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
