"""Topologies by their formulas, and paths against networkx."""

import networkx as nx
import numpy as np
import pytest

from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked

NETWORKS = (
    ("5x4", "single-switch"),
    ("8x4@4", "leaf-spine:oversubscription=2,spines=3"),
    ("3x8@2,2x4@2", "leaf-spine"),
    ("16x4", "fat-tree"),
    ("5x8@2", "fat-tree:k=6"),
    ("6x4@3", "rail:spines=2"),
    ("3x2", "rail"),
)


def graph(cluster: str, network: str) -> Graph:
    return Graph.of(networked(Cluster.parse(cluster), network))


def as_networkx(made: Graph) -> nx.Graph:
    out = nx.Graph()
    out.add_edges_from((link.a, link.b) for link in made.network.links)
    return out


def test_leaf_spine_has_the_oversubscription_that_was_asked_for() -> None:
    made = networked(Cluster.parse("8x4@4"), "leaf-spine:oversubscription=4,spines=2,link_gbps=100").network
    assert [switch.id for switch in made.switches] == ["leaf0", "leaf1", "spine0", "spine1"]
    up = [link.bits_per_s for link in made.links if link.b.startswith("spine")]
    assert up == [50e9] * 4  # a rack sends 400 Gb/s, 100 Gb/s of it through two spines


def test_racks_of_different_size_get_uplinks_of_their_own() -> None:
    made = networked(Cluster.parse("3x8@2"), "leaf-spine:spines=1").network
    assert [link.bits_per_s for link in made.links if link.b == "spine0"] == [200e9, 100e9]


