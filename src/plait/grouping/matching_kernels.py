"""The kernels of exact matching: dense assignment, then blossom phases from the few vertices it leaves free.

All work on integers. `cost` is -W for even symmetric weights W, with a prohibitive diagonal; n is even and every pair
is an edge, so a best *perfect* matching is sought. `matching.py` prepares this and explains why it is exact.

State of the blossom part: one array `state[field, node]`. Nodes 0..n-1 are vertices, n..n+n/2-1 are blossoms. A
*surface* is a vertex or blossom that is inside no other. Duals change with time (a phase starts at 0) but are not
touched at every step: at time `now` a vertex has y = Y + SIGN * now, a surface blossom z = Y - 2 * SIGN * now.

The compiler's time grows with functions times arguments, so there are few of both; with how deep they call each other;
and with NumPy functions and tuples, so there are hardly any. A part that a kernel calls is compiled again if other
parts call it too. All in one file on purpose: the compiler's cache notices changes to the file of a function, not of
its callees.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import IntArray
from plait.core.jit import long_kernel, part

NEVER = 1 << 62

# fields of a node
Y = 0  # dual: of a vertex y, of a blossom z >= 0 (see above)
SIGN = 1  # -1: its dual falls (S, outer), +1: it rises (T, inner), 0: not in a tree; of a vertex, that of its surface
MATE = 2  # of a vertex: its mate, -1 if free
TOP = 3  # of a vertex: its surface; of a blossom: itself if a surface, -1 if not in use, else -2
WHEN = 4  # of a surface: time of its next event: an edge to an S vertex gets tight, or z of a T blossom reaches 0
FROM, INTO = 5, 6  # that edge: S vertex outside, vertex inside
OUTER, INNER = 7, 8  # of a T surface: the tree edge to its parent: S vertex outside, vertex inside
BASE = 9  # of a surface or child: its vertex that is matched outside it, or free
FIRST = 10  # of a blossom: its child that holds the base
PARENT = 11  # the blossom it is a child of, -1 for a surface
NEXT, HERE, THERE = 12, 13, 14  # of a child: next child around the odd cycle, and the edge to it
MARK = 15  # scratch
JOB, AIM = 16, 17  # scratch of `rotate`: blossoms still to do and their new bases
LEAST = 18  # scratch of `shrink`
NEAREST = 19  # this row and later ones, one a blossom: its vertex that is nearest to each vertex


@part
def filled(n: int, value: int) -> IntArray:
    """A new array; `np.full` takes the compiler three times as long."""
    array = np.empty(n, dtype=np.int64)
    for i in range(n):
        array[i] = value
    return array


@long_kernel
def assign(cost: IntArray, column_of: IntArray, v: IntArray) -> None:
    """Cheapest permutation without fixed points, into `column_of` each row (given as -1), and `v`, dual of each column.

    Jonker and Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment problems",
    Computing 38 (1987): column reduction, reduction transfer, augmenting row reduction, shortest augmenting paths. With
    other `v` than 0 at first, duals that are nearly right, the first two are left out.
    """
    n = len(cost)
    row_of, counts, free = filled(n, -1), filled(n, 0), filled(n, 0)
    cold = True
    for j in range(n):
        cold = cold and v[j] == 0
    for j in range(n - 1, -1, -1):  # rows are columns: cost is symmetric
        if not cold:
            break
        i = 0
        for k in range(n):
            if cost[j, k] < cost[j, i]:
                i = k
        v[j] = cost[j, i]
        counts[i] += 1
        if column_of[i] < 0:
            column_of[i], row_of[j] = j, i
    left = 0
    for i in range(n):
        if counts[i] == 0:
            free[left] = i
            left += 1
        elif counts[i] == 1:
            least = NEVER
            for j in range(n):
                if j != column_of[i] and cost[i, j] - v[j] < least:
                    least = cost[i, j] - v[j]
            v[column_of[i]] -= least
    for _ in range(2):
        left = reduce_rows(cost, v, column_of, row_of, free, left)
    kind = kinds(cost)
    for k in range(left):
        augment(cost, kind, v, column_of, row_of, free[k])


@part
def kinds(cost: IntArray) -> IntArray:
    """For each row the first row equal to it except in the columns of the two, where a bounded search finds it."""
    n = len(cost)
    kind, first = filled(n, 0), filled(n, 0)
    count, budget = 0, 8 * n * n  # rows that begin alike and are not equal must not cost n^3
    for i in range(n):
        kind[i] = i
        for k in range(count if budget > 0 else 0):
            r = first[k]
            j = 0
            while j < n and (cost[i, j] == cost[r, j] or j in (i, r)):
                j += 1
            budget -= j
            if j == n:
                kind[i] = r
                break
        if kind[i] == i:
            first[count] = i
            count += 1
    return kind


@part
def augment(cost: IntArray, kind: IntArray, v: IntArray, column_of: IntArray, row_of: IntArray, start: int) -> None:
    """Dijkstra from the free row `start` over columns to the nearest unassigned one; assign along the path.

    Updates `v`, `column_of` and `row_of`; `kind` comes from `kinds`.

    A row reaches no column sooner than an equal row that was as near, except the column that other row must not
    take. So with few kinds of rows few are gone through.
    """
    n = len(cost)
    distance, hold = filled(n, NEVER), filled(n, 0)  # hold is large for columns done
    before, todo = filled(n, 0), filled(n, 0)
    reach, seen = filled(n, NEVER), filled(n, 0)  # of a kind: how near, which row
    i, shift = start, 0
    nearest, last = -NEVER, NEVER
    best, count = -1, 0
    while True:
        if shift < reach[kind[i]]:
            reach[kind[i]], seen[kind[i]] = shift, i
            last = NEVER
            for j in range(n):
                through = cost[i, j] - v[j] + shift
                shorter = through < distance[j]
                before[j] = i if shorter else before[j]
                distance[j] = through if shorter else distance[j]
                near = distance[j] + hold[j]
                last = near if near < last else last
        else:
            j = seen[kind[i]]
            through = cost[i, j] - v[j] + shift
            if through < distance[j]:
                before[j], distance[j] = i, through
            last = distance[j] + hold[j]
            if count == 0:
                for j in range(n):
                    near = distance[j] + hold[j]
                    last = near if near < last else last
        if count == 0 or last == nearest:  # the next columns, all equally near
            nearest, count = last, 0
            for j in range(n):
                if distance[j] + hold[j] == nearest:
                    todo[count] = j
                    count += 1
                    if row_of[j] < 0:
                        best = j
                        break
            if best >= 0:
                break
        count -= 1
        done = todo[count]
        hold[done] = NEVER
        i = row_of[done]
        shift = nearest - (cost[i, done] - v[done])
    for j in range(n):
        if hold[j] > 0:
            v[j] += distance[j] - nearest
    while True:
        i = before[best]
        row_of[best] = i
        best, column_of[i] = column_of[i], best
        if i == start:
            break


@part
def reduce_rows(cost: IntArray, v: IntArray, column_of: IntArray, row_of: IntArray, free: IntArray, left: int) -> int:
    """One pass of augmenting row reduction over the first `left` entries of `free`; returns how many stay free."""
    n = len(cost)
    k = still = 0
    budget = 8 * n  # a pass may take turns on equal columns for long; what it leaves free is only less reduced
    while k < left:
        i = free[k]
        k += 1
        budget -= 1
        least = second = NEVER
        j1 = j2 = 0
        for j in range(n):
            h = cost[i, j] - v[j]
            if h < second:
                if h < least:
                    second, j2 = least, j1
                    least, j1 = h, j
                else:
                    second, j2 = h, j
        v[j1] -= second - least
        if second == least and row_of[j1] >= 0:
            j1 = j2
        other = row_of[j1]
        column_of[i], row_of[j1] = j1, i
        if other >= 0:
            column_of[other] = -1
            if least < second and budget > 0:
                k -= 1
                free[k] = other
            else:
                free[still] = other
                still += 1
    return still


@part
def offer(cost: IntArray, state: IntArray, now: int, u: int, x: int) -> None:
    """Offer surface `x` its edge to the S vertex `u` outside it."""
    n = len(cost)
    sign = state[SIGN, x]
    if sign > 0:
        return
    v = x if x < n else state[NEAREST + x - n, u]
    slack = state[Y, u] - now + state[Y, v] + sign * now + 2 * cost[u, v]
    if sign < 0:
        slack //= 2  # both fall; duals of S vertices have one parity, so this is whole
    if now + slack < state[WHEN, x]:
        state[WHEN, x], state[FROM, x], state[INTO, x] = now + slack, u, v


@part
def label(cost: IntArray, state: IntArray, now: int, x: int, sign: int) -> None:
    """Give surface `x` a sign; its duals continue from their values. Marks vertices that become S."""
    n = len(cost)
    for v in range(0 if x >= n else x, n if x >= n else x + 1):
        if state[TOP, v] == x:
            state[MARK, v] = sign < 0 and state[SIGN, v] >= 0
            state[Y, v] += (state[SIGN, v] - sign) * now
            state[SIGN, v] = sign
    state[WHEN, x] = NEVER
    if x >= n:
        state[Y, x] -= 2 * (state[SIGN, x] - sign) * now
        state[SIGN, x] = sign
        if sign > 0:
            state[WHEN, x] = state[Y, x] // 2


@part
def scan(cost: IntArray, state: IntArray, now: int) -> None:
    """Offer the edges of all marked vertices, which have become S, to all surfaces at time `now`."""
    n = len(cost)
    for u in range(n):
        if state[MARK, u] == 0:
            continue
        state[MARK, u] = 0
        top = state[TOP, u]
        y = state[Y, u] - now
        for v in range(n):
            if state[TOP, v] == v and state[SIGN, v] <= 0 and v != u:
                slack = y + state[Y, v] + state[SIGN, v] * now + 2 * cost[u, v]
                if state[SIGN, v] < 0:
                    slack //= 2
                if now + slack < state[WHEN, v]:
                    state[WHEN, v], state[FROM, v], state[INTO, v] = now + slack, u, v
        for x in range(n, state.shape[1]):
            if state[TOP, x] == x and x != top:
                offer(cost, state, now, u, x)


@part
def rotate(n: int, state: IntArray, x: int, v: int) -> None:
    """Make the vertex `v` the base of `x`, changing who is matched inside."""
    state[JOB, 0], state[AIM, 0] = x, v
    jobs = 1
    while jobs > 0:
        jobs -= 1
        x, v = state[JOB, jobs], state[AIM, jobs]
        if x < n:
            continue
        child = v
        while state[PARENT, child] != x:
            child = state[PARENT, child]
        old = state[FIRST, x]
        state[BASE, x], state[FIRST, x] = v, child
        state[JOB, jobs], state[AIM, jobs] = child, v
        jobs += 1
        steps, c = 0, child
        while c != old:
            c = state[NEXT, c]
            steps += 1
        # Of the two ways between the new and the old first child, one has an even number of steps.
        c, end = old, child
        if steps % 2 == 0:
            c, end = state[NEXT, child], state[NEXT, old]
        while c != end:
            other = state[NEXT, c]
            a, b = state[HERE, c], state[THERE, c]
            state[MATE, a], state[MATE, b] = b, a
            state[JOB, jobs], state[AIM, jobs] = c, a
            state[JOB, jobs + 1], state[AIM, jobs + 1] = other, b
            jobs += 2
            c = state[NEXT, other]


@part
def flip(n: int, state: IntArray, v: int, w: int) -> None:
    """Match `v` with `w`, and change the matching along the tree from `v` up to its root."""
    while True:
        x = state[TOP, v]
        old = state[MATE, state[BASE, x]]
        rotate(n, state, x, v)
        state[MATE, v] = w
        if old < 0:
            return
        x = state[TOP, old]
        w, v = state[INNER, x], state[OUTER, x]
        rotate(n, state, x, w)
        state[MATE, w] = v


@part
def up(state: IntArray, x: int) -> int:
    """The S surface above the S surface `x` in its tree, -1 at the root."""
    mate = state[MATE, state[BASE, x]]
    return -1 if mate < 0 else state[TOP, state[OUTER, state[TOP, mate]]]


@part
def meeting(state: IntArray, x: int, y: int) -> int:
    """Lowest S surface above both S surfaces `x` and `y`; -1 if they are in different trees."""
    a = x
    while a >= 0:
        state[MARK, a] = 1
        a = up(state, a)
    while y >= 0 and state[MARK, y] == 0:
        y = up(state, y)
    while x >= 0:
        state[MARK, x] = 0
        x = up(state, x)
    return y


@part
def join(state: IntArray, bottom: int, meet: int, b: int, down: bool) -> None:
    """Link the children of blossom `b` from S surface `bottom` up to `meet`, or `down` from there to it."""
    x = bottom
    state[PARENT, x] = b
    while x != meet:
        base = state[BASE, x]
        mate = state[MATE, base]
        t = state[TOP, mate]
        outer, inner = state[OUTER, t], state[INNER, t]
        above = state[TOP, outer]
        if down:
            state[NEXT, above], state[HERE, above], state[THERE, above] = t, outer, inner
            state[NEXT, t], state[HERE, t], state[THERE, t] = x, mate, base
        else:
            state[NEXT, x], state[HERE, x], state[THERE, x] = t, base, mate
            state[NEXT, t], state[HERE, t], state[THERE, t] = above, inner, outer
        state[PARENT, t] = state[PARENT, above] = b
        x = above


@part
def shrink(cost: IntArray, state: IntArray, now: int, u: int, v: int, meet: int) -> None:
    """Make a blossom of the odd cycle that the tight edge (`u`, `v`) closes in a tree below `meet`."""
    n = len(cost)
    b = n
    while state[TOP, b] != -1:
        b += 1
    state[Y, b], state[SIGN, b], state[TOP, b], state[PARENT, b] = -2 * now, -1, b, -1  # z = Y + 2 now = 0
    state[FIRST, b], state[BASE, b] = meet, state[BASE, meet]
    x, y = state[TOP, u], state[TOP, v]
    join(state, x, meet, b, True)
    join(state, y, meet, b, False)
    state[NEXT, x], state[HERE, x], state[THERE, x] = y, u, v
    # Nearest vertex of b to every vertex: all of b change alike while b lives, so this stays right.
    for k in range(n):
        state[LEAST, k] = NEVER
    c = meet
    while True:
        for k in range(n):
            w = c if c < n else state[NEAREST + c - n, k]
            reach = state[Y, w] + state[SIGN, w] * now + 2 * cost[w, k]
            if reach < state[LEAST, k]:
                state[LEAST, k], state[NEAREST + b - n, k] = reach, w
        c = state[NEXT, c]
        if c == meet:
            break
    for w in range(n):
        c = state[TOP, w]
        if state[PARENT, c] == b:
            state[TOP, w] = b
            state[MARK, w] = state[SIGN, w] > 0
            state[Y, w] += (state[SIGN, w] + 1) * now
            state[SIGN, w] = -1
            state[WHEN, c] = NEVER
            if c >= n and state[TOP, c] == c:
                state[Y, c] -= 2 * state[SIGN, c] * now
                state[SIGN, c], state[TOP, c] = 0, -2
    state[WHEN, b] = NEVER
    refresh(cost, state, now, b)
    scan(cost, state, now)


@part
def refresh(cost: IntArray, state: IntArray, now: int, x: int) -> None:
    """Offer the new surface `x` its edges to all S vertices at time `now`."""
    for u in range(len(cost)):
        if state[SIGN, u] < 0 and state[TOP, u] != x:
            offer(cost, state, now, u, x)


@part
def expand(cost: IntArray, state: IntArray, now: int, b: int) -> None:
    """Take apart the T blossom `b`, whose dual has come down to 0: its children become surfaces."""
    n = len(cost)
    old = state[FIRST, b]
    entry = state[INNER, b]
    while state[PARENT, entry] != b:
        entry = state[PARENT, entry]
    for v in range(n):
        if state[TOP, v] == b:
            c = v
            while state[PARENT, c] != b:
                c = state[PARENT, c]
            state[TOP, v] = c
            state[TOP, c] = c
            state[Y, v] += state[SIGN, v] * now
            state[SIGN, v] = 0
    c, steps, count = entry, 0, 0
    while True:
        if c == old:
            steps = count
        state[PARENT, c], state[WHEN, c] = -1, NEVER
        count += 1
        c = state[NEXT, c]
        if c == entry:
            break
    # The even way between the entry and the old first child stays in the tree: T, S, T, ..., T.
    state[OUTER, entry], state[INNER, entry] = state[OUTER, b], state[INNER, b]
    forward = steps % 2 == 0
    c = entry if forward else old
    end = old if forward else entry
    sign = 1
    while c != end:
        label(cost, state, now, c, sign)
        other = state[NEXT, c]
        if forward and sign < 0:
            state[OUTER, other], state[INNER, other] = state[HERE, c], state[THERE, c]
        elif not forward and sign > 0:
            state[OUTER, c], state[INNER, c] = state[THERE, c], state[HERE, c]
        sign = -sign
        c = other
    label(cost, state, now, end, 1)
    state[TOP, b], state[SIGN, b], state[WHEN, b] = -1, 0, NEVER
    c = state[NEXT, old] if forward else state[NEXT, entry]
    end = entry if forward else old
    while c != end:
        refresh(cost, state, now, c)
        c = state[NEXT, c]
    scan(cost, state, now)


@part
def phase(cost: IntArray, state: IntArray) -> None:
    """Grow trees from all free vertices until two of them meet; match along the way between the two roots."""
    n = len(cost)
    for x in range(state.shape[1]):
        state[WHEN, x] = NEVER
    for v in range(n):
        if state[MATE, v] < 0:
            label(cost, state, 0, state[TOP, v], -1)
    scan(cost, state, 0)
    while True:
        x = 0
        for other in range(1, state.shape[1]):
            if state[WHEN, other] < state[WHEN, x]:
                x = other
        now = state[WHEN, x]
        u, v = state[FROM, x], state[INTO, x]
        if state[SIGN, x] > 0:
            expand(cost, state, now, x)
        elif state[SIGN, x] == 0:
            state[OUTER, x], state[INNER, x] = u, v
            label(cost, state, now, x, 1)
            label(cost, state, now, state[TOP, state[MATE, state[BASE, x]]], -1)
            scan(cost, state, now)
        else:
            meet = meeting(state, state[TOP, u], x)
            if meet < 0:
                flip(n, state, u, v)
                flip(n, state, v, u)
                break
            shrink(cost, state, now, u, v, meet)
    for x in range(state.shape[1]):
        state[Y, x] += state[SIGN, x] * (now if x < n else -2 * now)
        state[SIGN, x] = 0


@long_kernel
def match(cost: IntArray, column_of: IntArray, dual: IntArray, state: IntArray) -> None:
    """Best perfect matching and its duals, into `state` as `room` makes it, from what `assign` gives.

    The cycles of the permutation are matched along; in an odd one the lowest vertex stays free, and every phase matches
    two of these.
    """
    free = 0
    for i in range(len(cost)):
        state[Y, i] = dual[column_of[i]] - cost[i, column_of[i]] - dual[i]
        state[TOP, i] = state[BASE, i] = i
        if state[MARK, i] == 0:
            length = 0
            j = i
            while state[MARK, j] == 0:
                state[MARK, j] = 1
                length += 1
                j = column_of[j]
            if length % 2 == 1:
                free += 1
                j = column_of[i]
            for _ in range(length // 2):
                k = column_of[j]
                state[MATE, j], state[MATE, k] = k, j
                j = column_of[k]
    for i in range(len(cost)):
        state[MARK, i] = 0
    for _ in range(free // 2):
        phase(cost, state)


def room(n: int) -> IntArray:
    """Room for the `state` of n vertices.

    Made outside, because making arrays takes the compiler longer than using them.
    """
    state = np.full((NEAREST + n // 2, n + n // 2), -1, dtype=np.int64)
    state[[SIGN, MARK]] = 0
    return state
