"""Ranks as threads, a switch that answers at once, and agreements by shared memory: the engine without processes."""

import threading
from collections import deque

import numpy as np
import torch

from plait.network.protocol import header, server, switch
from plait.network.protocol.options import set_windows
from plait.network.protocol.server import TO_SWITCH
from plait.network.protocol.switch import EVICTED, MULTICAST, TO_SERVER, UNICAST
from plait.runtime.network.datagrams import SLOT_BYTES, Datagrams
from plait.runtime.network.grant import NetworkGrant
from plait.training.collectives.aggregation_client import Link, options_of
from plait.training.collectives.aggregation_session import RankGroup, SwitchSilent

ADDRESS = ("127.0.0.1", 1)


class Together:
    """What the groups of all threads share."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size)
        self.values: list = [None] * size
        self.gone = False

    def exchange(self, rank: int, value: object) -> list:
        if self.gone:
            raise RuntimeError("a rank is gone")
        try:
            self.values[rank] = value
            self.barrier.wait(30)
            found = list(self.values)
            self.barrier.wait(30)
        except threading.BrokenBarrierError:
            raise RuntimeError("a rank is gone") from None
        return found

    def lose(self) -> None:
        """Let a rank be gone."""
        self.gone = True
        self.barrier.abort()


class ThreadGroup(RankGroup):
    def __init__(self, together: Together, rank: int) -> None:
        self._together, self.rank, self.size = together, rank, together.size
        self.means = 0
        self.held: threading.Event | None = None  # agreements after buckets wait for it

    def largest(self, values):
        held = self.held if len(values) == 2 else None

        def wait():
            assert held is None or held.wait(60)
            return [max(column) for column in zip(*self._together.exchange(self.rank, list(values)), strict=True)]

        return wait

    def share(self, tensor, source):
        tensor.copy_(self._together.exchange(self.rank, tensor.clone())[source])

    def mean(self, tensor):
        self.means += 1
        total = sum(self._together.exchange(self.rank, tensor.clone()))
        tensor.copy_(total / self.size)

    def close(self):
        pass


class InstantSwitch:
    """A switch and a server for one job; `silent`: it answers nobody, `deaf`: it answers introductions alone."""

    def __init__(self, grant: NetworkGrant) -> None:
        self.lock = threading.Lock()
        self.silent = self.deaf = False
        self.inboxes: dict[int, Inbox] = {}
        self.connections = 0
        self.begin(grant)

    def begin(self, grant: NetworkGrant) -> None:
        made = options_of(grant)
        self.elements, self.job = made.elements, grant.job
        self.table = switch.make_switch(grant.slots, grant.job + 1, made.elements)
        switch.register(self.table, grant.job, server.all_bits(grant.n_workers), grant.n_workers, made.rules)
        switch.grant(self.table, grant.job, grant.offset, grant.size, grant.epoch)
        self.server = server.make_server(grant.job + 1, 4 * made.window, made.elements)
        server.register(self.server, grant.job, grant.n_workers)
        set_windows(self.server, grant.job, made)

    def move(self, grant: NetworkGrant) -> None:
        switch.grant(self.table, grant.job, grant.offset, grant.size, grant.epoch)

    def connect(self, grant: NetworkGrant, rank: int) -> Link:
        if self.silent:
            raise SwitchSilent(f"no answer for rank {rank}")
        self.connections += 1
        self.inboxes[rank] = Inbox(self)
        return Link.over(self.inboxes[rank], ADDRESS)

    def greet(self, link: Link, grant: NetworkGrant, rank: int) -> None:
        if self.silent:
            raise SwitchSilent(f"no answer for rank {rank}")
        link.socket.broken = False
        self.inboxes[rank] = link.socket

    def put(self, rows: np.ndarray) -> None:
        """Packets of a rank, all of which are answered before this returns."""
        if self.silent or self.deaf:
            return
        with self.lock:
            count = len(rows)
            made, values = header.make_packets(count + 1, self.elements)
            assert header.decode(rows, np.full(count, rows.shape[1]), count, made, values) == count
            for k in range(count):
                actions = switch.switch_step(self.table, made, values, k, count, 0)
                assert actions & EVICTED == 0
                if actions & TO_SERVER and server.server_step(self.server, made, values, k, 0) & TO_SWITCH:
                    actions = switch.switch_step(self.table, made, values, k, count, 0)
                if actions & (MULTICAST | UNICAST):
                    out = np.zeros((1, rows.shape[1]), dtype=np.uint8)
                    header.encode(made[k : k + 1], values[k : k + 1], 1, out)
                    for rank, inbox in self.inboxes.items():
                        if actions & MULTICAST or made[k]["bitmap"] >> rank & 1:
                            inbox.add(out.tobytes())


class Inbox:
    def __init__(self, at: InstantSwitch) -> None:
        self.switch, self.news, self.waiting = at, threading.Condition(), deque()
        self.buffers = [memoryview(bytearray(SLOT_BYTES))]
        self.closed = self.broken = self.deaf = False

    def add(self, row: bytes) -> None:
        if self.deaf:
            return
        with self.news:
            self.waiting.append(row)
            self.news.notify()

    def send(self, address, parts, segment) -> int:
        if self.broken:
            raise OSError("the network is unreachable")
        for part in parts:
            self.switch.put(np.frombuffer(part, dtype=np.uint8).reshape(-1, segment))
        return sum(len(part) for part in parts) // segment

    def receive(self, timeout_s: float):
        with self.news:
            if not self.waiting:
                self.news.wait(timeout_s)
            rows = [self.waiting.popleft() for _ in range(min(8, len(self.waiting)))]
        if not rows:
            return []
        data = b"".join(rows)
        self.buffers[0][: len(data)] = data
        return [Datagrams(ADDRESS, 0, len(data), len(rows[0]))]

    def close(self) -> None:
        self.closed = True


def bucket(rank: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * seed + rank))
