"""Links with a rate and a delay between real sockets, and jobs over them, next to the packet simulator.

Each direction of a link is a FIFO as in `plait.network.packets.links`: a packet begins when it is ready and the link
is free, takes the same time as every other, and arrives a delay later, whatever the speed of the machine. Two
calibrations measure the real rate and delay, with all that sockets, processes and a busy machine add; the simulator
gets these. Our design. Start at `PacedDataplane.measure` and `simulations`.
"""

from __future__ import annotations

import heapq
import secrets
import select
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from small_rank import SmallRank

from plait.live.dataplane.faults import DIRECTIONS
from plait.network.packets.regions import regions
from plait.network.packets.run import simulate
from plait.network.packets.scenario import PacketJob, Scenario, one_switch
from plait.network.protocol.hello import unpack
from plait.network.protocol.options import Options, preset
from plait.runtime.network.datagrams import SLOT_BYTES, Address, BatchSocket, Buffer, Datagrams
from plait.testing.dataplane import Dataplane

Deliver = Callable[[bytes], object]
Arrived = Callable[[Address, bytes], object]


class Channel:
    """One direction of a link; times in nanoseconds."""

    def __init__(self, packet_ns: int, delay_ns: int) -> None:
        """A packet takes `packet_ns` on it and `delay_ns` from there."""
        self.packet_ns, self.delay_ns = packet_ns, delay_ns
        self.busy_ns = 0

    def arrival_ns(self, ready_ns: int) -> int:
        """When a packet arrives that is ready now."""
        self.busy_ns = max(ready_ns, self.busy_ns) + self.packet_ns
        return self.busy_ns + self.delay_ns


class PacedNetwork:
    """All links of a measurement, and the sockets at their ends."""

    def __init__(self, packets_per_s: float, delay_s: float) -> None:
        """Every channel has this rate and this delay."""
        self.packet_ns, self.delay_ns = round(1e9 / packets_per_s), round(delay_s * 1e9)
        self._late: list[tuple[int, int, Deliver, bytes]] = []
        self._numbers = count()
        self._watched: dict[int, tuple[BatchSocket, Arrived]] = {}

    def channel(self) -> Channel:
        """A new one, which is free."""
        return Channel(self.packet_ns, self.delay_ns)

    def watch(self, socket: BatchSocket, arrived: Arrived) -> None:
        """Call `arrived` for each datagram that a socket receives."""
        self._watched[socket.fileno()] = socket, arrived

    def forget(self, socket: BatchSocket) -> None:
        """No longer look at a socket, before it is closed."""
        del self._watched[socket.fileno()]

    def clear(self) -> None:
        """Drop all that is on its way."""
        self._late.clear()

    def forward(self, channel: Channel, datagram: bytes, deliver: Deliver) -> None:
        """Let a datagram pass a channel, at whose end `deliver` gets it."""
        due = channel.arrival_ns(time.monotonic_ns())
        heapq.heappush(self._late, (due, next(self._numbers), deliver, datagram))

    def step(self, most_s: float) -> None:
        """Wait until a datagram is received or due, at most so long, then pass on all of these."""
        if self._late:
            most_s = min(most_s, max(0, self._late[0][0] - time.monotonic_ns()) / 1e9)
        for number in select.select(list(self._watched), (), (), most_s)[0]:
            socket, arrived = self._watched[number]
            for one in socket.receive():
                data = socket.buffers[one.slot][: one.length]
                for at in range(0, one.length, one.segment):
                    arrived(one.address, bytes(data[at : at + one.segment]))
        now = time.monotonic_ns()
        while self._late and self._late[0][0] <= now:
            _, _, deliver, datagram = heapq.heappop(self._late)
            deliver(datagram)


