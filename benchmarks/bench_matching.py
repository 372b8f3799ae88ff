"""Exact maximum-weight matching against rustworkx and networkx, on efficiencies of interleaved jobs.

    python benchmarks/bench_matching.py [--quick]

The weight of a pair is Muri's interleaving efficiency, formula (4), of profiles drawn around the eight models of its
traces: every job its own ("continuous") or drawn from eight ("8 kinds", so that most weights are equal). All solve
the same whole numbers, and must find the same weight; graphs are built before the clock starts.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from functools import partial

import common
import networkx as nx
import numpy as np
import rustworkx as rx
from common import Figure

from plait.core.arrays import IntArray
from plait.core.jit import plain
from plait.grouping.matching import SMALL, maximum_weight_matching, solved
from plait.grouping.matching_kernels import assign, match

# Milliseconds an iteration on storage, CPU, GPU, network on 8 GPUs: shufflenet, resnet18, vgg16, vgg19, bert, gpt2,
# a2c, dqn. The published data stage is storage and CPU together; 70 % to the one the authors call the bottleneck,
# or to storage, is an assumption.
MODELS = np.array(
    [
        [538.3, 230.7, 57, 10],
        [548.8, 235.2, 117, 77],
        [57.4, 24.6, 75, 66],
        [57.4, 24.6, 88, 60],
        [0.35, 0.15, 167, 59],
        [0.42, 0.18, 419, 49],
        [150.6, 351.4, 14, 0.4],
        [130.5, 304.5, 8, 0.5],
    ]
)
SCALE = 10**7

FIRST_CALL = """
import time
import numpy as np
from plait.grouping.matching import maximum_weight_matching
w = np.random.default_rng(0).random((100, 100))
begin = time.process_time()
maximum_weight_matching(w + w.T)
print(time.process_time() - begin)
"""


def efficiencies(n: int, kinds: int = 0, seed: int = 1) -> IntArray:
    """Efficiency of every pair of n jobs, in units of 1e-7."""
    rng = np.random.default_rng(seed)
    models = rng.integers(0, len(MODELS), kinds or n)
    p = MODELS[models] * np.exp(0.35 * rng.standard_normal((kinds or n, 4)))
    p = p[rng.integers(0, kinds, n)] if kinds else p
    shifted = [sum(np.maximum(p[:, None, j], p[None, :, (j + s) % 4]) for j in range(4)) for s in (1, 2, 3)]
    gamma = (p.sum(1)[:, None] + p.sum(1)) / (4 * np.minimum.reduce(shifted))
    upper = np.triu(np.rint(gamma * SCALE).astype(np.int64), 1)
    return upper + upper.T


def total(weights: IntArray, mate: IntArray) -> int:
    """Weight of a matching."""
    left = np.flatnonzero(mate > np.arange(len(mate)))
    return int(weights[left, mate[left]].sum())


def against(name: str, weights: IntArray, label: str, goal: str, runs: int) -> Figure:
    """Ours and the library's, on the same weights."""
    edges = [(i, j, int(weights[i, j])) for i, j in itertools.combinations(range(len(weights)), 2)]
    found: list[set[tuple[int, int]]] = []
    if name == "rustworkx":
        graph = rx.PyGraph()
        graph.add_nodes_from(range(len(weights)))
        graph.add_edges_from(edges)
        theirs = common.cpu_s(lambda: found.append(rx.max_weight_matching(graph, weight_fn=int)), runs)
    else:
        other = nx.Graph()
        other.add_weighted_edges_from(edges)
        theirs = common.cpu_s(lambda: found.append(nx.max_weight_matching(other)), runs)
    best = sum(int(weights[i, j]) for i, j in found[0])
    assert total(weights, maximum_weight_matching(weights)) == best, "both must be exact"
    ours = common.cpu_s(partial(maximum_weight_matching, weights))
    return Figure(label, ours, common.RUNS, theirs / ours, name, goal, f"{name} {theirs:.3f} s")


def alone(weights: IntArray, label: str, goal: str) -> Figure:
    """Ours only."""
    return Figure(label, common.cpu_s(partial(maximum_weight_matching, weights)), common.RUNS, goal=goal)


def first_call(cache: str) -> float:
    """CPU seconds of the first call of a new process, with the compiler's cache in the folder `cache`."""
    env = {**os.environ, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Measure and print."""
    quick = "--quick" in sys.argv
    solved(np.array([[16, -2], [-2, 16]]), assign, match)  # compile
    few = 100 if quick else 250
    figures = [against("networkx", efficiencies(few), f"n = {few}, continuous", "" if quick else "goal >= 1000 x", 1)]
    cases = [(250, 0, "goal >= 20 x", common.RUNS), (500, 0, "goal >= 40 x", 1), (500, 8, "", 1)]
    cases += [] if quick else [(1000, 0, "goal >= 50 x, <= 0.25 s", 1), (1000, 8, "goal <= 0.25 s", 1)]
    for n, kinds, goal, runs in cases:
        label = f"n = {n}, " + (f"{kinds} kinds" if kinds else "continuous")
        figures.append(against("rustworkx", efficiencies(n, kinds), label, goal, runs))
    for n in (1000,) if quick else (2000, 4000):
        goal = "goal <= 2 s" if n == 2000 else ""
        figures.append(alone(efficiencies(n), f"n = {n}, continuous", goal))
        figures.append(alone(efficiencies(n, 8), f"n = {n}, 8 kinds", goal))
    for name, kernels in (("compiled", (assign, match)), ("plain Python", (plain(assign), plain(match)))):
        cost = -2 * efficiencies(SMALL)
        np.fill_diagonal(cost, 8 * SCALE)
        figures.append(Figure(f"n = {SMALL}, {name}", common.cpu_s(partial(solved, cost, *kernels)), common.RUNS))
    with tempfile.TemporaryDirectory() as cache:
        figures.append(Figure("first call ever, n = 100", first_call(cache), 1, goal="goal <= 10 s"))
        figures.append(Figure("first call of a later process", first_call(cache), 1))
    common.show(figures)


if __name__ == "__main__":
    main()
