"""Rates of jobs that the law of memory (`fluid.memory`) does not fit, measured by a short simulation of their packets.

It holds while at most half a sum of a window stalls. Where more do, as of jobs that are spread unevenly over racks with
little memory, workers wait for sums that are sent again and then send a burst; what bursts of several jobs make of each
other follows from packets alone. On a node with several workers or servers, packets of one worker queue behind those of
others and behind results, so sums come apart and stall, which the law does not know: it is up to 4.6 times too fast
there, and 2.2 times for a job alone whose server is next to a worker. Where one worker has a slower link, or some are
in the rack of the server and others are not, packets of the others hold aggregators while they wait for its own: the
law is up to 5.4 times too fast. Dedicated slots make a job with a server that is spread unevenly up to 25 % slower than
the law. Rings and aggregation on one link divide it by their packets under way, by the law equally. What the law does
not know at all, `Conditions`, is always measured. Our design. Start at `Measured.factors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError, suggest
from plait.core.options import option
from plait.network.fluid.exchanges import NONE, Exchange, Prepared
from plait.network.packets.run import flow
from plait.network.packets.scenario import FLOW_SIZES, OVERFLOWS, PacketJob, Scenario, check_background
from plait.network.protocol.options import CHOICES, preset
from plait.network.topology.fields import placed, read_options, split_options
from plait.network.topology.paths import Graph

#: Sums of a window that stall, above which jobs are measured.
MOST_STALLED = 0.5
#: Windows of the slowest job that are simulated at most, and those of them before rates are measured.
WINDOWS, WARM_UP = 1500, 15
#: Packets of workers in a simulation, at most: those of two CPU seconds.
MOST_PACKETS = 2_000_000
#: A simulation ends when the standard error of the rate of each job is a smaller part of it.
NEAR = 0.02
#: Bytes that no job sends while it is simulated.
ENDLESS = 1 << 36
#: Packets of a worker under way in each half of a ring, and their payload in bytes.
RING_WINDOW, RING_BYTES = 256, 1024

#: Sources of the rates of jobs with servers: the law where it holds and packets elsewhere, or one of them alone.
RATES = ("auto", "law", "packets")


@dataclass(frozen=True)
class Conditions:
    """What packets of simulated clusters meet, as in `Scenario`; no law has any of it."""

    cc: str = option("Congestion control of jobs with servers: none, aimd or a2tp", default="none")
    background: float = option("Share of its link that each node sends to another one", default=0.0, least=0, most=0.99)
    background_flows: str = option("Sizes of its flows: even, websearch or datamining", default="even")
    queue_packets: int = option("Room of a queue of a switch, packets; 0: any number", default=0, least=0, most=1 << 31)
    overflow: str = option("What becomes of packets that find it full: drop or pause", default="drop")
    mark_packets: int = option("Packets of a queue from which on others are marked", default=100, least=1, most=1 << 31)

    def __post_init__(self) -> None:
        for name, known in (("cc", CHOICES["cc"]), ("overflow", OVERFLOWS), ("background_flows", FLOW_SIZES)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}; it takes {' or '.join(known)}")
        check_background(self.background, self.background_flows)

    @property
    def of_all(self) -> bool:
        """Whether they change rates of rings and of dedicated slots, too."""
        return self.background > 0 or self.queue_packets > 0


@cache
def rates_of(text: str) -> tuple[str, Conditions]:
    """One of `RATES`, and the conditions of `packets:option=value,...`; raises `InputError` for anything else."""
    source, values, where = split_options(text, "rates", "packets:background=0.3,cc=aimd")
    if source not in RATES:
        raise InputError(f"{where}: {source!r} is unknown; {suggest(source, RATES)}")
    if values and source != "packets":
        raise InputError(f"{where}: {source} takes no options; packets does")
    return source, placed(lambda: read_options(Conditions, values, where), where)


@dataclass(frozen=True)
class Measured:
    """Measurements of exchanges on one cluster; each is made once, by one seed, so it is the same every time.

    `rates`: one of `RATES`, with "packets" under these `conditions`.
    """

    cluster: Cluster
    graph: Graph
    rates: str = "auto"
    conditions: Conditions = Conditions()
    _known: dict[tuple[Exchange, ...], FloatArray | None] = field(default_factory=dict, repr=False)

    def factors(
        self, exchanges: Sequence[Exchange], parts: Sequence[Prepared], bits_per_s: FloatArray, stalled: FloatArray
    ) -> FloatArray | None:
        """The rate by packets over `bits_per_s`, that by the law, of exchanges that all go on all the time.

        1 without servers, for rings that meet no aggregation, and by `rates` "auto" where the law holds for all: each
        node has one worker or server, at most `MOST_STALLED` of the sums of a window are `stalled`, none meets
        dedicated slots, next to which it is too fast, or rings, and workers of a job with shared memory have links of
        one rate and are as far from its server. Under conditions `of_all` rings are measured, too. None where rates by
        the law are doubtful: elsewhere by "law", and where packets cannot be simulated, with more workers than a bitmap
        has bits, or regions that do not fit together; under conditions errors of the simulation are raised then.
        """
        of_rings = _meet(parts) or self.conditions.of_all
        if not of_rings and all(one.law in ("none", "dedicated") for one in exchanges):
            return np.ones(len(exchanges))
        if self.rates != "packets":
            nodes = [node for one in exchanges for node in (*one.placed.workers, one.placed.server) if node is not None]
            odd = of_rings or any(one.law == "dedicated" or self._uneven(one) for one in exchanges)
            if len(set(nodes)) == len(nodes) and not odd and not (stalled > MOST_STALLED).any():
                return np.ones(len(exchanges))
            if self.rates == "law":
                return None
        key = tuple(exchanges)
        if key not in self._known:
            try:
                self._known[key] = self._rates(exchanges, parts, bits_per_s)
            except (InputError, SimulationError):
                if self.conditions != Conditions():
                    raise  # no law is near
                self._known[key] = None
        rates = self._known[key]
        if rates is None:
            return None
        rings = np.array([one.law == "none" for one in exchanges])
        return np.where(rings & (not of_rings), 1.0, rates / bits_per_s)

    def _uneven(self, one: Exchange) -> bool:
        """Whether packets of workers that share memory come apart: some from a slower link, or from another rack."""
        server = one.placed.server
        if one.law not in ("hash", "cycle", "hard") or server is None:
            return False
        ways = [self.graph.path(worker, server) for worker in one.placed.workers if worker != server]
        delays_s = [self.graph.delay_s(way) for way in ways]
        rates = {float(self.graph.channel_bits_per_s[way[0]]) for way in ways}
        return len(rates) > 1 or max(delays_s) - min(delays_s) > one.jitter_s

    def _rates(self, exchanges: Sequence[Exchange], parts: Sequence[Prepared], by_law: FloatArray) -> FloatArray:
        """Payload bits a second at each worker, by packets."""
        met = asdict(self.conditions)
        cc = met.pop("cc")
        jobs = [_endless(self.graph, one, part, cc) for one, part in zip(exchanges, parts, strict=True)]
        first = next((one for one in exchanges if one.law != "none"), exchanges[0])
        made = Scenario(tuple(jobs), self.cluster, server_s=first.server_s, jitter_s=first.jitter_s, **met)
        a_second = [rate / 8 / job.options.payload_bytes for job, rate in zip(jobs, by_law.tolist(), strict=True)]
        window_s = max(job.options.window / packets for job, packets in zip(jobs, a_second, strict=True))
        all_a_second = sum(job.workers * packets for job, packets in zip(jobs, a_second, strict=True))
        until_s = min(WINDOWS * window_s, MOST_PACKETS / all_a_second)
        # By the law, which is too fast here, that is a fraction of these packets: it goes on until they have come.
        found = flow(made, min(WARM_UP * window_s, until_s / 10), until_s, NEAR, MOST_PACKETS)
        return np.maximum(found.bits_per_s, 1.0)


def _meet(parts: Sequence[Prepared]) -> bool:
    """Whether rings have a channel with packets that switches add up."""
    ring, other = (
        np.concatenate([np.zeros(0, np.int64), *(part.channel for part in parts if (part.law == NONE) == side)])
        for side in (True, False)
    )
    return bool(np.isin(ring, other).any())


def _endless(graph: Graph, one: Exchange, part: Prepared, cc: str) -> PacketJob:
    """The job of an exchange that does not end. A2TP has lists of slots, each different, as in its released code."""
    workers = len(one.placed.workers)
    if one.law == "none":
        options = preset("atp", window=RING_WINDOW, payload_bytes=RING_BYTES)
        return PacketJob(options, workers, (ENDLESS,), collective="ring", nodes=one.placed.workers)
    system = {"region": "inalloc", "dedicated": "switchml"}.get(one.law, "esa" if one.priority else "atp")
    system = cc if (cc, system) == ("a2tp", "atp") else system
    cycle = one.law == "cycle" or system == "a2tp"
    window = min(part.window, int(part.memory.min(initial=part.window))) if cycle else part.window
    options = preset(
        system, index="shared_cycle" if cycle else "auto", window=window, initial_window=window,
        payload_bytes=round(part.payload_bits / 8), cc="none" if one.law == "dedicated" else cc,
    )  # fmt: skip
    return PacketJob(
        options, workers, (ENDLESS,), memory=one.region or None, priority=one.priority, nodes=one.placed.workers,
        server=one.placed.server, tree=one.tree(graph),
    )  # fmt: skip
