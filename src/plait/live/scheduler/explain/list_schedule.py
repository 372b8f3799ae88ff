"""List scheduling of a queue in a fixed order (Graham, SIAM J. Appl. Math. 17, 1969), many drawn durations at once.

At each end of a job, the waiting ones are looked at in order, and each that fits into the free GPUs of one kind starts.
With `PREEMPT` a job may also take the GPUs of running ones that come after it, the last one first; what these have
left they do later. With `STRICT` the first job that does not fit keeps all after it waiting. Our design; it leaves out
nodes within a kind, and changes of the order.

*Probes* are hypothetical jobs: each gets the time when it would have started at its place, and takes nothing from
others.

Which job fits next is a question to a tree of minima over the order, so that an end costs O(log jobs), not O(jobs).
`tests/reference/plain_list_schedule.py` is the same without trees.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel, part

#: More GPUs than any job has.
NEVER = 1 << 60
#: How a policy treats the jobs that run (bits).
PREEMPT, STRICT = 1, 2


@part
def _put_least(tree: IntArray, k: int, size: int, at: int, value: int) -> None:
    i = size + at
    tree[k, i] = value
    while i > 1:
        i >>= 1
        tree[k, i] = min(tree[k, 2 * i], tree[k, 2 * i + 1])


@part
def _put_sum(tree: IntArray, k: int, size: int, at: int, value: int) -> None:
    i = size + at
    change = value - tree[k, i]
    while i >= 1:
        tree[k, i] += change
        i >>= 1


@part
def _put_end(tree: FloatArray, size: int, at: int, value: float) -> None:
    i = size + at
    tree[i] = value
    while i > 1:
        i >>= 1
        tree[i] = min(tree[2 * i], tree[2 * i + 1])


@part
def _first_at_most(tree: IntArray, k: int, size: int, first: int, room: int) -> int:
    """The first place from `first` on with a value of at most `room`; `size` if there is none."""
    if first >= size:
        return size
    i = size + first
    while tree[k, i] > room:
        while i & 1 and i > 1:
            i >>= 1
        if i <= 1:
            return size
        i += 1
    while i < size:
        i *= 2
        if tree[k, i] > room:
            i += 1
    return i - size


@part
def _sum_from(tree: IntArray, k: int, size: int, first: int) -> int:
    """The sum of all places from `first` on."""
    if first >= size:
        return 0
    i = size + first
    total = tree[k, i]
    while i > 1:
        if not i & 1:
            total += tree[k, i + 1]
        i >>= 1
    return int(total)


@part
def _last(tree: IntArray, k: int, size: int) -> int:
    """The last place that is not 0, of a tree whose sum is not."""
    i = 1
    while i < size:
        i = 2 * i + 1
        if tree[k, i] == 0:
            i -= 1
    return i - size


@part
def _first_end(tree: FloatArray, size: int) -> int:
    i = 1
    while i < size:
        i = 2 * i if tree[2 * i] <= tree[2 * i + 1] else 2 * i + 1
    return i - size


@part
def _next(
    waits: IntArray, held: IntArray, free: IntArray, size: int, first: int, how: int, gpus: IntArray
) -> tuple[int, int]:
    """The next job from place `first` on that starts now, and its kind; `size` if none does."""
    found, kind = size, -1
    for k in range(len(free)):
        at = first
        while True:
            room = free[k] + (_sum_from(held, k, size, at) if how & 1 else 0)
            at = _first_at_most(waits, k, size, at, room)
            if at >= found:
                break
            if gpus[at] <= free[k] + (_sum_from(held, k, size, at + 1) if how & 1 else 0):
                found, kind = at, k
                break
            at += 1
    if how & 2 and found < size:
        for k in range(len(free)):
            if _first_at_most(waits, k, size, 0, NEVER - 1) < found:
                return size, -1
    return found, kind


@part
def _probe(at: int, gpus: int, mask: int, waits: IntArray, held: IntArray, free: IntArray, size: int, how: int) -> bool:
    """Whether a job of these GPUs before place `at` would start now."""
    if how & 2:
        for k in range(len(free)):
            if _first_at_most(waits, k, size, 0, NEVER - 1) < at:
                return False
    for k in range(len(free)):
        if mask >> k & 1 and gpus <= free[k] + (_sum_from(held, k, size, at) if how & 1 else 0):
            return True
    return False


@part
def _start(
    job: int, k: int, now_s: float, waits: IntArray, held: IntArray, ends: FloatArray, free: IntArray,
    place: IntArray, left_s: FloatArray, stays: IntArray, mask: IntArray, gpus: IntArray, size: int, how: int,
) -> None:  # fmt: skip
    """Start a job on kind `k`; where the free GPUs are too few, jobs that run after it stop, the last one first."""
    while free[k] < gpus[job]:
        victim = _last(held, k, size)
        free[k] += gpus[victim]
        left_s[victim] = max(ends[size + victim] - now_s, 0.0)
        _put_sum(held, k, size, victim, 0)
        _put_end(ends, size, victim, np.inf)
        place[victim] = -1
        for other in range(len(free)):
            if mask[victim] >> other & 1:
                _put_least(waits, other, size, victim, gpus[victim])
    free[k] -= gpus[job]
    place[job] = k
    for other in range(len(free)):
        _put_least(waits, other, size, job, NEVER)
    if how & 1 and not stays[job]:
        _put_sum(held, k, size, job, gpus[job])
    _put_end(ends, size, job, now_s + left_s[job])


@part
def _pass(
    now_s: float, began_s: FloatArray, probes_s: FloatArray, probe_at: IntArray, probe_gpus: IntArray,
    probe_mask: IntArray, waits: IntArray, held: IntArray, ends: FloatArray, free: IntArray, place: IntArray,
    left_s: FloatArray, stays: IntArray, mask: IntArray, gpus: IntArray, size: int, how: int,
) -> None:  # fmt: skip
    """Start all that start at `now_s`, and note the probes that would."""
    first, probe = 0, 0
    while True:
        job, k = _next(waits, held, free, size, first, how, gpus)
        while probe < len(probe_at) and probe_at[probe] <= job:
            if np.isinf(probes_s[probe]) and _probe(
                probe_at[probe], probe_gpus[probe], probe_mask[probe], waits, held, free, size, how
            ):
                probes_s[probe] = now_s
            probe += 1
        if job >= size:
            break
        _start(job, k, now_s, waits, held, ends, free, place, left_s, stays, mask, gpus, size, how)
        if np.isinf(began_s[job]):
            began_s[job] = now_s
        first = job + 1


@kernel
def play(
    gpus: IntArray, mask: IntArray, place: IntArray, stays: IntArray, left_s: FloatArray, capacity: IntArray, how: int,
    probe_at: IntArray, probe_gpus: IntArray, probe_mask: IntArray, to_the_end: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Play a queue forward, once for each row of `left_s`.

    Jobs are in the order of the policy: `gpus` (jobs,), `mask` (jobs,) of the kinds that they may use, `place` (jobs,)
    the kind on which one runs or -1, `stays` (jobs,) whether it may not be stopped; `left_s` (draws, jobs) seconds of
    work; `capacity` (kinds,) GPUs; `how` of `PREEMPT` and `STRICT`. A probe stands before the job `probe_at` (probes,),
    growing. Unless `to_the_end`, it is over when all probes have started.

    Returns seconds from now: starts (draws, jobs), 0 of running ones; ends (draws, jobs); starts of the probes (draws,
    probes). Infinite for never.
    """
    draws, n = left_s.shape
    kinds, size = len(capacity), 1
    while size < n:
        size *= 2
    starts, over = np.full((draws, n), np.inf), np.full((draws, n), np.inf)
    probes = np.full((draws, len(probe_at)), np.inf)
    for d in range(draws):
        waits = np.full((kinds, 2 * size), NEVER, dtype=np.int64)
        held = np.zeros((kinds, 2 * size), dtype=np.int64)
        ends = np.full(2 * size, np.inf)
        free, here, left = capacity.copy(), place.copy(), left_s[d].copy()
        for i in range(n):
            if here[i] >= 0:
                free[here[i]] -= gpus[i]
                starts[d, i] = 0.0
                ends[size + i] = left[i]
                if how & 1 and not stays[i]:
                    held[here[i], size + i] = gpus[i]
            else:
                for k in range(kinds):
                    if mask[i] >> k & 1:
                        waits[k, size + i] = gpus[i]
        for i in range(size - 1, 0, -1):
            ends[i] = min(ends[2 * i], ends[2 * i + 1])
            for k in range(kinds):
                waits[k, i] = min(waits[k, 2 * i], waits[k, 2 * i + 1])
                held[k, i] = held[k, 2 * i] + held[k, 2 * i + 1]
        now_s = 0.0
        while True:
            _pass(
                now_s, starts[d], probes[d], probe_at, probe_gpus, probe_mask, waits, held, ends, free, here, left,
                stays, mask, gpus, size, how,
            )  # fmt: skip
            if np.isinf(ends[1]) or not (to_the_end or np.isinf(probes[d]).any()):
                break
            now_s = ends[1]
            while ends[1] <= now_s:
                job = _first_end(ends, size)
                over[d, job] = now_s
                free[here[job]] += gpus[job]
                if how & 1:
                    _put_sum(held, here[job], size, job, 0)
                _put_end(ends, size, job, np.inf)
    return starts, over, probes