class PacedSocket:
    """The socket of a rank with a link of its own to the switch: what it sends and receives waits there."""

    def __init__(self, network: PacedNetwork, socket: BatchSocket) -> None:
        """Use a socket, from now on through the network alone."""
        self.network, self.socket = network, socket
        self.buffers = [memoryview(bytearray(SLOT_BYTES))]
        self._up, self._down = network.channel(), network.channel()
        self._arrived: list[bytes] = []
        self._from: Address = ()
        network.watch(socket, self._take)

    @property
    def waiting(self) -> bool:
        """Whether something has arrived that was not received yet."""
        return bool(self._arrived)

    def _take(self, address: Address, datagram: bytes) -> None:
        self._from = address
        self.network.forward(self._down, datagram, self._arrived.append)

    def send(self, address: Address, parts: Sequence[Buffer], segment: int) -> int:
        """Let datagrams of `segment` bytes pass the link, then send them; returns how many."""
        sent = 0
        for part in parts:
            for at in range(0, len(part), segment):
                one = bytes(part[at : at + segment])
                self.network.forward(self._up, one, lambda data: self.socket.send(address, [data], segment))
                sent += 1
        return sent

    def receive(self, timeout_s: float = 0.0) -> list[Datagrams]:
        """Datagrams that have passed the link, at most a buffer of them, of one sender and size; never waits."""
        if not self._arrived:
            return []
        size = len(self._arrived[0])
        most = SLOT_BYTES // size
        data = b"".join(self._arrived[:most])
        del self._arrived[:most]
        self.buffers[0][: len(data)] = data
        return [Datagrams(self._from, 0, len(data), size)]

    def close(self) -> None:
        """Close the socket."""
        self.network.forget(self.socket)
        self.socket.close()


class ServerLink:
    """The link between a switch and an aggregation server, one for each job, as if each had a server of its own.

    A switch that is started with the server at `address` reaches it through here. HELLOs pass at once.
    """

    def __init__(self, network: PacedNetwork, server: Address) -> None:
        """Nothing has passed yet; `known` has the jobs for which the server has answered the HELLO of the switch."""
        self.network, self.server, self.switch = network, server, server
        self.known: set[int] = set()
        self._front, self._back = BatchSocket(), BatchSocket()
        self.address = self._front.address
        self._channels: dict[int, tuple[Channel, Channel]] = {}
        network.watch(self._front, self._up)
        network.watch(self._back, self._down)

    def _of(self, datagram: bytes) -> tuple[Channel, Channel]:
        job = int.from_bytes(datagram[2:4], "big")
        return self._channels.setdefault(job, (self.network.channel(), self.network.channel()))

    def _up(self, switch: Address, datagram: bytes) -> None:
        self.switch = switch
        if unpack(datagram) is None:
            self.network.forward(self._of(datagram)[0], datagram, self._to_server)
        else:
            self._to_server(datagram)

    def _down(self, _: Address, datagram: bytes) -> None:
        hello = unpack(datagram)
        if hello is None:
            self.network.forward(self._of(datagram)[1], datagram, self._to_switch)
        else:
            self.known.add(hello.job)
            self._to_switch(datagram)

    def _to_server(self, datagram: bytes) -> None:
        self._back.send(self.server, [datagram], len(datagram))

    def _to_switch(self, datagram: bytes) -> None:
        self._front.send(self.switch, [datagram], len(datagram))

    def close(self) -> None:
        """Close both sockets."""
        for one in (self._front, self._back):
            self.network.forget(one)
            one.close()


PAYLOAD, AGGREGATORS, MOST_JOBS = 2048, 1024, 16
#: How aggregators are chosen, and the system that chooses so.
MODES: dict[str, dict[str, Any]] = {
    "dedicated": {"protocol": "switchml"},
    "shared_hash": {"protocol": "atp"},
    "shared_cycle": {"protocol": "atp", "index": "shared_cycle"},
    "hybrid_region": {"protocol": "esa", "index": "hybrid_region"},
}


@dataclass(frozen=True)
class Point:
    """One run: `jobs` equal jobs that start together, each the sum of one tensor of so many packets.

    aggregators  of all jobs together; each has an equal part of its own with dedicated and hybrid_region
    loss         probability that a packet is lost, on each hop and either way
    rto_s        of the workers: larger than all queues, so that nothing but a loss makes it expire
    """

    mode: str
    jobs: int = 1
    loss: float = 0.0
    packets: int = 200
    window: int = 16
    aggregators: int = 24
    workers: int = 2
    rto_s: float = 0.7

    @property
    def given(self) -> dict[str, Any]:
        """Options of each job, as switch and server take them."""
        timers = {"rto_s": self.rto_s, "first_rto_s": 2 * self.rto_s, "max_timeouts": 500, "backoff_every": 100_000}
        return {"payload_bytes": PAYLOAD, "window": self.window, **timers, **MODES[self.mode]}

    @property
    def options(self) -> Options:
        """The same, checked."""
        return preset(**self.given)

    @cached_property
    def packet_jobs(self) -> tuple[PacketJob, ...]:
        """The jobs, as the simulator takes them."""
        own = self.aggregators // self.jobs if self.mode in ("dedicated", "hybrid_region") else None
        one = PacketJob(self.options, self.workers, (self.packets * PAYLOAD,), memory=own, priority=0)
        return (one,) * self.jobs


