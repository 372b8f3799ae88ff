"""Which switches add up the gradients of a job, and the way of its packets: one description for all of plait.

Packets, rates, placement, routing and grants all take their tree from `tree`. Every switch has one way to the end of a
tree: the node of the server, or the switch that answers in its place (dedicated slots). Of several equal ways the
number of the job picks one, so all of its packets meet. Start at `tree`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from plait.core.errors import InputError
from plait.core.ina_request import TREES
from plait.network.topology.paths import Graph

#: The tree of each system. ATP adds up at the racks of the workers and of the server (published); SwitchML composes
#: switches in a hierarchy (published); the others have that of ATP, whose packets they extend (our design).
PUBLISHED = {
    "switchml": "leaf+spine", "atp": "leaf+server", "a2tp": "leaf+server", "esa": "leaf+server",
    "inalloc": "leaf+server",
}  # fmt: skip
#: A worker whose packets no switch adds up.
STRAIGHT = -1
#: Channels, one after the other.
Way = tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """The way of the packets of a job. Switches and nodes by their numbers in the graph.

    end      node of the server, or the switch that answers
    ways     of each worker: the channels to the first switch that adds up its packets, or to the end
    below    of each worker: the place of that switch in `adders`, or -1
    adders   switches that add up, each after those whose sums it adds up
    parent   of each adder: the place of the next one on the way to the end, or -1
    onward   of each adder: the channels to that one, or to the end
    """

    end: int
    ways: tuple[Way, ...]
    below: tuple[int, ...]
    adders: tuple[int, ...]
    parent: tuple[int, ...]
    onward: tuple[Way, ...]

    @property
    def inputs(self) -> list[int]:
        """How many workers and adders send to each adder."""
        found = [0] * len(self.adders)
        for place in (*self.below, *self.parent):
            if place >= 0:
                found[place] += 1
        return found

    def workers(self, place: int) -> list[int]:
        """The workers, by their places, whose packets the adder at this place adds up, itself or by those below."""
        found = []
        for rank, at in enumerate(self.below):
            while at not in (-1, place):
                at = self.parent[at]
            if at == place:
                found.append(rank)
        return found

    def whole(self, rank: int) -> Way:
        """All channels from a worker to the end."""
        way, at = self.ways[rank], self.below[rank]
        while at >= 0:
            way, at = way + self.onward[at], self.parent[at]
        return way


def tree(
    graph: Graph,
    workers: Sequence[int],
    server: int | None,
    adds: str | Collection[int],
    *,
    answers: bool = False,
    at: Sequence[int] = (),
    pick: int = 0,
    down: Collection[str] = (),
) -> Tree:
    """The tree of a job with workers on these nodes, and a server unless a switch `answers` in its place.

    `adds`: one of `TREES`, or the switches that may add up. `at`: for each worker the switch that adds up its packets
    first, or `STRAIGHT`; after it only the leaf of the server. `down`: names of switches that are lost. Only switches
    with aggregators add up, and only those of two levels (`Switch.levels`) what other switches send; a switch that
    answers at one level adds up alone. Raises `InputError` for a node with several links, and where no switch can
    answer.
    """
    able = {
        len(graph.nodes) + i: one.levels
        for i, one in enumerate(graph.network.switches)
        if one.usable and one.id not in down
    }
    end = _end(graph, workers, server, adds, pick, able) if answers else server
    assert end is not None, "sums end at a server, or at a switch that answers"
    if answers and end not in able:
        raise InputError(
            f"no switch answers workers on nodes {', '.join(graph.names[w] for w in workers)}: {graph.names[end]}, "
            "where their packets meet, has no aggregators"
        )
    prefer = frozenset(adds) if not isinstance(adds, str) else frozenset()
    # A worker next to the server sends to the leaf, which may have something to add; a host could keep the rest.
    whole = [graph.path(worker, graph.leaf(worker)) for worker in workers]
    whole = [way + graph.path(graph.to[way[-1]], end, pick, prefer) for way in whole]
    if at:
        top = None if server is None else graph.leaf(server)
        meets = top is not None and able.get(top) == 2 and (isinstance(adds, str) or top in adds)
        chosen = _chains_at(at, top if meets else None)
        whole = [
            way if v == STRAIGHT else graph.path(worker, v, pick, prefer) + graph.path(v, end, pick, prefer)
            for worker, v, way in zip(workers, at, whole, strict=True)
        ]
    else:
        chosen = _chains(graph, whole, end, _candidates(graph, workers, server, adds, whole), able, answers=answers)
    return _cut(graph, end, whole, chosen)


def _end(
    graph: Graph, workers: Sequence[int], server: int | None, adds: str | Collection[int], pick: int,
    able: Collection[int],
) -> int:  # fmt: skip
    """The switch that answers: the leaf of the server where the tree says so, or the one nearest to all workers."""
    among: Collection[int] = range(len(graph.nodes), len(graph.names))
    if not isinstance(adds, str):
        among = sorted(adds)
    elif adds.endswith("server"):
        if server is None:
            raise InputError(f"tree {adds} needs a server, and a job with dedicated slots has none; take leaf+spine")
        return graph.leaf(server)
    elif adds == "leaf" and len({graph.leaf(worker) for worker in workers}) > 1:
        raise InputError("tree leaf ends at one leaf without a server, and workers are below several; take leaf+spine")
    far = {s: max(graph.distance(node, s) for node in workers) for s in among}
    least = min(far.values())
    nearest = [s for s, distance in far.items() if distance == least]
    nearest = [s for s in nearest if s in able] or nearest
    return nearest[pick % len(nearest)]


def _ends(graph: Graph, way: Way) -> list[int]:
    return [graph.to[channel] for channel in way]


def _candidates(
    graph: Graph, workers: Sequence[int], server: int | None, adds: str | Collection[int], whole: Sequence[Way]
) -> Collection[int]:
    """The switches that may add up."""
    if not isinstance(adds, str):
        return frozenset(adds)
    if adds not in TREES:
        raise InputError(f"tree {adds!r} is unknown; it takes {', '.join(TREES)}")
    found: set[int] = set()
    if adds == "leaf+spine":
        return frozenset(range(len(graph.nodes), len(graph.names)))
    if adds.startswith("leaf"):
        found |= {graph.leaf(worker) for worker in workers}
    if adds.endswith("server") and server is not None:
        found.add(graph.leaf(server))
    if adds == "spine":
        seen = [[at for at in _ends(graph, way) if at >= len(graph.nodes)] for way in whole]
        found.add(next(at for at in seen[0] if all(at in others for others in seen)))
    return found


def _chains(
    graph: Graph, whole: Sequence[Way], end: int, candidates: Collection[int], able: dict[int, int], *, answers: bool
) -> list[list[int]]:
    """Of each worker the switches that add up its packets, in order; a switch that answers adds up in any case."""
    from_root = {at: len(way) - k for way in whole for k, at in enumerate(_ends(graph, way)) if at in candidates}
    chains: list[list[int]] = [[] for _ in whole]
    alone = answers and able[end] == 1
    for at in sorted(from_root, key=lambda at: (-from_root[at], at)):
        if at not in able or (alone and at != end):
            continue
        inside = [rank for rank, way in enumerate(whole) if at in _ends(graph, way)]
        inputs = {chains[rank][-1] if chains[rank] else -1 - rank for rank in inside}
        sums = any(one >= 0 for one in inputs)
        if answers and at == end:
            pass
        elif len(inputs) < 2 or (sums and able[at] == 1 and sum(not chains[rank] for rank in inside) < 2):
            continue
        for rank in inside:
            if not (sums and able[at] == 1 and chains[rank]):
                chains[rank].append(at)
    if answers:
        chains = [chain if chain[-1:] == [end] else [*chain, end] for chain in chains]
    return chains


def _chains_at(at: Sequence[int], top: int | None) -> list[list[int]]:
    """The chains where each worker's switch is given; the switch `top` adds up sums of others, too."""
    chains = [[] if v == STRAIGHT else [v] for v in at]
    if top is not None and len({v for v in at if v not in (STRAIGHT, top)}) + sum(v == top for v in at) > 1:
        chains = [chain if chain in ([], [top]) else [*chain, top] for chain in chains]
    return chains


