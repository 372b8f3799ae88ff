"""Gandiva: introspective time slicing, packing and migration (Xiao et al., OSDI 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait.core.plan import Plan
from plait.core.policy import View
from plait.core.resources import Resource
from plait.placement import Scheme, place
from plait.placement.packing import NO_PAIRS


@dataclass(frozen=True)
class Gandiva:
    """Early feedback for all jobs and high utilisation; mean JCT is not its goal.

    While GPUs last, each job runs alone on one node if it can (affinity), otherwise on several. When demand exceeds the
    cluster:

      time slicing  jobs run for a slice of `slice_s` each, the longest not served first, and all change at once;
                    a suspended job stays in host memory and resumes quickly
      packing       a job that has run alone for a slice is measured; pairs of equal size with the lowest GPU
                    utilisation share GPUs if together they need no more than all of the time and their
                    memory fits; a pair that ran slower than by time slicing (less than half its own speed) is
                    split and not packed again
      migration     a job that is spread over more nodes than it needs moves together once there is room, at
                    most one a decision

    Needs measured profiles for packing; without them it only slices. On GPUs of known memory a job that states none
    is packed once it was measured; in simulations it is taken to fit.
    """

    slice_s: float = 60.0
    packing: bool = True
    migration: bool = True
    name: str = "gandiva"

    def __post_init__(self) -> None:
        if not self.slice_s > 0:
            raise InputError(f"slice_s must be > 0 seconds, got {self.slice_s}")

    def decide(self, view: View) -> Plan:
        """Run jobs exclusively while GPUs last, otherwise in slices and pairs."""
        jobs = view.jobs
        overloaded = int(jobs.gpus.sum()) > int(view.node_gpus.sum())
        pairs = self._pairs(view) if overloaded and self.packing else NO_PAIRS
        leads = np.ones(len(jobs), dtype=np.bool_)
        leads[pairs[:, 1]] = False
        leaders = np.flatnonzero(leads)
        companions = {row: (mate,) for row, mate in pairs.tolist()}
        order = leaders[self._by_last_service(view, leaders, pairs)]
        plan = place(view, order, scheme=Scheme.BEST_FIT, companions=companions)
        if len(plan.groups.jobs) == len(jobs):
            plan = replace(plan, settled=False)  # a departure may make room for a migration
            return self._migrate(view, plan, order) if self.migration and not companions else plan
        until = min(self._slice_began(view.now_s) + self.slice_s, plan.valid_until_s)
        return Plan(plan.groups, plan.order, reasons=plan.reasons, valid_until_s=until, suspend=True)

    def _slice_began(self, now_s: float) -> float:
        """When the current slice began: all GPUs change hands at the same times, whole multiples of a slice."""
        return math.floor(now_s / self.slice_s + 1e-9) * self.slice_s

    def _by_last_service(self, view: View, leaders: IntArray, pairs: IntArray) -> IntArray:
        """Order units: units inside their slice first, then by the time since their last slice, longest first."""
        jobs = view.jobs
        served = np.where(jobs.running, view.now_s, np.where(jobs.starts > 0, jobs.pending_since_s, -np.inf))
        inside = jobs.running & (view.now_s > self._slice_began(view.now_s) + 1e-6)
        mate = np.arange(len(jobs))
        mate[pairs[:, 0]] = pairs[:, 1]
        either = inside[leaders] | inside[mate[leaders]]
        last = np.minimum(served[leaders], served[mate[leaders]])
        return np.lexsort((leaders, last, ~either))

    def _migrate(self, view: View, plan: Plan, order: IntArray) -> Plan:
        """The same plan with one badly spread running job brought together, if there is room."""
        jobs, node = view.jobs, view.cluster.gpu_node
        for row in np.flatnonzero(jobs.running).tolist():
            group = int(jobs.running_group[row])
            gpus = view.running.gpus[view.running.first_gpu[group] : view.running.first_gpu[group + 1]]
            enough = view.cluster.cap_prefix[view.cluster.node_kind[node[gpus[0]]]] >= len(gpus)
            nodes = len(np.unique(node[gpus]))
            if nodes <= 1 + int(np.argmax(enough)):
                continue
            schemes = np.full(len(jobs), int(Scheme.BEST_FIT), dtype=np.int64)
            schemes[row] = int(Scheme.CONSOLIDATED)
            last = np.append(order[order != row], row)
            together = place(view, last, scheme=schemes, move=np.array([row]))
            if len(together.groups.jobs) == len(jobs):
                at = int(together.groups.group_of_member()[together.groups.jobs == jobs.number[row]][0])
                if len(np.unique(node[together.groups[np.array([at])].gpus])) < nodes:
                    return replace(together, settled=False)
        return plan

    def _pairs(self, view: View) -> IntArray:
        """Rows with their mates, (pairs, 2): running pairs that do well stay, then lowest utilisation together."""
        from plait.policies.interleave import memory_unknown, room_taken  # loads the grouping, for packing only

        jobs = view.jobs
        busy = jobs.stage_s[:, Resource.GPU] / jobs.iteration_s
        bad = jobs.shared_speed < 0.5  # NaN (never shared) compares false
        can = ~np.isnan(busy) & ~bad & (jobs.run_s >= self.slice_s) & ~memory_unknown(view)
        # A pair must fit wherever it goes: cores and bytes of a GPU's part of the scarcest node.
        use = np.column_stack([busy, *room_taken(view)])
        return pair_up(np.lexsort((busy, jobs.gpus)), can, jobs.running_group, len(view.running), jobs.gpus, use)


@kernel
def pair_up(
    order: IntArray, can: BoolArray, running_group: IntArray, groups: int, size: IntArray, use: FloatArray
) -> IntArray:
    """Rows with their mates, shape (pairs, 2): of the `can`, two that are in one of the running `groups`, then others.

    `order` has the rows by their size, then by how busy they keep their GPUs: the least busy one of a size and the
    busiest one with which it needs at most all of everything (`use`, shape (rows, k)) are a pair.
    """
    n = len(order)
    pairs, used, free = np.empty((n // 2, 2), dtype=np.int64), 0, can.copy()
    first, second = np.full(groups, -1, dtype=np.int64), np.full(groups, -1, dtype=np.int64)
    members = np.zeros(groups, dtype=np.int64)
    for row in range(n):
        group = running_group[row]
        if can[row] and group >= 0:
            if members[group] == 0:
                first[group] = row
            second[group] = row
            members[group] += 1
    for group in range(groups):
        if members[group] == 2:
            pairs[used] = first[group], second[group]
            free[first[group]] = free[second[group]] = False
            used += 1
    alone = order[free[order]]
    lo = 0
    while lo < len(alone):
        end = lo
        while end < len(alone) and size[alone[end]] == size[alone[lo]]:
            end += 1
        low, high = lo, end - 1
        while low < high:
            fits = True
            for k in range(use.shape[1]):
                fits = fits and use[alone[low], k] + use[alone[high], k] <= 1.0
            if fits:
                pairs[used] = alone[low], alone[high]
                used += 1
                low += 1
            high -= 1
        lo = end
    return pairs[:used]
