"""Parameter servers of a job on its nodes, and what they put on links (Tiresias, section 3.3).

A job of W workers and k servers divides its parameters among the servers. In an iteration each worker sends to each
server that server's part of the gradient, and receives as much. Servers have no GPUs and run on nodes of the workers,
so what stays on a node uses no link:

    out of node n = w_n (1 - L_n) + L_n (W - w_n)        in sizes of all gradients; as much comes in

with w_n workers there, and L_n the part of the parameters that its servers have. `LevelLinks` chooses the nodes of
workers by an integer program, as the paper does; `by_rule` then places servers one after the other, which is at most
some per cent from the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.highs import Program, need_highs, solve
from plait.core.policy import View
from plait.placement.located import Chooser, ChoosingGang
from plait.placement.netpack import on_one_server

#: Branchings at most: a job and its nodes take a few. Seconds would not be repeatable.
MOST_BRANCHINGS = 2000


def server_parts(share: float, servers: int) -> FloatArray:
    """The part of all parameters on each server (servers,), the largest first.

    A tensor is not divided, so the largest one, with its `share` of all bytes, fills a server if it is more than an
    equal part; the rest is divided equally. NaN: equal parts.

    >>> server_parts(0.7, 4).round(2).tolist(), server_parts(0.1, 4).tolist()
    ([0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25])
    """
    parts = np.full(servers, 1.0 / servers)
    if share > parts[0] and servers > 1:  # NaN compares false
        parts[0], parts[1:] = share, (1.0 - share) / (servers - 1)
    return parts


def link_loads(workers: IntArray, parts: FloatArray, on: IntArray) -> FloatArray:
    """What an iteration puts on the link of each node, each way, in sizes of all gradients; shape (nodes,).

    `workers` (nodes,) of the job, and server i, with `parts[i]` of the parameters, on node `on[i]`.

    >>> link_loads(np.array([2, 2]), np.array([0.5, 0.5]), np.array([0, 1])).tolist()
    [2.0, 2.0]
    """
    here = np.bincount(on, parts, minlength=len(workers))
    loads: FloatArray = workers * (1.0 - here) + here * (workers.sum() - workers)
    return loads


def by_rule(workers: IntArray, parts: FloatArray) -> IntArray:
    """The node of each server: the largest first, each where the busiest link is then the least busy."""
    on = np.zeros(len(parts), dtype=np.int64)
    here = np.zeros(len(workers))
    for i in np.argsort(-parts, kind="stable").tolist():
        trial = here + np.diag(np.full(len(workers), parts[i]))
        loads = workers * (1.0 - trial) + trial * (workers.sum() - workers)
        loads = np.where(workers > 0, loads.max(axis=1), np.inf)
        on[i] = int(np.lexsort((here, loads.round(12)))[0])
        here[on[i]] += parts[i]
    return on


def starting_ranks(nodes_of_ranks: Sequence[str], servers: int) -> list[int]:
    """Of each server the rank that starts it, next to itself: the first one on the server's node, for equal parts.

    >>> starting_ranks(["a", "a", "b", "b"], 3)
    [0, 2, 0]
    """
    counts = Counter(nodes_of_ranks)
    on = by_rule(np.array(list(counts.values())), server_parts(np.nan, servers)).tolist()
    return [list(nodes_of_ranks).index(list(counts)[node]) for node in on]


@dataclass(frozen=True)
class LevelLinks:
    """Nodes of gangs by an integer program that keeps the busiest link the least busy, then uses the fewest nodes.

    A worker brings its part of the servers, as one server a worker does: with w of W workers a node's link carries
    2 w (1 - w / W) sizes of the gradient. A job that one node can hold goes where it leaves the fewest GPUs. Other jobs
    on several nodes load each of their links alike. Needs HiGHS.
    """

    def __call__(self, view: View) -> Chooser:
        """A function that picks the nodes of a gang; raises `MissingExtra` without HiGHS."""
        need_highs("placement=level-links")  # of the placement alone, not of each policy that has the option
        jobs = view.jobs
        bytes_s = np.nan_to_num(jobs.gradient_bytes, nan=1e8) / np.nan_to_num(jobs.iteration_s, nan=1.0)

        def choose(gang: ChoosingGang) -> IntArray:
            alone = on_one_server(gang)
            if alone is not None:
                return alone
            base = np.zeros(len(gang.room))
            for row, nodes in gang.placed.items():
                if len(nodes) > 1:
                    each = jobs.gpus[row] / len(nodes)
                    base[list(nodes)] += bytes_s[row] * 2 * each * (1 - 1 / len(nodes))
            return level_workers(gang.room, gang.gpus, base, float(bytes_s[gang.row]))

        return choose


def level_workers(room: IntArray, need: int, base: FloatArray, bytes_s: float) -> IntArray:
    """Workers on each node (nodes,), `need` in all and at most `room`: the busiest link is the least busy.

    `base` (nodes,) is what others put on each link, and `bytes_s` the gradients of a worker, bytes a second.
    """
    nodes = np.flatnonzero(room)
    node = np.repeat(nodes, np.minimum(room[nodes], need))
    count = np.concatenate([np.arange(1, min(int(room[n]), need) + 1) for n in nodes.tolist()])
    unit = max(float(base.max()), bytes_s * need, 1.0)
    load = (base[node] + 2.0 * bytes_s * count * (1.0 - count / need)) / unit
    columns = len(node)  # column: so many workers on this node; the last is the busiest link
    program = Program(np.append(np.full(columns, 1e-4 / len(nodes)), 1.0), np.append(np.ones(columns), np.inf))
    program.put(program.add(1, float(need), float(need)), np.arange(columns), count)
    for n in nodes.tolist():
        mine = np.flatnonzero(node == n)
        program.put(program.add(1, -np.inf, 1.0), mine, 1.0)
        row = program.add(1, -np.inf, 0.0)
        program.put(row, mine, load[mine])
        program.put(row, np.array([columns]), -1.0)
    whole = np.append(np.ones(columns, dtype=bool), False)
    found = solve(program, most_nodes=MOST_BRANCHINGS, whole=whole)
    assert found is not None  # the gang fits, as the walk has found
    take = np.zeros(len(room), dtype=np.int64)
    chosen = np.flatnonzero(found.values[:-1])
    take[node[chosen]] = count[chosen]
    return take
