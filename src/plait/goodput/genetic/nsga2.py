"""Ranking by two objectives, both maximised: the problem-independent parts of NSGA-II (Deb et al. 2002)."""

from __future__ import annotations

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray


def dominates(scores: FloatArray) -> BoolArray:
    """(P, P): whether row i is nowhere worse and somewhere better than row j; `scores` (P, 2), larger is better."""
    first, second = scores[:, 0], scores[:, 1]
    no_worse = (first[:, None] >= first) & (second[:, None] >= second)
    better: BoolArray = no_worse & ~no_worse.T
    return better


def survivors(scores: FloatArray, keep: int) -> tuple[IntArray, IntArray, FloatArray]:
    """The best `keep` rows, front by front, the last front cut by crowding: rows, their ranks, their crowding."""
    over = dominates(scores)
    above = over.sum(axis=0)
    rows: list[IntArray] = []
    ranks: list[IntArray] = []
    crowds: list[FloatArray] = []
    left, rank = min(keep, len(scores)), 0
    while left > 0:
        front = np.flatnonzero(above == 0)
        above[front] = -1
        above -= over[front].sum(axis=0)
        crowd = crowding(scores[front])
        if len(front) > left:
            some = np.argsort(-crowd, kind="stable")[:left]
            front, crowd = front[some], crowd[some]
        rows.append(front)
        ranks.append(np.full(len(front), rank))
        crowds.append(crowd)
        left -= len(front)
        rank += 1
    if not rows:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    return np.concatenate(rows), np.concatenate(ranks), np.concatenate(crowds)


def crowding(scores: FloatArray) -> FloatArray:
    """How far apart the neighbours of each row of one front are; infinite at the ends, 0 for repeated scores.

    In a front both objectives give the same order, backwards, so one sort does.
    """
    unique, first = np.unique(scores, axis=0, return_index=True)
    crowd = np.zeros(len(scores))
    if len(unique) <= 2:
        crowd[first] = np.inf
        return crowd
    span = np.abs(unique[-1] - unique[0])
    gaps = np.abs(unique[2:] - unique[:-2]) / np.where(span > 0, span, 1.0)
    crowd[first[1:-1]] = gaps.sum(axis=1) / 2
    crowd[first[[0, -1]]] = np.inf
    return crowd


def tournaments(scores: FloatArray, crowd: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    """`count` winners of matches of two drawn from random permutations: dominance, then crowding, then a coin."""
    size = len(scores)
    permutations = [rng.permutation(size) for _ in range(-(-2 * count // size))]
    one, other = np.concatenate(permutations)[: 2 * count].reshape(count, 2).T
    ahead = (scores[one] >= scores[other]).all(axis=1) & (scores[one] != scores[other]).any(axis=1)
    behind = (scores[one] <= scores[other]).all(axis=1) & (scores[one] != scores[other]).any(axis=1)
    coin = rng.random(count) < 0.5
    neither = np.where(crowd[one] == crowd[other], coin, crowd[one] > crowd[other])
    return np.where(ahead | (~behind & neither), one, other)
