"""Fair shares by past use: projects, and users inside a project, that used less than their share go first.

Use is GPU-seconds, of which half counts after each half-life (as in Slurm's multifactor plugin, and Kay and Lauder,
"A Fair Share Scheduler", CACM 31, 1988). A job's use counts as spread evenly from its first start to its end: only
totals are kept of jobs.

Shares are compared in steps of a factor of sqrt(2), so that jobs do not take each other's GPUs for small differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jobs import JobTable

#: Steps of a factor of two, and the largest level: more than 16 times the share.
STEPS, MOST = 2.0, 8
#: Use below this is no use, GPU-seconds.
LEAST_GPU_S = 60.0


@dataclass(frozen=True)
class Used:
    """Past use of projects, and of users inside them: GPU-seconds that still count, and times of their share.

    `projects` are sorted numbers of the store; a row of `members` is a project and a user of it.
    """

    projects: IntArray
    project_gpu_s: FloatArray
    project_times: FloatArray
    members: IntArray
    member_gpu_s: FloatArray
    member_times: FloatArray


def counted_use(columns: Mapping[str, Any], now_s: float, half_life_s: float) -> FloatArray:
    """GPU-seconds of each job of a store that still count at `now_s`, shape (jobs,).

    >>> columns = {"first_start_s": np.array([0.0, np.nan]), "end_s": np.array([1e-9, np.nan]),
    ...            "attained_gpu_s": np.array([8.0, 0.0])}
    >>> counted_use(columns, 3600.0, 1800.0).round(6).tolist()
    [2.0, 0.0]
    """
    first_s, end_s = columns["first_start_s"], columns["end_s"]
    began = ~np.isnan(first_s)
    last_s = np.where(np.isnan(end_s), now_s, np.minimum(end_s, now_s))
    age_s, took_s = now_s - last_s, np.maximum(last_s - np.where(began, first_s, last_s), 1e-9)
    rate = math.log(2) / half_life_s
    counts = np.exp(-rate * age_s) * -np.expm1(-rate * took_s) / (rate * took_s)
    return np.where(began, columns["attained_gpu_s"] * counts, 0.0)


def used(jobs: JobTable, half_life_s: float) -> Used:
    """The use of the projects and users that have jobs in a table, relative to their shares of all that these used."""
    columns = jobs.columns
    use = counted_use(columns, jobs.now_s, half_life_s)
    projects, row = np.unique(jobs.project_number, return_inverse=True)
    weight = np.zeros(len(projects))
    np.maximum.at(weight, row, jobs.weight)
    project_gpu_s = _sums(columns["project_number"], use, int(columns["project_number"].max(initial=0)) + 1)
    members = np.unique(np.column_stack([jobs.project_number, jobs.user_number]), axis=0)
    base = int(columns["user_number"].max(initial=0)) + 1
    pairs, pair = np.unique(columns["project_number"] * base + columns["user_number"], return_inverse=True)
    by_pair = _sums(pair, use, len(pairs))
    member_gpu_s = by_pair[np.searchsorted(pairs, members[:, 0] * base + members[:, 1])]
    at = np.searchsorted(projects, members[:, 0])
    return Used(
        projects, project_gpu_s[projects], _times(project_gpu_s[projects], weight, np.zeros(len(projects), np.int64)),
        members, member_gpu_s, _times(member_gpu_s, np.ones(len(members)), at),
    )  # fmt: skip


def _sums(group: IntArray, values: FloatArray, least: int = 0) -> FloatArray:
    """Sums of `values` by the number of their group."""
    return np.bincount(group, values, least).astype(np.float64)


def _times(gpu_s: FloatArray, weight: FloatArray, group: IntArray) -> FloatArray:
    """How many times its share of the use of its group each one has used; 1 where nothing was used."""
    if not len(gpu_s):
        return gpu_s
    total, weights = _sums(group, gpu_s)[group], _sums(group, weight)[group]
    fair = total * weight / weights
    return np.where(total >= LEAST_GPU_S, gpu_s / np.maximum(fair, 1e-9), 1.0)


def levels(jobs: JobTable, half_life_s: float) -> tuple[IntArray, IntArray]:
    """The level of each job's project and of its user in it, smaller first; 0: as much as their share."""
    known = used(jobs, half_life_s)
    at = np.searchsorted(known.projects, jobs.project_number)
    base = int(known.members[:, 1].max(initial=0)) + 1
    member = np.searchsorted(known.members[:, 0] * base + known.members[:, 1],
                             jobs.project_number * base + jobs.user_number)  # fmt: skip
    return _level(known.project_times)[at], _level(known.member_times)[member]


def _level(times: FloatArray) -> IntArray:
    found: IntArray = np.rint(STEPS * np.log2(np.maximum(times, 1e-9))).astype(np.int64)
    return np.clip(found, -MOST, MOST)


def half_life_s(policy: object) -> float | None:
    """The half-life by which a policy, or one inside it, shares; None if it does not."""
    while policy is not None:
        fair_s = getattr(getattr(policy, "urgency", None), "fair_s", math.inf)
        if math.isfinite(fair_s):
            return float(fair_s)
        policy = getattr(policy, "policy", None)
    return None
