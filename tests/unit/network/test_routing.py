"""Routes of gradients: GRID against all choices on small networks, and against fixed routes."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from plait.core.cluster import Cluster, Link, Network, Switch
from plait.core.errors import InputError
from plait.core.highs import HAVE_HIGHS
from plait.network.fluid.jobs import PlacedJob
from plait.network.routing import STRAIGHT, GradientFlow, JobRoute, Problem, grid, relax, shortest
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked

needs_highs = pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")


def graph_of(cluster: str, network: str) -> Graph:
    return Graph.of(networked(Cluster.parse(cluster), network))


def best_of_all(problem: Problem) -> float:
    """The least utilisation over all switches of all workers and all paths of all jobs that no switch refuses."""
    options = (*problem.candidates, STRAIGHT)
    limits = np.array(
        [problem.memory[v] for v in problem.candidates] + [problem.processing[v] for v in problem.candidates]
    )
    load = np.zeros((1, len(problem.graph.channel_bits_per_s)))
    taken = np.zeros((1, len(limits)))
    for j, flow in enumerate(problem.flows):
        found = set()
        for at in product(options, repeat=len(flow.job.workers)):
            memory = [problem.aggregators[j][v] * (v in at) for v in problem.candidates]
            processing = [flow.bits_per_s * at.count(v) for v in problem.candidates]
            for pick in range(problem.picks):
                found.add((*problem.load_of(j, JobRoute(at, pick)), *memory, *processing))
        rows, takes = np.split(np.array(sorted(found)), [load.shape[1]], axis=1)
        load = (load[:, None] + rows).reshape(-1, load.shape[1])
        taken = (taken[:, None] + takes).reshape(-1, taken.shape[1])
        kept = (taken <= limits * (1 + 1e-9)).all(axis=1)
        load, taken = load[kept], taken[kept]
    return float((load / problem.graph.channel_bits_per_s).max(axis=1).min())


def random_problem(seed: int) -> Problem:
    """Two or three racks of two or three nodes, one or two jobs, little memory, sometimes slow processing."""
    draw = np.random.default_rng(seed)
    racks, per_rack = int(draw.integers(2, 4)), int(draw.integers(2, 4))
    memory = int(draw.choice([100, 400, 4000]))
    options = f"spines={draw.integers(1, 4)},oversubscription={draw.choice([1, 2, 4])},aggregators={memory}"
    options += f",process_gbps={draw.choice([0, 0, 60])},aggregating={draw.choice(['leaf', 'all'])}"
    graph = graph_of(f"{racks * per_rack}x8@{per_rack}", f"leaf-spine:{options}")
    flows = []
    for _ in range(int(draw.integers(1, 3))):
        nodes = draw.permutation(racks * per_rack)[: int(draw.integers(3, 5))].tolist()
        rate = float(draw.integers(1, 6)) * 1e10
        flows.append(GradientFlow(PlacedJob(tuple(nodes[:-1]), nodes[-1]), rate, pick=len(flows) % graph.most_ways))
    return Problem.of(graph, flows)


@needs_highs
def test_grid_finds_the_best_switches_and_paths_in_nearly_all_small_networks() -> None:
    ratios = []
    for seed in range(100):
        problem = random_problem(seed)
        best, found, fixed = best_of_all(problem), grid(problem, seed=1), shortest(problem)
        assert problem.overfull(found.choice) == []
        assert problem.overfull(fixed.choice) == []
        assert found.relaxed <= best + 1e-5
        assert best - 1e-9 <= found.utilisation <= fixed.utilisation + 1e-9
        assert found.utilisation == pytest.approx(problem.routing(found.choice).utilisation)
        ratios.append(found.utilisation / best)
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 98
    assert max(ratios) <= 1.5


@needs_highs
def test_jobs_take_different_paths_where_their_numbers_pick_the_same() -> None:
    """The sums of two jobs of one rack go to another: over the same spine of two they share its link."""
    graph = graph_of("16x8@4", "leaf-spine:oversubscription=2,spines=2,aggregators=20000")
    problem = Problem.of(graph, [GradientFlow(PlacedJob((i, i + 1), i + 8), 1e11, pick=0) for i in (0, 2)])
    found = grid(problem)
    assert shortest(problem).utilisation == pytest.approx(2.0)
    assert found.utilisation == pytest.approx(best_of_all(problem)) == pytest.approx(1.0)
    assert {route.pick for route in found.choice} == {0, 1}
    assert grid(replace(problem, picks=1)).utilisation == pytest.approx(2.0)


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
    assert problem.routing((JobRoute((STRAIGHT,) * 3),)).utilisation == pytest.approx(3.0)
    assert shortest(problem).choice == found.choice


@needs_highs
def test_full_and_slow_switches_are_left_to_others() -> None:
    """A rate of 100 Gb/s holds about 800 aggregators here: one of two jobs fits into the memory of the leaf."""
    for more in ("aggregators=1000", "aggregators=20000,process_gbps=250"):
        graph = graph_of("8x8@4", f"leaf-spine:oversubscription=1,spines=1,{more}")
        flows = [GradientFlow(PlacedJob((0, 1), 4), 1e11), GradientFlow(PlacedJob((2, 3), 5), 1e11)]
        problem = Problem.of(graph, flows, ["leaf0"])
        for routing in (grid(problem), shortest(problem)):
            assert sorted(route.at.count(STRAIGHT) for route in routing.choice) == [0, 2]
        assert len(problem.overfull((JobRoute((8, 8)), JobRoute((8, 8))))) == 1


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
            assert share.sum(axis=(1, 2)) == pytest.approx(np.ones(len(share)))


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
