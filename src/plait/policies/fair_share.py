"""Fair shares by past use: projects, and users inside a project, that used less than their share go first.

Use is GPU-seconds, of which half counts after each half-life (as in Slurm's multifactor plugin, and Kay and Lauder,
"A Fair Share Scheduler", CACM 31, 1988). A job's use counts as spread evenly from its first start to its end: only
totals are kept of jobs. CPU slots are no GPUs.

Shares are compared in steps of a factor of sqrt(2), so that jobs do not take each other's GPUs for small differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jobs import JobTable, Phase, gpu_use
from plait.core.policy import layers

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


@dataclass(frozen=True)
class MemberUse:
    """GPU-seconds of members (users of projects, as one number each, sorted) that count at the start of half-life `at`.

    `ended`: the jobs that have left which are included. Half-lives are numbered from time 0.
    """

    members: IntArray
    gpu_s: FloatArray
    at: int = 0
    ended: int = 0


_NOBODY = MemberUse(np.zeros(0, np.int64), np.zeros(0))
#: The number of a member is its project's times this, plus its user's.
_BASE = 1 << 32


def member_use(jobs: JobTable, half_life_s: float) -> MemberUse:
    """GPU-seconds of all members that still count at the time of the table.

    Jobs that have left are added up once, in order of departure. What is kept of them is scaled by powers of two alone,
    so the sums are bitwise the same at whatever departures they were asked for, after a restart as well.
    """
    name = f"use, half-life {half_life_s} s"
    past: MemberUse = jobs.memo.get(name, _NOBODY)
    use, gpu_s = jobs.departed_use(past.ended)
    if len(use):
        end = use[:, 3] / half_life_s
        of = np.floor(end).astype(np.int64)
        at = max(past.at, int(of.max()))
        counts = np.ldexp(gpu_s * _spread(use[:, 2], use[:, 3], half_life_s) * np.exp2(end - of), of - at)
        members, sums = _plus(past.members, np.ldexp(past.gpu_s, np.int64(past.at - at)), _numbers(use), counts)
        past = jobs.memo[name] = MemberUse(members, sums, at, past.ended + len(use))
    columns = jobs.columns
    rows = np.flatnonzero(columns["phase"] <= int(Phase.RUNNING))
    use = gpu_use(columns, rows)
    counts = columns["attained_gpu_s"][rows] * _spread(use[:, 2], jobs.now_s, half_life_s)
    kept = past.gpu_s * np.exp2(past.at - jobs.now_s / half_life_s)
    return MemberUse(*_plus(past.members, kept, _numbers(use), counts))


def _spread(first_s: FloatArray, end_s: FloatArray | float, half_life_s: float) -> FloatArray:
    """Share of the use of jobs that counts at their end; 0 where `first_s` is NaN.

    >>> _spread(np.array([0.0, np.nan]), 1800.0, 1800.0).round(6).tolist()
    [0.721348, 0.0]
    """
    passed = np.maximum(end_s - first_s, 1e-9) * (math.log(2) / half_life_s)
    found: FloatArray = np.where(np.isnan(first_s), 0.0, -np.expm1(-passed) / passed)
    return found


def _numbers(use: FloatArray) -> IntArray:
    """Members that rows of `gpu_use` belong to."""
    found: IntArray = (use[:, 0] * _BASE + use[:, 1]).astype(np.int64)
    return found


def _plus(members: IntArray, gpu_s: FloatArray, more: IntArray, more_gpu_s: FloatArray) -> tuple[IntArray, FloatArray]:
    """Sums with more use added one by one, in its order: the same in one call and in several."""
    every, row = np.unique(np.concatenate([members, more]), return_inverse=True)
    sums = np.bincount(row[: len(members)], gpu_s, len(every)).astype(np.float64)
    np.add.at(sums, row[len(members) :], more_gpu_s)
    return every, sums


def by_project(use: MemberUse) -> FloatArray:
    """GPU-seconds of projects by their numbers; projects after the last one that had jobs are left out."""
    return np.bincount(use.members // _BASE, use.gpu_s).astype(np.float64)


def used(jobs: JobTable, half_life_s: float) -> Used:
    """The use of the projects and users that have jobs in a table, relative to their shares of all that these used."""
    projects, row = np.unique(jobs.project_number, return_inverse=True)
    weight = np.zeros(len(projects))
    np.maximum.at(weight, row, jobs.weight)
    use = member_use(jobs, half_life_s)
    project_gpu_s = by_project(use)[projects]
    members = np.unique(jobs.project_number * _BASE + jobs.user_number)
    member_gpu_s = use.gpu_s[np.searchsorted(use.members, members)]
    pairs = np.column_stack([members // _BASE, members % _BASE])
    return Used(
        projects, project_gpu_s, _times(project_gpu_s, weight, np.zeros(len(projects), np.int64)),
        pairs, member_gpu_s, _times(member_gpu_s, np.ones(len(members)), np.searchsorted(projects, pairs[:, 0])),
    )  # fmt: skip


def _times(gpu_s: FloatArray, weight: FloatArray, group: IntArray) -> FloatArray:
    """How many times its share of the use of its group each one has used; 1 where nothing was used."""
    if not len(gpu_s):
        return gpu_s
    total, weights = np.bincount(group, gpu_s)[group], np.bincount(group, weight)[group]
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
    found = (getattr(getattr(one, "urgency", None), "fair_s", math.inf) for one in layers(policy))
    return next((float(fair_s) for fair_s in found if math.isfinite(fair_s)), None)