@dataclass(frozen=True)
class Outcome:
    """Result of a point.

    goodput_bits_per_s  payload of a worker over the time from first packet to last result of its job, mean over jobs
    fallback_share      packets that found no aggregator, of all packets of workers
    resend_share        packets that were sent again, of all packets of workers
    """

    goodput_bits_per_s: float
    fallback_share: float
    resend_share: float


@dataclass(frozen=True)
class LinkFigures:
    """Measurements of the links: rate, and one-way delay without the time of the packet itself.

    jitter_s  spread of that delay between the workers of a job; what makes all of them late together is not in it
    """

    packets_per_s: float
    delay_s: float
    jitter_s: float


class _PacedRank:
    """A rank of a measurement: its tensor, and the times at which it has had results."""

    def __init__(self, network: PacedNetwork, rank: SmallRank, tensor: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        real = rank.socket
        assert isinstance(real, BatchSocket)
        self.rank, self.tensor = rank, tensor
        self.socket = rank.socket = PacedSocket(network, real)
        self.times_ns: list[int] = []
        self.done = False

    @property
    def deadline_ns(self) -> int:
        return int(self.rank.workers.state[0]["deadline"])

    def advance(self) -> None:
        while not self.done and (self.socket.waiting or time.monotonic_ns() >= self.deadline_ns):
            self.done = self.rank.advance(0.0)
            self.times_ns.append(time.monotonic_ns())


class PacedDataplane:
    """A switch and a server as processes, and ranks of this thread, with a paced link each. Ends with the block."""

    def __init__(self, packets_per_s: float, delay_s: float) -> None:
        """Start the processes; all links get this rate, and this delay one way."""
        self.network = PacedNetwork(packets_per_s, delay_s)
        self.server = Dataplane.start("server", payload=PAYLOAD, window=256, jobs=MOST_JOBS, slots=AGGREGATORS)
        self.link = ServerLink(self.network, self.server.address)
        to = f"127.0.0.1:{self.link.address[1]}"
        self.tor = Dataplane.start("switch", name="tor0", payload=PAYLOAD, aggregators=AGGREGATORS, server=to)

    def __enter__(self) -> PacedDataplane:
        return self

    def __exit__(self, *_: object) -> None:
        self.tor.stop()
        self.link.close()
        self.server.stop()

    def measure(self, point: Point, seed: int = 0, timeout_s: float = 120.0) -> Outcome:
        """Run a point; `seed` draws tensors and losses. Raises `AssertionError` if a sum is not exact."""
        return self._run(point, seed, timeout_s)[0]

    def calibrate(self, packets: int = 300, window: int = 16) -> LinkFigures:
        """Measure the links: a run of one job with window 1 for the round trip, then one with a large window.

        With window 1 a result comes a round trip after the one before: two packets on links, and two delays. Both
        workers wait for the same result, so the distance between the quartiles of how much later one has it stands for
        what a host adds of its own. The rate is that of all packets but the first, whose round trip is known.
        """
        first, second = self._run(Point("dedicated", packets=packets // 4, window=1, aggregators=2), 1, 120.0)[1]
        trip_s = float(np.median(np.diff(np.array(first)))) / 1e9
        apart = [other - min(first, key=lambda one: abs(one - other)) for other in second[1:]]
        low_s, high_s = np.quantile(np.array(apart) / 1e9, (0.25, 0.75))
        many = self._run(Point("dedicated", packets=packets, window=window, aggregators=2 * window), 2, 120.0)[0]
        took_s = 8 * PAYLOAD * packets / many.goodput_bits_per_s
        rate = (packets - 1) / (took_s - trip_s)
        jitter_s = float(high_s - low_s)
        return LinkFigures(rate, (trip_s - 2 / rate - jitter_s / 2) / 2, jitter_s)

    def _run(self, point: Point, seed: int, timeout_s: float) -> tuple[Outcome, list[list[int]]]:
        """A point: its outcome, and the times of each rank of the first job, nanoseconds: its start and results."""
        token = secrets.token_hex(8)
        for direction in DIRECTIONS:
            self.tor.control.fault(direction, loss=point.loss, seed=seed)
        jobs: list[list[_PacedRank]] = []
        try:
            jobs += [self._job(point, job, token, np.random.default_rng((seed, job))) for job in range(point.jobs)]
            until = time.monotonic() + 10
            while point.options.protocol != "switchml" and len(self.link.known) < point.jobs:
                self.network.step(0.05)
                assert time.monotonic() < until, "the server did not answer the switch"
            seconds = self._exchange(jobs, timeout_s)
            states = [one.rank.workers.state[0] for ranks in jobs for one in ranks]
            packets = sum(int(one["sent"] + one["resent"]) for one in states)
            counters = [self.tor.control.statistics(job)["jobs"][0] for job in range(point.jobs)]
            goodput = statistics.mean(8 * PAYLOAD * point.packets / one for one in seconds)
            fallback = sum(one["collided"] for one in counters) / packets
            outcome = Outcome(goodput, fallback, sum(int(one["resent"]) for one in states) / packets)
            return outcome, [one.times_ns for one in jobs[0]]
        finally:
            self._end(point, jobs)

    def _job(self, point: Point, job: int, token: str, rng: np.random.Generator) -> list[_PacedRank]:
        """Register a job and introduce its ranks."""
        offset, size = regions(point.packet_jobs, point.aggregators)[job]
        for process in (self.tor,) if point.mode == "dedicated" else (self.server, self.tor):
            process.control.register(job, point.mode, point.workers, point.given, token)
            process.control.region(job, offset, size, 0)
        made = []
        for rank in range(point.workers):
            one = SmallRank(self.tor.address, job, rank, point.workers, point.options, bytes.fromhex(token))
            one.region(offset, size, 0)
            one.hello()
            tensor = rng.integers(-(2**24), 2**24, (point.packets, PAYLOAD // 4)).astype(np.int32)
            made.append(_PacedRank(self.network, one, tensor))
        return made

    def _exchange(self, jobs: Sequence[Sequence[_PacedRank]], timeout_s: float) -> list[float]:
        """Sum the tensors of all jobs at once, check them, and return the seconds of each job."""
        ranks = [one for job in jobs for one in job]
        for one in ranks:
            one.times_ns.append(time.monotonic_ns())
            one.rank.begin(one.tensor, timeout_s)
        while left := [one for one in ranks if not one.done]:
            self.network.step(max(0.0, (min(one.deadline_ns for one in left) - time.monotonic_ns()) / 1e9))
            for one in left:
                one.advance()
        for job in jobs:
            expected = sum(one.tensor for one in job)
            assert all((one.rank.result == expected).all() for one in job), "a sum is not exact"
        return [(max(one.times_ns[-1] for one in job) - job[0].times_ns[0]) / 1e9 for job in jobs]

    def _end(self, point: Point, jobs: Sequence[Sequence[_PacedRank]]) -> None:
        """Free the jobs everywhere, and drop what is still on its way."""
        for number, ranks in enumerate(jobs):
            for one in ranks:
                one.rank.close()
            for process in (self.tor,) if point.mode == "dedicated" else (self.server, self.tor):
                process.control.free(number)
        self.link.known.clear()
        self.network.clear()


def scenario(point: Point, links: LinkFigures, seed: int) -> Scenario:
    """A point as the simulator takes it, on links as they were measured."""
    options = point.options
    bits = 8 * (options.payload_bytes + options.header_bytes)
    return one_switch(
        point.packet_jobs, point.aggregators, gbps=links.packets_per_s * bits / 1e9, delay_us=1e6 * links.delay_s,
        switch_us=0.0, seed=seed, jitter_s=links.jitter_s, server_s=0.0, mark_packets=1 << 20, loss_up=point.loss,
        loss_down=point.loss,
    )  # fmt: skip


def simulations(point: Point, links: LinkFigures, seeds: Sequence[int]) -> list[Outcome]:
    """The packet simulator's results for a point, seed by seed."""
    found = []
    for seed in seeds:
        one = simulate(scenario(point, links, seed))
        resent = sum(job.resend_share * job.packets for job in one.jobs) / one.worker_packets
        found.append(Outcome(one.goodput_bits_per_s, one.fallback_share, resent))
    return found


def median(outcomes: Sequence[Outcome]) -> Outcome:
    """The median of each figure."""
    names = ("goodput_bits_per_s", "fallback_share", "resend_share")
    return replace(outcomes[0], **{name: statistics.median(getattr(one, name) for one in outcomes) for name in names})
