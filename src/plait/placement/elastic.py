"""Placement of jobs whose sizes were just chosen: from GPU counts to a jobs x nodes matrix.

A job whose size is unchanged keeps its GPUs, unless it is on more nodes than its size needs and can now come together;
one that fits on a node gets one, best fit, the largest first; a larger one gets whole free nodes; where fragments are
in the way, the minimum number of small jobs is moved, each of which costs a restart. A node holds GPUs of at most one
job that is spread over several nodes (Pollux, section 4.2; placement rules of Sia, section 3.4).

If no job is in the way of another, the usual case, a kernel does all of it (`place_undisturbed`).

Sizes of `fitness.ladder` always fit on nodes of equal size that are all up. Other sizes may not, nor may any when
nodes are down or differ: the result names those jobs, or shrinks them to sizes that the caller allows.

`place_arranged` chooses real nodes for an arrangement on unnamed ones, so that most jobs stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.errors import InputError, MissingExtra
from plait.core.jit import kernel, part

# The common case of `plait.placement.elastic.place_sizes`, compiled: all jobs fit and none is in the way.
#
# All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.


@part
def _keep(
    sizes: IntArray, running: IntArray, capacity: IntArray, fixed: BoolArray, gpus: IntArray, free: IntArray,
    owned: BoolArray,
) -> bool:  # fmt: skip
    """Leave jobs of unchanged size on the board; False if one of them cannot stay or might come together."""
    largest = 0
    for n in range(len(capacity)):
        largest = max(largest, capacity[n])
    for j in range(len(sizes)):
        held, parts = 0, 0
        for n in range(len(capacity)):
            held += running[j, n]
            parts += running[j, n] > 0
        if held != sizes[j] or held == 0:
            continue
        if parts > 1 and not fixed[j] and (parts - 1) * largest >= held:
            return False
        for n in range(len(capacity)):
            if running[j, n] > 0:
                if running[j, n] > free[n] or (parts > 1 and owned[n]):
                    return False
                gpus[j, n] = running[j, n]
                free[n] -= running[j, n]
                owned[n] |= parts > 1
    return True


@part
def _best_fit(size: int, free: IntArray) -> int:
    """The node on which a job leaves least free, the first of equals; -1 if none has room."""
    best, least = -1, 1 << 60
    for n in range(len(free)):
        if size <= free[n] < least:
            best, least = n, free[n]
    return best


@part
def _whole_nodes(j: int, size: int, capacity: IntArray, gpus: IntArray, free: IntArray, owned: BoolArray) -> bool:
    """Nodes that are free, the largest first, and a part of one more; False if others would have to go."""
    need = size
    while need > 0:
        best = -1
        for n in range(len(free)):
            idle = free[n] == capacity[n] > 0 and not owned[n] and gpus[j, n] == 0
            if idle and capacity[n] <= need and (best < 0 or capacity[n] > capacity[best]):
                best = n
        if best < 0:
            break
        gpus[j, best] = capacity[best]
        free[best] = 0
        need -= capacity[best]
    if need > 0:
        for n in range(len(free)):
            if 0 < capacity[n] <= need and not owned[n] and gpus[j, n] == 0:
                return False
        last, least = -1, 1 << 60
        for n in range(len(free)):
            if need <= free[n] < least and not owned[n] and gpus[j, n] == 0:
                last, least = n, free[n]
        if last < 0:
            return False
        gpus[j, last] = need
        free[last] -= need
    for n in range(len(free)):
        owned[n] |= gpus[j, n] > 0
    return True


@kernel
def place_undisturbed(
    sizes: IntArray, order: IntArray, running: IntArray, capacity: IntArray, fixed: BoolArray, gpus: IntArray
) -> bool:
    """Fill `gpus` (J, N), zeros so far, with what `place_sizes` finds; False where that takes more than these steps.

    Jobs of unchanged size keep their GPUs, and none of them could use fewer nodes; the others, in `order` (J,), the
    largest first, get the node that they fit best or whole nodes, without moving others.
    """
    free, owned = capacity.copy(), np.zeros(len(capacity), dtype=np.bool_)
    if not _keep(sizes, running, capacity, fixed, gpus, free, owned):
        return False
    largest = 0
    for n in range(len(capacity)):
        largest = max(largest, capacity[n])
    for j in order:
        waits = sizes[j] > 0
        for n in range(len(free)):
            waits &= gpus[j, n] == 0
        if not waits:
            continue
        if sizes[j] > largest:
            if not _whole_nodes(j, sizes[j], capacity, gpus, free, owned):
                return False
            continue
        node = _best_fit(sizes[j], free)
        if node < 0:
            return False
        gpus[j, node] = sizes[j]
        free[node] -= sizes[j]
    return True


#: Time of a placement without its kernel, tenths of a millisecond.
WORK = 3


@dataclass(frozen=True)
class PlacedSizes:
    """A placement: `gpus` (J, N), and the rows of jobs that were moved or found no place.

    `moved` had as many GPUs before, elsewhere. `unplaced` should have GPUs and have none, or fewer than chosen.
    """

    gpus: IntArray
    moved: IntArray
    unplaced: IntArray


def place_sizes(
    sizes: IntArray,
    running: IntArray,
    capacity: IntArray,
    *,
    spread: BoolArray | None = None,
    pinned: BoolArray | None = None,
    stay: BoolArray | None = None,
    smaller: Sequence[int] = (),
) -> PlacedSizes:
    """Put jobs of `sizes` (J,) GPUs on nodes, close to where they are `running` (J, N).

    `capacity` (N,): the GPUs that each node has for these jobs, 0 for one that is down. `spread` (J,): jobs that may
    use several nodes although one would hold them. `pinned` (J,): keep their GPUs even if others find no place. `stay`
    (J,): jobs that keep their GPUs, on any number of nodes, while their size is unchanged; the others are brought
    together on as few as their size needs as soon as possible, jobs that may spread without moving other jobs.
    `smaller`: sizes to which a job without a place may be cut, e.g. the ladder's. Among equals earlier rows come first.
    """
    jobs, nodes = running.shape
    if sizes.shape != (jobs,) or capacity.shape != (nodes,) or sizes.min(initial=0) < 0:
        raise InputError(
            f"placing needs a size for each of {jobs} jobs and a capacity for each of {nodes} nodes "
            f"(got {sizes.shape} and {capacity.shape})"
        )
    sizes, running, capacity = (np.ascontiguousarray(given, dtype=np.int64) for given in (sizes, running, capacity))
    loose, fixed, still = (
        np.zeros(jobs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool) for mask in (spread, pinned, stay)
    )
    if compiled(place_undisturbed, WORK):
        gpus = np.zeros_like(running)
        if run(place_undisturbed, sizes, np.argsort(-sizes, kind="stable"), running, capacity, fixed, gpus):
            return PlacedSizes(gpus, NO_JOBS, NO_JOBS)
    needed = np.searchsorted(np.cumsum(np.sort(capacity)[::-1]), sizes) + 1
    parts = (running > 0).sum(axis=1)
    same = running.sum(axis=1) == sizes
    unchanged = same & (sizes > 0)
    apart = unchanged & (parts > needed) & ~fixed & ~still
    fresh = partial(_Board, sizes, running, capacity, loose, fixed)
    if same.all() and not apart.any() and fresh().all_can(np.flatnonzero(sizes)):
        return PlacedSizes(running.copy(), NO_JOBS, NO_JOBS)
    tidy = (parts == 1) | (((running == 0) | (running == capacity)).all(axis=1))
    board, missing = _gathered(fresh, apart & ~loose, needed)
    for kept in (np.flatnonzero(fixed | tidy), np.flatnonzero(fixed)):
        if not missing:
            break  # otherwise kept jobs are in the way: first the ones spread over parts of nodes, then all
        tried = fresh()
        left = tried.settle(tried.keep(kept))
        if len(left) < len(missing):
            board, missing = tried, left
    for job in missing:
        board.cut(job, smaller)
    for job in np.flatnonzero(apart & loose & (board.gpus == running).all(axis=1)).tolist():
        board.gather(job, int(needed[job]))
    moved = unchanged & (board.gpus.sum(axis=1) == sizes) & (board.gpus != running).any(axis=1)
    return PlacedSizes(board.gpus, np.flatnonzero(moved), np.array(sorted(missing), dtype=np.int64))


def _gathered(fresh: Callable[[], _Board], apart: BoolArray, needed: IntArray) -> tuple[_Board, list[int]]:
    """A board on which jobs keep their GPUs, except jobs `apart` that now fit on as few nodes as `needed`; the rest.

    A job that would be moved by this stays, and so do all of them if more would be without a place.
    """
    board = fresh()
    missing = board.settle(board.keep(np.arange(len(apart))))
    while apart.any():
        tried = fresh()
        left = tried.settle(tried.keep(np.flatnonzero(~apart)))
        found = apart & _within(tried.gpus, needed)
        if (found == apart).all():
            return (tried, left) if len(left) <= len(missing) else (board, missing)
        apart = found
    return board, missing


def _within(gpus: IntArray, nodes: IntArray) -> BoolArray:
    """(J,): whether a job has GPUs, on `nodes` (J,) at most."""
    parts = (gpus > 0).sum(axis=1)
    found: BoolArray = (parts > 0) & (parts <= nodes)
    return found


class _Board:
    """Nodes being filled. `free` (N,), `owner` (N,): the spread job that has GPUs there, or -1."""

    def __init__(
        self, sizes: IntArray, running: IntArray, capacity: IntArray, loose: BoolArray, pinned: BoolArray
    ) -> None:
        self.sizes, self.running, self.capacity, self.loose, self.pinned = sizes, running, capacity, loose, pinned
        self.gpus = np.zeros_like(running)
        self.free = capacity.copy()
        self.owner = np.full(len(capacity), -1, dtype=np.int64)

    def keep(self, jobs: IntArray) -> list[int]:
        """Leave `jobs` of unchanged size where they are, if they can stay; return the rest."""
        unchanged = (self.running.sum(axis=1) == self.sizes) & (self.sizes > 0)
        able = jobs[unchanged[jobs]]
        if self.all_can(able):
            rows = self.running[able]
            self.gpus[able] = rows
            self.free -= rows.sum(axis=0)
            for job in able[(rows > 0).sum(axis=1) > 1].tolist():
                self.owner[self.running[job] > 0] = job
            able = able[:0]
        for job in able.tolist():
            row = self.running[job]
            at = np.flatnonzero(row)
            if (row[at] <= self.free[at]).all() and (len(at) == 1 or (self.owner[at] < 0).all()):
                self._put(job, at, row[at])
        return np.flatnonzero((self.sizes > 0) & ~self.gpus.any(axis=1)).tolist()

    def all_can(self, jobs: IntArray) -> bool:
        """Whether these jobs, none of which is on the board, can all stay where they run."""
        rows = self.running[jobs]
        spread = rows[(rows > 0).sum(axis=1) > 1] > 0
        fits = (rows.sum(axis=0) <= self.free).all()
        return bool(fits and (spread.sum(axis=0) + (self.owner >= 0) <= 1).all())

    def settle(self, jobs: list[int]) -> list[int]:
        """Place `jobs`, the largest first; jobs in their way are placed after them. Return jobs without a place."""
        waiting = sorted(jobs, key=lambda job: (-self.sizes[job], job))
        missing = []
        while waiting:
            job = waiting.pop(0)
            size = int(self.sizes[job])
            large = size > self.capacity.max(initial=0)
            evicted = self._whole_nodes(job, size) if large else self._one_node(job, size)
            if evicted is None and (large or self.loose[job]):
                evicted = self._scatter(job, size)
            if evicted is None:
                missing.append(job)
            elif evicted:
                waiting = sorted(waiting + evicted, key=lambda job: (-self.sizes[job], job))
        return missing

    def cut(self, job: int, smaller: Sequence[int]) -> None:
        """Give a job without a place the largest of the `smaller` sizes that fits without moving other jobs."""
        for size in sorted((s for s in smaller if 0 < s < self.sizes[job]), reverse=True):
            if size > self.capacity.max(initial=0):
                if self._scatter(job, size) is not None:
                    return
            elif self._fits_best(job, size):
                return

    def gather(self, job: int, nodes: int) -> None:
        """Bring a job with GPUs together on at most `nodes` nodes if they have room besides what it holds there."""
        size, row = int(self.sizes[job]), self.gpus[job].copy()
        self._clear(job)
        if not self._fits_best(job, size):
            self._scatter(job, size)
        if not 0 < (self.gpus[job] > 0).sum() <= nodes:
            self._clear(job)
            at = np.flatnonzero(row)
            self._put(job, at, row[at])

    def _one_node(self, job: int, size: int) -> list[int] | None:
        if self._fits_best(job, size):
            return []
        best: tuple[tuple[int, int], int, list[int]] | None = None
        for node in np.argsort(-self.free, kind="stable").tolist():
            need = size - int(self.free[node])
            if best is not None and best[0] <= (1, need):
                break  # on the nodes that are left at least as many GPUs would have to go
            out = self._fewest(node, need, size) if self.capacity[node] >= size else None
            if out is not None:
                cost = (len(out), int(self.sizes[out].sum()))
                if best is None or cost < best[0]:
                    best = (cost, node, out)
        if best is None:
            return None
        self._take_away(best[2])
        self._put(job, np.array([best[1]]), np.array([size]))
        return best[2]

    def _fewest(self, node: int, need: int, below: int) -> list[int] | None:
        """The minimum set of one-node jobs smaller than `below` with `need` or more GPUs on `node`; None if too few."""
        here = [j for j in np.flatnonzero(self.gpus[:, node]).tolist() if self._can_go(j) and self.sizes[j] < below]
        here.sort(key=lambda job: (-self.sizes[job], -job))
        out: list[int] = []
        for job in here:
            if need <= 0:
                break
            out.append(job)
            need -= int(self.sizes[job])
        if need > 0:
            return None
        if out:  # the last one need not be the largest left: the smallest that is enough
            short = need + int(self.sizes[out[-1]])
            enough = [job for job in here if job not in out[:-1] and self.sizes[job] >= short]
            out[-1] = min(enough, key=lambda job: (self.sizes[job], -job))
        return out

    def _whole_nodes(self, job: int, size: int) -> list[int] | None:
        """Whole nodes, the free ones first, then the ones with the fewest jobs to move; the last may be one in part."""
        busy = (self.gpus > 0).sum(axis=0)
        stuck = (self.gpus[~self._movable()] > 0).any(axis=0)
        held = self.capacity - self.free
        usable = np.flatnonzero(~stuck & (self.owner < 0) & (self.capacity > 0))
        chosen: list[int] = []
        need = size
        for node in usable[np.lexsort((usable, -self.capacity[usable], held[usable], busy[usable]))].tolist():
            if need >= self.capacity[node]:
                chosen.append(node)
                need -= int(self.capacity[node])
        out = np.flatnonzero((self.gpus[:, chosen] > 0).any(axis=1)).tolist()
        tail: list[int] = []
        if need > 0:  # a part of one more node, where it fits best
            rest = np.flatnonzero((self.free >= need) & (self.owner < 0))
            rest = rest[~np.isin(rest, chosen)]
            if len(rest) == 0:
                return None
            tail = [int(rest[self.free[rest].argmin()])]
        self._take_away(out)
        at = np.array(chosen + tail, dtype=np.int64)
        self._put(job, at, np.array([*self.capacity[chosen].tolist(), *[need] * len(tail)], dtype=np.int64))
        return out

    def _scatter(self, job: int, size: int) -> list[int] | None:
        """Free GPUs, from the nodes with most of them, the last one best fit; None if they are too few."""
        usable = np.flatnonzero((self.owner < 0) & (self.free > 0))
        order = usable[np.argsort(-self.free[usable], kind="stable")]
        if self.free[order].sum() < size:
            return None
        count = int(np.searchsorted(np.cumsum(self.free[order]), size)) + 1
        at = order[:count]
        share = self.free[at].copy()
        share[-1] = size - int(share[:-1].sum())
        rest = order[count - 1 :]
        at[-1] = rest[self.free[rest] >= share[-1]][-1]
        self._put(job, at, share)
        return []

    def _fits_best(self, job: int, size: int) -> bool:
        """Put a job on the node where it leaves least free, if there is room on any."""
        fits = np.flatnonzero(self.free >= size)
        if not len(fits):
            return False
        node = fits[self.free[fits].argmin()]
        self.gpus[job, node] = size
        self.free[node] -= size
        return True

    def _movable(self) -> BoolArray:
        movable: BoolArray = ~self.pinned & ((self.gpus > 0).sum(axis=1) == 1)
        return movable

    def _can_go(self, job: int) -> bool:
        return not self.pinned[job] and int((self.gpus[job] > 0).sum()) == 1

    def _put(self, job: int, at: IntArray, share: IntArray) -> None:
        self.gpus[job, at] = share
        self.free[at] -= share
        if len(at) > 1:
            self.owner[at] = job

    def _take_away(self, jobs: list[int]) -> None:
        self.free += self.gpus[jobs].sum(axis=0)
        self.gpus[jobs] = 0

    def _clear(self, job: int) -> None:
        self.owner[self.owner == job] = -1
        self._take_away([job])


def place_arranged(
    arranged: IntArray, running: IntArray, capacity: IntArray, *, pinned: BoolArray | None = None
) -> PlacedSizes:
    """The sizes of an arrangement on real nodes: as `place_sizes` puts them, or else as they were arranged.

    `arranged` (J, V): GPUs on V nodes without names, as an integer program found them; `running` (J, N) the placement
    now; `capacity` (N,) the GPUs of each node, of which V have to be large enough. Where the placer cannot place all
    jobs, nodes are matched to the arranged ones again, which may move also `pinned` jobs: see `PlacedSizes.moved`.
    """
    sizes = arranged.sum(axis=1)
    found = place_sizes(sizes, running, capacity, spread=(arranged > 0).sum(axis=1) > 1, pinned=pinned)
    return found if found.unplaced.size == 0 else rebuild(arranged, running, capacity)


def rebuild(arranged: IntArray, running: IntArray, capacity: IntArray) -> PlacedSizes:
    """Match the nodes of `arranged` (J, V) to real ones so that most of the `running` (J, N) jobs keep their GPUs.

    One-node jobs of equal size are exchangeable, so a place counts as kept if a job of its size runs there.
    Raises `InputError` if the arranged nodes do not fit on the real ones, `MissingExtra` without SciPy.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MissingExtra("scipy", "sim", "placing an exact allocation") from None
    jobs, nodes = running.shape
    sizes = arranged.sum(axis=1)
    busy = arranged[:, (arranged > 0).any(axis=0)]
    staying = (running.sum(axis=1) == sizes) & (sizes > 0)
    fits = capacity[:, None] >= busy.sum(axis=0)
    kept = _kept(busy, np.where(staying[:, None], running, 0))
    wide = busy.shape[1] <= nodes
    at, slot = linear_sum_assignment(np.where(fits, kept, -(jobs + 1.0) * (nodes + 1.0)), maximize=True)
    if not wide or not fits[at, slot].all():
        raise InputError(
            f"an arrangement on {busy.shape[1]} nodes with {busy.sum(axis=0).tolist()} GPUs in use does not fit "
            f"on nodes of {capacity.tolist()} GPUs"
        )
    gpus = np.zeros_like(running)
    spread = (busy > 0).sum(axis=1) > 1
    gpus[np.ix_(spread, at)] = busy[np.ix_(spread, slot)]
    one = np.where(spread[:, None], 0, busy)[:, slot]  # one-node jobs, column i on real node at[i]
    _fill_places(one, at, np.where(staying & ~spread, sizes, 0), running, gpus)
    moved = np.flatnonzero(staying & (gpus != running).any(axis=1))
    return PlacedSizes(gpus, moved, np.zeros(0, dtype=np.int64))


