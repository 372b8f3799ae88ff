"""From jobs x nodes matrices to plans: who else finds room without moving anybody, and which GPUs everybody gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.policy import View
from plait.policies.pools import Pool, room, staying


class Seats:
    """Nodes of a pool under an allocation `matrix` (J, N), to which waiting jobs may be added.

    Rows that together take more cores or memory than a node has are left out, later ones first.
    """

    def __init__(self, pool: Pool, matrix: IntArray) -> None:
        """Seat everybody in the matrix whom the nodes can hold."""
        self.pool = pool
        self.matrix = matrix.copy()
        self.free: IntArray = pool.capacity - matrix.sum(axis=0)
        self.spare = pool.spare.copy()
        if pool.per_gpu.any():
            for j in np.flatnonzero(matrix.any(axis=1)).tolist():
                asked = self.matrix[j][:, None] * pool.per_gpu[j]
                if (asked > self.spare + 1e-6).any():
                    self.free += self.matrix[j]
                    self.matrix[j] = 0
                else:
                    self.spare -= asked

    def fill(self, want: IntArray | None = None) -> IntArray:
        """Give waiting jobs, in order, what is free, and return the matrix.

        `want` (J,) is what each should get at most: by default its fair share, and 1 GPU until it has profiled itself.
        Those who are due take their fewest GPUs from whoever has them, then fresh ones from whoever is neither; jobs of
        weight 0 come last, share what is left, and give way to all.
        """
        most = self._fair() if want is None else np.where(want > 0, want, self._fair())
        first = self.pool.weights > 0
        has: IntArray = self.pool.held.sum(axis=1)
        for j in np.flatnonzero(self.pool.due).tolist():
            behind = (has == 0) & (np.arange(len(has)) > j)
            if not self.matrix[j].any() and not self._displace(j, int(most[j]), ~self.pool.due | behind):
                break  # nobody overtakes in the line of those who are due
        for j in np.flatnonzero(self.pool.fresh & ~self.matrix.any(axis=1)).tolist():
            self._displace(j, int(most[j]), ~(self.pool.due | self.pool.fresh))
        displaces = bool(self.matrix[~first].any())
        for j in np.flatnonzero(first & ~self.matrix.any(axis=1)).tolist():
            room_left = self.free.any()
            if not (room_left or displaces):
                break
            if not (room_left and self._seat(j, int(most[j]))) and displaces:
                self._displace(j, int(most[j]), ~first)
        guests = np.flatnonzero(~first & ~self.matrix.any(axis=1))
        each = int(self.free.sum()) // max(len(guests), 1)
        for j in guests.tolist():
            if not self.free.any():
                break
            self._seat(j, min(max(each, int(self.pool.least[j])), int(self.pool.most[j])))
        return self.matrix

    def _fair(self) -> IntArray:
        """What each job may have before the next round: as much as the rest of the jobs could have too."""
        pool = self.pool
        counted = max(int((pool.weights > 0).sum()), 1)
        fair: IntArray = np.clip(-(-pool.total // counted), pool.least, pool.most)
        return fair

    def _displace(self, j: int, most: int, others: BoolArray) -> bool:
        """Seat a job where `others` (J,) are, if need be; those of them who are not in its way stay."""
        if self._back(j) or (self.free.any() and self._seat(j, most)):
            return True
        if self.free.sum() + self.matrix[others].sum() < self.pool.least[j]:
            return False
        guests = np.flatnonzero(others & self.matrix.any(axis=1))
        before = self.matrix[guests].copy()
        free, spare = self.free.copy(), self.spare.copy()
        self._leave(guests)
        if not (self._back(j) or self._seat(j, int(self.pool.least[j]))):
            self.matrix[guests], self.free, self.spare = before, free, spare
            return False
        near = (before[:, self.matrix[j] > 0] > 0).any(axis=1) | ((before > 0).sum(axis=1) > 1)
        self._return(guests[~near], before[~near])  # nothing has changed where they were
        for guest, row in zip(guests[near].tolist(), before[near], strict=True):
            if self._fits(guest, row):
                self._take(guest, row)
        return True

    def _back(self, j: int) -> bool:
        """Leave a job where it runs, if it does and nobody else is there."""
        row = self.pool.held[j]
        if not (row.any() and self._fits(j, row)):
            return False
        self._take(j, row)
        return True

    def _fits(self, j: int, row: IntArray) -> bool:
        """Whether a job finds room for these GPUs, and meets no other that spans nodes."""
        return bool((row <= room(self.free, self.spare, self.pool.per_gpu[j])).all()) and not self._meets(row)

    def _meets(self, row: IntArray) -> bool:
        """Whether these GPUs span nodes on one of which there is a job that spans nodes."""
        spread = (self.matrix > 0).sum(axis=1) > 1
        return bool((row > 0).sum() > 1 and self.matrix[spread][:, row > 0].any())

    def _seat(self, j: int, most: int) -> bool:
        """Halve what a job wants until there is room, but for no less than it needs."""
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
        fits = room(self.free, self.spare, pool.per_gpu[j])
        row = np.zeros(len(fits), dtype=np.int64)
        able = np.flatnonzero(fits >= size)
        if len(able):
            row[able[fits[able].argmin()]] = size
            return row
        if size <= room(pool.capacity, pool.spare, pool.per_gpu[j]).max(initial=0) and not pool.due[j]:
            return None
        spread = (self.matrix > 0).sum(axis=1) > 1
        fits[(self.matrix[spread] > 0).any(axis=0)] = 0
        if fits.sum() < size:
            return None
        order = np.argsort(-fits, kind="stable")
        count = int(np.searchsorted(np.cumsum(fits[order]), size)) + 1
        row[order[:count]] = fits[order[:count]]
        row[order[count - 1]] -= row.sum() - size
        return row

    def _take(self, j: int, row: IntArray) -> None:
        self.matrix[j] = row
        self.free -= row
        self.spare -= row[:, None] * self.pool.per_gpu[j]

    def _leave(self, rows: IntArray) -> None:
        self.free += self.matrix[rows].sum(axis=0)
        self.spare += self.matrix[rows].T @ self.pool.per_gpu[rows]
        self.matrix[rows] = 0

    def _return(self, rows: IntArray, gpus: IntArray) -> None:
        self.matrix[rows] = gpus
        self.free -= gpus.sum(axis=0)
        self.spare -= gpus.T @ self.pool.per_gpu[rows]


def groups_of(view: View, seated: Iterable[tuple[Pool, IntArray]]) -> Groups:
    """Name the GPUs of allocations: who has as many of each node as before keeps the very same."""
    cluster, jobs, running = view.cluster, view.jobs, view.running
    taken = np.zeros(cluster.gpus, dtype=bool)
    for slot in set(jobs.slot[staying(view)].tolist()):
        taken[running.gpus[running.first_gpu[slot] : running.first_gpu[slot + 1]]] = True
    gpus: dict[int, IntArray] = {}
    others: list[tuple[int, IntArray, IntArray]] = []
    for pool, matrix in seated:
        same = (matrix == pool.held).all(axis=1)
        for j in np.flatnonzero(matrix.any(axis=1)).tolist():
            row = int(pool.rows[j])
            if same[j]:
                slot = int(jobs.slot[row])
                gpus[row] = running.gpus[running.first_gpu[slot] : running.first_gpu[slot + 1]]
                taken[gpus[row]] = True
            else:
                others.append((row, pool.nodes, matrix[j]))
    for row, nodes, count in others:
        parts = []
        for at in np.flatnonzero(count).tolist():
            first = int(cluster.first_gpu[nodes[at]])
            free = np.flatnonzero(~taken[first : int(cluster.first_gpu[nodes[at] + 1])])
            parts.append(first + free[: count[at]])
        gpus[row] = np.concatenate(parts)
        taken[gpus[row]] = True
    rows = np.array(sorted(gpus), dtype=np.int64)
    lists = [gpus[row] for row in rows.tolist()]
    first_gpu = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    return Groups(jobs.number[rows], np.concatenate(lists) if lists else rows, first_gpu)


def with_companions(view: View, groups: Groups, mates: Mapping[int, tuple[int, ...]], turns: IntArray) -> Groups:
    """The same GPUs with those who share them, in lock step; `mates` and `turns` are by rows of the view."""
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
    """The groups, and those that go on as they are because somebody in them is kept."""
    stays = staying(view)
    if not stays.any():
        return groups
    jobs, alive = view.jobs, set(view.jobs.number[stays].tolist())
    if all(some.single and some.gate is None and some.details is None for some in (groups, view.running)):
        on = view.running[np.sort(jobs.slot[stays])]
        first_gpu = np.concatenate([groups.first_gpu, groups.first_gpu[-1] + on.first_gpu[1:]])
        return Groups(np.concatenate([groups.jobs, on.jobs]), np.concatenate([groups.gpus, on.gpus]), first_gpu)
    same = [view.running[slot] for slot in sorted(set(jobs.slot[stays].tolist()))]
    with_others = [Group(tuple(m for m in group.members if m.job in alive), group.gpus, group.gate) for group in same]
    return Groups.of([*groups, *with_others])