def _cut(graph: Graph, end: int, whole: Sequence[Way], chains: Sequence[Sequence[int]]) -> Tree:
    """The tree of whole ways and of the switches on them that add up."""
    place: dict[int, int] = {}
    ways, below, parent, onward = [], [], dict[int, int](), dict[int, Way]()
    for way, chain in zip(whole, chains, strict=True):
        ends = _ends(graph, way)
        cuts = [0]
        for at in chain:
            cuts.append(cuts[-1] + ends[cuts[-1] :].index(at) + 1)
            place.setdefault(at, len(place))
        ways.append(way[: cuts[1]] if chain else way)
        below.append(chain[0] if chain else -1)
        for k, at in enumerate(chain):
            last = k + 1 == len(chain)
            parent[at] = -1 if last else chain[k + 1]
            onward[at] = way[cuts[k + 1] :] if last else way[cuts[k + 1] : cuts[k + 2]]
    depth = {at: _depth(at, parent) for at in place}
    adders = sorted(place, key=lambda at: (-depth[at], place[at]))
    number = {at: i for i, at in enumerate(adders)} | {-1: -1}
    return Tree(
        end, tuple(ways), tuple(number[at] for at in below), tuple(adders), tuple(number[parent[at]] for at in adders),
        tuple(onward[at] for at in adders),
    )  # fmt: skip


def _depth(at: int, parent: dict[int, int]) -> int:
    found = 0
    while (at := parent[at]) >= 0:
        found += 1
    return found
