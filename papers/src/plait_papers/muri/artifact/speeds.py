"""How fast a group runs in the artifact: its recurrence over three stages and four slots.

The traces hold three stage times, d (storage and CPU in one), g (GPU) and n (network), while the artifact
shifts jobs over four slots, so the data stage may be split over two steps. One iteration of the group is found
by running the recurrence from an empty pipeline until two rotations take the same time.

`raw_time` is the plain reference; the simulator calls `times_of`, and a test compares the two.
Profiles are numbered (`Profiles`), because traces have few: a group's time depends on its profiles, in any
order, and is looked up by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait_papers.muri.artifact.trace import STRETCH, ArtifactTrace

SLOTS = 4
STEADY = 1e-3
"""Two rotations take the same time if they differ by less than this part of the longer."""
INTERFERENCE = (1.0, 1.0, 1.33 / STRETCH, 1.5 / STRETCH, 1.37 / STRETCH)
"""How much longer an iteration of a group of so many jobs takes than predicted; fitted on the testbed."""
UNMATCHED_INTERFERENCE = (*INTERFERENCE[:4], 1.3 / STRETCH)
"""The same in the artifact's variant without matching, where groups of four interfere less."""

ORDERS = np.array(
    [p + (0,) * (SLOTS - size) for size in range(1, SLOTS + 1) for p in permutations(range(size))], dtype=np.int64
)
"""Every arrangement of 1, of 2, of 3 and of 4 jobs, one a row."""
FIRST_ORDER = np.array([0, 0, 1, 3, 9, 33], dtype=np.int64)
"""Where the arrangements of so many jobs begin in `ORDERS`."""

BITS = 15
"""Bits of a profile number in the code of a node; four fit in a whole number."""
REMEMBERED = 1 << 16


def raw_time(stages: Sequence[tuple[float, float, float]], *, worst: bool = False) -> float:
    """Seconds of one iteration of a group under its best (or worst) arrangement, without interference.

    `stages` are (d, g, n) of each of 2 to 4 jobs. Slow and plain.

    >>> raw_time([(0.502, 0.014, 0.0004), (0.502, 0.014, 0.0004)])
    0.53
    """
    times = [rotation(arranged) for arranged in permutations(stages)]
    if len(stages) == 2:
        (d0, g0, n0), (d1, g1, n1) = stages
        times.append(max(d0, g1 + n1) + max(d1, g0 + n0))
    return max(times) if worst else min(times)


def rotation(arranged: Sequence[tuple[float, float, float]]) -> float:
    """Seconds of one iteration of jobs in slots 0, 1, ..., once the pipeline is full."""
    ends = [0.0]
    for i in range(2 * SLOTS):
        before = {0: ends[i], 1: ends[i], 2: ends[i - 1] if i else None}  # what n, g and d of this step wait for
        reached = []
        for stage, shift in ((2, 1), (1, 2), (0, 3)):
            slot, start = (i + shift) % SLOTS, before[2 - stage]
            if slot < len(arranged) and start is not None:
                reached.append(start + arranged[slot][stage])
        ends.append(max(reached, default=0.0))
        if i >= SLOTS:
            this, last = ends[i + 1] - ends[i + 1 - SLOTS], ends[i] - ends[i - SLOTS]
            if abs(this - last) <= STEADY * max(abs(this), abs(last)):
                return this
    return ends[2 * SLOTS] - ends[SLOTS]


@dataclass(frozen=True, eq=False)
class Profiles:
    """The distinct stage profiles of a trace, and times of groups of them found so far.

    `of` is the profile of each job, shape (jobs,); `stages` is (profiles, 3); `total` their sums; `seconds` and
    `keys` remember group times by profiles, best and worst, and forget the older of two that collide.
    """

    of: IntArray
    stages: FloatArray
    total: FloatArray
    keys: IntArray
    seconds: FloatArray

    @classmethod
    def from_trace(cls, trace: ArtifactTrace) -> Profiles:
        """Number the profiles of a trace."""
        rows = np.column_stack([trace.data_s, trace.gpu_s, trace.network_s])
        stages, of = np.unique(rows, axis=0, return_inverse=True)
        if len(stages) >= 1 << BITS:
            raise InputError(f"{len(stages)} different stage profiles in one trace; at most {(1 << BITS) - 1} work")
        total = (stages[:, 0] + stages[:, 1]) + stages[:, 2]
        keys = np.full(REMEMBERED, -1, dtype=np.int64)
        return cls(of.reshape(-1).astype(np.int64), stages, total, keys, np.zeros((REMEMBERED, 2)))

    def times(self, members: IntArray, size: IntArray, factor: FloatArray, *, worst: bool = False) -> FloatArray:
        """Seconds of an iteration of each group of 2 to 4 jobs, interference included; 0 for single jobs.

        `members` is (groups, 4) job numbers, `size` how many of a row count, `factor[p]` the interference of p.
        """
        return times_of(members, size, self.of, self.stages, factor, int(worst), self.keys, self.seconds)

    def weights(
        self, members: IntArray, size: IntArray, largest: int, factor: FloatArray, *, worst: bool = False
    ) -> FloatArray:
        """Gamma of every ordered pair of nodes, 0 where they are too many jobs together; (n, n)."""
        return weights_of(
            members, size, largest, self.of, self.stages, self.total, factor, int(worst), self.keys, self.seconds
        )


