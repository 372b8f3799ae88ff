"""Policies that are fair between users or queues: DRF, and the capacity scheduler of YARN."""

from __future__ import annotations

import bisect
import heapq
import math
from dataclasses import dataclass, replace

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jobs import JobClass
from plait.core.plan import Plan
from plait.core.policy import JOB_CLASS, View
from plait.placement import Scheme, place
from plait.placement.packing import How, Placement

#: How soon a killed job may start elsewhere, seconds: YARN looks at its queues this often.
MONITOR_S = 3.0
#: Why a killed job waits.
KILLED = (
    "stopped for a guaranteed job that took its GPUs back (live, after a checkpoint); goes on from its last checkpoint "
    "once there is room"
)


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
        users, user_of = np.unique(jobs.user_number, return_inverse=True)
        used, weight = np.zeros((len(users), share.shape[1])), np.zeros(len(users))
        np.add.at(used, user_of[jobs.running], share[jobs.running])
        np.maximum.at(weight, user_of, jobs.weight)
        queues: dict[int, list[int]] = {}
        waiting = np.flatnonzero(~jobs.running)
        for row, user in zip(waiting.tolist(), user_of[waiting].tolist(), strict=True):
            queues.setdefault(user, []).append(row)
        order = np.flatnonzero(jobs.running).tolist()
        free = int(view.node_gpus.sum()) - int(jobs.gpus[jobs.running].sum())
        heap = [(float(used[u].max()) / weight[u], queue[0], u, 0) for u, queue in queues.items()]
        heapq.heapify(heap)
        late: list[int] = []
        queue: list[int] = []
        while heap:
            _, row, user, at = heapq.heappop(heap)
            queue.append(row)
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
        plan = place(view, np.array(order + late, dtype=np.int64), scheme=scheme)
        running = np.flatnonzero(jobs.running)
        return replace(plan, order=jobs.number[np.concatenate([running, np.array(queue, dtype=np.int64)])])

    @staticmethod
    def _demand_shares(view: View) -> FloatArray:
        """Share of the cluster's GPUs, CPUs and memory that each job requests, shape (jobs, 3)."""
        cluster, jobs = view.cluster, view.jobs
        cpus = float(cluster.node_cpus[cluster.node_up].sum())
        memory = float(cluster.node_memory_bytes[cluster.node_up].sum())
        return np.column_stack(
            [jobs.gpus / max(cluster.gpus_up, 1), jobs.cpus / max(cpus, 1.0), jobs.memory_bytes / max(memory, 1.0)]
        )


