"""Choices of sizes, compiled, for pools in which nothing but GPUs counts: free GPUs, steps of a ladder, due jobs.

Free GPUs for jobs that wait, compiled: `free_gpus.FreeGpus` for pools in which nothing but GPUs counts.

`matrix` (J, N) has the GPUs of each job on each node, `free` (N,) the rest, `parts` (J,) on how many nodes each job is;
`held` (J, N) where each runs now. The rules are the same as in `FreeGpus`, and a test compares the two.

Steps of a ladder for pools in which nothing but GPUs counts, compiled; rules as in `plait.policies.sizing.steps`.

The line of due jobs of a policy in rounds, compiled: columns of the job table in, one value per row out.

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

#: Tiers, the first one first: due jobs, jobs that have just begun, the others with a weight, jobs of weight 0.
DUE, FRESH, WEIGHTED, WEIGHTLESS = range(4)


@part
def _row(row: IntArray) -> tuple[int, int]:
    """The sum of a row, and how many of its entries are > 0."""
    total, nodes = 0, 0
    for n in range(len(row)):
        total += row[n]
        nodes += row[n] > 0
    return total, nodes


@part
def _meets(parts: IntArray, matrix: IntArray, node: int) -> bool:
    """Whether a job that spans nodes has GPUs of this one."""
    for other in range(len(parts)):  # noqa: SIM110 - compiles sooner than a generator
        if parts[other] > 1 and matrix[other, node] > 0:
            return True
    return False


@part
def _put(j: int, row: IntArray, parts: IntArray, matrix: IntArray, free: IntArray) -> bool:
    """Give a job that has nothing these GPUs, if they are free; two jobs that span nodes never share one."""
    nodes = _row(row)[1]
    for n in range(len(row)):
        if row[n] > 0 and (row[n] > free[n] or (nodes > 1 and _meets(parts, matrix, n))):
            return False
    for n in range(len(row)):
        matrix[j, n] = row[n]
        free[n] -= row[n]
    parts[j] = nodes
    return True


@part
def _find(size: int, apart: bool, parts: IntArray, matrix: IntArray, free: IntArray, row: IntArray) -> bool:
    """Fill `row` with so many free GPUs: of one node, best fit, or where `apart` of several, most free GPUs first."""
    best, most, total = -1, 1 << 60, 0
    for n in range(len(free)):
        row[n] = 0
        if size <= free[n] < most:
            best, most = n, free[n]
    if best >= 0:
        row[best] = size
        return True
    if not apart:
        return False
    for n in range(len(free)):
        if free[n] > 0 and not _meets(parts, matrix, n):
            row[n] = -free[n]  # below 0: not taken so far
            total += free[n]
    if total < size:
        return False
    while size > 0:
        best = 0
        for n in range(1, len(free)):
            if row[n] < row[best]:
                best = n
        row[best] = min(-row[best], size)
        size -= row[best]
    for n in range(len(free)):
        row[n] = max(row[n], 0)
    return True


@part
def _fit(
    j: int, least: int, most: int, apart_above: int, due: bool, parts: IntArray, matrix: IntArray, free: IntArray,
    row: IntArray,
) -> bool:  # fmt: skip
    """Halve the GPUs wanted until there is room, down to the job's minimum."""
    there, _ = _row(free)
    if there < least:
        return False
    size = max(min(most, there), least)
    while not _find(size, due or size > apart_above, parts, matrix, free, row):
        if size == least:
            return False
        size = max(size // 2, least)
    return _put(j, row, parts, matrix, free)


@part
def _back(j: int, held: IntArray, parts: IntArray, matrix: IntArray, free: IntArray) -> bool:
    """Leave a job where it runs, if it runs and its GPUs are free."""
    return _row(held[j])[1] > 0 and _put(j, held[j], parts, matrix, free)


@part
def _displace(
    j: int, least: int, apart_above: int, due: bool, others: BoolArray, held: IntArray, parts: IntArray,
    matrix: IntArray, free: IntArray, row: IntArray,
) -> None:  # fmt: skip
    """Leave a job where it runs or place it on GPUs of `others` (J,); others not in its way stay."""
    if _back(j, held, parts, matrix, free):
        return
    there, count = _row(free)[0], 0
    for one in range(len(others)):
        if others[one] and parts[one] > 0:
            there += _row(matrix[one])[0]
            count += 1
    if there < least:
        return
    displaced, before, spans = (
        np.empty(count, np.int64),
        np.empty((count, len(free)), np.int64),
        np.zeros(count, np.int64),
    )
    i = 0
    for one in range(len(others)):
        if others[one] and parts[one] > 0:
            displaced[i], spans[i], parts[one] = one, parts[one], 0
            for n in range(len(free)):
                before[i, n], matrix[one, n] = matrix[one, n], 0
                free[n] += before[i, n]
            i += 1
    if not _back(j, held, parts, matrix, free):
        _fit(j, least, least, apart_above, due, parts, matrix, free, row)
    for changed in range(2):  # first the jobs where nothing has changed
        for i in range(count):
            near = spans[i] > 1
            for n in range(len(free)):
                near |= before[i, n] > 0 and matrix[j, n] > 0
            near &= parts[j] > 0
            if near and changed == 1:
                _put(displaced[i], before[i], parts, matrix, free)
            if not near and changed == 0:
                parts[displaced[i]] = spans[i]
                for n in range(len(free)):
                    matrix[displaced[i], n] = before[i, n]
                    free[n] -= before[i, n]


@kernel
def fill_free_gpus(
    want: IntArray,
    total: int,
    largest: int,
    held: IntArray,
    least: IntArray,
    limit: IntArray,
    counts: BoolArray,
    due: BoolArray,
    fresh: BoolArray,
    matrix: IntArray,
    free: IntArray,
) -> None:
    """Change `matrix` and `free` as `FreeGpus.fill` does; see there.

    `total` is how many GPUs are up, `largest` the GPUs of the largest node, `least` and `limit` the minimum (at least
    1) and maximum GPUs of each job, and `counts` whether it has a weight. `want` may be empty.
    """
    jobs, counted = len(least), 0
    parts, row = np.zeros(jobs, dtype=np.int64), np.zeros(len(free), dtype=np.int64)
    waits, others = np.zeros(jobs, dtype=np.bool_), np.zeros(jobs, dtype=np.bool_)
    for j in range(jobs):
        parts[j] = _row(matrix[j])[1]
        counted += counts[j]
    fair = -(-total // max(counted, 1))
    for tier in range(DUE, WEIGHTLESS + 1):
        displaces, waiting = tier < WEIGHTED, 0
        for j in range(jobs):
            its = due[j] if tier == DUE else fresh[j] if tier == FRESH else counts[j] == (tier == WEIGHTED)
            displaces |= tier == WEIGHTED and not counts[j] and parts[j] > 0
            waits[j] = its and (tier == DUE or parts[j] == 0)
            waiting += waits[j] and parts[j] == 0
        if waiting == 0:
            continue
        each = _row(free)[0] // waiting
        for j in range(jobs):
            if not waits[j] or parts[j] > 0:
                continue
            if not displaces and _row(free)[0] == 0:
                break
            most = min(max(each if tier == WEIGHTLESS else fair, least[j]), limit[j])
            if tier < WEIGHTLESS and len(want) and want[j] > 0:
                most = want[j]
            if tier < WEIGHTED and _back(j, held, parts, matrix, free):
                continue
            if _fit(j, least[j], most, largest, due[j], parts, matrix, free, row):
                continue
            if displaces:
                for i in range(jobs):
                    behind = tier == DUE and i > j and _row(held[i])[1] == 0
                    others[i] = (not due[i] and not (tier == FRESH and fresh[i])) or behind
                    if tier == WEIGHTED:
                        others[i] = not counts[i]
                _displace(j, least[j], largest, due[j], others, held, parts, matrix, free, row)
            if tier == DUE and parts[j] == 0:
                break  # due jobs do not overtake each other


@kernel
def name_gpus(
    rows: IntArray,
    nodes: IntArray,
    matrix: IntArray,
    held: IntArray,
    stays: BoolArray,
    running_group: IntArray,
    now_gpus: IntArray,
    now_first: IntArray,
    first_gpu: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """(rows, gpus, offsets): which GPUs each row of a view gets that has any, in the order of rows; see `groups_of`.

    `rows` (J,) and `nodes` (N,) are of the pool, `stays` and `running_group` are of all rows of the view, and
    `first_gpu` is the first GPU of each node of the cluster. The last offset is -1 if a node has fewer free GPUs than
    requested.
    """
    jobs, taken = len(running_group), np.zeros(first_gpu[-1], dtype=np.bool_)
    place, same = np.full(jobs, -1, dtype=np.int64), np.ones(len(rows), dtype=np.bool_)
    named, total = 0, 0
    for row in range(jobs):
        if stays[row] and running_group[row] >= 0:
            for i in range(now_first[running_group[row]], now_first[running_group[row] + 1]):
                taken[now_gpus[i]] = True
    for j in range(len(rows)):
        runs = False
        for n in range(len(nodes)):
            runs |= matrix[j, n] > 0
            same[j] &= matrix[j, n] == held[j, n]
            total += matrix[j, n]
        if runs:
            place[rows[j]] = j
            named += 1
            if same[j]:
                for i in range(now_first[running_group[rows[j]]], now_first[running_group[rows[j]] + 1]):
                    taken[now_gpus[i]] = True
    who, gpus, offsets = np.empty(named, np.int64), np.empty(total, np.int64), np.zeros(named + 1, np.int64)
    g, end = 0, 0
    for row in range(jobs):
        j = place[row]
        if j < 0:
            continue
        who[g], place[row] = row, end  # from now on: where its GPUs begin
        if same[j]:
            for i in range(now_first[running_group[row]], now_first[running_group[row] + 1]):
                gpus[end] = now_gpus[i]
                end += 1
        else:
            for n in range(len(nodes)):
                end += matrix[j, n]
        g += 1
        offsets[g] = end
    for j in range(len(rows)):
        at = place[rows[j]]
        if at < 0 or same[j]:
            continue
        for n in range(len(nodes)):
            missing = matrix[j, n]
            for gpu in range(first_gpu[nodes[n]], first_gpu[nodes[n] + 1]):
                if missing > 0 and not taken[gpu]:
                    gpus[at], taken[gpu] = gpu, True
                    at, missing = at + 1, missing - 1
            if missing > 0:
                offsets[named] = -1
    return who, gpus, offsets


@kernel
def gpus_on_steps(
    charges: IntArray, charged: IntArray, held: IntArray, capacity: IntArray, stays: BoolArray, wanted: IntArray
) -> IntArray:
    """GPUs (J, N) of jobs placed by `charges` (J, N), one-node jobs back home where that is free.

    `charged` and `held` (J, N): what each job is charged and has now; `stays` (J,): whether its step is the same as
    now; `wanted` (J,): the GPUs that it is to get.
    """
    jobs, nodes = charges.shape
    out, moved, free = np.zeros((jobs, nodes), dtype=np.int64), np.zeros(jobs, dtype=np.bool_), capacity.copy()
    for j in range(jobs):
        total, same, left = 0, stays[j], wanted[j]
        for n in range(nodes):
            total += charges[j, n]
            same &= charges[j, n] == charged[j, n]
        while left > 0 and total >= wanted[j] and not same:
            best = -1
            for n in range(nodes):
                if out[j, n] == 0 and charges[j, n] > 0 and (best < 0 or charges[j, n] > charges[j, best]):
                    best = n
            out[j, best] = min(left, charges[j, best])
            left -= out[j, best]
        before, now, parts_before, parts = 0, 0, 0, 0
        for n in range(nodes):
            if same:
                out[j, n] = held[j, n]
            moved[j] |= out[j, n] != held[j, n]
            before, parts_before = before + held[j, n], parts_before + (held[j, n] > 0)
            now, parts = now + out[j, n], parts + (out[j, n] > 0)
            free[n] -= out[j, n]
        moved[j] &= before == now and parts_before == 1 and parts == 1
    for j in range(jobs):
        for n in range(nodes):
            moved[j] &= held[j, n] <= free[n]
        if moved[j]:
            for n in range(nodes):
                free[n] += out[j, n] - held[j, n]
                out[j, n] = held[j, n]
    return out


@kernel
def only_steps(
    least: IntArray, held: IntArray, capacity: IntArray, configs: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """(gpus, running, held) of a `Ladder` with `configs` (C, 2) for jobs that have one size each, `least` (J,)."""
    jobs, nodes = held.shape
    gpus, charged = np.zeros((jobs, len(configs)), dtype=np.int64), np.zeros((jobs, nodes), dtype=np.int64)
    running = np.full(jobs, -1, dtype=np.int64)
    for j in range(jobs):
        step = 0
        while step < len(configs) and configs[step, 1] < least[j]:
            step += 1
        now, parts, charge = 0, 0, 0
        for n in range(nodes):
            now += held[j, n]
            parts += held[j, n] > 0
            charged[j, n] = min(held[j, n], capacity[n])
            charge += charged[j, n]
        if step == len(configs):
            continue
        gpus[j, step] = least[j]
        if now != least[j] or (configs[step, 0] > 1) != (parts > 1):
            continue
        running[j] = step
        for n in range(nodes if charge != configs[step, 1] else 0):
            if held[j, n] > 0:
                charged[j, n] = min(configs[step, 1], capacity[n]) if parts == 1 else capacity[n]
    return gpus, running, charged


@part
def _add_those_that_fit(
    which: BoolArray, but: BoolArray, charge: IntArray, left: int, rows: IntArray, count: int
) -> tuple[int, int]:
    """Append jobs of `which` and not of `but`, as long as they fit; (GPUs left, how many rows there are)."""
    asked, fits = 0, left
    for j in range(len(which)):
        if which[j] and not but[j] and charge[j] > 0:
            asked += charge[j]
            if asked <= fits:
                rows[count] = j
                count, left = count + 1, fits - asked
    return left, count


@kernel
def first_served(due: BoolArray, fresh: BoolArray, charge: IntArray, total: int) -> IntArray:
    """Rows of jobs that get GPUs in any case (`steps.guaranteed`), of `total` GPUs; the rest have shape (J,)."""
    rows = np.empty(len(due), dtype=np.int64)
    left, count = _add_those_that_fit(due, np.zeros(len(due), dtype=np.bool_), charge, total, rows, 0)
    left, count = _add_those_that_fit(fresh, due, charge, left, rows, count)
    return rows[:count]


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
