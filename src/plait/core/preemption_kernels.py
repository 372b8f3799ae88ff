"""Compiled kernels: what a stop would lose, and which jobs are kept for that; one value per job.

`plait.core.preemption` states the rule in words.
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import kernel, lean_part

#: Instants closer than this are one, seconds.
CLOCK_S = 1e-6

# `plait.core.jobs.Checkpoints`, as numbers that compile
_NEVER, _PERIODIC = 0, 1


@lean_part
def stop_loss_s(saves: int, run_s: float, saved_run_s: float, restart_s: float) -> float:
    """Seconds on its GPUs that a running job would lose if it were stopped now; `saves` as in `Checkpoints`."""
    if saves == _NEVER:
        return math.inf
    loss = 0.0 if math.isnan(restart_s) else restart_s
    if saves == _PERIODIC:
        loss += max(run_s - saved_run_s, 0.0)
    return loss


@kernel
def stop_losses(
    number: IntArray,
    running_group: IntArray,
    checkpoints: IntArray,
    run_s: FloatArray,
    saved_run_s: FloatArray,
    restart_s: FloatArray,
) -> FloatArray:
    """Seconds on its GPUs that each of the jobs `number` (J,) would lose if it were stopped now.

    The others are columns by job number; `run_s`, `saved_run_s` and `restart_s` in seconds. See `JobTable.stop_loss_s`.
    """
    out = np.zeros(len(number))
    for i in range(len(number)):
        j = number[i]
        if running_group[j] >= 0:
            out[i] = stop_loss_s(checkpoints[j], run_s[j], saved_run_s[j], restart_s[j])
    return out


@lean_part
def kept_until_s(
    now_s: float,
    may_lose_work: bool,
    runs_for: float,
    finishes: bool,
    saves: int,
    loss_s: float,
    last_start_s: float,
    keep_until_s: float,
    left_s: float,
) -> float:
    """Until when one running job stays on its GPUs, seconds, as `PreemptionRule.kept` says; it is kept if after now.

    `saves` as in `Checkpoints`; `left_s`: seconds of work left, NaN if unknown.
    """
    until = -math.inf
    if keep_until_s > now_s + CLOCK_S:
        until = keep_until_s
    if saves == _NEVER:
        if not may_lose_work:
            until = math.inf
    elif loss_s > 0.0:
        if now_s - last_start_s < runs_for * loss_s - CLOCK_S:
            if saves == _PERIODIC:  # the next checkpoint ends it: check again when it is due
                until = max(until, now_s + max(loss_s, 1.0))
            else:
                until = max(until, last_start_s + runs_for * loss_s)
        if finishes and -loss_s < left_s <= loss_s:  # unknown (NaN) compares false
            until = max(until, now_s + left_s + loss_s)
    return until


@kernel
def keep(
    number: IntArray,
    now_s: float,
    may_lose_work: bool,
    runs_for: float,
    finishes: bool,
    running_group: IntArray,
    checkpoints: IntArray,
    run_s: FloatArray,
    saved_run_s: FloatArray,
    restart_s: FloatArray,
    last_start_s: FloatArray,
    keep_until_s: FloatArray,
    iterations: FloatArray,
    done: FloatArray,
    iteration_s: FloatArray,
    rows: BoolArray,
    until_s: FloatArray,
    lasting: BoolArray,
) -> None:
    """Fill `rows`, `until_s` and `lasting`, one entry an entry of `number`, by the rule of `PreemptionRule.kept`."""
    for i in range(len(number)):
        j = number[i]
        if running_group[j] < 0:
            continue
        until = kept_until_s(
            now_s, may_lose_work, runs_for, finishes, checkpoints[j],
            stop_loss_s(checkpoints[j], run_s[j], saved_run_s[j], restart_s[j]), last_start_s[j], keep_until_s[j],
            (iterations[j] - done[j]) * iteration_s[j],
        )  # fmt: skip
        lasting[i] = checkpoints[j] == _NEVER and not may_lose_work
        if until > now_s:
            rows[i], until_s[i] = True, until
