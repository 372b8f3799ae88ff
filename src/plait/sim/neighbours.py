"""Groups that share GPUs: while there are guests, all groups on a GPU get a new pace when one starts or leaves.

A guest may lie on several hosts, which may have other guests, so groups that are connected through others are found
together. Without guests no groups share GPUs, and nothing of this is kept.
"""

from __future__ import annotations

import numpy as np

from plait.control.messages import UsageReported
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.compile_policy import either
from plait.core.jit import kernel
from plait.core.jobs import JobBatch
from plait.core.plan import Groups, plain_details
from plait.sim.physics import MeasuresUsage

#: Columns of `GpuNeighbours._rows`.
GPUS, JOBS, GATE, GUEST = range(4)
#: What `connected` and `enter` take as plain Python for a few groups, and `drop` for one job, tenths of a millisecond.
WORK, DROP_WORK = 2, 0.05


@kernel
def connected(
    seeds: IntArray, on_gpu: IntArray, count: IntArray, rows: IntArray, gpus: IntArray, jobs: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """The groups on the GPUs `seeds`, and all that share a GPU with one of them directly or through others.

    All but `seeds` are tables of `GpuNeighbours`. Returns the jobs, GPUs, first GPUs and first jobs of `Groups`, and
    (3, groups) the gate, the flag of guests and the row of each. The search goes on from the last GPU that it found.
    """
    seen, found = np.zeros(len(count), dtype=np.bool_), np.zeros(len(rows), dtype=np.bool_)
    todo, order = np.empty(len(count), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    left, groups, all_gpus, all_jobs = 0, 0, 0, 0
    for gpu in seeds:
        if gpu < len(count) and not seen[gpu]:
            seen[gpu] = True
            todo[left] = gpu
            left += 1
    while left > 0:
        left -= 1
        at = todo[left]
        for i in range(count[at]):
            row = on_gpu[at, i]
            if not found[row]:
                found[row] = True
                order[groups] = row
                groups += 1
                all_gpus += rows[row, GPUS]
                all_jobs += rows[row, JOBS]
                for j in range(rows[row, GPUS]):
                    if not seen[gpus[row, j]]:
                        seen[gpus[row, j]] = True
                        todo[left] = gpus[row, j]
                        left += 1
    out_jobs, out_gpus = np.empty(all_jobs, dtype=np.int64), np.empty(all_gpus, dtype=np.int64)
    first_gpu, first_job = np.zeros(groups + 1, dtype=np.int64), np.zeros(groups + 1, dtype=np.int64)
    about = np.empty((3, groups), dtype=np.int64)
    for g in range(groups):
        row = order[g]
        first_gpu[g + 1] = first_gpu[g] + rows[row, GPUS]
        first_job[g + 1] = first_job[g] + rows[row, JOBS]
        for j in range(rows[row, GPUS]):
            out_gpus[first_gpu[g] + j] = gpus[row, j]
        for j in range(rows[row, JOBS]):
            out_jobs[first_job[g] + j] = jobs[row, j]
        about[0, g], about[1, g], about[2, g] = rows[row, GATE], rows[row, GUEST], row
    return out_jobs, out_gpus, first_gpu, first_job, about


@kernel
def enter(
    new: IntArray,
    group_gpus: IntArray,
    first_gpu: IntArray,
    group_jobs: IntArray,
    first_job: IntArray,
    on_gpu: IntArray,
    count: IntArray,
    rows: IntArray,
    gpus: IntArray,
    jobs: IntArray,
) -> None:
    """Write GPUs and jobs of groups (as in `Groups`) into their `new` rows of the tables of `GpuNeighbours`."""
    for g in range(len(new)):
        row = new[g]
        rows[row, GPUS] = first_gpu[g + 1] - first_gpu[g]
        rows[row, JOBS] = first_job[g + 1] - first_job[g]
        for i in range(rows[row, GPUS]):
            gpu = group_gpus[first_gpu[g] + i]
            gpus[row, i] = gpu
            on_gpu[gpu, count[gpu]] = row
            count[gpu] += 1
        for i in range(rows[row, JOBS]):
            jobs[row, i] = group_jobs[first_job[g] + i]


@kernel
def drop(
    job: int, row: int, on_gpu: IntArray, count: IntArray, rows: IntArray, gpus: IntArray, jobs: IntArray
) -> tuple[int, bool]:
    """Take a job out of its row of the tables of `GpuNeighbours`, and the row off its GPUs if it was the last one.

    Returns its place among the jobs of the row, and whether there is still a group on one of these GPUs.
    """
    place, others = 0, False
    while jobs[row, place] != job:
        place += 1
    rows[row, JOBS] -= 1
    for i in range(place, rows[row, JOBS]):
        jobs[row, i] = jobs[row, i + 1]
    for i in range(rows[row, GPUS]):
        gpu = gpus[row, i]
        if rows[row, JOBS] == 0:
            count[gpu] -= 1
            passed = False
            for k in range(count[gpu]):
                passed = passed or on_gpu[gpu, k] == row
                if passed:
                    on_gpu[gpu, k] = on_gpu[gpu, k + 1]
        others = others or count[gpu] > 0
    return place, others


class GpuNeighbours:
    """The groups that run, by job and by GPU.

    A group is a row of `_rows` (how many GPUs and jobs it has, its gate, whether it is a guest), `_gpus` and `_jobs`,
    and one of `_details` if it has some. The rows on a GPU are the first `_count` of `_on_gpu`, in the order in which
    the groups came.
    """

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}  # by job
        self._free: list[int] = []
        self._details: dict[int, FloatArray] = {}
        self._rows: IntArray = np.zeros((0, 4), dtype=np.int64)
        self._gpus, self._jobs, self._on_gpu = (np.zeros((0, 1), dtype=np.int64) for _ in range(3))
        self._count: IntArray = np.zeros(0, dtype=np.int64)

    def put(self, groups: Groups) -> None:
        """These groups run from now on; their members are in no other."""
        if not len(groups):
            return
        for job in groups.jobs.tolist():
            self.leave(job)
        before = len(self._rows)
        if len(self._free) < len(groups):
            self._rows = _enlarged(self._rows, before + len(groups), 4)
            self._free += range(len(self._rows) - 1, before - 1, -1)
        self._gpus = _enlarged(self._gpus, len(self._rows), int(groups.gpu_count().max()))
        self._jobs = _enlarged(self._jobs, len(self._rows), int(np.diff(groups.first_job).max()))
        last = int(groups.gpus.max())
        if last >= len(self._count):
            more = np.zeros(last + 1 - len(self._count), dtype=np.int64)
            self._count = np.concatenate([self._count, more])
        most = int(self._count.max()) + int(np.bincount(groups.gpus).max())
        self._on_gpu = _enlarged(self._on_gpu, len(self._count), most)
        new = np.array([self._free.pop() for _ in range(len(groups))], dtype=np.int64)
        self._rows[new, GATE] = 0 if groups.gate is None else groups.gate
        self._rows[new, GUEST] = 0 if groups.guest is None else groups.guest
        either(enter, WORK)(
            new, groups.gpus, groups.first_gpu, groups.jobs, groups.first_job, self._on_gpu, self._count, self._rows,
            self._gpus, self._jobs,
        )  # fmt: skip
        rows = new[groups.group_of_member()].tolist()
        self._row_of.update(zip(groups.jobs.tolist(), rows, strict=True))
        if groups.details is not None:
            parts = np.split(groups.details, groups.first_job[1:-1])
            self._details.update(zip(new.tolist(), parts, strict=True))

    def leave(self, job: int) -> bool:
        """Remove the job from its group; whether there is still a group on one of its GPUs, False if it was in none."""
        row = self._row_of.pop(job, None)
        if row is None:
            return False
        place, others = either(drop, DROP_WORK)(job, row, self._on_gpu, self._count, self._rows, self._gpus, self._jobs)
        if row in self._details:
            self._details[row] = np.delete(self._details[row], place, axis=0)
        if self._rows[row, JOBS] == 0:
            self._details.pop(row, None)
            self._free.append(row)
        return bool(others)

    def is_guest(self, job: int) -> bool:
        row = self._row_of.get(job)
        return row is not None and self._rows[row, GUEST] == 1

    def around(self, gpus: IntArray) -> Groups:
        """The groups on these GPUs, and all that share a GPU with one of them directly or through others."""
        jobs, out_gpus, first_gpu, first_job, about = either(connected, WORK)(
            gpus, self._on_gpu, self._count, self._rows, self._gpus, self._jobs
        )
        gate, guest, rows = about
        details = None
        if self._details and any(row in self._details for row in rows.tolist()):
            members = (first_job[1:] - first_job[:-1]).tolist()
            parts = [self._details.get(row) for row in rows.tolist()]
            plain = [plain_details(n) if one is None else one for one, n in zip(parts, members, strict=True)]
            details = np.concatenate(plain)
        return Groups(
            jobs, out_gpus, first_gpu, first_job, gate if gate.any() else None, details,
            guest.astype(np.bool_) if guest.any() else None,
        )  # fmt: skip


class Everyone(GpuNeighbours):
    """All groups of a cluster, for a physics in which the pace of each depends on all others (`Contends`)."""

    def leave(self, job: int) -> bool:
        """Remove the job from its group; whether any group is left."""
        super().leave(job)
        return bool(self._row_of)

    def around(self, gpus: IntArray) -> Groups:
        """All groups, whichever GPUs are named."""
        return super().around(np.flatnonzero(self._count))


def _enlarged(table: IntArray, rows: int, columns: int) -> IntArray:
    """The table itself if it has so many rows and columns, else a copy with at least as many, in steps of a half."""
    if rows <= table.shape[0] and columns <= table.shape[1]:
        return table
    more = [
        max(want, have if want <= have else have * 3 // 2)
        for want, have in zip((rows, columns), table.shape, strict=True)
    ]
    out = np.zeros(more, dtype=np.int64)
    out[: table.shape[0], : table.shape[1]] = table
    return out


class GpuFigures:
    """How busy and full GPUs are and what jobs take of them, as physics says; for reports of a simulated cluster."""

    def __init__(self, jobs: int, gpus: int, physics: MeasuresUsage) -> None:
        """Start without groups, for `jobs` jobs in all."""
        self._physics = physics
        self._gpus = np.zeros((2, gpus))
        self._jobs = np.full((4, jobs), np.nan)
        self.fresh = False  # whether something has changed since the last report

    def measure(self, truth: JobBatch, groups: Groups, cluster: Cluster, iteration_s: FloatArray) -> None:
        """Note what groups use that run at this pace, seconds an iteration."""
        used = self._physics.usage(truth, groups, cluster, iteration_s)
        for row, new in zip(self._gpus, (used.utilisation, used.memory_bytes), strict=True):
            row[:] = np.where(np.isnan(new), row, new)
        self._jobs[:, used.jobs] = used.step_s, used.peak_bytes, used.persistent_bytes, used.spill_bytes
        self.fresh = True

    def clear(self, job: int, gpus: IntArray) -> None:
        """Note that a job has left these GPUs; remaining jobs are measured again."""
        self._gpus[:, gpus] = 0.0
        self._jobs[:, job] = np.nan
        self.fresh = True

    def report(self, at_s: float, running: IntArray, cluster: Cluster) -> UsageReported:
        """The figures of the GPUs on nodes that are up and of the jobs that run."""
        self.fresh = False
        utilisation, memory_bytes = np.where(cluster.node_up[cluster.gpu_node], self._gpus, np.nan)
        step_s, peak_bytes, persistent_bytes, spill_bytes = self._jobs[:, running]
        return UsageReported(
            at_s, utilisation, memory_bytes, running, step_s, peak_bytes, persistent_bytes, spill_bytes
        )
