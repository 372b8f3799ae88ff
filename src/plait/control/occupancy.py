"""Use of the cluster over time: GPUs held, resources busy, queues and fragments, all exact."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plait.control.history import Timeline
from plait.control.outcomes import Outcomes
from plait.control.step_functions import Steps
from plait.core.arrays import FloatArray, IntArray
from plait.core.resources import Resource

#: A wait with less work left counts as this many seconds of it: the clock's resolution.
LEAST_S = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """Step functions of time.

    `capacity`, `held`: GPUs on nodes that are up, GPUs held (each once, however many jobs share it).
    `useful`: GPUs' worth of work at the speed of jobs alone; `busy[r]`: GPUs' worth of resource r in use;
    None where a job's speed or profile is unknown. `waiting`, `running`: jobs. `fragments`: free GPUs on
    partly used nodes.
    """

    capacity: Steps
    held: Steps
    useful: Steps | None
    busy: tuple[Steps | None, ...]
    waiting: Steps
    running: Steps
    fragments: Steps


def occupancy(timeline: Timeline, jobs: Outcomes) -> Occupancy:
    """All step functions of a run."""
    t = timeline
    held = held_gpus(t)
    down = -t.cluster.node_gpus[t.down_node].astype(np.float64)
    useful, *busy = _rates(t, jobs)
    return Occupancy(
        capacity=Steps.of(t.down_from_s, t.down_to_s, down, before=float(t.cluster.gpus)),
        held=Steps.of(held.from_s, held.to_s, np.diff(held.first_gpu).astype(np.float64)),
        useful=useful,
        busy=tuple(busy),
        waiting=Steps.of(t.wait_from_s, t.wait_to_s),
        running=Steps.of(t.span_from_s, t.span_to_s),
        fragments=_fragments(t, held),
    )


def useful_work(t: Timeline, jobs: Outcomes) -> FloatArray:
    """Useful GPU-seconds of each span: the job's, shared out by the progress made in the span.

    Progress is what the job store knew at the time; a job without any on record is spread over its run time.
    """
    n, job = t.jobs, t.span_job
    length = t.span_to_s - t.span_from_s
    progress = np.where(length > 0, t.span_iterations, 0.0)
    total = np.bincount(job, weights=progress, minlength=n)[job]
    ran = np.bincount(job, weights=length, minlength=n)[job]
    share = np.where(total > 0, progress / np.where(total > 0, total, 1.0), length / np.where(ran > 0, ran, 1.0))
    return share * jobs.work_gpu_s[job]


def _rates(t: Timeline, jobs: Outcomes) -> list[Steps | None]:
    """Useful GPUs and busy GPUs' worth of each resource; None if that of a span that took time is unknown."""
    length = t.span_to_s - t.span_from_s
    real = length > 0
    job = t.span_job[real]
    rate = useful_work(t, jobs)[real] / length[real]
    weights = [rate, *(rate * (jobs.stage_s[:, r] / jobs.iteration_s)[job] for r in Resource)]
    known = [not bool(np.isnan(w).any()) for w in weights]
    steps = iter(
        Steps.several(t.span_from_s[real], t.span_to_s[real], (w for w, ok in zip(weights, known, strict=True) if ok))
    )
    return [next(steps) if ok else None for ok in known]


@dataclass(frozen=True, slots=True, eq=False)
class HeldSpans:
    """`gpus[first_gpu[i]:first_gpu[i + 1]]` are held from `from_s[i]` to `to_s[i]`; no GPU twice at a time."""

    from_s: FloatArray
    to_s: FloatArray
    first_gpu: IntArray
    gpus: IntArray


def held_gpus(t: Timeline) -> HeldSpans:
    """The groups of a run; with guests, one entry per GPU for as long as any group holds it."""
    if not len(t.group_guest):
        return HeldSpans(t.group_from_s, t.group_to_s, t.group_first_gpu, t.group_gpus.astype(np.int64))
    gpu, from_s, to_s = covered(*by_gpu(t, np.arange(len(t.group_from_s))))
    return HeldSpans(from_s, to_s, np.arange(len(gpu) + 1), gpu)


