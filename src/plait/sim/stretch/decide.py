"""One decision of a stretch: who runs, by the order of all active jobs, and whom that stops and starts."""

from __future__ import annotations

import math

import numpy as np

from plait.control.drive import STARTS, STOPS
from plait.control.job_rows import job_starts, job_waits
from plait.control.plan_check.check import GPU_TWICE, OK, WRONG_SIZE, gpus_fault
from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import as_part, lean_part
from plait.core.jobs.keys import ATTAINED, RUN, order_key
from plait.core.preemption.kernels import kept_until_s, stop_loss_s
from plait.placement.kernels import KEPT, OUT, PLACED, RANDOM, Left, choose, count, hold, name_gpus, total, walk
from plait.placement.packing import KEPT as BY_KEPT
from plait.placement.packing import RESERVED
from plait.sim.physics import over_many_nodes
from plait.sim.state import DONE, UNIT, attained_gpu_s, done_at, held_ms, leave_one, pace_one, ran_s, start_one
from plait.sim.stretch.state import (
    ACTIVE,
    CHANGED,
    FAULT,
    FAULT_GPU,
    FAULT_JOB,
    LATE,
    NOW,
    ROW_GPUS,
    ROWS,
    RUNNING,
    SETTLED,
    SLOTS,
    VALID_UNTIL,
    WAKE,
    Bodies,
    Held,
    Queue,
    Rows,
    Rules,
    Stretch,
    Trace,
    Walk,
    push,
    remove,
)  # fmt: skip

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
def group_of(job: int, gpus: IntArray, lo: int, hi: int, held: Held, running_group: IntArray, counts: IntArray) -> None:
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
def fill_key(job: int, now: float, kind: int, trace: Trace, bodies: Bodies, keys: FloatArray) -> None:
    """Write the key of a job in the order."""
    state, running, done, ran, attained = bodies.state, bodies.is_running[job] == 1, 0.0, 0.0, 0.0
    if kind in (RUN, ATTAINED):
        held = held_ms(job, now, running, state)
        ran, attained = ran_s(job, held, state), attained_gpu_s(job, held, state)
    else:
        done = done_at(job, now, running, state) / state[job, UNIT]
    keys[job] = order_key(
        kind, job, trace.gpus[job], trace.iterations[job], done, trace.iteration_s[job], ran, attained
    )


@lean_part
def ahead(a: int, b: int, preempt: bool, runs: IntArray, keys: FloatArray) -> bool:
    """Whether job `a` goes before job `b`: running jobs first where none is stopped, then by key, then by number."""
    if not preempt and runs[a] != runs[b]:
        first: bool = runs[a] > runs[b]
    else:
        first = keys[a] < keys[b] or (keys[a] == keys[b] and a < b)
    return first


@lean_part
def sort(first: int, n: int, now: float, rules: Rules, trace: Trace, bodies: Bodies, queue: Queue) -> None:
    """Sort the order of `n` jobs from place `first` on by the keys of now; nearly sorted is fast."""
    order, keys, runs, preempt = queue.order, queue.keys, bodies.is_running, rules.preempt
    for k in range(first, n):
        fill_key(order[k], now, rules.key, trace, bodies, keys)
    for k in range(first + 1, n):
        job, p = order[k], k - 1
        while p >= first and ahead(job, order[p], preempt, runs, keys):
            order[p + 1] = order[p]
            p -= 1
        order[p + 1] = job


@lean_part
def start_new(s: Stretch, new: int) -> bool:
    """Start the last `new` jobs of the order, the only ones that wait, if there is room beside all others."""
    n, rules, nodes, left, work, queue = s.counts[ACTIVE], s.rules, s.nodes, s.left, s.work, s.queue
    found, sizes, order, per_gpu, scheme = s.walk.found, s.trace.gpus, queue.order, rules.per_gpu, rules.scheme[0]
    if scheme == RANDOM:  # draws by the place in the whole order
        return False
    needed, used = 0, 0
    for k in range(n - new, n):
        needed += sizes[order[k]]
    if needed > total(left.free):
        return False
    sort(n - new, n, s.at[NOW], rules, s.trace, s.bodies, queue)
    for k in range(n - new, n):
        if not choose(sizes[order[k]], scheme, rules.kinds[0], 0, per_gpu[0], nodes, left, work):
            hold(False, found.gpus, 0, used, per_gpu, 0, nodes, left)
            return False
        found.lo[k], used = used, name_gpus(work.take, nodes.first_gpu, left.taken, found.gpus, used)
        found.hi[k] = used
        hold(True, found.gpus, found.lo[k], used, per_gpu, 0, nodes, left)
    for k in range(n - new, n):
        start(s, order[k], found.gpus, found.lo[k], found.hi[k])
    s.counts[SETTLED], s.counts[CHANGED], s.at[VALID_UNTIL] = 1, 0, math.inf
    return True


@lean_part
def copy_left(source: Left, target: Left) -> None:
    """Copy GPUs and nodes; cores and memory are no limits here."""
    for gpu in range(len(source.taken)):
        target.taken[gpu] = source.taken[gpu]
    for node in range(len(source.free)):
        target.free[node] = source.free[node]


@lean_part
def walked(s: Stretch, w: Walk) -> None:
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
def until_s(job: int, now: float, rules: Rules, trace: Trace, state: FloatArray, last_start_s: FloatArray) -> float:
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
def follow(s: Stretch, w: Walk, kept_until: float) -> None:
    """Stop and start whom a walk stops and starts, and note how long it holds."""
    at, counts, listed, order, found, lo, hi = s.at, s.counts, s.list, w.order, w.found, w.running.lo, w.running.hi
    n, leaving, placed, status, stays = counts[ACTIVE], 0, 0, found.status, found.stays
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
    settled = placed == n
    until = kept_until if settled else min(at[NOW] / 1000 + s.rules.quantum_s, kept_until)
    if until != at[VALID_UNTIL] and until < math.inf:
        at[WAKE] = max(np.ceil(until * 1000 - 1e-6), at[NOW] + 1)
    at[VALID_UNTIL], counts[CHANGED] = until, 0
    counts[SETTLED] = 1 if settled else 0


@lean_part
def decide(s: Stretch, new: int) -> None:
    """Decide; the last `new` jobs of the order have just arrived."""
    rules, counts = s.rules, s.counts
    if counts[ACTIVE] == counts[RUNNING] + new and start_new(s, new):
        return
    sort(0, counts[ACTIVE], s.at[NOW], rules, s.trace, s.bodies, s.queue)
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
