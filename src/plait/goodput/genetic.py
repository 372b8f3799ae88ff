"""The published search for an allocation: NSGA-II over matrices of GPUs, seeded (Pollux, OSDI'21, section 4.2).

A reference to compare exact methods with. Populations of 100 allocations; each generation 100 new ones by tournaments,
crossover, mutation and repair, of which the best by FITNESS and by cluster utility survive. The non-dominated set of a
round is the start of the next: `Front`, a value that the caller keeps. Start at `evolve`.

An allocation is a matrix of GPUs, jobs x nodes; a population (P, J, N) holds small integers. Rules: the simulator
that was released with Pollux (OSDI'21).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.goodput.fitness import FLOOR, HARMONIC, fitness

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


# Ranking by two objectives, both maximised: the problem-independent parts of NSGA-II (Deb et al. 2002).


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


# The search itself.

#: Published sizes: allocations in a population, generations counting the first, attempts at new children.
POPULATION, GENERATIONS, ATTEMPTS = 100, 100, 100

#: Attempts in a row without anything new after which a generation ends (a lone job of one GPU has few places).
BARREN = 5


@dataclass(frozen=True)
class Front:
    """The non-dominated allocations of a round: `states` (F, J, N) for jobs and nodes by their numbers."""

    jobs: IntArray
    nodes: IntArray
    states: States

    def matched(self, jobs: IntArray, nodes: IntArray) -> States:
        """The same for other jobs and nodes: new ones have no GPUs, missing ones are dropped."""
        found = np.zeros((len(self.states), len(jobs), len(nodes)), dtype=np.int16)
        _, new_job, old_job = np.intersect1d(jobs, self.jobs, return_indices=True)
        _, new_node, old_node = np.intersect1d(nodes, self.nodes, return_indices=True)
        found[:, new_job[:, None], new_node] = self.states[:, old_job[:, None], old_node]
        return found


@dataclass(frozen=True)
class Search:
    """The input of one round: J jobs in order of precedence, N nodes, speed-ups by GPUs and one or several nodes.

    `speedup` (J, C) belongs to `configs` (C, 2) = nodes, gpus, as `ladder.every_size` gives them; a combination that
    is not among them is worth 0. A row that differs from `running` (J, N) is worth `factor` (J,) of its speed-up.
    Without `apart` a node may have several distributed jobs.
    """

    speedup: FloatArray
    configs: IntArray
    running: IntArray
    capacity: IntArray
    factor: FloatArray
    most: IntArray
    least: IntArray | None = None
    weights: FloatArray | None = None
    p: float = HARMONIC
    floor: float = FLOOR
    artifact: bool = False
    apart: bool = True

    def __post_init__(self) -> None:
        jobs, nodes = self.running.shape
        wrong = self.speedup.shape != (jobs, len(self.configs)) or self.capacity.shape != (nodes,)
        if wrong or self.factor.shape != (jobs,) or self.most.shape != (jobs,):
            raise InputError(
                f"a search over {jobs} jobs and {nodes} nodes got speed-ups {self.speedup.shape}, configurations "
                f"{self.configs.shape}, capacity {self.capacity.shape}, factors {self.factor.shape} and most GPUs "
                f"{self.most.shape}; the first axis of each is jobs, nodes or configurations"
            )


@dataclass(frozen=True)
class Evolved:
    """The allocation with the best FITNESS (J, N), that FITNESS, and the set to start the next round from."""

    gpus: IntArray
    fitness: float
    front: Front


def evolve(
    search: Search,
    jobs: IntArray,
    nodes: IntArray,
    rng: np.random.Generator,
    front: Front | None = None,
    *,
    generations: int = GENERATIONS,
    population: int = POPULATION,
) -> Evolved:
    """The best allocation found for `jobs` (J,) and `nodes` (N,), which are their numbers, from the last round's front.

    The same search, front and state of `rng` give the same result.
    """
    scale = _Scale(search)
    limits = Limits(
        search.running.astype(np.int16),
        search.capacity.astype(np.int16),
        np.minimum(search.most, np.iinfo(np.int16).max).astype(np.int16),
        np.zeros(len(jobs), dtype=np.int16) if search.least is None else search.least.astype(np.int16),
        search.artifact,
        search.apart,
    )
    states = limits.running[None].copy() if front is None else front.matched(jobs, nodes)
    states = repair(states, limits, rng)
    states = states[distinct(states)]
    scores = scale(states)
    rows, rank, crowd = survivors(scores, population)
    states, scores = states[rows], scores[rows]
    for _ in range(generations - 1):
        children = _offspring(states, scores, crowd, limits, rng, population)
        states = np.concatenate([states, children])
        scores = np.concatenate([scores, scale(children)])
        rows, rank, crowd = survivors(scores, population)
        states, scores = states[rows], scores[rows]
    best = int(scores[:, 0].argmax())
    return Evolved(states[best].astype(np.int64), float(scores[best, 0]), Front(jobs, nodes, states[rank == 0]))


def _offspring(
    states: States, scores: FloatArray, crowd: FloatArray, limits: Limits, rng: np.random.Generator, wanted: int
) -> States:
    """Up to `wanted` new allocations, different from each other and from their parents."""
    known = {state.tobytes() for state in states}
    found: list[States] = []
    barren = 0
    for _ in range(ATTEMPTS):
        before = len(found)
        pairs = -(-(wanted - len(found)) // 2)
        parents = states[tournaments(scores, crowd, 2 * pairs, rng)]
        for child in repair(mutate(cross(parents, rng), limits, rng), limits, rng):
            key = child.tobytes()
            if key not in known:
                known.add(key)
                found.append(child)
        barren = 0 if len(found) > before else barren + 1
        if len(found) >= wanted or barren == BARREN:
            break
    return np.array(found[:wanted], dtype=np.int16).reshape(-1, *states.shape[1:])


class _Scale:
    """FITNESS and utility of allocations, looked up by GPUs and by whether they are on several nodes."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.running = search.running.astype(np.int16)
        self.capacity = search.capacity.astype(np.float64)
        jobs, most = len(search.running), int(max(search.capacity.sum(), search.configs[:, 1].max(initial=0)))
        self.width = most + 1
        self.values = np.zeros((jobs, 2 * self.width))
        several = (search.configs[:, 0] > 1).astype(np.int64)
        self.values[:, several * self.width + search.configs[:, 1]] = np.nan_to_num(search.speedup)
        self.jobs = np.arange(jobs)

    def __call__(self, states: States) -> FloatArray:
        """(P, 2) FITNESS with the cost of restarts, and utility: how much of their ideal the GPUs in use are worth."""
        search = self.search
        used = states > 0
        gpus = states.sum(axis=2, dtype=np.int64)
        speedup: FloatArray = self.values[self.jobs, (used.sum(axis=2, dtype=np.int64) > 1) * self.width + gpus]
        stays = (states == self.running).all(axis=2)
        worth = np.where(stays, 1.0, search.factor) * speedup
        fit = fitness(worth, search.p, floor=search.floor, weights=search.weights)
        active = used.any(axis=1) @ self.capacity
        # share of the active GPUs times speed-up a GPU: the GPUs of the job cancel
        utility = np.where(gpus > 0, speedup, 0.0).sum(axis=1) / np.maximum(active, 1.0)
        return np.stack([fit, utility], axis=1)
