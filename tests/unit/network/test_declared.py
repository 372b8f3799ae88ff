"""Networks that are declared before their nodes have joined."""

from __future__ import annotations

import pytest

from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.network.topology.declared import Declared

FILE = """
nodes = "4x1@2"
[network]
topology = "leaf-spine"
aggregators = 512
spines = 1
[[network.switches]]
id = "leaf1"
aggregators = 64
"""


def cluster(**racks: int) -> Cluster:
    return Cluster(tuple(Node(name, 1, rack=rack) for name, rack in racks.items()))


def links(made: Cluster) -> set[str]:
    assert made.network is not None
    return {str(link) for link in made.network.links}


def test_a_leaf_has_the_number_of_its_rack_whoever_joins_first() -> None:
    declared = Declared.read("leaf-spine:aggregators=64,spines=1")
    first = declared.join(cluster(b=1))
    assert first.network is not None
    assert (links(first), first.network.down) == ({"b-leaf1", "leaf1-spine0"}, ("leaf1",))
    later = declared.join(first.with_switch("leaf1").with_node(Node("a", 1, rack=0)))
    assert later.network is not None
    assert links(later) == {"a-leaf0", "b-leaf1", "leaf0-spine0", "leaf1-spine0"}
    assert later.network.down == ("leaf0",)  # leaf1 works on


def test_a_listed_network_has_the_links_of_nodes_that_are_there_and_places_others_by_rack() -> None:
    declared = Declared.of_file(FILE, "c.toml")
    assert dict(declared.racks) == {"n0": 0, "n1": 0, "n2": 1, "n3": 1}
    made = declared.join(cluster(n0=0, n3=1, other=1))
    assert made.network is not None
    assert links(made) == {"n0-leaf0", "n3-leaf1", "other-leaf1", "leaf0-spine0", "leaf1-spine0"}
    assert made.network.switch("leaf1").aggregators == 64
    assert made.network.down == ("leaf0", "leaf1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fat-tree:aggregators=4", "needs single-switch, leaf-spine or a cluster file"),
        ("leafspine", "topology 'leafspine' is unknown"),
        ("single-switch:aggregators=-1", "aggregators is '-1'"),
    ],
)
def test_what_cannot_grow_or_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Declared.read(text)


def test_a_cluster_file_needs_a_network() -> None:
    with pytest.raises(InputError, match=r"c\.toml has no \[network\]"):
        Declared.of_file('nodes = "2x1"', "c.toml")
