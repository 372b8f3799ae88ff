"""From an order of jobs to a plan that names GPUs.

    place(view, order)                       the simplest policy there is: an order, consolidated gangs
    place(view, order, scheme=Scheme.SPREAD)

A kept job keeps its GPUs; a running job moves only if a higher-ranked job cannot be placed otherwise
(spec: Tiresias, section 2.6). The walk itself is in `kernels.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.jobs import JobTable
from plait.core.plan import TURN, Gate, Groups, Plan, plain_details
from plait.core.policy import View
from plait.core.words import counted
from plait.placement import kernels

A = TypeVar("A", bound="np.ndarray[Any, Any]")


class Scheme(IntEnum):
    """How the GPUs of one gang are chosen.

    CONSOLIDATED: the fewest nodes that can hold the gang, best fit among them; waits if they are not free.
    CONSOLIDATED_FIRST_FIT: whole idle nodes by number plus one for the rest, under one switch, as in the
    released Tiresias simulator's `yarn`; waits otherwise. A gang that the nodes that are up cannot hold this way even
    when idle (nodes of several sizes, racks too small) is placed as CONSOLIDATED instead of waiting for ever.
    FIRST_FIT and BEST_FIT: one node if possible (lowest number; least room left), else several.
    SPREAD: the fullest nodes first, filling fragments. COUNTING: any free GPUs by number, so that only the
    count matters. RANDOM: any free GPUs, drawn by a seeded generator.
    """

    CONSOLIDATED = kernels.CONSOLIDATED
    CONSOLIDATED_FIRST_FIT = kernels.CONSOLIDATED_FIRST_FIT
    FIRST_FIT = kernels.FIRST_FIT
    BEST_FIT = kernels.BEST_FIT
    SPREAD = kernels.SPREAD
    COUNTING = kernels.COUNTING
    RANDOM = kernels.RANDOM


class Placement(Protocol):
    """Chooses a scheme for each job: a `Scheme`, or something that looks at the jobs (skew-aware)."""

    def __call__(self, view: View) -> IntArray:
        """One `Scheme` a job of `view.jobs`."""
        ...


class WaitReasons(Mapping[int, str]):
    """Why each job that was not placed waits; the words are made when somebody asks."""

    def __init__(self, view: View, order: IntArray, status: IntArray) -> None:
        """`status[i]` is what the kernel said about `view.jobs` row `order[i]`."""
        waiting = status != kernels.PLACED
        self._status = dict(zip(view.jobs.number[order[waiting]].tolist(), status[waiting].tolist(), strict=True))
        self._gpus = dict(zip(self._status, view.jobs.gpus[order[waiting]].tolist(), strict=True))
        self._ahead = {job: i for i, job in enumerate(view.jobs.number[order].tolist())}

    def __getitem__(self, job: int) -> str:
        """The reason of one waiting job."""
        status, gpus, ahead = self._status[job], self._gpus[job], self._ahead[job]
        if status == kernels.BLOCKED:
            return f"waits behind a job ahead of it that does not fit yet (place {ahead + 1} in the order)"
        if status == kernels.FRAGMENTED:
            return f"needs {counted(gpus, 'GPU')} together; enough are free, but not on few enough nodes"
        return f"needs {counted(gpus, 'GPU')}; too few are left after the {counted(ahead, 'job')} ahead of it"

    def __iter__(self) -> Iterator[int]:
        """Job numbers that wait."""
        return iter(self._status)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._status)


class LazyReasons(Mapping[int, str]):
    """`WaitReasons` built on first use: most plans are never asked."""

    def __init__(self, view: View, order: IntArray, status: IntArray) -> None:
        """Keep what is needed to answer."""
        self._make = (view, order, status)
        self._made: WaitReasons | None = None

    def _reasons(self) -> WaitReasons:
        if self._made is None:
            self._made = WaitReasons(*self._make)
        return self._made

    def __getitem__(self, job: int) -> str:
        """The reason of one waiting job."""
        return self._reasons()[job]

    def __iter__(self) -> Iterator[int]:
        """Job numbers that wait."""
        return iter(self._reasons())

    def __len__(self) -> int:
        """How many wait."""
        return len(self._reasons())


#: one entry that stands for all jobs
_FOR_ALL = {scheme: np.array([int(scheme)], dtype=np.int64) for scheme in Scheme}
_STRICT = {flag: np.array([flag]) for flag in (False, True)}
NO_DEMANDS = np.zeros((1, 2))


def demands(jobs: JobTable) -> FloatArray:
    """CPU cores and memory bytes a GPU, shape (jobs, 2), or one row of zeros if nobody states any."""
    if not jobs.columns["has_demands"][0]:
        return NO_DEMANDS
    return np.column_stack([jobs.cpus / jobs.gpus, jobs.memory_bytes / jobs.gpus])


def allowed_kinds(view: View) -> IntArray:
    """Bit mask of the GPU kinds each job may use; one entry if all may use all."""
    cluster = view.cluster
    if not view.jobs.columns["has_kinds"][0]:
        return cluster.any_kind
    kinds = view.jobs.columns["gpu_kinds"][view.jobs.number]
    masks = {key: cluster.kind_mask(key) for key in set(kinds.tolist())}
    return np.array([masks[key] for key in kinds.tolist()], dtype=np.int64)


def _slots_of_units(view: View, order: IntArray, companions: Mapping[int, Sequence[int]]) -> IntArray:
    """A unit stays where its first running member of the right size is."""
    jobs = view.jobs
    counts = view.running.gpu_count()
    out = jobs.slot.copy()
    for row in order.tolist():
        for other in companions.get(row, ()):
            if out[row] < 0 or counts[out[row]] != jobs.gpus[row]:
                out[row] = jobs.slot[other]
    return out


def _for_units(rows: A, companions: Mapping[int, Sequence[int]] | None, join: np.ufunc) -> A:
    """One value a row, joined with those of its companions; a single value stands for all."""
    if not companions or len(rows) == 1:
        return rows
    out = rows.copy()
    for row, others in companions.items():
        for other in others:
            out[row] = join(out[row], rows[other])
    return out


def _with_companions(
    jobs: JobTable,
    rows: IntArray,
    groups: Groups,
    companions: Mapping[int, Sequence[int]],
    gate: Gate,
    turns: IntArray | None,
) -> Groups:
    units = [(row, *companions.get(row, ())) for row in rows.tolist()]
    members = np.array([m for unit in units for m in unit], dtype=np.int64)
    first = np.concatenate([[0], np.cumsum([len(unit) for unit in units])]).astype(np.int64)
    shared = np.diff(first) > 1
    gates = details = None
    if gate is not Gate.NONE and shared.any():
        gates = np.where(shared, int(gate), int(Gate.NONE))
    if turns is not None and shared.any():
        details = plain_details(len(members))
        details[:, TURN] = np.where(np.repeat(shared, np.diff(first)), turns[members], 0)
    return Groups(jobs.number[members], groups.gpus, groups.first_gpu, first, gates, details)


def _everybody(order: IntArray, status: IntArray, companions: Mapping[int, Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Order and status with companions right behind the row they share with, and waiting for what it waits for."""
    units = [(row, *companions.get(row, ())) for row in order.tolist()]
    rows = np.array([row for unit in units for row in unit], dtype=np.int64)
    return rows, np.repeat(status, [len(unit) for unit in units])


