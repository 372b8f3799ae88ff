"""Groups by the sum of completion times: the kernels that choose them.

A second of progress of job r is worth `v(r)` seconds less of summed completion times: one of its own, and one for each
job that waits behind it, in proportion to the GPUs that r holds (`values`). A group S whose iteration together takes
T(S) makes progress at `rate(s) = iteration_s(s) / T(S)`, so it is worth `sum of v(s) * rate(s)`; a job alone is worth
v. A plan is the better the more its groups are worth together: they are formed where the sum of completion times
falls, not where summed throughput rises. plait's own; v is the gradient of the order's own sum of completion times.

All functions work on ranks: rank i is the i-th job in the order. A group is also worth the restarts that it avoids:
members of one running group may continue where they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import lean_part, linked
from plait.core.resources import Resource
from plait.grouping import kernels

#: Columns of `WorthLine.about`: bucket (-1: runs alone), class of equal profiles, GPUs, set of kinds of GPUs, running
#: group (-1: waits), 1 if it may not be stopped.
BUCKET, CLASS, GPUS, KINDS, RUNS, KEPT = 0, 1, 2, 3, 4, 5
#: Columns of `WorthLine.worth`: v, and what a restart would cost in the unit of v.
V, STAY = 0, 1
#: Companions that a lead chooses from: running mates and the next in line, so many of one class.
POOL, ALIKE = 16, 3
#: Shape of `CompletionPlan.scratch`. The last entry of its first row is the host of the group looked at last.
SCRATCH_ROWS, SCRATCH = 5, 40
#: Columns of `WorthLine.law`: GPU seconds of an iteration, 1 if stages overlap alone, memory of a process of its own;
#: then, with one guest, two and so on, the part of its GPUs that they get together, and how much longer it takes.
GPU_S, OVERLAPS, OWN_MEMORY, BESIDE = 0, 1, 2, 3
GPU = int(Resource.GPU)
#: Times that stages are stretched until their resources suffice, at most, and how exactly.
STRETCHES, ENOUGH = 20, 1.001
#: Sweeps of exchanges at most.
SWEEPS = 4
#: Minimum relative gain of a change, so that equal jobs are not exchanged without end.
GAIN = 1e-9


#: For groups without guests.
NO_LAW: FloatArray = np.zeros((1, 0))


class WorthLine(NamedTuple):
    """The jobs in their order and what they are worth; `rows` to `first` as `grouping.kernels` takes them.

    `law` has a row a class: what it is to others as host and as guest; `scratch` (3, 4) is room for paces.
    """

    about: IntArray
    worth: FloatArray
    rows: FloatArray
    numbers: FloatArray
    shape: IntArray
    table: IntArray
    first: IntArray
    law: FloatArray = NO_LAW
    scratch: FloatArray = NO_LAW


class CompletionPlan(NamedTuple):
    """Units: the unit of each rank (-1: waits), and members and size of each; the first member leads.

    `scratch` is room for the kernels, which make no arrays: classes, a group to try, the best group, picks, the pool.
    """

    unit_of: IntArray
    members: IntArray
    size: IntArray
    scratch: IntArray


@lean_part
def lock_step_worth(ranks: IntArray, jobs: int, line: WorthLine, classes: IntArray) -> float:
    """Value of a group of two and more that takes turns; -1 if it may not be."""
    worth, rows = line.worth, line.rows
    after = 3 * line.shape[0]
    value, memory, longest = 0.0, 0.0, 0.0
    for i in range(jobs):
        solo = rows[classes[i], after + kernels.SOLO]
        value += worth[ranks[i], V] * solo
        memory += rows[classes[i], after + kernels.MEMORY]
        if solo > longest:
            longest = solo
    if memory > line.numbers[line.shape[1]]:
        return -1.0
    time, at = kernels.group_time(rows, classes, jobs, line.shape, line.table, line.first)
    if at < 0:
        return -1.0
    if longest > time:
        time = longest
    time *= line.numbers[jobs - 1] * kernels.pair_cost(rows, classes, jobs, after + kernels.EXTRAS)
    together: float = value / time
    return together


@lean_part
def guests_worth(ranks: IntArray, jobs: int, line: WorthLine, classes: IntArray) -> float:
    """Value of two jobs and more of which one is the host and the others its guests; -1 if they may not be.

    Guests get what the sharing law leaves them of the host's GPUs. Nobody hands out the other resources: stages there
    stretch until each suffices. The host of the best choice is left at the end of `classes`.
    """
    law, rows, k = line.law, line.rows, line.shape[0]
    if BESIDE + 2 * (jobs - 1) > law.shape[1]:
        return -1.0
    after, memory = 3 * k, 0.0
    for i in range(jobs):
        memory += law[classes[i], OWN_MEMORY]
    if memory > line.numbers[line.shape[1]]:
        return -1.0
    alone, pace, stretch = line.scratch[0], line.scratch[1], line.scratch[2]
    best = -1.0
    for host in range(jobs):
        at = BESIDE + 2 * (jobs - 2)
        share = law[classes[host], at] / (jobs - 1)
        for i in range(jobs):
            one, solo = classes[i], rows[classes[i], after + kernels.SOLO]
            if i == host:
                alone[i] = solo * law[one, at + 1]
            elif law[one, OVERLAPS] > 0.0:
                alone[i] = max(solo, law[one, GPU_S] / share)
            else:
                alone[i] = solo + law[one, GPU_S] * (1.0 / share - 1.0)
            pace[i] = alone[i]
        for r in range(k):
            stretch[r] = 1.0
        for _ in range(STRETCHES):
            enough = True
            for r in range(k):
                used = 0.0
                for i in range(jobs):
                    own_s = min(rows[classes[i], r], rows[classes[i], after + kernels.SOLO])
                    used += own_s * rows[classes[i], 2 * k + r] / pace[i]
                if r != GPU and used > ENOUGH:
                    stretch[r] *= used
                    enough = False
            if enough:
                break
            for i in range(jobs):
                longest, more = 0.0, 0.0
                for r in range(k):
                    own_s = min(rows[classes[i], r], rows[classes[i], after + kernels.SOLO])
                    if r != GPU:
                        longest = max(longest, own_s * stretch[r])
                        more += own_s * (stretch[r] - 1.0)
                pace[i] = max(alone[i], longest) if law[classes[i], OVERLAPS] > 0.0 else alone[i] + more
        value = 0.0
        for i in range(jobs):
            value += line.worth[ranks[i], V] * rows[classes[i], after + kernels.SOLO] / pace[i]
        if value > best:
            best, classes[SCRATCH - 1] = value, host
    return best


@lean_part
def group_worth(ranks: IntArray, jobs: int, line: WorthLine, classes: IntArray) -> float:
    """Value of the first `jobs` of `ranks` as a group, avoided restarts included; -1 if it may not be."""
    about, worth = line.about, line.worth
    if jobs == 1:
        alone: float = worth[ranks[0], V] + worth[ranks[0], STAY]
        return alone
    for i in range(jobs):
        classes[i] = about[ranks[i], CLASS]
    together = max(lock_step_worth(ranks, jobs, line, classes), guests_worth(ranks, jobs, line, classes))
    if together < 0.0:
        return -1.0
    most = 0.0
    for i in range(jobs):
        stays = 0.0
        for other in range(jobs):
            if about[ranks[i], RUNS] >= 0 and about[ranks[other], RUNS] == about[ranks[i], RUNS]:
                stays += worth[ranks[other], STAY]
        if stays > most:
            most = stays
    return together + most


@lean_part
def best_group(lead: int, fixed: int, pooled: int, price: float, line: WorthLine, scratch: IntArray) -> int:
    """Write the best group of `lead` into row 2 of `scratch`; its size.

    It has the first `fixed` entries of the pool (row 4) and the best subset of the others up to `pooled`. Each of these
    costs what it would be worth above `price`, on GPUs of its own.
    """
    classes, trial, best, pick, pool = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    most, base = line.shape[1], 1 + fixed
    trial[0] = best[0] = lead
    for i in range(fixed):
        trial[1 + i] = best[1 + i] = pool[i]
    size, top = base, group_worth(trial, base, line, classes)
    depth, pick[0] = 0, fixed
    while depth >= 0:
        if pick[depth] >= pooled or base + depth >= most:
            depth -= 1
            if depth >= 0:
                pick[depth] += 1
            continue
        trial[base + depth] = pool[pick[depth]]
        got = group_worth(trial, base + depth + 1, line, classes)
        if got >= 0.0:
            for i in range(base, base + depth + 1):
                got -= max(0.0, line.worth[trial[i], V] - price)
            if got > top + GAIN * abs(top):
                top, size = got, base + depth + 1
                for i in range(base, size):
                    best[i] = trial[i]
        depth += 1
        pick[depth] = pick[depth - 1] + 1
    return size


@lean_part
def fits(rank: int, line: WorthLine, free: IntArray, inside: BoolArray) -> bool:
    """Whether a job finds its GPUs in all sets that it takes from."""
    for t in range(len(free)):  # noqa: SIM110 - a loop compiles
        if inside[line.about[rank, KINDS], t] and line.about[rank, GPUS] > free[t]:
            return False
    return True


@lean_part
def take(rank: int, line: WorthLine, free: IntArray, inside: BoolArray) -> None:
    """Take the GPUs of a job."""
    for t in range(len(free)):
        if inside[line.about[rank, KINDS], t]:
            free[t] -= line.about[rank, GPUS]


@lean_part
def in_pool(pool: IntArray, pooled: int, rank: int, line: WorthLine) -> bool:
    """Whether a rank is in the pool already, or enough of its class are."""
    alike = 0
    for i in range(pooled):
        if pool[i] == rank:
            return True
        alike += line.about[pool[i], CLASS] == line.about[rank, CLASS]
    return alike >= ALIKE


@linked(kernels)
def construct(
    line: WorthLine, plan: CompletionPlan, price: float, grouped: bool, free: IntArray, inside: BoolArray
) -> int:
    """Make units of all jobs, the best of the order first; their number. `free`: GPUs by set of kinds, used up.

    Jobs that may not be stopped come first, with their unstoppable mates. Each unit gets the companions that make it
    worth most; a job that would run on its own costs its value alone above `price` a GPU. Without `grouped` only jobs
    that may not be stopped share.
    """
    about, jobs, count = line.about, len(line.about), 0
    pool = plan.scratch[4]
    for i in range(jobs):
        plan.unit_of[i] = -1
    for kept in (1, 0):
        for lead in range(jobs):
            if plan.unit_of[lead] >= 0 or about[lead, KEPT] != kept or not (kept or fits(lead, line, free, inside)):
                continue
            fixed = 0
            if kept and about[lead, RUNS] >= 0:
                for i in range(lead + 1, jobs):
                    if about[i, KEPT] and about[i, RUNS] == about[lead, RUNS]:
                        pool[fixed] = i
                        fixed += 1
            pooled = fixed
            if grouped and about[lead, BUCKET] >= 0:
                for turn in (0, 1):  # running mates, then the line
                    for i in range(0 if turn == 0 else lead + 1, jobs):
                        if pooled >= POOL:
                            break
                        mate = about[i, RUNS] >= 0 and about[i, RUNS] == about[lead, RUNS]
                        if (
                            i != lead
                            and plan.unit_of[i] < 0
                            and not about[i, KEPT]
                            and about[i, BUCKET] == about[lead, BUCKET]
                            and (mate or turn == 1)
                            and not in_pool(pool, pooled, i, line)
                        ):
                            pool[pooled] = i
                            pooled += 1
            size = best_group(lead, fixed, pooled, price * about[lead, GPUS], line, plan.scratch)
            for i in range(size):
                plan.members[count, i] = plan.scratch[2, i]
                plan.unit_of[plan.scratch[2, i]] = count
            plan.size[count] = size
            count += 1
            take(lead, line, free, inside)
    return count


@lean_part
def exchanged_worth(plan: CompletionPlan, unit: int, leaves: int, joins: int, line: WorthLine) -> float:
    """Value of a unit with `joins` instead of `leaves`; -1 if it may not be."""
    trial = plan.scratch[1]
    for i in range(plan.size[unit]):
        trial[i] = joins if plan.members[unit, i] == leaves else plan.members[unit, i]
    return group_worth(trial, plan.size[unit], line, plan.scratch[0])


@lean_part
def put(plan: CompletionPlan, unit: int, leaves: int, joins: int) -> None:
    """Put `joins` in the place of `leaves`; the best of the order leads."""
    for i in range(plan.size[unit]):
        if plan.members[unit, i] == leaves:
            plan.members[unit, i] = joins
    plan.unit_of[joins] = unit
    lead = 0
    for i in range(plan.size[unit]):
        if plan.members[unit, i] < plan.members[unit, lead]:
            lead = i
    plan.members[unit, 0], plan.members[unit, lead] = plan.members[unit, lead], plan.members[unit, 0]


@linked(kernels)
def exchange(line: WorthLine, plan: CompletionPlan) -> None:
    """Exchange jobs of two units, or of a unit and waiting ones, while the plan gains."""
    about, jobs = line.about, len(line.about)
    for _ in range(SWEEPS):
        better = False
        for a in range(jobs):
            if about[a, BUCKET] < 0 or about[a, KEPT] or plan.unit_of[a] < 0:
                continue
            for b in range(jobs):
                mine, other = plan.unit_of[a], plan.unit_of[b]
                if about[b, BUCKET] != about[a, BUCKET] or about[b, KEPT] or other == mine or (other >= 0 and b < a):
                    continue
                before = exchanged_worth(plan, mine, -1, -1, line)
                after = exchanged_worth(plan, mine, a, b, line)
                if after < 0.0:
                    continue
                if other >= 0:
                    there = exchanged_worth(plan, other, b, a, line)
                    if there < 0.0:
                        continue
                    before += exchanged_worth(plan, other, -1, -1, line)
                    after += there
                if after > before + GAIN * before:
                    put(plan, mine, a, b)
                    if other >= 0:
                        put(plan, other, b, a)
                    else:
                        plan.unit_of[a] = -1
                    better = True
                    if other < 0:
                        break  # a waits now
        if not better:
            return


@linked(kernels)
def repick(line: WorthLine, plan: CompletionPlan, count: int) -> bool:
    """Choose the companions of each lead again, among its own and the first that wait; whether any changed."""
    about, jobs, changed = line.about, len(line.about), False
    pool, best = plan.scratch[4], plan.scratch[2]
    for unit in range(count):
        lead, keeps = plan.members[unit, 0], False
        for i in range(plan.size[unit]):
            keeps = keeps or about[plan.members[unit, i], KEPT] == 1
        if keeps or about[lead, BUCKET] < 0:
            continue
        pooled = 0
        for i in range(1, plan.size[unit]):
            pool[pooled] = plan.members[unit, i]
            pooled += 1
        most = pooled + POOL
        for i in range(jobs):
            if pooled >= most:
                break
            if plan.unit_of[i] < 0 and about[i, BUCKET] == about[lead, BUCKET] and not in_pool(pool, pooled, i, line):
                pool[pooled] = i
                pooled += 1
        now = exchanged_worth(plan, unit, -1, -1, line)
        size = best_group(lead, 0, pooled, 1e300, line, plan.scratch)
        if group_worth(best, size, line, plan.scratch[0]) > now + GAIN * now:
            for i in range(plan.size[unit]):
                plan.unit_of[plan.members[unit, i]] = -1
            for i in range(size):
                plan.members[unit, i] = best[i]
                plan.unit_of[best[i]] = unit
            plan.size[unit] = size
            put(plan, unit, -1, lead)
            changed = True
    return changed


@linked(kernels)
def plan_worth(line: WorthLine, plan: CompletionPlan, count: int) -> float:
    """Sum of the values of all units."""
    total = 0.0
    for unit in range(count):
        total += exchanged_worth(plan, unit, -1, -1, line)
    return total


@linked(kernels)
def choose_hosts(line: WorthLine, plan: CompletionPlan, count: int, hosts: IntArray) -> None:
    """Write into `hosts` the rank of each unit's host; -1 for units in lock step or of one job."""
    classes = plan.scratch[0]
    for unit in range(count):
        ranks, jobs, hosts[unit] = plan.members[unit], plan.size[unit], -1
        for i in range(jobs):
            classes[i] = line.about[ranks[i], CLASS]
        if jobs > 1 and guests_worth(ranks, jobs, line, classes) > lock_step_worth(ranks, jobs, line, classes):
            hosts[unit] = ranks[classes[SCRATCH - 1]]
