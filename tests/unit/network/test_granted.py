"""Jobs with grants exchange as these say; a chosen switch carries what it is given."""

from __future__ import annotations

import pytest

from plait.core.aggregation.grants import NetworkGrant
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network.fluid.exchanges import Exchange, Racks, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import steady_rates
from plait.network.granted import granted_exchange
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked


def graph_of(more: str = "") -> Graph:
    return Graph.of(networked(Cluster.parse("8x8@4"), f"leaf-spine:oversubscription=4,aggregators=200000{more}"))


def test_the_mode_gives_the_law() -> None:
    graph = graph_of()
    leaves = [NetworkGrant(1, "leaf0", server=5, window=64), NetworkGrant(1, "leaf1", server=5, window=32)]
    assert granted_exchange(graph, (0, 1, 4), leaves) == Exchange(PlacedJob((0, 1, 4), 5), "hash", window=32)
    region = [NetworkGrant(1, "leaf0", 0, 64, "dedicated", True), NetworkGrant(1, "leaf1", 8, 48, "dedicated", True)]
    assert granted_exchange(graph, (0, 1, 4), region) == Exchange(PlacedJob((0, 1, 4), 0), "region", 48)
    cycle = NetworkGrant(1, "leaf0", mode="shared_cycle", server=2)
    assert granted_exchange(graph, (0, 1), [cycle]) == Exchange(PlacedJob((0, 1), 2), "cycle")
    urgent = NetworkGrant(1, "leaf0", mode="shared_hash", server=2, priority=9)
    assert granted_exchange(graph, (0, 1), [urgent]).priority == 9
    shared = NetworkGrant(1, "leaf0", 100, 900, "hybrid_region", server=2)
    assert granted_exchange(graph, (0, 1), [shared]) == Exchange(PlacedJob((0, 1), 2), "hash")


def test_without_grants_or_with_several_links_it_is_a_ring() -> None:
    rails = Graph.of(networked(Cluster.parse("4x2@2"), "rail:rails=2,aggregators=100"))
    assert granted_exchange(graph_of(), (0, 4), []) == Exchange(PlacedJob((0, 4)))
    grant = NetworkGrant(1, rails.names[4], server=0)
    assert granted_exchange(rails, (0, 1), [grant]) == Exchange(PlacedJob((0, 1)))


def test_workers_without_a_granted_leaf_go_to_the_nearest_switch_that_is() -> None:
    graph = graph_of(",aggregating=all")
    number = graph.number
    grants = [NetworkGrant(1, name, server=5) for name in ("leaf0", "spine1")]
    at = granted_exchange(graph, (0, 1, 4), grants).at
    assert at == (number("leaf0"), number("leaf0"), number("spine1"))
    with pytest.raises(InputError, match="'leaf9' is no node or switch"):
        number("leaf9")


@pytest.mark.parametrize("spine", ["spine0", "spine1"])
def test_each_spine_carries_what_is_added_up_there(spine: str) -> None:
    """Three workers of rack 0 over a link of 50 Gb/s to one spine."""
    graph = graph_of(",aggregating=all")
    one = Exchange(PlacedJob((0, 1, 2), 5), "hash", at=(graph.number(spine),) * 3)
    found = steady_rates(graph, Racks.of([prepared(graph, one)]))
    assert found.bits_per_s[0] == pytest.approx(50e9 / 3 * 248 / 306, rel=1e-3)
    assert graph.channel_name(int(found.channel[0])) == f"leaf0->{spine}"
