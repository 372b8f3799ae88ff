"""The smallest rank that a switch can serve: it sums whole numbers with the steps of the protocol, and nothing else.

For tests and measurements of switches and servers. Start at `SmallRank.total`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from plait.network.protocol.addressing import Index, cycle_slots
from plait.network.protocol.header import WIRE_BYTES, decode, encode, make_packets
from plait.network.protocol.hello import Hello, pack, unpack
from plait.network.protocol.options import Options, set_cycle, set_region, set_up
from plait.network.protocol.worker import (
    ACCEPTED,
    GIVES_UP,
    bit_of,
    make_workers,
    worker_receive_batch,
    worker_send_batch,
    worker_start,
    worker_timeout,
)
from plait.runtime.network.datagrams import (
    MOST_BYTES,
    MOST_SEGMENTS,
    SLOT_BYTES,
    Address,
    BatchSocket,
    Buffer,
    Datagrams,
)

Int32 = npt.NDArray[np.int32]


class RankSocket(Protocol):
    """The part of a socket that a rank needs: `BatchSocket` has it."""

    buffers: list[memoryview]

    def send(self, address: Address, parts: Sequence[Buffer], segment: int) -> int:
        """As `BatchSocket.send`."""

    def receive(self, timeout_s: float = 0.0) -> list[Datagrams]:
        """As `BatchSocket.receive`."""

    def close(self) -> None:
        """As `BatchSocket.close`."""


class GaveUp(Exception):
    """Too many timeouts in a row, or no answer to a HELLO."""


class SmallRank:
    """One rank of a job with its own socket; not for several threads at once."""

    def __init__(
        self, switch: Address, job: int, rank: int, n_workers: int, options: Options, token: bytes, **socket: Any
    ) -> None:
        """Nothing is sent yet; `socket`: further arguments of `BatchSocket`."""
        self.switch, self.job, self.bit, self.token = switch, job, bit_of(rank), token
        self.options = options
        self.socket: RankSocket = BatchSocket(**socket)
        self.workers = make_workers(1, options.window, options.cycle_slots, options.window)
        set_up(self.workers, 0, options, job, rank, n_workers)
        self.wire = WIRE_BYTES + options.payload_bytes
        self._most = SLOT_BYTES // self.wire + 1
        self._packets, self._values = make_packets(self._most, options.elements)
        self._out = np.zeros((self._most, self.wire), dtype=np.uint8)
        self._lengths = np.full(self._most, self.wire)
        self._answers = np.zeros(self._most, dtype=np.int64)
        self.result = self._tensor = np.zeros((0, options.elements), dtype=np.int32)
        self._first, self._until = 0, 0.0

    def close(self) -> None:
        self.socket.close()

    def hello(self, timeout_s: float = 5.0) -> None:
        """Introduce the rank; raises `GaveUp` without an answer."""
        said = Hello(self.job, self.bit, self.token)
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            self.socket.send(self.switch, [pack(said)], len(pack(said)))
            for one in self.socket.receive(0.05):
                if one.address == self.switch and unpack(self.socket.buffers[one.slot][: one.length]) == said:
                    return
        raise GaveUp(f"no answer to the HELLO of job {self.job} within {timeout_s:g} s")

    def region(self, offset: int, size: int, epoch: int) -> None:
        """Use these aggregators from the next tensor on."""
        set_region(self.workers, 0, offset, size, epoch)
        if self.options.mode == Index.SHARED_CYCLE:
            set_cycle(self.workers, 0, cycle_slots(self.job, self.options.cycle_slots, size, offset), epoch)

    def total(self, tensor: Int32, timeout_s: float = 30.0) -> Int32:
        """The sum of the tensors of all ranks, packets x elements; raises `GaveUp` by the protocol, or in time."""
        self.begin(tensor, timeout_s)
        while not self.advance(0.1):
            pass
        return self.result

    def begin(self, tensor: Int32, timeout_s: float = 30.0) -> None:
        """Send the first packets of a tensor; `advance` does the rest, and `result` has the sums when it is done."""
        self._tensor, self._first = tensor, int(self.workers.state[0]["end"])
        self.result = np.zeros_like(tensor)
        self._until = time.monotonic() + timeout_s
        worker_start(self.workers, 0, self._first, self._first + len(tensor), 0, time.monotonic_ns())
        self._send()

    def advance(self, wait_s: float) -> bool:
        """Take results, for which it waits at most so long, and send what they allow; returns whether it is done.

        Raises `GaveUp` as `total` does.
        """
        me = self.workers.state[0]
        if me["ack"] >= me["end"]:
            return True
        timer_s = max(0.0, (int(me["deadline"]) - time.monotonic_ns()) / 1e9)
        for one in self.socket.receive(min(timer_s, wait_s)):
            if one.address == self.switch:
                data = self.socket.buffers[one.slot][: one.length]
                count = len(data) // self.wire
                rows = np.frombuffer(data, dtype=np.uint8, count=count * self.wire).reshape(count, self.wire)
                found = decode(rows, self._lengths, count, self._packets, self._values)
                worker_receive_batch(self.workers, 0, self._packets, found, time.monotonic_ns(), self._answers)
                new = np.flatnonzero(self._answers[:found] & ACCEPTED)
                self.result[self._packets["seq"][new] - self._first] = self._values[new]
        if worker_timeout(self.workers, 0, time.monotonic_ns()) == GIVES_UP or time.monotonic() > self._until:
            left = int(me["end"] - me["ack"])
            raise GaveUp(f"job {self.job}: {left} of {len(self._tensor)} packets have no result")
        self._send()
        return bool(me["ack"] >= me["end"])

    def _send(self) -> None:
        most = min(MOST_SEGMENTS, MOST_BYTES // self.wire)  # as many as one system call takes
        while count := worker_send_batch(self.workers, 0, self._packets, 0, most, time.monotonic_ns()):
            self._values[:count] = self._tensor[self._packets["seq"][:count] - self._first]
            encode(self._packets, self._values, count, self._out)
            self.socket.send(self.switch, [self._out[:count].data.cast("B")], self.wire)
