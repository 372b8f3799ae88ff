"""The configurations (nodes, GPUs) among which a job's size is chosen.

The ladder keeps few sizes, of which every choice that fits in number can also be placed (Sia, section 3.4):
nothing, parts of a node of which each divides the next, and whole nodes. Because of that only GPU counts couple
the jobs, and the best choice is a knapsack. `every_size` is what the integer program searches.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from plait.core.arrays import IntArray
from plait.core.errors import InputError


def ladder(gpus_per_node: int, nodes: int, most: int | None = None) -> IntArray:
    """(C, 2) rows (nodes, GPUs), from (0, 0) upwards: powers of two within a node, then 1, 2, 3, ... whole nodes.

    Where a node does not have a power of two of GPUs only powers that divide it are taken, and the node itself: three
    jobs of 4 GPUs are 12, yet two nodes of 6 hold only two of them. `most` caps the GPUs of a job.

    >>> ladder(4, 3).tolist()
    [[0, 0], [1, 1], [1, 2], [1, 4], [2, 8], [3, 12]]
    >>> ladder(6, 2)[:, 1].tolist()
    [0, 1, 2, 6, 12]
    """
    return _ladder(gpus_per_node, nodes, most).copy()


@lru_cache(256)
def _ladder(gpus_per_node: int, nodes: int, most: int | None) -> IntArray:
    _check(gpus_per_node, nodes)
    parts = [1 << i for i in range(gpus_per_node.bit_length()) if gpus_per_node % (1 << i) == 0]
    sizes = [(0, 0)] + [(1, k) for k in parts if nodes and k < gpus_per_node]
    sizes += [(n, n * gpus_per_node) for n in range(1, nodes + 1)]
    return np.array([(n, k) for n, k in sizes if most is None or k <= most], dtype=np.int64)


def every_size(gpus_per_node: int, nodes: int, most: int | None = None) -> IntArray:
    """(C, 2) rows (nodes, GPUs): nothing; 1, 2, ... GPUs of one node; 2, 3, ... of several, as few nodes as hold them.

    `most` caps the GPUs of a job. The throughput model sees of a placement only its GPUs and whether they are on one
    node, so these are all possible values.

    >>> every_size(2, 2).tolist()
    [[0, 0], [1, 1], [1, 2], [2, 2], [2, 3], [2, 4]]
    """
    return _every_size(gpus_per_node, nodes, most).copy()


@lru_cache(256)
def _every_size(gpus_per_node: int, nodes: int, most: int | None) -> IntArray:
    _check(gpus_per_node, nodes)
    most = nodes * gpus_per_node if most is None else min(most, nodes * gpus_per_node)
    one = [(1, k) for k in range(1, min(gpus_per_node, most) + 1)]
    several = [(max(2, -(-k // gpus_per_node)), k) for k in range(2, most + 1)] if nodes > 1 else []
    return np.array([(0, 0), *one, *several], dtype=np.int64)


def column_of(configs: IntArray, nodes: IntArray, gpus: IntArray) -> IntArray:
    """The column of each job's configuration, from its GPUs and whether they are on several nodes.

    `nodes`, `gpus` (J,) are what the jobs hold; -1 where no row of `configs` (C, 2) is that.

    >>> column_of(ladder(4, 2), np.array([0, 1, 2, 2]), np.array([0, 2, 8, 2])).tolist()
    [0, 2, 4, -1]
    """
    same = (configs[:, 1] == gpus[:, None]) & ((configs[:, 0] > 1) == (nodes > 1)[:, None])
    return np.where(same.any(axis=1), same.argmax(axis=1), -1)


def _check(gpus_per_node: int, nodes: int) -> None:
    if gpus_per_node < 1 or nodes < 0:
        raise InputError(f"sizes need nodes with at least one GPU (got {nodes} nodes of {gpus_per_node} GPUs)")
