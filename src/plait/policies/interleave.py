"""Jobs that take turns on the same GPUs: the part of Muri that chooses the groups.

muri_s = Composed("muri-s", order=by_remaining_service, group=Interleave())

Whether new groups of running jobs are worth the restarts of the jobs that change groups.

New groups are divided into sets that exchange members (`parts_of`), so that each set can be judged by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.highs import need_highs
from plait.core.jit import kernel
from plait.core.jobs import JobTable
from plait.core.plan import Gate
from plait.core.policy import View
from plait.core.resources import Resource
from plait.grouping.bucket import Candidates, GroupingCache, GroupingOptions
from plait.grouping.exact import EXACT
from plait.grouping.group import completion_guard, extended, group
from plait.grouping.interference import MEASURED_INTERFERENCE, SharingTraits, measured_interference, traits
from plait.grouping.times import speedup, together_s
from plait.placement.packing import allowed_kinds

#: Relative difference in work below which groups count as equally good, because of rounding.
GAIN = 1e-9


class RatedGroup(NamedTuple):
    """A group: rows of the job table, best first, their turns, and their summed normalised throughput."""

    members: tuple[int, ...]
    turns: tuple[int, ...]
    speedup: float


class ExchangeSet(NamedTuple):
    """New groups that take members from the same running groups.

    `units` are these running groups, as rows, and `moved` lists the jobs that have to restart because the rest of their
    group continues without them.
    """

    groups: list[RatedGroup]
    units: list[list[int]]
    moved: list[int]


def gpus_of(jobs: JobTable, groups: Sequence[RatedGroup]) -> int:
    return sum(int(jobs.gpus[one.members[0]]) for one in groups)


def work(jobs: JobTable, groups: Sequence[RatedGroup]) -> float:
    """GPU-seconds of work alone that these groups do in a second."""
    return sum(one.speedup * int(jobs.gpus[one.members[0]]) for one in groups)


def running_groups(view: View, rows: IntArray) -> IntArray:
    """The running group that each of these rows is in, -1 if it does not run or not at its requested size."""
    running_group = view.jobs.running_group[rows]
    held = view.running.gpu_count()
    if len(held):
        running_group[held[running_group] != view.jobs.gpus[rows]] = -1  # -1 takes any group's and stays -1
    return running_group


def units_of(view: View, rows: IntArray) -> list[list[int]]:
    """Running rows by their groups, in order; only rows at their requested size."""
    found: dict[int, list[int]] = {}
    for row, number in zip(rows.tolist(), running_groups(view, rows).tolist(), strict=True):
        if number >= 0:
            found.setdefault(number, []).append(row)
    return list(found.values())


def stay_whole(units: Sequence[Sequence[int]], groups: Sequence[RatedGroup]) -> bool:
    """Whether each of these units is within one group, and no two are within the same."""
    group_of = {row: g for g, one in enumerate(groups) for row in one.members}
    homes = [{group_of[row] for row in unit} for unit in units]
    return all(len(home) == 1 for home in homes) and len(set[int]().union(*homes)) == len(homes)


def undisturbed(running_group: Mapping[int, int], groups: Sequence[RatedGroup]) -> list[bool]:
    """Whether the members of each group that run are one whole running group, or none; most groups are like that.

    `running_group` of each row of `groups`, -1 for none.
    """
    size: dict[int, int] = {}
    for at in running_group.values():
        size[at] = size.get(at, 0) + 1
    out = []
    for one in groups:
        ran = [at for row in one.members if (at := running_group[row]) >= 0]
        out.append(not ran or (len(ran) == size[ran[0]] and len(set(ran)) == 1))
    return out


def parts_of(view: View, rows: IntArray, groups: Sequence[RatedGroup]) -> list[ExchangeSet]:
    """These groups of `rows` in sets, each as small as can be, that share no running group.

    A group continues where most of its members are; a job that may not be moved outweighs all others.
    """
    running_group = dict(zip(rows.tolist(), running_groups(view, rows).tolist(), strict=True))
    kept = view.keeps.rows.tolist()
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
                here[at] = here.get(at, 0) + (len(running_group) if kept[row] else 1)
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
        ExchangeSet(
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
    for _, number, place in sorted(offers):
        if number not in found and place not in taken:
            found[number] = place
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


@dataclass(frozen=True, slots=True)
class Units:
    """The unit of placement: a row of the job table and the jobs that share its GPUs.

    `order` has one row for each of the `count` units, in the order in which to look for GPUs, then jobs that may use
    the rest. `hosts`: rows of leads whose companions are guests, to the row of the host among them. `turns`: one value
    a row of the job table. `free`: rows of leads whose group has no gate. `settles`: whether a plan in which every job
    is alone stays valid when a job leaves. `until_s`: when other groups become worth it if nothing happens before.
    """

    order: IntArray
    count: int
    companions: Mapping[int, tuple[int, ...]]
    turns: IntArray
    gate: Gate = Gate.BARRIER
    settles: bool = True
    until_s: float = math.inf
    hosts: Mapping[int, int] = field(default_factory=dict)
    free: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Room:
    """GPUs that are up, by the sets of kinds that jobs may use; the set of all kinds is always one of them.

    `of` is the set of each row of the job table, `gpus[s]` how many GPUs set s has, `inside[s, t]` whether t has all
    kinds of s, so that a job of set s also takes from t.
    """

    of: IntArray
    gpus: IntArray
    inside: BoolArray

    @classmethod
    def in_view(cls, view: View) -> Room:
        """Count the GPUs that are up."""
        cluster = view.cluster
        allowed = allowed_kinds(view)
        kinds = np.broadcast_to(allowed, len(view.jobs))
        sets = cluster.any_kind if allowed is cluster.any_kind else np.union1d(kinds, cluster.any_kind)
        has = (sets[:, None] >> cluster.node_kind) & 1 == 1
        return cls(np.searchsorted(sets, kinds), has @ view.node_gpus, sets[:, None] & ~sets == 0)

    def asked(self, gpus: IntArray, rows: IntArray) -> IntArray:
        """GPUs requested by these rows, each in all sets that it takes from."""
        by_set = np.bincount(self.of[rows], gpus[rows], minlength=len(self.gpus)).astype(np.int64)
        total: IntArray = by_set @ self.inside
        return total

    def fits(self, gpus: IntArray, rows: IntArray) -> BoolArray:
        """Whether each of these rows still finds so many GPUs after the rows before it."""
        free = self.gpus.tolist()
        within = [np.flatnonzero(sets).tolist() for sets in self.inside]
        out = []
        for of, asked in zip(self.of[rows].tolist(), gpus[rows].tolist(), strict=True):
            out.append(asked <= min([free[t] for t in within[of]]))
            if out[-1]:
                for t in within[of]:
                    free[t] -= asked
        return np.array(out, dtype=np.bool_)


@kernel
def candidates(
    order: IntArray,
    gpus: IntArray,
    bucket: IntArray,
    of: IntArray,
    room: IntArray,
    inside: BoolArray,
    max_jobs: int,
    unit: IntArray,
) -> IntArray:
    """Rows to group, in this order: enough to fill the cluster with full groups (Muri, Algorithm 1, line 2).

    The best job that still finds GPUs takes them and adds the next `max_jobs` - 1 of its bucket. `of`, `room`
    and `inside` are fields of a `Room`. `unit`: rows of the same number >= 0 stay together on the GPUs they have; they
    come before all others.
    """
    n = len(order)
    chosen = np.zeros(n, dtype=np.bool_)
    free = room.copy()
    for i in range(n):
        row = order[i]
        stays = unit[row] >= 0
        if free.max() <= 0 and not stays:
            break
        fits = not chosen[i]
        for t in range(len(free)):
            fits = fits and (stays or not inside[of[row], t] or gpus[row] <= free[t])
        if not fits:
            continue
        for t in range(len(free)):
            if inside[of[row], t]:
                free[t] -= gpus[row]
        left = max_jobs if bucket[row] >= 0 else 1
        if stays:
            for j in range(i, n):
                if unit[order[j]] == unit[row]:
                    chosen[j] = True
                    left -= 1
        for j in range(i, n):
            if left <= 0:
                break
            if not chosen[j] and (j == i or (bucket[order[j]] == bucket[row] and unit[order[j]] < 0)):
                chosen[j] = True
                left -= 1
    return order[chosen]


def marked(rows: IntArray, count: int) -> BoolArray:
    """True in these places of `count`, False in the others."""
    out = np.zeros(count, dtype=np.bool_)
    out[rows] = True
    return out


@dataclass(frozen=True)
class Interleave:
    """Groups of up to `max_jobs` jobs of equal size that use different resources at different times.

    objective     what a grouping maximises: efficiency (the paper's gamma) or speedup (sum of normalised throughput)
    method        auto, blossom (the paper's rounds of matching), exact, greedy, or consecutive (no matching)
    turns         best or worst stage order
    guard         a group is kept only if its members together do more than (1 + guard) of one alone; None = always;
                  auto: by the length of the line (`completion_guard`)
    merge         need: only while demand exceeds the cluster, cheapest first; always: whatever matches (paper)
    improve       local search after the rounds
    interference  slow-down by group size that is expected on top of the ideal schedule
    sticky        groups continue unless other groups gain more than the restarts cost (`regrouping`); off: each
                  decision groups all jobs from scratch (paper). Where restarts cost nothing it makes no difference
    learn         expect the reported costs of pairs of models instead (`grouping.interference`), and split groups whose
                  own reports break the guard

    memory_kept   part of its peak GPU memory that a job holds outside its turn. 1: a group needs the sum of the peaks.
                  Less, down to 0.1 as measured for four jobs (Muri, section 4.4): the largest peak and this part of
                  the others'. Members whose peaks meet run out of memory then, and restart. Jobs that declare host
                  cores or memory are always added up

    Jobs that may not be moved (`View.keeps`) stay on their GPUs either way, and others join them there. Jobs without a
    measured profile run alone. Memory of GPUs and nodes and declared cores are limits of a group.
    Raises `InputError` for values that make no groups, `MissingExtra` for `exact` without the solver.
    """

    max_jobs: int = 4
    objective: Literal["efficiency", "speedup"] = "efficiency"
    method: Literal["auto", "blossom", "exact", "greedy", "consecutive"] = "blossom"
    turns: Literal["best", "worst"] = "best"
    idle_slots: bool = True
    guard: float | Literal["auto"] | None = 0.0
    merge: Literal["need", "always"] = "need"
    improve: bool = False
    interference: tuple[float, ...] = MEASURED_INTERFERENCE
    sticky: bool = True
    learn: bool = False
    memory_kept: float = 1.0
    cache: GroupingCache = field(default_factory=GroupingCache, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.max_jobs, bool) or self.max_jobs not in (1, 2, 3, 4):
            raise InputError(f"max_jobs must be 1 to 4, one a resource, got {self.max_jobs}")
        for name, known in (
            ("objective", ("efficiency", "speedup")),
            ("method", ("auto", "blossom", "exact", "greedy", "consecutive")),
            ("turns", ("best", "worst")),
            ("merge", ("need", "always")),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}; use {', '.join(known)}")
        for name in ("idle_slots", "improve", "sticky", "learn"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be on or off, got {getattr(self, name)!r}")
        if self.method == "exact":
            need_highs(EXACT)
        if not 0 <= self.memory_kept <= 1:
            raise InputError(f"memory_kept is a part of a peak from 0 to 1, got {self.memory_kept}")
        if self.guard not in (None, "auto") and not (isinstance(self.guard, (int, float)) and self.guard >= 0):
            raise InputError(f"guard must be >= 0, auto or off, got {self.guard!r}")

    def __call__(self, view: View, order: IntArray, _due: BoolArray | None = None) -> Units:
        """Units of the best jobs in `order` (rows of `view.jobs`)."""
        jobs, room = view.jobs, Room.in_view(view)
        if self.memory_kept < 1 and (jobs.cpus.any() or jobs.memory_bytes.any()):
            return replace(self, memory_kept=1.0)(view, order)
        if self.guard == "auto":
            alone = int(room.fits(jobs.gpus, order).sum())
            margin = completion_guard(self.max_jobs, (len(order) - alone) / max(alone, 1))
            return replace(self, guard=margin)(view, order)
        bucket = buckets(view, room, self.max_jobs)
        chosen = order
        if (room.asked(jobs.gpus, order) > room.gpus).any():
            kept = view.keeps
            unit = np.where(kept.rows, jobs.running_group, -1)
            first = np.concatenate([order[kept.rows[order]], order[~kept.rows[order]]]) if kept.any else order
            chosen = candidates(first, jobs.gpus, bucket, room.of, room.gpus, room.inside, self.max_jobs, unit)
            if kept.any:
                chosen = order[marked(chosen, len(jobs))[order]]
        until_s = math.inf
        place_in_order = np.empty(len(jobs), dtype=np.int64)
        place_in_order[order] = np.arange(len(order))
        leads: list[int] = chosen[bucket[chosen] < 0].tolist()
        companions: dict[int, tuple[int, ...]] = {}
        turns = np.zeros(len(jobs), dtype=np.int64)
        asked = room.asked(jobs.gpus, chosen)
        for kinds in np.unique(room.of[chosen]).tolist() if len(room.gpus) > 1 else [0]:
            rows = chosen[(bucket[chosen] >= 0) & (room.of[chosen] == kinds)]
            if not len(rows):
                continue
            within = room.inside[kinds]
            left = int(jobs.gpus[rows].sum() + (room.gpus - asked)[within].min())
            found, again_s = self._group(view, rows, left)
            until_s = min(until_s, again_s)
            asked[within] -= int(jobs.gpus[rows].sum()) - gpus_of(jobs, found)
            for members, when, _ in found:
                leads.append(members[0])
                if len(members) > 1:
                    companions[members[0]] = members[1:]
                    turns[list(members)] = when
        first = np.array(leads, dtype=np.int64)
        waits = first[:0]
        if self.sticky and view.keeps.losses:
            stays = view.keeps.rows.tolist()
            holds = [any(stays[row] for row in (lead, *companions.get(lead, ()))) for lead in leads]
            first = first[np.lexsort((place_in_order[first], np.logical_not(holds)))]
            fits = room.fits(jobs.gpus, first)
            first, waits = first[fits], first[~fits]
        largest_first = first[np.lexsort((place_in_order[first], -jobs.gpus[first]))]
        rest = order[~marked(chosen, len(jobs))[order]] if len(chosen) < len(order) else order[:0]
        return Units(
            np.concatenate([largest_first, waits, rest]), len(first), companions, turns, settles=self.merge == "need",
            until_s=until_s,
        )  # fmt: skip

    def _group(self, view: View, rows: IntArray, gpus: int) -> tuple[list[RatedGroup], float]:
        """Groups of rows with their turns, on `gpus` GPUs if `merge` is need, and when other groups pay, seconds."""
        kept, jobs = view.keeps, profiles(view, rows, self.max_jobs, self.learn)
        found = self._from_scratch(view, rows, jobs, gpus)
        if not (kept.losses or kept.any):
            return found, math.inf
        if self.sticky and self.merge == "need":
            return self._weighed(view, rows, jobs, found)
        stays = units_of(view, rows[kept.rows[rows]])
        return (found if stay_whole(stays, found) else self._around(view, rows, jobs, gpus, stays)), math.inf

    def _weighed(
        self, view: View, rows: IntArray, taken: Candidates, fresh: Sequence[RatedGroup]
    ) -> tuple[list[RatedGroup], float]:
        """These groups of rows, or the running ones and jobs that join them where a change does not pay yet.

        The second result is when the first change will pay, seconds.
        """
        jobs, kept = view.jobs, view.keeps.rows
        at = {row: i for i, row in enumerate(rows.tolist())}
        stays = undisturbed(dict(zip(at, running_groups(view, rows).tolist(), strict=True)), fresh)
        if all(stays):
            return list(fresh), math.inf
        found = [one for one, flag in zip(fresh, stays, strict=True) if flag]
        other = [one for one, flag in zip(fresh, stays, strict=True) if not flag]
        until_s = math.inf
        for part in parts_of(view, rows[sorted(at[row] for one in other for row in one.members)], other):
            fits = gpus_of(jobs, part.groups)
            groups = part.groups
            sizes = [len(unit) for unit in part.units]
            if part.moved and max(sizes) <= self.max_jobs and sum(sizes) * len(sizes) <= MOST_OFFERS:
                mine = np.array(sorted(at[row] for one in groups for row in one.members))
                whole = [unit for unit in part.units if not self._broken(view, unit)]
                # Costs that were learnt number the jobs that they are of.
                some = profiles(view, rows[mine], self.max_jobs, True) if taken.costs is not None else taken.some(mine)
                groups = self._joined(view, rows[mine], some, fits, whole)
                when_s = math.inf
                if not kept[part.moved].any():
                    gain = work(jobs, part.groups) - work(jobs, groups)
                    when_s = pays_s(view, part.moved, gain) if gpus_of(jobs, groups) <= fits else view.now_s
                if when_s <= view.now_s:
                    groups = part.groups
                else:
                    until_s = min(until_s, when_s)
            found += groups
        return sorted(found, key=lambda one: at[one.members[0]]), until_s

    def _broken(self, view: View, unit: list[int]) -> bool:
        """Whether this running group, as reported, does no more than the guard demands."""
        jobs, kept = view.jobs, view.keeps.rows[unit].any()
        if not self.learn or len(unit) < 2 or self._margin is None or kept:
            return False
        factor = jobs.pair_reports.measured(traits_of(view, np.array(unit))) if jobs.pair_reports else None
        if factor is None:
            return False
        group_s = together_s(jobs.stage_s[unit], jobs.iteration_s[unit], order=self.turns, idle_slots=self.idle_slots)
        group_s *= factor * measured_interference(len(unit), self.interference)
        return speedup(jobs.iteration_s[unit], group_s) <= 1 + self._margin

    def _around(
        self, view: View, rows: IntArray, jobs: Candidates, gpus: int, stays: list[list[int]]
    ) -> list[RatedGroup]:
        """Groups made from scratch of units that do not stay; jobs without room next to staying ones join them."""
        size = view.jobs.gpus
        free = rows[~np.isin(rows, [row for unit in stays for row in unit])]
        left = gpus - sum(int(size[unit[0]]) for unit in stays)
        found: list[list[int]] = []
        if len(free):
            others = profiles(view, free, self.max_jobs, self.learn)
            found = [list(one.members) for one in self._from_scratch(view, free, others, left)]
        while found and sum(int(size[unit[0]]) for unit in found) > left:
            found.pop()  # the one whose best job comes last; its members look for room in other groups
        return self._joined(view, rows, jobs, gpus, stays + found)

    def _joined(
        self, view: View, rows: IntArray, jobs: Candidates, gpus: int, units: list[list[int]]
    ) -> list[RatedGroup]:
        """These units as they are, and the rest of the rows in them where GPUs are short."""
        need = view.jobs.gpus[rows].sum() - sum(int(view.jobs.gpus[unit[0]]) * (len(unit) - 1) for unit in units)
        at = {row: i for i, row in enumerate(rows.tolist())}
        fixed = [bool(view.keeps.rows[unit].any()) for unit in units]
        found = extended(
            jobs, [[at[row] for row in unit] for unit in units], fixed,
            int(need) - gpus, self._options, self.cache,
        )  # fmt: skip
        return _together(rows, found.groups, found.turns, found.speedup)

    @property
    def _margin(self) -> float | None:
        """The guard; `auto` is replaced by a number at each decision."""
        return None if self.guard is None or self.guard == "auto" else self.guard

    @property
    def _options(self) -> GroupingOptions:
        return GroupingOptions(
            self.max_jobs,
            self.objective,
            self.turns,
            self.idle_slots,
            self.interference,
            self._margin,
            MEMORY_LIMIT,
            self.memory_kept,
        )

    def _from_scratch(self, view: View, rows: IntArray, jobs: Candidates, gpus: int) -> list[RatedGroup]:
        """Groups of rows, independent of running groups; sorted by their best rows."""
        found = group(
            jobs,
            self.max_jobs,
            self.objective,
            self.method,
            order=self.turns,
            idle_slots=self.idle_slots,
            interference=self.interference,
            guard=self._margin,
            gpus_available=gpus if self.merge == "need" else None,
            memory_limit_bytes=MEMORY_LIMIT,
            memory_kept=self.memory_kept,
            improve=self.improve,
            cache=self.cache,
            now=running_groups(view, rows).tolist() if self.sticky and (view.keeps.losses or view.keeps.any) else None,
            bounded=False,
        )
        return _together(rows, found.groups, found.turns, found.speedup)


#: In shares of what a group has.
MEMORY_LIMIT = 1.0

#: Above this number of running jobs times running groups that would exchange members, all are grouped from scratch:
#: examining every pair of a job and a group would take longer.
MOST_OFFERS = 1_000_000


def _together(
    rows: IntArray,
    groups: Sequence[tuple[int, ...]],
    turns: Sequence[tuple[int, ...]],
    speedup: Sequence[float],
) -> list[RatedGroup]:
    rows_of = rows.tolist()
    return [
        RatedGroup(tuple(rows_of[i] for i in members), when, worth)
        for members, when, worth in zip(groups, turns, speedup, strict=True)
    ]


#: More GPUs than any job requests, so that (set of kinds, GPUs) fits one number.
_WIDEST = 1 << 32


def buckets(view: View, room: Room, max_jobs: int) -> IntArray:
    """A number a job: jobs may share GPUs if theirs are equal; -1 for jobs that get no company.

    Of these are more than `max_jobs` jobs that may not be stopped and already share: placement leaves them together.
    """
    jobs, kept = view.jobs, view.keeps
    apart = np.isnan(jobs.stage_s[:, 0]) | np.isnan(jobs.iteration_s) | memory_unknown(view)
    if max_jobs == 1:
        apart[:] = True
    elif kept.any:
        mates = np.bincount(jobs.running_group[kept.rows])
        apart[kept.rows] |= mates[jobs.running_group[kept.rows]] > max_jobs
    return np.where(apart, -1, room.of * _WIDEST + jobs.gpus)


def memory_unknown(view: View) -> BoolArray:
    """Whether each job may get GPUs of known memory, and its own need is to be measured before it shares them."""
    if not view.measures_memory:
        return np.zeros(len(view.jobs), dtype=np.bool_)
    limited = np.isfinite(view.cluster.kind_gpu_memory_bytes)
    known = allowed_kinds(view) & int((limited << np.arange(len(limited))).sum())
    unknown: BoolArray = (known != 0) & (view.jobs.gpu_memory_bytes == 0)
    return unknown


def traits_of(view: View, rows: IntArray) -> list[SharingTraits]:
    """These rows as jobs that share GPUs."""
    jobs = view.jobs
    gpu_s = jobs.stage_s[rows, Resource.GPU]
    return traits(jobs.kinds[rows], gpu_s, jobs.iteration_s[rows], jobs.gpu_memory_bytes[rows], view.cluster)


def profiles(view: View, rows: IntArray, max_jobs: int, learn: bool = False) -> Candidates:
    """These rows as the grouping takes them; GPU memory as a share of what a group has.

    With `learn` their pairs cost what was reported.
    """
    jobs = view.jobs
    of_gpu, of_node = room_taken(view)
    shares = None
    if of_node.any():  # a job that declares its cores leaves the rest to its mates
        shares = np.where(jobs.stage_s[rows] > 0, 1.0, 1.0 / max_jobs)  # a stage that takes no time fits all
        cores = of_node[rows, 0]
        shares[:, Resource.CPU] = np.where((cores > 0) & (cores < 1), cores, shares[:, Resource.CPU])
    memory = np.maximum(of_gpu, of_node.max(axis=1))[rows]
    reports = jobs.pair_reports
    costs = reports.costs(traits_of(view, rows)) if learn and reports is not None and reports.pairs else None
    return Candidates(jobs.stage_s[rows], jobs.iteration_s[rows], jobs.gpus[rows], memory, shares, costs)


def room_taken(view: View) -> tuple[FloatArray, FloatArray]:
    """Each job's fraction of its part of a node: (of the GPUs' memory, of the node's cores and memory), 1 = all.

    Shapes (jobs,) and (jobs, 2). A group owns as much of a node as it holds of its GPUs. Shares of members are
    added, so a group whose sums stay within 1 fits wherever its first member does.
    """
    jobs, cluster = view.jobs, view.cluster
    of_gpu: FloatArray = jobs.gpu_memory_bytes / cluster.node_gpu_memory_bytes.min()  # infinite: unknown
    if not jobs.columns["has_demands"][0]:
        return of_gpu, np.zeros((len(jobs), 2))
    up = cluster.node_up & (cluster.node_gpus > 0)
    room = (cluster.node_spare[up, :2] / cluster.node_gpus[up][:, None]).min(axis=0, initial=np.inf)
    wants = np.column_stack([jobs.cpus, jobs.memory_bytes]) / jobs.gpus[:, None]
    return of_gpu, wants / np.maximum(room, 1e-300)
