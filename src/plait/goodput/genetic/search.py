"""The published search for an allocation: NSGA-II over matrices of GPUs, seeded (Pollux, OSDI'21, section 4.2).

A reference to compare exact methods with. Populations of 100 allocations; each generation 100 new ones by tournaments,
crossover, mutation and repair (`operators`), of which the best by FITNESS and by cluster utility survive (`nsga2`).
The non-dominated set of a round is the start of the next: `Front`, a value that the caller keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.goodput.fitness import FLOOR, HARMONIC, fitness
from plait.goodput.genetic.nsga2 import survivors, tournaments
from plait.goodput.genetic.operators import Limits, States, cross, distinct, mutate, repair

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
