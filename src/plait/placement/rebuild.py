"""Real nodes for an arrangement on unnamed nodes, chosen so that most jobs stay where they are."""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError, MissingExtra
from plait.placement.elastic import Placed, place_sizes


def place_arranged(
    arranged: IntArray, running: IntArray, capacity: IntArray, *, pinned: BoolArray | None = None
) -> Placed:
    """The sizes of an arrangement on real nodes: as `place_sizes` puts them, or else as they were arranged.

    `arranged` (J, V): GPUs on V nodes without names, as an integer program found them; `running` (J, N) the placement
    now; `capacity` (N,) the GPUs of each node, of which V have to be large enough. Where the placer cannot place all
    jobs, nodes are matched to the arranged ones again, which may move also `pinned` jobs: see `Placed.moved`.
    """
    sizes = arranged.sum(axis=1)
    found = place_sizes(sizes, running, capacity, spread=(arranged > 0).sum(axis=1) > 1, pinned=pinned)
    return found if found.unplaced.size == 0 else rebuild(arranged, running, capacity)


def rebuild(arranged: IntArray, running: IntArray, capacity: IntArray) -> Placed:
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
    return Placed(gpus, moved, np.zeros(0, dtype=np.int64))


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