def place(
    view: View,
    order: IntArray,
    *,
    scheme: Scheme | IntArray = Scheme.CONSOLIDATED,
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

    `order` lists rows of `view.jobs`, best first; jobs left out do not run. `scheme`, `strict`, `gpus` and
    `levels` are one value a row of `view.jobs` (not of `order`). A `strict` job that does not fit blocks all
    after it. `promoted` lists rows. `companions` adds rows that share the GPUs of a row in `order` (and are
    not in `order` themselves), under `gate`; `turns` is one value a row of `view.jobs`, for those that share.
    `move` lists rows that give up their GPUs to be placed anew.
    Raises nothing: what does not fit waits, with a reason.
    """
    jobs, cluster, running = view.jobs, view.cluster, view.running
    order = np.asarray(order, dtype=np.int64)
    slot = _slots_of_units(view, order, companions) if companions else jobs.slot
    if move is not None:
        slot = slot.copy()
        slot[move] = -1
    status, positions, taken, offsets = kernels.admit(
        order,
        jobs.gpus if gpus is None else gpus,
        slot,
        _FOR_ALL[scheme] if isinstance(scheme, Scheme) else scheme,
        _STRICT[strict] if isinstance(strict, bool) else strict,
        _for_units(allowed_kinds(view), companions, np.bitwise_and),
        _for_units(demands(jobs), companions, np.add),
        running.gpus,
        running.first_gpu,
        seed * 1_000_003 + int(view.now_s * 1000),
        cluster.cap_prefix,
        cluster.node_kind,
        cluster.node_rack,
        cluster.node_gpus,
        cluster.first_gpu,
        cluster.gpu_node,
        cluster.node_up,
        cluster.node_spare,
    )
    numbers = jobs.number[order]
    everybody = len(positions) == len(jobs) and len(order) == len(jobs)
    groups = Groups(numbers if everybody else numbers[positions], taken, offsets)
    if companions:
        groups = _with_companions(jobs, order[positions], groups, companions, gate, turns)
        order, status = _everybody(order, status, companions)
    return Plan(
        groups,
        numbers,
        None if levels is None else levels[order],
        NO_JOBS if promoted is None else jobs.number[promoted],
        LazyReasons(view, order, status),
        valid_until_s,
        settled=everybody,
    )
