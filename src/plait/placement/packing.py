"""From an order of jobs to a plan that names GPUs.

    place(view, order)                       the simplest policy there is: an order, consolidated gangs
    place(view, order, scheme=Scheme.SPREAD)
    place(view, order, scheme=chooser)       a function that picks the nodes of each gang that starts (`located`)

A kept job keeps its GPUs; a running job moves only if a higher-ranked job cannot be placed otherwise. The walk itself
is in `kernels.py`.

Tensor-size skew decides which jobs must be consolidated (Tiresias, section 3).

A tensor is one message: a huge one suffers from contention, small ones interleave. The paper's own formula
is not published; the default here is the share of the largest tensor, which separates the paper's sensitive
models (VGG, AlexNet: 0.61-0.77) from the insensitive ones (ResNet, Inception: 0.04-0.20). Shares of the models that
ship with plait: `traces/data/tensors.csv`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import needed_bytes
from plait.core.jit import kernel
from plait.core.jobs import JobTable, placement_skew
from plait.core.jobs.keys import CLOCK_S
from plait.core.plan import TURN, Gate, Groups, Plan, plain_details
from plait.core.policy import View
from plait.core.resources import CPU_KIND
from plait.core.words import counted
from plait.placement import kernels
from plait.placement.located import Chooser, WalkAnswer, WalkOrder, located_walk
from plait.placement.pinned import elsewhere, kept_units

A = TypeVar("A", bound="np.ndarray[Any, Any]")

#: further statuses of a job, besides the kernel's: kept jobs are in its way; GPUs stay free for a job ahead of it
KEPT, RESERVED = kernels.BLOCKED + 1, kernels.BLOCKED + 2


class Scheme(IntEnum):
    """How the GPUs of one gang are chosen.

    CONSOLIDATED: the minimum nodes that can hold the gang, best fit among them; waits if they are not free.
    CONSOLIDATED_FIRST_FIT: whole idle nodes by number plus one for the rest, under one switch, as in the released
    Tiresias simulator's `yarn`; waits otherwise. A gang that the nodes that are up cannot hold this way even when idle
    (nodes of several sizes, racks too small) is placed as CONSOLIDATED instead of never starting.
    FIRST_FIT and BEST_FIT: one node if possible (lowest number; minimum room left), otherwise several.
    SPREAD: the fullest nodes first, filling fragments. COUNTING: any free GPUs by number, so that only the count
    matters. RANDOM: any free GPUs, drawn by a seeded generator. APART: on as many nodes as possible.
    """

    CONSOLIDATED = kernels.CONSOLIDATED
    CONSOLIDATED_FIRST_FIT = kernels.CONSOLIDATED_FIRST_FIT
    FIRST_FIT = kernels.FIRST_FIT
    BEST_FIT = kernels.BEST_FIT
    SPREAD = kernels.SPREAD
    COUNTING = kernels.COUNTING
    RANDOM = kernels.RANDOM
    APART = kernels.APART


#: How the GPUs of gangs are chosen: one `Scheme` for all, one a row of `view.jobs`, or a function for each gang.
How: TypeAlias = Scheme | IntArray | Chooser


class Placement(Protocol):
    """Chooses a scheme for each job by looking at the jobs (skew-aware), or the nodes of each gang that starts.

    One with `moves(view)` also names rows of running jobs to place again, and when to decide again, seconds; then the
    controller keeps the pace of jobs spread and packed.
    """

    def __call__(self, view: View) -> IntArray | Chooser:
        """One `Scheme` a job of `view.jobs`, or a function from a gang to its nodes."""
        ...


class WaitReasons(Mapping[int, str]):
    """Why each job that was not placed waits; sentences are made on demand."""

    def __init__(self, view: View, order: IntArray, status: IntArray) -> None:
        """`status[i]` is the kernel's status of `view.jobs` row `order[i]`."""
        waiting = status != kernels.PLACED
        self._status = dict(zip(view.jobs.number[order[waiting]].tolist(), status[waiting].tolist(), strict=True))
        of_slots = [kinds == (CPU_KIND,) for kinds in view.jobs.columns["gpu_kinds"][list(self._status)].tolist()]
        gpus = view.jobs.gpus[order[waiting]].tolist()
        words = [counted(n, "CPU slot" if slot else "GPU") for n, slot in zip(gpus, of_slots, strict=True)]
        self._gpus = dict(zip(self._status, words, strict=True))
        self._ahead = {job: i for i, job in enumerate(view.jobs.number[order].tolist())}

    def __getitem__(self, job: int) -> str:
        status, gpus, ahead = self._status[job], self._gpus[job], self._ahead[job]
        if status == KEPT:
            return f"needs {gpus}; the jobs that hold them cannot be stopped without losing work"
        if status == RESERVED:
            return f"needs {gpus}; free ones are kept for a job ahead of it"
        if status == kernels.BLOCKED:
            return f"waits behind a job ahead of it that does not fit yet (place {ahead + 1} in the order)"
        if status == kernels.FRAGMENTED:
            if gpus.startswith("1 "):
                return f"needs {gpus}, and none that it may use is free"
            return f"needs {gpus} together; enough are free, but spread over too many nodes"
        return f"needs {gpus}; too few are left after the {counted(ahead, 'job')} ahead of it"

    def __iter__(self) -> Iterator[int]:
        return iter(self._status)

    def __len__(self) -> int:
        return len(self._status)