@pytest.mark.parametrize("k", [2, 4, 6])
def test_fat_trees_have_their_published_counts(k: int) -> None:
    made = networked(Cluster.parse(f"{k**3 // 4}x1"), "fat-tree").network
    tiers = [switch.tier for switch in made.switches]
    assert [tiers.count(tier) for tier in (1, 2, 3)] == [k * k // 2, k * k // 2, k * k // 4]
    assert len(made.links) == 3 * k**3 // 4
    ports: dict[str, int] = {}
    for link in made.links:
        for end in (link.a, link.b):
            ports[end] = ports.get(end, 0) + 1
    assert {ports[switch.id] for switch in made.switches} == {k}


def test_nodes_that_do_not_fill_a_fat_tree_take_the_smallest_that_fits() -> None:
    assert len(networked(Cluster.parse("17x1"), "fat-tree").network.switches) == 9 * 5  # type: ignore[union-attr]


def test_rails_join_equal_cards_of_a_rack() -> None:
    made = networked(Cluster.parse("6x4@3"), "rail:link_gbps=50").network
    assert sum(switch.tier == 1 for switch in made.switches) == 2 * 4
    ends = {str(link) for link in made.links if link.a in ("n0", "n3")}
    assert ends == {f"n0-rack0-rail{r}" for r in range(4)} | {f"n3-rack1-rail{r}" for r in range(4)}
    up = {link.bits_per_s for link in made.links if link.b.startswith("spine")}
    assert up == {3 * 50e9 / 2}


def test_aggregators_are_in_the_leaves_unless_asked_for_everywhere() -> None:
    text = "leaf-spine:aggregators=20000,reserved=100,payload=256,levels=2,process_gbps=400"
    leaf, *_, spine = networked(Cluster.parse("4x4@2"), text).network.switches  # type: ignore[union-attr]
    assert (leaf.aggregators, leaf.usable, leaf.payload_bytes, leaf.levels) == (20000, 19900, 256, 2)
    assert leaf.process_bits_per_s == 400e9
    assert spine.aggregators == 0
    everywhere = networked(Cluster.parse("4x4@2"), text + ",aggregating=all").network
    assert {switch.aggregators for switch in everywhere.switches} == {20000}  # type: ignore[union-attr]


def test_nodes_keep_the_bandwidth_that_is_known() -> None:
    nodes = (Node("a", 8, nic_bytes_per_s=50e9), Node("b", 8))
    made = networked(Cluster(nodes), "single-switch:link_gbps=100").network
    assert [link.bits_per_s for link in made.links] == [400e9, 100e9]  # type: ignore[union-attr]
    rails = networked(Cluster(nodes), "rail:link_gbps=100").network
    assert [link.bits_per_s for link in rails.links][::8] == [50e9, 100e9]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cluster", "network", "words"),
    [
        ("4x4", "leaf-spin", "topology 'leaf-spin' is unknown; did you mean 'leaf-spine'"),
        ("4x4@2", "leaf-spine:oversub=2", "'oversub' is no field; did you mean 'oversubscription'"),
        ("4x4@2", "leaf-spine:spines", "'spines' is not option=value"),
        ("4x4@2", "leaf-spine:spines=2,spines=3", "spines is given twice"),
        ("4x4@2", "leaf-spine:spines=two", "spines is 'two', needs a whole number from 1 to 1,024"),
        ("4x4@2", "leaf-spine:oversubscription=nan", "oversubscription is 'nan', needs a number from 0.01 to 1,000"),
        ("4x4@2", "leaf-spine:aggregating=most", "aggregating is 'most', needs leaf or all"),
        ("4x4@2", "leaf-spine:aggregators=5,reserved=6", "switch 'leaf0': reserved is 6, needs 0 to its 5"),
        ("4x4@2", "single-switch:payload=6", "payload_bytes is 6, needs a positive multiple of 4"),
        ("4x4", "leaf-spine", "at least two racks.*e.g. 4x4@4, or take --network single-switch"),
        ("4x4", "fat-tree:k=3", "k is 3, needs an even number of ports, e.g. 4"),
        ("17x4", "fat-tree:k=4", "k is 4, too small for 17 nodes; needs at least 6"),
        ("8x4@4", "fat-tree:k=4", "k is 4, too small for 2 racks of up to 4 nodes; needs at least 8"),
        ("2x4,2x8", "rail", "4 and 8 GPUs; say how many network cards each has, e.g. rail:rails=4"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(cluster: str, network: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        networked(Cluster.parse(cluster), network)


@pytest.mark.parametrize(("cluster", "network"), NETWORKS)
def test_paths_are_the_shortest_ones_of_networkx(cluster: str, network: str) -> None:
    made = graph(cluster, network)
    theirs = as_networkx(made)
    for source in range(len(made.nodes)):
        for target in range(len(made.nodes)):
            if source == target:
                assert list(made.shortest_paths(source, target)) == [()]
                continue
            ours = list(made.shortest_paths(source, target))
            walked = [
                (made.names[source], *(made.names[int(made.ends[channel][1])] for channel in path)) for path in ours
            ]
            switched = theirs.subgraph([*made.names[len(made.nodes) :], made.names[source], made.names[target]])
            known = {tuple(path) for path in nx.all_shortest_paths(switched, made.names[source], made.names[target])}
            assert set(walked) == known
            assert len(walked) == len(known)
            picked = {made.path(source, target, pick) for pick in range(4)}
            assert picked <= set(ours)
            firsts = {path[:1] for path in ours}
            assert {path[:1] for path in picked} == firsts


@pytest.mark.parametrize(("cluster", "network"), NETWORKS)
def test_shares_are_those_of_a_walker_who_takes_any_next_hop(cluster: str, network: str) -> None:
    made = graph(cluster, network)
    target = len(made.nodes) - 1
    for source in range(target):
        shares = made.shares(source, target)
        flow = np.zeros(len(made.names))
        for channel, share in shares.items():
            a, b = made.ends[channel]
            flow[a] -= share
            flow[b] += share
        assert flow[source] == pytest.approx(-1)
        assert flow[target] == pytest.approx(1)
        assert np.delete(flow, [source, target]) == pytest.approx(0)
        paths = list(made.shortest_paths(source, target))
        assert set(shares) == {channel for path in paths for channel in path}
        # These topologies are symmetric: every shortest path carries the same.
        for channel, share in shares.items():
            assert share == pytest.approx(sum(channel in path for path in paths) / len(paths))


def test_delay_counts_links_and_switches() -> None:
    made = graph("8x4@4", "leaf-spine:link_delay_us=2,switch_delay_us=1")
    assert made.delay_s(made.path(0, 1)) == pytest.approx(5e-6)
    assert made.delay_s(made.path(0, 7)) == pytest.approx(11e-6)
    assert made.channel_name(made.path(0, 7)[0]) == "n0->leaf0"


def test_a_cluster_without_a_network_has_no_graph() -> None:
    with pytest.raises(InputError, match="network of cluster 2x4 is not known; give one"):
        Graph.of(Cluster.parse("2x4"))
