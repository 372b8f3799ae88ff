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
#: group (-1: waits), 1 if it may not be stopped, 1 if its script does not know plait, or `WIDE`.
BUCKET, CLASS, GPUS, KINDS, RUNS, KEPT, PLAIN = 0, 1, 2, 3, 4, 5, 6
#: In column `PLAIN`, a gang that is on several nodes: its ranks cannot pause together, so it is neither host nor guest.
WIDE = 2
#: Columns of `WorthLine.worth`: v, and what a restart would cost in the unit of v.
V, STAY = 0, 1
#: Companions that a lead chooses from: running mates and the next in line, so many of one class.
POOL, ALIKE = 16, 3
#: Shape of `CompletionPlan.scratch`; of its first row the columns from `MEMBERS` on are ranks, the last one a host.
SCRATCH_ROWS, SCRATCH, MEMBERS = 5, 40, 20
#: Columns of `WorthLine.law`: GPU seconds of an iteration, 1 if stages overlap alone, memory of a process of its own,
#: GPU seconds that guests of long quanta may begin in an iteration, by what part of it the law lets a host take longer
#: for cores and storage; then, with one guest, two and so on, the part of its GPUs that they get together, and how much
#: longer it takes.
GPU_S, OVERLAPS, OWN_MEMORY, LENT_S, HELD_TO, BESIDE = 0, 1, 2, 3, 4, 5
GPU = int(Resource.GPU)
#: Columns of `WorthLine.paces`: seconds in turns, without and with interference, and seconds of each member by host.
IDEAL, TURNS, HOSTS = 0, 1, 2
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

    `law` has a row a class: what it is to others as host and as guest; `scratch` (6, 5) is room for floats. `keys` and
    `paces` hold what groups of known classes do (`known_group`): few classes make most groups. Groups of other classes
    may take each other's place there.
    """

    about: IntArray
    worth: FloatArray
    rows: FloatArray
    numbers: FloatArray
    shape: IntArray
    table: IntArray
    first: IntArray
    law: FloatArray
    scratch: FloatArray
    keys: IntArray
    paces: FloatArray


class CompletionPlan(NamedTuple):
    """Units: the unit of each rank (-1: waits), and members, size and value of each; the first member leads.

    `scratch` is room for the kernels, which make no arrays: classes, a group to try, the best group, picks, the pool.
    """

    unit_of: IntArray
    members: IntArray
    size: IntArray
    value: FloatArray
    scratch: IntArray


@lean_part
def lock_step_s(classes: IntArray, jobs: int, line: WorthLine) -> float:
    """Seconds of an iteration of a group that takes turns, without interference; infinite if it may not be."""
    rows = line.rows
    after = 3 * line.shape[0]
    memory, longest = 0.0, 0.0
    for i in range(jobs):
        memory += rows[classes[i], after + kernels.MEMORY]
        longest = max(longest, rows[classes[i], after + kernels.SOLO])
    if memory > line.numbers[line.shape[1]]:
        return np.inf
    time: float = kernels.group_time(rows, classes, jobs, line.shape, line.table, line.first)[0]
    return max(longest, time)


@lean_part
def fill_paces(classes: IntArray, jobs: int, line: WorthLine, paces: FloatArray) -> None:
    """Write the seconds of an iteration of each member with each as the host, by host; -1 if they may not be.

    Guests get what the sharing law leaves them of the host's GPUs. Nobody hands out the other resources: stages there
    stretch until each suffices, those of guests until they have what the host leaves (`sim.shared_gpu.beside_gpus`).
    """
    law, rows, k = line.law, line.rows, line.shape[0]
    after, memory = 3 * k, 0.0
    paces[0] = -1.0
    if BESIDE + 2 * (jobs - 1) > law.shape[1]:
        return
    for i in range(jobs):
        memory += law[classes[i], OWN_MEMORY]
    if memory > line.numbers[line.shape[1]]:
        return
    alone, stretch, lent = line.scratch[0], line.scratch[1], line.scratch[5]
    for host in range(jobs):
        at, pace, held = BESIDE + 2 * (jobs - 2), paces[host * jobs : (host + 1) * jobs], law[classes[host], HELD_TO]
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
        most_s = max(alone[host], rows[classes[host], after + kernels.SOLO] * (1.0 + held))
        for r in range(k):
            stretch[r] = lent[r] = 1.0
        for _ in range(STRETCHES):
            enough = True
            for r in range(k):
                by_host, by_guests = 0.0, 0.0
                for i in range(jobs):
                    own_s = min(rows[classes[i], r], rows[classes[i], after + kernels.SOLO])
                    used = own_s * rows[classes[i], 2 * k + r] / pace[i]
                    if i == host:
                        by_host = used
                    else:
                        by_guests += used
                crowding = by_guests / max(1.0 - by_host, held)
                enough = enough and (r == GPU or crowding <= ENOUGH)
                stretch[r] *= max(by_host + by_guests, 1.0)
                lent[r] *= max(crowding, 1.0)
            if enough:
                break
            for i in range(jobs):
                longest, more, mine = 0.0, 0.0, stretch if i == host else lent
                for r in range(k):
                    own_s = min(rows[classes[i], r], rows[classes[i], after + kernels.SOLO])
                    if r != GPU:
                        longest = max(longest, own_s * mine[r])
                        more += own_s * (mine[r] - 1.0)
                pace[i] = max(alone[i], longest) if law[classes[i], OVERLAPS] > 0.0 else alone[i] + more
            pace[host] = min(pace[host], most_s)


@lean_part
def known_group(ranks: IntArray, jobs: int, line: WorthLine, classes: IntArray) -> int:
    """Row of `line.paces` for a group of two and more, computed once for its classes.

    It has the seconds of an iteration in turns, without and with interference, then those of `fill_paces`.
    Members are in ascending order of class, which go to `classes`, and their ranks behind them, from `MEMBERS` on.
    """
    for i in range(jobs):
        at, one = i, line.about[ranks[i], CLASS]
        while at > 0 and classes[at - 1] > one:
            classes[at], classes[MEMBERS + at] = classes[at - 1], classes[MEMBERS + at - 1]
            at -= 1
        classes[at], classes[MEMBERS + at] = one, ranks[i]
    key = 0
    for i in range(jobs):
        key = key * (len(line.rows) + 1) + classes[i] + 1
    row: int = key % len(line.keys)
    if line.keys[row] != key:
        line.keys[row] = key
        ideal_s = lock_step_s(classes, jobs, line)
        pairs = 3 * line.shape[0] + kernels.EXTRAS
        line.paces[row, IDEAL] = ideal_s
        line.paces[row, TURNS] = ideal_s * line.numbers[jobs - 1] * kernels.pair_cost(line.rows, classes, jobs, pairs)
        fill_paces(classes, jobs, line, line.paces[row, HOSTS:])
    return row


@lean_part
def turns_and_guests(row: int, jobs: int, line: WorthLine, classes: IntArray) -> tuple[float, float]:
    """Value of a `known_group` in turns, and as host and guests; -1 where it may not be.

    A guest whose script does not know plait gives way only between two of its iterations: each is one quantum, so the
    grant is small and counts for all of it. The host of the best choice is left at the end of `classes`.
    """
    paces, solo = line.paces[row], 3 * line.shape[0] + kernels.SOLO
    turns, guests = 0.0, -1.0
    for i in range(jobs):
        turns += line.worth[classes[MEMBERS + i], V] * line.rows[classes[i], solo]
    turns = turns / paces[TURNS] if paces[TURNS] < np.inf else -1.0
    if paces[HOSTS] >= 0.0 and line.about[classes[MEMBERS], PLAIN] != WIDE:  # gangs of a group are as wide
        for host in range(jobs):
            value = 0.0
            for i in range(jobs):
                own_s, pace_s = line.rows[classes[i], solo], paces[HOSTS + host * jobs + i]
                if i != host and line.about[classes[MEMBERS + i], PLAIN] == 1:
                    pace_s = max(pace_s, own_s * own_s * (jobs - 1) / line.law[classes[host], LENT_S])
                value += line.worth[classes[MEMBERS + i], V] * own_s / pace_s
            if value > guests:
                guests, classes[SCRATCH - 1] = value, classes[MEMBERS + host]
    return turns, guests


@lean_part
def together_worth(row: int, jobs: int, line: WorthLine, classes: IntArray) -> float:
    """Value of a `known_group`, avoided restarts included; -1 if it may not be."""
    turns, guests = turns_and_guests(row, jobs, line, classes)
    together = max(turns, guests)
    if together < 0.0:
        return -1.0
    most = 0.0
    for i in range(jobs):
        stays, group = 0.0, line.about[classes[MEMBERS + i], RUNS]
        if group >= 0:
            for other in range(jobs):
                if line.about[classes[MEMBERS + other], RUNS] == group:
                    stays += line.worth[classes[MEMBERS + other], STAY]
        if stays > most:
            most = stays
    return together + most


@lean_part
def group_worth(ranks: IntArray, jobs: int, line: WorthLine, classes: IntArray) -> float:
    """Value of the first `jobs` of `ranks` as a group, avoided restarts included; -1 if it may not be."""
    if jobs == 1:
        alone: float = line.worth[ranks[0], V] + line.worth[ranks[0], STAY]
        return alone
    return together_worth(known_group(ranks, jobs, line, classes), jobs, line, classes)


@lean_part
def best_group(lead: int, fixed: int, pooled: int, price: float, line: WorthLine, scratch: IntArray) -> int:
    """Write the best group of `lead` into row 2 of `scratch`; its size.

    It has the first `fixed` entries of the pool (row 4) and the best subset of the others up to `pooled`. Each of these
    costs what it would be worth above `price`, on GPUs of its own; where it runs on others now, these.
    """
    classes, trial, best, pick, pool = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    most, base, after = line.shape[1], 1 + fixed, 3 * line.shape[0]
    work, paid, ideal_s = line.scratch[2], line.scratch[3], line.scratch[4]
    limited = line.shape[4] == 1 and BESIDE + 2 * (most - 1) > line.law.shape[1]
    trial[0] = best[0] = lead
    for i in range(fixed):
        trial[1 + i] = best[1 + i] = pool[i]
    size, top = base, group_worth(trial, base, line, classes)
    depth, pick[0] = 0, fixed
    work[0], paid[0], ideal_s[0] = 0.0, 0.0, 0.0
    for i in range(base if pooled > fixed else 0):
        work[0] += line.worth[trial[i], V] * line.rows[line.about[trial[i], CLASS], after + kernels.SOLO]
        paid[0] -= line.worth[trial[i], STAY]
    while depth >= 0:
        if pick[depth] >= pooled or base + depth >= most:
            depth -= 1
            if depth >= 0:
                pick[depth] += 1
            continue
        joins = pool[pick[depth]]
        own, v, jobs = line.rows[line.about[joins, CLASS]], line.worth[joins, V], base + depth + 1
        trial[base + depth] = joins
        work[depth + 1] = work[depth] + v * own[after + kernels.SOLO]
        paid[depth + 1] = paid[depth] + max(0.0, v - price) - line.worth[joins, STAY]
        if jobs == most and limited and depth > 0:  # nobody is a guest, and no group is faster than a part of it
            time = max(ideal_s[depth], own[after + kernels.LEAST]) * line.numbers[most - 1] * line.numbers[most + 1]
            if work[depth + 1] / time * (1.0 + 1e-12) - paid[depth + 1] <= top:
                pick[depth] += 1
                continue
        row = known_group(trial, jobs, line, classes)
        ideal_s[depth + 1] = line.paces[row, IDEAL]
        got = together_worth(row, jobs, line, classes)
        if got >= 0.0:
            for i in range(base, jobs):
                own_v = line.worth[trial[i], V]
                if line.about[trial[i], RUNS] != line.about[lead, RUNS]:
                    own_v += line.worth[trial[i], STAY]
                got -= max(0.0, own_v - price)
            if got > top + GAIN * abs(top):
                top, size = got, jobs
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
def has(some: IntArray, count: int, one: int) -> bool:
    """Whether `one` is among the first `count`."""
    for i in range(count):  # noqa: SIM110 - a loop compiles
        if some[i] == one:
            return True
    return False


@lean_part
def in_pool(pool: IntArray, pooled: int, rank: int, line: WorthLine) -> bool:
    """Whether a rank is in the pool already, or enough of its class that are plain as it is."""
    alike = 0
    for i in range(pooled):
        if pool[i] == rank:
            return True
        same = line.about[pool[i], CLASS] == line.about[rank, CLASS]
        alike += same and line.about[pool[i], PLAIN] == line.about[rank, PLAIN]
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
def exchange(line: WorthLine, plan: CompletionPlan, count: int) -> None:
    """Exchange jobs of two units, or of a unit and waiting ones, while the plan gains."""
    about, jobs, value, tried = line.about, len(line.about), plan.value, plan.scratch[4]
    for unit in range(count):
        value[unit] = exchanged_worth(plan, unit, -1, -1, line)
    for _ in range(SWEEPS):
        better = False
        for a in range(jobs):
            if about[a, BUCKET] < 0 or about[a, KEPT] or plan.unit_of[a] < 0:
                continue
            mine, waiting = plan.unit_of[a], 0
            for b in range(jobs):
                other = plan.unit_of[b]
                if about[b, BUCKET] != about[a, BUCKET] or about[b, KEPT] or other == mine:
                    continue
                if other >= 0 and (b < a or plan.size[mine] + plan.size[other] == 2):
                    continue
                if other < 0 and about[b, RUNS] < 0:
                    alike = 2 * about[b, CLASS] + about[b, PLAIN]
                    if has(tried, waiting, alike):
                        continue  # the first of its kind is worth as much there, or more
                    if waiting < SCRATCH:
                        tried[waiting] = alike
                        waiting += 1
                before, here, there = value[mine], exchanged_worth(plan, mine, a, b, line), 0.0
                if other >= 0 and here >= 0.0:
                    before += value[other]
                    there = exchanged_worth(plan, other, b, a, line)
                if here < 0.0 or there < 0.0 or here + there <= before + GAIN * before:
                    continue
                better = True
                put(plan, mine, a, b)
                value[mine] = here
                if other < 0:
                    plan.unit_of[a] = -1
                    break  # a waits now
                put(plan, other, b, a)
                value[other] = there
                mine, waiting = other, 0
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
        size = best_group(lead, 0, pooled, 1e300, line, plan.scratch)
        better = group_worth(best, size, line, plan.scratch[0])
        if better > plan.value[unit] + GAIN * plan.value[unit]:
            for i in range(plan.size[unit]):
                plan.unit_of[plan.members[unit, i]] = -1
            for i in range(size):
                plan.members[unit, i] = best[i]
                plan.unit_of[best[i]] = unit
            plan.size[unit], plan.value[unit] = size, better
            put(plan, unit, -1, lead)
            changed = True
    return changed


@linked(kernels)
def choose_hosts(line: WorthLine, plan: CompletionPlan, count: int, hosts: IntArray) -> None:
    """Write into `hosts` the rank of each unit's host; -1 for units in lock step or of one job."""
    classes = plan.scratch[0]
    for unit in range(count):
        hosts[unit] = -1
        if plan.size[unit] > 1:
            row = known_group(plan.members[unit], plan.size[unit], line, classes)
            turns, guests = turns_and_guests(row, plan.size[unit], line, classes)
            if guests > turns:
                hosts[unit] = classes[SCRATCH - 1]