def _kept(busy: IntArray, running: IntArray) -> FloatArray:
    """(N, V): how many jobs could stay if real node n became arranged node v; a spread job counts in parts."""
    one, now = (busy > 0).sum(axis=1) == 1, (running > 0).sum(axis=1) == 1
    kept = np.zeros((running.shape[1], busy.shape[1]))
    for size in np.unique(busy[one]).tolist():
        if size:
            slots = (busy[one] == size).sum(axis=0)
            here = (running[now] == size).sum(axis=0)
            kept += np.minimum(here[:, None], slots)
    for job in np.flatnonzero(~one & ~now & running.any(axis=1)).tolist():
        same = (running[job][:, None] == busy[job]) & (busy[job] > 0)
        kept += same / max(int((busy[job] > 0).sum()), 1)
    return kept


def _fill_places(one: IntArray, at: IntArray, staying: IntArray, running: IntArray, gpus: IntArray) -> None:
    """Give the places of one-node jobs to jobs of that size, first to jobs that run there; fills `gpus` (J, N)."""
    sizes = one.sum(axis=1)
    for size in np.unique(sizes[sizes > 0]).tolist():
        free = {int(at[i]): int(count) for i, count in enumerate((one == size).sum(axis=0)) if count}
        waiting = []
        for job in np.flatnonzero(sizes == size).tolist():
            home = int(running[job].argmax())
            if staying[job] == size and running[job, home] == size and free.get(home, 0) > 0:
                free[home] -= 1
                gpus[job, home] = size
            else:
                waiting.append(job)
        slots = [node for node, count in free.items() for _ in range(count)]
        for job, node in zip(waiting, slots, strict=True):
            gpus[job, node] = size
