"""The grouping kernels: time of a group, weights of all pairs, swaps between groups, pricing of columns.

All take the same packed description of a bucket, made by `model.Model`, so that each compiles once:
  rows[c]     one class of equal jobs: its k stage times twice in a row (so that offset + slot needs no modulo),
              its k shares, then WORTH, ALONE, MEMORY, SOLO, LEAST (see below); where the cost of pairs has been
              learnt, one more column for each class: the logarithm of what a pair with it costs beyond the factor
  numbers     interference factor of 1, 2, ... max_jobs jobs, the memory limit, the least pairs can change a factor,
              `GroupingOptions.memory_kept`
  shape       k, max_jobs, 1 for the worst order, 1 where shares count, 1 if a group takes at least as long as
              each part of it (not so where a part has fewer orders)
  table       all turn vectors to try; for p jobs rows first[p] to first[p + 1]
A group is a sorted list of class numbers, and is always evaluated in that order: the same jobs always give the same
bits. `interleave.py` and `improve.py` hold the plain references.
An iteration of a group takes formula (3), and at least as long as each member's takes alone (a job may have gaps that
belong to no stage): see `together_s`. Interference comes on top.

All in one file on purpose: the compiler's cache notices changes to the file of a function, not of its callees. A part
that a kernel calls is compiled again if other parts call it too, so kernels call parts of their own.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel, long_kernel, part

#: Columns of `rows` after the stages and shares: numerator of the objective, objective of the job alone,
#: GPU memory, solo seconds an iteration, seconds that every group with it takes at least (its stages or SOLO).
WORTH, ALONE, MEMORY, SOLO, LEAST = 0, 1, 2, 3, 4
EXTRAS = 5

#: Minimum gain of a swap, so that rounding cannot make the search go round in circles.
GAIN = 1e-9
#: Room for rounding in sums of shares.
SLACK = 1e-9


@part
def shares_fit(rows: FloatArray, group: IntArray, jobs: int, k: int, table: IntArray, at: int) -> bool:
    """Whether jobs of `group` with the same turn in row `at` of `table` need at most all of each resource together."""
    for i in range(1, jobs):
        alone = True
        for other in range(i):
            alone = alone and table[at, other] != table[at, i]
        if alone:
            continue
        for r in range(2 * k, 3 * k):
            asked = 0.0
            for other in range(i + 1):
                if table[at, other] == table[at, i]:
                    asked += rows[group[other], r]
            if asked > 1.0 + SLACK:
                return False
    return True


@part
def group_time(
    rows: FloatArray, group: IntArray, jobs: int, shape: IntArray, table: IntArray, first: IntArray
) -> tuple[float, int]:
    """Formula (3) under the best (or worst) order and the row of `table` that gives it; (inf, -1) if none may be."""
    k, worst, shared = shape[0], shape[2] == 1, shape[3] == 1
    best, at = (-1.0 if worst else np.inf), -1
    for c in range(first[jobs], first[jobs + 1]):
        if shared and not shares_fit(rows, group, jobs, k, table, c):
            continue
        time = 0.0
        for j in range(k):
            longest = rows[group[0], j]
            for i in range(1, jobs):
                stage = rows[group[i], table[c, i] + j]
                if stage > longest:  # twice as fast as max(), which has to think of NaN
                    longest = stage
            time += longest
        if (time > best) if worst else (time < best):
            best, at = time, c
    return (best, at) if at >= 0 else (np.inf, -1)


@part
def pair_cost(rows: FloatArray, group: IntArray, jobs: int, pairs: int) -> float:
    """Factor of the pairs of a group on top of that of its size; `pairs` is the first of their columns."""
    if rows.shape[1] == pairs or jobs < 2:
        return 1.0
    total = 0.0
    for i in range(1, jobs):
        for other in range(i):
            total += rows[group[i], pairs + group[other]]
    return float(np.exp(2.0 * total / (jobs * (jobs - 1))))


@part
def group_value(
    rows: FloatArray,
    group: IntArray,
    jobs: int,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
) -> tuple[float, float]:
    """Objective and summed normalised throughput of the first `jobs` entries of `group`; (0, 0) if not allowed."""
    after = 3 * shape[0]
    if jobs == 1:
        return rows[group[0], after + ALONE], 1.0
    worth, solo, memory, peak, longest = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(jobs):
        worth += rows[group[i], after + WORTH]
        solo += rows[group[i], after + SOLO]
        memory += rows[group[i], after + MEMORY]
        peak = max(peak, rows[group[i], after + MEMORY])
        if rows[group[i], after + SOLO] > longest:
            longest = rows[group[i], after + SOLO]
    if jobs > shape[1] or memory - (1.0 - numbers[shape[1] + 2]) * (memory - peak) > numbers[shape[1]]:
        return 0.0, 0.0
    time, at = group_time(rows, group, jobs, shape, table, first)
    if at < 0:
        return 0.0, 0.0
    if longest > time:
        time = longest
    time *= numbers[jobs - 1] * pair_cost(rows, group, jobs, after + EXTRAS)
    return worth / time, solo / time


@kernel
def fill_times(
    rows: FloatArray,
    members: IntArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
    time: FloatArray,
    turn: IntArray,
    turn_row: IntArray,
) -> None:
    """Time and turns of many groups, one a row of `members`, padded with -1."""
    for g in range(len(members)):
        jobs = 0
        while jobs < members.shape[1] and members[g, jobs] >= 0:
            jobs += 1
        time[g], at = group_time(rows, members[g], jobs, shape, table, first)
        turn_row[g] = at
        for i in range(members.shape[1]):
            turn[g, i] = table[at, i] if at >= 0 and i < jobs else -1


@part
def union_value(
    rows: FloatArray,
    left: IntArray,
    right: IntArray,
    out: IntArray,
    floor: float,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
) -> float:
    """Objective of two groups together, 0 if they may not join. Both are padded with -1; they are merged into `out`."""
    size = len(left)
    i = j = jobs = 0
    while True:
        more_left = i < size and left[i] >= 0
        more_right = j < size and right[j] >= 0
        if not more_left and not more_right:
            break
        if more_left and (not more_right or left[i] <= right[j]):
            out[jobs] = left[i]
            i += 1
        else:
            out[jobs] = right[j]
            j += 1
        jobs += 1
    if jobs > shape[1]:
        return 0.0
    value, speedup = group_value(rows, out, jobs, numbers, shape, table, first)
    return value if speedup > floor else 0.0


@kernel
def fill_weights(
    rows: FloatArray,
    nodes: IntArray,
    floor: float,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
    weight: FloatArray,
) -> None:
    """Objective of the union of every two nodes, also of a node with its like; 0 where they may not join.

    Nor may groups whose summed normalised throughput does not exceed `floor`.
    """
    group = np.empty(2 * nodes.shape[1], dtype=np.int64)
    for u in range(len(nodes)):
        for v in range(u + 1):
            weight[u, v] = union_value(rows, nodes[u], nodes[v], group, floor, numbers, shape, table, first)
            weight[v, u] = weight[u, v]


@part
def exchanged(group: IntArray, jobs: int, leaves: int, joins: int, out: IntArray) -> int:
    """Write into `out` a sorted group without member number `leaves` and with class `joins` (-1: none); its size."""
    size = 0
    for i in range(jobs):
        if i == leaves:
            continue
        if joins >= 0 and joins < group[i]:
            out[size] = joins
            size += 1
            joins = -1
        out[size] = group[i]
        size += 1
    if joins >= 0:
        out[size] = joins
        size += 1
    return size


@part
def settle(
    rows: FloatArray,
    group: IntArray,
    g: int,
    leaves: int,
    joins: int,
    size: IntArray,
    scratch: IntArray,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
    known: FloatArray,
) -> float:
    """Exchange a member of group number g; update its worth and the bounds on further exchanges.

    Member `leaves` leaves and class `joins` joins, -1 for none. `known` is the work on each resource, the worth, and
    the time without each member, a lower bound with any other in its place; 0 where there is no bound.
    """
    k = shape[0]
    jobs = exchanged(group, size[g], leaves, joins, scratch)
    size[g] = jobs
    for i in range(len(group)):
        group[i] = scratch[i] if i < jobs else -1
    for r in range(len(known)):
        known[r] = 0.0
    for i in range(jobs):
        known[k] += rows[group[i], 3 * k + WORTH]
        for r in range(k):
            known[r] += rows[group[i], r]
    for i in range(jobs + 1):
        left = exchanged(group, jobs, i, -1, scratch)
        if shape[4] == 1 and left > 1:
            known[k + 1 + i] = group_time(rows, scratch, left, shape, table, first)[0]
    return group_value(rows, group, jobs, numbers, shape, table, first)[0]


@part
def most_worth(
    rows: FloatArray,
    known: FloatArray,
    jobs: int,
    member: int,
    leaves: int,
    joins: int,
    numbers: FloatArray,
    shape: IntArray,
) -> float:
    """An upper bound on the worth of a surveyed group if class `joins` replaces class `leaves`, -1 for none."""
    k = shape[0]
    size = jobs - (1 if leaves >= 0 else 0) + (1 if joins >= 0 else 0)
    if size == 1:
        return np.inf
    worth, time = known[k], known[k + 1 + member]
    if leaves >= 0:
        worth -= rows[leaves, 3 * k + WORTH]
    if joins >= 0:
        worth += rows[joins, 3 * k + WORTH]
        if rows[joins, 3 * k + LEAST] > time:
            time = rows[joins, 3 * k + LEAST]
    if shape[3] == 0:
        for r in range(k):
            busy = known[r]
            if leaves >= 0:
                busy -= rows[leaves, r]
            if joins >= 0:
                busy += rows[joins, r]
            if busy > time:
                time = busy
    time *= numbers[size - 1] * numbers[shape[1] + 1]
    return float(worth * (1.0 + 1e-12) / time) if time > 0.0 else np.inf


@part
def best_swap(
    rows: FloatArray,
    one: IntArray,
    other: IntArray,
    size: int,
    size_other: int,
    known: FloatArray,
    known_other: FloatArray,
    now: float,
    floor: float,
    scratch: IntArray,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
) -> tuple[int, int]:
    """The members whose exchange raises the sum of two groups most, -1 if none does.

    Position `size` of a group that is not full is empty. No group may become empty, and none may come to be whose
    summed normalised throughput does not exceed `floor`.
    """
    best, member, member_other = now + GAIN, -1, -1
    most = shape[1]
    left, right = scratch[0], scratch[1]
    for i in range(min(size + 1, most)):
        leaves = one[i] if i < size else -1
        if i > 0 and leaves == one[i - 1]:
            continue
        for j in range(min(size_other + 1, most)):
            joins = other[j] if j < size_other else -1
            if leaves == joins or (j > 0 and joins == other[j - 1]):
                continue
            if (leaves < 0 and size_other == 1) or (joins < 0 and size == 1):
                continue
            limit = most_worth(rows, known, size, i, leaves, joins, numbers, shape)
            limit_other = most_worth(rows, known_other, size_other, j, joins, leaves, numbers, shape)
            if limit + limit_other <= best:
                continue
            jobs = exchanged(one, size, i, joins, left)
            value, speedup = group_value(rows, left, jobs, numbers, shape, table, first)
            if value + limit_other <= best or value == 0.0 or (jobs > 1 and speedup <= floor):
                continue
            jobs = exchanged(other, size_other, j, leaves, right)
            value_other, speedup = group_value(rows, right, jobs, numbers, shape, table, first)
            if value + value_other <= best or value_other == 0.0 or (jobs > 1 and speedup <= floor):
                continue
            best, member, member_other = value + value_other, i, j
    return member, member_other


@long_kernel
def swap_search(
    rows: FloatArray,
    members: IntArray,
    passes: int,
    floor: float,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
    book: IntArray,
    value: FloatArray,
    known: FloatArray,
    scratch: IntArray,
) -> int:
    """Exchange members of groups, in place, while a pair of groups gains by it; how many exchanges were made.

    `members` has a sorted group in each row, padded with -1. Passes over all pairs of groups of which one has changed
    since the pair was last examined, at most `passes` of them. The last four arguments are room to work in, filled
    with zeros, see `search_room`.
    """
    groups, most = members.shape
    size, changed = book[0], book[1]
    for g in range(groups):
        while size[g] < most and members[g, size[g]] >= 0:
            size[g] += 1
        value[g] = settle(rows, members[g], g, -1, -1, size, scratch[0], numbers, shape, table, first, known[g])
    made = 0
    for sweep in range(passes):
        before = made
        for a in range(groups):
            for b in range(a + 1, groups):
                visit = (sweep * groups + a) * groups + b
                last_visit = visit - groups * groups
                if changed[a] < last_visit and changed[b] < last_visit:
                    continue
                i, j = best_swap(
                    rows,
                    members[a],
                    members[b],
                    size[a],
                    size[b],
                    known[a],
                    known[b],
                    value[a] + value[b],
                    floor,
                    scratch,
                    numbers,
                    shape,
                    table,
                    first,
                )
                if i < 0:
                    continue
                leaves = members[a, i] if i < size[a] else -1
                joins = members[b, j] if j < size[b] else -1
                for g in range(a, b + 1, b - a):
                    member = i if g == a else j
                    enters = joins if g == a else leaves
                    value[g] = settle(
                        rows, members[g], g, member, enters, size, scratch[0], numbers, shape, table, first, known[g]
                    )
                    changed[g] = visit
                made += 1
        if made == before:
            break
    return made


def search_room(groups: int, shape: IntArray) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """Room for `swap_search`: sizes and last changes, values, surveys, groups under construction.

    Made outside, because making arrays takes the compiler longer than using them.
    """
    k, most = int(shape[0]), int(shape[1])
    book = np.zeros((2, groups), dtype=np.int64)
    return book, np.zeros(groups), np.zeros((groups, k + most + 2)), np.zeros((2, most + 1), dtype=np.int64)


@part
def first_members(
    rows: FloatArray,
    counts: IntArray,
    group: IntArray,
    busy: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
) -> tuple[int, int, float, float]:
    """The members of a group but its last: how many, how many of the newest class, their worth, the least T.

    The second is -1 if they are more jobs of a class than `counts`. `busy` becomes the seconds of each resource.
    """
    k, most, empty = shape[0], shape[1], len(counts)
    jobs, run, fine, worth, least = 0, 0, True, 0.0, 0.0
    for r in range(k):
        busy[r] = 0.0
    while jobs < most - 1 and group[jobs] < empty:
        c = group[jobs]
        run = run + 1 if jobs > 0 and c == group[jobs - 1] else 1
        fine = fine and run <= counts[c]
        worth += rows[c, 3 * k + WORTH]
        least = max(least, rows[c, 3 * k + LEAST])
        for r in range(k):
            busy[r] += rows[c, r]
        jobs += 1
    if fine and jobs > 1 and shape[4] == 1:
        least = group_time(rows, group, jobs, shape, table, first)[0]
    return jobs, run if fine else -1, worth, least


@part
def next_members(group: IntArray, most: int, empty: int) -> None:
    """Step `group` to the next multiset of first members, in order, of class numbers up to `most`; `empty` ends it."""
    at = most - 2
    while at > 0 and group[at] == empty:
        at -= 1
    group[at] += 1
    for i in range(at + 1, most - 1):
        group[i] = group[at]


@long_kernel
def price_groups(
    rows: FloatArray,
    counts: IntArray,
    price: FloatArray,
    floor: float,
    per_lead: bool,
    numbers: FloatArray,
    shape: IntArray,
    table: IntArray,
    first: IntArray,
    found: IntArray,
    gain: FloatArray,
) -> int:
    """Groups of up to max_jobs classes that are worth more than `floor` beyond the prices of their members.

    `price[c]` of a job of class c, and last of a group. All multisets with no more jobs of a class than `counts` are
    tried, by their first members and then by the last one. With `per_lead` the best one for each pair of first members
    goes to `found` and `gain` at its own place (gain stays -inf elsewhere); otherwise they are listed one after the
    other. Returns how many there are, which may be more than `found` has room for.

    T of a group is at least that of its first members, and at least what each resource has to do.
    """
    k, most, empty = shape[0], shape[1], len(counts)
    group = np.zeros(most, dtype=np.int64)
    busy = np.zeros(k)
    listed = 0
    while most == 1 or group[0] < empty:
        jobs, run, worth, least = first_members(rows, counts, group, busy, shape, table, first)
        paid = price[empty]
        for i in range(jobs):
            paid += price[group[i]]
        last = empty if jobs < most - 1 else (group[most - 2] if most > 1 else 0)
        for c in range(last, empty + (1 if most > 1 else 0)):
            if run < 0:
                break
            size = jobs
            if c < empty:
                size += 1
                if (run + 1 if jobs > 0 and c == group[jobs - 1] else 1) > counts[c]:
                    continue
            rest = paid + (price[c] if c < empty else 0.0)
            if size > 1:
                time = least
                total = worth
                if c < empty:
                    total += rows[c, 3 * k + WORTH]
                    time = max(time, rows[c, 3 * k + LEAST])
                    if shape[3] == 0:
                        for r in range(k):
                            time = max(time, busy[r] + rows[c, r])
                if total * (1.0 + 1e-12) <= (rest + floor) * time * numbers[size - 1] * numbers[most + 1]:
                    continue
            group[most - 1] = c
            value, _ = group_value(rows, group, size, numbers, shape, table, first)
            if value <= 0.0 or value - rest <= floor:
                continue
            place = listed
            if per_lead:
                place = group[0] * (empty + 1) + group[min(1, most - 1)]
            if place < len(gain) and (not per_lead or value - rest > gain[place]):
                gain[place] = value - rest
                for i in range(most):
                    found[place, i] = group[i] if i < size else -1
            listed += 1
        if most == 1:
            break
        next_members(group, most, empty)
    return listed
