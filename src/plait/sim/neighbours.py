"""Which groups touch: while there are guests, everybody who shares a GPU gets a new pace when somebody comes or goes.

A guest may lie on several hosts, which may have other guests, so groups that are connected through others are found
together. Without guests no group touches another, and nothing of this is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from plait.control.messages import UsageReported
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.core.plan import Groups, plain_details
from plait.sim.physics import MeasuresUsage


@dataclass(eq=False, slots=True)
class Touching:
    """A running group; `details` has a row a member, or is None."""

    jobs: list[int]
    gpus: list[int]
    gate: int
    guest: bool
    details: FloatArray | None


class Neighbours:
    """The groups that run, by job and by GPU."""

    def __init__(self) -> None:
        """Nobody runs."""
        self._of_job: dict[int, Touching] = {}
        self._on_gpu: dict[int, list[Touching]] = {}

    def put(self, groups: Groups) -> None:
        """These groups run from now on; their members are in no other."""
        jobs, gpus = groups.jobs.tolist(), groups.gpus.tolist()
        first_job, first_gpu = groups.first_job.tolist(), groups.first_gpu.tolist()
        for g in range(len(groups)):
            members = slice(first_job[g], first_job[g + 1])
            group = Touching(
                jobs[members],
                gpus[first_gpu[g] : first_gpu[g + 1]],
                0 if groups.gate is None else int(groups.gate[g]),
                groups.guest is not None and bool(groups.guest[g]),
                None if groups.details is None else groups.details[members],
            )
            for job in group.jobs:
                self.leave(job)
                self._of_job[job] = group
            for gpu in group.gpus:
                self._on_gpu.setdefault(gpu, []).append(group)

    def leave(self, job: int) -> None:
        """The job is in no group any more; nothing happens if it was in none."""
        group = self._of_job.pop(job, None)
        if group is None:
            return
        at = group.jobs.index(job)
        del group.jobs[at]
        if group.details is not None:
            group.details = np.delete(group.details, at, axis=0)
        if not group.jobs:
            for gpu in group.gpus:
                self._on_gpu[gpu].remove(group)

    def is_guest(self, job: int) -> bool:
        """Whether the job runs as a guest."""
        group = self._of_job.get(job)
        return group is not None and group.guest

    def around(self, gpus: Iterable[int]) -> Groups:
        """The groups on these GPUs, and all that share a GPU with one of them directly or through others."""
        found: dict[int, Touching] = {}
        todo = list(dict.fromkeys(gpus))
        seen = set(todo)
        while todo:
            for group in self._on_gpu.get(todo.pop(), ()):
                if id(group) not in found:
                    found[id(group)] = group
                    new = [gpu for gpu in group.gpus if gpu not in seen]
                    seen.update(new)
                    todo += new
        return joined(list(found.values()))


def joined(rows: list[Touching]) -> Groups:
    """These groups as columns."""
    guests = np.array([row.guest for row in rows], dtype=np.bool_)
    gates = np.array([row.gate for row in rows], dtype=np.int64)
    special = any(row.details is not None for row in rows)
    parts = [plain_details(len(r.jobs)) if r.details is None else r.details for r in rows] if special else []
    return Groups(
        np.array([job for row in rows for job in row.jobs], dtype=np.int64),
        np.array([gpu for row in rows for gpu in row.gpus], dtype=np.int64),
        np.cumsum([0, *(len(row.gpus) for row in rows)]),
        np.cumsum([0, *(len(row.jobs) for row in rows)]),
        gates if gates.any() else None,
        np.concatenate(parts) if parts else None,
        guests if guests.any() else None,
    )


class GpuFigures:
    """How busy and full GPUs are and what jobs take of them, as physics says; for reports of a simulated cluster."""

    def __init__(self, jobs: int, gpus: int, physics: MeasuresUsage) -> None:
        """Nobody runs; `jobs` there are in all."""
        self._physics = physics
        self._gpus = np.zeros((2, gpus))
        self._jobs = np.full((4, jobs), np.nan)
        self.fresh = True  # whether something has changed since the last report

    def measure(self, truth: JobBatch, groups: Groups, cluster: Cluster, iteration_s: FloatArray) -> None:
        """Note what groups use that run at this pace, seconds an iteration."""
        used = self._physics.usage(truth, groups, cluster, iteration_s)
        for row, new in zip(self._gpus, (used.utilisation, used.memory_bytes), strict=True):
            row[:] = np.where(np.isnan(new), row, new)
        self._jobs[:, used.jobs] = used.step_s, used.peak_bytes, used.persistent_bytes, used.spill_bytes
        self.fresh = True

    def clear(self, job: int, gpus: IntArray) -> None:
        """Note that a job has left these GPUs; who is still there is measured again."""
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
