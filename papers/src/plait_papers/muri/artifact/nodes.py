"""Lists of groups while the artifact's Muri makes them, and what its steps do to such a list."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel
from plait_papers.muri.artifact.speeds import SLOTS


class Nodes(NamedTuple):
    """Groups in order: jobs (groups, 4), of which the first `size` of a row count."""

    members: IntArray
    size: IntArray

    @classmethod
    def singles(cls, jobs: IntArray) -> Nodes:
        """One node a job."""
        members = np.zeros((len(jobs), SLOTS), dtype=np.int64)
        members[:, 0] = jobs
        return cls(members, np.ones(len(jobs), dtype=np.int64))

    @classmethod
    def joined(cls, parts: list[Nodes]) -> Nodes:
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([p.members for p in parts]), np.concatenate([p.size for p in parts]))


@kernel
def merge(
    members: IntArray, size: IntArray, mate: IntArray, need: int, gpus: int, capacity: int
) -> tuple[IntArray, IntArray, int]:
    """Merge matched nodes while more than `capacity` GPUs are needed.

    The nodes of the next round, in order, and the GPUs needed now. A pair comes where its later node was.
    """
    n = len(size)
    new_members, new_size = np.zeros_like(members), np.zeros_like(size)
    count = 0
    for u in range(n):
        v = mate[u]
        if v > u:
            continue
        if v >= 0 and need > capacity:
            new_members[count] = members[v]
            for i in range(size[u]):
                new_members[count, size[v] + i] = members[u, i]
            new_size[count] = size[v] + size[u]
            need -= gpus
            count += 1
            continue
        if v >= 0:
            new_members[count], new_size[count] = members[v], size[v]
            count += 1
        new_members[count], new_size[count] = members[u], size[u]
        count += 1
    return new_members[:count], new_size[:count], need


@kernel
def split_slow(
    members: IntArray, size: IntArray, times_s: FloatArray, iteration_s: FloatArray
) -> tuple[IntArray, IntArray]:
    """The groups `members` (groups, 4) of `size` jobs, in order; a group slower than its jobs in sequence is split.

    `times_s` (groups,) are seconds of an iteration, `iteration_s` (jobs,) seconds alone.
    """
    total = 0
    for u in range(len(size)):
        total += size[u]
    new_members, new_size = np.zeros((total, members.shape[1]), dtype=np.int64), np.zeros(total, dtype=np.int64)
    count = 0
    for u in range(len(size)):
        alone_s = 0.0
        for i in range(size[u]):
            alone_s += iteration_s[members[u, i]]
        if size[u] > 1 and times_s[u] / alone_s > 1.0:
            for i in range(size[u]):
                new_members[count, 0], new_size[count] = members[u, i], 1
                count += 1
        else:
            new_members[count], new_size[count] = members[u], size[u]
            count += 1
    return new_members[:count], new_size[:count]


@kernel
def share(
    members: IntArray,
    size: IntArray,
    times_s: FloatArray,
    iteration_s: FloatArray,
    overhead_s: FloatArray,
    group: IntArray,
    current_s: FloatArray,
    charge_s: FloatArray,
    mates: IntArray,
) -> None:
    """Write `group`, `current_s`, `charge_s` and `mates` of every member of every group, columns by job.

    `members` (groups, 4) with `size` jobs each; `times_s` (groups,) and `iteration_s`, `overhead_s` (jobs,) in seconds.
    """
    for u in range(len(size)):
        charge = 0.0
        for i in range(size[u]):
            charge += overhead_s[members[u, i]]
        together = np.sort(members[u, : size[u]])
        for i in range(size[u]):
            job = members[u, i]
            group[job], charge_s[job] = u, charge
            current_s[job] = times_s[u] if size[u] > 1 else iteration_s[job]
            for k in range(mates.shape[1]):
                mates[job, k] = together[k] if k < size[u] else -1