@kernel
def rotation_of(chosen: IntArray, order: IntArray, size: int, stages: FloatArray, ends: FloatArray) -> float:
    """`rotation` of profiles `chosen[order]`; `ends` is room for nine numbers."""
    ends[0] = 0.0
    for i in range(2 * SLOTS):
        reached, any_stage = 0.0, False
        slot = (i + 1) % SLOTS
        if slot < size:
            reached, any_stage = ends[i] + stages[chosen[order[slot]], 2], True
        slot = (i + 2) % SLOTS
        if slot < size:
            end = ends[i] + stages[chosen[order[slot]], 1]
            if not any_stage or end > reached:
                reached, any_stage = end, True
        slot = (i + 3) % SLOTS
        if slot < size and i > 0:
            end = ends[i - 1] + stages[chosen[order[slot]], 0]
            if not any_stage or end > reached:
                reached, any_stage = end, True
        ends[i + 1] = reached
        if i >= SLOTS:
            this, last = float(ends[i + 1] - ends[i + 1 - SLOTS]), float(ends[i] - ends[i - SLOTS])
            if abs(this - last) <= STEADY * max(abs(this), abs(last)):
                return this
    return float(ends[2 * SLOTS] - ends[SLOTS])


@kernel
def extremes(chosen: IntArray, size: int, stages: FloatArray, ends: FloatArray) -> tuple[float, float]:
    """Best and worst raw time over all arrangements of profiles `chosen[:size]`."""
    best, worst = np.inf, -np.inf
    for row in range(FIRST_ORDER[size], FIRST_ORDER[size + 1]):
        time = rotation_of(chosen, ORDERS[row], size, stages, ends)
        best, worst = min(best, time), max(worst, time)
    if size == 2:
        a, b = chosen[0], chosen[1]
        time = max(stages[a, 0], stages[b, 1] + stages[b, 2]) + max(stages[b, 0], stages[a, 1] + stages[a, 2])
        best, worst = min(best, time), max(worst, time)
    return best, worst


@kernel
def recall(
    chosen: IntArray, size: int, stages: FloatArray, worst: int, keys: IntArray, seconds: FloatArray, ends: FloatArray
) -> float:
    """Raw time of profiles `chosen[:size]`, which it sorts; cached."""
    for i in range(1, size):
        value, at = chosen[i], i
        while at > 0 and chosen[at - 1] > value:
            chosen[at] = chosen[at - 1]
            at -= 1
        chosen[at] = value
    key = 0
    for i in range(size):
        key = (key << BITS) | (chosen[i] + 1)
    slot = (key ^ (key >> 13) ^ (key >> 29) ^ (key >> 43)) & (len(keys) - 1)
    if keys[slot] != key:
        best, longest = extremes(chosen, size, stages, ends)
        keys[slot], seconds[slot, 0], seconds[slot, 1] = key, best, longest
    return float(seconds[slot, worst])


@kernel
def times_of(
    members: IntArray,
    size: IntArray,
    profile: IntArray,
    stages: FloatArray,
    factor: FloatArray,
    worst: int,
    keys: IntArray,
    seconds: FloatArray,
) -> FloatArray:
    """See `Profiles.times`; `keys` and `seconds` are its cache, `worst` chooses the worst arrangement."""
    out = np.zeros(len(size))
    chosen, ends = np.zeros(SLOTS, dtype=np.int64), np.zeros(2 * SLOTS + 1)
    for u in range(len(size)):
        if size[u] > 1:
            for i in range(size[u]):
                chosen[i] = profile[members[u, i]]
            out[u] = recall(chosen, size[u], stages, worst, keys, seconds, ends) * factor[size[u]]
    return out


@kernel
def kinds_of(members: IntArray, size: IntArray, profile: IntArray) -> IntArray:
    """One number for the profiles of the `size` `members` of each node, in order; `profile` is by job."""
    codes = np.zeros(len(size), dtype=np.int64)
    for u in range(len(size)):
        for i in range(size[u]):
            codes[u] = (codes[u] << BITS) | (profile[members[u, i]] + 1)
    return codes


@kernel
def weights_of(
    members: IntArray,
    size: IntArray,
    largest: int,
    profile: IntArray,
    stages: FloatArray,
    total: FloatArray,
    factor: FloatArray,
    worst: int,
    keys: IntArray,
    seconds: FloatArray,
) -> FloatArray:
    """See `Profiles.weights`; `keys` and `seconds` are its cache.

    The numerator is summed over u's, then v's members: its last bit depends on it.
    """
    n = len(size)
    out = np.zeros((n, n))
    chosen, ends = np.zeros(SLOTS, dtype=np.int64), np.zeros(2 * SLOTS + 1)
    for u in range(n):
        mine = 0.0
        for i in range(size[u]):
            mine += total[profile[members[u, i]]]
        for v in range(n):
            both = size[u] + size[v]
            if u == v or both > largest:
                continue
            busy = mine
            for i in range(size[v]):
                busy += total[profile[members[v, i]]]
                chosen[size[u] + i] = profile[members[v, i]]
            for i in range(size[u]):
                chosen[i] = profile[members[u, i]]
            time = recall(chosen, both, stages, worst, keys, seconds, ends) * factor[both]
            out[u, v] = busy / (time * SLOTS)
    return out
