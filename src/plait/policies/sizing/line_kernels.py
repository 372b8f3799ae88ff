"""The line of due jobs of a policy in rounds, compiled: columns of the job table in, one value per row out.

`number` (jobs,) has the entries of the columns that are the rows. `plait.policies.sizing` has the same rules in NumPy:
in `rounds` which jobs are due, in `skippable_rounds` when that changes, in `pools` the GPUs and weights of jobs; a test
compares them.

All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

import math

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import kernel, part

#: Instants closer than this are one, seconds.
CLOCK_S = 1e-6

# `Phase.RUNNING`, `JobClass.OPPORTUNISTIC`, `Checkpoints.PERIODIC` and `Estimate.RESTART_S`, as numbers that compile
_RUNNING, _OPPORTUNISTIC, _PERIODIC, _RESTART_S = 1, 1, 1, 10


@part
def _protected_run_s(starts: int, loss_s: float, patience_s: float) -> float:
    """Seconds for which a job that is due runs before others that are due may stop it."""
    return patience_s * max(float(starts), 1.0) if loss_s >= patience_s else patience_s


@kernel
def in_line(
    number: IntArray,
    now_s: float,
    patience_s: float,
    loss_s: FloatArray,
    phase: IntArray,
    job_class: IntArray,
    weight: FloatArray,
    promotions: IntArray,
    starts: IntArray,
    run_s: FloatArray,
    run_base_s: FloatArray,
    wait_s: FloatArray,
    pending_since_s: FloatArray,
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """(guaranteed, due, late): rows that may ever be due, rows that are, and rows that become due now.

    `loss_s` (jobs,) is what stopping each row would lose, seconds.
    """
    jobs = len(number)
    guaranteed, due = np.zeros(jobs, dtype=np.bool_), np.zeros(jobs, dtype=np.bool_)
    late = np.zeros(jobs, dtype=np.bool_)
    for i in range(jobs):
        j = number[i]
        guaranteed[i] = job_class[j] != _OPPORTUNISTIC and weight[j] > 0 and patience_s < math.inf
        if not guaranteed[i]:
            continue
        served_s = run_s[j] - run_base_s[j]
        due[i] = promotions[j] > 0 and served_s < _protected_run_s(starts[j], loss_s[i], patience_s)
        if due[i]:
            continue
        if phase[j] == _RUNNING:
            late[i] = patience_s - CLOCK_S <= 0.0
            continue
        waited_s = now_s - pending_since_s[j]
        idled_s = wait_s[j] + (waited_s if served_s > 0 else 0.0)
        late[i] = waited_s >= patience_s - CLOCK_S or idled_s >= max(patience_s, served_s) - CLOCK_S
    return guaranteed, due, late


@kernel
def first_change_s(
    number: IntArray,
    by_service: IntArray,
    now_s: float,
    patience_s: float,
    restart_s: float,
    due: BoolArray,
    guaranteed: BoolArray,
    loss_s: FloatArray,
    kept: BoolArray,
    kept_until_s: FloatArray,
    losses: bool,
    finishes: bool,
    phase: IntArray,
    checkpoints: IntArray,
    starts: IntArray,
    gpus: IntArray,
    run_s: FloatArray,
    run_base_s: FloatArray,
    wait_s: FloatArray,
    pending_since_s: FloatArray,
    last_start_s: FloatArray,
    attained_gpu_s: FloatArray,
    iterations: FloatArray,
    done: FloatArray,
    iteration_s: FloatArray,
    goodput: FloatArray,
) -> float:
    """When time alone first changes the line, seconds: `skippable_rounds.unchanged_until`.

    `by_service` (jobs,): rows by attained service, of equals the first ones first.
    """
    out = math.inf
    for i in range(len(number)):
        j = number[i]
        served_s = run_s[j] - run_base_s[j]
        if kept[i]:
            out = min(out, kept_until_s[i])
        if phase[j] != _RUNNING:
            if guaranteed[i] and not due[i]:
                out = min(out, now_s + patience_s - (now_s - pending_since_s[j]))
                if served_s > 0:
                    idled_s = wait_s[j] + (now_s - pending_since_s[j])
                    out = min(out, now_s + max(patience_s, served_s) - idled_s)
            continue
        if checkpoints[j] == _PERIODIC:  # the loss decides, and the time of its next checkpoint is unknown
            if due[i]:
                return now_s
            if losses:
                out = min(out, now_s)
        if due[i]:
            out = min(out, now_s + _protected_run_s(starts[j], loss_s[i], patience_s) - served_s)
        cost_s = restart_s if math.isnan(goodput[j, _RESTART_S]) else goodput[j, _RESTART_S]
        begun_s = last_start_s[j] + 2 * cost_s
        if begun_s > now_s:
            out = min(out, begun_s)
        spare_s = (iterations[j] - done[j]) * iteration_s[j] - loss_s[i]
        if losses and finishes and not kept[i] and loss_s[i] > 0 and spare_s > 0:  # unknown (NaN) compares false
            out = min(out, now_s + spare_s)
    for line in (False, True):
        before = -1
        for i in by_service:
            j = number[i]
            if phase[j] == _RUNNING and due[i] == line:
                if before >= 0 and gpus[before] > gpus[j]:
                    lead = attained_gpu_s[j] - attained_gpu_s[before]
                    out = min(out, now_s + lead / (gpus[before] - gpus[j]))
                before = j
    return out


@part
def _by_line(rows: IntArray, line: IntArray, served: FloatArray) -> IntArray:
    """Rows sorted by their place in `line`, then by their entry of `served`; equals stay in order."""
    done, width = rows, 1
    while width < len(rows):
        merged = np.empty(len(rows), dtype=np.int64)
        for start in range(0, len(rows), 2 * width):
            i, middle = start, min(start + width, len(rows))
            j, end = middle, min(start + 2 * width, len(rows))
            for at in range(start, end):
                take_left = j >= end
                if i < middle and j < end:
                    a, b = done[i], done[j]
                    take_left = line[a] < line[b] or (line[a] == line[b] and served[a] <= served[b])
                if take_left:
                    merged[at] = done[i]
                    i += 1
                else:
                    merged[at] = done[j]
                    j += 1
        done, width = merged, 2 * width
    return done


@kernel
def plain_pool(
    number: IntArray,
    now_s: float,
    restart_s: float,
    stays: BoolArray,
    due: BoolArray,
    running_group: IntArray,
    now_gpus: IntArray,
    now_first: IntArray,
    gpu_node: IntArray,
    node_gpus: IntArray,
    node_up: BoolArray,
    phase: IntArray,
    job_class: IntArray,
    weight: FloatArray,
    submit_s: FloatArray,
    starts: IntArray,
    last_start_s: FloatArray,
    pending_since_s: FloatArray,
    attained_gpu_s: FloatArray,
    goodput: FloatArray,
    min_gpus: IntArray,
    max_gpus: IntArray,
) -> tuple[
    IntArray, IntArray, IntArray, IntArray, IntArray, FloatArray, BoolArray, BoolArray, FloatArray
]:  # fmt: skip
    """(rows, capacity, held, least, most, weights, due, fresh, kept) of the only pool there is; see `Pool`.

    For jobs that run alone on their GPUs, do not adapt, and take no cores or memory along. Jobs of `stays` (jobs,) are
    left out, and so are their GPUs.
    """
    jobs, nodes, count = len(number), len(node_gpus), 0
    capacity = node_gpus * node_up
    line, served, rows = np.zeros(jobs, dtype=np.int64), np.zeros(jobs), np.empty(jobs, dtype=np.int64)
    for row in range(jobs):
        if not stays[row]:
            waits, j = running_group[row] < 0, number[row]
            line[row] = 2 * (not due[row]) + waits
            served[row] = pending_since_s[j] if due[row] and waits else attained_gpu_s[j]
            rows[count] = row
            count += 1
        elif running_group[row] >= 0:
            for i in range(now_first[running_group[row]], now_first[running_group[row] + 1]):
                capacity[gpu_node[now_gpus[i]]] -= node_up[gpu_node[now_gpus[i]]]
    rows = _by_line(rows[:count], line, served)
    held, total = np.zeros((count, nodes), dtype=np.int64), 0
    least, most = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    weights, kept = np.zeros(count), np.ones(count)
    first, fresh = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    for n in range(nodes):
        total += capacity[n]
    for i in range(count):
        row = rows[i]
        j = number[row]
        if running_group[row] >= 0:
            for g in range(now_first[running_group[row]], now_first[running_group[row] + 1]):
                held[i, gpu_node[now_gpus[g]]] += 1
        least[i], most[i] = min_gpus[j], max(min_gpus[j], max_gpus[j])
        first[i] = due[row] and total >= least[i]
        if job_class[j] != _OPPORTUNISTIC:
            weights[i] = max(weight[j], 0.0)
        cost_s = restart_s if math.isnan(goodput[j, _RESTART_S]) else goodput[j, _RESTART_S]
        fresh[i] = phase[j] == _RUNNING and now_s - last_start_s[j] < 2 * cost_s - CLOCK_S and weights[i] > 0
        age_s = now_s - submit_s[j]
        if starts[j] > 0 and age_s + cost_s > 0:
            kept[i] = max(age_s - (starts[j] - 1) * cost_s, 0.0) / (age_s + cost_s)
    return rows, capacity, held, least, most, weights, first, fresh, kept
