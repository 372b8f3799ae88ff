"""Figures of GPUs, jobs and their network: each report replaces the figures of the GPUs and jobs that it names.

Guests below `SLOW_SPEED` are slow, by their measured steps, otherwise by their mean pace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from plait.control.job_store import JobStore
from plait.control.messages import NetworkReported, ProgressReported, UsageReported
from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlaitError
from plait.core.jit import kernel
from plait.core.network_grants import NetworkFigures
from plait.core.plan import Groups
from plait.core.policy import Usage
from plait.placement.kernels import mark_spread
from plait.sharing.memory_law import HEADROOM, LEAST_HEADROOM_BYTES

_OF_GPUS = {"utilisation": "gpu_utilisation", "memory_bytes": "gpu_memory_bytes"}
_OF_JOBS = tuple(field.name for field in fields(Usage) if field.name not in (*_OF_GPUS, "jobs"))
#: A guest below this part of its own speed gets next to nothing. Before its speed is known, an iteration is taken to
#: last so many seconds: of 10,000 production jobs, 80 % take at most that (Xiao et al., AntMan, OSDI 2020).
SLOW_SPEED, UNKNOWN_ITERATION_S = 0.01, 0.6
#: Later runs of the same command are taken to need so many times what was measured, as their data may differ.
LATER = 1.1
_NONE: FloatArray = np.zeros(0)
_OF_NETWORK = tuple(field.name for field in fields(NetworkFigures) if field.name != "jobs")
NOTHING_KNOWN = Usage(_NONE, _NONE, NO_JOBS, _NONE, _NONE, _NONE, _NONE)


def updated(usage: Usage | None, event: UsageReported, gpus: int, running_group: IntArray) -> Usage:
    """Usage after a report, for `gpus` GPUs and the running jobs.

    A GPU of which the report knows nothing keeps its figures; `running_group` is a column of the job store. Raises
    `PlaitError` for a report whose columns do not fit together or that names more GPUs than there are.
    """
    before = usage or NOTHING_KNOWN
    rows = {len(getattr(event, name)) for name in _OF_JOBS}
    if rows != {len(event.jobs)} or max(len(getattr(event, name)) for name in _OF_GPUS.values()) > gpus:
        raise PlaitError(
            f"usage reported at {event.at_s} s has columns of other lengths than its {len(event.jobs)} jobs and the "
            f"{gpus} GPUs of the cluster; send one figure for each"
        )
    of_gpus = {}
    for name, reported in _OF_GPUS.items():
        known, new = np.full(gpus, np.nan), getattr(event, reported)
        known[: len(before.utilisation)] = getattr(before, name)
        known[: len(new)] = np.where(np.isnan(new), known[: len(new)], new)
        of_gpus[name] = known
    jobs, last = np.unique(np.concatenate([event.jobs, before.jobs]), return_index=True)
    here = running_group[jobs] >= 0
    of_jobs = {n: np.concatenate([getattr(event, n), getattr(before, n)])[last[here]] for n in _OF_JOBS}
    return Usage(**of_gpus, jobs=jobs[here], **of_jobs)


def note_paces(event: ProgressReported, columns: Mapping[str, Any], running: Groups, cluster: Cluster) -> None:
    """Note seconds an iteration of gangs alone on as many GPUs as they requested: packed or, on more nodes, spread.

    The mean of the report and what was known, as network and neighbours make single ones differ.
    """
    group = columns["running_group"][event.jobs]
    alone = (np.diff(running.first_job) == 1) & (True if running.guest is None else ~running.guest)
    known = (group >= 0) & ~np.isnan(event.iteration_s) & (columns["gpus"][event.jobs] > 1)
    known &= alone[group] & (running.gpu_count()[group] == columns["gpus"][event.jobs])
    over = np.zeros(len(running), dtype=np.bool_)
    mark_spread(running.gpus, running.first_gpu, cluster.gpu_node, cluster.node_kind, cluster.cap_prefix, over)
    for name, where in (("packed_s", False), ("spread_s", True)):
        these = known & (over[group] == where)
        before, now = columns[name][event.jobs[these]], event.iteration_s[these]
        columns[name][event.jobs[these]] = np.where(np.isnan(before), now, (before + now) / 2)


def without_gpus(usage: Usage, lost: BoolArray) -> Usage:
    """The same figures, with nothing known of GPUs whose flag (gpus,) is set."""
    lost = lost[: len(usage.utilisation)]
    gone = {name: np.where(lost, np.nan, getattr(usage, name)) for name in _OF_GPUS}
    return replace(usage, **gone)


def of_jobs(usage: Usage, numbers: IntArray) -> Usage:
    """The figures of these jobs only (numbers, growing), renumbered from 0; GPUs keep theirs."""
    kept = np.isin(usage.jobs, numbers)
    columns = {name: getattr(usage, name)[kept] for name in _OF_JOBS}
    return replace(usage, jobs=np.searchsorted(numbers, usage.jobs[kept]), **columns)


def updated_figures(figures: NetworkFigures | None, event: NetworkReported, running_group: IntArray) -> NetworkFigures:
    """Figures of the running jobs after a report: each report replaces the figures of the jobs it names.

    Raises `PlaitError` for a report whose columns do not fit together.
    """
    if {len(getattr(event, name)) for name in _OF_NETWORK} != {len(event.jobs)}:
        raise PlaitError(
            f"the network as reported at {event.at_s} s has columns of other lengths than its {len(event.jobs)} jobs; "
            "send one figure for each"
        )
    before = figures or NetworkFigures(NO_JOBS, _NONE, _NONE, _NONE)
    jobs, last = np.unique(np.concatenate([event.jobs, before.jobs]), return_index=True)
    here = running_group[jobs] >= 0
    columns = {n: np.concatenate([getattr(event, n), getattr(before, n)])[last[here]] for n in _OF_NETWORK}
    return NetworkFigures(jobs=jobs[here], **columns)


def figures_of_jobs(figures: NetworkFigures, numbers: IntArray) -> NetworkFigures:
    """The figures of these jobs only (numbers, growing), renumbered from 0."""
    kept = np.isin(figures.jobs, numbers)
    columns = {name: getattr(figures, name)[kept] for name in _OF_NETWORK}
    return NetworkFigures(jobs=np.searchsorted(numbers, figures.jobs[kept]), **columns)


def note_slow_steps(event: UsageReported, columns: Mapping[str, Any], running: Groups) -> bool:
    """Note in the job store since when guests are slow, by their steps: since the first report of it.

    Returns whether any became slow.
    """
    if running.guest is None:
        return False
    group = columns["running_group"][event.jobs]
    guests = (group >= 0) & running.guest[group]
    jobs, step_s = event.jobs[guests], event.step_s[guests]
    alone_s, before = columns["iteration_s"][jobs], columns["slow_since_s"][jobs]
    alone_s = np.where(np.isnan(alone_s), UNKNOWN_ITERATION_S, alone_s)
    is_slow = alone_s < SLOW_SPEED * step_s  # not by division, as a step of 0 s is one that was too short to measure
    since_s = np.where(np.isnan(before), event.at_s, before)
    after = np.where(is_slow, since_s, np.where(np.isnan(step_s), before, math.nan))
    columns["slow_since_s"][jobs] = after
    return bool((np.isnan(before) & ~np.isnan(after)).any())


def note_slow_progress(
    event: ProgressReported, columns: Mapping[str, Any], running: Groups, usage: Usage | None
) -> None:
    """Note since when guests are slow whose steps are not in `usage`, before the report is in the job store.

    Since the last report, if they have made next to no progress from then on, else from now on.
    """
    if running.guest is None:
        return
    told = np.zeros(len(event.jobs), dtype=np.bool_)
    if usage is not None:
        told = np.isin(event.jobs, usage.jobs[~np.isnan(usage.step_s)])
    note_slow_guests(
        event.jobs, event.iterations_done, event.run_s, event.iteration_s, told, event.at_s, running.guest,
        columns["running_group"], columns["iterations_done"], columns["run_s"], columns["iteration_s"],
        columns["slow_since_s"],
    )  # fmt: skip


@kernel
def note_slow_guests(
    jobs: IntArray,
    done: FloatArray,
    ran_s: FloatArray,
    step_s: FloatArray,
    told: BoolArray,
    at_s: float,
    guest: BoolArray,
    running_group: IntArray,
    iterations_done: FloatArray,
    run_s: FloatArray,
    iteration_s: FloatArray,
    slow_since_s: FloatArray,
) -> None:
    """Write into the column `slow_since_s` which of the reported `jobs` (numbers) are slow guests, and since when.

    One entry a job: `done` iterations, `ran_s` and `step_s` as reported at `at_s`, where a step of NaN is unknown, and
    `told`: jobs to leave out. `guest` by group; the rest are columns of the job store before the report.
    """
    for i in range(len(jobs)):
        job = jobs[i]
        group = running_group[job]
        if told[i] or group < 0 or not guest[group] or math.isnan(iteration_s[job]) or math.isnan(step_s[i]):
            continue
        if step_s[i] == 0.0 or iteration_s[job] / step_s[i] >= SLOW_SPEED:
            slow_since_s[job] = math.nan
        elif math.isnan(slow_since_s[job]):
            run = ran_s[i] - run_s[job]
            work = (done[i] - iterations_done[job]) * iteration_s[job]
            slow_since_s[job] = at_s - run if work < SLOW_SPEED * run else at_s


def note_peaks(event: UsageReported, store: JobStore, running: Groups, cluster: Cluster) -> bool:
    """Note what jobs need of a GPU's memory that did not state it, as the most that was measured, with headroom.

    No more than each GPU of the kind has that they ran on: otherwise they would find none. Returns whether one needs
    more than was known.
    """
    known, news = store.columns["gpu_memory_bytes"], False
    peaks = event.peak_bytes + np.nan_to_num(event.spill_bytes)
    peaks += np.maximum(HEADROOM * peaks, LEAST_HEADROOM_BYTES)
    for job, peak in zip(event.jobs.tolist(), peaks.tolist(), strict=True):
        group = store.columns["running_group"][job]
        if group < 0 or not peak > known[job] or store.spec(job).gpu_memory_bytes:
            continue
        gpus = running.gpus[running.first_gpu[group] : running.first_gpu[group + 1]]
        kinds = cluster.node_kind[cluster.gpu_node[gpus]]
        most_bytes = float(cluster.kind_gpu_memory_bytes[kinds].min())
        before, known[job] = known[job], min(peak, most_bytes)
        store.note_peak(job, min(LATER * peak, most_bytes))
        news |= known[job] > before
    return news
