"""The matching of Muri's released simulator, tie by tie.

Eight model profiles leave thousands of equally good groupings, and which one is taken shows in the results. So here
is the artifact's own way through: the dense primal-dual weighted blossom algorithm in doubles, without tolerance.
For a matching as such use `plait.grouping`, which is faster.

Vertices are 1..n, blossoms have ids above n, 0 is none. A *surface* is an outermost blossom or a free-standing
vertex. State of one matching, in few arrays so that it compiles quickly:
  weight[u, v]      of two vertices; 0 is no edge
  dual[x]           y of a vertex or a blossom
  gap[x]            slack of surface x to its candidate, with the duals of now
  edge[:, x, y]     the two vertices, in x and in y, of the edge that stands for (x, y)
  node[ROW, x]      see the names below
  cycle[b, i]       members of blossom b, its base first
  inside[b, v]      the member of blossom b that holds vertex v, 0 if none
  queue[i]          outer vertices to scan; counts holds where it starts and ends
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel, part

# Rows of `node`: the vertex matched with, the outer vertex whose edge here has least slack, the surface it lies in,
# the vertex it was reached from, the label, the last search for an ancestor that passed, the length of its cycle.
MATE, CANDIDATE, SURFACE, PARENT, LABEL, SEEN, SIZE = range(7)
UNLABELLED, OUTER, INNER = -1, 0, 1  # labels: none, S, T

# Entries of `counts`: vertices, highest id in use, first and end of the queue, searches for an ancestor so far.
VERTICES, IDS, HEAD, TAIL, SEARCHES = range(5)

RELATIVE = 1e-5  # the one tolerance: an outer dual this close to the step ends the search


@part
def slack_of(x: int, y: int, weight: FloatArray, dual: FloatArray, edge: IntArray) -> float:
    """Slack of the edge that represents (`x`, `y`), with the current duals."""
    u, v = edge[0, x, y], edge[1, x, y]
    return float(dual[u] + dual[v] - weight[u, v] * 2.0)


@part
def find_candidate(
    x: int, weight: FloatArray, dual: FloatArray, gap: FloatArray, edge: IntArray, node: IntArray, counts: IntArray
) -> None:
    """Choose the candidate of surface `x` again: the outer vertex with least slack, vertices ascending."""
    node[CANDIDATE, x] = 0
    for u in range(1, counts[VERTICES] + 1):
        surface, v = node[SURFACE, u], edge[1, u, x]
        if surface != x and node[LABEL, surface] == OUTER and weight[u, v] > 0.0:
            slack = dual[u] + dual[v] - weight[u, v] * 2.0
            if node[CANDIDATE, x] == 0 or slack < gap[x]:
                node[CANDIDATE, x], gap[x] = u, slack


@part
def enqueue(x: int, node: IntArray, cycle: IntArray, queue: IntArray, counts: IntArray) -> None:
    """Queue the vertices of `x`, blossoms opened breadth first in cycle order."""
    open_ids = np.empty(node.shape[1], dtype=np.int64)
    open_ids[0], done, end = x, 0, 1
    while done < end:
        y = open_ids[done]
        done += 1
        if y <= counts[VERTICES]:
            queue[counts[TAIL]] = y
            counts[TAIL] += 1
        else:
            for i in range(node[SIZE, y]):
                open_ids[end] = cycle[y, i]
                end += 1


@part
def put_under(x: int, surface: int, node: IntArray, cycle: IntArray, counts: IntArray) -> None:
    """Everything in x lies in `surface` from now on."""
    open_ids = np.empty(node.shape[1], dtype=np.int64)
    open_ids[0], end = x, 1
    while end > 0:
        end -= 1
        y = open_ids[end]
        node[SURFACE, y] = surface
        if y > counts[VERTICES]:
            for i in range(node[SIZE, y]):
                open_ids[end] = cycle[y, i]
                end += 1


@part
def turn_round(b: int, size: int, cycle: IntArray) -> None:
    """Reverse the members of blossom `b` except its base, first."""
    for i in range(1, (size + 1) // 2):
        cycle[b, i], cycle[b, size - i] = cycle[b, size - i], cycle[b, i]


@part
def even_way(b: int, member: int, node: IntArray, cycle: IntArray) -> int:
    """Position of `member` in blossom `b` by an even path from the base; reverses the cycle if necessary."""
    size, place = node[SIZE, b], 0
    while cycle[b, place] != member:
        place += 1
    if place % 2 == 0:
        return place
    turn_round(b, size, cycle)
    return int(size - place)


@part
def match_along(
    x: int, y: int, edge: IntArray, node: IntArray, cycle: IntArray, inside: IntArray, counts: IntArray
) -> None:
    """Match `x` by its edge to `y`; a blossom rematches its members and gets the member with that edge as base."""
    todo = np.empty((2, node.shape[1] + 1), dtype=np.int64)
    todo[0, 0], todo[1, 0], end = x, y, 1
    while end > 0:
        end -= 1
        b, other = todo[0, end], todo[1, end]
        node[MATE, b] = edge[1, b, other]
        if b <= counts[VERTICES]:
            continue
        entry = inside[b, edge[0, b, other]]
        place = even_way(b, entry, node, cycle)
        for i in range(place):
            todo[0, end], todo[1, end] = cycle[b, i], cycle[b, i ^ 1]
            end += 1
        todo[0, end], todo[1, end] = entry, other
        end += 1
        turned = cycle[b, : node[SIZE, b]].copy()
        for i in range(len(turned)):
            cycle[b, i] = turned[(i + place) % len(turned)]


@part
def augment(
    x: int, y: int, edge: IntArray, node: IntArray, cycle: IntArray, inside: IntArray, counts: IntArray
) -> None:
    """Match surface `x` with `y`, and rematch along the path from `x` to the root of its tree."""
    while True:
        left = node[SURFACE, node[MATE, x]]
        match_along(x, y, edge, node, cycle, inside, counts)
        if left == 0:
            return
        before = node[SURFACE, node[PARENT, left]]
        match_along(left, before, edge, node, cycle, inside, counts)
        x, y = before, left


@part
def common_ancestor(x: int, y: int, node: IntArray, counts: IntArray) -> int:
    """First outer surface on both paths from `x` and `y` to the roots, alternating, x first; 0 if the roots differ."""
    counts[SEARCHES] += 1
    while x != 0 or y != 0:
        if x != 0:
            if node[SEEN, x] == counts[SEARCHES]:
                return x
            node[SEEN, x] = counts[SEARCHES]
            x = node[SURFACE, node[MATE, x]]
            if x != 0:
                x = node[SURFACE, node[PARENT, x]]
        x, y = y, x
    return 0


@part
def represent(
    b: int, weight: FloatArray, dual: FloatArray, edge: IntArray, node: IntArray, cycle: IntArray, inside: IntArray,
    counts: IntArray,
) -> None:  # fmt: skip
    """Choose the edge that represents (`b`, x) for every x, and note which member holds which vertex."""
    for v in range(1, counts[VERTICES] + 1):
        inside[b, v] = 0
    for i in range(node[SIZE, b]):
        member = cycle[b, i]
        for x in range(1, counts[IDS] + 1):
            if (
                i == 0
                or weight[edge[0, b, x], edge[1, b, x]] == 0.0
                or slack_of(member, x, weight, dual, edge) < slack_of(b, x, weight, dual, edge)
            ):
                edge[0, b, x], edge[1, b, x] = edge[0, member, x], edge[1, member, x]
                edge[0, x, b], edge[1, x, b] = edge[0, x, member], edge[1, x, member]
        for v in range(1, counts[VERTICES] + 1):
            if inside[member, v] != 0:
                inside[b, v] = member


@part
def shrink(
    x: int, base: int, y: int, weight: FloatArray, dual: FloatArray, gap: FloatArray, edge: IntArray, node: IntArray,
    cycle: IntArray, inside: IntArray, queue: IntArray, counts: IntArray,
) -> None:  # fmt: skip
    """Make a blossom of the paths from `x` and `y` to their ancestor `base`, and queue vertices that become outer."""
    b = counts[VERTICES] + 1
    while b <= counts[IDS] and node[SURFACE, b] != 0:
        b += 1
    counts[IDS] = max(counts[IDS], b)
    dual[b] = 0.0
    node[LABEL, b], node[MATE, b], node[SEEN, b] = OUTER, node[MATE, base], 0
    cycle[b, 0], size = base, 1
    for side in range(2):
        at = x if side == 0 else y
        while at != base:
            inner = node[SURFACE, node[MATE, at]]
            cycle[b, size], cycle[b, size + 1] = at, inner
            size += 2
            enqueue(inner, node, cycle, queue, counts)
            at = node[SURFACE, node[PARENT, inner]]
        if side == 0:
            turn_round(b, size, cycle)
    node[SIZE, b] = size
    put_under(b, b, node, cycle, counts)
    represent(b, weight, dual, edge, node, cycle, inside, counts)
    find_candidate(b, weight, dual, gap, edge, node, counts)


@part
def expand(
    b: int, weight: FloatArray, dual: FloatArray, gap: FloatArray, edge: IntArray, node: IntArray,
    cycle: IntArray, inside: IntArray, queue: IntArray, counts: IntArray,
) -> None:  # fmt: skip
    """Open the inner blossom `b`: the even path from base to entry stays in the tree, the rest leaves it."""
    size = node[SIZE, b]
    for i in range(size):
        put_under(cycle[b, i], cycle[b, i], node, cycle, counts)
    parent = node[PARENT, b]
    entry = inside[b, edge[0, b, parent]]
    place = even_way(b, entry, node, cycle)
    for i in range(0, place, 2):
        inner, outer = cycle[b, i], cycle[b, i + 1]
        node[PARENT, inner] = edge[0, outer, inner]
        node[LABEL, inner], node[LABEL, outer] = INNER, OUTER
        node[CANDIDATE, inner] = 0
        find_candidate(outer, weight, dual, gap, edge, node, counts)
        enqueue(outer, node, cycle, queue, counts)
    node[LABEL, entry], node[PARENT, entry] = INNER, parent
    for i in range(place + 1, size):
        node[LABEL, cycle[b, i]] = UNLABELLED
        find_candidate(cycle[b, i], weight, dual, gap, edge, node, counts)
    node[SURFACE, b] = 0


@part
def visit(
    u: int, v: int, weight: FloatArray, dual: FloatArray, gap: FloatArray, edge: IntArray, node: IntArray,
    cycle: IntArray, inside: IntArray, queue: IntArray, counts: IntArray,
) -> bool:  # fmt: skip
    """Use the tight edge from the outer vertex `u` to vertex `v`; True if the matching has grown."""
    x, y = node[SURFACE, u], node[SURFACE, v]
    if node[LABEL, y] == UNLABELLED:
        node[PARENT, y], node[LABEL, y] = u, INNER
        outer = node[SURFACE, node[MATE, y]]
        node[CANDIDATE, y], node[CANDIDATE, outer] = 0, 0
        node[LABEL, outer] = OUTER
        enqueue(outer, node, cycle, queue, counts)
    elif node[LABEL, y] == OUTER:
        base = common_ancestor(x, y, node, counts)
        if base == 0:
            augment(x, y, edge, node, cycle, inside, counts)
            augment(y, x, edge, node, cycle, inside, counts)
            return True
        shrink(x, base, y, weight, dual, gap, edge, node, cycle, inside, queue, counts)
    return False


@part
def scan(
    weight: FloatArray, dual: FloatArray, gap: FloatArray, edge: IntArray, node: IntArray,
    cycle: IntArray, inside: IntArray, queue: IntArray, counts: IntArray,
) -> bool:  # fmt: skip
    """Process `queue`; True if the matching has grown. The arrays are the state of the search, changed in place."""
    surface_of, candidate = node[SURFACE], node[CANDIDATE]
    while counts[HEAD] < counts[TAIL]:
        u = queue[counts[HEAD]]
        counts[HEAD] += 1
        if node[LABEL, surface_of[u]] == INNER:
            continue
        row, ends = weight[u], edge[1, u]
        for v in range(1, counts[VERTICES] + 1):
            x = surface_of[v]
            if row[v] > 0.0 and surface_of[u] != x:
                if dual[u] + dual[v] - row[v] * 2.0 <= 0.0:
                    if visit(u, v, weight, dual, gap, edge, node, cycle, inside, queue, counts):
                        return True
                else:
                    end = ends[x]
                    slack = dual[u] + dual[end] - row[end] * 2.0
                    if candidate[x] == 0 or slack < gap[x]:
                        candidate[x], gap[x] = u, slack
    return False


@part
def step_of(dual: FloatArray, gap: FloatArray, node: IntArray, counts: IntArray) -> float:
    """The largest step of `dual` before an edge becomes tight (`gap`) or an inner blossom opens."""
    step = np.inf
    for b in range(counts[VERTICES] + 1, counts[IDS] + 1):
        if node[SURFACE, b] == b and node[LABEL, b] == INNER:
            step = min(step, dual[b] / 2.0)
    for x in range(1, counts[IDS] + 1):
        if node[SURFACE, x] == x and node[CANDIDATE, x] != 0:
            if node[LABEL, x] == UNLABELLED:
                step = min(step, gap[x])
            elif node[LABEL, x] == OUTER:
                step = min(step, gap[x] / 2.0)
    return step


@part
def move_duals(
    step: float, weight: FloatArray, dual: FloatArray, gap: FloatArray, edge: IntArray, node: IntArray, counts: IntArray
) -> bool:
    """Move `dual` by `step`; False if an outer vertex has no dual left for it, and then the matching is final."""
    for u in range(1, counts[VERTICES] + 1):
        label = node[LABEL, node[SURFACE, u]]
        if label == OUTER:
            if dual[u] <= step or abs(dual[u] - step) <= RELATIVE * max(abs(dual[u]), abs(step)):
                return False
            dual[u] -= step
        elif label == INNER:
            dual[u] += step
    for b in range(counts[VERTICES] + 1, counts[IDS] + 1):
        if node[SURFACE, b] == b:
            if node[LABEL, b] == OUTER:
                dual[b] += step * 2.0
            elif node[LABEL, b] == INNER:
                dual[b] -= step * 2.0
    for x in range(1, counts[IDS] + 1):
        if node[SURFACE, x] == x and node[CANDIDATE, x] != 0:
            gap[x] = slack_of(node[CANDIDATE, x], x, weight, dual, edge)
    return True


@part
def phase(
    weight: FloatArray, dual: FloatArray, gap: FloatArray, edge: IntArray, node: IntArray,
    cycle: IntArray, inside: IntArray, queue: IntArray, counts: IntArray,
) -> bool:  # fmt: skip
    """Grow trees from all free surfaces until two of them meet; False if none do. `queue` is scratch space."""
    counts[HEAD], counts[TAIL] = 0, 0
    for x in range(1, counts[IDS] + 1):
        node[LABEL, x], node[CANDIDATE, x] = UNLABELLED, 0
    for x in range(1, counts[IDS] + 1):
        if node[SURFACE, x] == x and node[MATE, x] == 0:
            node[PARENT, x], node[LABEL, x] = 0, OUTER
            enqueue(x, node, cycle, queue, counts)
    if counts[TAIL] == 0:
        return False
    while True:
        if scan(weight, dual, gap, edge, node, cycle, inside, queue, counts):
            return True
        step = step_of(dual, gap, node, counts)
        if not move_duals(step, weight, dual, gap, edge, node, counts):
            return False
        # The range is fixed before the first visit: a blossom that gets a new id here waits for the next pass.
        for x in range(1, counts[IDS] + 1):
            u = node[CANDIDATE, x]
            if node[SURFACE, x] != x or u == 0 or node[SURFACE, u] == x or gap[x] > 0.0:
                continue
            if visit(edge[0, u, x], edge[1, u, x], weight, dual, gap, edge, node, cycle, inside, queue, counts):
                return True
        for b in range(counts[VERTICES] + 1, counts[IDS] + 1):
            if node[SURFACE, b] == b and node[LABEL, b] == INNER and dual[b] <= 0.0:
                expand(b, weight, dual, gap, edge, node, cycle, inside, queue, counts)


@kernel
def tied_matching(weights: FloatArray) -> IntArray:
    """Maximum-weight matching with the tie rules of Muri's released simulator.

    Args:
        weights: n x n doubles, C order. An edge has its directed value, so that `weights[u, v]` and
            `weights[v, u]` may differ in the last bit. Zero, negative and diagonal entries are no edges.

    Returns:
        the mate of each vertex, shape n, from 0; -1 where there is none.

    Source: the artifact of Muri (SIGCOMM 2022), commit 4e69a78.

    >>> import numpy as np
    >>> tied_matching(np.array([[0, 1, 2], [1, 0, 4], [2, 4, 0.0]])).tolist()
    [-1, 2, 1]
    """
    n = len(weights)
    ids = n + n // 2 + 2  # every blossom in being has three members or more of its own
    weight = np.zeros((n + 1, n + 1))
    edge = np.zeros((2, ids, ids), dtype=np.int64)
    node = np.zeros((7, ids), dtype=np.int64)
    cycle = np.zeros((ids, n + 1), dtype=np.int64)
    inside = np.zeros((ids, n + 1), dtype=np.int64)
    queue = np.zeros(n + 1, dtype=np.int64)
    counts = np.zeros(5, dtype=np.int64)
    counts[VERTICES], counts[IDS] = n, n
    most = 0.0
    for u in range(1, n + 1):
        node[SURFACE, u] = u
        inside[u, u] = u
        for v in range(1, n + 1):
            edge[0, u, v], edge[1, u, v] = u, v
            if u != v and weights[u - 1, v - 1] > 0.0:
                weight[u, v] = weights[u - 1, v - 1]
                most = max(most, weight[u, v])
    dual, gap = np.zeros(ids), np.zeros(ids)
    for u in range(1, n + 1):
        dual[u] = most
    while phase(weight, dual, gap, edge, node, cycle, inside, queue, counts):
        pass
    mates = np.zeros(n, dtype=np.int64)
    for u in range(1, n + 1):
        v = node[MATE, u]
        mates[u - 1] = v - 1 if node[MATE, v] == u else -1  # a one-sided mate counts as none
    return mates
