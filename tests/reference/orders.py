"""Orders and a placement of the naive simulator's own: integers, loops, GPUs by number."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from reference.naive import Choice, Job, Naive

Key = Callable[[Job, Naive], "tuple[float, ...]"]


def arrival(job: Job, run: Naive) -> tuple[float, ...]:
    return ()


def duration(job: Job, run: Naive) -> tuple[float, ...]:
    return (job.total,)


def size(job: Job, run: Naive) -> tuple[float, ...]:
    return (job.spec.gpus,)


def remaining_time(job: Job, run: Naive) -> tuple[float, ...]:
    return (job.total - job.work_by(run.now),)


def remaining_service(job: Job, run: Naive) -> tuple[float, ...]:
    return ((job.total - job.work_by(run.now)) * job.spec.gpus,)


def run_time(job: Job, run: Naive) -> tuple[float, ...]:
    return (job.held_by(run.now),)


def attained(job: Job, run: Naive) -> tuple[float, ...]:
    return (job.service_by(run.now),)


def count(run: Naive, ranked: list[Job], strict: bool = False) -> list[Job]:
    """The jobs that get GPUs, by counting them."""
    left = sum(node.gpus for node, up in zip(run.cluster.nodes, run.cluster.up, strict=True) if up)
    chosen = []
    for job in ranked:
        if job.spec.gpus <= left:
            left -= job.spec.gpus
            chosen.append(job)
        elif strict:
            break
    return chosen


def give(run: Naive, chosen: list[Job]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Running jobs keep their GPUs, the others get the free ones with the lowest numbers."""
    free = [gpu for gpu in range(run.cluster.gpus) if run.cluster.up[int(run.cluster.gpu_node[gpu])]]
    where = {job.number: job.gpus for job in chosen if job.state == "running"}
    free = [gpu for gpu in free if not any(gpu in gpus for gpus in where.values())]
    for job in chosen:
        if job.number not in where:
            where[job.number], free = tuple(free[: job.spec.gpus]), free[job.spec.gpus :]
    return [((job.number,), where[job.number]) for job in chosen]


def by(
    key: Key, *, preempt: bool = True, strict: bool = False, quantum_s: float = math.inf
) -> Callable[[Naive], Choice]:
    """Sort by a key; ties by submission."""

    def choose(run: Naive) -> Choice:
        kept = [j for j in run.active if not preempt and j.state == "running"]
        rest = sorted((j for j in run.active if j not in kept), key=lambda j: (*key(j, run), j.number))
        chosen = count(run, kept + rest, strict)
        until = run.now_s + quantum_s if len(chosen) < len(run.active) else math.inf
        return Choice(give(run, chosen), valid_until_s=until)

    return choose


@dataclass
class Tiresias:
    """Discretised LAS with queues as lists, as the released simulator keeps them."""

    thresholds: tuple[float, ...]
    within: str = "first_start"
    knob: float = math.inf
    guard: bool = True
    floor_s: float = 3600.0
    dimensions: int = 2
    lists: list[list[int]] = field(default_factory=list)

    def service(self, job: Job, run: Naive) -> float:
        if self.dimensions == 2:
            return (job.service_by(run.now) - job.promoted_at_service) / 1000
        return (job.held_by(run.now) - job.promoted_at_held) / 1000

    def queue(self, job: Job, run: Naive) -> int:
        return sum(bound <= self.service(job, run) + 1e-9 for bound in self.thresholds)

    def patience_s(self, job: Job, run: Naive) -> float:
        """How long the job has to go on waiting for a promotion."""
        ran = (job.held_by(run.now) - job.promoted_at_held) / 1000
        if ran == 0 or self.queue(job, run) == 0:
            return math.inf
        asked = self.knob * ran
        if self.guard:
            asked = self.knob * 2**job.promotions * max(ran, self.floor_s)
        return asked - (job.waited_s + run.now_s - job.waits_since_s)

    def __call__(self, run: Naive) -> Choice:
        self.split(run)
        waiting = [j for j in run.active if j.state == "waiting"]
        promoted = [j for j in waiting if self.patience_s(j, run) <= 1e-6]
        before = [list(queue) for queue in self.lists]
        while True:
            self.lists = [list(queue) for queue in before]
            level = {j.number: 0 if j in promoted else self.queue(j, run) for j in run.active}
            for job in run.active:
                self.file(job, level[job.number], promoted)
            ranked = sorted(run.active, key=lambda j: (level[j.number], self.place(j, level[j.number])))
            chosen = count(run, ranked)
            # Who is stopped although its wait is due would be back in the next moment: promoted instead.
            stopped = [j for j in run.active if j.state != "waiting" and j not in promoted and j not in chosen]
            stopped = [j for j in stopped if self.soon(j, run) <= 1e-3]
            if not stopped:
                break
            promoted = [j for j in run.active if j in promoted or j in stopped]
        until = math.inf
        for job in run.active:
            if job in chosen:
                for bound in self.thresholds:
                    left = bound - (0.0 if job in promoted else self.service(job, run))
                    if left > 1e-9:
                        until = min(until, left / (job.spec.gpus if self.dimensions == 2 else 1))
                        break
            elif job not in promoted:
                until = min(until, self.soon(job, run))
        numbers = [j.number for j in promoted]
        return Choice(give(run, chosen), promoted=numbers, valid_until_s=run.now_s + until)

    def soon(self, job: Job, run: Naive) -> float:
        """A job that is stopped now begins to wait now."""
        if job.state == "waiting":
            return max(self.patience_s(job, run), 1e-3)
        ran = (job.held_by(run.now) - job.promoted_at_held) / 1000
        if ran == 0 or self.queue(job, run) == 0:
            return math.inf
        asked = self.knob * (2**job.promotions * max(ran, self.floor_s) if self.guard else ran)
        return max(asked - job.waited_s, 1e-3)

    def file(self, job: Job, level: int, promoted: list[Job]) -> None:
        """Put a job that is new to its list at the end of it."""
        while len(self.lists) <= len(self.thresholds):
            self.lists.append([])
        if job in promoted or job.number not in self.lists[level]:
            for others in self.lists:
                if job.number in others:
                    others.remove(job.number)
            self.lists[level].append(job.number)

    def place(self, job: Job, level: int) -> tuple[float, ...]:
        if self.within == "submit":
            return (job.number,)
        if self.within == "first_start":
            return (math.inf if math.isnan(job.first_start_s) else job.first_start_s, job.number)
        return (self.lists[level].index(job.number),)

    def split(self, run: Naive) -> None:
        """Stably: those who run (a crash sends a job behind them), then those who wait."""
        state = {j.number: j.state for j in run.active}
        for i, mine in enumerate(self.lists):
            here = [n for n in mine if n in state]
            self.lists[i] = [n for n in here if state[n] == "running"] + [n for n in here if state[n] == "waiting"]
