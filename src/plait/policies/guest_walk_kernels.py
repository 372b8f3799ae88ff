"""The parts of AntMan's walk that look at many jobs or GPUs; `walk.py` calls them in order.

Few and small on purpose: compiling a line costs a process more than running it for an hour. All in one file, because
the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel, part

#: Among equally used GPUs, the ones with fewer guests go first: each guest counts as much use.
PER_GUEST = 1e-3
#: Room for rounding: cores and bytes.
SLACK = 1e-6

#: Columns of a job's needs on each GPU, and of the tables of GPUs (whole numbers, amounts) and of nodes. From USE and
#: LOAD on: of the GPU, and of its part of the storage and cores of its node. From CORES on, needs are those of nodes:
#: `plait.placement.packing.demands`.
BYTES, START_BYTES, USE, CORES = 0, 1, 2, 5
NODE, CLOSED, JOBS, GUESTS = range(4)
CAPACITY, TAKEN, LOAD = range(3)
FIRST, END, KIND, RACK, UP = range(5)
#: Columns of the table of jobs, and some values of STATUS there.
GPUS, PROJECT, KINDS, LO, HI, KEPT, STALLED, LENDS, POSITION, STATUS, THERE = range(11)
STAYS, STARTS, PROMOTED, MOVED, GUEST, DISPLACED = range(6)


@part
def fits(gpu: int, ask: FloatArray, context: float, guest: bool, whole: IntArray, amounts: FloatArray) -> bool:
    """Whether GPU `gpu` has the memory for one more job that needs `ask`; contexts count if there are guests."""
    needed = amounts[gpu, TAKEN] + ask[BYTES]
    if guest or whole[gpu, JOBS] > 0:
        needed += context
    return bool(needed <= amounts[gpu, CAPACITY] * (1.0 + 1e-9))


@part
def on_node(node: int, ask: FloatArray, spare: FloatArray) -> int:
    """GPUs of a job that needs `ask` each for which the `spare` cores and host memory of `node` suffice."""
    room = 1 << 30
    for i in range(spare.shape[1]):
        if ask[CORES + i] > 0.0 and spare[node, i] < np.inf:
            room = min(room, int(np.floor((spare[node, i] + SLACK) / ask[CORES + i])))
    return max(room, 0)


@part
def rooms(
    kind: int,
    ask: FloatArray,
    context: float,
    whole: IntArray,
    amounts: FloatArray,
    nodes: IntArray,
    spare: FloatArray,
    free: IntArray,
    room: IntArray,
    clean: IntArray,
) -> int:
    """Fill `room` and `clean`: GPUs of each node of `kind` that a host could have, all and without guests; the sum."""
    total = 0
    for node in range(len(nodes)):
        room[node] = clean[node] = 0
        if nodes[node, KIND] == kind and free[node] > 0:
            for gpu in range(nodes[node, FIRST], nodes[node, END]):
                if not whole[gpu, CLOSED] and fits(gpu, ask, context, False, whole, amounts):
                    room[node] += 1
                    clean[node] += whole[gpu, GUESTS] == 0
            if room[node] > 0:
                room[node] = min(room[node], on_node(node, ask, spare))
            total += room[node]
    return total


@part
def spread(
    need: int, rack: int, room: IntArray, clean: IntArray, nodes: IntArray, from_node: IntArray
) -> tuple[int, int]:
    """Choose `need` GPUs on the minimum nodes of `rack` (-1: all): how many nodes, and on how many guests are.

    The roomiest nodes whole, then one for the rest; among equal ones minimum guests, minimum room, the lowest number. A
    gang that does not fit takes 0 nodes.
    """
    from_node[:] = 0
    missing, count, shared = need, 0, 0
    while missing > 0:
        best, get, crowd = -1, 0, 0
        for node in range(len(room)):
            if room[node] == 0 or from_node[node] > 0 or (rack >= 0 and nodes[node, RACK] != rack):
                continue
            gets = min(room[node], missing)
            guests = max(gets - clean[node], 0)
            if gets == get and best >= 0:
                better = guests < crowd or (guests == crowd and room[node] < room[best])
            else:
                better = gets > get
            if better:
                best, get, crowd = node, gets, guests
        if best < 0:
            return 0, 0
        from_node[best] = get
        missing, count, shared = missing - get, count + 1, shared + crowd
    return count, shared


@part
def name_gpus(
    chosen: IntArray,
    ask: FloatArray,
    context: float,
    whole: IntArray,
    amounts: FloatArray,
    nodes: IntArray,
    out: IntArray,
) -> None:
    """Write so many GPUs of each node into `out`: fewest guests first, then the lowest numbers."""
    found = 0
    for node in range(len(chosen)):
        crowd, missing = 0, chosen[node]
        while missing > 0:
            for gpu in range(nodes[node, FIRST], nodes[node, END]):
                free = missing > 0 and not whole[gpu, CLOSED] and whole[gpu, GUESTS] == crowd
                if free and fits(gpu, ask, context, False, whole, amounts):
                    out[found] = gpu
                    found += 1
                    missing -= 1
            crowd += 1


@part
def take(
    gpus: IntArray, ask: FloatArray, context: float, host: bool, whole: IntArray, amounts: FloatArray, spare: FloatArray
) -> None:
    """Put a job that needs `ask` on `gpus`, as a `host` or guest; updates the tables."""
    for gpu in gpus:
        for i in range(spare.shape[1]):
            spare[whole[gpu, NODE], i] -= ask[CORES + i]
        amounts[gpu, TAKEN] += ask[BYTES] + context
        for i in range(CORES - USE):
            amounts[gpu, LOAD + i] += ask[USE + i]
        whole[gpu, JOBS] += 1
        whole[gpu, CLOSED if host else GUESTS] += 1


@kernel
def seat_running(
    hosts: IntArray,
    guests: IntArray,
    jobs: IntArray,
    asks: FloatArray,
    held: IntArray,
    context: float,
    whole: IntArray,
    amounts: FloatArray,
    nodes: IntArray,
    spare: FloatArray,
    used: FloatArray,
) -> tuple[IntArray, IntArray]:
    """Put the rows `hosts`, and the immovable ones of the rows `guests`, on their GPUs.

    The other guests only count: hosts look at how many there are and do not wait for them. `jobs`, `asks`, `held` as
    in `WalkJobs`; `used` (projects, kinds) gets the GPUs of hosts. Returns the GPUs without hosts on nodes that are
    up, by kind and by node.
    """
    for gpu in range(len(whole)):
        whole[gpu, CLOSED] = 1 - nodes[whole[gpu, NODE], UP]
    for row in hosts:
        gpus = held[jobs[row, LO] : jobs[row, HI]]
        take(gpus, asks[row], context, True, whole, amounts, spare)
        for gpu in gpus:
            used[jobs[row, PROJECT], nodes[whole[gpu, NODE], KIND]] += 1.0
    for row in guests:
        gpus = held[jobs[row, LO] : jobs[row, HI]]
        if jobs[row, KEPT]:
            take(gpus, asks[row], context, False, whole, amounts, spare)
        else:
            for gpu in gpus:
                whole[gpu, GUESTS] += 1
    free, free_on = np.zeros(used.shape[1], dtype=np.int64), np.zeros(len(nodes), dtype=np.int64)
    for gpu in range(len(whole)):
        if not whole[gpu, CLOSED]:
            free[nodes[whole[gpu, NODE], KIND]] += 1
            free_on[whole[gpu, NODE]] += 1
    return free, free_on


@kernel
def keep_guests(
    guests: IntArray,
    jobs: IntArray,
    asks: FloatArray,
    held: IntArray,
    context: float,
    limit: float,
    most: int,
    measured: FloatArray,
    whole: IntArray,
    amounts: FloatArray,
    nodes: IntArray,
    spare: FloatArray,
    kinds: int,
) -> tuple[IntArray, IntArray]:
    """Keep guests that `seat_running` counted where hosts leave room for them, first ones first; the rest is DISPLACED.

    The load of GPUs becomes `measured` (gpus,), where that is not NaN. Arguments as there and in `start_guests`.
    Returns the rows without room or time where they are, which look for other GPUs, and the GPUs open to guests, by
    kind.
    """
    for row in guests:
        if jobs[row, STATUS] != PROMOTED and not jobs[row, KEPT]:
            for gpu in held[jobs[row, LO] : jobs[row, HI]]:
                whole[gpu, GUESTS] -= 1
    there = np.zeros(len(nodes), dtype=np.int64)
    for row in guests:
        if jobs[row, STATUS] == PROMOTED or jobs[row, KEPT]:
            continue
        gpus, stays = held[jobs[row, LO] : jobs[row, HI]], True
        for gpu in gpus:
            there[whole[gpu, NODE]] += 1
            stays = stays and whole[gpu, GUESTS] < most and fits(gpu, asks[row], context, True, whole, amounts)
        for gpu in gpus:
            node = whole[gpu, NODE]
            stays = stays and (there[node] == 0 or on_node(node, asks[row], spare) >= there[node])
            there[node] = 0
        if stays and paced_together(gpus, whole):
            take(gpus, asks[row], context, False, whole, amounts, spare)
        else:
            jobs[row, STATUS] = DISPLACED
            asks[row, BYTES] = asks[row, START_BYTES]
    open_gpus = np.zeros(kinds, dtype=np.int64)
    for gpu in range(len(whole)):
        if not np.isnan(measured[gpu]):
            amounts[gpu, LOAD] = measured[gpu]
        node = whole[gpu, NODE]
        if nodes[node, UP] and amounts[gpu, LOAD] < limit and whole[gpu, GUESTS] < most:
            open_gpus[nodes[node, KIND]] += 1
    rows, count = np.empty(len(guests), dtype=np.int64), 0
    for row in guests:
        stalled = jobs[row, STATUS] == STAYS and jobs[row, STALLED] == 1 and jobs[row, KEPT] == 0
        if stalled or jobs[row, STATUS] == DISPLACED:
            rows[count] = row
            count += 1
    return rows[:count], open_gpus


@kernel
def start_host(
    need: int,
    ask: FloatArray,
    context: float,
    kinds: int,
    racks: int,
    whole: IntArray,
    amounts: FloatArray,
    nodes: IntArray,
    spare: FloatArray,
    free: IntArray,
    out: IntArray,
) -> tuple[int, int]:
    """Put a host on the best GPUs of one of `kinds` (a bit mask), if it can have all that it needs.

    Minimum nodes, then one rack, then minimum guests, then minimum room left, lowest numbers. Fewer GPUs than it needs
    are the best part of a gang, of the kind that has most; they are only named. `free` (nodes,): GPUs without hosts and
    reservations, from which its GPUs are subtracted. Returns the kind, -1 if there are none, and how many GPUs; `out`
    (need,) has them.
    """
    room, clean = np.empty(len(nodes), dtype=np.int64), np.empty(len(nodes), dtype=np.int64)
    trial, chosen = np.empty(len(nodes), dtype=np.int64), np.zeros(len(nodes), dtype=np.int64)
    best, best_got, best_nodes, best_racks, best_shared = -1, 0, 0, 0, 0
    last = 0
    while kinds >> last > 0:
        last += 1
    for kind in range(last):
        got = 0
        if (kinds >> kind) & 1:
            got = min(rooms(kind, ask, context, whole, amounts, nodes, spare, free, room, clean), need)
        if got == 0 or got < best_got:
            continue
        for rack in range(-1, racks if racks > 1 and got == need else 0):
            on, shared = spread(got, rack, room, clean, nodes, trial)
            in_racks = 1 if rack >= 0 or on == 1 or racks == 1 else 2
            better = best < 0 or got > best_got or on < best_nodes
            if not better and on == best_nodes:
                better = in_racks < best_racks or (in_racks == best_racks and shared < best_shared)
            if on > 0 and better:
                best, best_got, best_nodes, best_racks, best_shared = kind, got, on, in_racks, shared
                chosen[:] = trial
    name_gpus(chosen, ask, context, whole, amounts, nodes, out)
    if best_got == need:
        take(out, ask, context, True, whole, amounts, spare)
        for node in range(len(nodes)):
            free[node] -= chosen[node]
    return best, best_got


@part
def paced_together(gpus: IntArray, whole: IntArray) -> bool:
    """Whether the ranks of a guest can pause together: they are on one node, or next to no host."""
    one_node, hosts = True, 0
    for gpu in gpus:
        one_node = one_node and whole[gpu, NODE] == whole[gpus[0], NODE]
        hosts += whole[gpu, JOBS] - whole[gpu, GUESTS]
    return bool(one_node or hosts == 0)


@part
def crowded(gpu: int, ask: FloatArray, amounts: FloatArray) -> float:
    """The part of its speed that a guest loses on a GPU, because others use what its own stages need; 0 to 1."""
    speed = 1.0
    for i in range(CORES - USE):
        if ask[USE + i] > 0.0:
            speed = min(speed, max(1.0 - amounts[gpu, LOAD + i], 0.0) / ask[USE + i])
    return float(1.0 - speed)


@part
def least_used(
    kind: int,
    first_node: int,
    end_node: int,
    hosted: bool,
    ask: FloatArray,
    context: float,
    limit: float,
    most: int,
    barred: IntArray,
    whole: IntArray,
    amounts: FloatArray,
    nodes: IntArray,
    spare: FloatArray,
    out: IntArray,
) -> tuple[int, float]:
    """The least used GPUs of a kind for a guest into `out`, best first, at most as many as that has room for.

    GPUs of a range of nodes, next to hosts only if `hosted`, with less use than `limit` and fewer than `most` guests,
    that are not `barred`, and where the guest keeps more than 1 - `limit` of its speed; what it loses counts as use.
    Equally used ones go by number. Returns how many, and the sum of their use. Nodes are in the order of their GPUs.
    """
    need, found = len(out), 0
    uses = np.empty(need)
    for node in range(first_node, end_node):
        room = on_node(node, ask, spare) if nodes[node, KIND] == kind and nodes[node, UP] else 0
        first, here = nodes[node, FIRST], 0  # so many of the chosen ones are on this node
        for gpu in range(first, nodes[node, END]):
            crowd = crowded(gpu, ask, amounts)
            use = amounts[gpu, LOAD] + crowd + PER_GUEST * whole[gpu, GUESTS]
            if room == 0 or (found == need and use >= uses[need - 1]):
                continue
            usable = max(amounts[gpu, LOAD], crowd) < limit and whole[gpu, GUESTS] < most
            usable = usable and (hosted or whole[gpu, JOBS] == whole[gpu, GUESTS])
            for one in barred:
                usable = usable and one != gpu
            if not usable or not fits(gpu, ask, context, True, whole, amounts):
                continue
            out_at = -1  # who has to make room: the worst of the node, or the worst of all
            if here == room:
                out_at = found - 1
                while out[out_at] < first:
                    out_at -= 1
                if uses[out_at] <= use:
                    continue
            elif found == need:
                out_at = need - 1
            if out_at >= 0:
                here -= out[out_at] >= first
                found -= 1
                for i in range(out_at, found):
                    out[i], uses[i] = out[i + 1], uses[i + 1]
            at = found
            while at > 0 and uses[at - 1] > use:
                out[at], uses[at] = out[at - 1], uses[at - 1]
                at -= 1
            out[at], uses[at] = gpu, use
            found += 1
            here += 1
    load = 0.0
    for i in range(found):
        load += uses[i]
    return found, load


@kernel
def start_guests(
    rows: IntArray,
    jobs: IntArray,
    asks: FloatArray,
    held: IntArray,
    context: float,
    limit: float,
    most: int,
    whole: IntArray,
    amounts: FloatArray,
    nodes: IntArray,
    spare: FloatArray,
    open_gpus: IntArray,
    out: IntArray,
) -> None:
    """Put each of these jobs, in turn, on the least used GPUs of a kind that are not its present ones, or nowhere.

    A gang prefers one node, and next to hosts gets no other place: its ranks could not pause together.
    `jobs` and `asks` have a row a job (see `WalkJobs`); `open_gpus` (kinds,) how many GPUs are open to guests. Fills
    in STATUS, THERE, and into `out` the GPUs of starting and moving guests, one after the other.
    """
    filled, barred = 0, held[:0]
    for row in rows:
        need, there = jobs[row, GPUS], 0
        for kind in range(len(open_gpus)):
            if (jobs[row, KINDS] >> kind) & 1:
                there = max(there, open_gpus[kind])
        jobs[row, THERE] = there
        if there < need:
            continue
        best, best_load = 0, 0.0
        gpus, trial = out[filled : filled + need], np.empty(need, dtype=np.int64)
        barred = held[jobs[row, LO] : jobs[row, HI]]
        for kind in range(len(open_gpus)):
            if (jobs[row, KINDS] >> kind) & 1:
                # a gang: on each node alone, on all of them, and on those of their GPUs that have no host
                for step in range(0 if need > 1 else len(nodes), len(nodes) + 2):
                    lo, hi = (step, step + 1) if step < len(nodes) else (0, len(nodes))
                    found, load = least_used(
                        kind,
                        lo,
                        hi,
                        step <= len(nodes),
                        asks[row],
                        context,
                        limit,
                        most,
                        barred,
                        whole,
                        amounts,
                        nodes,
                        spare,
                        trial,
                    )
                    if found == need and not paced_together(trial, whole):
                        continue
                    if found > best or (found == need and load < best_load):
                        best, best_load = found, load
                        gpus[:found] = trial[:found]
                    if step == len(nodes):
                        break  # nothing better is among those without hosts
        jobs[row, THERE] = best
        if best < need:
            continue
        if len(barred) > 0 and jobs[row, STATUS] != DISPLACED:
            for gpu in barred:
                for i in range(spare.shape[1]):
                    spare[whole[gpu, NODE], i] += asks[row, CORES + i]
                whole[gpu, JOBS] -= 1
                whole[gpu, GUESTS] -= 1
                amounts[gpu, TAKEN] -= asks[row, BYTES] + context
                for i in range(CORES - USE):
                    amounts[gpu, LOAD + i] -= asks[row, USE + i]
        jobs[row, STATUS] = MOVED if len(barred) > 0 else GUEST
        take(gpus, asks[row], context, False, whole, amounts, spare)
        filled += need
        for gpu in gpus:
            closed = amounts[gpu, LOAD] >= limit or whole[gpu, GUESTS] >= most
            open_gpus[nodes[whole[gpu, NODE], KIND]] -= closed
