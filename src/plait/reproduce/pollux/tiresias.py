"""Tiresias with tuned jobs: two queues by attained service, GPUs and batch as in the workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.errors import InputError
from plait.reproduce.pollux.clock import GPUS_PER_NODE, Allocation, Shape, fill, free_gpus
from plait.reproduce.pollux.jobs import Job
from plait.reproduce.pollux.workload import Workload

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
