"""Policies that are fair between users or queues: DRF, and the capacity scheduler of YARN."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.plan import Plan
from plait.core.policy import View
from plait.placement import Scheme, place
from plait.placement.packing import Placement


@dataclass(frozen=True)
class Drf:
    """Dominant resource fairness (Ghodsi et al., NSDI 2011): max-min over users on GPUs, CPUs and memory.

    Progressive filling: the user with the smallest weighted dominant share starts its oldest waiting job;
    a job that does not fit is passed over. Nothing is preempted. A user's weight is the largest among its
    active jobs.
    """

    place: Scheme | Placement = Scheme.BEST_FIT
    name: str = "drf"

    def decide(self, view: View) -> Plan:
        """Running jobs stay; waiting ones in the order of progressive filling."""
        jobs = view.jobs
        share = self._demand_shares(view)
        used: dict[int, FloatArray] = {}
        weight: dict[int, float] = {}
        queues: dict[int, list[int]] = {}
        for row, (user, running) in enumerate(zip(jobs.user_number.tolist(), jobs.running.tolist(), strict=True)):
            used.setdefault(user, np.zeros(share.shape[1]))
            weight[user] = max(weight.get(user, 0.0), float(jobs.weight[row]))
            if running:
                used[user] += share[row]
            else:
                queues.setdefault(user, []).append(row)
        order = np.flatnonzero(jobs.running).tolist()
        free = int(view.node_gpus.sum()) - int(jobs.gpus[jobs.running].sum())
        heap = [(float(used[u].max()) / weight[u], queue[0], u, 0) for u, queue in queues.items()]
        heapq.heapify(heap)
        late: list[int] = []
        while heap:
            _, row, user, at = heapq.heappop(heap)
            if int(jobs.gpus[row]) <= free:
                order.append(row)
                free -= int(jobs.gpus[row])
                used[user] += share[row]
            else:
                late.append(row)
            if at + 1 < len(queues[user]):
                entry = (float(used[user].max()) / weight[user], queues[user][at + 1], user, at + 1)
                heapq.heappush(heap, entry)
        scheme = self.place if isinstance(self.place, Scheme) else self.place(view)
        return place(view, np.array(order + late, dtype=np.int64), scheme=scheme)

    @staticmethod
    def _demand_shares(view: View) -> FloatArray:
        """Share of the cluster's GPUs, CPUs and memory that each job asks for, shape (jobs, 3)."""
        cluster, jobs = view.cluster, view.jobs
        cpus = float(cluster.node_cpus[cluster.node_up].sum())
        memory = float(cluster.node_memory_bytes[cluster.node_up].sum())
        return np.column_stack(
            [
                jobs.gpus / max(cluster.gpus_up, 1),
                jobs.cpus / max(cpus, 1.0),
                jobs.memory_bytes / max(memory, 1.0),
            ]
        )


@dataclass(frozen=True)
class YarnCapacity:
    """YARN's capacity scheduler as Tiresias used it: FIFO inside a queue, gangs, no preemption.

    The head of a queue waits until it can be consolidated under one switch, and blocks the queue meanwhile; one that
    no switch could hold, even with all its nodes idle, waits for the fewest nodes that can.
    `shares` gives queues (the jobs' `project`, in order of appearance) their part of the cluster; without it
    there is one queue. With several, the queue that uses least of its share is served first, and may exceed
    it while others leave GPUs idle.
    """

    shares: tuple[float, ...] = ()
    place: Scheme | Placement = Scheme.CONSOLIDATED_FIRST_FIT
    name: str = "yarn-cs"

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        if any(not (s > 0 and math.isfinite(s)) for s in self.shares):
            raise InputError(f"shares must be > 0, got {list(self.shares)}")

    def decide(self, view: View) -> Plan:
        """Running jobs stay; then the heads of the queues while they fit."""
        jobs = view.jobs
        running = np.flatnonzero(jobs.running)
        scheme = self.place if isinstance(self.place, Scheme) else self.place(view)
        if not self.shares:
            order = np.concatenate([running, np.flatnonzero(~jobs.running)])
            return place(view, order, scheme=scheme, strict=True)
        blocked: set[int] = set()
        rows = running
        plan = place(view, rows, scheme=scheme)
        while True:
            head = self._next_head(view, rows, blocked)
            if head < 0:
                break
            trial = place(view, np.append(rows, head), scheme=scheme)
            if len(trial.groups) > len(plan.groups):
                rows, plan = np.append(rows, head), trial
            else:
                blocked.add(int(jobs.project_number[head]) % len(self.shares))
        waiting = np.setdiff1d(np.arange(len(jobs)), rows)
        reasons = {
            int(jobs.number[r]): f"waits in its queue; {int(jobs.gpus[r])} GPUs under one switch are not free"
            for r in waiting
        }
        return Plan(plan.groups, jobs.number[np.concatenate([rows, waiting])], reasons=reasons)

    def _next_head(self, view: View, rows: IntArray, blocked: set[int]) -> int:
        jobs = view.jobs
        queue = jobs.project_number % len(self.shares)
        inside = np.zeros(len(jobs), dtype=bool)
        inside[rows] = True
        best, best_use = -1, math.inf
        for q, share in enumerate(self.shares):
            waiting = np.flatnonzero((queue == q) & ~inside)
            if q in blocked or not len(waiting):
                continue
            use = float(jobs.gpus[inside & (queue == q)].sum()) / share
            if use < best_use:
                best, best_use = int(waiting[0]), use
        return best
