"""Interleaving: members of a group take turns on the resources in lock step (Muri, sections 3 and 4)."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError


def interleaved_iteration_s(stage_s: FloatArray) -> float:
    """Seconds of one iteration of the whole group under its best stage order.

    `stage_s` has shape (p jobs, k resources), p <= k. With distinct offsets s_i the iteration takes
    T(s) = sum_j max_i stage_s[i, (s_i + j) mod k]  (formula (3)); all offsets are tried, the first job's is 0
    because T does not change when all rotate together. Raises `InputError` for more jobs than resources.

    >>> interleaved_iteration_s(np.array([[2.0, 1.0], [1.0, 2.0]]))
    3.0
    >>> interleaved_iteration_s(np.array([[4.0, 1.0, 1.0, 1.0], [1.0, 1.0, 4.0, 1.0]]))
    7.0
    """
    jobs, resources = stage_s.shape
    if jobs > resources:
        raise InputError(f"{jobs} jobs cannot take turns on {resources} resources; at most {resources} fit a group")
    best = float("inf")
    for offsets in permutations(range(1, resources), jobs - 1):
        rolled = np.stack([np.roll(stage_s[i], -s) for i, s in enumerate((0, *offsets))])
        best = min(best, float(rolled.max(axis=0).sum()))
    return best
