"""Routes of gradients: GRID against all choices on small networks, and against fixed routes."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from plait.core.cluster import Cluster, Link, Network, Switch
from plait.core.errors import InputError
from plait.core.highs import HAVE_HIGHS
from plait.network.fluid.jobs import PlacedJob
from plait.network.routing.grid import grid, relax
from plait.network.routing.problem import STRAIGHT, GradientFlow, Problem
from plait.network.routing.shortest import shortest
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked

needs_highs = pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")


def graph_of(cluster: str, network: str) -> Graph:
    return Graph.of(networked(Cluster.parse(cluster), network))


def best_of_all(problem: Problem) -> float:
    """The least utilisation over all choices that no switch refuses."""
    options = (*problem.candidates, STRAIGHT)
    sizes = [len(flow.job.workers) for flow in problem.flows]
    best = np.inf
    for flat in product(options, repeat=sum(sizes)):
        ends = np.cumsum([0, *sizes]).tolist()
        choice = tuple(flat[a:b] for a, b in pairwise(ends))
        if not problem.overfull(choice):
            best = min(best, problem.routing(choice).utilisation)
    return best


def random_problem(seed: int) -> Problem:
    """Two or three racks of two or three nodes, one or two jobs, little memory, sometimes slow processing."""
    draw = np.random.default_rng(seed)
    racks, per_rack = int(draw.integers(2, 4)), int(draw.integers(2, 4))
    memory = int(draw.choice([100, 400, 4000]))
    options = f"spines={draw.integers(1, 3)},oversubscription={draw.choice([1, 2, 4])},aggregators={memory}"
    options += f",process_gbps={draw.choice([0, 0, 60])}"
    graph = graph_of(f"{racks * per_rack}x8@{per_rack}", f"leaf-spine:{options}")
    flows = []
    for _ in range(int(draw.integers(1, 3))):
        nodes = draw.permutation(racks * per_rack)[: int(draw.integers(3, 5))].tolist()
        flows.append(GradientFlow(PlacedJob(tuple(nodes[:-1]), nodes[-1]), float(draw.integers(1, 6)) * 1e10))
    return Problem.of(graph, flows)


@needs_highs
@pytest.mark.parametrize("seed", range(40))
def test_grid_is_between_the_relaxation_and_fixed_routes_and_mostly_best(seed: int) -> None:
    problem = random_problem(seed)
    best, found, fixed = best_of_all(problem), grid(problem, seed=1), shortest(problem)
    assert problem.overfull(found.choice) == []
    assert problem.overfull(fixed.choice) == []
    assert found.relaxed <= best + 1e-5
    assert found.utilisation >= best - 1e-9
    assert found.utilisation <= min(1.5 * best, fixed.utilisation) + 1e-9
    assert found.utilisation == pytest.approx(problem.routing(found.choice).utilisation)


@needs_highs
def test_grid_finds_the_best_choice_in_most_small_cases() -> None:
    problems = [random_problem(seed) for seed in range(40)]
    hits = sum(grid(problem, seed=1).utilisation <= best_of_all(problem) + 1e-9 for problem in problems)
    assert hits >= 39


@needs_highs
def test_the_same_seed_gives_the_same_routes_and_more_tries_are_no_worse() -> None:
    for seed in range(8):
        problem = random_problem(seed)
        assert grid(problem, seed=3) == grid(problem, seed=3)
        assert grid(problem, seed=3, tries=20).utilisation <= grid(problem, seed=3, tries=1).utilisation + 1e-12


@needs_highs
def test_gradients_are_added_up_before_a_narrow_uplink() -> None:
    """Three workers of a rack, the server in another: one flow leaves the rack instead of three."""
    graph = graph_of("8x8@4", "leaf-spine:oversubscription=4,spines=1,aggregators=20000")
    problem = Problem.of(graph, [GradientFlow(PlacedJob((0, 1, 2), 4), 1e11)])
    found = grid(problem)
    assert found.switches(graph) == (("leaf0",) * 3,)
    assert found.utilisation == pytest.approx(1.0)
    assert problem.routing(((STRAIGHT,) * 3,)).utilisation == pytest.approx(3.0)
    assert shortest(problem).choice == found.choice


@needs_highs
def test_full_and_slow_switches_are_left_to_others() -> None:
    """A rate of 100 Gb/s holds about 800 aggregators here: one of two jobs fits into the memory of the leaf."""
    for more in ("aggregators=1000", "aggregators=20000,process_gbps=250"):
        graph = graph_of("8x8@4", f"leaf-spine:oversubscription=1,spines=1,{more}")
        flows = [GradientFlow(PlacedJob((0, 1), 4), 1e11), GradientFlow(PlacedJob((2, 3), 5), 1e11)]
        problem = Problem.of(graph, flows, ["leaf0"])
        for routing in (grid(problem), shortest(problem)):
            assert sorted(row.count(STRAIGHT) for row in routing.choice) == [0, 2]
        assert len(problem.overfull(((8, 8), (8, 8)))) == 1


@needs_highs
def test_another_switch_serves_a_rack_without_memory() -> None:
    """Leaf 0 cannot aggregate; the spine does. Fixed routes send everything straight."""
    switches = (Switch("leaf0"), Switch("leaf1", aggregators=9000), Switch("spine0", 2, aggregators=9000))
    links = [Link(f"n{i}", f"leaf{i // 3}", 1e11) for i in range(6)]
    links += [Link("leaf0", "spine0", 4e11), Link("spine0", "leaf1", 1e11)]
    cluster = Cluster.parse("6x8@3").with_network(Network(switches, tuple(links)))
    graph = Graph.of(cluster)
    problem = Problem.of(graph, [GradientFlow(PlacedJob((0, 1, 2), 3), 1e11)])
    assert grid(problem).switches(graph) == (("spine0",) * 3,)
    assert grid(problem).utilisation == pytest.approx(1.0)
    assert shortest(problem).utilisation == pytest.approx(3.0)
    assert shortest(problem, "server").switches(graph) == (("leaf1",) * 3,)


@needs_highs
def test_shares_of_the_relaxation_are_distributions() -> None:
    for seed in range(5):
        shares, _ = relax(random_problem(seed))
        for share in shares:
            assert (share >= 0).all()
            assert share.sum(axis=1) == pytest.approx(np.ones(len(share)))


def test_mistakes_are_named() -> None:
    graph = graph_of("4x8@2", "leaf-spine:aggregators=100")
    flow = GradientFlow(PlacedJob((0, 1), 2), 1e9)
    for make, message in [
        (lambda: Problem.of(graph, [flow], ["leaf9"]), "did you mean"),
        (lambda: Problem.of(graph, [flow], ["spine0"]), "has no aggregators"),
        (lambda: shortest(Problem.of(graph, [flow]), "root"), "leaf or server"),
        (lambda: GradientFlow(PlacedJob((0, 1)), 1e9), "no parameter server"),
        (lambda: GradientFlow(PlacedJob((0, 1), 2), 0.0), "positive, finite"),
    ]:
        with pytest.raises(InputError, match=message):
            make()


def test_without_jobs_there_is_nothing_to_route() -> None:
    assert grid(Problem.of(graph_of("2x8", "single-switch:aggregators=9"), [])).choice == ()