class LazyReasons(Mapping[int, str]):
    """Why jobs wait, made on first use: most plans' reasons are never read."""

    def __init__(self, make: Callable[[], Mapping[int, str]]) -> None:
        self._make = make

    @cached_property
    def _reasons(self) -> Mapping[int, str]:
        return self._make()

    def __getitem__(self, job: int) -> str:
        return self._reasons[job]

    def __iter__(self) -> Iterator[int]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)


#: one entry that stands for all jobs
_FOR_ALL = {scheme: np.array([int(scheme)], dtype=np.int64) for scheme in Scheme}
_STRICT = {flag: np.array([flag]) for flag in (False, True)}
NO_DEMANDS = np.zeros((1, 2))
NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


def demands(jobs: JobTable) -> FloatArray:
    """CPU cores and memory bytes a GPU, shape (jobs, 2), or one row of zeros if no job states any.

    While nodes are reserved, one more column for each set of `Cluster.reserved`: 1 if the job is barred from it.
    """
    if not jobs.columns["has_demands"][0]:
        return NO_DEMANDS
    barred = jobs.columns.get("barred")
    stated = np.column_stack([jobs.cpus / jobs.gpus, jobs.memory_bytes / jobs.gpus])
    return stated if barred is None else np.column_stack([stated, barred[jobs.number]])


def allowed_kinds(view: View) -> IntArray:
    """Bit mask of the GPU kinds each job may use; one entry if all may use all.

    The requested kinds, whose GPUs have the memory that it needs: all of a kind, where a kind's differ; with plans,
    what the requested size needs.
    """
    cluster, jobs = view.cluster, view.jobs
    masks = cluster.any_kind
    if jobs.columns["has_kinds"][0]:
        kinds = jobs.columns["gpu_kinds"][jobs.number]
        of = {key: cluster.kind_mask(key) for key in set(kinds.tolist())}
        masks = np.array([of[key] for key in kinds.tolist()], dtype=np.int64)
    if cluster.limits_gpu_memory and (jobs.gpu_memory_bytes.any() or jobs.parameters.any()):
        needed = jobs.gpu_memory_bytes.copy()
        for row in np.flatnonzero(jobs.parameters > 0).tolist():
            needed[row] = max(needed[row], needed_bytes(jobs.limits(row), int(jobs.gpus[row])))
        fits = needed[:, None] <= cluster.kind_gpu_memory_bytes * (1 + 1e-9)
        masks = masks & (fits << np.arange(len(cluster.kinds))).sum(axis=1)
    return masks


def _groups_of_units(view: View, order: IntArray, companions: Mapping[int, Sequence[int]], pairs: IntArray) -> IntArray:
    """The group whose GPUs each unit keeps: of a member that must stay, else its first running member of its size."""
    if view.keeps.losses:
        return _groups_of_most(view, order, pairs)
    jobs = view.jobs
    counts = view.running.gpu_count()
    out = jobs.running_group.copy()
    for row in order.tolist():
        for other in companions.get(row, ()):
            if out[row] < 0 or counts[out[row]] != jobs.gpus[row]:
                out[row] = jobs.running_group[other]
    return out


