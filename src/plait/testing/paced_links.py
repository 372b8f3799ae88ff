"""Links with a rate and a delay between real sockets, in one thread: their speed does not depend on the machine.

Each direction of a link is a FIFO as in `plait.network.packets.links`: a packet begins when it is ready and the link
is free, takes the same time as every other, and arrives a delay later. Our design. Start at `PacedNetwork`.
"""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Callable, Sequence
from itertools import count

from plait.network.protocol.hello import unpack
from plait.runtime.network.datagrams import SLOT_BYTES, Address, BatchSocket, Buffer, Datagrams

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
