"""Rates of jobs that the law of memory (`fluid.memory`) does not fit, measured by a short simulation of their packets.

It holds while at most half a sum of a window stalls. Where more do, as of jobs that are spread unevenly over racks with
little memory, workers wait for sums that are sent again and then send a burst; what bursts of several jobs make of each
other follows from packets alone. On a node with several workers or servers, packets of one worker queue behind those of
others and behind results, so sums come apart and stall, which the law does not know: it is up to 4.6 times too fast
there, and 2.2 times for a job alone whose server is next to a worker. Where one worker has a slower link, or some are
in the rack of the server and others are not, packets of the others hold aggregators while they wait for its own: the
law is up to 5.4 times too fast. Dedicated slots make a job with a server that is spread unevenly up to 25 % slower than
the law. Our design. Start at `Measured.factors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError
from plait.network.fluid.exchanges import Exchange, Prepared
from plait.network.packets.run import flow
from plait.network.packets.scenario import PacketJob, Scenario
from plait.network.protocol.options import preset
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
class Measured:
    """Measurements of exchanges on one cluster; each is made once, by one seed, so it is the same every time.

    `rates`: one of `RATES`.
    """

    cluster: Cluster
    graph: Graph
    rates: str = "auto"
    _known: dict[tuple[Exchange, ...], FloatArray | None] = field(default_factory=dict, repr=False)

    def factors(
        self, exchanges: Sequence[Exchange], parts: Sequence[Prepared], bits_per_s: FloatArray, stalled: FloatArray
    ) -> FloatArray | None:
        """The rate by packets over `bits_per_s`, that by the law, of exchanges that all go on all the time.

        1 without servers, for rings, and by `rates` "auto" where the law holds for all: each node has one worker or
        server, at most `MOST_STALLED` of the sums of a window are `stalled`, none meets dedicated slots, next to which
        it is too fast, and workers of a job with shared memory have links of one rate and are as far from its server.
        None where rates by the law are doubtful: elsewhere by "law", and where packets cannot be simulated, with more
        workers than a bitmap has bits, or regions that do not fit beside each other.
        """
        if all(one.law in ("none", "dedicated") for one in exchanges):
            return np.ones(len(exchanges))
        if self.rates != "packets":
            nodes = [node for one in exchanges for node in (*one.placed.workers, one.placed.server) if node is not None]
            odd = any(one.law == "dedicated" or self._uneven(one) for one in exchanges)
            if len(set(nodes)) == len(nodes) and not odd and not (stalled > MOST_STALLED).any():
                return np.ones(len(exchanges))
            if self.rates == "law":
                return None
        key = tuple(exchanges)
        if key not in self._known:
            try:
                self._known[key] = self._rates(exchanges, parts, bits_per_s)
            except (InputError, SimulationError):
                self._known[key] = None
        rates = self._known[key]
        return None if rates is None else np.where([one.law == "none" for one in exchanges], 1.0, rates / bits_per_s)

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
        jobs = [_endless(self.graph, one, part) for one, part in zip(exchanges, parts, strict=True)]
        first = next(one for one in exchanges if one.law != "none")
        made = Scenario(tuple(jobs), self.cluster, server_s=first.server_s, jitter_s=first.jitter_s)
        a_second = [rate / 8 / job.options.payload_bytes for job, rate in zip(jobs, by_law.tolist(), strict=True)]
        window_s = max(job.options.window / packets for job, packets in zip(jobs, a_second, strict=True))
        all_a_second = sum(job.workers * packets for job, packets in zip(jobs, a_second, strict=True))
        until_s = min(WINDOWS * window_s, MOST_PACKETS / all_a_second)
        # By the law, which is too fast here, that is a fraction of these packets: it goes on until they have come.
        found = flow(made, min(WARM_UP * window_s, until_s / 10), until_s, NEAR, MOST_PACKETS)
        return np.maximum(found.bits_per_s, 1.0)


def _endless(graph: Graph, one: Exchange, part: Prepared) -> PacketJob:
    """The job of an exchange that does not end."""
    workers = len(one.placed.workers)
    if one.law == "none":
        options = preset("atp", window=RING_WINDOW, payload_bytes=RING_BYTES)
        return PacketJob(options, workers, (ENDLESS,), collective="ring", nodes=one.placed.workers)
    system = {"region": "inalloc", "dedicated": "switchml"}.get(one.law, "esa" if one.priority else "atp")
    index = "shared_cycle" if one.law == "cycle" else "auto"
    payload = round(part.payload_bits / 8)
    options = preset(system, index=index, window=part.window, payload_bytes=payload)
    return PacketJob(
        options, workers, (ENDLESS,), memory=one.region or None, priority=one.priority, nodes=one.placed.workers,
        server=one.placed.server, tree=one.tree(graph),
    )  # fmt: skip
