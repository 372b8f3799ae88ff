"""A switch that is chosen for aggregation carries what it is given, also where others are alike."""

from __future__ import annotations

import pytest

from plait.core.cluster import Cluster
from plait.network.fluid.exchanges import Adders, Exchange, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import steady_rates
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked


@pytest.mark.parametrize("spine", ["spine0", "spine1"])
def test_each_spine_carries_what_is_added_up_there(spine: str) -> None:
    """Three workers of rack 0 over a link of 50 Gb/s to one spine."""
    options = "oversubscription=4,aggregators=200000,aggregating=all"
    graph = Graph.of(networked(Cluster.parse("8x8@4"), f"leaf-spine:{options}"))
    one = Exchange(PlacedJob((0, 1, 2), 5), "hash", at=(graph.names.index(spine),) * 3)
    found = steady_rates(graph, Adders.of([prepared(graph, one)]))
    assert found.bits_per_s[0] == pytest.approx(50e9 / 3 * 248 / 306, rel=1e-3)
    assert graph.channel_name(int(found.channel[0])) == f"leaf0->{spine}"
