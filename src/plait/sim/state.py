"""Columns of jobs that the simulator's monitors need, and the loops over jobs that it runs at every instant.

`state` has a row a job and the columns below; times are milliseconds since the origin of time. `running` is a flag.
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel

#: columns of `Running.state`: what the monitors need to know of a job, together in memory
DONE, RATE, SINCE, HOLD, RUN, SERVICE, GPUS, UNIT = range(8)


@kernel
def measure(
    jobs: IntArray, now_ms: float, running: IntArray, state: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Iterations done, GPU-seconds, run seconds and current iteration seconds of these jobs at `now_ms`."""
    n = len(jobs)
    iterations, attained, ran, pace = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        j = jobs[i]
        work, held = state[j, DONE], 0.0
        pace[i] = math.nan
        if running[j] == 1:
            if now_ms > state[j, SINCE]:
                work += (now_ms - state[j, SINCE]) * state[j, RATE]
            if now_ms > state[j, HOLD]:
                held = now_ms - state[j, HOLD]
            pace[i] = state[j, UNIT] / state[j, RATE] / 1e3
        iterations[i] = work / state[j, UNIT]
        ran[i] = (state[j, RUN] + held) / 1e3
        attained[i] = (state[j, SERVICE] + held * state[j, GPUS]) / 1e3
    return iterations, attained, ran, pace


@kernel
def repace(
    jobs: IntArray,
    speed: FloatArray,
    now_ms: float,
    state: FloatArray,
    solo: FloatArray,
    worked_ms: FloatArray,
    total_ms: FloatArray,
    fail_ms: FloatArray,
    end_ms: FloatArray,
    stop_ms: FloatArray,
) -> None:
    """Book the work that these jobs have done until `now_ms`, and let them go on at `speed` (one entry a job).

    All but `jobs` and `speed` are columns of all jobs, changed in place: see `Running`, whose `_settle` and `_set_pace`
    do the same for one job that may adapt its batch.
    """
    for i in range(len(jobs)):
        j = jobs[i]
        work = now_ms - state[j, SINCE]
        if work > 0:
            state[j, DONE] += work * state[j, RATE]
            worked_ms[j] += work
            state[j, SINCE] = now_ms
        solo[j] = state[j, RATE] = speed[i]
        left = math.ceil((total_ms[j] - state[j, DONE]) / speed[i] - 1e-6)
        end_ms[j] = state[j, SINCE] + max(left, 1)
        stop_ms[j] = min(end_ms[j], fail_ms[j])


@kernel
def earliest(jobs: IntArray, at: FloatArray) -> float:
    """Smallest entry of `at` over these jobs; infinite if there are none."""
    best = math.inf
    for j in jobs:
        best = min(best, at[j])
    return best


@kernel
def due_by(jobs: IntArray, at: FloatArray, now_ms: float) -> IntArray:
    """Those of these jobs whose entry of `at` is not after `now_ms`."""
    out = np.empty(len(jobs), dtype=np.int64)
    n = 0
    for j in jobs:
        if at[j] <= now_ms:
            out[n] = j
            n += 1
    return out[:n]


@kernel
def still(jobs: IntArray, flag: IntArray) -> IntArray:
    """Those of these jobs whose flag is set."""
    out = np.empty(len(jobs), dtype=np.int64)
    n = 0
    for j in jobs:
        if flag[j] == 1:
            out[n] = j
            n += 1
    return out[:n]


def to_ms(seconds: float) -> float:
    """Whole milliseconds, up; a hair below a whole one counts as it."""
    return float(math.ceil(seconds * 1000 - 1e-6)) if math.isfinite(seconds) else seconds