@dataclass(frozen=True)
class YarnCapacity:
    """YARN's capacity scheduler as Tiresias used it: FIFO inside a queue, gangs, no preemption.

    The head of a queue waits until it can be consolidated under one switch, and blocks the queue meanwhile; one that no
    switch could hold, even with all its nodes idle, waits for the minimum nodes that can. `shares` gives queues (the
    jobs' `project`, in order of appearance) their part of the cluster; without it there is one queue. With several, the
    queue with the lowest use of its share is served first, and may exceed it while others leave GPUs idle.

    With `preempt` guaranteed jobs take GPUs back from opportunistic ones, which have queues of their own behind them.
    If a guaranteed head does not fit, the opportunistic jobs that started last are killed until it does, and of these
    only jobs on GPUs that it, or a job that starts with it, gets. No job is killed for a head that would not fit
    anyway. A killed job saves nothing: it queues again and resumes from the last checkpoint it wrote while it ran, from
    its beginning if there is none. (YARN gives a container 15 s to leave by itself before it kills it; here it has
    none. A live cluster stops jobs after a checkpoint only, so there it saves one first.)
    """

    shares: tuple[float, ...] = ()
    preempt: bool = False
    place: Scheme | Placement = Scheme.CONSOLIDATED_FIRST_FIT
    name: str = "yarn-cs"

    def __post_init__(self) -> None:
        if any(not (s > 0 and math.isfinite(s)) for s in self.shares):
            raise InputError(f"shares must be > 0, got {list(self.shares)}")

    @property
    def uses(self) -> frozenset[str]:
        """Classes make a difference only where guaranteed jobs take GPUs back."""
        return frozenset({JOB_CLASS}) if self.preempt else frozenset()

    def decide(self, view: View) -> Plan:
        """Running jobs stay, except killed ones; then the heads of the queues start while they fit."""
        jobs = view.jobs
        rows = np.flatnonzero(jobs.running)
        scheme = self.place if isinstance(self.place, Scheme) else self.place(view)
        if not self.shares and not self.preempt:
            order = np.concatenate([rows, np.flatnonzero(~jobs.running)])
            return place(view, order, scheme=scheme, strict=True)
        opportunistic = (jobs.job_class == int(JobClass.OPPORTUNISTIC)) & self.preempt
        killed, until_s = np.zeros(len(jobs), dtype=np.bool_), math.inf
        plan = place(view, rows, scheme=scheme)
        for some in (~opportunistic, opportunistic):
            blocked: set[int] = set()
            while (head := self._next_head(view, rows, blocked, some & ~killed)) >= 0:
                asked, victims = np.append(rows, head), NO_JOBS
                trial = place(view, asked, scheme=scheme)
                if not opportunistic[head] and not len(_new_gpus(view, asked, trial)):
                    victims = _victims(view, asked, opportunistic, scheme)
                    if len(victims):
                        asked = asked[~np.isin(asked, victims)]
                        trial = place(view, asked, scheme=scheme)
                if len(_new_gpus(view, asked, trial)):
                    killed[victims] = True
                    rows, plan = asked, trial
                else:
                    if not opportunistic[head]:
                        until_s = float(view.keeps.until_s[opportunistic & ~view.may_stop].min(initial=math.inf))
                    blocked.add(int(jobs.project_number[head]) % max(len(self.shares), 1))
        waiting = np.setdiff1d(np.arange(len(jobs)), rows)
        reasons = {
            int(jobs.number[r]): KILLED
            if killed[r]
            else f"waits in its queue; {int(jobs.gpus[r])} GPUs under one switch are not free"
            for r in waiting
        }
        if killed.any():
            until_s = min(until_s, view.now_s + MONITOR_S)
        order = jobs.number[np.concatenate([rows, waiting])]
        return Plan(plan.groups, order, reasons=reasons, valid_until_s=until_s, kills=jobs.number[killed])

    def _next_head(self, view: View, rows: IntArray, blocked: set[int], some: BoolArray) -> int:
        """The first waiting of `some` in the queue that uses least of its share, none of `blocked`; -1 without any."""
        jobs, shares = view.jobs, self.shares or (1.0,)
        queue = jobs.project_number % len(shares)
        inside = np.zeros(len(jobs), dtype=bool)
        inside[rows] = True
        best, best_use = -1, math.inf
        for q, share in enumerate(shares):
            waiting = np.flatnonzero((queue == q) & ~inside & some)
            if q in blocked or not len(waiting):
                continue
            use = float(jobs.gpus[inside & (queue == q) & some].sum()) / share
            if use < best_use:
                best, best_use = int(waiting[0]), use
        return best


def _new_gpus(view: View, rows: IntArray, plan: Plan) -> IntArray:
    """GPUs that the waiting ones of `rows` get by `plan`; none unless all of them get theirs."""
    jobs, groups = view.jobs, plan.groups
    starts = jobs.number[rows[~jobs.running[rows]]]
    if not np.isin(starts, groups.jobs).all():
        return NO_JOBS
    return groups[groups.group_of_member()[np.isin(groups.jobs, starts)]].gpus


def _victims(view: View, rows: IntArray, lowly: BoolArray, scheme: How) -> IntArray:
    """Running jobs of `rows` that are `lowly` to kill so that the waiting ones fit, the head last; may be empty.

    With its GPUs free a victim's node can suit a job ahead of the head better, which then leaves its own to the head.
    So every holder of GPUs of any job that starts is a victim.
    """
    jobs = view.jobs
    latest = rows[lowly[rows] & jobs.running[rows] & view.may_stop[rows]]
    latest = latest[np.lexsort((-latest, -jobs.last_start_s[latest]))]

    def gpus_without(n: int) -> IntArray:
        """The GPUs of jobs that start without the `n` jobs that started last."""
        rest = rows[~np.isin(rows, latest[:n])]
        return _new_gpus(view, rest, place(view, rest, scheme=scheme))

    if not len(latest) or not len(gpus_without(len(latest))):
        return NO_JOBS
    fewest = 1 + bisect.bisect_left(range(1, len(latest)), True, key=lambda n: len(gpus_without(n)) > 0)
    taken, running, there = gpus_without(fewest), view.running, jobs.running_group[latest]
    first = running.first_gpu
    hit = [bool(np.isin(running.gpus[first[g] : first[g + 1]], taken).any()) for g in there[:fewest].tolist()]
    victims: IntArray = latest[:fewest][np.array(hit)]
    return victims
