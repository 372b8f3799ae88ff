"""The kernel of a stretch: instants, one after the other."""

from __future__ import annotations

import math

import numpy as np

from plait.control import job_rows
from plait.control.drive import ENDS
from plait.control.job_rows import FINISHED
from plait.control.plan_check import check
from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import lean_part, linked
from plait.core.jobs import keys
from plait.core.preemption import kernels as keeping
from plait.core.preemption.kernels import CLOCK_S
from plait.placement import kernels
from plait.placement.kernels import hold
from plait.sim import physics
from plait.sim import state as bodies
from plait.sim.state import DONE
from plait.sim.stretch import decide as deciding
from plait.sim.stretch import state
from plait.sim.stretch.decide import decide, leave, write_row
from plait.sim.stretch.state import (
    ACTIVE,
    ARRIVED,
    CHANGED,
    COMPETING,
    ENDED,
    EVENTS,
    FAULT,
    INSTANTS,
    LAST_EVENT,
    LATE,
    NOW,
    ROW_GPUS,
    ROWS,
    RUNNING,
    SETTLED,
    VALID_UNTIL,
    WAKE,
    Stretch,
)  # fmt: skip


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


@linked(bodies, keys, keeping, kernels, check, job_rows, physics, state, deciding, nogil=True)
def run_stretch(s: Stretch, instants: int) -> None:
    """Go through at most so many instants; stops earlier if all jobs have ended, nothing is due, or a plan is refused.

    Also where the block of rows is full: an instant has at most one end, one stop and one start for each GPU.
    """
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
