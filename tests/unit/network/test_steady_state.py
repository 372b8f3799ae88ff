"""The steady state after changes is that of the same jobs solved at once; the best server is the best of all."""

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network.fluid.exchanges import Adders, Exchange, prepared
from plait.network.fluid.jobs import PlacedJob, rates
from plait.network.fluid.memory import steady_rates
from plait.network.steady_state import SAME_RATE, SteadyState, best_server
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked


def graph_of(cluster: str = "12x8@4", options: str = "oversubscription=2,aggregators=3000") -> Graph:
    return Graph.of(networked(Cluster.parse(cluster), f"leaf-spine:{options}"))


def some_exchange(draw: np.random.Generator, nodes: int = 12) -> Exchange:
    picked = draw.permutation(nodes)[: int(draw.integers(2, 6))].tolist()
    law = str(draw.choice(["none", "ring", "hash", "cycle", "hard", "region"]))
    if law == "ring":
        return Exchange(PlacedJob(tuple(picked)))
    region = 64 if law == "region" else 0
    return Exchange(
        PlacedJob(tuple(picked[:-1]), picked[-1]), law, region, 0 if region else int(draw.integers(0, 2)) * 100
    )


@pytest.mark.parametrize("seed", range(10))
def test_changes_one_by_one_give_the_rates_of_all_at_once(seed: int) -> None:
    draw = np.random.default_rng(seed)
    graph = graph_of()
    state = SteadyState.of(graph, near=1e-6)
    for job in range(8):
        state = state.with_exchange(job, some_exchange(draw))
        if job % 3 == 2:
            state = state.without(job - 1)
    at_once = steady_rates(graph, Adders.of([prepared(graph, one) for one in state.exchanges.values()]))
    assert list(state.bits_per_s.values()) == pytest.approx(at_once.bits_per_s.tolist(), rel=1e-4)
    rough = SteadyState.of(graph, state.exchanges)
    assert list(rough.bits_per_s.values()) == pytest.approx(at_once.bits_per_s.tolist(), rel=0.02)


def test_rings_have_the_rates_and_loads_of_max_min() -> None:
    graph = graph_of()
    jobs = [PlacedJob((0, 4, 8)), PlacedJob((0, 1)), PlacedJob((5, 9))]
    state = SteadyState.of(graph, {i: Exchange(job) for i, job in enumerate(jobs)})
    found = rates(graph, jobs)
    assert list(state.bits_per_s.values()) == pytest.approx(found.bits_per_s.tolist())
    assert state.load == pytest.approx(found.load)
    up = [c for c, (a, _) in enumerate(graph.ends.tolist()) if a == 0]
    assert state.residual[0] == pytest.approx(1 - found.load[up[0]], abs=1e-9)
    assert state.residual[2] == 1.0


def test_states_are_independent_values() -> None:
    empty = SteadyState.of(graph_of())
    one = empty.with_exchange(7, Exchange(PlacedJob((0, 1))))
    assert empty.bits_per_s == {}
    assert empty.residual.tolist() == [1.0] * 12
    assert one.rate(7) == pytest.approx(1e11)
    assert one.without(7) == empty
    assert one.with_exchange(8, Exchange(PlacedJob((3,)))).rate(8) == np.inf
    with pytest.raises(InputError, match="job 3 does not exchange"):
        one.without(3)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_server_is_as_good_as_the_best_of_all_nodes(seed: int) -> None:
    draw = np.random.default_rng(100 + seed)
    state = SteadyState.of(graph_of(), near=1e-6)
    for job in range(5):
        state = state.with_exchange(job, some_exchange(draw))
    workers = tuple(draw.permutation(12)[:4].tolist())
    server, found = best_server(state, 9, workers, range(12))
    assert found.exchanges[9].placed == PlacedJob(workers, server)
    each = [state.with_exchange(9, Exchange(PlacedJob(workers, node), "hash")).rate(9) for node in range(12)]
    assert found.rate(9) >= max(each) * (1 - SAME_RATE) * (1 - 1e-6)


def test_a_server_is_in_the_rack_of_its_workers_and_away_from_busy_links() -> None:
    """One rack, no uplink, beats all others; within it, a link that is not used beats one that is."""
    graph = graph_of("12x8@4", "oversubscription=4,aggregators=20000")
    state = SteadyState.of(graph, {0: Exchange(PlacedJob((4, 8), 2), "hash")})
    assert best_server(state, 1, (0, 1), range(12))[0] == 3
    assert best_server(state, 1, (0, 1), [2, 9])[0] in (2, 9)
    with pytest.raises(InputError, match="no node for its parameter server"):
        best_server(state, 1, (0, 1), [])
    for levels, racks in ((1, (0, 1)), (2, (2,))):  # where leaves add up sums, too, not next to a part of the workers
        state = SteadyState.of(graph_of("12x8@4", f"oversubscription=1,aggregators=20000,levels={levels}"))
        assert best_server(state, 1, (0, 1, 4, 5), range(12))[0] // 4 in racks
