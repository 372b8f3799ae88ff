"""Arrays for the datagrams of one receive, and the way from wire format to packets and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time_ns

import numpy as np

from plait.core.arrays import IntArray
from plait.core.errors import InputError
from plait.network.protocol.header import WIRE_BYTES, decode, encode_rows, make_packets
from plait.network.protocol.hello import HELLO_BYTES
from plait.runtime.network.datagrams import MOST_BYTES, SLOT_BYTES, Address, Buffer

#: Sends datagrams of one size to an address: `BatchSocket.send`.
Send = Callable[[Address, Sequence[Buffer], int], int]
#: The processor time of each of these is measured on demand.
STAGES = ("receive", "decode", "step", "encode", "send", "other")


class PacketRows:
    """A batch: `packets` and `values` in memory, and the rows of wire format that are made of them.

    The first half is for packets that came, the second for what switches evict for them. `wire`: bytes of a datagram.
    """

    def __init__(self, payload_bytes: int) -> None:
        """Room for one receive; raises `InputError` for a payload that no datagram has or that a HELLO has."""
        self.wire = WIRE_BYTES + payload_bytes
        if payload_bytes % 4 or self.wire <= HELLO_BYTES or self.wire > MOST_BYTES:
            most = (MOST_BYTES - WIRE_BYTES) // 4 * 4
            raise InputError(f"payload of {payload_bytes} bytes: it takes a multiple of 4 from 12 to {most}")
        self.most = SLOT_BYTES // self.wire + 1
        self.packets, self.values = make_packets(2 * self.most, payload_bytes // 4)
        self.lengths = np.full(self.most, self.wire, dtype=np.int64)
        self.out = memoryview(bytearray(2 * self.most * self.wire))
        self._out = np.frombuffer(self.out, dtype=np.uint8).reshape(-1, self.wire)

    def read(self, data: Buffer, count: int) -> int:
        """Decode so many datagrams, end to end in a buffer; returns how many are of this version."""
        data = bytearray(data) if isinstance(data, bytes) else data  # compiled for arrays that can be written
        rows = np.frombuffer(data, dtype=np.uint8, count=count * self.wire).reshape(count, self.wire)
        return decode(rows, self.lengths, count, self.packets, self.values)

    def write(self, rows: IntArray, count: int, at: int = 0) -> memoryview:
        """Encode the packets in these rows, from datagram `at` of `out` on; returns their bytes."""
        encode_rows(self.packets, self.values, rows, count, self._out[at:])
        return self.out[at * self.wire : (at + count) * self.wire]

    def split(self, data: Buffer) -> list[memoryview]:
        """Datagrams of this size, one by one."""
        view = memoryview(data)
        return [view[at : at + self.wire] for at in range(0, len(view), self.wire)]


class StageClock:
    """Processor time by stage, in nanoseconds; nothing is measured, nor costs anything, before `start`."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(STAGES, 0)
        self.on = False
        self._last = 0

    def start(self) -> None:
        """Measure from here on, from zero."""
        self.spent = dict.fromkeys(STAGES, 0)
        self.on, self._last = True, thread_time_ns()

    def mark(self, stage: str) -> None:
        """Let the time since the last mark be that of a stage."""
        if self.on:
            now = thread_time_ns()
            self.spent[stage] += now - self._last
            self._last = now
