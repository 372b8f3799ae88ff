"""How placed jobs exchange gradients, and what that takes of channels and of the memory of leaf switches.

Start at `Exchange`, which `steady.steady_rates` takes; `prepared` is what the solver needs to know of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError, suggest
from plait.network.fluid.jobs import PlacedJob, channels
from plait.network.fluid.max_min import Uses
from plait.network.topology.paths import Graph

#: How memory of switches is shared: not used, three laws of shared memory, and a region of a job's own.
LAWS = ("none", "hash", "cycle", "hard", "region")
NONE, HASH, CYCLE, HARD, REGION = range(len(LAWS))
#: Within this time workers send the same packet: the delay in their hosts differs by as much.
JITTER_S = 0.2e-6
#: A worker whose packets no switch adds up.
STRAIGHT = -1
#: Bytes of a packet beside its payload.
HEADER_BYTES = 58
#: Seconds that a packet spends in a parameter server.
SERVER_S = 1e-6


@dataclass(frozen=True)
class Exchange:
    """How one placed job exchanges gradients.

    `placed`: a worker on each of these nodes, and a parameter server, or None for a ring all-reduce without
    aggregation. `law`: one of `LAWS`. `region`: aggregators of the job's own at each leaf that adds up several of its
    workers (law "region"; half of them are its window). `window`: packets of a worker under way; 0: as many as the
    path takes. `server_s` is the time that a packet spends in the parameter server. `at`: for each worker the number in
    the graph of the switch that adds up its packets, or `STRAIGHT` for none; empty: its leaf. `priority`: with law
    "hash", packets take aggregators from those of lower priority (ESA). `jitter_s`: workers send the same packet within
    this time of each other; the longer, the more sums never meet in one aggregator and stall a window until workers
    send again. `levels`: 2 lets the leaf of the server add up the sums of other racks, if it can (`Switch.levels`);
    with law "region" it answers in the server's place.
    """

    placed: PlacedJob
    law: str = "none"
    region: int = 0
    window: int = 0
    server_s: float = SERVER_S
    at: tuple[int, ...] = ()
    priority: int = 0
    jitter_s: float = JITTER_S
    levels: int = 2

    def __post_init__(self) -> None:
        """Raise `InputError` for a law that is unknown or lacks what it needs."""
        if self.law not in LAWS:
            raise InputError(f"memory law {self.law!r} is unknown; {suggest(self.law, LAWS)}")
        if self.law != "none" and self.placed.server is None:
            raise InputError(
                f"a job on nodes {self.placed.workers} has no parameter server; aggregation in switches needs one"
            )
        if self.window < 0 or (self.region < 2 if self.law == "region" else self.region != 0):
            raise InputError(
                f"memory law {self.law} with a window of {self.window} packets and a region of {self.region} "
                "aggregators; a window is >= 0, and only a region has aggregators of its own, at least 2"
            )
        if self.at and len(self.at) != len(self.placed.workers):
            raise InputError(f"{len(self.at)} switches for {len(self.placed.workers)} workers; name one for each")


@dataclass(frozen=True)
class Prepared:
    """What the solver needs to know of an exchange; racks and entries of channels are numbered from 0.

    Entry k takes `fixed[k]` of channel `channel[k]` at rate 1, less `saved[i] * f[rack[i]]` for each i with
    `entry[i] = k`, where f is the share of sequence numbers that a rack's switch adds up. A rack is the workers of the
    job that one switch adds up, mostly a leaf. `leaf` (the switch), `workers` and `memory` (aggregators that jobs may
    use there) are columns by rack. `rtt_s`: from a packet's start to its result
    without queues; `off_s`: the part of it in which it holds no aggregator.
    """

    law: int
    channel: IntArray
    fixed: FloatArray
    entry: IntArray
    rack: IntArray
    saved: FloatArray
    leaf: IntArray
    workers: FloatArray
    memory: FloatArray
    payload_bits: float
    rtt_s: float
    off_s: float
    window: int
    region: int
    priority: int = 0
    jitter_s: float = 0.0


def prepared(graph: Graph, exchange: Exchange) -> Prepared:
    """Where an exchange goes; raises `InputError` where switches aggregate and a node has several."""
    job = exchange.placed
    if exchange.law == "none":
        uses = Uses.of([channels(graph, job)])
        none, nowhere = np.zeros(0), np.zeros(0, dtype=np.int64)
        return Prepared(
            NONE, uses.resource, uses.amount, nowhere, nowhere, none, nowhere, none, none, 8.0, 0.0, 0.0, 0, 0
        )
    return _aggregated(graph, exchange)


def _aggregated(graph: Graph, exchange: Exchange) -> Prepared:
    job, law = exchange.placed, LAWS.index(exchange.law)
    assert job.server is not None
    switches, first_switch = graph.network.switches, len(graph.nodes)
    below: dict[int, list[int]] = {}
    for worker, at in zip(job.workers, exchange.at or (None,) * len(job.workers), strict=True):
        # One that sends straight is a rack of its own: nothing of it is added up.
        leaf = graph.leaf(worker) if at is None else at if at != STRAIGHT else -2 - worker
        below.setdefault(leaf, []).append(worker)
    top = graph.leaf(job.server)
    meets = switches[top - first_switch].levels == 2 and switches[top - first_switch].usable > 0
    nested = law == REGION and exchange.levels == 2 and meets and min(below) >= 0
    # A switch that sees all workers, or the sums of all racks, answers itself: no server.
    at_once = law == REGION and len(job.workers) > 1 and (len(below) == 1 or nested)
    end = job.server if not at_once else top if nested else next(iter(below))
    row: dict[int, float] = {}
    savings: list[tuple[int, int, float]] = []  # channel, rack, amount for each unit of share
    columns: list[tuple[int, int, int, float]] = []
    for key, workers in below.items():
        leaf = key if key >= 0 else graph.leaf(workers[0])
        switch = switches[leaf - first_switch]
        n, wire = len(workers), 1 + HEADER_BYTES / switch.payload_bytes
        copies = 1 if switch.usable else n  # a switch that does not aggregate sends no result to several workers
        for worker in workers:
            if key < 0 and worker == job.server:
                continue  # it hands its gradient over within the node
            _add(row, graph.bundled_shares(worker, leaf), wire)
            _add(row, graph.bundled_shares(leaf, worker), wire)
        apart = leaf == end or (key < 0 and workers[0] == job.server)
        for channel, share in {} if apart else graph.bundled_shares(leaf, end).items():
            _add(row, {channel: share}, n * wire)
            if n > 1:
                savings.append((channel, len(columns), (n - 1) * share * wire))
        if not apart:
            _add(row, graph.bundled_shares(end, leaf), copies * wire)
        columns.append((leaf, n, switch.usable, 8.0 * switch.payload_bytes))
    if law != REGION and exchange.levels == 2 and meets and len(below) > 1 and min(below) >= 0:
        _second_level(graph, job.server, list(below), row, savings, columns)
    uses = Uses.of([row])
    place = {channel: k for k, channel in enumerate(uses.resource.tolist())}
    leaf_of, n_of, memory_of, payload_of = (np.array(column) for column in zip(*columns, strict=True))
    rtt_s, off_s = _times(graph, exchange, end if at_once else None)
    return Prepared(
        law, uses.resource, uses.amount,
        np.array([place[channel] for channel, _, _ in savings], dtype=np.int64),
        np.array([rack for _, rack, _ in savings], dtype=np.int64),
        np.array([amount for *_, amount in savings], dtype=np.float64),
        leaf_of.astype(np.int64), n_of.astype(np.float64), memory_of.astype(np.float64), float(payload_of[0]),
        rtt_s, off_s, exchange.window or exchange.region // 2, exchange.region, exchange.priority,
        exchange.jitter_s,
    )  # fmt: skip


def _second_level(
    graph: Graph,
    server: int,
    racks: Sequence[int],
    row: dict[int, float],
    savings: list[tuple[int, int, float]],
    columns: list[tuple[int, int, int, float]],
) -> None:
    """Let the leaf of the server add up the sums of other racks and packets of its own, in one shared aggregator.

    Its inputs are as workers of a rack: where the aggregator is free, one packet goes on to the server. Packets that
    fell back in their racks are added up there, too; that they are more than the sums is left out. The result comes
    back once, and that switch multiplies it.
    """
    top = graph.leaf(server)
    switch = graph.network.switches[top - len(graph.nodes)]
    wire = 1 + HEADER_BYTES / switch.payload_bytes
    (up,), (down,) = graph.bundled_shares(top, server), graph.bundled_shares(server, top)
    own = racks.index(top) if top in racks else len(columns)
    inputs = len(racks) - (top in racks) + (columns[own][1] if top in racks else 0)
    savings[:] = [one for one in savings if one[:2] != (up, own)]
    savings.append((up, own, (inputs - 1) * wire))
    columns[own : own + 1] = [(top, inputs, switch.usable, 8.0 * switch.payload_bytes)]
    row[down] -= (len(racks) - 1) * wire


def _add(row: dict[int, float], shares: dict[int, float], amount: float) -> None:
    for channel, share in shares.items():
        row[channel] = row.get(channel, 0.0) + amount * share


def _times(graph: Graph, exchange: Exchange, answers: int | None) -> tuple[float, float]:
    """Time to the result and the part of it that holds no aggregator: those of the farthest worker.

    `answers`: the switch that answers in the server's place, by its number.
    """
    server = exchange.placed.server
    assert server is not None
    bits = 8.0 * (HEADER_BYTES + graph.network.switches[0].payload_bytes)
    rtt = off = 0.0
    for worker in exchange.placed.workers:
        leaf = graph.leaf(worker)
        near = graph.trip_s(worker, leaf, bits) + graph.trip_s(leaf, worker, bits)
        end = answers if answers is not None else leaf if worker == server else server
        delays = graph.trip_s(worker, end, bits) + graph.trip_s(end, worker, bits)
        middle = exchange.server_s if answers is None else graph.network.switches[answers - len(graph.nodes)].delay_s
        rtt, off = max(rtt, delays + middle), max(off, near)
    return rtt, off


@dataclass(frozen=True)
class Racks:
    """The racks and channel entries of several exchanges, one after the other; see `Prepared`."""

    parts: Sequence[Prepared]
    uses: Uses
    job: IntArray
    leaf: IntArray
    workers: FloatArray
    memory: FloatArray
    law: IntArray
    entry: IntArray
    rack: IntArray
    saved: FloatArray

    @classmethod
    def of(cls, parts: Sequence[Prepared]) -> Racks:
        """The racks of these exchanges; shared memory is what regions leave of it."""
        entries = _starts([len(part.channel) for part in parts])
        racks = _starts([len(part.leaf) for part in parts])
        count = [len(part.leaf) for part in parts]
        uses = Uses(entries, _joined([p.channel for p in parts]), np.concatenate([p.fixed for p in parts]))
        leaf, workers = _joined([p.leaf for p in parts]), np.concatenate([p.workers for p in parts])
        law = np.repeat(np.array([p.law for p in parts], dtype=np.int64), count)
        region = np.repeat(np.array([p.region for p in parts], dtype=np.float64), count) * (workers > 1)
        memory = np.concatenate([p.memory for p in parts])
        if region.any():
            memory = np.maximum(memory - np.bincount(leaf, region)[leaf], 0.0)
        return cls(
            parts, uses, np.repeat(np.arange(len(parts)), count), leaf, workers, memory, law,
            _joined([p.entry + first for p, first in zip(parts, entries[:-1].tolist(), strict=True)]),
            _joined([p.rack + first for p, first in zip(parts, racks[:-1].tolist(), strict=True)]),
            np.concatenate([p.saved for p in parts]),
        )  # fmt: skip

    @cached_property
    def ranks(self) -> tuple[IntArray, IntArray, IntArray] | None:
        """For sums over jobs of at least the own priority at a switch; None where all have the same.

        The rank of each rack: racks of one switch in order of falling priority, equal ones together; the first rank of
        the switch of each rank; and how many ranks there are, as an array of one.
        """
        priority = np.array([p.priority for p in self.parts], dtype=np.int64)[self.job]
        if not len(priority) or (priority == priority[0]).all():
            return None
        pairs, rank = np.unique(np.stack([self.leaf, -priority]), axis=1, return_inverse=True)
        first = np.searchsorted(pairs[0], pairs[0], side="left")
        return rank.reshape(-1), first.astype(np.int64), np.array([pairs.shape[1]])

    @cached_property
    def by_job(self) -> FloatArray:
        """Payload bits, time to a result, time off aggregators and window of each job; shape (4, jobs)."""
        return np.array([(p.payload_bits, p.rtt_s, p.off_s, p.window) for p in self.parts], dtype=np.float64).T

    @cached_property
    def spread_s(self) -> FloatArray:
        """Mean time between the first and the last packet of the workers of each rack, of uniform delays; by rack."""
        jitter = np.array([p.jitter_s for p in self.parts], dtype=np.float64)[self.job]
        spread: FloatArray = np.where(self.law == REGION, 0.0, jitter * (self.workers - 1) / (self.workers + 1))
        return spread

    def uses_at(self, share: FloatArray) -> Uses:
        """What jobs use of channels where these shares of sequence numbers are aggregated in each rack."""
        if not len(self.entry):
            return self.uses
        saved = np.bincount(self.entry, self.saved * share[self.rack], minlength=len(self.uses.amount))
        return Uses(self.uses.first, self.uses.resource, self.uses.amount - saved)


def _starts(lengths: list[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))]).astype(np.int64)


def _joined(columns: list[IntArray]) -> IntArray:
    return np.concatenate(columns).astype(np.int64)
