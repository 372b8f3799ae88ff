"""Exact allocation of GPUs to adaptive jobs against the published genetic search.

    python benchmarks/bench_allocation.py [--quick | --whole]

Jobs of the six models in the shares of the published workload, at random points of their training, on an empty cluster
of 4-GPU nodes; the objective is the harmonic mean of speed-ups. A round computes goodput tables, sizes and placements.
The search also has tables, and 100 generations. `--whole`: 200 instances of 20 to 160 jobs on 16 to 64 nodes, half an
hour.
"""

from __future__ import annotations

import statistics
import sys
import time

import common
import numpy as np
from common import Figure
from random_rounds import Round, random_jobs, random_round

from plait.core.arrays import FloatArray, IntArray
from plait.goodput.batch import goodput_table
from plait.goodput.fitness import fitness
from plait.goodput.genetic import evolve
from plait.goodput.ilp import best_arrangement
from plait.goodput.kinds import best_configurations, kind_configs, relative
from plait.goodput.knapsack import best_sizes
from plait.goodput.throughput import fair_share, speedup
from plait.placement.elastic import place_arranged, place_sizes

SIZES = ((20, 16), (160, 16), (160, 64), (300, 512))


def speedups(asked: Round, configs: IntArray) -> FloatArray:
    """Goodput tables over what each job would have on its fair share."""
    share = fair_share(asked.gpus, len(asked.jobs), asked.gpus_per_node)
    base = goodput_table(asked.jobs, [share])[:, 0]
    return speedup(goodput_table(asked.jobs, configs, most_gpus=asked.most), base)


def by_ladder(asked: Round) -> IntArray:
    """Tables, the ladder's optimum, places; the GPUs of each job."""
    gains = speedups(asked, asked.steps)
    sizes = asked.steps[best_sizes(gains, asked.steps[:, 1], asked.gpus), 1]
    empty = np.zeros((len(sizes), asked.nodes), dtype=np.int64)
    return place_sizes(sizes, empty, np.full(asked.nodes, asked.gpus_per_node)).gpus


def by_program(asked: Round) -> IntArray:
    """The same over every size."""
    gains = speedups(asked, asked.configs)
    found = best_arrangement(gains, asked.configs, asked.gpus_per_node, asked.nodes)
    return place_arranged(found.gpus, np.zeros_like(found.gpus), np.full(asked.nodes, asked.gpus_per_node)).gpus


def rounds(quick: bool) -> list[Figure]:
    """CPU time of a round by method."""
    runs = 2 if quick else common.RUNS
    figures = []
    for jobs, nodes in SIZES[: 2 if quick else None]:
        asked = random_round(1, jobs, nodes)
        by_ladder(asked)
        exact = common.cpu_s(lambda a=asked: by_ladder(a), runs)
        goal = "goal 0.05 s" if (jobs, nodes) == (160, 16) else "goal 1 s" if jobs == 300 else ""
        size = f"{jobs} jobs, {asked.gpus:,} GPUs"
        if jobs == 300:
            figures.append(Figure(f"ladder, {size}", exact, runs, goal=goal))
            continue
        rows, names = np.arange(jobs), np.arange(nodes)
        search = common.cpu_s(lambda a=asked, r=rows, n=names: evolve(a.search(), r, n, np.random.default_rng(0)), 2)
        figures.append(Figure(f"ladder, {size}", exact, runs, search / exact, "genetic search", goal))
        by_program(asked)
        whole = common.cpu_s(lambda a=asked: by_program(a), runs)
        figures.append(Figure(f"every size, {size}", whole, runs, search / whole, "genetic search", "goal 0.2 s"))
    return figures


def kinds(quick: bool) -> list[Figure]:
    """CPU time of one choice on three kinds of GPUs."""
    figures = []
    for jobs, nodes in ((60, (6, 3, 4)), (160, (24, 12, 16))):
        configs = kind_configs((4, 8, 4), nodes, 64)
        speed = np.array([1.0, 2.4, 1.3])[configs[:, 2]]
        values = relative(goodput_table(random_jobs(jobs, np.random.default_rng(1)), configs[:, :2]) * speed)
        capacity = np.array(nodes) * (4, 8, 4)

        def choose(v: object = values, c: IntArray = configs, g: IntArray = capacity) -> object:
            return best_configurations(v, c[:, 1], c[:, 2], g)  # type: ignore[arg-type]

        choose()
        runs = 2 if quick else common.RUNS
        figures.append(Figure(f"three kinds, {jobs} jobs, {capacity.sum()} GPUs", common.cpu_s(choose, runs), runs))
    return figures


def quality(whole: bool) -> list[Figure]:
    """Fitness of the exact methods over the search's, after 100 generations and in three rounds of 100."""
    asked = [(seed, None, None) for seed in range(200)] if whole else [(s, 20 + 2 * s, 16) for s in range(5)]
    cold, warm, faster = [], [], []
    for seed, jobs, nodes in asked:
        one = random_round(seed, jobs, nodes)
        rows, gpus = np.arange(len(one.jobs)), one.steps[:, 1]
        exact_s = common.cpu_s(lambda o=one, g=gpus: best_sizes(o.on_ladder, g, o.gpus), 3)
        sizes = best_sizes(one.on_ladder, gpus, one.gpus)
        every = best_arrangement(one.speedup, one.configs, one.gpus_per_node, one.nodes)
        rng, front, reached = np.random.default_rng(seed), None, []
        for generation in range(3):
            begin = time.process_time()
            found = evolve(one.search(), rows, np.arange(one.nodes), rng, front)
            front = found.front
            reached.append(found.fitness)
            if generation == 0:
                faster.append((time.process_time() - begin) / exact_s)
        cold.append(float(fitness(one.on_ladder[rows, sizes])) / reached[0])
        warm.append(float(fitness(one.speedup[rows, every.columns])) / reached[-1])
    figures = []
    for what, ratios, against in (
        ("fitness of the ladder", cold, "100 generations"),
        ("fitness of every size", warm, "3 x 100 generations"),
    ):
        for name, value in (("least", min(ratios)), ("median", statistics.median(ratios))):
            figures.append(Figure(f"{what}, {name} of {len(asked)}", value, 1, value, against, "goal 1", unit="x"))
    least = min(faster)
    figures.append(Figure("speed of the ladder, least", least, 3, least, "100 generations", "goal 50", unit="x"))
    return figures


def main() -> None:
    """All figures."""
    quick = "--quick" in sys.argv
    common.show([*rounds(quick), *kinds(quick), *quality("--whole" in sys.argv)])


if __name__ == "__main__":
    main()
