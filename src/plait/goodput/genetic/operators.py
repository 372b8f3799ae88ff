"""How the published search varies allocations: crossover, mutation and repair, whole populations at a time.

An allocation is a matrix of GPUs, jobs x nodes; a population (P, J, N) holds small integers. Rules: the simulator
that was released with Pollux (OSDI'21).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.core.arrays import IntArray

#: Probabilities of the published mutation and crossover.
CROSSOVER, RESET, ROW, ENTRY = 0.9, 0.1, 0.1, 0.1

#: A job is spread over at most this many nodes.
MOST_NODES = 16

States = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Limits:
    """Constraints of an allocation.

    `running` (J, N) is the allocation now, `capacity` (N,) the GPUs of a node, `most` and `least` (J,) the GPUs that a
    job may have (fewer than `least`: none), `artifact` the released repair, in which the second distributed job of a
    node takes it from every later row, one-node jobs too. Without `apart` distributed jobs may share nodes.
    """

    running: States
    capacity: States
    most: States
    least: States
    artifact: bool = False
    apart: bool = True


def cross(parents: States, rng: np.random.Generator) -> States:
    """Two children of each pair (2 c, 2 c + 1) of `parents`: rows before a random one are exchanged."""
    pairs, jobs = len(parents) // 2, parents.shape[1]
    point = np.where(rng.random(pairs) < CROSSOVER, rng.integers(0, max(jobs, 1), pairs), 0)
    taken = (np.arange(jobs) < point[:, None])[:, :, None]
    one, other = parents[0::2], parents[1::2]
    return np.concatenate([np.where(taken, other, one), np.where(taken, one, other)])


def mutate(states: States, limits: Limits, rng: np.random.Generator) -> States:
    """Mutate `states` (P, J, N) in place: rows back to what runs, entries to 0, and more of a node's free GPUs."""
    count, jobs = states.shape[:2]
    back = rng.random((count, jobs), dtype=np.float32) < RESET
    states[back] = np.broadcast_to(limits.running, states.shape)[back]
    at = np.nonzero(rng.random((count, jobs), dtype=np.float32) < ROW)
    rows = states[at]
    rows[rng.random(rows.shape, dtype=np.float32) < ENTRY] = 0
    states[at] = rows
    roomy = np.nonzero(states.sum(axis=1, dtype=np.int32) < limits.capacity)  # (child, node) with a free GPU
    shares = states.transpose(0, 2, 1)[roomy]
    here = shares > 0
    any_job = 1.0 / max(jobs, 1)
    who = 1.0 / np.maximum(here.sum(axis=1), 1)[:, None]
    chance = np.where(here, any_job + who - any_job * who, any_job)
    node, job = np.nonzero(rng.random(shares.shape, dtype=np.float32) < chance)
    low = shares[node, job].astype(np.int64)
    high = np.maximum(limits.capacity[roomy[1][node]].astype(np.int64), low)
    states[roomy[0][node], job, roomy[1][node]] = rng.integers(low, high + 1)
    return states


def repair(states: States, limits: Limits, rng: np.random.Generator) -> States:
    """Make `states` (P, J, N) satisfy `limits` in place: interference, most GPUs, capacity, least GPUs, in order."""
    if limits.apart:
        _part(states, limits.artifact)
    _cap_jobs(states, limits.most, rng)
    child, node = np.nonzero(states.sum(axis=1, dtype=np.int32) > limits.capacity)
    if len(child):
        shares = states[child, :, node].astype(np.int32)
        before = np.cumsum(shares, axis=1) - shares
        room = np.maximum(limits.capacity[node][:, None] - before, 0)
        states[child, :, node] = np.minimum(shares, room)
    if (limits.least > 1).any():
        states[states.sum(axis=2, dtype=np.int32) < limits.least] = 0
    return states


def _part(states: States, artifact: bool) -> None:
    """Leave each node to the first distributed job on it."""
    present = states > 0
    distributed = present.sum(axis=2, dtype=np.int32) > 1
    crowd = present & distributed[:, :, None]
    child, node = np.nonzero(crowd.sum(axis=1, dtype=np.int32) > 1)
    if len(child):
        later = np.cumsum(crowd[child, :, node], axis=1, dtype=np.int32) > 1
        if not artifact:
            later &= distributed[child]
        which, row = np.nonzero(later)
        states[child[which], row, node[which]] = 0


def _cap_jobs(states: States, most: States, rng: np.random.Generator) -> None:
    """Cut jobs with too many GPUs or nodes, walking their nodes in a random order."""
    gpus = states.sum(axis=2, dtype=np.int32)
    child, job = np.nonzero((gpus > most) | ((states > 0).sum(axis=2, dtype=np.int32) > MOST_NODES))
    if not len(child):
        return
    order = np.argsort(rng.random((len(child), states.shape[2]), dtype=np.float32), axis=1)
    shares = np.take_along_axis(states[child, job].astype(np.int32), order, axis=1)
    before = np.cumsum(shares, axis=1) - shares
    shares = np.minimum(shares, np.maximum(most[job][:, None] - before, 0))
    shares[np.cumsum(shares > 0, axis=1) > MOST_NODES] = 0
    cut = np.empty_like(shares)
    np.put_along_axis(cut, order, shares, axis=1)
    states[child, job] = cut


def distinct(states: States) -> IntArray:
    """Rows of a population that differ from the earlier ones, the first of each kind, ascending."""
    seen: set[bytes] = set()
    rows = []
    for row, state in enumerate(states):
        key = state.tobytes()
        if key not in seen:
            seen.add(key)
            rows.append(row)
    return np.array(rows, dtype=np.int64)
