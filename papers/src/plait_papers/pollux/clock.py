"""The artifact's loop: every `interval_s` all jobs advance, then the policy decides about the present ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import SimulationError
from plait_papers.pollux.jobs import Job
from plait_papers.pollux.tables import Placement
from plait_papers.pollux.workload import Workload

GPUS_PER_NODE = 4
NODES = 16
INTERVAL_S = 60

Allocation = tuple[int, ...]
"""The node of each GPU of a job, in the order the policy took them."""


class ClockRule(Protocol):
    """A policy of this world."""

    kind: type[Job]

    def decide(
        self, now_s: float, jobs: Sequence[Job], allocations: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """Allocations by job number, for jobs that are submitted and not complete, in the order of the file.

        `allocations` has the ones of `jobs` that hold GPUs now; jobs missing in the result hold none from now on.
        """


@dataclass(frozen=True)
class Shape:
    """The cluster and the clock: nodes of 4 GPUs, whole seconds between decisions, and what sharing a node costs.

    `interference`: share of its speed that a job on several nodes loses while a node of it has another such job.
    """

    nodes: int = NODES
    interval_s: int = INTERVAL_S
    interference: float = 0.0


@dataclass(frozen=True, eq=False)
class PolluxRun:
    """One finished run. Columns over the jobs in the order of the file; `rounds` are steps of the clock.

    `ran_s` is the time with GPUs, the delay of starts included; `restarts` leaves the first start out.
    """

    submit_s: FloatArray
    first_start_s: FloatArray
    end_s: FloatArray
    ran_s: FloatArray
    attained_gpu_s: FloatArray
    restarts: IntArray
    rounds: int

    @property
    def jct_s(self) -> FloatArray:
        """Completion times, each from its submission."""
        return self.end_s - self.submit_s


def run(workload: Workload, rule: ClockRule, shape: Shape, ended: Callable[[int], None] | None = None) -> PolluxRun:
    """Run `workload` under `rule` until all jobs are complete; `ended(n)` is called whenever `n` more have ended.

    Raises `SimulationError` where the measurements do not reach.
    """
    jobs = [rule.kind(i, s, workload.measured[s.application.name]) for i, s in enumerate(workload.jobs)]
    allocations: dict[int, Allocation] = {}
    todo, rounds = jobs, 0
    while todo:
        before_s = float(rounds * shape.interval_s)
        _advance(todo, allocations, shape, before_s)
        left = [job for job in todo if not job.done]
        if ended is not None and len(left) < len(todo):
            ended(len(todo) - len(left))
        todo, rounds = left, rounds + 1
        if not todo:
            break
        now_s = float(rounds * shape.interval_s)
        active = [job for job in todo if job.submit_s <= now_s]
        if active:
            allocations = _decide(rule, now_s, active, allocations)
        else:
            allocations = {}
            first_s = min(job.submit_s for job in todo)
            rounds = max(rounds, math.ceil(first_s / shape.interval_s) - 1)  # nothing happens until then
    columns: dict[str, Any] = {f.name: np.array([getattr(job, f.name) for job in jobs]) for f in fields(PolluxRun)[:-1]}
    return PolluxRun(**columns, rounds=rounds)


def _advance(jobs: Sequence[Job], allocations: Mapping[int, Allocation], shape: Shape, now_s: float) -> None:
    """All jobs run for one interval where they are."""
    crowded = crowded_nodes(allocations) if shape.interference else frozenset()
    for job in jobs:
        if not job.placement:
            continue
        slow = len(job.placement) > 1 and not crowded.isdisjoint(allocations[job.number])
        try:
            job.advance(now_s, shape.interval_s, shape.interference if slow else 0.0)
        except SimulationError as error:
            raise SimulationError(f"job {job.submitted.name} at {now_s:g} s: {error}") from error


def crowded_nodes(allocations: Mapping[int, Allocation]) -> frozenset[int]:
    """Nodes with two or more jobs that are on several nodes."""
    counts = Counter(node for nodes in map(set, allocations.values()) if len(nodes) > 1 for node in nodes)
    return frozenset(node for node, jobs in counts.items() if jobs > 1)


def _decide(
    rule: ClockRule, now_s: float, active: Sequence[Job], allocations: Mapping[int, Allocation]
) -> dict[int, Allocation]:
    """Call the policy, and place every job whose list of nodes changed."""
    kept = {job.number: held for job in active if (held := allocations.get(job.number))}
    wanted = {number: nodes for number, nodes in rule.decide(now_s, active, kept).items() if nodes}
    for job in active:
        if wanted.get(job.number) != kept.get(job.number):
            job.place(now_s, placement_of(wanted.get(job.number, ())))
    return wanted


def placement_of(allocation: Allocation) -> Placement:
    """GPUs a node, nodes in the order they first appear.

    >>> placement_of((3, 3, 0))
    (2, 1)
    """
    return tuple(Counter(allocation).values())


def fill(gpus: int, free: list[int]) -> Allocation:
    """Take `gpus` from the node with most free GPUs (the lowest of equals), then the next; `free` shrinks."""
    taken: list[int] = []
    while len(taken) < gpus:
        node = max(range(len(free)), key=free.__getitem__)
        count = min(free[node], gpus - len(taken))
        if count < 1:
            raise SimulationError(f"a policy wants {gpus} GPUs where only {len(taken)} are free")
        taken += [node] * count
        free[node] -= count
    return tuple(taken)


def free_gpus(nodes: int, allocations: Mapping[int, Allocation]) -> list[int]:
    free = [GPUS_PER_NODE] * nodes
    for allocation in allocations.values():
        for node in allocation:
            free[node] -= 1
    return free
