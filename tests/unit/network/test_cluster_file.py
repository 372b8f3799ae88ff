"""Cluster files: what they say, and that a wrong one names file, field, what was given and what would work."""

import tomllib
from pathlib import Path

import pytest

from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.network.topology.cluster_file import read_cluster_file
from plait.network.topology.declared import Declared
from plait.network.topology.read import networked

RACKS = 'nodes = "4x8@2"\n'
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "describe-a-network.md"


def test_a_text_of_nodes_and_a_topology_are_the_short_form() -> None:
    text = RACKS + '[network]\ntopology = "leaf-spine"\noversubscription = 2\nlink_gbps = 50'
    short = networked(Cluster.parse("4x8@2"), "leaf-spine:oversubscription=2,link_gbps=50")
    assert read_cluster_file(text, "c.toml") == short


def test_tables_of_nodes_give_hardware_names_and_racks() -> None:
    text = """
    [[nodes]]
    count = 4
    gpus = 8
    gpu_kind = "a100"
    gpu_memory_gb = 80
    cpus = 96
    memory_gb = 512
    nic_gbps = 400
    rack_size = 2
    [[nodes]]
    count = 2
    name = "old"
    gpus = 4
    rack_size = 2
    [[nodes]]
    name = "single"
    gpus = 1
    rack = 0
    """
    made = read_cluster_file(text, "c.toml")
    assert [node.id for node in made] == ["n0", "n1", "n2", "n3", "old0", "old1", "single"]
    assert [node.rack for node in made] == [0, 0, 1, 1, 2, 2, 0]
    first = made.nodes[0]
    assert (first.gpus, first.gpu_kind, first.gpu_memory_bytes, first.cpus) == (8, "a100", 80_000_000_000, 96.0)
    assert (first.memory_bytes, first.nic_bytes_per_s) == (512e9, 50e9)
    assert made.network is None


def test_switches_and_links_of_a_topology_can_differ() -> None:
    text = (
        RACKS
        + """
    [network]
    topology = "leaf-spine"
    aggregators = 100
    [[network.switches]]
    id = "leaf1"
    reserved = 10
    [[network.links]]
    ends = ["leaf0", "n0"]
    gbps = 25
    """
    )
    network = read_cluster_file(text, "c.toml").network
    assert [(s.aggregators, s.reserved) for s in network.switches if s.tier == 1] == [(100, 0), (100, 10)]
    assert [link.bits_per_s for link in network.links][:2] == [25e9, 100e9]
    assert str(network) == "leaf-spine:aggregators=100, changed"


def test_a_network_can_be_listed() -> None:
    text = """
    nodes = "2x4"
    [network]
    switches = [{id = "a", aggregators = 8}, {id = "b", tier = 2}]
    links = [{ends = ["n0", "a"]}, {ends = ["n1", "b"], gbps = 10, delay_us = 2}, {ends = ["a", "b"], gbps = 40}]
    """
    network = read_cluster_file(text, "c.toml").network
    assert [(s.id, s.tier, s.aggregators) for s in network.switches] == [("a", 1, 8), ("b", 2, 0)]
    assert [(str(link), link.bits_per_s, link.delay_s) for link in network.links] == [
        ("n0-a", 100e9, 1e-6), ("n1-b", 10e9, 2e-6), ("a-b", 40e9, 1e-6),
    ]  # fmt: skip


