"""How placed jobs exchange gradients, and what that takes of channels and of the memory of switches.

Start at `Exchange`, which `SteadyState` and `memory.steady_rates` take; `prepared` is what the solver needs to know of
one. Who adds up is the tree of `topology.trees`, which packets have, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError, suggest
from plait.network.fluid.jobs import PlacedJob, channels
from plait.network.fluid.max_min import Uses
from plait.network.topology.paths import Graph
from plait.network.topology.trees import Tree, Way, tree

#: How memory of switches is shared: not used, three laws of shared memory, a region of a job's own whose sums go to its
#: server, and slots of its own, for which a switch answers.
LAWS = ("none", "hash", "cycle", "hard", "region", "dedicated")
NONE, HASH, CYCLE, HARD, REGION, DEDICATED = range(len(LAWS))
#: Within this time workers send the same packet: the delay in their hosts differs by as much.
JITTER_S = 0.2e-6
#: Time between packets over the largest delay in the host; and of the difference between the delays of workers the part
#: that is left where packets keep their order: the delay of one is the largest of those before it, less their lead.
ORDERED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0), (0.0, 0.45, 0.6, 0.76, 0.85, 0.94, 1.0)
#: Bytes of a packet next to its payload.
HEADER_BYTES = 58
#: Seconds that a packet spends in a parameter server.
SERVER_S = 1e-6


@dataclass(frozen=True)
class Exchange:
    """How one placed job exchanges gradients.

    `placed`: a worker on each of these nodes, and a parameter server, or None for a ring all-reduce without
    aggregation and for dedicated slots. `law`: one of `LAWS`. `region`: aggregators of the job's own at each switch
    that adds up (laws "region" and "dedicated"; half of them are its window). `window`: packets of a worker under way;
    0: as many as the path takes. `server_s` is the time that a packet spends in the parameter server. `adds`, `at` and
    `pick`: which switches add up, and which of several equal ways packets take, as for `topology.trees.tree`.
    `priority`: with law "hash", packets take aggregators from those of lower priority (ESA). `jitter_s`: workers send
    the same packet within this time of each other; the longer, the more sums never meet in one aggregator and stall a
    window until workers send again.
    """

    placed: PlacedJob
    law: str = "none"
    region: int = 0
    window: int = 0
    server_s: float = SERVER_S
    at: tuple[int, ...] = ()
    priority: int = 0
    jitter_s: float = JITTER_S
    adds: str | tuple[int, ...] = "leaf+server"
    pick: int = 0

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise InputError(f"memory law {self.law!r} is unknown; {suggest(self.law, LAWS)}")
        if self.law not in ("none", "dedicated") and self.placed.server is None:
            raise InputError(
                f"a job on nodes {self.placed.workers} has no parameter server; memory law {self.law} needs one"
            )
        own = self.law in ("region", "dedicated")
        if self.window < 0 or (self.region < 2 if own else self.region != 0):
            raise InputError(
                f"memory law {self.law} with a window of {self.window} packets and a region of {self.region} "
                "aggregators; a window is >= 0, and only a region has aggregators of its own, at least 2"
            )
        if self.at and len(self.at) != len(self.placed.workers):
            raise InputError(f"{len(self.at)} switches for {len(self.placed.workers)} workers; name one for each")

    def tree(self, graph: Graph) -> Tree:
        """Who adds up its packets, and their way."""
        return tree(
            graph, self.placed.workers, self.placed.server, self.adds, answers=self.law == "dedicated", at=self.at,
            pick=self.pick,
        )  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """What the solver needs to know of an exchange; adders and entries of channels are numbered from 0.

    Entry k takes `fixed[k]` of channel `channel[k]` at rate 1, and `carried[i]` for each packet that adder `adder[i]`
    sends on for a sequence number, for each i with `entry[i] = k`. Columns by adder: `switch` (its number), `parent`
    (the adder that it sends to, or -1), `workers` that send to it, `memory` (aggregators that jobs may use there) and
    `off_s`: of the time from a packet's start to its result, `rtt_s` without queues, the part in which it holds no
    aggregator there; `serial_s`: of a packet on the channel over which several adders send to it, 0 without one. What
    fills `near_channel[i]` queues before the adder `near[i]`. `straight`: workers that no switch adds up. `line_s`:
    of a packet on the slowest link of a worker. `sides`, shape (n, 3), of adders to which several send: the adder, a
    number of the sender, and the entry of a channel between them; -1 instead of the sender where all use it.
    """

    law: int
    channel: IntArray
    fixed: FloatArray
    entry: IntArray
    adder: IntArray
    carried: FloatArray
    switch: IntArray
    parent: IntArray
    workers: FloatArray
    memory: FloatArray
    off_s: FloatArray
    serial_s: FloatArray
    near: IntArray
    near_channel: IntArray
    straight: float
    payload_bits: float
    rtt_s: float
    window: int
    region: int
    priority: int = 0
    jitter_s: float = 0.0
    line_s: float = 0.0
    sides: IntArray = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))


def prepared(graph: Graph, exchange: Exchange) -> Prepared:
    """Where an exchange goes; raises `InputError` where switches aggregate and a node has several."""
    job = exchange.placed
    if exchange.law == "none":
        uses = Uses.of([channels(graph, job)])
        none, nowhere = np.zeros(0), np.zeros(0, dtype=np.int64)
        return Prepared(
            NONE, uses.resource, uses.amount, nowhere, nowhere, none, nowhere, nowhere, none, none, none, none, nowhere,
            nowhere, 0.0, 8.0, 0.0, 0, 0,
        )  # fmt: skip
    made = exchange.tree(graph)
    switches, first = graph.network.switches, len(graph.nodes)
    hardware = [switches[at - first] for at in made.adders]
    payload = (hardware[0] if hardware else switches[graph.leaf(job.workers[0]) - first]).payload_bytes
    wire = 1 + HEADER_BYTES / payload
    row: dict[int, float] = {}
    for way in made.ways:
        for channel in way:
            row[channel] = row.get(channel, 0.0) + wire
    carried = [(channel, place) for place, way in enumerate(made.onward) for channel in way]
    for channel in {channel ^ 1 for way in (*made.ways, *made.onward) for channel in way}:
        row[channel] = row.get(channel, 0.0) + wire  # results come back once over each link
    for channel, _ in carried:
        row.setdefault(channel, 0.0)
    place = {channel: k for k, channel in enumerate(row)}
    near = [_before(made, a) for a in range(len(made.adders))]
    times = _Times(graph, made, bits := 8.0 * (HEADER_BYTES + payload))
    answers = exchange.law == "dedicated"
    middle = switches[made.end - first].delay_s if answers else exchange.server_s
    return Prepared(
        LAWS.index(exchange.law), np.array(list(row), dtype=np.int64), np.array(list(row.values())),
        np.array([place[channel] for channel, _ in carried], dtype=np.int64),
        np.array([a for _, a in carried], dtype=np.int64), np.full(len(carried), wire),
        np.array(made.adders, dtype=np.int64), np.array(made.parent, dtype=np.int64),
        np.array([made.below.count(a) for a in range(len(made.adders))], dtype=np.float64),
        np.array([one.usable for one in hardware], dtype=np.float64),
        np.array([times.off_s(a) for a in range(len(made.adders))], dtype=np.float64),
        np.array([times.serial_s(a) for a in range(len(made.adders))], dtype=np.float64),
        np.array([a for a, some in enumerate(near) for _ in some], dtype=np.int64),
        np.array([channel for some in near for channel in some], dtype=np.int64),
        float(made.below.count(-1)), 8.0 * payload, times.rtt_s + middle,
        exchange.window or exchange.region // 2, exchange.region, exchange.priority, exchange.jitter_s,
        max((bits / float(graph.channel_bits_per_s[way[0]]) for way in made.ways), default=0.0),
        np.array(_sides(made, place), dtype=np.int64).reshape(-1, 3),
    )  # fmt: skip


def _before(made: Tree, adder: int) -> list[int]:
    """The channels of packets before they are at an adder, and of results after they have left it, and no others."""
    found: set[int] = set()
    for rank in made.workers(adder):
        found.update(_up_to(made, rank, adder))
    beyond, at = set[int](), adder
    while at >= 0:
        beyond.update(made.onward[at])
        at = made.parent[at]
    found |= {channel ^ 1 for channel in found}
    return sorted(found - beyond - {channel ^ 1 for channel in beyond})


def _sides(made: Tree, entry: dict[int, int]) -> list[tuple[int, int, int]]:
    """See `Prepared.sides`; a leaf to which workers send over their own links alone has none."""
    found: list[tuple[int, int, int]] = []
    for a in range(len(made.adders)):
        direct = [way for way, to in zip(made.ways, made.below, strict=True) if to == a]
        onward = [way for way, to in zip(made.onward, made.parent, strict=True) if to == a]
        ways = [*direct, *onward]
        if len(ways) < 2 or not (onward or any(len(way) > 1 for way in direct)):
            continue
        common = set(ways[0]).intersection(*ways)
        found += [(a, i, entry[channel]) for i, way in enumerate(ways) for channel in way if channel not in common]
        found += [(a, -1, entry[channel]) for channel in sorted(common)]
    return found


def _up_to(made: Tree, rank: int, adder: int) -> Way:
    """The way of a worker's packets to an adder."""
    way, at = made.ways[rank], made.below[rank]
    while at != adder:
        way, at = way + made.onward[at], made.parent[at]
    return way


