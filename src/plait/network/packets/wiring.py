"""From the tree of a job (`topology.trees`) to the routes of its packets. Start at `wired`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from plait.core.errors import InputError
from plait.network.protocol.worker import bit_of
from plait.network.topology.paths import Graph
from plait.network.topology.trees import Tree, tree


@dataclass
class Wiring:
    """The switches of a job. All numbers of switches start after the nodes.

    up        switch -> the channel to the root; the root itself, if it is a switch, is not in it
    kids      switch -> [(channel, bits of the workers that it leads to)]
    adds      switch -> the bits of the workers that it expects
    first     of each worker, the channel from its node
    root      the node of the server or the switch at which all ways end
    """

    root: int
    first: list[int] = field(default_factory=list)
    up: dict[int, int] = field(default_factory=dict)
    kids: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    adds: dict[int, int] = field(default_factory=dict)


def wired(
    graph: Graph, job: int, workers: Sequence[int], server: int | None, adds: str, made: Tree | None = None
) -> Wiring:
    """The routes of a job with workers on these nodes; without a server its slots are dedicated.

    `adds`: one of `ina_request.TREES`; `made`: its tree, where that is known. Raises `InputError` if two workers are
    on one node, and as `tree` does.
    """
    if len(set(workers)) < len(workers):
        raise InputError(f"job {job}: two workers are on one node; a job has one worker on a node")
    try:
        made = made or tree(graph, workers, server, adds, answers=server is None, pick=job)
    except InputError as error:
        raise InputError(f"job {job}: {error}") from error
    found = Wiring(made.end)
    bits: dict[int, int] = {}  # of workers, by channel
    for rank in range(len(workers)):
        way = made.whole(rank)
        found.first.append(way[0])
        found.up.update({graph.to[before]: after for before, after in pairwise(way)})
        for channel in way:
            bits[channel] = bits.get(channel, 0) | 1 << rank
    for channel, below in bits.items():
        if graph.to[channel] >= len(graph.nodes):
            found.kids.setdefault(graph.to[channel], []).append((channel ^ 1, _signed(below)))
    for place, at in enumerate(made.adders):
        found.adds[at] = _signed(sum(1 << rank for rank in made.workers(place)))
    return found


def _signed(bits: int) -> int:
    """A bitmap as a signed number of 64 bits."""
    return bits - (1 << 64) if bits & bit_of(63) else bits
