"""Whether new groups of running jobs are worth the restarts of the jobs that change groups.

New groups are divided into sets that exchange members (`parts_of`), so that each set can be judged by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plait.core.arrays import IntArray
from plait.core.jobs import JobTable
from plait.core.policy import View

#: Relative difference in work below which groups count as equally good, because of rounding.
GAIN = 1e-9


class RatedGroup(NamedTuple):
    """A group: rows of the job table, best first, their turns, and their summed normalised throughput."""

    members: tuple[int, ...]
    turns: tuple[int, ...]
    speedup: float


class Part(NamedTuple):
    """New groups that take members from the same running groups.

    `units` are these running groups, as rows, and `moved` lists the jobs that have to restart because the rest of their
    group continues without them.
    """

    groups: list[RatedGroup]
    units: list[list[int]]
    moved: list[int]


def gpus_of(jobs: JobTable, groups: Sequence[RatedGroup]) -> int:
    """GPUs that these groups need."""
    return sum(int(jobs.gpus[one.members[0]]) for one in groups)


def work(jobs: JobTable, groups: Sequence[RatedGroup]) -> float:
    """GPU-seconds of work alone that these groups do in a second."""
    return sum(one.speedup * int(jobs.gpus[one.members[0]]) for one in groups)


def running_groups(view: View, rows: IntArray) -> IntArray:
    """The running group that each of these rows is in, -1 if it does not run or not at its requested size."""
    running_group = view.jobs.running_group[rows]
    runs = np.flatnonzero(running_group >= 0)
    running_group[runs[view.running.gpu_count()[running_group[runs]] != view.jobs.gpus[rows[runs]]]] = -1
    return running_group


def units_of(view: View, rows: IntArray) -> list[list[int]]:
    """Running rows by their groups, in order; only rows at their requested size."""
    found: dict[int, list[int]] = {}
    for row, group in zip(rows.tolist(), running_groups(view, rows).tolist(), strict=True):
        if group >= 0:
            found.setdefault(group, []).append(row)
    return list(found.values())


def stay_whole(units: Sequence[Sequence[int]], groups: Sequence[RatedGroup]) -> bool:
    """Whether each of these units is within one group, and no two are within the same."""
    group_of = {row: g for g, one in enumerate(groups) for row in one.members}
    homes = [{group_of[row] for row in unit} for unit in units]
    return all(len(home) == 1 for home in homes) and len(set[int]().union(*homes)) == len(homes)


def parts_of(view: View, rows: IntArray, groups: Sequence[RatedGroup]) -> list[Part]:
    """These groups of `rows` in sets, each as small as can be, that share no running group.

    A group continues where most of its members are; a job that may not be moved outweighs all others.
    """
    running_group = dict(zip(rows.tolist(), running_groups(view, rows).tolist(), strict=True))
    members: dict[int, list[int]] = {}
    for row, at in running_group.items():
        if at >= 0:
            members.setdefault(at, []).append(row)
    sets: dict[int, list[int]] = {}  # groups by the set they are in
    set_of = list(range(len(groups)))
    first: dict[int, int] = {}
    offers: list[tuple[int, int, int]] = []
    for g, one in enumerate(groups):
        sets[g] = [g]
        here: dict[int, int] = {}
        for row in one.members:
            at = running_group[row]
            if at >= 0:
                here[at] = here.get(at, 0) + (len(running_group) if view.keeps.rows[row] else 1)
        for at, number in here.items():
            offers.append((-number, g, at))
            small, large = sorted((set_of[g], set_of[first.setdefault(at, g)]), key=lambda s: len(sets[s]))
            if small != large:
                for other in sets[small]:
                    set_of[other] = large
                sets[large] += sets.pop(small)
    home = homes_of(offers)
    units: dict[int, list[list[int]]] = {}
    for at, unit in members.items():
        units.setdefault(set_of[first[at]], []).append(unit)
    return [
        Part(
            [groups[g] for g in sorted(some)],
            units.get(number, []),
            [
                row
                for g in sorted(some)
                for row in groups[g].members
                if running_group[row] >= 0 and home.get(g) != running_group[row]
            ],
        )
        for number, some in sets.items()
    ]


def homes_of(offers: Sequence[tuple[int, int, int]]) -> dict[int, int]:
    """A separate place for each group: of (-members there, group, place), most members first."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for _, group, place in sorted(offers):
        if group not in found and place not in taken:
            found[group] = place
            taken.add(place)
    return found


def pays_s(view: View, moved: Sequence[int], gain: float) -> float:
    """When to restart these jobs for `gain` GPU-seconds of work a second: at once, later, or never (inf), seconds.

    As in the ski rental problem, that is when the gain missed since they started would have paid for the restarts: they
    cost at most twice the best choice in hindsight.
    """
    jobs = view.jobs
    size = jobs.gpus[moved].astype(np.float64)
    if gain <= GAIN * size.sum():
        return math.inf
    cost = float((np.nan_to_num(jobs.restart_s[moved]) * size).sum())
    began = float(np.average(jobs.last_start_s[moved], weights=size))
    return began + cost / gain
