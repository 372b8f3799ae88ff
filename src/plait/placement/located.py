"""The walk of `kernels.admit`, in which a chooser picks the nodes of each gang that starts. Start at `located_walk`.

Who runs, who stays and who has to move is decided as for any free GPUs (`COUNTING`). Then the gangs that get other GPUs
than they have choose theirs, one after the other in the order of the walk, and the walk is repeated with each choice
kept, so that later ones see the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.placement import kernels
from plait.placement.pinned import elsewhere


@dataclass(frozen=True, eq=False)
class ChoosingGang:
    """A gang that chooses its nodes.

    row     of `view.jobs`; of GPU sharers, the first's
    gpus    how many it needs, all of one kind
    room    (nodes,) of these that each node can take: free GPUs of the kind, with cores and memory for them
    free    (nodes,) free GPUs of each node, whatever they can be used for
    placed  the nodes of each row that has its GPUs by now
    """

    row: int
    gpus: int
    room: IntArray
    free: IntArray
    placed: Mapping[int, tuple[int, ...]]


#: From a gang to GPUs of each node, shape (nodes,): as many as it needs, no more than there is room.
Chooser = Callable[[ChoosingGang], IntArray]


class WalkAnswer(NamedTuple):
    """Result of `kernels.admit`."""

    status: IntArray
    positions: IntArray
    gpus: IntArray
    first_gpu: IntArray


#: `kernels.admit` with all but its groups: (running_group, now_gpus, now_first) -> `WalkAnswer`.
Admit = Callable[[IntArray, IntArray, IntArray], WalkAnswer]


@dataclass(frozen=True, eq=False)
class WalkOrder:
    """The jobs of a walk: rows in their order, then `size` and `per_gpu` and `strict`, as `kernels.admit` has them."""

    rows: IntArray
    size: IntArray
    strict: BoolArray
    per_gpu: FloatArray

    def admitted(self, running_group: IntArray, gpus: IntArray, first_gpu: IntArray, cluster: Cluster) -> set[int]:
        """Rows that are placed before all others: the ones that fit by their number of GPUs."""
        budget = cluster.gpus
        if not cluster.all_up:
            *_, budget = kernels.idle(
                self.rows, running_group, gpus, first_gpu, cluster.node_gpus, cluster.first_gpu, cluster.gpu_node,
                cluster.node_up,
            )  # fmt: skip
        n = len(self.rows)
        inside, (lo, hi) = np.zeros(n, dtype=np.bool_), np.zeros((2, n), dtype=np.int64)
        kernels.count(self.rows, n, self.size, running_group, self.strict, first_gpu, budget, inside, lo, hi)
        return set(self.rows[inside].tolist())


def located_walk(
    admit: Admit, order: WalkOrder, running_group: IntArray, gpus: IntArray, first_gpu: IntArray, cluster: Cluster,
    choose: Chooser,
) -> WalkAnswer:  # fmt: skip
    """Walk an order and let each gang that does not stay choose its nodes.

    Row r holds `gpus[first_gpu[g]:first_gpu[g + 1]]` for g = `running_group[r]`, and nothing for -1.
    """
    group, done, first_tier = running_group.copy(), set[int](), None
    while True:
        found = admit(group, gpus, first_gpu)
        rows = order.rows[found.positions]
        moves = _moves(rows, found, group, gpus, first_gpu)
        waiting = [k for k in np.flatnonzero(moves).tolist() if rows[k] not in done]
        if not waiting:
            return found
        if first_tier is None:
            first_tier = order.admitted(running_group, gpus, first_gpu, cluster)
        k = min(waiting, key=lambda k: (int(rows[k]) not in first_tier, k))
        settled = ~moves | np.isin(rows, list(done))
        chosen = _chosen(order, found, rows, settled, k, cluster, choose)
        row = int(rows[k])
        done.add(row)
        gpus, first_gpu = np.concatenate([gpus, chosen]), np.append(first_gpu, first_gpu[-1] + len(chosen))
        group[row] = len(first_gpu) - 2
        # Rows whose GPUs now overlap with GPUs of `row` hold none: the walk takes groups to share all GPUs or none
        mine = np.zeros(cluster.gpus, dtype=np.bool_)
        mine[chosen] = True
        hit = np.logical_or.reduceat(mine[gpus], first_gpu[:-1])
        others = (group >= 0) & hit[group]
        others[row] = False
        group[others] = -1


def _moves(rows: IntArray, found: WalkAnswer, group: IntArray, gpus: IntArray, first_gpu: IntArray) -> BoolArray:
    """Whether each placed row gets other GPUs than it has."""
    group_of = np.full(len(group), -1, dtype=np.int64)
    group_of[rows] = np.arange(len(rows))
    moves: BoolArray = group[rows] < 0
    held = rows[~moves]
    away = elsewhere(held, group_of, found.gpus, found.first_gpu, group, gpus, first_gpu)
    moves[group_of[away]] = True
    return moves


def _chosen(
    order: WalkOrder, found: WalkAnswer, rows: IntArray, settled: BoolArray, k: int, cluster: Cluster, choose: Chooser
) -> IntArray:
    """The GPUs that the gang at position `k` of the placed ones chooses; `settled` ones keep theirs."""
    first = found.first_gpu
    lengths = np.diff(first)
    there = np.repeat(settled, lengths)
    open_gpu = cluster.node_up[cluster.gpu_node]
    open_gpu[found.gpus[there]] = False
    free = np.bincount(cluster.gpu_node[open_gpu], minlength=len(cluster.nodes))
    row = int(rows[k])
    room = np.where(cluster.node_kind == cluster.node_kind[cluster.gpu_node[found.gpus[first[k]]]], free, 0)
    if order.per_gpu.any():
        demand = order.per_gpu[np.minimum(np.repeat(rows, lengths)[there], len(order.per_gpu) - 1)]
        spare = cluster.node_spare.copy()
        np.subtract.at(spare, cluster.gpu_node[found.gpus[there]], demand)
        mine = order.per_gpu[min(row, len(order.per_gpu) - 1)]
        with np.errstate(divide="ignore", invalid="ignore"):
            fits = np.where(mine > 0, np.floor((spare + 1e-6) / mine), np.inf).min(axis=1)
        room = np.minimum(room, np.maximum(fits, 0)).astype(np.int64)
    need = int(order.size[row])
    if int(room.sum()) < need:  # on GPUs of a lost node that another job leaves: nowhere else
        return found.gpus[first[k] : first[k + 1]]
    placed = {
        int(rows[i]): tuple(np.unique(cluster.gpu_node[found.gpus[first[i] : first[i + 1]]]).tolist())
        for i in np.flatnonzero(settled).tolist()
    }
    gang = ChoosingGang(row, need, room, free, placed)
    take = choose(gang)
    assert int(take.sum()) == gang.gpus
    assert (take <= room).all()
    nodes = np.flatnonzero(take).tolist()
    return np.concatenate(
        [
            (cluster.first_gpu[n] + np.flatnonzero(open_gpu[cluster.first_gpu[n] : cluster.first_gpu[n + 1]]))[
                : take[n]
            ]
            for n in nodes
        ]
    )
