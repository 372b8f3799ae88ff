"""Free GPUs for jobs that wait, compiled: `free_gpus.FreeGpus` for pools in which nothing but GPUs counts.

`matrix` (J, N) has the GPUs of each job on each node, `free` (N,) the rest, `parts` (J,) on how many nodes each job is;
`held` (J, N) where each runs now. The rules are the same as in `FreeGpus`, and a test compares the two.

All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, IntArray
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
