"""The kernel of a stretch: instants, one after the other, and at each one decision. Start at `run_stretch`.

Above it is all that a stretch reads and changes: named tuples of arrays, most of them owned by simulator and job store.
Entries are by job number unless said otherwise. Times in ms are those of the simulator, in seconds those of the store.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from plait.control import job_rows
from plait.control.drive import ENDS, STARTS, STOPS
from plait.control.job_rows import FINISHED, job_starts, job_waits
from plait.control.plan_check import check
from plait.control.plan_check.check import GPU_TWICE, OK, WRONG_SIZE, gpus_fault
from plait.core import preemption_kernels as keeping
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import as_part, by_reference, lean_part, linked
from plait.core.jobs import keys
from plait.core.jobs.keys import ATTAINED, QUEUE, RUN, leaves_queue_s, order_key, queue_of
from plait.core.preemption_kernels import CLOCK_S, kept_until_s, stop_loss_s
from plait.placement import kernels
from plait.placement.kernels import (
    BLOCKED,
    FRAGMENTED,
    KEPT,
    OUT,
    PLACED,
    RANDOM,
    TOO_FEW,
    Found,
    Left,
    Nodes,
    Running,
    Work,
    choose,
    count,
    hold,
    name_gpus,
    over_many_nodes,
    total,
    walk,
)
from plait.placement.packing import KEPT as BY_KEPT
from plait.placement.packing import RESERVED
from plait.sim import state as bodies
from plait.sim.state import DONE, UNIT, attained_gpu_s, done_at, held_ms, leave_one, pace_one, ran_s, start_one

#: Entries of `Stretch.at`: the present instant, when a decision is asked for, both in ms; until when the last decision
#: holds, the integral of active jobs over time and the time of the last event, in seconds.
NOW, WAKE, VALID_UNTIL, COMPETING, LAST_EVENT = range(5)
#: Entries of `Stretch.counts`: events and instants so far; jobs that have arrived, have ended, are active, run; jobs
#: off their GPUs that are still to be reported; flags of the last decision; rows and their GPUs in the block; running
#: groups and the GPUs they use in `HeldGpus`; why a decision is refused, the job and the GPU.
(
    EVENTS, INSTANTS, ARRIVED, ENDED, ACTIVE, RUNNING, LATE, SETTLED, CHANGED, ROWS, ROW_GPUS, SLOTS, FAULT, FAULT_JOB,
    FAULT_GPU,
) = range(15)  # fmt: skip


class StretchTrace(NamedTuple):
    """The jobs as they are and as they are reported; nothing of it changes.

    `iteration_s` is the reported one, `true_iteration_s` that of the simulator; `sensitive`: slower when spread.
    """

    submit_ms: FloatArray
    gpus: IntArray
    iterations: FloatArray
    iteration_s: FloatArray
    checkpoints: IntArray
    restart_s: FloatArray
    saved_run_s: FloatArray
    keep_until_s: FloatArray
    true_iteration_s: FloatArray
    total_ms: FloatArray
    cost_ms: FloatArray
    sensitive: BoolArray


class Life(NamedTuple):
    """Columns of the job store that a stretch writes."""

    phase: IntArray
    running_group: IntArray
    starts: IntArray
    preemptions: IntArray
    first_start_s: FloatArray
    last_start_s: FloatArray
    pending_since_s: FloatArray
    wait_s: FloatArray
    run_base_s: FloatArray
    end_s: FloatArray
    competing_base: FloatArray
    level: IntArray


class Bodies(NamedTuple):
    """Columns of `Running`; `gpu_free_ms` is by GPU."""

    state: FloatArray
    overhead_ms: FloatArray
    worked_ms: FloatArray
    safe_ms: FloatArray
    free_ms: FloatArray
    end_ms: FloatArray
    stop_ms: FloatArray
    fail_ms: FloatArray
    solo: FloatArray
    is_running: IntArray
    attempts: IntArray
    last_node: IntArray
    gpu_free_ms: FloatArray


class StretchQueue(NamedTuple):
    """Jobs in lists: active ones in the `order` of the last decision, running ones in a heap by when they stop.

    `place[j]` is the place of a running job in the `heap`; `why[j]` the status that the last decision gave a job
    that waits. `keys`, then `next_keys` are by what jobs are sorted; `leaves_s` is how long a job stays in its queue.
    """

    order: IntArray
    keys: FloatArray
    next_keys: FloatArray
    leaves_s: FloatArray
    heap: IntArray
    place: IntArray
    why: IntArray


class HeldGpus(NamedTuple):
    """Running groups of one job each: group s is job `jobs[s]` on `gpus[first[s]:first[s + 1]]`; `owner` is by GPU.

    A group whose job has left stays until there is no room for another one.
    """

    jobs: IntArray
    gpus: IntArray
    first: IntArray
    owner: IntArray


class StretchWalk(NamedTuple):
    """One walk of placement: the jobs in its `order`, who is admitted, and what `running` jobs hold and all get."""

    order: IntArray
    admitted: BoolArray
    running: Running
    found: Found


class Rows(NamedTuple):
    """What happened, in order: `kind` as in `plait.control.drive`; a start has `gpu_count` more of `gpus`."""

    at_ms: FloatArray
    kind: IntArray
    job: IntArray
    done: FloatArray
    gpu_count: IntArray
    gpus: IntArray


class StretchRules(NamedTuple):
    """Policy, preemption rule and world, as numbers.

    `key` is the kind of the order's key. Of an order by queues `bounds` are what divides them, of GPU-seconds with
    `by_gpus`, else of seconds; inside jobs go by their first start with `by_start`, else by number. `scheme` has one
    entry a job or for all, `strict` and `kinds` one for all, `per_gpu` one row of zeros. `losses`: whether stops cost
    anything. `speeds`: of each GPU kind.
    """

    key: int
    bounds: FloatArray
    by_gpus: bool
    by_start: bool
    preempt: bool
    quantum_s: float
    seed: int
    scheme: IntArray
    strict: BoolArray
    kinds: IntArray
    per_gpu: FloatArray
    losses: bool
    may_lose_work: bool
    runs_for: float
    finishes: bool
    round_ms: float
    spread_slowdown: float
    speeds: FloatArray
    node_up: BoolArray


class Stretch(NamedTuple):
    """All of it. `before` is what was `left` before a decision; `again` the walk in which kept jobs go first."""

    rules: StretchRules
    trace: StretchTrace
    life: Life
    bodies: Bodies
    queue: StretchQueue
    held: HeldGpus
    nodes: Nodes
    left: Left
    before: Left
    work: Work
    walk: StretchWalk
    again: StretchWalk
    kept: BoolArray
    list: IntArray
    rows: Rows
    at: FloatArray
    counts: IntArray


@lean_part
def earlier(a: int, b: int, stop_ms: FloatArray) -> bool:
    """Whether job `a` stops before job `b`: by time, then by number."""
    return stop_ms[a] < stop_ms[b] or (stop_ms[a] == stop_ms[b] and a < b)


@lean_part
def sift(k: int, n: int, queue: StretchQueue, stop_ms: FloatArray) -> None:
    """Move the job at place `k` of a heap of `n` to where it belongs."""
    heap, place = queue.heap, queue.place
    job = heap[k]
    while k > 0 and earlier(job, heap[(k - 1) // 2], stop_ms):
        heap[k] = heap[(k - 1) // 2]
        place[heap[k]] = k
        k = (k - 1) // 2
    while 2 * k + 1 < n:
        child = 2 * k + 1
        if child + 1 < n and earlier(heap[child + 1], heap[child], stop_ms):
            child += 1
        if not earlier(heap[child], job, stop_ms):
            break
        heap[k] = heap[child]
        place[heap[k]] = k
        k = child
    heap[k] = job
    place[job] = k


@lean_part
def push(job: int, queue: StretchQueue, stop_ms: FloatArray, counts: IntArray) -> None:
    """Add a job that runs now to the heap."""
    n = counts[RUNNING]
    counts[RUNNING] = n + 1
    queue.heap[n] = job
    sift(n, n + 1, queue, stop_ms)


@lean_part
def remove(job: int, queue: StretchQueue, stop_ms: FloatArray, counts: IntArray) -> None:
    """Take a job off the heap."""
    n = counts[RUNNING] - 1
    counts[RUNNING] = n
    k, last = queue.place[job], queue.heap[n]
    if last != job:
        queue.heap[k] = last
        sift(k, n, queue, stop_ms)


_start_one, _leave_one = as_part(start_one), as_part(leave_one)


@lean_part
def write_row(rows: Rows, counts: IntArray, kind: int, job: int, at_ms: float, done: float, gpu_count: int) -> None:
    """Add a row to the block."""
    row = counts[ROWS]
    counts[ROWS] = row + 1
    rows.at_ms[row], rows.kind[row], rows.job[row] = at_ms, kind, job
    rows.done[row], rows.gpu_count[row] = done, gpu_count


@lean_part
def leave(s: Stretch, job: int, at_ms: float, ends: bool) -> float:
    """Take a running job off its GPUs, which end or stop at `at_ms`; returns how long it still saves, ms."""
    b, held, group = s.bodies, s.held, s.life.running_group[job]
    gpus, owner, gpu_free_ms = held.gpus, held.owner, b.gpu_free_ms
    remove(job, s.queue, b.stop_ms, s.counts)
    saving = _leave_one(
        job, at_ms, math.inf, not ends, not ends, s.trace.cost_ms, b.state, b.overhead_ms, b.worked_ms, b.safe_ms,
        b.free_ms, b.end_ms, b.stop_ms, b.is_running,
    )  # fmt: skip
    for i in range(held.first[group], held.first[group + 1]):
        owner[gpus[i]] = -1
        if saving > 0.0:
            gpu_free_ms[gpus[i]] = at_ms + saving
    return saving


@lean_part
def stop(s: Stretch, job: int) -> None:
    """Let a running job wait again, after a checkpoint."""
    now, life, counts = s.at[NOW], s.life, s.counts
    if leave(s, job, now, False) > 0.0:
        counts[LATE] += 1
    job_waits(job, now / 1000, life.phase, life.running_group, life.pending_since_s)
    life.preemptions[job] += 1
    write_row(s.rows, counts, STOPS, job, now, 0.0, 0)


@lean_part
def group_of(
    job: int, gpus: IntArray, lo: int, hi: int, held: HeldGpus, running_group: IntArray, counts: IntArray
) -> None:
    """Make a running group of a job and `gpus[lo:hi]`; groups whose job has left go when there is no room."""
    jobs, mine, first, owner, n = held.jobs, held.gpus, held.first, held.owner, counts[SLOTS]
    if n + 2 > len(first) or first[n] + hi - lo > len(mine):
        at, kept = 0, 0
        for g in range(n):
            if running_group[jobs[g]] == g:
                begin, end = first[g], first[g + 1]
                jobs[kept], first[kept] = jobs[g], at
                running_group[jobs[g]] = kept
                for i in range(begin, end):
                    mine[at] = mine[i]
                    at += 1
                kept += 1
        first[kept] = at
        n = kept
    at = first[n]
    for i in range(lo, hi):
        mine[at] = gpus[i]
        owner[gpus[i]] = job
        at += 1
    jobs[n], first[n + 1] = job, at
    running_group[job] = n
    counts[SLOTS] = n + 1


@lean_part
def start(s: Stretch, job: int, gpus: IntArray, lo: int, hi: int) -> None:
    """Start a waiting job on `gpus[lo:hi]`, or note the fault of a gang that cannot run there."""
    b, t, life, nodes, held, counts, rules = s.bodies, s.trace, s.life, s.nodes, s.held, s.counts, s.rules
    now, state, gpu_free_ms, gpu_node, owner, out = (
        s.at[NOW],
        b.state,
        b.gpu_free_ms,
        nodes.gpu_node,
        held.owner,
        s.rows,
    )
    code, gpu = gpus_fault(gpus, lo, hi, gpu_node, nodes.kind, rules.node_up)
    if hi - lo != t.gpus[job]:
        code, gpu = WRONG_SIZE, hi - lo
    for i in range(lo, hi):
        if code == OK and owner[gpus[i]] >= 0:
            code, gpu = GPU_TWICE, gpus[i]
    if code != OK:
        counts[FAULT], counts[FAULT_JOB], counts[FAULT_GPU] = code, job, gpu
        return
    job_starts(
        job, now / 1000, ran_s(job, 0.0, state), life.run_base_s, life.wait_s, life.pending_since_s,
        life.first_start_s, life.last_start_s, life.starts, life.phase,
    )  # fmt: skip
    begin = max(now, b.free_ms[job])
    for i in range(lo, hi):
        begin = max(begin, gpu_free_ms[gpus[i]])
    node = gpu_node[gpus[lo]]
    _start_one(
        job, node, hi - lo, begin, math.inf, t.cost_ms, state, b.overhead_ms, b.attempts, b.last_node, b.is_running
    )
    alone_s = t.true_iteration_s[job]
    pace = alone_s
    if t.sensitive[job] and over_many_nodes(gpus, lo, hi, gpu_node, nodes.kind, nodes.cap_prefix):
        pace *= rules.spread_slowdown
    pace /= rules.speeds[nodes.kind[node]]
    pace_one(job, alone_s / pace, now, state, b.solo, b.worked_ms, t.total_ms, b.fail_ms, b.end_ms, b.stop_ms)
    group_of(job, gpus, lo, hi, held, life.running_group, counts)
    push(job, s.queue, b.stop_ms, counts)
    row_gpus, used = out.gpus, counts[ROW_GPUS] - lo
    for i in range(lo, hi):
        row_gpus[used + i] = gpus[i]
    counts[ROW_GPUS] += hi - lo
    write_row(out, counts, STARTS, job, now, state[job, DONE] / state[job, UNIT], hi - lo)


@lean_part
def fill_key(job: int, s: Stretch) -> None:
    """Write the keys of a job in the order of now, and its queue where there are queues."""
    now, state, trace, rules, queue = s.at[NOW], s.bodies.state, s.trace, s.rules, s.queue
    running, kind, done, ran, attained = s.bodies.is_running[job] == 1, rules.key, 0.0, 0.0, 0.0
    if kind in (RUN, ATTAINED, QUEUE):
        held = held_ms(job, now, running, state)
        ran, attained = ran_s(job, held, state), attained_gpu_s(job, held, state)
    else:
        done = done_at(job, now, running, state) / state[job, UNIT]
    if kind == QUEUE:
        service, speed, start_s = ran, 1.0, s.life.first_start_s[job]
        if rules.by_gpus:
            service, speed = attained, float(trace.gpus[job])
        level = queue_of(service, rules.bounds)
        s.life.level[job], queue.keys[job] = level, float(level)
        queue.leaves_s[job] = leaves_queue_s(service, level, speed, rules.bounds)
        if rules.by_start:
            queue.next_keys[job] = math.inf if math.isnan(start_s) else start_s
    else:
        queue.keys[job] = order_key(
            kind, job, trace.gpus[job], trace.iterations[job], done, trace.iteration_s[job], ran, attained
        )


@lean_part
def ahead(a: int, b: int, preempt: bool, runs: IntArray, keys: FloatArray, next_keys: FloatArray) -> bool:
    """Whether job `a` goes before job `b`: running jobs first where none is stopped, then by keys, then by number."""
    if not preempt and runs[a] != runs[b]:
        first: bool = runs[a] > runs[b]
    elif keys[a] != keys[b]:
        first = keys[a] < keys[b]
    else:
        first = next_keys[a] < next_keys[b] or (next_keys[a] == next_keys[b] and a < b)
    return first


@lean_part
def sort(first: int, new: int, s: Stretch) -> None:
    """Sort the order from place `first` on; the part before place `new` is sorted already."""
    order, keys, next_keys, runs = s.queue.order, s.queue.keys, s.queue.next_keys, s.bodies.is_running
    preempt = s.rules.preempt
    for k in range(max(first + 1, new), s.counts[ACTIVE]):
        job, p = order[k], k - 1
        while p >= first and ahead(job, order[p], preempt, runs, keys, next_keys):
            order[p + 1] = order[p]
            p -= 1
        order[p + 1] = job


@lean_part
def start_new(s: Stretch, new: int) -> bool:
    """Start the last `new` jobs of the order, the only ones that wait, if there is room beside all others."""
    n, rules, nodes, left, work, queue = s.counts[ACTIVE], s.rules, s.nodes, s.left, s.work, s.queue
    found, sizes, order, per_gpu, scheme = s.walk.found, s.trace.gpus, queue.order, rules.per_gpu, rules.scheme
    if scheme[0] == RANDOM:  # draws by the place in the whole order
        return False
    needed, used = 0, 0
    for k in range(n - new, n):
        needed += sizes[order[k]]
    if needed > total(left.free):
        return False
    sort(n - new, n - new, s)
    for k in range(n - new, n):
        how = scheme[min(order[k], len(scheme) - 1)]
        if not choose(sizes[order[k]], how, rules.kinds[0], 0, per_gpu[0], nodes, left, work):
            hold(False, found.gpus, 0, used, per_gpu, 0, nodes, left)
            return False
        found.lo[k], used = used, name_gpus(work.take, nodes.first_gpu, left.taken, found.gpus, used)
        found.hi[k] = used
        hold(True, found.gpus, found.lo[k], used, per_gpu, 0, nodes, left)
    for k in range(n - new, n):
        start(s, order[k], found.gpus, found.lo[k], found.hi[k])
    settle(s, True, math.inf)
    return True


@lean_part
def start_line(s: Stretch, new: int) -> None:
    """Start waiting jobs in order until one finds no room, where none behind it may start and running ones stay.

    Running jobs come first in the order, the last `new` of which have just arrived. The others wait by keys that stay.
    """
    n, running, rules, nodes, left, work = s.counts[ACTIVE], s.counts[RUNNING], s.rules, s.nodes, s.left, s.work
    found, sizes, order, why, per_gpu = s.walk.found, s.trace.gpus, s.queue.order, s.queue.why, rules.per_gpu
    for k in range(n - new, n):
        why[order[k]] = BLOCKED
    sort(running, n - new, s)
    k = running
    while k < n:
        job = order[k]
        rest = total(left.free)
        if sizes[job] > rest:
            why[job] = TOO_FEW
            break
        seed = rules.seed * 1_000_003 + int(s.at[NOW] / 1000 * 1000) + k
        how = rules.scheme[min(job, len(rules.scheme) - 1)]
        if not choose(sizes[job], how, rules.kinds[0], seed, per_gpu[0], nodes, left, work):
            why[job] = FRAGMENTED
            break
        used = name_gpus(work.take, nodes.first_gpu, left.taken, found.gpus, 0)
        hold(True, found.gpus, 0, used, per_gpu, 0, nodes, left)
        start(s, job, found.gpus, 0, used)
        k += 1
    settle(s, k == n, math.inf)


@lean_part
def settle(s: Stretch, settled: bool, kept_until: float) -> None:
    """Note how long a decision holds; `settled`: all jobs run, `kept_until`: when the first kept one may be stopped."""
    at, counts, heap, leaves_s, soonest = s.at, s.counts, s.queue.heap, s.queue.leaves_s, math.inf
    if s.rules.key == QUEUE:  # whose order changes by itself, also where all run
        settled = False
        for k in range(counts[RUNNING]):
            soonest = min(soonest, leaves_s[heap[k]])
    until = kept_until if settled else min(at[NOW] / 1000 + min(s.rules.quantum_s, soonest), kept_until)
    if until != at[VALID_UNTIL] and until < math.inf:
        at[WAKE] = max(np.ceil(until * 1000 - 1e-6), at[NOW] + 1)
    at[VALID_UNTIL], counts[CHANGED] = until, 0
    counts[SETTLED] = 1 if settled else 0


@lean_part
def copy_left(source: Left, target: Left) -> None:
    """Copy GPUs and nodes; cores and memory are no limits here."""
    for gpu in range(len(source.taken)):
        target.taken[gpu] = source.taken[gpu]
    for node in range(len(source.free)):
        target.free[node] = source.free[node]


@lean_part
def walked(s: Stretch, w: StretchWalk) -> None:
    """Walk an order from what is left beside all running jobs: `left` is then what it leaves."""
    n, now, rules, nodes, left, life, sizes = (
        s.counts[ACTIVE],
        s.at[NOW],
        s.rules,
        s.nodes,
        s.left,
        s.life,
        s.trace.gpus,
    )
    order, admitted, running, found, why = w.order, w.admitted, w.running, w.found, s.queue.why
    gpus, lo, hi, held, per_gpu = running.gpus, running.lo, running.hi, running.held, rules.per_gpu
    budget = total(nodes.whole)
    stopped = count(order, n, sizes, life.running_group, rules.strict, s.held.first, budget, admitted, lo, hi)
    for p in range(n):
        held[p] = OUT
        if hi[p] > lo[p]:
            if admitted[p] and p < stopped:
                held[p] = KEPT
            else:
                hold(False, gpus, lo[p], hi[p], per_gpu, 0, nodes, left)
    seed = rules.seed * 1_000_003 + int(now / 1000 * 1000)
    walk(
        order, n, stopped, sizes, rules.scheme, rules.strict, rules.kinds, seed, per_gpu, admitted, running, nodes,
        left, s.work, found,
    )  # fmt: skip
    status = found.status
    for p in range(n):
        if status[p] != PLACED:
            why[order[p]] = status[p]


@lean_part
def until_s(
    job: int, now: float, rules: StretchRules, trace: StretchTrace, state: FloatArray, last_start_s: FloatArray
) -> float:
    """Until when a running job stays on its GPUs, seconds; it is kept if that is after now."""
    ran = ran_s(job, held_ms(job, now, True, state), state)
    done = done_at(job, now, True, state) / state[job, UNIT]
    saves = trace.checkpoints[job]
    return kept_until_s(
        now / 1000, rules.may_lose_work, rules.runs_for, rules.finishes, saves,
        stop_loss_s(saves, ran, trace.saved_run_s[job], trace.restart_s[job]), last_start_s[job],
        trace.keep_until_s[job], (trace.iterations[job] - done) * trace.iteration_s[job],
    )  # fmt: skip


@lean_part
def released_s(s: Stretch) -> float:
    """When the first job may be stopped of those that are kept and that the walk stops or moves; inf if of none."""
    w, now, rules, trace, state, last = s.walk, s.at[NOW], s.rules, s.trace, s.bodies.state, s.life.last_start_s
    order, lo, hi, stays, soonest = w.order, w.running.lo, w.running.hi, w.found.stays, math.inf
    for p in range(s.counts[ACTIVE]):
        if hi[p] > lo[p] and not stays[p]:
            until = until_s(order[p], now, rules, trace, state, last)
            if until > now / 1000:
                soonest = min(soonest, until)
    return soonest


@lean_part
def kept_first(s: Stretch) -> None:
    """Prepare a walk from before the first one in which kept jobs go first, by number, then all others as they were."""
    n, now, rules, trace, bodies, flags = s.counts[ACTIVE], s.at[NOW], s.rules, s.trace, s.bodies, s.kept
    order, front, last, runs, kept = s.walk.order, s.again.order, s.life.last_start_s, bodies.is_running, 0
    for p in range(n):
        job = order[p]
        flags[job] = runs[job] == 1 and until_s(job, now, rules, trace, bodies.state, last) > now / 1000
        if flags[job]:
            front[kept] = job
            kept += 1
    sort_numbers(front, kept)
    for p in range(n):
        if not flags[order[p]]:
            front[kept] = order[p]
            kept += 1
    copy_left(s.before, s.left)


@lean_part
def sort_numbers(values: IntArray, n: int) -> None:
    """Sort the first `n`, ascending."""
    for k in range(1, n):
        value, p = values[k], k - 1
        while p >= 0 and values[p] > value:
            values[p + 1] = values[p]
            p -= 1
        values[p + 1] = value


@lean_part
def hold_for_shut_out(s: Stretch) -> None:
    """Undo starts of the second walk behind the first job that only the first walk has placed, if in the way.

    A start is in the way on a GPU that such a job had in the first walk, or if the first walk did not start it.
    """
    n, then, now, place, why, nodes, left = s.counts[ACTIVE], s.walk, s.again, s.list, s.queue.why, s.nodes, s.left
    wanted, first = s.before.taken, n  # what was left before is needed no longer
    order, was, stayed, status = then.order, then.found.status, then.found.stays, now.found.status
    gpus, lo, hi = now.found.gpus, now.found.lo, now.found.hi
    for p in range(n):
        place[now.order[p]] = p
    for gpu in range(len(wanted)):
        wanted[gpu] = False
    for p in range(n):
        if was[p] == PLACED and status[place[order[p]]] != PLACED:
            why[order[p]] = BY_KEPT
            first = min(first, p)
            if stayed[p]:
                for i in range(then.running.lo[p], then.running.hi[p]):
                    wanted[then.running.gpus[i]] = True
            else:
                for i in range(then.found.lo[p], then.found.hi[p]):
                    wanted[then.found.gpus[i]] = True
    for p in range(first + 1, n):
        q = place[order[p]]
        if status[q] != PLACED or now.running.hi[q] > now.running.lo[q]:
            continue
        gone = was[p] != PLACED
        for i in range(lo[q], hi[q]):
            gone = gone or wanted[gpus[i]]
        if gone:
            hold(False, gpus, lo[q], hi[q], s.rules.per_gpu, 0, nodes, left)
            status[q] = why[order[p]] = RESERVED


@lean_part
def follow(s: Stretch, w: StretchWalk, kept_until: float) -> None:
    """Stop and start whom a walk stops and starts, and note how long it holds."""
    listed, order, found, lo, hi = s.list, w.order, w.found, w.running.lo, w.running.hi
    n, leaving, placed, status, stays = s.counts[ACTIVE], 0, 0, found.status, found.stays
    for p in range(n):
        placed += status[p] == PLACED
        if hi[p] > lo[p] and not stays[p]:
            listed[leaving] = order[p]
            leaving += 1
    sort_numbers(listed, leaving)
    for k in range(leaving):
        stop(s, listed[k])
    for p in range(n):
        if status[p] == PLACED and not stays[p]:
            start(s, order[p], found.gpus, found.lo[p], found.hi[p])
    settle(s, placed == n, kept_until)


@lean_part
def decide(s: Stretch, new: int) -> None:
    """Decide; the last `new` jobs of the order have just arrived."""
    rules, counts, order, n = s.rules, s.counts, s.queue.order, s.counts[ACTIVE]
    all_run = n == counts[RUNNING] + new
    filled = n - new if (all_run or rules.strict[0]) and rules.key != QUEUE else 0  # before it jobs need no keys
    for p in range(filled, n):
        fill_key(order[p], s)
    if rules.strict[0]:  # which never goes with preemption
        start_line(s, new)
        return
    if all_run and start_new(s, new):
        return
    for p in range(filled):
        fill_key(order[p], s)
    sort(0, 0, s)
    if rules.losses:
        copy_left(s.left, s.before)
    w, kept_until = s.walk, math.inf
    while True:
        walked(s, w)
        if kept_until < math.inf:
            hold_for_shut_out(s)
            break
        kept_until = released_s(s) if rules.losses else math.inf
        if kept_until == math.inf:
            break
        kept_first(s)
        w = s.again
    follow(s, w, kept_until)


@lean_part
def next_due(
    at: FloatArray, counts: IntArray, stop_ms: FloatArray, heap: IntArray, submit_ms: FloatArray, round_ms: float
) -> float:
    """When something happens next, in ms; infinity if never."""
    due: float = at[WAKE]
    if counts[RUNNING] > 0:
        due = min(due, stop_ms[heap[0]])
    if counts[ARRIVED] < len(submit_ms):
        due = min(due, submit_ms[counts[ARRIVED]])
    due = max(due, at[NOW])
    if round_ms > 0.0 and due < math.inf:
        due = np.ceil(due / round_ms) * round_ms
    return due


@lean_part
def end_jobs(s: Stretch) -> int:
    """End jobs that complete by now, in order of time, then number; returns how many."""
    now, counts, life, held, bodies, trace, rules, queue = (
        s.at[NOW], s.counts, s.life, s.held, s.bodies, s.trace, s.rules, s.queue
    )  # fmt: skip
    rows, nodes, left, stop_ms, heap, order, phase = (
        s.rows,
        s.nodes,
        s.left,
        bodies.stop_ms,
        queue.heap,
        queue.order,
        life.phase,
    )
    ended, active = 0, 0
    while counts[RUNNING] > 0 and stop_ms[heap[0]] <= now:
        job = heap[0]
        at_ms, group = stop_ms[job], life.running_group[job]
        leave(s, job, at_ms, True)
        bodies.state[job, DONE] = trace.total_ms[job]
        hold(False, held.gpus, held.first[group], held.first[group + 1], rules.per_gpu, 0, nodes, left)
        phase[job], life.end_s[job], life.running_group[job] = FINISHED, at_ms / 1000, -1
        write_row(rows, counts, ENDS, job, at_ms, 0.0, 0)
        ended += 1
    if ended > 0:
        for p in range(counts[ACTIVE]):
            if phase[order[p]] != FINISHED:
                order[active] = order[p]
                active += 1
        counts[ACTIVE] = active
        counts[ENDED] += ended
        if counts[SETTLED] == 0:
            counts[CHANGED] = 1
    return ended


@lean_part
def admit_arrivals(
    at: FloatArray, counts: IntArray, submit_ms: FloatArray, competing_base: FloatArray, order: IntArray
) -> int:
    """Append jobs that have been submitted by now to the order; returns how many."""
    first: int = counts[ARRIVED]
    job = first
    while job < len(submit_ms) and submit_ms[job] <= at[NOW]:
        competing_base[job] = at[COMPETING]
        order[counts[ACTIVE] + job - first] = job
        job += 1
    counts[ACTIVE] += job - first
    counts[ARRIVED] = job
    if job > first:
        counts[CHANGED] = 1
    return job - first


@linked(bodies, keys, keeping, kernels, check, job_rows, nogil=True)
def run_stretch(stretch: Stretch, instants: int) -> None:
    """Go through at most so many instants; stops earlier if all jobs have ended, nothing is due, or a plan is refused.

    Also where the block of rows is full: an instant has at most one end, one stop and one start for each GPU.
    """
    s = by_reference(stretch)
    at, counts, rows, submit_ms, stop_ms = s.at, s.counts, s.rows, s.trace.submit_ms, s.bodies.stop_ms
    heap, order, competing_base, round_ms = s.queue.heap, s.queue.order, s.life.competing_base, s.rules.round_ms
    gpus, last, most, most_gpus = len(s.held.owner), counts[INSTANTS] + instants, len(rows.kind), len(rows.gpus)
    while counts[INSTANTS] < last and counts[ENDED] < len(submit_ms) and counts[FAULT] == 0:
        due = next_due(at, counts, stop_ms, heap, submit_ms, round_ms)
        if due == math.inf or counts[ROWS] + 3 * gpus > most or counts[ROW_GPUS] + gpus > most_gpus:
            break
        now_s = due / 1000
        if now_s > at[LAST_EVENT] and counts[EVENTS] > 0:
            at[COMPETING] += counts[ACTIVE] * (now_s - at[LAST_EVENT])
        at[NOW], at[LAST_EVENT] = due, now_s
        reported = counts[RUNNING] > 0 or counts[LATE] > 0
        counts[LATE] = 0
        ended = end_jobs(s)
        new = admit_arrivals(at, counts, submit_ms, competing_base, order)
        counts[EVENTS] += 1 + (1 if reported else 0) + (1 if ended > 0 else 0) + (1 if new > 0 else 0)
        counts[INSTANTS] += 1
        if at[WAKE] <= due:
            at[WAKE] = math.inf
        if counts[CHANGED] == 1 or now_s >= at[VALID_UNTIL] - CLOCK_S:
            decide(s, new)
