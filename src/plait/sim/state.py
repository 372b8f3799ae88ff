"""Columns of jobs that the simulator's monitors need, and the loops over jobs that it runs at every instant.

`state` has a row a job and the columns below; times are milliseconds since the origin of time. `running` is a flag.
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel, lean_part, linked
from plait.sim.world import CHECKPOINT, LAUNCH, MIGRATE, RESTORE

#: columns of `Running.state`: what the monitors need to know of a job, together in memory
DONE, RATE, SINCE, HOLD, RUN, SERVICE, GPUS, UNIT = range(8)


@lean_part
def done_at(j: int, now_ms: float, running: bool, state: FloatArray) -> float:
    """Work of a job, which may be `running`, that is done at `now_ms`; milliseconds alone."""
    work: float = state[j, DONE]
    if running and now_ms > state[j, SINCE]:
        work += (now_ms - state[j, SINCE]) * state[j, RATE]
    return work


@lean_part
def held_ms(j: int, now_ms: float, running: bool, state: FloatArray) -> float:
    """How long a job, which may be `running`, has held its present GPUs at `now_ms`."""
    held = 0.0
    if running and now_ms > state[j, HOLD]:
        held = now_ms - state[j, HOLD]
    return held


@lean_part
def ran_s(j: int, held: float, state: FloatArray) -> float:
    """Seconds that a job has held GPUs, its present ones for `held` ms."""
    ran: float = (state[j, RUN] + held) / 1e3
    return ran


@lean_part
def attained_gpu_s(j: int, held: float, state: FloatArray) -> float:
    """GPU-seconds that a job has held, its present GPUs for `held` ms."""
    attained: float = (state[j, SERVICE] + held * state[j, GPUS]) / 1e3
    return attained


@kernel
def measure(
    jobs: IntArray, now_ms: float, is_running: IntArray, state: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Iterations done, GPU-seconds, run seconds and current iteration seconds of these jobs at `now_ms`."""
    n = len(jobs)
    iterations, attained, ran, pace = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        j, running = jobs[i], is_running[jobs[i]] == 1
        held = held_ms(j, now_ms, running, state)
        iterations[i] = done_at(j, now_ms, running, state) / state[j, UNIT]
        ran[i] = ran_s(j, held, state)
        attained[i] = attained_gpu_s(j, held, state)
        pace[i] = state[j, UNIT] / state[j, RATE] / 1e3 if running else math.nan
    return iterations, attained, ran, pace


@lean_part
def pace_one(
    j: int,
    speed: float,
    now_ms: float,
    state: FloatArray,
    solo: FloatArray,
    worked_ms: FloatArray,
    total_ms: FloatArray,
    fail_ms: FloatArray,
    end_ms: FloatArray,
    stop_ms: FloatArray,
) -> None:
    """Book the work that job `j` has done until `now_ms`, and let it go on at `speed`.

    The arrays are columns of all jobs, changed in place: see `Running`, whose `_settle` and `_set_pace` do the same for
    a job that may adapt its batch.
    """
    work = now_ms - state[j, SINCE]
    if work > 0:
        state[j, DONE] += work * state[j, RATE]
        worked_ms[j] += work
        state[j, SINCE] = now_ms
    solo[j] = state[j, RATE] = speed
    left = math.ceil((total_ms[j] - state[j, DONE]) / speed - 1e-6)
    end_ms[j] = state[j, SINCE] + max(left, 1)
    stop_ms[j] = min(end_ms[j], fail_ms[j])


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
    """`pace_one` of each of `jobs`, with one entry of `speed` a job."""
    for i in range(len(jobs)):
        pace_one(jobs[i], speed[i], now_ms, state, solo, worked_ms, total_ms, fail_ms, end_ms, stop_ms)


@linked()
def start_one(
    j: int,
    node: int,
    gpus: int,
    begin_ms: float,
    resume_ms: float,
    cost_ms: FloatArray,
    state: FloatArray,
    overhead_ms: FloatArray,
    attempts: IntArray,
    last_node: IntArray,
    is_running: IntArray,
) -> float:
    """Put job `j` on `gpus` GPUs, the first on `node`, from `begin_ms` on; returns the start-up in ms.

    A job that has run before is restored, which takes at most `resume_ms`, and migrates if the node is another one.
    The arrays are columns of all jobs, changed in place; `cost_ms` (jobs, 4) as `Overheads.for_batch`.
    """
    start_up: float = cost_ms[j, LAUNCH]
    if attempts[j] > 0:
        start_up = min(cost_ms[j, RESTORE], resume_ms)
        if node != last_node[j]:
            start_up += cost_ms[j, MIGRATE]
    attempts[j] += 1
    last_node[j] = node
    is_running[j] = 1
    state[j, GPUS] = gpus
    state[j, HOLD] = begin_ms
    state[j, SINCE] = begin_ms + start_up
    overhead_ms[j] += start_up
    return start_up


@linked()
def leave_one(
    j: int,
    at_ms: float,
    survives: float,
    save: bool,
    saves: bool,
    cost_ms: FloatArray,
    state: FloatArray,
    overhead_ms: FloatArray,
    worked_ms: FloatArray,
    safe_ms: FloatArray,
    free_ms: FloatArray,
    end_ms: FloatArray,
    stop_ms: FloatArray,
    is_running: IntArray,
) -> float:
    """Take job `j` off its GPUs at `at_ms`; returns the milliseconds that it still holds them to write a checkpoint.

    Of its work at most `survives` ms does. `save`: what it has done then survives a crash, too. `saves`: it writes a
    checkpoint for that, unless there is one or it has ended. The arrays are columns of all jobs, changed in place.
    """
    worked, saving = max(0.0, at_ms - state[j, SINCE]), 0.0
    overhead_ms[j] -= max(0.0, state[j, SINCE] - max(at_ms, state[j, HOLD]))
    worked_ms[j] += worked
    done = min(state[j, DONE] + worked * state[j, RATE], survives)
    if saves and done > safe_ms[j] and at_ms < end_ms[j]:
        saving = cost_ms[j, CHECKPOINT]
    state[j, DONE] = done
    if save:
        safe_ms[j] = done
    held = max(0.0, at_ms - state[j, HOLD]) + saving
    state[j, RUN] += held
    overhead_ms[j] += saving
    state[j, SERVICE] += held * state[j, GPUS]
    is_running[j] = 0
    stop_ms[j] = end_ms[j] = math.inf
    free_ms[j] = at_ms + saving
    return saving


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
