"""From jobs x nodes matrices to plans: jobs that fit without moving others, and GPUs by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.policy import View
from plait.policies.sizing.kernels import fill_free_gpus, name_gpus
from plait.policies.sizing.pools import Pool, room, staying

#: Cost of the plain form of a kernel for the jobs of a round, tenths of a millisecond.
WORK = 3


class FreeGpus:
    """Nodes of a pool under an allocation `matrix` (J, N), to which waiting jobs may be added.

    Rows that together take more cores or memory than a node has are left out, later ones first.
    """

    def __init__(self, pool: Pool, matrix: IntArray) -> None:
        """Take over the rows of the matrix that the nodes can hold."""
        self.pool = pool
        self.matrix = matrix.copy()
        self.free: IntArray = pool.capacity - matrix.sum(axis=0)
        self.spare = pool.spare
        if pool.demanding:
            self.spare = pool.spare.copy()
            for j in np.flatnonzero(matrix.any(axis=1)).tolist():
                asked = self.matrix[j][:, None] * pool.per_gpu[j]
                if (asked > self.spare + 1e-6).any():
                    self.free += self.matrix[j]
                    self.matrix[j] = 0
                else:
                    self.spare -= asked

    def fill(self, want: IntArray | None = None) -> IntArray:
        """Give waiting jobs, in order, what is free, and return the matrix.

        `want` (J,) is the maximum of each job: by default its fair share, and 1 GPU until it has profiled itself. Due
        jobs take their minimum GPUs from any other job, then fresh jobs from jobs that are neither; jobs of weight 0
        come last, share the rest, and give way to all.
        """
        pool = self.pool
        if pool.demanding or not compiled(fill_free_gpus, WORK):
            return self._fill(want)
        run(
            fill_free_gpus, NO_JOBS if want is None else want, pool.total, int(pool.capacity.max(initial=0)), pool.held,
            pool.least, pool.most, pool.weights > 0, pool.due, pool.fresh, self.matrix, self.free,
        )  # fmt: skip
        return self.matrix

    def _fill(self, want: IntArray | None) -> IntArray:
        """`fill` in plain Python, also with cores and memory."""
        pool, waits, first = self.pool, self._waiting(), self.pool.weights > 0
        entitled = waits & (pool.due | pool.fresh)
        if not (entitled.any() or (waits.any() and (self.free.any() or self.matrix[~first].any()))):
            return self.matrix
        most = self._fair() if want is None else np.where(want > 0, want, self._fair())
        if entitled.any():
            self._place_due_and_fresh(most)
            waits = self._waiting()
        displaces = bool(self.matrix[~first].any())
        for j in np.flatnonzero(first & waits).tolist():
            room_left = self.free.any()
            if not (room_left or displaces):
                break
            if not (room_left and self._fit(j, int(most[j]))) and displaces:
                self._displace(j, int(most[j]), ~first)
        weightless = np.flatnonzero(~first & ~self.matrix.any(axis=1))
        each = int(self.free.sum()) // max(len(weightless), 1)
        for j in weightless.tolist():
            if not self.free.any():
                break
            self._fit(j, min(max(each, int(pool.least[j])), int(pool.most[j])))
        return self.matrix

    def _place_due_and_fresh(self, most: IntArray) -> None:
        """Place due jobs, then fresh ones, on GPUs of others if necessary."""
        pool = self.pool
        idle: BoolArray = pool.running[1] == 0
        for j in np.flatnonzero(pool.due).tolist():
            if self.matrix[j].any():
                continue
            behind: BoolArray = idle & (np.arange(len(idle)) > j)
            if not self._displace(j, int(most[j]), ~pool.due | behind):
                break  # due jobs do not overtake each other
        for j in np.flatnonzero(pool.fresh & self._waiting()).tolist():
            self._displace(j, int(most[j]), ~(pool.due | pool.fresh))

    def _waiting(self) -> BoolArray:
        """(J,): jobs without GPUs."""
        waits: BoolArray = self.matrix.sum(axis=1) == 0
        return waits

    def _fair(self) -> IntArray:
        """The maximum of each job before the next round: as much as the rest of the jobs could have too."""
        pool = self.pool
        counted = max(int((pool.weights > 0).sum()), 1)
        fair: IntArray = np.clip(-(-pool.total // counted), pool.least, pool.most)
        return fair

    def _displace(self, j: int, most: int, others: BoolArray) -> bool:
        """Place a job, on GPUs of `others` (J,) if necessary; others not in its way stay."""
        if self._back(j) or (self.free.any() and self._fit(j, most)):
            return True
        displaced = np.flatnonzero(others & self.matrix.any(axis=1))
        before = self.matrix[displaced]
        if self.free.sum() + before.sum() < self.pool.least[j]:
            return False
        free, spare = self.free.copy(), self.spare.copy()
        self.free += self.matrix[displaced].sum(axis=0)
        if self.pool.demanding:
            self.spare += self.matrix[displaced].T @ self.pool.per_gpu[displaced]
        self.matrix[displaced] = 0
        if not (self._back(j) or self._fit(j, int(self.pool.least[j]))):
            self.matrix[displaced], self.free, self.spare = before, free, spare
            return False
        near = (before[:, self.matrix[j] > 0] > 0).any(axis=1) | ((before > 0).sum(axis=1) > 1)
        self._return(displaced[~near], before[~near])  # nothing has changed where they were
        for one, row in zip(displaced[near].tolist(), before[near], strict=True):
            if self._fits(one, row):
                self._take(one, row)
        return True

    def _room(self, j: int) -> IntArray:
        """(N,): GPUs of a job that fit on each node next to the present jobs."""
        return room(self.free, self.spare, self.pool.per_gpu[j]) if self.pool.demanding else np.maximum(self.free, 0)

    def _back(self, j: int) -> bool:
        """Leave a job where it runs, if it runs and its GPUs are free."""
        row = self.pool.held[j]
        if not (row.any() and self._fits(j, row)):
            return False
        self._take(j, row)
        return True

    def _fits(self, j: int, row: IntArray) -> bool:
        """Whether a job finds room for these GPUs, and meets no other that spans nodes."""
        return bool((row <= self._room(j)).all()) and not self._meets(row)

    def _meets(self, row: IntArray) -> bool:
        """Whether these GPUs span nodes on one of which there is a job that spans nodes."""
        at = np.flatnonzero(row)
        if len(at) <= 1:
            return False
        spread = (self.matrix > 0).sum(axis=1) > 1
        return bool(self.matrix[spread][:, at].any())

    def _fit(self, j: int, most: int) -> bool:
        """Halve the GPUs wanted until there is room, down to the job's minimum."""
        least, free = int(self.pool.least[j]), int(self.free.sum())
        if free < least:
            return False
        size = max(min(most, free), least)
        while True:
            row = self._find(j, size)
            if row is not None:
                self._take(j, row)
                return True
            if size == least:
                return False
            size = max(size // 2, least)

    def _find(self, j: int, size: int) -> IntArray | None:
        """On one node, best fit; a job that no node can hold on as few as there are, none with another such job."""
        pool = self.pool
        fits = self._room(j)
        able = np.flatnonzero(fits >= size)
        if len(able):
            row = np.zeros(len(fits), dtype=np.int64)
            row[able[fits[able].argmin()]] = size
            return row
        largest = room(pool.capacity, pool.spare, pool.per_gpu[j]).max(initial=0)
        if size <= largest and not pool.due[j]:
            return None
        spread = (self.matrix > 0).sum(axis=1) > 1
        fits[(self.matrix[spread] > 0).any(axis=0)] = 0
        if fits.sum() < size:
            return None
        order = np.argsort(-fits, kind="stable")
        count = int(np.searchsorted(np.cumsum(fits[order]), size)) + 1
        row = np.zeros(len(fits), dtype=np.int64)
        row[order[:count]] = fits[order[:count]]
        row[order[count - 1]] -= row.sum() - size
        return row

    def _take(self, j: int, row: IntArray) -> None:
        self.matrix[j] = row
        self.free -= row
        if self.pool.demanding:
            self.spare -= row[:, None] * self.pool.per_gpu[j]

    def _return(self, rows: IntArray, gpus: IntArray) -> None:
        self.matrix[rows] = gpus
        self.free -= gpus.sum(axis=0)
        if self.pool.demanding:
            self.spare -= gpus.T @ self.pool.per_gpu[rows]


def groups_of(view: View, allocations: Iterable[tuple[Pool, IntArray]]) -> Groups:
    """Name the GPUs of allocations: a job with as many GPUs on each node as before keeps the same ones."""
    pools = list(allocations)
    if len(pools) == 1 and compiled(name_gpus, WORK):
        (pool, matrix), running = pools[0], view.running
        rows, gpus, offsets = run(
            name_gpus, pool.rows, pool.nodes, matrix, pool.held, staying(view), view.jobs.running_group, running.gpus,
            running.first_gpu, view.cluster.first_gpu,
        )  # fmt: skip
        if offsets[-1] >= 0:
            return Groups(view.jobs.number[rows], gpus, offsets)
    return _groups_of(view, pools)


def _groups_of(view: View, allocations: Iterable[tuple[Pool, IntArray]]) -> Groups:
    """`groups_of` in plain Python, also for several pools."""
    cluster, running, running_group = view.cluster, view.running, view.jobs.running_group
    same: list[IntArray] = []
    others: list[tuple[int, Pool, IntArray]] = []
    for pool, matrix in allocations:
        stays, runs = (matrix == pool.held).all(axis=1), matrix.any(axis=1)
        same.append(pool.rows[stays & runs])
        others += [(int(pool.rows[j]), pool, matrix[j]) for j in np.flatnonzero(runs & ~stays).tolist()]
    rows = np.sort(np.concatenate([*same, NO_JOBS]))
    kept = running[running_group[rows]]
    if not others:
        return Groups(view.jobs.number[rows], kept.gpus, kept.first_gpu)
    taken = np.zeros(cluster.gpus, dtype=bool)
    taken[running[np.unique(running_group[staying(view)])].gpus] = True
    taken[kept.gpus] = True
    same_gpus, first_same = kept.gpus.tolist(), kept.first_gpu.tolist()
    gpus = {row: same_gpus[first_same[i] : first_same[i + 1]] for i, row in enumerate(rows.tolist())}
    for row, pool, count in others:
        gpus[row] = []
        for at in count.nonzero()[0].tolist():
            first, end = cluster.first_gpu[pool.nodes[at] : pool.nodes[at] + 2].tolist()
            free = (~taken[first:end]).nonzero()[0][: count[at]] + first
            taken[free] = True
            gpus[row] += free.tolist()
    named = sorted(gpus)
    flat = [gpu for row in named for gpu in gpus[row]]
    first_gpu = list(accumulate((len(gpus[row]) for row in named), initial=0))
    return Groups(view.jobs.number[named], np.array(flat, dtype=np.int64), np.array(first_gpu, dtype=np.int64))


def with_companions(view: View, groups: Groups, mates: Mapping[int, tuple[int, ...]], turns: IntArray) -> Groups:
    """The groups with the jobs that share their GPUs, in lock step; `mates` and `turns` are by rows of the view."""
    row_of = {int(job): row for row, job in enumerate(view.jobs.number.tolist())}
    out = []
    for group in groups:
        row = row_of[group.members[0].job]
        if row in mates:
            unit = (row, *mates[row])
            members = tuple(Member(int(view.jobs.number[one]), turn=int(turns[one])) for one in unit)
            group = Group(members, group.gpus, Gate.BARRIER)
        out.append(group)
    return Groups.of(out)


def with_staying(view: View, groups: Groups) -> Groups:
    """The groups, and running groups that continue unchanged because a member is kept."""
    stays = staying(view)
    if not stays.any():
        return groups
    jobs, alive = view.jobs, set(view.jobs.number[stays].tolist())
    if all(some.single and some.gate is None and some.details is None for some in (groups, view.running)):
        on = view.running[np.sort(jobs.running_group[stays])]
        first_gpu = np.concatenate([groups.first_gpu, groups.first_gpu[-1] + on.first_gpu[1:]])
        return Groups(np.concatenate([groups.jobs, on.jobs]), np.concatenate([groups.gpus, on.gpus]), first_gpu)
    same = [view.running[group] for group in sorted(set(jobs.running_group[stays].tolist()))]
    with_others = [Group(tuple(m for m in group.members if m.job in alive), group.gpus, group.gate) for group in same]
    return Groups.of([*groups, *with_others])
