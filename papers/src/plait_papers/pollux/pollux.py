"""Pollux in the artifact's world: sizes by goodput over a fair share, chosen exactly or by the published search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.goodput.batch import best_batch, goodput_table
from plait.goodput.fitness import HARMONIC, after_restart, column_of, every_size, fitness, ladder
from plait.goodput.genetic import Front, Search, evolve
from plait.goodput.knapsack import best_sizes
from plait.goodput.throughput import fair_share, restart_factor, speedup
from plait.placement.elastic import place_sizes
from plait.policies.sizing.steps import best_of_all
from plait_papers.pollux.clock import GPUS_PER_NODE, Allocation, Shape
from plait_papers.pollux.jobs import RESTART_S, Job, PolluxJob, table_of

MOST_GPUS = 64
"""As far as step times were measured."""

FLOOR = 4e-3
"""Value of a job without GPUs: the released 1e-3, which is added to the speed-up over GPUs of a node."""

Base = Literal["artifact", "corrected"]


@dataclass(frozen=True)
class Mean:
    """The mean of speed-ups that is made largest: its exponent `p`, the value of a job without GPUs, the fair shares.

    `base`: fair shares all on one node, as released, or on as few nodes as hold them.
    """

    p: float = HARMONIC
    floor: float = FLOOR
    base: Base = "artifact"


@dataclass(frozen=True)
class Round:
    """Input of a round: jobs by attained service, their speed-ups (J, C) on `configs`, and the running allocation."""

    jobs: Sequence[PolluxJob]
    speedup: FloatArray
    running: IntArray
    factor: FloatArray


AS_PUBLISHED = Mean()


class Pollux:
    """Sizes from the ladder, optimal among these, close to where the jobs are."""

    kind: type[Job] = PolluxJob

    def __init__(self, shape: Shape, mean: Mean = AS_PUBLISHED) -> None:
        self.nodes, self.mean = shape.nodes, mean
        self.capacity = np.full(shape.nodes, GPUS_PER_NODE)
        self.configs = self.sizes()
        self._rows: dict[int, tuple[object, FloatArray]] = {}
        self._bases: dict[int, tuple[object, float]] = {}

    def sizes(self) -> IntArray:
        """The configurations (nodes, GPUs) that are looked at."""
        return ladder(GPUS_PER_NODE, self.nodes, MOST_GPUS)

    def decide(
        self, now_s: float, jobs: Sequence[Job], allocations: Mapping[int, Allocation]
    ) -> Mapping[int, Allocation]:
        """The best allocation for the jobs as they are."""
        adaptive = [job for job in jobs if isinstance(job, PolluxJob)]
        adaptive.sort(key=lambda job: job.attained_gpu_s)
        running = np.zeros((len(adaptive), self.nodes), dtype=np.int64)
        for row, job in enumerate(adaptive):
            np.add.at(running[row], list(allocations.get(job.number, ())), 1)
        age_s = np.array([now_s - job.submit_s for job in adaptive])
        restarts = np.array([max(job.restarts, 0) for job in adaptive])
        factor = restart_factor(age_s, restarts, RESTART_S)
        chosen = self.choose(Round(adaptive, self._speedup(adaptive), running, factor))
        nodes = np.arange(self.nodes)
        return {job.number: tuple(np.repeat(nodes, row).tolist()) for job, row in zip(adaptive, chosen, strict=True)}

    def choose(self, now: Round) -> IntArray:
        """GPUs of each job on each node, (J, N)."""
        here = column_of(self.configs, (now.running > 0).sum(axis=1), now.running.sum(axis=1))
        worth = after_restart(now.speedup, now.factor, here)
        gpus = self.configs[:, 1]
        sizes = gpus[best_sizes(worth, gpus, int(self.capacity.sum()), self.mean.p, floor=self.mean.floor)]
        return place_sizes(sizes, now.running, self.capacity, smaller=gpus.tolist()).gpus

    # -- speed-ups -----------------------------------------------------------------------------------------------

    def _speedup(self, jobs: Sequence[PolluxJob]) -> FloatArray:
        """(J, C) goodput on each configuration over that on the fair share."""
        stale = [job for job in jobs if self._rows.get(job.number, (None,))[0] != job.state]
        if stale:
            most = np.array([job.most_gpus for job in stale])
            rows = goodput_table(table_of(stale), self.configs, most_gpus=most, artifact=True)
            for job, row in zip(stale, rows, strict=True):
                self._rows[job.number] = job.state, row
        return speedup(np.stack([self._rows[job.number][1] for job in jobs]), self._base(jobs))

    def _base(self, jobs: Sequence[PolluxJob]) -> FloatArray:
        """Goodput of each job on its fair share of the cluster, (J,)."""
        total = min(self.nodes * GPUS_PER_NODE, len(jobs) * MOST_GPUS)
        nodes, gpus = fair_share(total, len(jobs), GPUS_PER_NODE, one_node=self.mean.base == "artifact")
        keys = {job.number: (job.state, nodes, gpus) for job in jobs}
        stale = [job for job in jobs if self._bases.get(job.number, (None,))[0] != keys[job.number]]
        if stale:
            found = best_batch(table_of(stale), nodes, gpus, artifact=True).goodput[:, 0]
            for job, value in zip(stale, found.tolist(), strict=True):
                self._bases[job.number] = keys[job.number], value
        return np.array([self._bases[job.number][1] for job in jobs])


class PolluxExact(Pollux):
    """Any size, optimal among all allocations that keep distributed jobs apart, by an integer program."""

    def sizes(self) -> IntArray:
        """Every number of GPUs, on one node and on several."""
        return every_size(GPUS_PER_NODE, self.nodes, MOST_GPUS)

    def choose(self, now: Round) -> IntArray:
        """GPUs of each job on each node, (J, N); as now where moving jobs would cost more than it brings."""
        here = self._columns(now.running)
        p, floor = self.mean.p, self.mean.floor
        gpus = best_of_all(now.speedup, self.configs, now.running, self.capacity, now.factor, p, floor=floor).gpus
        rows = np.arange(len(now.jobs))
        stays = (gpus == now.running).all(axis=1)
        placed = now.speedup[rows, self._columns(gpus)] * np.where(stays, 1.0, now.factor)
        if fitness(now.speedup[rows, here], p, floor=floor) >= fitness(placed, p, floor=floor):
            return now.running
        return gpus

    def _columns(self, gpus: IntArray) -> IntArray:
        return column_of(self.configs, (gpus > 0).sum(axis=1), gpus.sum(axis=1))


class PolluxSearch(Pollux):
    """Any size anywhere, by the published genetic search, which continues from the previous round's front."""

    def __init__(self, shape: Shape, mean: Mean = AS_PUBLISHED, *, seed: int = 0, avoid: bool = True) -> None:
        """Without `avoid` distributed jobs may share nodes, and interfere."""
        super().__init__(shape, mean)
        self.avoid, self.rng = avoid, np.random.default_rng(seed)
        self.front: Front | None = None

    sizes = PolluxExact.sizes

    def choose(self, now: Round) -> IntArray:
        """GPUs of each job on each node, (J, N)."""
        most = np.array([job.most_gpus for job in now.jobs])
        search = Search(
            now.speedup, self.configs, now.running, self.capacity, now.factor, most, p=self.mean.p,
            floor=self.mean.floor, artifact=True, apart=self.avoid,
        )  # fmt: skip
        numbers = np.array([job.number for job in now.jobs])
        found = evolve(search, numbers, np.arange(self.nodes), self.rng, self.front)
        self.front = found.front
        return found.gpus
