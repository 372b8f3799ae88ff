"""Paths of packets through a network: shortest ones, one of them by number, and an equal split over all of them.

Start at `Graph`. Each link is two channels, one for each direction; capacities and shares are those of channels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster, Network
from plait.core.errors import InputError

#: Share of a stream by channel; channels that it does not use are absent.
Shares = dict[int, float]


@dataclass
class Graph:
    """The network of a cluster, by number: first the nodes in the order of the cluster, then the switches.

    Channel `2 i` leads from end `a` of link `i` to end `b`, channel `2 i + 1` back. Nodes do not forward. Answers are
    kept, so a graph is made once for a network.
    """

    nodes: tuple[str, ...]
    network: Network
    _distances: dict[int, list[int]] = field(default_factory=dict, repr=False)
    _shares: dict[tuple[int, int], Shares] = field(default_factory=dict, repr=False)
    _bundled: dict[tuple[int, int], Shares] = field(default_factory=dict, repr=False)
    _paths: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict, repr=False)
    _trips: dict[tuple[int, int, float], float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, cluster: Cluster) -> Graph:
        """The graph of a cluster; raises `InputError` if its network is not known."""
        if cluster.network is None:
            raise InputError(f"the network of cluster {cluster} is not known; give one, e.g. --network single-switch")
        return cls(tuple(node.id for node in cluster.nodes), cluster.network)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of nodes and switches."""
        return self.nodes + tuple(switch.id for switch in self.network.switches)

    @cached_property
    def channel_bits_per_s(self) -> FloatArray:
        """Rate of each channel."""
        return np.repeat(np.array([link.bits_per_s for link in self.network.links], dtype=np.float64), 2)

    @cached_property
    def ends(self) -> IntArray:
        """From where to where each channel leads, shape (channels, 2)."""
        number = {name: i for i, name in enumerate(self.names)}
        there = np.array([(number[link.a], number[link.b]) for link in self.network.links], dtype=np.int64)
        return np.stack([there, there[:, ::-1]], axis=1).reshape(-1, 2)

    @cached_property
    def to(self) -> list[int]:
        """Where each channel leads."""
        return [int(end) for end in self.ends[:, 1]]

    @cached_property
    def bundle(self) -> IntArray:
        """The first channel of the bundle of each channel; equal shares load all channels of a bundle equally.

        Switches that nothing but their names tells apart have one colour: refined until switches of one colour have
        links of equal rates to equal colours (an equitable partition), with a colour of its own for every node. Streams
        then visit switches of one colour equally, and so the channels between two colours. Where a switch aggregates
        every channel is its own bundle: the packets of an aggregated job take one of several ways.
        """
        if any(one.usable for one in self.network.switches):
            return np.arange(len(self.ends), dtype=np.int64)
        first_switch = len(self.nodes)
        colours = list(range(first_switch)) + [first_switch] * len(self.network.switches)
        rates = self.channel_bits_per_s.tolist()
        count = 0
        while count < len(set(colours)):
            count = len(set(colours))
            known: dict[object, int] = {}
            # The former colour is part of the signature, so colours are only ever divided.
            colours = [
                known.setdefault((colours[i], tuple(sorted((colours[b], rates[c]) for c, b in out))), len(known))
                for i, out in enumerate(self._out)
            ]
        first: dict[tuple[int, int, float], int] = {}
        keys = ((colours[a], colours[b], rates[c]) for c, (a, b) in enumerate(self.ends.tolist()))
        return np.array([first.setdefault(key, c) for c, key in enumerate(keys)], dtype=np.int64)

    def bundled_shares(self, source: int, target: int) -> Shares:
        """`shares` of the first channel of each bundle, which say all: the others of the bundle carry the same."""
        key = source, target
        if key not in self._bundled:
            shares = self._split(source, target)
            self._bundled[key] = {c: share for c, share in shares.items() if self._first[c]}
        return self._bundled[key]

    @cached_property
    def _first(self) -> list[bool]:
        """Whether a channel is the first of its bundle."""
        return [first == c for c, first in enumerate(self.bundle.tolist())]

    def leaf(self, node: int) -> int:
        """The number of the switch that a node is attached to; raises `InputError` if there are several."""
        out = self._out[node]
        if len(out) != 1:
            raise InputError(f"node {self.names[node]} has {len(out)} links; this needs nodes with one")
        return out[0][1]

    @cached_property
    def most_ways(self) -> int:
        """Switches above a leaf, at most: of so many equal ways jobs pick one each. At least 1."""
        first = len(self.nodes)
        leaves = {other for out in self._out[:first] for _, other in out}
        return max([1, *(sum(other >= first for _, other in self._out[leaf]) for leaf in leaves)])

    @cached_property
    def single_links(self) -> bool:
        """Whether every node has one link, so that it has a `leaf`."""
        return all(len(out) == 1 for out in self._out[: len(self.nodes)])

    def channel_name(self, channel: int) -> str:
        """From where to where, for people."""
        a, b = self.ends[channel].tolist()
        return f"{self.names[a]}->{self.names[b]}"

    @cached_property
    def _out(self) -> list[list[tuple[int, int]]]:
        """(Channel, other end) of the channels that leave each node and switch."""
        out: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for channel, (a, b) in enumerate(self.ends.tolist()):
            out[a].append((channel, b))
        return out

    def shortest_paths(self, source: int, target: int) -> Iterator[tuple[int, ...]]:
        """All paths with the fewest channels from one node to another, each as its channels, in a fixed order.

        Raises `InputError` if there is none. A path from a node to itself has no channels.
        """
        distance = self._distances_to(target)
        if distance[source] < 0:
            raise InputError(f"no path leads from {self.names[source]} to {self.names[target]}")

        def further(at: int) -> Iterator[tuple[int, ...]]:
            if at == target:
                yield ()
            for channel, other in self._onwards(at, distance):
                for rest in further(other):
                    yield (channel, *rest)

        return further(source)

    def path(self, source: int, target: int, pick: int = 0, prefer: Collection[int] = ()) -> tuple[int, ...]:
        """One shortest path: of several next hops number `pick`, counted round, over preferred switches where possible.

        The same `pick` at every switch, so all packets of a job with that number meet. Raises `InputError` if there is
        no path.
        """
        key = source, target, pick
        if key in self._paths and not prefer:
            return self._paths[key]
        distance = self._distances_to(target)
        if distance[source] < 0:
            raise InputError(f"no path leads from {self.names[source]} to {self.names[target]}")
        at, path = source, []
        while at != target:
            hops = self._onwards(at, distance)
            hops = [hop for hop in hops if hop[1] in prefer] or hops
            channel, at = hops[pick % len(hops)]
            path.append(channel)
        return self._paths.setdefault(key, tuple(path)) if not prefer else tuple(path)

    def shares(self, source: int, target: int) -> Shares:
        """What each channel carries of a stream of rate 1 that every hop splits equally over its shortest next hops."""
        key = source, target
        if key not in self._shares:
            self._shares[key] = self._split(source, target)
        return self._shares[key]

    def next_hops(self, at: int, target: int) -> list[tuple[int, int]]:
        """(Channel, other end) of the hops with which a shortest path from a node or switch to another begins."""
        return self._onwards(at, self._distances_to(target))

    def distance(self, at: int, target: int) -> int:
        """Channels of a shortest path from a node or switch to another; raises `InputError` if there is none."""
        found = self._distances_to(target)[at]
        if found < 0:
            raise InputError(f"no path leads from {self.names[at]} to {self.names[target]}")
        return found

    def delay_s(self, path: tuple[int, ...]) -> float:
        """One-way delay of a path without queueing: propagation, and the delay of every switch on it."""
        links, switches, first = self.network.links, self.network.switches, len(self.nodes)
        passed = [int(self.ends[channel][1]) - first for channel in path[:-1]]
        return sum(links[channel // 2].delay_s for channel in path) + sum(switches[i].delay_s for i in passed)

    def trip_s(self, source: int, target: int, bits: float) -> float:
        """Seconds of a packet of so many bits on the first shortest path, without queues: delays and serialisation."""
        key = source, target, bits
        if key not in self._trips:
            path = self.path(source, target)
            self._trips[key] = self.delay_s(path) + float((bits / self.channel_bits_per_s[list(path)]).sum())
        return self._trips[key]

    def _split(self, source: int, target: int) -> Shares:
        distance = self._distances_to(target)
        if distance[source] < 0:
            raise InputError(f"no path leads from {self.names[source]} to {self.names[target]}")
        shares: Shares = {}
        here = {source: 1.0}
        for _ in range(distance[source]):  # all paths are equally long: one hop of all of them at a time
            there: dict[int, float] = {}
            for at, amount in here.items():
                options = self._onwards(at, distance)
                for channel, other in options:
                    shares[channel] = shares.get(channel, 0.0) + amount / len(options)
                    there[other] = there.get(other, 0.0) + amount / len(options)
            here = there
        return shares

    def _onwards(self, at: int, distance: list[int]) -> list[tuple[int, int]]:
        """(Channel, other end) of the next hops that are one nearer."""
        return [hop for hop in self._out[at] if distance[hop[1]] == distance[at] - 1 >= 0]

    def _distances_to(self, target: int) -> list[int]:
        """Channels on the shortest path to `target` from everywhere; -1 where there is none."""
        if target not in self._distances:
            distance = [-1] * len(self.names)
            distance[target], reached = 0, [target]
            for at in reached:  # links lead both ways, so distances to and from are equal
                if at != target and at < len(self.nodes):
                    continue
                for _, other in self._out[at]:
                    if distance[other] < 0:
                        distance[other] = distance[at] + 1
                        reached.append(other)
            self._distances[target] = distance
        return self._distances[target]
