"""A controller's jobs as the arrays that `plait.live.scheduler.explain.list_schedule` plays forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from plait.control.controller import Controller
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import Phase
from plait.core.policy import Policy, layers
from plait.live.scheduler.explain.durations import Unknown
from plait.live.scheduler.explain.list_schedule import PREEMPT, STRICT
from plait.live.scheduler.measured import WorkDone
from plait.policies.compose import Composed


class Who(NamedTuple):
    """Whose a job is and what it runs, by which durations of ended jobs are looked up."""

    user: str
    name: str
    command: str = ""


@dataclass(frozen=True)
class QueueArrays:
    """Active jobs in the order of the policy, by their `numbers`; the other columns as in `play`.

    `sharing`: how many GPUs jobs were promised for each that there is, at least 1. `waited_s`: since they were
    submitted, seconds.
    """

    numbers: IntArray
    gpus: IntArray
    mask: IntArray
    place: IntArray
    stays: IntArray
    capacity: IntArray
    how: int
    unknown: Unknown
    kinds: tuple[str, ...]
    sharing: float = 1.0

    def __len__(self) -> int:
        return len(self.numbers)

    def reordered(self, rows: IntArray) -> QueueArrays:
        """The same jobs in another order."""
        u = self.unknown
        unknown = Unknown(
            [u.user[i] for i in rows], [u.name[i] for i in rows], u.gpus[rows], u.ran_s[rows], u.left_s[rows],
            u.stated_s[rows], u.limit_s[rows], [u.command_of(i) for i in rows],
        )  # fmt: skip
        columns = {name: getattr(self, name)[rows] for name in ("numbers", "gpus", "mask", "place", "stays")}
        return replace(self, **columns, unknown=unknown)


def manner(policy: Policy) -> int:
    """How a policy treats running jobs, of `PREEMPT` and `STRICT`; a policy without such an attribute preempts."""
    composed = next((one for one in layers(policy) if isinstance(one, Composed)), None)
    if composed is None:
        return PREEMPT
    return (PREEMPT if composed.preempt else 0) | (STRICT if composed.strict else 0)


def kind_masks(gpu_kinds: IntArray | None, memory_bytes: FloatArray, cluster: Cluster) -> IntArray:
    """The kinds that jobs fit on, as bits, by their memory on a GPU and the masks of kinds that they named."""
    fits = memory_bytes[:, None] <= cluster.kind_gpu_memory_bytes[None, :] * (1 + 1e-9)
    mask: IntArray = (fits.astype(np.int64) << np.arange(len(cluster.kinds))).sum(axis=1)
    return mask if gpu_kinds is None else mask & gpu_kinds


def arrays_of(
    controller: Controller,
    who: Callable[[int], Who],
    reported: Mapping[int, WorkDone] | None = None,
    order: IntArray | None = None,
) -> QueueArrays:
    """The current queue; `reported` by job number; `order` of job numbers, otherwise that of the last decision."""
    columns, cluster, now_s = controller.job_store.columns, controller.cluster, controller.now_s
    active = controller.active
    jobs = active[np.lexsort((active, columns["position"][active]))] if order is None else order
    running = (columns["phase"][jobs] == int(Phase.RUNNING)) & (columns["running_group"][jobs] >= 0)
    group = np.where(running, columns["running_group"][jobs], 0)
    groups = controller.running
    kind_of_gpu = cluster.node_kind[cluster.gpu_node]
    least, asked = columns["min_gpus"][jobs], columns["gpus"][jobs]
    gpus, place = np.where(least < asked, least, asked), np.full(len(jobs), -1)
    if len(groups):
        sizes = np.diff(groups.first_gpu)
        gpus = np.where(running, sizes[group], gpus)
        place = np.where(running, kind_of_gpu[groups.gpus[groups.first_gpu[:-1]]][group], -1)
    capacity = np.bincount(cluster.node_kind, np.where(cluster.node_up, cluster.node_gpus, 0), len(cluster.kinds))
    promised = np.bincount(place[running], gpus[running], len(cluster.kinds))
    used = np.bincount(kind_of_gpu[np.unique(groups.gpus)], minlength=len(cluster.kinds)) if len(groups) else promised
    shared = np.where(promised > used, promised / np.maximum(used, 1), 1.0)
    named = None
    if columns["has_kinds"][0]:
        masks = [cluster.kind_mask(kinds) for kinds in columns["gpu_kinds"][jobs].tolist()]
        named = np.array(masks, dtype=np.int64)
    how = manner(controller.policy)
    known = _unknown(controller, jobs, running, gpus, who, reported or {}, now_s)
    stays = running if not how & PREEMPT else running & np.isinf(_kept_until(controller, jobs))
    return QueueArrays(
        jobs, gpus.astype(np.int64), kind_masks(named, columns["gpu_memory_bytes"][jobs], cluster),
        place.astype(np.int64), stays.astype(np.int64), np.floor(capacity * shared + 1e-9).astype(np.int64), how, known,
        cluster.kinds, float(shared.max(initial=1.0)),
    )  # fmt: skip


def _kept_until(controller: Controller, jobs: IntArray) -> FloatArray:
    """Until when each running job may not be stopped; infinite for jobs that never may."""
    view = controller.view()
    until_s = np.full(controller.job_store.count, -math.inf)
    until_s[view.jobs.number] = np.where(view.keeps.rows, view.keeps.until_s, -math.inf)
    found: FloatArray = until_s[jobs]
    return found


def _unknown(
    controller: Controller, jobs: IntArray, running: IntArray, gpus: IntArray, who: Callable[[int], Who],
    reported: Mapping[int, WorkDone], now_s: float,
) -> Unknown:  # fmt: skip
    """Remaining seconds of each job at its present size, as far as they are known."""
    columns = controller.job_store.columns
    done, total = columns["iterations_done"][jobs].copy(), columns["iterations"][jobs].copy()
    run_s = columns["run_s"][jobs]
    ran_s = np.where(running, np.maximum(run_s, now_s - columns["last_start_s"][jobs]), run_s)
    stated_s = total * columns["iteration_s"][jobs]
    with np.errstate(divide="ignore", invalid="ignore"):
        each_s = np.where(np.isfinite(columns["iteration_s"][jobs]), columns["iteration_s"][jobs], run_s / done)
    if reported:
        for row, number in enumerate(jobs.tolist()):
            said = reported.get(number)
            if said is not None:
                done[row] = max(done[row], said.done or 0.0)
                total[row] = said.total if said.total and math.isnan(total[row]) else total[row]
                each_s[row] = said.each_s or each_s[row]
    left_s = np.where(done > 0, (total - done) * each_s, math.nan)
    owners = [who(number) for number in jobs.tolist()]
    return Unknown(
        [one.user for one in owners], [one.name for one in owners], columns["gpus"][jobs], np.nan_to_num(ran_s),
        np.maximum(left_s, 0.0), stated_s, columns["time_limit_s"][jobs], [one.command for one in owners],
    )  # fmt: skip
