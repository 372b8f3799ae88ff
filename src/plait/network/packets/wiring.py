"""Routes of jobs through a network: the tree of switches between the workers of a job and its server.

Our design. Every switch has one way to the root of a job: the server, or for a job with dedicated slots, which needs no
server, the switch that is nearest to all of its workers. Of several equal ways the number of the job picks one, so all
of its packets meet. A switch adds up where several ways of the tree join: at one level the packets of the workers that
are attached to it (with dedicated slots: at the root alone), at two levels also what other switches send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.core.errors import InputError
from plait.network.protocol.worker import bit_of
from plait.network.topology.paths import Graph


@dataclass
class Tree:
    """The switches of a job. All numbers of switches start after the nodes.

    up        switch -> the channel to the root; the root itself, if it is a switch, is not in it
    kids      switch -> [(channel, bits of the workers that it leads to)]
    adds      switch -> the bits of the workers that it expects
    first     of each worker, the channel from its node
    root      the node of the server or the switch at which all ways end
    """

    root: int
    first: list[int]
    up: dict[int, int] = field(default_factory=dict)
    kids: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    adds: dict[int, int] = field(default_factory=dict)


def tree(
    graph: Graph, job: int, workers: Sequence[int], server: int | None, levels: int, *, choice: int | None = None
) -> Tree:
    """The tree of a job with workers on these nodes; without a server at a switch.

    Raises `InputError` if a node has several links, or two workers are on one node.
    """
    if len(set(workers)) < len(workers):
        raise InputError(f"job {job}: two workers are on one node; a job has one worker on a node")
    pick = job if choice is None else choice
    root = _middle(graph, workers, pick) if server is None else server
    made = Tree(root, [])
    number = {tuple(pair): c for c, pair in enumerate(graph.ends.tolist())}
    below: dict[int, dict[int, int]] = {}  # switch -> {neighbour below: bits}
    for rank, node in enumerate(workers):
        if node == server:
            raise InputError(f"job {job}: worker {rank} is on the node of its server, {graph.names[node]}")
        leaf = graph.leaf(node)
        made.first.append(number[node, leaf])
        before, at = node, leaf
        while True:
            ways = below.setdefault(at, {})
            ways[before] = ways.get(before, 0) | 1 << rank
            if at == root:
                break
            channel = _onward(graph, at, root, pick)
            made.up[at] = channel
            before, at = at, int(graph.ends[channel][1])
            if at == root and root < len(graph.nodes):
                break
    for at, ways in below.items():
        made.kids[at] = [(number[at, other], _signed(bits)) for other, bits in ways.items()]
        bits = _expected(made, at, ways, len(graph.nodes), levels, dedicated=server is None)
        if bits:
            made.adds[at] = _signed(bits)
    return made


def _expected(made: Tree, at: int, ways: dict[int, int], nodes: int, levels: int, *, dedicated: bool) -> int:
    """The bits of the workers whose packets a switch adds up; 0 if it only forwards them."""
    all_bits = own = 0
    for other, bits in ways.items():
        all_bits |= bits
        own |= bits if other < nodes else 0
    if dedicated and at == made.root:
        return all_bits
    if levels == 1:
        return 0 if dedicated or bin(own).count("1") < 2 else own
    return all_bits if len(ways) > 1 else 0


def _onward(graph: Graph, at: int, root: int, pick: int) -> int:
    """The first channel of a shortest way to the root; the number of the job picks one of several."""
    hops = graph.next_hops(at, root)
    if not hops:
        raise InputError(f"no path leads from {graph.names[at]} to {graph.names[root]}")
    return hops[pick % len(hops)][0]


def _middle(graph: Graph, workers: Sequence[int], pick: int) -> int:
    """The switch whose farthest worker is nearest; the number of the job picks one of several."""
    first = len(graph.nodes)
    far = {s: max(graph.distance(node, s) for node in workers) for s in range(first, len(graph.names))}
    least = min(far.values())
    nearest = [s for s, distance in far.items() if distance == least]
    return nearest[pick % len(nearest)]


def _signed(bits: int) -> int:
    """A bitmap as a signed number of 64 bits."""
    return bits - (1 << 64) if bits & bit_of(63) else bits
