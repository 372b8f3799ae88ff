"""The objective of an allocation: a mean of the jobs' speed-ups (Pollux, section 4.2).

    FITNESS_p = (sum_j weight_j * x_j^p / sum_j weight_j)^(1/p),    x_j = SPEEDUP_j * restart factor

p = 1 is the mean (efficient, unfair), p = -1 the harmonic mean (the paper's default), p = 0 the geometric mean, and
the lower p, the closer to the least. FITNESS grows with a sum over jobs, so an allocator that chooses one
configuration for each job adds `terms`.

The configurations (nodes, GPUs) among which a job's size is chosen.

The ladder keeps few sizes, of which every choice that fits in number can also be placed (Sia, section 3.4):
nothing, parts of a node of which each divides the next, and whole nodes. Because of that only GPU counts couple
the jobs, and the best choice is a knapsack. `every_size` is what the integer program searches.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import MOST_TERM

#: The published default exponent: the harmonic mean.
HARMONIC = -1.0

#: Value of a job without GPUs, for p <= 0, so that its term is finite: 1 / FLOOR for p = -1. The published simulator
#: adds 1e-3 to SPEEDUP / (GPUs a node), which is 4e-3 on SPEEDUP with four of them.
FLOOR = 1e-3


def terms(
    speedup: npt.ArrayLike, p: float = HARMONIC, *, floor: float = FLOOR, weights: FloatArray | None = None
) -> FloatArray:
    """The terms of each speed-up in the sum that grows with FITNESS_p; larger is better for every p.

    `speedup` has jobs along its first axis; `weights` one number a job. NaN marks what a job cannot have, and stays.
    (x + floor)^p with the sign of p, for p = 0 the logarithm of max(x, floor), for p > 0 no floor; never more than
    `MOST_TERM` either way. Raises `InputError` where a job without GPUs would have no such term: see `check`.

    >>> terms([0.0, 1.0, 3.0], -1.0, floor=1.0).tolist()
    [-1.0, -0.5, -0.25]
    """
    check(p, floor)
    x = np.asarray(speedup, dtype=np.float64)
    with np.errstate(over="ignore"):
        if p < 0:
            sums = -((x + floor) ** p)
        elif p == 0:
            sums = np.log(np.maximum(x, floor))
        else:
            sums = x**p
        if weights is not None:
            sums = _limited(sums) * np.asarray(weights, np.float64).reshape(-1, *[1] * (x.ndim - 1))
    return _limited(sums)


def _limited(sums: FloatArray) -> FloatArray:
    """At most `MOST_TERM` either way; NaN stays."""
    limited: FloatArray = np.maximum(np.minimum(sums, MOST_TERM), -MOST_TERM)
    return limited


def check(p: float, floor: float = FLOOR) -> None:
    """Raise `InputError` unless a job without GPUs counts something that sums can hold.

    For p <= 0 that needs a floor above 0, and for p < 0 a floor that raised to p stays below `MOST_TERM`.
    """
    _check(p, floor)
    if p <= 0 and floor == 0:
        raise InputError(
            f"with fairness p={p:g} a job without GPUs would count for more than all others together where floor=0; "
            f"give a floor above 0 (published: {FLOOR:g}), or p above 0"
        )
    if p < 0 and p * math.log(floor) > math.log(MOST_TERM):
        # A number of three digits, not below `value`
        value = MOST_TERM ** (1 / p)
        unit = 10.0 ** (math.floor(math.log10(value)) - 2)
        least, above = math.log(MOST_TERM) / math.log(floor), f"{math.ceil(value / unit) * unit:.3g}"
        raise InputError(
            f"fairness p={p:g} with floor={floor:g} makes terms of 1/floor^{-p:g}, more than numbers can hold; "
            f"give p of at least {math.ceil(least)}, or a larger floor (for this p at least {above})"
        )


def fitness(
    speedup: npt.ArrayLike, p: float = HARMONIC, *, floor: float = FLOOR, weights: FloatArray | None = None
) -> FloatArray:
    """FITNESS_p of `speedup` over its last axis, the jobs; 0 without jobs of positive weight.

    >>> round(float(fitness([0.5, 1.0], floor=0.0)), 6)
    0.666667
    """
    _check(p, floor)
    x = np.asarray(speedup, dtype=np.float64)
    count = np.ones(x.shape[-1]) if weights is None else np.asarray(weights, dtype=np.float64)
    whole = float(count.sum())
    if whole <= 0:
        return np.zeros(x.shape[:-1])
    share = count / whole
    if p == 0:
        return np.exp(np.log(np.maximum(x, floor)) @ share)
    if p > 0:
        return np.asarray((x**p @ share) ** (1 / p))
    x = x + floor
    if x.ndim == 1 and (share > 0).all() and 0 < x.min() < math.inf:  # as below, in fewer steps
        least = x.min()
        return np.asarray(least * ((x / least) ** p @ share) ** (1 / p))
    least = np.where(share > 0, x, np.inf).min(-1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mean = ((x / least[..., None]) ** p @ share) ** (1 / p)  # the least taken out: no overflow however low p is
        return np.asarray(np.where(least > 0, least * mean, 0.0))


def after_restart(speedup: FloatArray, factor: FloatArray, running: IntArray) -> FloatArray:
    """Speed-ups (J, C) times the restart factor of each job (J,), except in its running configuration.

    `running` is the column of what a job has now; -1 if none of the columns is that: then all of its row is discounted.
    """
    discounted = speedup * factor[:, None]
    here = np.flatnonzero(running >= 0)
    discounted[here, running[here]] = speedup[here, running[here]]
    return discounted


def _check(p: float, floor: float) -> None:
    if not math.isfinite(p) or not floor >= 0:
        raise InputError(
            f"fairness p has to be finite and the floor not negative (got p={p}, floor={floor}); "
            "p=-1 with floor=0.001 is the published mean"
        )


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
    _check_nodes(gpus_per_node, nodes)
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
    _check_nodes(gpus_per_node, nodes)
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


def _check_nodes(gpus_per_node: int, nodes: int) -> None:
    if gpus_per_node < 1 or nodes < 0:
        raise InputError(f"sizes need nodes with at least one GPU (got {nodes} nodes of {gpus_per_node} GPUs)")