@dataclass
class _Times:
    """Times of packets of so many bits without queues, on the ways of a tree."""

    graph: Graph
    made: Tree
    bits: float

    def _once(self, way: Way) -> float:
        """There, and as long back: delays and serialisation."""
        rates = self.graph.channel_bits_per_s
        return self.graph.delay_s(way) + sum(self.bits / float(rates[channel]) for channel in way)

    @property
    def rtt_s(self) -> float:
        """From the farthest worker to the end and back."""
        return 2 * max(self._once(self.made.whole(rank)) for rank in range(len(self.made.ways)))

    def off_s(self, adder: int) -> float:
        """Until the first packet is at the adder, and from there to the farthest worker."""
        once = [self._once(_up_to(self.made, rank, adder)) for rank in self.made.workers(adder)]
        return min(once) + max(once)

    def serial_s(self, adder: int) -> float:
        """Of one packet on the channel over which several adders send to this one, the slowest of those; 0 without."""
        last = [way[-1] for way, to in zip(self.made.onward, self.made.parent, strict=True) if to == adder and way]
        rates = self.graph.channel_bits_per_s
        return max((self.bits / float(rates[c]) for c in set(last) if last.count(c) > 1), default=0.0)


@dataclass(frozen=True)
class Adders:
    """The adders and channel entries of several exchanges, one after the other; see `Prepared`."""

    parts: Sequence[Prepared]
    uses: Uses
    job: IntArray
    switch: IntArray
    parent: IntArray
    workers: FloatArray
    memory: FloatArray
    law: IntArray
    off_s: FloatArray
    serial_s: FloatArray
    entry: IntArray
    adder: IntArray
    carried: FloatArray
    near: IntArray
    near_channel: IntArray

    @classmethod
    def of(cls, parts: Sequence[Prepared]) -> Adders:
        """The adders of these exchanges; shared memory is what regions leave of it."""
        entries = _starts([len(part.channel) for part in parts])
        adders = _starts([len(part.switch) for part in parts])
        count = [len(part.switch) for part in parts]
        uses = Uses(entries, _joined([p.channel for p in parts]), np.concatenate([p.fixed for p in parts]))
        switch = _joined([p.switch for p in parts])
        law = np.repeat(np.array([p.law for p in parts], dtype=np.int64), count)
        region = np.repeat(np.array([p.region for p in parts], dtype=np.float64), count)
        memory = np.concatenate([p.memory for p in parts])
        if region.any():
            memory = np.maximum(memory - np.bincount(switch, region)[switch], 0.0)

        def shifted(columns: list[IntArray], first: IntArray) -> IntArray:
            return _joined([c + f for c, f in zip(columns, first[:-1].tolist(), strict=True)])

        below = shifted([np.where(p.parent < 0, -(1 << 40), p.parent) for p in parts], adders)
        return cls(
            parts, uses, np.repeat(np.arange(len(parts)), count), switch, np.maximum(below, -1),
            np.concatenate([p.workers for p in parts]), memory, law, np.concatenate([p.off_s for p in parts]),
            np.concatenate([p.serial_s for p in parts]),
            shifted([p.entry for p in parts], entries), shifted([p.adder for p in parts], adders),
            np.concatenate([p.carried for p in parts]), shifted([p.near for p in parts], adders),
            _joined([p.near_channel for p in parts]),
        )  # fmt: skip

    @cached_property
    def ranks(self) -> tuple[IntArray, IntArray, IntArray] | None:
        """For sums over jobs of at least the own priority at a switch; None where all have the same.

        The rank of each adder: those of one switch in order of falling priority, equal ones together; the first rank of
        the switch of each rank; and how many ranks there are, as an array of one.
        """
        priority = np.array([p.priority for p in self.parts], dtype=np.int64)[self.job]
        if not len(priority) or (priority == priority[0]).all():
            return None
        pairs, rank = np.unique(np.stack([self.switch, -priority]), axis=1, return_inverse=True)
        first = np.searchsorted(pairs[0], pairs[0], side="left")
        return rank.reshape(-1), first.astype(np.int64), np.array([pairs.shape[1]])

    @cached_property
    def by_job(self) -> FloatArray:
        """Payload bits, time to a result, window and straight workers of each job; shape (4, jobs)."""
        return np.array([(p.payload_bits, p.rtt_s, p.window, p.straight) for p in self.parts], dtype=np.float64).T

    @cached_property
    def own(self) -> BoolArray:
        """Whether the memory of each adder is its job's own."""
        return self.law >= REGION

    @cached_property
    def inputs(self) -> FloatArray:
        """Workers and adders that send to each adder."""
        return self.workers + np.bincount(self.parent[self.parent >= 0], minlength=len(self.parent))

    @cached_property
    def _jitter_s(self) -> FloatArray:
        return np.array([p.jitter_s for p in self.parts], dtype=np.float64)[self.job]

    def spread_s(self, packets_per_s: FloatArray, sent: FloatArray) -> FloatArray:
        """Mean time between the first and the last packet of a sum at each adder, where jobs send at these rates.

        Hosts delay packets uniformly and keep their order, so at a high rate the delays of several are alike. What
        other adders send comes one after the other. `sent`: by each adder, as of the method.
        """
        n = self.inputs
        gap = 1 / np.maximum(packets_per_s[self.job] * self._jitter_s, 1e-12)
        kept = np.interp(gap, *ORDERED)
        up = self.parent >= 0
        came = np.bincount(self.parent[up], sent[up], minlength=len(sent))
        serial = self.serial_s * np.maximum(came - 1, 0.0)
        return np.where(self.own, 0.0, self._jitter_s * kept * (n - 1) / (n + 1) + serial)

    def longer_s(self, sum_s: FloatArray) -> FloatArray:
        """For each sum of a burst, the time by which its last packet falls further behind the first at each adder.

        `sum_s`: seconds of the packets of a sum at each entry of `uses`. They queue where these take longer than on the
        links of workers, and longer on the way from one sender than from another.
        """
        adder, _, entry = self._sides
        each = np.maximum(sum_s[entry], self._line_s[self.job[adder]])
        most, least = self._ends(each)
        end = most.copy()
        np.maximum.at(end, adder, each)
        found: FloatArray = (1 - least / np.maximum(most, 1e-15)) * end
        return found

    def apart_s(self, waits_s: FloatArray) -> FloatArray:
        """How much longer packets of one sender wait than those of another, at each adder; `waits_s`: by entry."""
        most, least = self._ends(waits_s[self._sides[2]])
        found: FloatArray = most - least
        return found

    def _ends(self, each: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of each adder the most and the least of its senders; a sender has the most of its own channels."""
        adder, sender, _ = self._sides
        own = sender >= 0
        of_sender = np.zeros(int(sender.max(initial=-1)) + 1)
        np.maximum.at(of_sender, sender[own], each[own])
        most, least = np.zeros(len(self.job)), np.full(len(self.job), np.inf)
        np.maximum.at(most, adder[own], of_sender[sender[own]])
        np.minimum.at(least, adder[own], of_sender[sender[own]])
        return most, np.where(np.isinf(least), 0.0, least)

    @cached_property
    def uneven(self) -> FloatArray:
        """1 for jobs of law "hash" with an adder to which packets come over unlike ways, else 0."""
        found = np.zeros(len(self.parts))
        at = self._sides[0]
        found[self.job[at[self.law[at] == HASH]]] = 1.0
        return found

    @cached_property
    def _line_s(self) -> FloatArray:
        """Seconds of a packet on the slowest link of a worker of each job."""
        return np.array([p.line_s for p in self.parts], dtype=np.float64)

    @cached_property
    def _sides(self) -> tuple[IntArray, IntArray, IntArray]:
        """Adder, sender by a number of its own or -1, and entry: `Prepared.sides`."""
        adders = _starts([len(part.switch) for part in self.parts])[:-1].tolist()
        entries = self.uses.first[:-1].tolist()
        rows = [p.sides + (a, 0, e) for p, a, e in zip(self.parts, adders, entries, strict=True)]
        adder, sender, entry = np.concatenate(rows).T
        own = sender >= 0
        number = np.full(len(sender), -1, dtype=np.int64)
        number[own] = np.unique(np.stack([adder, sender])[:, own], axis=1, return_inverse=True)[1].reshape(-1)
        return adder, number, entry

    @cached_property
    def _rounds(self) -> list[IntArray]:
        """Adders by how many others are below them, one after the other: parts of the job come before the whole."""
        height = np.zeros(len(self.parent), dtype=np.int64)
        for a in range(len(self.parent)):  # children have lower numbers
            if self.parent[a] >= 0:
                height[self.parent[a]] = max(height[self.parent[a]], height[a] + 1)
        return [np.flatnonzero(height == h) for h in range(int(height.max(initial=-1)) + 1)]

    def sent(self, share: FloatArray) -> FloatArray:
        """Packets that each adder sends on for a sequence number, where it adds up these shares in full."""
        arrive, sent = self.workers.copy(), np.zeros(len(share))
        for some in self._rounds:
            sent[some] = share[some] + (1 - share[some]) * arrive[some]
            parents = self.parent[some]
            up = parents >= 0
            np.add.at(arrive, parents[up], sent[some][up])
        return sent

    def uses_at(self, sent: FloatArray) -> Uses:
        """What jobs use of channels where adders send on so many packets for a sequence number."""
        if not len(self.entry):
            return self.uses
        carried = np.bincount(self.entry, self.carried * sent[self.adder], minlength=len(self.uses.amount))
        return Uses(self.uses.first, self.uses.resource, self.uses.amount + carried)


def _starts(lengths: list[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))]).astype(np.int64)


def _joined(columns: list[IntArray]) -> IntArray:
    return np.concatenate(columns).astype(np.int64)