def pairs_of(companions: Mapping[int, Sequence[int]]) -> IntArray:
    """Each row with each of its companions, shape (pairs, 2)."""
    pairs = [(row, mate) for row, mates in companions.items() for mate in mates]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _groups_of_most(view: View, order: IntArray, pairs: IntArray) -> IntArray:
    """The group whose GPUs each unit keeps: of a member that must stay, else of most members, if still available.

    Units of which more members could stay choose first, then units ahead in the order. `pairs` as of `pairs_of`.
    """
    jobs, counts = view.jobs, view.running.gpu_count()
    out = jobs.running_group.copy()
    offers = unit_offers(order, pairs, view.keeps.rows, jobs.running_group, counts, jobs.gpus, out)
    offers.sort()
    accept_offers(offers, order, len(counts), out)
    return out


@kernel
def unit_offers(
    order: IntArray,
    pairs: IntArray,
    kept: BoolArray,
    running_group: IntArray,
    counts: IntArray,
    size: IntArray,
    out: IntArray,
) -> IntArray:
    """Groups in which units could stay, one number each; the smaller is accepted first. `out` of these units is -1.

    The number is made of how many members are there (a kept one outweighs all others), the place of the unit in
    `order`, and the group. Of jobs that are alone only those in the way of a unit have one. `counts`: GPUs of each
    group; `size` and `kept`: of each row.
    """
    n, groups = len(order), len(counts)
    offers = np.empty(2 * len(pairs) + n, dtype=np.int64)
    place_of, leads = np.full(len(out), -1, dtype=np.int64), np.zeros(len(out), dtype=np.bool_)
    wanted = np.zeros(groups, dtype=np.bool_)
    for place in range(n):
        place_of[order[place]] = place
    used, lo = 0, 0
    while lo < len(pairs):
        row, hi = pairs[lo, 0], lo
        while hi < len(pairs) and pairs[hi, 0] == row:
            hi += 1
        leads[row] = True
        if place_of[row] >= 0:
            out[row] = -1
            for i in range(lo - 1, hi):
                group = running_group[row if i < lo else pairs[i, 1]]
                if group < 0 or counts[group] != size[row]:
                    continue
                there, before = 0, False
                for j in range(lo - 1, hi):
                    one = row if j < lo else pairs[j, 1]
                    if running_group[one] == group:
                        there += n if kept[one] else 1
                        before = before or j < i
                if not before:
                    offers[used] = (place_of[row] - 2 * there * n) * groups + group
                    wanted[group] = True
                    used += 1
        lo = hi
    for place in range(n):
        row = order[place]
        group = out[row]
        if group >= 0 and wanted[group] and not leads[row]:
            offers[used] = (place - (2 * n - 1 if kept[row] else 2) * n) * groups + group
            used += 1
    return offers[:used]


@kernel
def accept_offers(offers: IntArray, order: IntArray, groups: int, out: IntArray) -> None:
    """Give each unit its first group in `out` that no other has, by `offers` of `unit_offers`, ascending."""
    settled, taken = np.zeros(len(order), dtype=np.bool_), np.zeros(groups, dtype=np.bool_)
    for offer in offers:
        group, place = offer % groups, offer // groups % len(order)
        if not settled[place] and not taken[group]:
            out[order[place]] = group
            settled[place] = taken[group] = True


