"""Rates of jobs that share the links of a network: water-filling beside one linear program of HiGHS.

    python benchmarks/bench_network.py [--quick]

An iterated linear program needs one such program, and one for each job, at every level of rates; one alone is timed.
"""

from __future__ import annotations

import sys

import common
import numpy as np
from common import Figure
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack

from plait import Cluster
from plait.network.fluid.jobs import PlacedJob, channels, rates
from plait.network.fluid.max_min import Uses, max_min
from plait.network.fluid.memory import Windows, aggregated_rates
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked

QUICK = "--quick" in sys.argv
NETWORKS = {
    "leaf-spine": "leaf-spine:oversubscription=2,spines=8",
    "fat-tree": "fat-tree:k=16",
}


def placed(count: int, nodes: int, seed: int) -> list[PlacedJob]:
    """Jobs of 2 to 16 workers on nodes drawn at random, half with a parameter server, half as rings."""
    rng = np.random.default_rng(seed)
    jobs = []
    for i in range(count):
        some = rng.choice(nodes, int(rng.choice([2, 4, 8, 16])) + 1, replace=False).tolist()
        jobs.append(PlacedJob(tuple(some[1:]), some[0] if i % 2 else None))
    return jobs


def first_level(capacity: np.ndarray, uses: Uses) -> float:
    """The highest rate that all jobs can have at once, by HiGHS."""
    use = csr_matrix((uses.amount, uses.resource, uses.first), shape=(len(uses), len(capacity))).T
    equal = hstack([-csr_matrix(np.eye(len(uses))), csr_matrix(np.ones((len(uses), 1)))])
    rows = csr_matrix(np.vstack([hstack([use, csr_matrix((len(capacity), 1))]).toarray(), equal.toarray()]))
    found = linprog(
        np.append(np.zeros(len(uses)), -1.0), A_ub=rows, b_ub=np.append(capacity, np.zeros(len(uses))), method="highs"
    )
    assert found.status == 0
    return float(-found.fun)


def solves(name: str, network: str) -> Figure:
    """One network, a thousand jobs."""
    count, nodes = (100, 128) if QUICK else (1000, 1000)
    text = network.replace("k=16", "k=8") if QUICK else network
    graph = Graph.of(networked(Cluster.parse(f"{nodes}x8@{4 if QUICK else 8}"), text))
    uses = Uses.of([channels(graph, job) for job in placed(count, nodes, 1)])
    capacity = graph.channel_bits_per_s / 1e9
    rate, _ = max_min(capacity, uses)
    assert (uses.load(rate, len(capacity)) <= capacity * (1 + 1e-9)).all()
    ours = common.cpu_s(lambda: max_min(capacity, uses), 21)
    level = first_level(capacity, uses)
    assert abs(level / rate.min() - 1) < 1e-6, "the slowest jobs have the rate of the linear program"
    theirs = common.cpu_s(lambda: first_level(capacity, uses), 3)
    differ, levels = len(np.unique(graph.bundle)), len(np.unique(rate.round(9)))
    note = f"{differ:,} of {len(capacity):,} channels differ, {len(uses.amount):,} uses, {levels:,} rates"
    what = f"{count:,} jobs on {nodes:,} nodes, {name}"
    return Figure(what, 1000 * ours, 21, theirs / ours, "one linear program (HiGHS)", "goal <= 20 ms", note, "CPU ms")


def aggregated() -> Figure:
    """The same jobs, all with parameter servers, where leaf switches aggregate under the law `hash`."""
    count, nodes = (100, 128) if QUICK else (1000, 1000)
    graph = Graph.of(networked(Cluster.parse(f"{nodes}x8@8"), NETWORKS["leaf-spine"] + ",aggregators=20000"))
    jobs = [PlacedJob(job.workers, job.server) for job in placed(2 * count, nodes, 1) if job.server is not None]
    found = aggregated_rates(graph, jobs, Windows(300), "hash")
    ours = common.cpu_s(lambda: aggregated_rates(graph, jobs, Windows(300), "hash"), 3)
    plain = common.cpu_s(lambda: rates(graph, jobs), 3)
    what = f"{count:,} jobs on {nodes:,} nodes, leaf-spine, aggregation"
    note = f"{found.steps} steps to the fixed point; channels and delays of jobs included"
    return Figure(what, 1000 * ours, 3, plain / ours, "the same jobs without aggregation", "", note, "CPU ms")


def main() -> None:
    """Measure and print."""
    common.show([*(solves(name, network) for name, network in NETWORKS.items()), aggregated()])


if __name__ == "__main__":
    main()