def by_gpu(t: Timeline, groups: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """One row a GPU of these groups: (GPU, from, to)."""
    lengths = np.diff(t.group_first_gpu)[groups]
    row = np.repeat(groups, lengths)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    gpu: IntArray = t.group_gpus[t.group_first_gpu[row] + offset].astype(np.int64)
    return gpu, t.group_from_s[row], t.group_to_s[row]


def covered(
    gpu: IntArray, from_s: FloatArray, to_s: FloatArray, by: tuple[IntArray, FloatArray, FloatArray] | None = None
) -> tuple[IntArray, FloatArray, FloatArray]:
    """When each GPU is in at least one of these intervals, and of `by` too if given: (GPU, from, to), disjoint."""
    others = by or (gpu[:0], from_s[:0], to_s[:0])
    gpus = np.concatenate([gpu, gpu, others[0], others[0]])
    times = np.concatenate([from_s, to_s, others[1], others[2]])
    mine, theirs = len(gpu), len(others[0])
    delta = np.repeat([1, -1, 0, 0], [mine, mine, theirs, theirs])
    other = np.repeat([0, 0, 1, -1], [mine, mine, theirs, theirs])
    order = np.lexsort((times, gpus))
    gpus, times = gpus[order], times[order]
    inside = np.cumsum(delta[order]) > 0  # back at 0 where the next GPU begins
    if by is not None:
        inside &= np.cumsum(other[order]) > 0
    real = np.flatnonzero(inside[:-1] & (times[1:] > times[:-1]) & (gpus[1:] == gpus[:-1]))
    return gpus[real], times[real], times[real + 1]


def _fragments(t: Timeline, held: HeldSpans) -> Steps:
    """Free GPUs on nodes of which others are held."""
    lengths = np.diff(held.first_gpu)
    row = np.repeat(np.arange(len(lengths)), lengths)
    node = t.cluster.gpu_node[held.gpus]
    if not len(node):
        return Steps(np.zeros(0), np.zeros(0))
    first = np.flatnonzero(np.append(True, (row[1:] != row[:-1]) | (node[1:] != node[:-1])))
    taken = np.diff(np.append(first, len(node))).astype(np.float64)
    row, node = row[first], node[first]
    nodes = np.concatenate([node, node])
    times = np.concatenate([held.from_s[row], held.to_s[row]])
    deltas = np.concatenate([taken, -taken])
    order = np.lexsort((times, nodes))
    nodes, times = nodes[order], times[order]
    used = np.cumsum(deltas[order])  # back at 0 where the next node begins
    last = np.append((nodes[1:] != nodes[:-1]) | (times[1:] != times[:-1]), True)
    nodes, times, used = nodes[last], times[last], used[last]
    free = np.where(used > 0.5, t.cluster.node_gpus[nodes] - used, 0.0)
    before = np.append(0.0, np.where(nodes[1:] == nodes[:-1], free[:-1], 0.0))
    return Steps.changes(times, free - before)


def fragmentation(use: Occupancy) -> tuple[Steps, Steps]:
    """(share, counted): free GPUs on partly used nodes over all free GPUs, and whether that moment counts.

    Moments count at which jobs wait and GPUs are free; the share is 0 elsewhere.
    """
    times = np.unique(
        np.concatenate([use.waiting.times_s, use.held.times_s, use.capacity.times_s, use.fragments.times_s])
    )
    free = use.capacity.at(times) - use.held.at(times)
    counted = (use.waiting.at(times) > 0.5) & (free > 0.5)
    share = np.where(counted, use.fragments.at(times) / np.where(counted, free, 1.0), 0.0)
    return Steps(times, share), Steps(times, counted.astype(np.float64))


def blocking_index(timeline: Timeline, times_s: FloatArray, cap: float = math.inf) -> FloatArray:
    """Mean over the jobs that wait at each time of (time waited so far / work left); 0 if none does.

    Muri (SIGCOMM'22), section 6. Time waited counts all waits of the job so far; work left is in seconds
    alone. Each ratio is capped at `cap`. Waits with unknown work left are not counted.
    """
    t = timeline
    known = ~np.isnan(t.wait_remaining_s)
    origin = float(t.wait_from_s[known].min()) if known.any() else 0.0  # sums of small numbers lose less
    job, from_s, to_s = t.wait_job[known], t.wait_from_s[known] - origin, t.wait_to_s[known] - origin
    times_s = times_s - origin
    left_s = np.maximum(t.wait_remaining_s[known], LEAST_S)
    waited = to_s - from_s
    before = np.cumsum(waited) - waited
    first = np.append(True, job[1:] != job[:-1])[: len(job)]
    base = before - np.maximum.accumulate(np.where(first, before, 0.0)) if len(job) else before
    # While it waits, a ratio is (base + t - from) / left until it meets the cap, then the cap.
    meets_s = np.clip(from_s - base + cap * left_s, from_s, to_s)
    slope = Steps.of(from_s, meets_s, 1.0 / left_s)
    offset = Steps.of(from_s, meets_s, (base - from_s) / left_s)
    total = times_s * slope.at(times_s) + offset.at(times_s)
    if math.isfinite(cap):
        total += cap * Steps.of(meets_s, to_s).at(times_s)
    count = Steps.of(from_s, to_s).at(times_s)
    return np.where(count > 0.5, np.maximum(total, 0.0) / np.maximum(count, 1.0), 0.0)
