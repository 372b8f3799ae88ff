"""Running jobs move to faster GPUs that are free.

A long job that starts while only slow GPUs are free would otherwise stay there to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jobs.table import LEAST_RUN_S
from plait.core.plan import Plan
from plait.core.policy import View
from plait.core.resources import CPU_KIND
from plait.placement.packing import allowed_kinds
from plait.policies.by_completion import UNKNOWN_RESTART_S

#: How often to look again while GPUs of some kind are free, seconds.
LOOK_S = 1800.0
#: Part of a job's run time that it has spent where it is, and which of several jobs counts.
LEAST_PART, QUANTILE = 0.8, 0.75
#: Minimum gain in speed for which a job moves: estimates are no better.
LEAST_GAIN = 0.1


def kind_speeds(view: View) -> FloatArray:
    """Speed of each kind of GPU relative to that of known iteration times, by the jobs that run there; NaN: unknown.

    By what jobs that are alone on their GPUs have done, if nearly all of it there. Time in which they shared GPUs makes
    that too little, so the faster ones count. Where none runs, jobs that finished there tell: otherwise the last jobs
    of a busy time would stay on slow GPUs next to free fast ones.
    """
    jobs, cluster, running = view.jobs, view.cluster, view.running
    out = np.array([jobs.kind_speeds.get(kind, math.nan) for kind in cluster.kinds])
    here_s = np.where(jobs.running_group >= 0, view.now_s - jobs.last_start_s, 0.0)
    long = (here_s >= LEAST_RUN_S) & (here_s >= LEAST_PART * jobs.run_s)
    rows = np.flatnonzero(long & ~np.isnan(jobs.iteration_s))
    if not len(rows):
        return out
    crowd = np.bincount(running.gpus, np.repeat(np.diff(running.first_job), running.gpu_count()), cluster.gpus)
    first = running.gpus[running.first_gpu[jobs.running_group[rows]]]
    speed = jobs.iterations_done[rows] * jobs.iteration_s[rows] / jobs.run_s[rows]
    kind = cluster.node_kind[cluster.gpu_node[first]]
    for k in range(len(out)):
        mine = speed[(kind == k) & (crowd[first] == 1) & (speed > 0)]
        if len(mine):
            out[k] = np.quantile(mine, QUANTILE)
    return out


@dataclass(frozen=True)
class ToFasterKinds:
    """Moves a running group when a faster kind has room, once the speed it missed has paid for its restart.

    As in the ski rental problem, that costs at most twice the best choice in hindsight, and needs no durations.
    `speeds`: of kinds by name, where the operator has given them; others are learnt from running jobs with profiles.
    """

    speeds: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, view: View, plan: Plan, put: Callable[..., Plan]) -> Plan:
        """The plan with moves; `put(view, move=rows)` makes plans."""
        cluster, jobs, groups = view.cluster, view.jobs, plan.groups
        speed = np.array([self.speeds.get(kind, math.nan) for kind in cluster.kinds])
        if np.isnan(speed).any():
            speed = np.where(np.isnan(speed), kind_speeds(view), speed)
        used = np.zeros(cluster.gpus, dtype=np.bool_)
        used[groups.gpus] = True
        kind_of_gpu = cluster.node_kind[cluster.gpu_node]
        usable = ~used & cluster.node_up[cluster.gpu_node]
        free = np.bincount(kind_of_gpu[usable], minlength=len(cluster.kinds))
        free[[kind == CPU_KIND for kind in cluster.kinds]] = 0
        if not free.any() or not len(groups):
            return plan if free.any() else replace(plan, settled=False)  # a job that ends may make room on faster ones
        row_of = np.searchsorted(jobs.number, groups.jobs)
        allowed = np.broadcast_to(allowed_kinds(view), len(jobs))
        moves: list[tuple[float, int, int]] = []
        until_s = min(plan.valid_until_s, view.now_s + LOOK_S)
        lengths = groups.gpu_count().tolist()
        for g, need in enumerate(lengths):
            rows = row_of[groups.first_job[g] : groups.first_job[g + 1]]
            at = jobs.running_group[rows]
            now = kind_of_gpu[groups.gpus[groups.first_gpu[g]]]
            if at.min() < 0 or at.min() != at.max() or view.keeps.rows[rows].any() or np.isnan(speed[now]):
                continue
            mask = int(np.bitwise_and.reduce(allowed[rows]))
            faster = [k for k in np.flatnonzero(free >= need).tolist() if (mask >> k) & 1 and not np.isnan(speed[k])]
            best = max(faster, key=lambda k: speed[k], default=-1)
            gain = speed[best] / speed[now] - 1.0 if best >= 0 else 0.0
            if gain < LEAST_GAIN:
                continue
            cost_s = float(np.nan_to_num(jobs.restart_s[rows], nan=UNKNOWN_RESTART_S).max())
            pays_s = float(jobs.last_start_s[rows].max()) + cost_s / gain
            if pays_s > view.now_s:
                until_s = min(until_s, pays_s)
            else:
                moves.append((-gain * need, g, best))
        plan = replace(plan, valid_until_s=until_s, settled=False)
        moves.sort()
        for some in (moves, moves[:1]):
            if some and (found := self._moved(view, plan, put, some, free.copy(), row_of)) is not None:
                return replace(found, valid_until_s=min(found.valid_until_s, until_s))
        return plan

    def _moved(
        self,
        view: View,
        plan: Plan,
        put: Callable[..., Plan],
        moves: list[tuple[float, int, int]],
        free: IntArray,
        row_of: IntArray,
    ) -> Plan | None:
        """The plan with these moves, as far as `free` GPUs of the kinds suffice; None if some job would wait for it."""
        jobs, groups = view.jobs, plan.groups
        kinds = jobs.columns["gpu_kinds"].copy()
        rows: list[int] = []
        for _, g, kind in moves:
            need = int(groups.first_gpu[g + 1] - groups.first_gpu[g])
            if need <= free[kind]:
                free[kind] -= need
                mine = row_of[groups.first_job[g] : groups.first_job[g + 1]]
                rows += mine.tolist()
                for number in jobs.number[mine].tolist():
                    kinds[number] = (view.cluster.kinds[kind],)
        table = copy(jobs)
        table.columns = {**jobs.columns, "gpu_kinds": kinds, "has_kinds": np.array([True])}
        made = put(replace(view, jobs=table), move=np.array(rows, dtype=np.int64))
        return made if len(made.groups.jobs) == len(groups.jobs) else None
