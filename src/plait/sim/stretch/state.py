"""All that a stretch reads and changes: named tuples of arrays, most of them owned by simulator and job store.

Entries are by job number unless said otherwise. Times in ms are those of the simulator, in seconds those of the store.
"""

from __future__ import annotations

from typing import NamedTuple

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import lean_part
from plait.placement.kernels import Found, Left, Nodes, Running, Work

#: Entries of `Stretch.at`: the present instant, when a decision is asked for, both in ms; until when the last decision
#: holds, the integral of active jobs over time and the time of the last event, in seconds.
NOW, WAKE, VALID_UNTIL, COMPETING, LAST_EVENT = range(5)
#: Entries of `Stretch.counts`: events and instants so far; jobs that have arrived, have ended, are active, run; jobs
#: off their GPUs that are still to be reported; flags of the last decision; rows and their GPUs in the block; running
#: groups and the GPUs they use in `Held`; why a decision is refused, the job and the GPU.
(
    EVENTS, INSTANTS, ARRIVED, ENDED, ACTIVE, RUNNING, LATE, SETTLED, CHANGED, ROWS, ROW_GPUS, SLOTS, FAULT, FAULT_JOB,
    FAULT_GPU,
) = range(15)  # fmt: skip


class Trace(NamedTuple):
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


class Queue(NamedTuple):
    """Jobs in lists: active ones in the `order` of the last decision, running ones in a heap by when they stop.

    `place[j]` is the place of a running job in the `heap`; `why[j]` the status that the last decision gave a job
    that waits.
    """

    order: IntArray
    keys: FloatArray
    heap: IntArray
    place: IntArray
    why: IntArray


class Held(NamedTuple):
    """Running groups of one job each: group s is job `jobs[s]` on `gpus[first[s]:first[s + 1]]`; `owner` is by GPU.

    A group whose job has left stays until there is no room for another one.
    """

    jobs: IntArray
    gpus: IntArray
    first: IntArray
    owner: IntArray


class Walk(NamedTuple):
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


class Rules(NamedTuple):
    """Policy, preemption rule and world, as numbers.

    `key` is the kind of the order's key. `scheme`, `strict` and `kinds` have one entry for all jobs, `per_gpu` one row
    of zeros. `losses`: whether stops cost anything. `speeds`: of each GPU kind.
    """

    key: int
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

    rules: Rules
    trace: Trace
    life: Life
    bodies: Bodies
    queue: Queue
    held: Held
    nodes: Nodes
    left: Left
    before: Left
    work: Work
    walk: Walk
    again: Walk
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
def sift(k: int, n: int, queue: Queue, stop_ms: FloatArray) -> None:
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
def push(job: int, queue: Queue, stop_ms: FloatArray, counts: IntArray) -> None:
    """Add a job that runs now to the heap."""
    n = counts[RUNNING]
    counts[RUNNING] = n + 1
    queue.heap[n] = job
    sift(n, n + 1, queue, stop_ms)


@lean_part
def remove(job: int, queue: Queue, stop_ms: FloatArray, counts: IntArray) -> None:
    """Take a job off the heap."""
    n = counts[RUNNING] - 1
    counts[RUNNING] = n
    k, last = queue.place[job], queue.heap[n]
    if last != job:
        queue.heap[k] = last
        sift(k, n, queue, stop_ms)
