"""Same results as `list_schedule.play` of `live.scheduler.explain` in the plainest code: each end looks at all jobs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.live.scheduler.explain.list_schedule import PREEMPT, STRICT


@dataclass
class Waiter:
    """One job, or a probe: GPUs, kinds that it may use, its seconds, where it runs, whether it stays."""

    gpus: int
    kinds: Sequence[int]
    left_s: float
    place: int = -1
    stays: bool = False
    start_s: float = math.inf
    end_s: float = math.inf
    due_s: float = math.inf


@dataclass
class Queue:
    """Jobs in order, free GPUs of each kind, and the probes with the number of the job before which each stands."""

    jobs: list[Waiter]
    free: list[int]
    how: int = 0
    probes: list[tuple[int, Waiter]] = field(default_factory=list)

    def play(self) -> None:
        """Fill `start_s` and `end_s` of all jobs, and `start_s` of the probes."""
        for job in self.jobs:
            if job.place >= 0:
                self.free[job.place] -= job.gpus
                job.start_s, job.due_s = 0.0, job.left_s
        now_s = 0.0
        while True:
            self._pass(now_s)
            running = [job for job in self.jobs if job.place >= 0 and job.end_s == math.inf]
            if not running:
                return
            now_s = min(job.due_s for job in running)
            for job in running:
                if job.due_s <= now_s:
                    job.end_s = now_s
                    self.free[job.place] += job.gpus

    def _pass(self, now_s: float) -> None:
        blocked = False
        for i in range(len(self.jobs) + 1):
            for at, probe in self.probes:
                if at == i and probe.start_s == math.inf and not blocked and self._kind(probe, i) >= 0:
                    probe.start_s = now_s
            if i == len(self.jobs) or self.jobs[i].place >= 0:
                continue
            kind = -1 if blocked else self._kind(self.jobs[i], i)
            if kind < 0:
                blocked = blocked or bool(self.how & STRICT)
                continue
            self._start(i, kind, now_s)

    def _kind(self, job: Waiter, at: int) -> int:
        for kind in job.kinds:
            behind = sum(other.gpus for other in self._may_stop(kind, at)) if self.how & PREEMPT else 0
            if job.gpus <= self.free[kind] + behind:
                return kind
        return -1

    def _may_stop(self, kind: int, at: int) -> list[Waiter]:
        later = self.jobs[at:]
        return [job for job in later if job.place == kind and job.end_s == math.inf and not job.stays]

    def _start(self, at: int, kind: int, now_s: float) -> None:
        job = self.jobs[at]
        while self.free[kind] < job.gpus:
            victim = self._may_stop(kind, at)[-1]
            victim.place, victim.left_s = -1, victim.due_s - now_s
            self.free[kind] += victim.gpus
        self.free[kind] -= job.gpus
        job.place, job.due_s = kind, now_s + job.left_s
        job.start_s = min(job.start_s, now_s)
