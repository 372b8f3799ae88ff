"""The network of a cluster: switches, and the links that join them with nodes and with each other. Hardware only.

`plait.network.topology` builds networks and finds paths in them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from plait.core.codec.values import form
from plait.core.errors import InputError, suggest


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch. With `aggregators` it can add up gradients; each aggregator holds the payload of one packet.

    tier                 1: nodes are attached to it; 2 joins switches of tier 1, and so on
    aggregators          in its memory; 0: it does not aggregate
    reserved             of these, no job may use so many
    payload_bytes        of one packet and aggregator
    levels               1: it adds up packets of workers; 2: also sums that other switches send
    process_bits_per_s   payload that it can aggregate; 0: not a limit
    delay_s              of a packet that passes it
    """

    id: str
    tier: int = 1
    aggregators: int = 0
    reserved: int = 0
    payload_bytes: int = 248
    levels: int = 1
    process_bits_per_s: float = 0.0
    delay_s: float = 1e-6

    def __post_init__(self) -> None:
        """Raise `InputError` for impossible hardware."""
        if not 0 <= self.reserved <= self.aggregators:
            raise InputError(
                f"switch {self.id!r}: reserved is {self.reserved}, needs 0 to its {self.aggregators} aggregators"
            )
        if self.payload_bytes < 4 or self.payload_bytes % 4:
            raise InputError(
                f"switch {self.id!r}: payload_bytes is {self.payload_bytes}, needs a positive multiple of 4 "
                "(values of 32 bits)"
            )
        if self.tier < 1 or self.levels not in (1, 2):
            raise InputError(
                f"switch {self.id!r}: tier is {self.tier} and levels is {self.levels}, "
                "needs a tier of at least 1 and 1 or 2 levels"
            )
        for name in ("process_bits_per_s", "delay_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"switch {self.id!r}: {name} is {getattr(self, name):g}, needs a finite number >= 0")

    @property
    def usable(self) -> int:
        """Aggregators that jobs may use."""
        return self.aggregators - self.reserved


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex link between `a` and `b`, each a switch or a node by its id.

    `bits_per_s` holds for each direction, `delay_s` is that of propagation.
    """

    a: str
    b: str
    bits_per_s: float
    delay_s: float = 1e-6

    def __post_init__(self) -> None:
        """Raise `InputError` for an impossible link."""
        if self.a == self.b:
            raise InputError(f"a link joins {self.a!r} with itself; name two different ends")
        if not 0 < self.bits_per_s < math.inf:
            raise InputError(f"link {self}: bits_per_s is {self.bits_per_s:g}, needs a positive, finite number")
        if not 0 <= self.delay_s < math.inf:
            raise InputError(f"link {self}: delay_s is {self.delay_s:g}, needs a finite number >= 0")

    def __str__(self) -> str:
        """Its ends."""
        return f"{self.a}-{self.b}"


@dataclass(frozen=True)
class Network:
    """Switches and links in a fixed order; ends of links that are no switches are nodes.

    `description` is how it was made, for people and results. `down` names switches that are lost, in the order of
    `switches`: they aggregate nothing, and nodes that they cut off are reported as lost by themselves.

    >>> net = Network((Switch("leaf0"),), (Link("n0", "leaf0", 1e11), Link("n1", "leaf0", 1e11)))
    >>> net.attached
    ('n0', 'n1')
    """

    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    description: str = ""
    down: tuple[str, ...] = field(default=(), metadata=form(omit=True))

    def __post_init__(self) -> None:
        """Raise `InputError` for switches of one name, links without a switch, and two links between the same ends."""
        if len(self.names) < len(self.switches):
            twice = next(name for name, count in Counter(s.id for s in self.switches).items() if count > 1)
            raise InputError(f"two switches are called {twice!r}; names must be unique")
        pairs = set()
        for link in self.links:
            if link.a not in self.names and link.b not in self.names:
                raise InputError(f"link {link}: neither end is a switch; known: {', '.join(sorted(self.names))}")
            pair = frozenset((link.a, link.b))
            if pair in pairs:
                raise InputError(f"two links join {link.a} and {link.b}; write one, with the sum of their rates")
            pairs.add(pair)

    @cached_property
    def names(self) -> frozenset[str]:
        """The ids of the switches."""
        return frozenset(switch.id for switch in self.switches)

    @cached_property
    def attached(self) -> tuple[str, ...]:
        """The nodes at the ends of links, each once, in order of first appearance."""
        ends = (end for link in self.links for end in (link.a, link.b))
        return tuple(dict.fromkeys(end for end in ends if end not in self.names))

    def check(self, nodes: Collection[str]) -> None:
        """Raise `InputError` unless exactly these nodes are attached and every node reaches every other."""
        attached = set(self.attached)
        missing = [node for node in nodes if node not in attached]
        if missing:
            raise InputError(f"node {missing[0]!r} has no link; every node needs one to a switch")
        known = set(nodes)
        for link in self.links:
            for end in (link.a, link.b):
                if end not in known and end not in self.names:
                    raise InputError(f"link {link}: {end!r} is neither a switch nor a node of the cluster")
                if end in known and end in self.names:
                    raise InputError(f"{end!r} is the name of a switch and of a node; names must differ")
        reached = self._reached_from(next(iter(nodes)))
        apart = [node for node in nodes if node not in reached]
        if apart:
            raise InputError(f"no path leads from node {next(iter(nodes))!r} to node {apart[0]!r}; link their switches")

    def switch(self, name: str) -> Switch:
        """A switch by its name; raises `InputError` if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise InputError(f"no switch {name!r} in this network; {suggest(name, sorted(self.names))}")
        return found

    @cached_property
    def _by_name(self) -> dict[str, Switch]:
        return {switch.id: switch for switch in self.switches}

    @property
    def most_usable(self) -> int:
        """Aggregators that jobs may use of the switch with most of them, up or down; 0: none aggregates."""
        return max((switch.usable for switch in self.switches), default=0)

    def with_switch(self, name: str) -> Network:
        """The network after a switch came back; raises `InputError` for an unknown one."""
        self.switch(name)
        return replace(self, down=tuple(one for one in self.down if one != name))

    def without_switch(self, name: str) -> Network:
        """The network after a switch was lost; raises `InputError` for an unknown one."""
        self.switch(name)
        gone = {*self.down, name}
        return replace(self, down=tuple(switch.id for switch in self.switches if switch.id in gone))

    def without(self, node: str) -> Network:
        """The network without the links of a node."""
        return replace(self, links=tuple(link for link in self.links if node not in (link.a, link.b)))

    def _reached_from(self, node: str) -> set[str]:
        """Nodes and switches that paths from a node reach; nodes do not forward."""
        beside: dict[str, list[str]] = {}
        for link in self.links:
            beside.setdefault(link.a, []).append(link.b)
            beside.setdefault(link.b, []).append(link.a)
        reached, left = {node}, [node]
        while left:
            at = left.pop()
            if at in self.names or at == node:
                new = [end for end in beside[at] if end not in reached]
                reached.update(new)
                left += new
        return reached

    def __str__(self) -> str:
        """How it was made, or its size."""
        return self.description or f"{len(self.switches)} switches, {len(self.links)} links"