def test_the_example_of_the_documentation_is_read() -> None:
    if not PAGE.exists():
        pytest.skip("plait is installed without its documentation")
    example = PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    made = read_cluster_file(example, "cluster.toml")
    assert [s.usable for s in made.network.switches if s.tier == 1] == [20000, 8000, 20000, 20000]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes =", "c.toml: not TOML: "),
        ("[network]", 'c.toml: nodes is missing; write nodes = "16x8@4"'),
        ('node = "4x4"', "c.toml: 'node' is no field; did you mean 'nodes'"),
        ('nodes = "4by4"', "c.toml: nodes: cannot read cluster '4by4'"),
        ("nodes = 4", "c.toml: nodes is 4, needs tables"),
        ("[[nodes]]\ncount = 3", r"c.toml: nodes\[0\]: gpus is missing; it is: GPUs of each node"),
        ("[[nodes]]\ngpus = 2.5", r"c.toml: nodes\[0\]: gpus is 2.5, needs a whole number from 0 to 10,000"),
        ("[[nodes]]\ngpus = true", "gpus is True, needs a whole number"),
        ("[[nodes]]\ngpus = 4\nmemory = 3", "'memory' is no field; did you mean 'memory_gb'"),
        ("[[nodes]]\ngpus = 4\n[[nodes]]\ngpus = 4\nname = 'n0'", "c.toml: nodes: node ids must be unique"),
        ("[[nodes]]\ngpus = 1\ncount = 99999\n[[nodes]]\ngpus = 1\ncount = 9", "at most 100,000 nodes fit in all"),
        (RACKS + "network = 3", "c.toml: network is 3, needs a table"),
        (RACKS + "[network]", "c.toml: network: topology is missing; known: single-switch, leaf-spine"),
        (RACKS + "[network]\ntopology = 'star'", "c.toml: network: topology 'star' is unknown"),
        (RACKS + "[network]\nlink_gbps = 3", "c.toml: network: 'link_gbps' is no field"),
        (RACKS + "[network]\ntopology = 'single-switch'\nlink_gbps = 0", "link_gbps is 0, needs a number from 0.001"),
        (
            RACKS + "[network]\ntopology = 'leaf-spine'\n[[network.switches]]\nid = 'leaf9'",
            r"c.toml: network.switches\[0\]: id is 'leaf9', no switch of this topology; did you mean 'leaf",
        ),
        (
            RACKS + "[network]\ntopology = 'leaf-spine'\n[[network.switches]]\nid = 'leaf0'\ntier = 2",
            "tier is 2; it is 1 in this topology",
        ),
        (
            RACKS + "[network]\ntopology = 'leaf-spine'\n[[network.switches]]\nid = 'leaf0'\nreserved = 2",
            r"network.switches\[0\]: switch 'leaf0': reserved is 2, needs 0 to its 0 aggregators",
        ),
        (
            RACKS + "[network]\ntopology = 'leaf-spine'\n[[network.links]]\nends = ['n0', 'leaf1']",
            r"network.links\[0\]: ends is \['n0', 'leaf1'\], no link of this topology; did you mean 'n",
        ),
        (
            RACKS + "[network]\ntopology = 'leaf-spine'\n[[network.links]]\nends = ['n0']",
            r"network.links\[0\]: ends is \['n0'\], needs a list of two names",
        ),
        (
            "nodes = '2x4'\n[network]\nswitches = [{id = 'a'}]\nlinks = [{ends = ['n0', 'a']}]",
            "c.toml: network: node 'n1' has no link",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_field(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_cluster_file(text, "c.toml")


def test_keys_of_the_wrong_kind_never_end_in_another_error() -> None:
    """Every value of a valid file replaced by values of other types: refused as input, or accepted."""
    text = (
        RACKS
        + """
    [network]
    topology = "leaf-spine"
    spines = 1
    aggregating = "all"
    [[network.switches]]
    id = "leaf1"
    reserved = 0
    [[network.links]]
    ends = ["leaf0", "n0"]
    gbps = 25
    """
    )
    tomllib.loads(text)
    read = 0
    refused: list[str] = []
    for line in [line.strip() for line in text.splitlines() if "=" in line]:
        for other in ("1", "-1", "1.5", "nan", "true", '""', '"x"', "[]", "[1]", "{}", "1979-05-27"):
            changed = text.replace(line, f"{line.partition('=')[0]}= {other}")
            try:
                read_cluster_file(changed, "c.toml")
                read += 1
            except InputError as error:
                refused.append(str(error))
    assert len(refused) > read > 0
    assert [words for words in refused if "c.toml" not in words] == []


# Networks that are declared before their nodes have joined.

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
    return {str(link) for link in made.network.links}


def test_a_leaf_has_the_number_of_its_rack_whoever_joins_first() -> None:
    declared = Declared.read("leaf-spine:aggregators=64,spines=1")
    first = declared.join(cluster(b=1))
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
