"""The placement kernel: walk jobs in order, keep what runs, place what is new, move only when it must.

`placement/reference.py` is the same in plain Python, and a test compares the two.

From the top: choosing the GPUs of one gang, scheme by scheme, up to `choose`; then the walk, up to `admit`. All
in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import kernel, part

# schemes
CONSOLIDATED, CONSOLIDATED_FIRST_FIT, FIRST_FIT, BEST_FIT, SPREAD, COUNTING, RANDOM = 0, 1, 2, 3, 4, 5, 6

# what became of a job
PLACED, TOO_FEW, FRAGMENTED, BLOCKED = 0, 1, 2, 3

# state of a running job of the order: off its GPUs (or not placed yet), on them until needed, settled
OUT, KEPT, SETTLED = 0, 1, 2


class Nodes(NamedTuple):
    """Constants of a walk: columns of `Cluster`, and each node as if it were empty.

    `whole` GPUs and `capacity` (cores and bytes) of the nodes that are up. `plain`: all nodes are up and no job
    states cores or memory; `limits`: some job does.
    """

    cap_prefix: IntArray
    kind: IntArray
    rack: IntArray
    gpus: IntArray
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


@kernel
def room(node: int, free: IntArray, spare: FloatArray, per_gpu: FloatArray) -> int:
    """GPUs of a job, each with `per_gpu` cores and bytes, that fit into what is `free` and `spare` on `node`."""
    fits = free[node]
    for i in range(2):
        if per_gpu[i] > 0.0 and per_gpu[i] * fits > spare[node, i] + 1e-6:
            fits = int(np.floor((spare[node, i] + 1e-6) / per_gpu[i]))
    return fits if fits > 0 else 0


@kernel
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


@kernel
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


@kernel
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


@kernel
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
        take[:] = 0
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
    take[:] = 0
    return False


@part
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


@part
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
) -> bool:
    """Fill `take` (nodes,) with `need` free GPUs of `kind` drawn without replacement; a function of `seed`."""
    state = seed % 2147483646 + 1
    pool = np.empty(len(taken), dtype=np.int64)
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


@kernel
def fewest_nodes(need: int, kind: int, nodes: Nodes, per_gpu: FloatArray) -> int:
    """How many empty nodes that are up can hold a gang of `need` GPUs of `kind`; 0 if all together cannot."""
    if nodes.plain:  # the sums tell
        for k in range(nodes.cap_prefix.shape[1]):
            if nodes.cap_prefix[kind, k] >= need:
                return k + 1
        return 0
    counted = np.zeros(len(nodes.whole), dtype=np.int64)
    left, number = need, 0
    while left > 0:
        node = roomiest(kind, nodes.kind, nodes.whole, nodes.capacity, per_gpu, counted)
        if node < 0:
            return 0
        counted[node] = 1
        left -= room(node, nodes.whole, nodes.capacity, per_gpu)
        number += 1
    return number


@kernel
def choose(
    need: int,
    scheme: int,
    kinds_allowed: int,
    seed: int,
    per_gpu: FloatArray,
    nodes: Nodes,
    left: Left,
    take: IntArray,
) -> bool:
    """Fill `take[node]` with GPUs a node for one gang, all of one kind; False if it does not fit."""
    free, spare = left.free, left.spare
    for kind in range(len(nodes.cap_prefix)):
        if (kinds_allowed >> kind) & 1 == 0:
            continue
        take[:] = 0
        if scheme == CONSOLIDATED:
            number = fewest_nodes(need, kind, nodes, per_gpu)
            ok = number > 0 and pick_fewest(need, kind, number, nodes.kind, free, spare, per_gpu, take)
        elif scheme == CONSOLIDATED_FIRST_FIT:
            ok = pick_first(need, kind, nodes.racks, nodes.kind, nodes.rack, nodes.gpus, free, spare, per_gpu, take)
            if not ok and not pick_first(
                need, kind, nodes.racks, nodes.kind, nodes.rack, nodes.gpus, nodes.whole, nodes.capacity, per_gpu, take
            ):  # not even on idle nodes: it would never start
                take[:] = 0
                number = fewest_nodes(need, kind, nodes, per_gpu)
                ok = number > 0 and pick_fewest(need, kind, number, nodes.kind, free, spare, per_gpu, take)
        elif scheme == RANDOM:
            ok = pick_random(need, kind, seed, nodes.kind, nodes.gpu_node, left.taken, free, spare, per_gpu, take)
        else:
            ok = pick_anywhere(need, kind, scheme, nodes.kind, free, spare, per_gpu, take)
        if ok:
            return True
    return False


@kernel
def hold(take: bool, gpus: IntArray, lo: int, hi: int, per_gpu: FloatArray, row: int, nodes: Nodes, left: Left) -> None:
    """Take the GPUs `gpus[lo:hi]` for a job, or give them back."""
    sign = 1 if take else -1
    for i in range(lo, hi):
        left.taken[gpus[i]] = take
        node = nodes.gpu_node[gpus[i]]
        left.free[node] -= sign
        if nodes.limits:
            left.spare[node, 0] -= sign * per_gpu[row, 0]
            left.spare[node, 1] -= sign * per_gpu[row, 1]


@kernel
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
            for k in range(2):
                if per_gpu[row, k] * count > left.spare[node, k] + 1e-6:
                    return False
    return True


@part
def mark_candidates(
    p: int,
    need: int,
    everywhere: bool,
    kinds_allowed: int,
    running: Running,
    nodes: Nodes,
    free: IntArray,
) -> IntArray:
    """Nodes from which lower-ranked running jobs could make room for the job at position `p`.

    `everywhere` means all of the kinds allowed; otherwise as few as can give enough GPUs.
    """
    could = free.copy()
    for q in range(p + 1, len(running.held)):
        if running.held[q] == KEPT:
            for i in range(running.lo[q], running.hi[q]):
                could[nodes.gpu_node[running.gpus[i]]] += 1
    mark = np.zeros(len(free), dtype=np.int64)
    for kind in range(len(nodes.cap_prefix)):
        if (kinds_allowed >> kind) & 1 == 0:
            continue
        if everywhere:
            for node in range(len(free)):
                mark[node] = 1 if nodes.kind[node] == kind else mark[node]
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
            return mark
        mark[:] = 0
    return mark


@part
def make_room(
    p: int,
    need: int,
    scheme: int,
    kinds: int,
    seed: int,
    per_gpu: FloatArray,
    demand: IntArray,
    running: Running,
    nodes: Nodes,
    left: Left,
    take: IntArray,
) -> bool:
    """Take GPUs back from lower-ranked running jobs, the lowest first, until the job at `p` fits."""
    everywhere = not nodes.plain or scheme != CONSOLIDATED  # where cores, memory, racks or lost nodes decide
    mark = mark_candidates(p, need, everywhere, kinds, running, nodes, left.free)
    if not mark.any():
        return False
    for q in range(len(running.held) - 1, p, -1):
        if running.held[q] != KEPT:
            continue
        touches = False
        for i in range(running.lo[q], running.hi[q]):
            touches = touches or mark[nodes.gpu_node[running.gpus[i]]] == 1
        if not touches:
            continue
        hold(False, running.gpus, running.lo[q], running.hi[q], per_gpu, demand[q], nodes, left)
        running.held[q] = OUT
        if choose(need, scheme, kinds, seed, per_gpu[demand[p]], nodes, left, take):
            return True
    return False


@part
def count(
    order: IntArray,
    size: IntArray,
    running_group: IntArray,
    strict: BoolArray,
    now_first: IntArray,
    budget: int,
) -> tuple[BoolArray, IntArray, IntArray, int]:
    """Admit in order while `budget` GPUs last.

    Returns (admitted, first and last + 1 of the GPUs each position holds now, where a strict job stops it all).
    """
    n = len(order)
    admitted = np.zeros(n, dtype=np.bool_)
    now_lo, now_hi = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    stop = n
    for p in range(n):
        row = order[p]
        if running_group[row] >= 0:
            now_lo[p], now_hi[p] = now_first[running_group[row]], now_first[running_group[row] + 1]
        if p < stop:
            if size[row] <= budget:
                budget -= size[row]
                admitted[p] = True
            elif strict[min(row, len(strict) - 1)]:
                stop = p
    return admitted, now_lo, now_hi, stop


@part
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


@part
def keep(
    order: IntArray,
    size: IntArray,
    admitted: BoolArray,
    stop: int,
    per_gpu: FloatArray,
    demand: IntArray,
    running: Running,
    nodes: Nodes,
    left: Left,
) -> None:
    """Let running jobs before position `stop` that are `admitted` hold their GPUs; updates `running` and `left`."""
    gpus, lo, hi = running.gpus, running.lo, running.hi
    for p in range(stop):
        if admitted[p] and hi[p] > lo[p] and hi[p] - lo[p] == size[order[p]]:
            # Running groups share all their GPUs or none: until something is placed, one GPU decides for all.
            ok = not left.taken[gpus[lo[p]]]
            if nodes.limits:
                ok = all_free(gpus, lo[p], hi[p], per_gpu, demand[p], nodes, left)
            if ok:
                hold(True, gpus, lo[p], hi[p], per_gpu, demand[p], nodes, left)
                running.held[p] = KEPT


@part
def place_in_order(
    backfill: bool,
    stop: int,
    used: int,
    order: IntArray,
    size: IntArray,
    scheme: IntArray,
    strict: BoolArray,
    kinds_allowed: IntArray,
    seed: int,
    per_gpu: FloatArray,
    demand: IntArray,
    admitted: BoolArray,
    first_gpu: IntArray,
    running: Running,
    nodes: Nodes,
    left: Left,
    found: Found,
) -> tuple[int, int]:
    """Place jobs that are admitted or, to `backfill`, all others.

    Returns where the walk stops, and how much of `found.gpus` is used.
    """
    gpus, lo, hi, held = running
    take = np.zeros(len(left.free), dtype=np.int64)
    rest = left.free.sum()
    for p in range(stop):
        if held[p] == SETTLED or not (backfill or admitted[p]):
            continue
        row = order[p]
        need = size[row]
        stays = held[p] == KEPT
        if not stays and hi[p] > lo[p] and hi[p] - lo[p] == need:
            stays = all_free(gpus, lo[p], hi[p], per_gpu, demand[p], nodes, left)
            if stays:
                hold(True, gpus, lo[p], hi[p], per_gpu, demand[p], nodes, left)
                rest -= need
        if stays:
            held[p], found.stays[p], found.status[p] = SETTLED, True, PLACED
            continue
        how = scheme[min(row, len(scheme) - 1)]
        kinds = kinds_allowed[min(row, len(kinds_allowed) - 1)]
        ok = need <= rest and choose(need, how, kinds, seed + p, per_gpu[demand[p]], nodes, left, take)
        if not ok and not backfill:
            ok = make_room(p, need, how, kinds, seed + p, per_gpu, demand, running, nodes, left, take)
            rest = left.free.sum()
        if not ok:
            found.status[p] = FRAGMENTED if rest >= need else TOO_FEW
            if strict[min(row, len(strict) - 1)]:
                stop = p
                break
            continue
        found.lo[p], used = used, name_gpus(take, first_gpu, left.taken, found.gpus, used)
        found.hi[p] = used
        hold(True, found.gpus, found.lo[p], used, per_gpu, demand[p], nodes, left)
        held[p], found.status[p] = SETTLED, PLACED
        rest -= need
    for q in range(stop, len(order)):
        if held[q] == KEPT:  # after a strict job that does not fit no job runs
            hold(False, gpus, lo[q], hi[q], per_gpu, demand[q], nodes, left)
            held[q] = OUT
    return stop, used


@kernel
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
    n = len(order)
    limits = bool(per_gpu.any())
    taken, free, whole, budget = idle(
        order, running_group, now_gpus, now_first, node_gpus, first_gpu, gpu_node, node_up
    )
    racks = 1
    for rack in node_rack:
        racks = max(racks, rack + 1)
    plain = not limits and bool(node_up.all())
    nodes = Nodes(cap_prefix, node_kind, node_rack, node_gpus, gpu_node, racks, plain, limits, whole, capacity)
    left = Left(taken, free, capacity.copy() if limits else capacity)
    admitted, now_lo, now_hi, stop = count(order, size, running_group, strict, now_first, budget)
    running = Running(now_gpus, now_lo, now_hi, np.zeros(n, dtype=np.int64))
    demand = np.minimum(order, len(per_gpu) - 1)
    keep(order, size, admitted, stop, per_gpu, demand, running, nodes, left)
    found = Found(
        np.full(n, TOO_FEW, dtype=np.int64), np.zeros(n, dtype=np.bool_), np.empty(len(taken) + 1, dtype=np.int64),
        np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64),
    )  # fmt: skip
    used = 0
    for backfill in (False, True):
        stop, used = place_in_order(
            backfill, stop, used, order, size, scheme, strict, kinds_allowed, seed, per_gpu, demand, admitted,
            first_gpu, running, nodes, left, found,
        )  # fmt: skip
    return gather(stop, running, found)


@part
def gather(stop: int, running: Running, found: Found) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Collect the GPUs of all jobs before position `stop` that stay (`running`) or were placed (`found`), in order."""
    status = found.status
    n = len(status)
    count, total = 0, 0
    for p in range(n):
        if status[p] == PLACED:
            count += 1
            total += running.hi[p] - running.lo[p] if found.stays[p] else found.hi[p] - found.lo[p]
        elif p > stop:
            status[p] = BLOCKED
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
