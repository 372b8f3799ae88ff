"""The baselines, with tuned jobs: Tiresias, two queues by attained service, and Optimus with an oracle.

Both keep the batch of the workload. Optimus knows true step times and true remaining work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from plait.core.errors import InputError
from plait_papers.pollux.clock import GPUS_PER_NODE, Allocation, Shape, fill, free_gpus
from plait_papers.pollux.jobs import Job, within
from plait_papers.pollux.tables import Placement
from plait_papers.pollux.workload import Workload

THRESHOLD_GPU_S = 16 * 3600


class Tiresias:
    """Two queues separated at 16 GPU-hours, no promotion; a job too large for the free GPUs lets smaller ones pass."""

    kind = Job

    def __init__(self, workload: Workload, shape: Shape) -> None:
        """Raise `InputError` for a job that the cluster could never run."""
        most = shape.nodes * GPUS_PER_NODE
        for job in workload.jobs:
            if job.gpus > most:
                raise InputError(f"job {job.name} wants num_replicas {job.gpus}, the cluster has {most} GPUs")
        self.nodes = shape.nodes
        self.queues: tuple[list[int], list[int]] = ([], [])
        self.known: set[int] = set()
        self.running: set[int] = set()
        self.ran_s: dict[int, float] = {}
        self.before_s = 0.0

    def decide(
        self, now_s: float, jobs: Sequence[Job], allocations: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """Jobs that fit run, in the order of the queues, on their present GPUs if they have some."""
        by_number = {job.number: job for job in jobs}
        self._queue(now_s, by_number)
        left = self.nodes * GPUS_PER_NODE
        self.running = set()
        kept: dict[int, Allocation] = {}
        order = [*self.queues[0], *self.queues[1]]
        for number in order:
            wanted = by_number[number].submitted.gpus
            if wanted <= left:
                left -= wanted
                self.running.add(number)
                if number in allocations:
                    kept[number] = allocations[number]
        free = free_gpus(self.nodes, kept)
        for number in order:
            if number in self.running and number not in kept:
                kept[number] = fill(by_number[number].submitted.gpus, free)
        return kept

    def _queue(self, now_s: float, jobs: Mapping[int, Job]) -> None:
        """Remove complete jobs, append new ones to the first queue, and move jobs above the threshold to the second."""
        first, second = self.queues
        first[:] = [n for n in first if n in jobs]
        second[:] = [n for n in second if n in jobs]
        for number in jobs:
            if number not in self.known:
                self.known.add(number)
                self.ran_s[number] = 0.0
                first.append(number)
        for number, job in jobs.items():
            if number not in self.running:
                continue
            self.ran_s[number] += now_s - self.before_s
            if number in first and self.ran_s[number] * job.submitted.gpus >= THRESHOLD_GPU_S:
                first.remove(number)
                second.append(number)
        self.before_s = now_s


class Optimus:
    """One GPU each in the order of the file, then always one more where it saves most time."""

    kind = Job

    def __init__(self, shape: Shape) -> None:
        self.nodes = shape.nodes
        self._iteration_s: dict[tuple[str, int, int], float] = {}

    def decide(
        self, now_s: float, jobs: Sequence[Job], allocations: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """Jobs whose number of GPUs stays keep them; the others are placed, the smallest first."""
        counts = self._counts(jobs)
        kept = {n: held for n, held in allocations.items() if len(held) == counts[n]}
        free = free_gpus(self.nodes, kept)
        for number in sorted(counts, key=counts.__getitem__):
            if counts[number] and number not in kept:
                kept[number] = fill(counts[number], free)
        return kept

    def _counts(self, jobs: Sequence[Job]) -> dict[int, int]:
        """GPUs by job number."""
        left = self.nodes * GPUS_PER_NODE
        counts: dict[int, int] = {}
        for job in jobs:
            counts[job.number] = min(left, 1)
            left -= counts[job.number]
        weights = {job.number: remaining(job) for job in jobs}
        by_number = {job.number: job for job in jobs}
        gains = {n: self._gain(by_number[n], count) * weights[n] if left else 0.0 for n, count in counts.items()}
        while left:
            number = max(gains, key=gains.__getitem__)
            if gains[number] <= 0:
                break
            counts[number] += 1
            left -= 1
            if left:  # else it is not used any more, and one GPU more may be more than was measured
                gains[number] = self._gain(by_number[number], counts[number]) * weights[number]
        return counts

    def _gain(self, job: Job, count: int) -> float:
        """Seconds an iteration that one more GPU saves; none where the job may not have one more."""
        if not 0 < count < most_gpus(job):
            return 0.0
        return self._time(job, count) - self._time(job, count + 1)

    def _time(self, job: Job, gpus: int) -> float:
        key = job.model.name, job.submitted.batch, gpus
        found = self._iteration_s.get(key)
        if found is None:
            found = self._iteration_s[key] = iteration_s(job, gpus)
        return found


def most_gpus(job: Job) -> int:
    """So many that each still has the least batch; never more than were measured."""
    return min(job.submitted.batch // job.model.least_local, job.model.most_gpus)


def iteration_s(job: Job, gpus: int) -> float:
    """True seconds an iteration on packed nodes; one GPU always takes two passes at least."""
    model = job.model
    local = math.ceil(job.submitted.batch / gpus - 1e-8)
    passes = max(math.ceil(local / model.most_local - 1e-8) - 1, 1 if gpus == 1 else 0)
    local = within(model, math.ceil(local / (passes + 1) - 1e-8), passes, gpus)
    step_s, sync_s = job.measured.step(packed(gpus), local)
    return step_s + (step_s - sync_s) * passes


def packed(gpus: int) -> Placement:
    """Whole nodes and the rest on one more.

    >>> packed(6)
    (4, 2)
    """
    rest = gpus % GPUS_PER_NODE
    return (GPUS_PER_NODE,) * (gpus // GPUS_PER_NODE) + ((rest,) if rest else ())


def remaining(job: Job) -> float:
    """True iterations left from the end of the present epoch on; 1 in the last one."""
    last, batch = job.model.epochs - 1, job.submitted.batch
    if job.epoch >= last:
        return 1.0
    return job.measured.iterations(batch, last) - job.measured.iterations(batch, job.epoch)
