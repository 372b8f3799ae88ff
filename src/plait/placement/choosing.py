"""How the GPUs of one gang are chosen, scheme by scheme: compiled, and compared with `reference.py` by a test.

`take[node]` says how many GPUs of a node the gang gets; `free[node]` are free GPUs, `spare[node, 0]` CPU cores
and `spare[node, 1]` bytes left, `per_gpu` what the gang wants of them for each of its GPUs.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import kernel

# schemes
CONSOLIDATED, CONSOLIDATED_FIRST_FIT, FIRST_FIT, BEST_FIT, SPREAD, COUNTING, RANDOM = 0, 1, 2, 3, 4, 5, 6


@kernel
def room(node: int, free: IntArray, spare: FloatArray, per_gpu: FloatArray) -> int:
    """GPUs of a job that fit on a node beside what is there."""
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
    """The node with most room; -1 if none has any."""
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
    """Fewest nodes, and among those the least room left over."""
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
    """The first idle nodes by number, then the first with the rest, all in one rack (tiresias.md 3.2)."""
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


@kernel
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
    """Any nodes, as many as it takes: by number, the roomiest first, or the fullest first."""
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


@kernel
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
    """GPUs drawn without replacement among the free ones of a kind; the same for the same seed."""
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
def fewest_nodes(
    need: int,
    kind: int,
    plain: bool,
    cap_prefix: IntArray,
    node_kind: IntArray,
    whole: IntArray,
    capacity: FloatArray,
    per_gpu: FloatArray,
) -> int:
    """How many empty nodes that are up can hold a gang; 0 if all together cannot.

    `plain`: all nodes are up and nobody states CPUs or memory, so that the sums in `cap_prefix` tell.
    """
    if plain:
        for k in range(cap_prefix.shape[1]):
            if cap_prefix[kind, k] >= need:
                return k + 1
        return 0
    counted = np.zeros(len(whole), dtype=np.int64)
    left, nodes = need, 0
    while left > 0:
        node = roomiest(kind, node_kind, whole, capacity, per_gpu, counted)
        if node < 0:
            return 0
        counted[node] = 1
        left -= room(node, whole, capacity, per_gpu)
        nodes += 1
    return nodes


@kernel
def choose(
    need: int,
    scheme: int,
    kinds_allowed: int,
    seed: int,
    per_gpu: FloatArray,
    cap_prefix: IntArray,
    racks: int,
    plain: bool,
    whole: IntArray,
    capacity: FloatArray,
    node_kind: IntArray,
    node_rack: IntArray,
    node_gpus: IntArray,
    gpu_node: IntArray,
    taken: BoolArray,
    free: IntArray,
    spare: FloatArray,
    take: IntArray,
) -> bool:
    """Fill `take[node]` with GPUs a node for one gang, all of one kind; False if it does not fit."""
    for kind in range(len(cap_prefix)):
        if (kinds_allowed >> kind) & 1 == 0:
            continue
        take[:] = 0
        if scheme == CONSOLIDATED:
            nodes_needed = fewest_nodes(need, kind, plain, cap_prefix, node_kind, whole, capacity, per_gpu)
            if nodes_needed == 0:
                ok = False
            else:
                ok = pick_fewest(need, kind, nodes_needed, node_kind, free, spare, per_gpu, take)
        elif scheme == CONSOLIDATED_FIRST_FIT:
            ok = pick_first(need, kind, racks, node_kind, node_rack, node_gpus, free, spare, per_gpu, take)
        elif scheme == RANDOM:
            ok = pick_random(need, kind, seed, node_kind, gpu_node, taken, free, spare, per_gpu, take)
        else:
            ok = pick_anywhere(need, kind, scheme, node_kind, free, spare, per_gpu, take)
        if ok:
            return True
    return False
