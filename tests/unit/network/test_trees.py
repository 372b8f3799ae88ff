"""Which switches add up for a job: every tree on racks with one and two levels, and what hardware cannot do."""

import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.ina_request import TREES
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.network.topology.trees import STRAIGHT, Tree, tree


def racks(levels: int, aggregating: str = "all") -> Graph:
    """Three racks of four nodes and two spines."""
    text = f"leaf-spine:aggregators=100,levels={levels},aggregating={aggregating}"
    return Graph.of(networked(Cluster.parse("12x1@4"), text))


def adders(graph: Graph, made: Tree) -> dict[str, list[int]]:
    return {graph.names[at]: made.workers(place) for place, at in enumerate(made.adders)}


#: Workers in racks 0, 1 and 2 (the last alone), the server in rack 1.
WORKERS, SERVER = (0, 1, 4, 5, 8), 6
ALL = [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("adds", "one", "two"),
    [
        ("leaf", {"leaf0": [0, 1], "leaf1": [2, 3, 4]}, {"leaf0": [0, 1], "leaf1": ALL}),
        ("server", {"leaf1": ALL}, {"leaf1": ALL}),
        ("spine", {"leaf1": ALL}, {"leaf1": ALL}),
        ("leaf+server", {"leaf0": [0, 1], "leaf1": [2, 3, 4]}, {"leaf0": [0, 1], "leaf1": ALL}),
        (
            "leaf+spine",
            {"leaf0": [0, 1], "leaf1": [2, 3, 4]},
            {"leaf0": [0, 1], "spine0": [0, 1, 4], "leaf1": ALL},
        ),
    ],
)
def test_every_tree_adds_up_as_far_as_its_switches_can(adds: str, one: dict, two: dict) -> None:
    for levels, expected in ((1, one), (2, two)):
        graph = racks(levels)
        made = tree(graph, WORKERS, SERVER, adds)
        assert adders(graph, made) == expected
        assert made.end == SERVER
        for rank, worker in enumerate(WORKERS):
            way = made.whole(rank)
            assert graph.ends[way[0], 0] == worker
            assert graph.to[way[-1]] == SERVER


@pytest.mark.parametrize(
    ("adds", "one", "two"),
    [
        ("spine", {"spine0": ALL}, {"spine0": ALL}),
        ("leaf+spine", {"spine0": ALL}, {"leaf0": [0, 1], "leaf1": [2, 3], "spine0": ALL}),
    ],
)
def test_a_switch_answers_for_dedicated_slots_and_alone_at_one_level(adds: str, one: dict, two: dict) -> None:
    for levels, expected in ((1, one), (2, two)):
        graph = racks(levels)
        made = tree(graph, WORKERS, None, adds, answers=True)
        assert adders(graph, made) == expected
        assert graph.names[made.end] == "spine0"
    with pytest.raises(InputError, match="spine0, where their packets meet, has no aggregators"):
        tree(racks(2, "leaf"), WORKERS, None, adds, answers=True)


def test_one_rack_needs_no_spine_and_equal_ways_are_picked_by_number() -> None:
    graph = racks(1, "leaf")
    for adds in TREES:
        made = tree(graph, (0, 1, 2), 3, adds)
        assert adders(graph, made) == {"leaf0": [0, 1, 2]}
    assert adders(graph, tree(graph, (0, 1, 2), None, "leaf+spine", answers=True)) == {"leaf0": [0, 1, 2]}
    ways = [[graph.names[graph.to[c]] for c in tree(graph, (0, 4), 8, "leaf", pick=pick).whole(0)] for pick in (0, 1)]
    assert ways == [["leaf0", "spine0", "leaf2", "n8"], ["leaf0", "spine1", "leaf2", "n8"]]


def test_lost_switches_only_forward() -> None:
    graph = racks(2)
    made = tree(graph, WORKERS, SERVER, "leaf+server", down=("leaf0",))
    assert adders(graph, made) == {"leaf1": ALL}


def test_workers_may_name_their_switches() -> None:
    graph = racks(2)
    leaf0, spine1 = graph.names.index("leaf0"), graph.names.index("spine1")
    made = tree(graph, WORKERS, 9, "leaf+server", at=(leaf0, leaf0, spine1, spine1, STRAIGHT))
    assert adders(graph, made) == {"leaf0": [0, 1], "spine1": [2, 3], "leaf2": [0, 1, 2, 3]}
    assert made.below[4] == -1
    assert made.inputs == [2, 2, 2]


def test_a_worker_beside_the_server_sends_to_the_leaf() -> None:
    graph = racks(1)
    assert adders(graph, tree(graph, (0, 1), 0, "leaf")) == {"leaf0": [0, 1]}
    assert tree(graph, (0, 4), 0, "leaf", down=("leaf0",)).ways[0] == (
        *graph.path(0, graph.leaf(0)),
        *graph.path(graph.leaf(0), 0),
    )


@pytest.mark.parametrize(
    ("adds", "words"),
    [("leaf", "workers are below several; take"), ("leaf+server", "needs a server"), ("root", "'root' is unknown")],
)
def test_impossible_trees_are_refused(adds: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tree(racks(2), WORKERS, None, adds, answers=True)
