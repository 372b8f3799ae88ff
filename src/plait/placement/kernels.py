"""The placement kernel: walk jobs in order, keep what runs, place what is new, move only when it must.

`tests/reference/placement_walk.py` is the same in plain Python, and a test compares the two.

From the top: choosing the GPUs of one gang, scheme by scheme, up to `choose`; then the walk, up to `admit`. All
in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.

All but `admit` and what only that calls are parts without arrays of their own: the simulator's compiled stretches
(`plait.sim.stretch`) call the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import by_reference, lean_part, linked, long_kernel, part

# schemes
CONSOLIDATED, CONSOLIDATED_FIRST_FIT, FIRST_FIT, BEST_FIT, SPREAD, COUNTING, RANDOM, APART = range(8)

# what became of a job
PLACED, TOO_FEW, FRAGMENTED, BLOCKED = 0, 1, 2, 3

# state of a running job of the order: off its GPUs (or not placed yet), on them until needed, settled
OUT, KEPT, SETTLED = 0, 1, 2


class Nodes(NamedTuple):
    """Constants of a walk: columns of `Cluster`, and each node as if it were empty.

    `whole` GPUs and `capacity` (cores and bytes) of the nodes that are up. `plain`: all nodes are up and no job
    states cores or memory; `limits`: some job does. `first_gpu[node]`: its first GPU.
    """

    cap_prefix: IntArray
    kind: IntArray
    rack: IntArray
    gpus: IntArray
    first_gpu: IntArray
    gpu_node: IntArray
    racks: int
    plain: bool
    limits: bool
    whole: IntArray
    capacity: FloatArray


class Left(NamedTuple):
    """Resources left at a moment of the walk.

    `taken[gpu]`: a job holds it or its node is down. `free[node]`: GPUs; `spare[node]`: CPU cores and bytes.
    """

    taken: BoolArray
    free: IntArray
    spare: FloatArray


class Work(NamedTuple):
    """Scratch: GPUs `take`n of each node by one gang, and what single steps count; (nodes,), and `pool` (gpus,).

    `failed[size]` (gpus + 1,) is `failed[0]` if a gang of that size has found no room since GPUs last became free.
    """

    take: IntArray
    could: IntArray
    mark: IntArray
    counted: IntArray
    pool: IntArray
    failed: IntArray


class Running(NamedTuple):
    """Holdings of the job at each position: `gpus[lo[p]:hi[p]]`, by `held[p]` (OUT, KEPT, SETTLED)."""

    gpus: IntArray
    lo: IntArray
    hi: IntArray
    held: IntArray


class Found(NamedTuple):
    """Result of the walk for each position: its status, and whether it `stays`, or else gets `gpus[lo[p]:hi[p]]`."""

    status: IntArray
    stays: BoolArray
    gpus: IntArray
    lo: IntArray
    hi: IntArray


@lean_part
def clear(values: IntArray) -> None:
    """Set all to 0."""
    for i in range(len(values)):
        values[i] = 0


@lean_part
def total(values: IntArray) -> int:
    out = 0
    for i in range(len(values)):
        out += values[i]
    return out


@lean_part
def room(node: int, free: IntArray, spare: FloatArray, per_gpu: FloatArray) -> int:
    """GPUs of a job, each with `per_gpu` cores and bytes, that fit into what is `free` and `spare` on `node`."""
    fits = free[node]
    for i in range(len(per_gpu)):
        if per_gpu[i] > 0.0 and per_gpu[i] * fits > spare[node, i] + 1e-6:
            fits = int(np.floor((spare[node, i] + 1e-6) / per_gpu[i]))
    return fits if fits > 0 else 0


@lean_part
def best_node(
    need: int,
    kind: int,
    node_kind: IntArray,
    free: IntArray,
    spare: FloatArray,
    per_gpu: FloatArray,
    taken: IntArray,
) -> int:
    """The node with least room that still takes `need`; -1 if none."""
    best, best_room = -1, 1 << 60
    for node in range(len(free)):
        if free[node] >= need and node_kind[node] == kind and taken[node] == 0:
            fits = room(node, free, spare, per_gpu)
            if need <= fits < best_room:
                best, best_room = node, fits
                if fits == need:
                    break
    return best


@lean_part
def roomiest(
    kind: int, node_kind: IntArray, free: IntArray, spare: FloatArray, per_gpu: FloatArray, taken: IntArray
) -> int:
    """The node of `kind` with most room; -1 if none has any. Arguments as for `best_node`."""
    best, best_room = -1, 0
    for node in range(len(free)):
        if free[node] > best_room and node_kind[node] == kind and taken[node] == 0:
            fits = room(node, free, spare, per_gpu)
            if fits > best_room:
                best, best_room = node, fits
    return best


@lean_part
def pick_fewest(
    need: int,
    kind: int,
    nodes_needed: int,
    node_kind: IntArray,
    free: IntArray,
    spare: FloatArray,
    per_gpu: FloatArray,
    take: IntArray,
) -> bool:
    """Fill `take` (nodes,) with `need` GPUs on `nodes_needed` nodes, minimum room left over first."""
    left = need
    for _ in range(nodes_needed - 1):
        node = roomiest(kind, node_kind, free, spare, per_gpu, take)
        if node < 0:
            return False
        take[node] = min(left, room(node, free, spare, per_gpu))
        left -= take[node]
        if left == 0:
            return True
    node = best_node(left, kind, node_kind, free, spare, per_gpu, take)
    if node < 0:
        return False
    take[node] = left
    return True


@lean_part
def pick_first(
    need: int,
    kind: int,
    racks: int,
    node_kind: IntArray,
    node_rack: IntArray,
    node_gpus: IntArray,
    free: IntArray,
    spare: FloatArray,
    per_gpu: FloatArray,
    take: IntArray,
) -> bool:
    """Fill `take` (nodes,) with `need` GPUs: the first idle nodes, then the first with the rest, in one rack."""
    size = 0
    for node in range(len(free)):
        if node_kind[node] == kind:
            size = max(size, node_gpus[node])
    whole, rest = (need // size, need % size) if size > 0 else (0, need)
    if need == size:
        whole, rest = 0, need
    for rack in range(racks):
        clear(take)
        left = whole
        for node in range(len(free)):
            idle = node_kind[node] == kind and node_rack[node] == rack and free[node] == size
            if left > 0 and idle and room(node, free, spare, per_gpu) == size:
                take[node] = size
                left -= 1
        if left > 0:
            continue
        if rest == 0:
            return True
        for node in range(len(free)):
            ok = node_kind[node] == kind and node_rack[node] == rack and take[node] == 0
            if ok and room(node, free, spare, per_gpu) >= rest:
                take[node] = rest
                return True
    clear(take)
    return False


@lean_part
def pick_anywhere(
    need: int,
    kind: int,
    scheme: int,
    node_kind: IntArray,
    free: IntArray,
    spare: FloatArray,
    per_gpu: FloatArray,
    take: IntArray,
) -> bool:
    """Fill `take` (nodes,) with `need` GPUs of any nodes: by `scheme` by number, the roomiest or the fullest first."""
    left = need
    while scheme == APART and left > 0:  # one GPU after the other from the node that gives the fewest
        node, most = -1, 0
        for n in range(len(free)):
            more = room(n, free, spare, per_gpu) - take[n] if node_kind[n] == kind else 0
            if more > 0 and (node < 0 or take[n] < take[node] or (take[n] == take[node] and more > most)):
                node, most = n, more
        if node < 0:
            return False
        take[node] += 1
        left -= 1
    if scheme in (FIRST_FIT, BEST_FIT):
        node = -1
        if scheme == BEST_FIT:
            node = best_node(need, kind, node_kind, free, spare, per_gpu, take)
        else:
            for n in range(len(free)):
                if node_kind[n] == kind and room(n, free, spare, per_gpu) >= need:
                    node = n
                    break
        if node >= 0:
            take[node] = need
            return True
    if scheme in (FIRST_FIT, COUNTING):
        for node in range(len(free)):
            if left > 0 and node_kind[node] == kind:
                take[node] = min(left, room(node, free, spare, per_gpu))
                left -= take[node]
    while left > 0:
        if scheme == BEST_FIT:
            node = roomiest(kind, node_kind, free, spare, per_gpu, take)
        elif scheme == SPREAD:
            node = best_node(1, kind, node_kind, free, spare, per_gpu, take)
        else:
            node = -1
        if node < 0:
            return False
        take[node] = min(left, room(node, free, spare, per_gpu))
        left -= take[node]
    return True


@lean_part
def pick_random(
    need: int,
    kind: int,
    seed: int,
    node_kind: IntArray,
    gpu_node: IntArray,
    taken: BoolArray,
    free: IntArray,
    spare: FloatArray,
    per_gpu: FloatArray,
    take: IntArray,
    pool: IntArray,
) -> bool:
    """Fill `take` (nodes,) with `need` free GPUs of `kind` drawn without replacement; a function of `seed`."""
    state = seed % 2147483646 + 1
    n = 0
    for gpu in range(len(taken)):
        if not taken[gpu] and node_kind[gpu_node[gpu]] == kind:
            pool[n] = gpu
            n += 1
    left = need
    while left > 0 and n > 0:
        state = state * 48271 % 2147483647  # Lehmer's generator: fits 64 bits, compiled or not
        i = state % n
        node = gpu_node[pool[i]]
        pool[i] = pool[n - 1]
        n -= 1
        if take[node] < room(node, free, spare, per_gpu):
            take[node] += 1
            left -= 1
    return left == 0


@lean_part
def fewest_nodes(need: int, kind: int, nodes: Nodes, per_gpu: FloatArray, counted: IntArray) -> int:
    """How many empty nodes that are up can hold a gang of `need` GPUs of `kind`; 0 if all together cannot."""
    if nodes.plain:  # the sums suffice
        for k in range(nodes.cap_prefix.shape[1]):
            if nodes.cap_prefix[kind, k] >= need:
                return k + 1
        return 0
    clear(counted)
    left, number = need, 0
    while left > 0:
        node = roomiest(kind, nodes.kind, nodes.whole, nodes.capacity, per_gpu, counted)
        if node < 0:
            return 0
        counted[node] = 1
        left -= room(node, nodes.whole, nodes.capacity, per_gpu)
        number += 1
    return number


@lean_part
def choose(
    need: int,
    scheme: int,
    kinds_allowed: int,
    seed: int,
    per_gpu: FloatArray,
    nodes: Nodes,
    left: Left,
    work: Work,
) -> bool:
    """Fill `work.take` with GPUs a node for one gang, all of one kind; False if it does not fit.

    `per_gpu`: its cores and bytes a GPU, and sets of nodes that it is barred from (`packing.demands`).
    """
    free, spare, take = left.free, left.spare, work.take
    for kind in range(len(nodes.cap_prefix)):
        if (kinds_allowed >> kind) & 1 == 0:
            continue
        clear(take)
        if scheme == CONSOLIDATED:
            number = fewest_nodes(need, kind, nodes, per_gpu, work.counted)
            ok = number > 0 and pick_fewest(need, kind, number, nodes.kind, free, spare, per_gpu, take)
        elif scheme == CONSOLIDATED_FIRST_FIT:
            ok = pick_first(need, kind, nodes.racks, nodes.kind, nodes.rack, nodes.gpus, free, spare, per_gpu, take)
            if not ok and not pick_first(
                need, kind, nodes.racks, nodes.kind, nodes.rack, nodes.gpus, nodes.whole, nodes.capacity, per_gpu, take
            ):  # not even on idle nodes: it would never start
                clear(take)
                number = fewest_nodes(need, kind, nodes, per_gpu, work.counted)
                ok = number > 0 and pick_fewest(need, kind, number, nodes.kind, free, spare, per_gpu, take)
        elif scheme == RANDOM:
            ok = pick_random(
                need, kind, seed, nodes.kind, nodes.gpu_node, left.taken, free, spare, per_gpu, take, work.pool
            )
        else:
            ok = pick_anywhere(need, kind, scheme, nodes.kind, free, spare, per_gpu, take)
        if ok:
            return True
    return False


@lean_part
def hold(take: bool, gpus: IntArray, lo: int, hi: int, per_gpu: FloatArray, row: int, nodes: Nodes, left: Left) -> None:
    """Take the GPUs `gpus[lo:hi]` for a job, or give them back."""
    sign = 1 if take else -1
    for i in range(lo, hi):
        left.taken[gpus[i]] = take
        node = nodes.gpu_node[gpus[i]]
        left.free[node] -= sign
        if nodes.limits:
            for k in range(per_gpu.shape[1]):
                left.spare[node, k] -= sign * per_gpu[row, k]


@lean_part
def one_of(values: FloatArray, row: int) -> int:
    """The entry for `row` of some with one entry a row, or one for all."""
    return min(row, len(values) - 1)


@lean_part
def all_free(gpus: IntArray, lo: int, hi: int, per_gpu: FloatArray, row: int, nodes: Nodes, left: Left) -> bool:
    """Whether a job can take exactly the GPUs `gpus[lo:hi]`."""
    for i in range(lo, hi):
        if left.taken[gpus[i]]:
            return False
    if nodes.limits:
        for i in range(lo, hi):
            node, count = nodes.gpu_node[gpus[i]], 0
            for j in range(lo, hi):
                count += nodes.gpu_node[gpus[j]] == node
            for k in range(per_gpu.shape[1]):
                if per_gpu[row, k] * count > left.spare[node, k] + 1e-6:
                    return False
    return True


@lean_part
def mark_candidates(
    p: int,
    n: int,
    need: int,
    everywhere: bool,
    kinds_allowed: int,
    running: Running,
    nodes: Nodes,
    free: IntArray,
    work: Work,
) -> bool:
    """Set `work.mark` of nodes where running jobs after position `p` of `n` could make room for it; False if of none.

    `everywhere` means all of the kinds allowed; otherwise as few as can give enough GPUs.
    """
    could, mark = work.could, work.mark
    clear(mark)
    for node in range(len(free)):
        could[node] = free[node]
    for q in range(p + 1, n):
        if running.held[q] == KEPT:
            for i in range(running.lo[q], running.hi[q]):
                could[nodes.gpu_node[running.gpus[i]]] += 1
    some = False
    for kind in range(len(nodes.cap_prefix)):
        if (kinds_allowed >> kind) & 1 == 0:
            continue
        if everywhere:
            for node in range(len(free)):
                if nodes.kind[node] == kind:
                    mark[node] = 1
                    some = True
            continue
        left = need
        for k in range(nodes.cap_prefix.shape[1]):
            # The node that can give most (up to the need), and among equal ones the freest.
            best = -1
            for node in range(len(free)):
                if nodes.kind[node] == kind and mark[node] == 0 and could[node] > 0:
                    if best < 0:
                        best = node
                        continue
                    a, b = min(could[node], left), min(could[best], left)
                    if a > b or (a == b and free[node] > free[best]):
                        best = node
            if best < 0:
                break
            mark[best] = 1
            left -= could[best]
            if left <= 0 or nodes.cap_prefix[kind, k] >= need:
                break
        if left <= 0:
            return True
        clear(mark)
    return some


@lean_part
def make_room(
    p: int,
    n: int,
    need: int,
    scheme: int,
    kinds: int,
    seed: int,
    per_gpu: FloatArray,
    order: IntArray,
    running: Running,
    nodes: Nodes,
    left: Left,
    work: Work,
) -> bool:
    """Take GPUs back from running jobs after position `p` of `n`, the last first, until the job at `p` fits."""
    everywhere = not nodes.plain or scheme != CONSOLIDATED  # where cores, memory, racks or lost nodes decide
    if not mark_candidates(p, n, need, everywhere, kinds, running, nodes, left.free, work):
        return False
    mark = work.mark
    for q in range(n - 1, p, -1):
        if running.held[q] != KEPT:
            continue
        touches = False
        for i in range(running.lo[q], running.hi[q]):
            touches = touches or mark[nodes.gpu_node[running.gpus[i]]] == 1
        if not touches:
            continue
        hold(False, running.gpus, running.lo[q], running.hi[q], per_gpu, one_of(per_gpu, order[q]), nodes, left)
        running.held[q] = OUT
        if choose(need, scheme, kinds, seed, per_gpu[one_of(per_gpu, order[p])], nodes, left, work):
            return True
    return False


@lean_part
def count(
    order: IntArray,
    n: int,
    size: IntArray,
    running_group: IntArray,
    strict: BoolArray,
    now_first: IntArray,
    budget: int,
    admitted: BoolArray,
    lo: IntArray,
    hi: IntArray,
) -> int:
    """Admit the first `n` of `order` while `budget` GPUs last; returns where a strict job stops it all.

    Fills one entry a position: `admitted`, and `lo` and `hi`, the first and last + 1 of the GPUs it holds now.
    """
    stop = n
    for p in range(n):
        row = order[p]
        admitted[p], lo[p], hi[p] = False, 0, 0
        if running_group[row] >= 0:
            lo[p], hi[p] = now_first[running_group[row]], now_first[running_group[row] + 1]
        if p < stop:
            if size[row] <= budget:
                budget -= size[row]
                admitted[p] = True
            elif strict[min(row, len(strict) - 1)]:
                stop = p
    return stop


@lean_part
def name_gpus(take: IntArray, first_gpu: IntArray, taken: BoolArray, out: IntArray, used: int) -> int:
    """Write the lowest free GPUs of each node of `take` to `out[used:]`; returns where the next may be written."""
    for node in range(len(take)):
        left = take[node]
        gpu = first_gpu[node]
        while left > 0:
            if not taken[gpu]:
                out[used] = gpu
                used += 1
                left -= 1
            gpu += 1
    return used


@part
def idle(
    order: IntArray,
    running_group: IntArray,
    now_gpus: IntArray,
    now_first: IntArray,
    node_gpus: IntArray,
    first_gpu: IntArray,
    gpu_node: IntArray,
    node_up: BoolArray,
) -> tuple[BoolArray, IntArray, IntArray, int]:
    """The cluster before the walk, as if no job of `order` ran; arguments as for `admit`.

    Returns (taken GPUs, free GPUs of each node, free GPUs of nodes that are up, how many are free). On a node that is
    down only the GPUs of running jobs of the order are free.
    """
    taken = np.zeros(len(gpu_node), dtype=np.bool_)
    free = np.zeros(len(node_gpus), dtype=np.int64)
    budget = 0
    for node in range(len(node_gpus)):
        if node_up[node]:
            free[node] = node_gpus[node]
            budget += node_gpus[node]
        else:
            taken[first_gpu[node] : first_gpu[node + 1]] = True
    whole = free.copy()
    if not node_up.all():
        for row in order:
            if running_group[row] >= 0:
                for i in range(now_first[running_group[row]], now_first[running_group[row] + 1]):
                    if taken[now_gpus[i]]:
                        taken[now_gpus[i]] = False
                        free[gpu_node[now_gpus[i]]] += 1
                        budget += 1
    return taken, free, whole, budget


@lean_part
def keep(
    order: IntArray,
    size: IntArray,
    admitted: BoolArray,
    stop: int,
    per_gpu: FloatArray,
    running: Running,
    nodes: Nodes,
    left: Left,
) -> None:
    """Let running jobs before position `stop` that are `admitted` hold their GPUs; updates `running` and `left`."""
    running, nodes, left = by_reference(running), by_reference(nodes), by_reference(left)
    gpus, lo, hi = running.gpus, running.lo, running.hi
    for p in range(stop):
        if admitted[p] and hi[p] > lo[p] and hi[p] - lo[p] == size[order[p]]:
            # Running groups share all their GPUs or none: until something is placed, one GPU decides for all.
            ok, row = not left.taken[gpus[lo[p]]], one_of(per_gpu, order[p])
            if nodes.limits:
                ok = all_free(gpus, lo[p], hi[p], per_gpu, row, nodes, left)
            if ok:
                hold(True, gpus, lo[p], hi[p], per_gpu, row, nodes, left)
                running.held[p] = KEPT


@lean_part
def place_in_order(
    backfill: bool,
    n: int,
    stop: int,
    used: int,
    order: IntArray,
    size: IntArray,
    scheme: IntArray,
    strict: BoolArray,
    kinds_allowed: IntArray,
    seed: int,
    per_gpu: FloatArray,
    admitted: BoolArray,
    running: Running,
    nodes: Nodes,
    left: Left,
    work: Work,
    found: Found,
) -> tuple[int, int]:
    """Place jobs that are admitted or, to `backfill`, all others.

    Returns where the walk stops, and how much of `found.gpus` is used.
    """
    gpus, lo, hi, held = running.gpus, running.lo, running.hi, running.held
    rest, failed = total(left.free), work.failed
    alike = len(scheme) == 1 and len(kinds_allowed) == 1 and not nodes.limits  # where one finds no room, none does
    failed[0] += 1
    for p in range(stop):
        if held[p] == SETTLED or not (backfill or admitted[p]):
            continue
        row = order[p]
        need, demand = size[row], one_of(per_gpu, row)
        stays = held[p] == KEPT
        if not stays and hi[p] > lo[p] and hi[p] - lo[p] == need:
            stays = all_free(gpus, lo[p], hi[p], per_gpu, demand, nodes, left)
            if stays:
                hold(True, gpus, lo[p], hi[p], per_gpu, demand, nodes, left)
                rest -= need
        if stays:
            held[p], found.stays[p], found.status[p] = SETTLED, True, PLACED
            continue
        how = scheme[min(row, len(scheme) - 1)]
        kinds = kinds_allowed[min(row, len(kinds_allowed) - 1)]
        ok = need <= rest and not (alike and failed[need] == failed[0])
        if ok:
            ok = choose(need, how, kinds, seed + p, per_gpu[demand], nodes, left, work)
            if not ok:
                failed[need] = failed[0]
        if not ok and not backfill:
            failed[0] += 1
            ok = make_room(p, n, need, how, kinds, seed + p, per_gpu, order, running, nodes, left, work)
            rest = total(left.free)
        if not ok:
            found.status[p] = FRAGMENTED if rest >= need else TOO_FEW
            if strict[min(row, len(strict) - 1)]:
                stop = p
                break
            continue
        found.lo[p], used = used, name_gpus(work.take, nodes.first_gpu, left.taken, found.gpus, used)
        found.hi[p] = used
        hold(True, found.gpus, found.lo[p], used, per_gpu, demand, nodes, left)
        held[p], found.status[p] = SETTLED, PLACED
        rest -= need
    for q in range(stop, n):
        if held[q] == KEPT:  # after a strict job that does not fit no job runs
            hold(False, gpus, lo[q], hi[q], per_gpu, one_of(per_gpu, order[q]), nodes, left)
            held[q] = OUT
    return stop, used


@lean_part
def walk(
    order: IntArray,
    n: int,
    stop: int,
    size: IntArray,
    scheme: IntArray,
    strict: BoolArray,
    kinds_allowed: IntArray,
    seed: int,
    per_gpu: FloatArray,
    admitted: BoolArray,
    running: Running,
    nodes: Nodes,
    left: Left,
    work: Work,
    found: Found,
) -> None:
    """Place the first `n` of `order` into what is `left`, where running jobs that are kept hold their GPUs.

    Fills `found`; afterwards `left` is what the placed jobs leave. A strict job that does not fit stops it all.
    """
    running, nodes, left = by_reference(running), by_reference(nodes), by_reference(left)
    work, found = by_reference(work), by_reference(found)
    for p in range(n):
        found.status[p], found.stays[p] = TOO_FEW, False
    used = 0
    for turn in range(2):
        stop, used = place_in_order(
            turn == 1, n, stop, used, order, size, scheme, strict, kinds_allowed, seed, per_gpu, admitted, running,
            nodes, left, work, found,
        )  # fmt: skip
    for p in range(stop + 1, n):
        if found.status[p] != PLACED:
            found.status[p] = BLOCKED


@long_kernel
def admit(
    order: IntArray,
    size: IntArray,
    running_group: IntArray,
    scheme: IntArray,
    strict: BoolArray,
    kinds_allowed: IntArray,
    per_gpu: FloatArray,
    now_gpus: IntArray,
    now_first: IntArray,
    seed: int,
    cap_prefix: IntArray,
    node_kind: IntArray,
    node_rack: IntArray,
    node_gpus: IntArray,
    first_gpu: IntArray,
    gpu_node: IntArray,
    node_up: BoolArray,
    capacity: FloatArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Walk the order and assign GPUs.

    `order` lists rows; `size`, `running_group` (-1 or the running group whose GPUs the job holds), `scheme`, `strict`
    (if it does not fit, no job after it runs), `kinds_allowed` (bit mask) and `per_gpu` (cores and bytes a GPU)
    have one entry a row, the last four alternatively one entry for all. Group `g` holds
    `now_gpus[now_first[g]:now_first[g + 1]]`. Returns (status of each position, positions placed, their GPUs,
    offsets). Of a node that is down only the GPUs that running jobs of the order hold can be had.

    1. Count: admit in order while GPUs last, so that running jobs outside are known to leave. 2. Running jobs that are
    admitted hold their GPUs. 3. In order, place the rest; one that does not fit because of lower-ranked running jobs
    makes them move. 4. In order, use the rest (backfill), first for jobs that can stay.
    """
    n, places = len(order), len(node_gpus)
    limits = bool(per_gpu.any())
    taken, free, whole, budget = idle(
        order, running_group, now_gpus, now_first, node_gpus, first_gpu, gpu_node, node_up
    )
    racks = 1
    for rack in node_rack:
        racks = max(racks, rack + 1)
    plain = not limits and bool(node_up.all())
    nodes = Nodes(
        cap_prefix, node_kind, node_rack, node_gpus, first_gpu, gpu_node, racks, plain, limits, whole, capacity
    )
    left = Left(taken, free, capacity.copy() if limits else capacity)
    admitted, stays = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    lo, hi = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    stop = count(order, n, size, running_group, strict, now_first, budget, admitted, lo, hi)
    running = Running(now_gpus, lo, hi, np.zeros(n, dtype=np.int64))
    keep(order, size, admitted, stop, per_gpu, running, nodes, left)
    found = Found(
        np.zeros(n, dtype=np.int64), stays, np.empty(len(taken) + 1, dtype=np.int64), np.zeros(n, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
    )  # fmt: skip
    step = np.zeros((4, places), dtype=np.int64)
    of_gpus = np.zeros((2, len(taken) + 1), dtype=np.int64)
    work = Work(step[0], step[1], step[2], step[3], of_gpus[0], of_gpus[1])
    walk(
        order, n, stop, size, scheme, strict, kinds_allowed, seed, per_gpu, admitted, running, nodes, left, work, found
    )
    return gather(running, found)


@part
def gather(running: Running, found: Found) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Collect the GPUs of all jobs that stay (`running`) or were placed (`found`), in order."""
    status = found.status
    n = len(status)
    count, total = 0, 0
    for p in range(n):
        if status[p] == PLACED:
            count += 1
            total += running.hi[p] - running.lo[p] if found.stays[p] else found.hi[p] - found.lo[p]
    positions = np.empty(count, dtype=np.int64)
    offsets = np.zeros(count + 1, dtype=np.int64)
    gpus = np.empty(total, dtype=np.int64)
    k, at = 0, 0
    for p in range(n):
        if status[p] != PLACED:
            continue
        positions[k] = p
        if found.stays[p]:
            for i in range(running.lo[p], running.hi[p]):
                gpus[at] = running.gpus[i]
                at += 1
        else:
            for i in range(found.lo[p], found.hi[p]):
                gpus[at] = found.gpus[i]
                at += 1
        k += 1
        offsets[k] = at
    return status, positions, gpus, offsets


@lean_part
def over_many_nodes(
    gpus: IntArray, lo: int, hi: int, gpu_node: IntArray, node_kind: IntArray, cap_prefix: IntArray
) -> bool:
    """Whether `gpus[lo:hi]`, those of a node in a row, are on more nodes than so many GPUs of their kind need."""
    nodes, fewest, kind = 1, 1, node_kind[gpu_node[gpus[lo]]]
    for i in range(lo + 1, hi):
        nodes += gpu_node[gpus[i]] != gpu_node[gpus[i - 1]]
    while fewest <= cap_prefix.shape[1] and cap_prefix[kind, fewest - 1] < hi - lo:
        fewest += 1
    return nodes > fewest


@linked()
def mark_spread(
    gpus: IntArray, first_gpu: IntArray, gpu_node: IntArray, node_kind: IntArray, cap_prefix: IntArray, out: BoolArray
) -> None:
    """Write into `out` whether each group, with `gpus[first_gpu[g]:first_gpu[g + 1]]`, is `over_many_nodes`."""
    for g in range(len(out)):
        out[g] = over_many_nodes(gpus, first_gpu[g], first_gpu[g + 1], gpu_node, node_kind, cap_prefix)
