"""Reserved nodes, as limits on a view: policies place jobs as ever, and some nodes have no room for some jobs.

From the start of a reservation to its end, jobs of other projects get nothing on its nodes. Those that run there are
stopped at the start where the preemption rule allows it, as if they waited; the others stay until they end. Before the
start a job of another project starts there only if it is certain to leave in time: its time limit ends it, or it
resumes from a checkpoint and may be stopped by then.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from plait.core.arrays import BoolArray, FloatArray
from plait.core.jobs import Checkpoints, Phase
from plait.core.plan import NodeReservation, Plan
from plait.core.policy import View
from plait.core.preemption_kernels import CLOCK_S
from plait.placement.reserve import refilled

#: Reservations that the reason of a job names at most; `plait explain` lists all.
NAMED = 3


def planned(view: View, reservations: Sequence[NodeReservation], decide: Callable[[View], Plan]) -> Plan:
    """The plan by `decide` within these reservations; at each start and end of one a decision is due.

    While nodes are reserved, waiting jobs of the project go there rather than elsewhere, and do not wait behind jobs
    that may not start there. Jobs for which the other nodes are too few are not shown to the policy.
    """
    left = _current(view, reservations)
    if not left:
        return decide(view)
    barred, leaves, next_s = _barred(view, left)
    words = {
        number: "; ".join([str(one) for one, flag in zip(left, flags, strict=True) if flag][:NAMED])
        for number, flags in zip(view.jobs.number[barred.any(axis=1)].tolist(), barred[barred.any(axis=1)], strict=True)
    }
    fits = _room(view, left, barred) >= view.jobs.min_gpus
    view, barred, leaves = replace(view, jobs=view.jobs.subset(view.jobs.number[fits])), barred[fits], leaves[fits]
    own, waits = _own(view, left), view.jobs.running_group < 0
    plan = decide(_limited(view, left, barred, leaves, {nodes: rows & waits for nodes, rows in own.items()}))
    late = _unplaced(view, plan) & waits
    mine = np.logical_or.reduce([np.zeros_like(late), *own.values()]) & late
    if mine.any():
        inside = {nodes: rows & waits & ~late for nodes, rows in own.items()}
        plan = decide(_limited(view, left, barred, leaves, inside))
        late = _unplaced(view, plan)
        ahead = late & barred.any(axis=1)
        if (late & mine).any() and ahead.any():
            inside = {nodes: rows & waits & late for nodes, rows in own.items()}
            limited = _limited(view, left, barred, leaves, inside)
            rest = replace(limited, jobs=limited.jobs.subset(view.jobs.number[~ahead]))
            plan = refilled(plan, decide(rest))
    reasons, placed = plan.reasons, set(plan.groups.jobs.tolist())
    why = {
        job: f"{reasons[job]} ({text})" if job in reasons else text for job, text in words.items() if job not in placed
    }
    return replace(
        plan, reasons=ChainMap(why, cast("dict[int, str]", reasons)), valid_until_s=min(plan.valid_until_s, next_s)
    )


def barred_from(view: View, reservations: Sequence[NodeReservation], row: int) -> list[NodeReservation]:
    """The reservations on whose nodes the waiting job in `row` of `view.jobs` may not start now."""
    left = _current(view, reservations)
    if not left:
        return []
    return [one for one, flag in zip(left, _barred(view, left)[0][row], strict=True) if flag]


def _current(view: View, reservations: Sequence[NodeReservation]) -> list[NodeReservation]:
    return [one for one in reservations if one.until_s > view.now_s + CLOCK_S]


def _is_open(view: View, one: NodeReservation) -> bool:
    return one.from_s <= view.now_s + CLOCK_S


def _barred(view: View, left: Sequence[NodeReservation]) -> tuple[BoolArray, BoolArray, float]:
    """Whether each job is barred from the nodes of each reservation (jobs, reservations), and has to leave its GPUs.

    And when that changes by itself, seconds.
    """
    barred, leaves = np.zeros((len(view.jobs), len(left)), dtype=np.bool_), np.zeros(len(view.jobs), dtype=np.bool_)
    times = [at_s for one in left for at_s in (one.from_s, one.until_s)]
    for k, one in enumerate(left):
        others, there = ~_of_project(view, one.project), _runs_on(view, one)
        if _is_open(view, one):
            stays = there & ~view.may_stop
            barred[:, k] = others & ~stays
            leaves |= others & there & ~stays
            times += view.keeps.until_s[others & stays].tolist()
        else:
            barred[:, k] = others & ~there & ~_gone_by(view, one.from_s)
    return barred, leaves, min((at_s for at_s in times if at_s > view.now_s + CLOCK_S), default=math.inf)


def _room(view: View, left: Sequence[NodeReservation], barred: BoolArray) -> FloatArray:
    """GPUs of nodes that are up and from which each job is not barred; infinite for jobs that stay where they are."""
    gpus, away = view.node_gpus, np.array([[node.id in one.nodes for node in view.cluster.nodes] for one in left])
    room: FloatArray = np.where(barred.any(axis=1), (gpus * ~(barred @ away)).sum(axis=1), math.inf)
    return room


def _own(view: View, left: Sequence[NodeReservation]) -> dict[frozenset[str], BoolArray]:
    """Sets of nodes that are not reserved for a project whose reservation has begun, and the jobs of that project."""
    inside: dict[str, set[str]] = {}
    for one in left:
        if _is_open(view, one):
            inside.setdefault(one.project, set()).update(one.nodes)
    ids = {node.id for node in view.cluster.nodes}
    return {frozenset(ids - nodes): _of_project(view, project) for project, nodes in inside.items()}


def _unplaced(view: View, plan: Plan) -> BoolArray:
    return ~np.isin(view.jobs.number, plan.groups.jobs)


def _of_project(view: View, project: str) -> BoolArray:
    jobs = view.jobs
    _, first, which = np.unique(jobs.project_number, return_index=True, return_inverse=True)
    same: BoolArray = np.array([jobs.spec(row).project == project for row in first.tolist()], dtype=np.bool_)
    return same[which]


def _runs_on(view: View, one: NodeReservation) -> BoolArray:
    cluster, running, group = view.cluster, view.running, view.jobs.running_group
    if not len(running):
        return np.zeros(len(group), dtype=np.bool_)
    nodes = np.array([node.id in one.nodes for node in cluster.nodes], dtype=np.bool_)
    of_group = np.logical_or.reduceat(nodes[cluster.gpu_node[running.gpus]], running.first_gpu[:-1])
    there: BoolArray = (group >= 0) & of_group[group]
    return there


def _gone_by(view: View, at_s: float) -> BoolArray:
    """Whether each job, started now, has certainly left its GPUs by then."""
    jobs, rule = view.jobs, view.rule
    restart_s = np.nan_to_num(jobs.restart_s, nan=0.0)
    limit_s = np.nan_to_num(jobs.time_limit_s - jobs.run_s, nan=math.inf)
    resumes = (jobs.checkpoints != int(Checkpoints.NEVER)) | rule.may_lose_work
    leaves_s = np.minimum(restart_s + limit_s, np.where(resumes, rule.runs_for * restart_s, math.inf))
    gone: BoolArray = view.now_s + leaves_s <= at_s
    return gone


def _limited(
    view: View, left: Sequence[NodeReservation], barred: BoolArray, leaves: BoolArray,
    inside: Mapping[frozenset[str], BoolArray],
) -> View:  # fmt: skip
    """The view in which jobs find no room on nodes that they are `barred` from, and those that have to leave wait.

    `inside`: sets of nodes, and the jobs that find no room there, either.
    """
    jobs, columns = view.jobs, view.jobs.columns
    flags = np.column_stack([barred, *inside.values()])
    if not flags.any():
        return view
    of_all = np.zeros((len(columns["phase"]), flags.shape[1]))
    of_all[jobs.number] = flags
    changed = {"barred": of_all, "has_demands": np.ones(1, dtype=np.bool_)}
    if leaves.any():
        for name, value in (("phase", int(Phase.WAITING)), ("running_group", -1), ("pending_since_s", view.now_s)):
            changed[name] = columns[name].copy()
            changed[name][jobs.number[leaves]] = value
    reserved = (*(frozenset(one.nodes) for one in left), *inside)
    return replace(view, jobs=jobs.subset(jobs.number, **changed), cluster=replace(view.cluster, reserved=reserved))