@kernel
def joined(rows: IntArray, pairs: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """These rows of `count`, each with its companions (`pairs_of`) right behind it, and where each unit begins."""
    begins, size = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    for i in range(len(pairs) - 1, -1, -1):
        begins[pairs[i, 0]] = i
        size[pairs[i, 0]] += 1
    members, first = np.empty(len(rows) + len(pairs), dtype=np.int64), np.zeros(len(rows) + 1, dtype=np.int64)
    for unit in range(len(rows)):
        row, at = rows[unit], first[unit]
        members[at] = row
        for i in range(size[row] - 1):
            members[at + 1 + i] = pairs[begins[row] + i, 1]
        first[unit + 1] = at + size[row]
    return members[: first[-1]], first


def _for_units(rows: A, companions: Mapping[int, Sequence[int]] | None, join: np.ufunc) -> A:
    """One value a row, joined with the values of its companions; a single value stands for all."""
    if not companions or len(rows) == 1:
        return rows
    out = rows.copy()
    for row, others in companions.items():
        for other in others:
            out[row] = join(out[row], rows[other])
    return out


def _with_companions(
    jobs: JobTable, rows: IntArray, groups: Groups, pairs: IntArray, gate: Gate, turns: IntArray | None
) -> Groups:
    members, first = joined(rows, pairs, len(jobs))
    size = first[1:] - first[:-1]
    shared = size > 1
    gates = details = None
    if gate is not Gate.NONE and shared.any():
        gates = np.where(shared, int(gate), int(Gate.NONE))
    if turns is not None and shared.any():
        details = plain_details(len(members))
        details[:, TURN] = np.where(np.repeat(shared, size), turns[members], 0)
    return Groups(jobs.number[members], groups.gpus, groups.first_gpu, first, gates, details)


@dataclass(frozen=True, slots=True)
class Walk:
    """Which rows of `order`, each with its `companions`, get which GPUs, as found by `kernels.admit`.

    `pairs` has the companions as `pairs_of` does.

    `taken_out`: rows of units that differ from the policy's request, because they stay where they are.
    """

    order: IntArray
    companions: Mapping[int, Sequence[int]]
    pairs: IntArray
    status: IntArray
    positions: IntArray
    gpus: IntArray
    first_gpu: IntArray
    taken_out: IntArray = field(default_factory=lambda: NO_JOBS)

    def group_of(self, view: View) -> IntArray:
        """The group of each row of `view.jobs`, companions included; -1 if it is in none."""
        group = np.full(len(view.jobs), -1, dtype=np.int64)
        group[self.order[self.positions]] = np.arange(len(self.positions))
        group[self.pairs[:, 1]] = group[self.pairs[:, 0]]
        return group

    def moved(self, view: View, kept: BoolArray) -> IntArray:
        """The ones of the `kept` rows that would not stay on their GPUs."""
        return elsewhere(
            np.flatnonzero(kept), self.group_of(view), self.gpus, self.first_gpu, view.jobs.running_group,
            view.running.gpus, view.running.first_gpu,
        )  # fmt: skip

    def waiting_for_kept(self, rows: BoolArray) -> Walk:
        """The same, with these rows waiting because others are kept."""
        return replace(self, status=np.where(rows[self.order], KEPT, self.status))

    def without(self, gone: BoolArray) -> Walk:
        """The same without these groups, whose GPUs stay free."""
        lengths = np.diff(self.first_gpu)
        status = self.status.copy()
        status[self.positions[gone]] = RESERVED
        first_gpu = np.concatenate([[0], np.cumsum(lengths[~gone])]).astype(np.int64)
        return replace(
            self, status=status, positions=self.positions[~gone], gpus=self.gpus[np.repeat(~gone, lengths)],
            first_gpu=first_gpu,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The arguments of `place`, one value a row of `view.jobs`, or one for all."""

    view: View
    gpus: IntArray
    scheme: IntArray
    strict: BoolArray
    move: IntArray | None
    seed: int
    choose: Chooser | None = None

    def walk(self, order: IntArray, companions: Mapping[int, Sequence[int]], taken_out: IntArray = NO_JOBS) -> Walk:
        """Walk an order of rows with their companions; rows that were `taken_out` of units keep the GPUs they have."""
        view, cluster = self.view, self.view.cluster
        pairs, running_group = NO_PAIRS, view.jobs.running_group
        if companions:
            pairs = pairs_of(companions)
            running_group = _groups_of_units(view, order, companions, pairs)
        gpus = self.gpus
        if self.move is not None or len(taken_out):
            running_group, gpus = running_group.copy(), gpus.copy()
            running_group[self.move if self.move is not None else NO_JOBS] = -1
            running_group[taken_out] = view.jobs.running_group[taken_out]
            gpus[taken_out] = view.running.gpu_count()[running_group[taken_out]]
        per_gpu = _for_units(demands(view.jobs), companions, np.add)
        kinds = _for_units(allowed_kinds(view), companions, np.bitwise_and)

        def admit(running_group: IntArray, now_gpus: IntArray, now_first: IntArray) -> WalkAnswer:
            return WalkAnswer(
                *kernels.admit(
                    order,
                    gpus,
                    running_group,
                    self.scheme,
                    self.strict,
                    kinds,
                    per_gpu,
                    now_gpus,
                    now_first,
                    self.seed * 1_000_003 + int(view.now_s * 1000),
                    cluster.cap_prefix,
                    cluster.node_kind,
                    cluster.node_rack,
                    cluster.node_gpus,
                    cluster.first_gpu,
                    cluster.gpu_node,
                    cluster.node_up,
                    cluster.node_spare,
                )
            )

        now = view.running
        if self.choose is None:
            found = admit(running_group, now.gpus, now.first_gpu)
        else:
            jobs = WalkOrder(order, gpus, self.strict, per_gpu)
            found = located_walk(admit, jobs, running_group, now.gpus, now.first_gpu, cluster, self.choose)
        return Walk(order, companions, pairs, *found, taken_out)


def _keeping(ask: PlacementRequest, free: Walk) -> tuple[Walk, float]:
    """A walk in which all kept jobs stay, and when to decide again, seconds.

    `free` is the walk as the policy requested it. Kept jobs hold their GPUs first. The rest goes to jobs that the
    policy would start anyway: GPUs that a job would have got if temporarily kept jobs were stopped stay free for it;
    otherwise jobs behind it would take them, be kept as well, and shut it out permanently.
    """
    view, kept = ask.view, ask.view.keeps
    order, companions = free.order, free.companions
    if ask.move is not None:
        ask = replace(ask, move=ask.move[~kept.rows[ask.move]])
    asked = free.group_of(view) >= 0
    if len(free.moved(view, kept.lasting)):
        free = ask.walk(*kept_units(view, order, companions, kept.lasting))
    moved = free.moved(view, kept.rows)
    if not len(moved):
        return free.waiting_for_kept(asked & (free.group_of(view) < 0)), math.inf
    found = ask.walk(*kept_units(view, order, companions, kept.rows))
    now, then = found.group_of(view) >= 0, free.group_of(view)
    shut_out = (then >= 0) & ~now
    found = found.waiting_for_kept(asked & ~now)
    if shut_out.any():
        place_of = np.full(len(view.jobs), len(order), dtype=np.int64)
        place_of[order] = np.arange(len(order))
        rows = found.order[found.positions]
        wanted = np.zeros(view.cluster.gpus, dtype=bool)
        of_blocked = np.isin(np.arange(len(free.positions)), then[shut_out])
        wanted[free.gpus[np.repeat(of_blocked, np.diff(free.first_gpu))]] = True
        touches = np.logical_or.reduceat(wanted[found.gpus], found.first_gpu[:-1]) if len(rows) else now[:0]
        later = place_of[rows] > place_of[shut_out].min()
        starts = view.jobs.running_group[rows] < 0
        for i in np.flatnonzero(starts).tolist():
            starts[i] = all(view.jobs.running_group[mate] < 0 for mate in found.companions.get(int(rows[i]), ()))
        gone = later & starts & (touches | (then[rows] < 0))
        if gone.any():
            found = found.without(gone)
    return found, float(kept.until_s[moved].min())


def _as_running(view: View, rows: IntArray, turns: IntArray | None, gate: Gate) -> tuple[IntArray | None, Gate]:
    """Turns and gate with which these rows continue unchanged, in addition to the requested ones."""
    running = view.running
    if not len(rows) or running.single:
        return turns, gate
    turns = np.zeros(len(view.jobs), dtype=np.int64) if turns is None else turns.copy()
    turn_of = {m.job: m.turn for group in set(view.jobs.running_group[rows].tolist()) for m in running[group].members}
    turns[rows] = [turn_of[job] for job in view.jobs.number[rows].tolist()]
    if gate is Gate.NONE and running.gate is not None:
        gate = Gate(int(running.gate.max()))
    return turns, gate


def place(
    view: View,
    order: IntArray,
    *,
    scheme: How = Scheme.CONSOLIDATED,
    strict: bool | BoolArray = False,
    gpus: IntArray | None = None,
    companions: Mapping[int, Sequence[int]] | None = None,
    gate: Gate = Gate.NONE,
    turns: IntArray | None = None,
    move: IntArray | None = None,
    seed: int = 0,
    valid_until_s: float = math.inf,
    levels: IntArray | None = None,
    promoted: IntArray | None = None,
) -> Plan:
    """Admit jobs in this order and give each its GPUs; one job a group.

    `order` lists rows of `view.jobs`, best first; jobs left out do not run. `scheme`, `strict`, `gpus` and `levels` are
    one value a row of `view.jobs` (not of `order`); `scheme` may be a function that picks the nodes of each gang that
    starts. A `strict` job that does not fit blocks all after it. `promoted` lists rows. `companions` adds rows that
    share the GPUs of a row in `order` (and are not in `order` themselves), under `gate`; `turns` is one value a row of
    `view.jobs`, for sharing jobs. `move` lists rows that give up their GPUs and are placed again.

    Jobs that may not be stopped or moved (`View.keeps`) stay where they are, whatever the order is, left-out ones too.
    Kept jobs that share GPUs stay together and may get other company; kept jobs on different GPUs are not brought
    together. If that changes the plan, it is valid until the first of them may be stopped. Jobs on a silent node get no
    other company. Raises no errors: a job that does not fit waits, with a reason.
    """
    order = np.asarray(order, dtype=np.int64)
    ask = PlacementRequest(
        view,
        view.jobs.gpus if gpus is None else gpus,
        _FOR_ALL[scheme] if isinstance(scheme, Scheme) else _FOR_ALL[Scheme.COUNTING] if callable(scheme) else scheme,
        _STRICT[strict] if isinstance(strict, bool) else strict,
        move,
        seed,
        None if isinstance(scheme, Scheme) or not callable(scheme) else scheme,
    )
    kept, silent = view.keeps, view.on_silent_nodes
    if silent.any():
        found = ask.walk(*kept_units(view, order, companions or {}, silent, alone=True))
    else:
        found = ask.walk(order, companions or {})
    taken_out = found.taken_out
    if kept.any and len(found.moved(view, kept.rows)):
        found, until_s = _keeping(ask, found)
        valid_until_s = min(valid_until_s, until_s)
    if found.companions and (len(taken_out) or len(found.taken_out)):
        turns, gate = _as_running(view, np.union1d(taken_out, found.taken_out), turns, gate)
    jobs = view.jobs
    numbers = jobs.number[found.order]
    all_run = len(found.positions) == len(jobs) and len(found.order) == len(jobs)
    groups = Groups(numbers if all_run else numbers[found.positions], found.gpus, found.first_gpu)
    rows, status = found.order, found.status
    if found.companions:
        groups = _with_companions(jobs, rows[found.positions], groups, found.pairs, gate, turns)
        # Companions wait for what the row waits for that they share with.
        rows, first = joined(rows, found.pairs, len(jobs))
        status = np.repeat(status, first[1:] - first[:-1])
    return Plan(
        groups,
        jobs.number[order],
        None if levels is None else levels[order],
        NO_JOBS if promoted is None else jobs.number[promoted],
        LazyReasons(partial(WaitReasons, view, rows, status)),
        valid_until_s,
        settled=all_run,
    )


#: Most models named in a remark.
MOST_NAMES = 8


def unknown_models(models: Sequence[str], skew: FloatArray, gpus: IntArray) -> str:
    """A remark on gangs without known `skew` (J,) on several `gpus` (J,), each of `models` once; empty without any.

    >>> unknown_models(["mine", "mine", "vgg16"], np.array([np.nan, np.nan, 0.7]), np.array([2, 4, 2]))
    'tensor sizes of mine are unknown: placement=skew keeps these jobs together'
    """
    rows = np.flatnonzero(np.isnan(skew) & (gpus > 1)).tolist()
    names = sorted({models[i] for i in rows} - {""})
    shown = names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], f"{len(names) - MOST_NAMES} more models"]
    nameless = sum(models[i] == "" for i in rows)
    parts = [", ".join(shown)] if shown else []
    if nameless:
        parts.append(f"{'of ' * bool(shown)}{nameless} job{'s' * (nameless > 1)} without a model")
    return (
        f"tensor sizes of {' and '.join(parts)} are unknown: placement=skew keeps these jobs together" if parts else ""
    )


@dataclass(frozen=True)
class SkewAware:
    """Consolidate jobs whose skew exceeds `packlimit`, spread the rest.

    Unknown skew counts as sensitive. After `patience_s` of waiting a sensitive job accepts any GPUs. Raises
    `InputError` for invalid limits.
    """

    packlimit: float = 0.3
    patience_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.packlimit <= 1:
            raise InputError(f"packlimit is {self.packlimit}; it takes a share of all tensor bytes, from 0 to 1")
        if not self.patience_s >= 0:
            raise InputError(f"patience_s is {self.patience_s}; it takes seconds >= 0, or inf")

    def __call__(self, view: View) -> IntArray:
        jobs = view.jobs
        schemes = self.schemes(placement_skew(jobs.skew, jobs.servers))
        if math.isfinite(self.patience_s):
            schemes[~jobs.running & (jobs.waiting_s >= self.patience_s)] = int(Scheme.SPREAD)
        return schemes

    def schemes(self, skew: FloatArray) -> IntArray:
        """The scheme of each job that has not lost its patience, by the skew (J,) of its tensors."""
        spread = skew <= self.packlimit  # NaN compares false: consolidated
        return np.where(spread, int(Scheme.SPREAD), int(Scheme.CONSOLIDATED))


#: Kinds of jobs with a known skew and loss, both ways, from which a limit of the skew is learnt.
LEAST_KINDS = 4


@dataclass(frozen=True)
class TriedPlacement:
    """Consolidate the jobs that lose more than `loss` of their speed when spread, by what jobs measured.

    What a job loses is known of itself, else of jobs of its model and size, else by its skew once a limit can be learnt
    from others (`learnt_packlimit`). The first job of any other kind is tried (Tiresias, section 3.3): it runs for
    `trial_s` seconds on the GPUs that come, then as long the other way, packed or apart, and is moved once for that.
    Raises `InputError` for invalid limits.
    """

    loss: float = 0.05
    trial_s: float = 300.0

    def __post_init__(self) -> None:
        if not 0 <= self.loss < math.inf:
            raise InputError(f"loss is {self.loss}; it takes a part of a job's speed >= 0, e.g. 0.05")
        if not 0 < self.trial_s < math.inf:
            raise InputError(f"trial_s is {self.trial_s}; it takes seconds > 0")

    def __call__(self, view: View) -> IntArray:
        """Unknown losses: first any GPUs, then the way that was not measured."""
        jobs = view.jobs
        lost, tried = self.losses(jobs), ~np.isnan([jobs.packed_s, jobs.spread_s])
        trial = np.where(tried[0], int(Scheme.APART), np.where(tried[1], int(Scheme.CONSOLIDATED), int(Scheme.SPREAD)))
        known = np.where(lost > self.loss, int(Scheme.CONSOLIDATED), int(Scheme.SPREAD))
        return np.where(np.isnan(lost), trial, known)

    def losses(self, jobs: JobTable) -> FloatArray:
        """The part by which an iteration of each job (J,) takes longer when it is spread; NaN: not known.

        Where only the learnt limit of skew decides, it is infinite or 0. The kind of a job is `JobTable.kinds`.
        """
        columns = jobs.columns
        own = jobs.spread_s / jobs.packed_s - 1
        all_lost = columns["spread_s"] / columns["packed_s"] - 1
        rows = np.flatnonzero(~np.isnan(all_lost))
        if not len(rows):
            return own
        kinds, of = np.unique(columns["kinds"][rows, BY_MODEL], return_inverse=True)
        mean = np.bincount(of, all_lost[rows]) / np.bincount(of)
        mine = jobs.kinds[:, BY_MODEL]
        at = np.minimum(np.searchsorted(kinds, mine), len(kinds) - 1)
        of_kind = np.where((kinds[at] == mine) & (mine != 0), mean[at], math.nan)
        skew = placement_skew(columns["skew"][rows], columns["servers"][rows])
        limit = learnt_packlimit(skew, all_lost[rows], of, self.loss)
        now = placement_skew(jobs.skew, jobs.servers)
        with np.errstate(invalid="ignore"):
            by_skew = np.where(now > limit, math.inf, 0.0)
        by_skew = np.where(np.isnan(now) | math.isnan(limit), math.nan, by_skew)
        return np.where(~np.isnan(own), own, np.where(~np.isnan(of_kind), of_kind, by_skew))

    def moves(self, view: View) -> tuple[IntArray, float]:
        """Running rows to place again, and when the next trial ends, seconds.

        These are the first of each kind that have been tried one way, and all that lose where they are, if there is
        room for them on the GPUs that are free and their own.
        """
        jobs, cluster, running = view.jobs, view.cluster, view.running
        lost, ran = self.losses(jobs), jobs.running & view.may_stop & (jobs.gpus > 1)
        rows = np.flatnonzero(ran & np.isnan(lost))
        may_start = (np.isnan(lost) & (jobs.gpus > 1) & ~jobs.running).any()
        mine = jobs.kinds[rows, BY_MODEL]
        rows = rows[np.unique(np.where(mine == 0, -1 - rows, mine), return_index=True)[1]]
        ends_s = jobs.last_start_s[rows] + self.trial_s
        over = ends_s <= view.now_s + CLOCK_S
        again_s = view.now_s + self.trial_s
        until_s = float(np.where(over, again_s, ends_s).min(initial=again_s if may_start else math.inf))
        measured = ~np.isnan(np.fmin(jobs.packed_s[rows], jobs.spread_s[rows]))
        spread = np.zeros(len(running), dtype=np.bool_)
        kinds, prefix = cluster.node_kind, cluster.cap_prefix
        kernels.mark_spread(running.gpus, running.first_gpu, cluster.gpu_node, kinds, prefix, spread)
        lose = np.flatnonzero(ran & (lost > self.loss))
        wanted = [*rows[over & measured].tolist(), *lose[spread[jobs.running_group[lose]]].tolist()]
        free = np.where(cluster.node_up, cluster.node_gpus, 0)
        free = free - np.bincount(cluster.gpu_node[np.unique(running.gpus)], minlength=len(free))
        for row in wanted:
            group = int(jobs.running_group[row])
            held = running.gpus[running.first_gpu[group] : running.first_gpu[group + 1]]
            node = cluster.gpu_node[held]
            room = np.where(kinds == kinds[node[0]], free + np.bincount(node, minlength=len(free)), 0)
            fewest = int(np.searchsorted(prefix[kinds[node[0]]], len(held))) + 1
            if spread[group]:
                fits = np.sort(room)[-fewest:].sum() >= len(held)
            else:
                fits = min(len(held), (room > 0).sum()) > fewest
            if fits:  # where it goes is not known yet, so one move at a time
                return np.array([row]), until_s
        return NO_JOBS, until_s


#: Column of `JobTable.kinds`: the model and the number of GPUs.
BY_MODEL = 2


def learnt_packlimit(skew: FloatArray, lost: FloatArray, kind: IntArray, loss: float) -> float:
    """The limit of the skew that tells best which kinds lose more than `loss` when spread; NaN where it is not known.

    `skew` and `lost` have one entry a measured job, `kind` numbers them from 0. Limits lie half-way between neighbours;
    of equally good ones the highest, which consolidates the fewest. Unknown with less than `LEAST_KINDS` kinds, or
    without any that lose and any that do not: then skew has not told anything yet.

    >>> learnt_packlimit(np.array([0.1, 0.2, 0.6, 0.7]), np.array([0.0, 0.01, 0.3, 0.4]), np.arange(4), 0.05)
    0.4
    """
    told = ~np.isnan(skew)
    number = np.bincount(kind[told])
    with np.errstate(invalid="ignore", divide="ignore"):
        of_kind, lost_by_kind = (np.bincount(kind[told], values[told]) / number for values in (skew, lost))
    order = np.argsort(of_kind[number > 0])
    of_kind, loses = of_kind[number > 0][order], (lost_by_kind[number > 0] > loss)[order]
    if len(of_kind) < LEAST_KINDS or loses.all() or not loses.any():
        return math.nan
    right = np.cumsum(~loses)[:-1] + loses.sum() - np.cumsum(loses)[:-1]
    cuts = np.flatnonzero((right == right[np.diff(of_kind) > 0].max(initial=0)) & (np.diff(of_kind) > 0))
    return float(of_kind[cuts[-1] : cuts[-1] + 2].mean()) if len(cuts) else math.nan
