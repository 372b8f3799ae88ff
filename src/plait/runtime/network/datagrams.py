"""UDP in batches: many datagrams of one size in one system call, where the kernel can, and one by one elsewhere.

`UDP_SEGMENT` lets one send carry up to 64 datagrams, `UDP_GRO` lets one receive return many datagrams of one sender
(Linux 5.0 or newer). Without them the same calls work, and a receive still packs datagrams of one sender into one
buffer. Our design. Start at `BatchSocket`.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

Address: TypeAlias = tuple[Any, ...]
Buffer: TypeAlias = bytes | bytearray | memoryview

#: Numbers of Linux that Python does not name: level and options of UDP, and a buffer beyond the limit of users.
SOL_UDP, UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE, SO_SNDBUFFORCE = 17, 103, 104, 33, 32
SO_MEMINFO = 55

#: Most datagrams, and most bytes, of one send.
MOST_SEGMENTS, MOST_BYTES = 64, 65_507
#: Bytes of a buffer that a receive fills: what the largest one returns.
SLOT_BYTES = 65_536
#: Wait for room in the buffer of the kernel, in milliseconds, before what is to be sent is given up.
SEND_WAIT_MS = 20

_ANCILLARY = socket.CMSG_SPACE(4)
_CANNOT_SEGMENT = (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT)
_NO_ROOM = (errno.EAGAIN, errno.ENOBUFS)


class Datagrams(NamedTuple):
    """Datagrams of one sender, end to end in a buffer of the socket until it receives again.

    address  of the sender, as `socket.recvfrom` gives it
    slot     the number of the buffer, `BatchSocket.buffers[slot]`
    length   bytes in all
    segment  bytes of each but the last, which may be shorter; 1 for an empty datagram
    """

    address: Address
    slot: int
    length: int
    segment: int

    @property
    def packets(self) -> int:
        """How many datagrams there are; an empty one counts."""
        return max(1, -(-self.length // self.segment))


class BatchSocket:
    """A UDP socket that is bound, never blocks, and moves datagrams of one size in batches.

    `buffers`: where receives write, `SLOT_BYTES` each, and stay for the life of the socket, so that arrays may be laid
    over them once. `unsent` counts datagrams that the kernel did not take.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        segments: bool = True,
        slots: int = 8,
        buffer_bytes: int = 16 << 20,
    ) -> None:
        """Bind to an address; port 0 lets the kernel choose.

        `segments=False` sends and receives datagrams one by one. `buffer_bytes` are requested from the kernel for each
        direction; it gives less to users without privileges. Raises `OSError` if the address cannot be had.
        """
        family, _, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )[0]
        self.socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self.socket.setblocking(False)
            for forced, usual in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
                if not self._set(socket.SOL_SOCKET, forced, buffer_bytes):
                    self._set(socket.SOL_SOCKET, usual, buffer_bytes)
            self.receives_segments = segments and self._set(SOL_UDP, UDP_GRO, 1)
            self.sends_segments = segments and self._set(SOL_UDP, UDP_SEGMENT, 0)
            self.socket.bind(where)
        except OSError:
            self.socket.close()
            raise
        self.address: Address = self.socket.getsockname()
        self.buffers = [memoryview(bytearray(SLOT_BYTES)) for _ in range(slots)]
        self.unsent = 0
        self.receives = self.sends = 0
        self._segment_notes: dict[int, list[tuple[int, int, bytes]]] = {}

    def _set(self, level: int, option: int, value: int) -> bool:
        try:
            self.socket.setsockopt(level, option, value)
        except OSError:
            return False
        return True

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket; again does nothing."""
        self.socket.close()

    def kernel_drops(self) -> int:
        """Datagrams that arrived but found the buffer of the kernel full; 0 where it is unknown."""
        try:
            words = self.socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)
        except OSError:
            return 0
        return int(struct.unpack("=9I", words)[8]) if len(words) == 36 else 0

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to receive, at most so long; returns whether there is."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(max(0, 1000 * timeout_s)))

    def receive(self, timeout_s: float = 0.0) -> list[Datagrams]:
        """Arrived datagrams, at most a buffer for each slot, in order; waits for a first one at most `timeout_s`."""
        found: list[Datagrams] = []
        while len(found) < len(self.buffers):
            one = self._receive_one(len(found))
            if one is None:
                if found or timeout_s <= 0 or not self.wait(timeout_s):
                    break
                timeout_s = 0.0
            elif found and self._joins(found[-1], one):
                found[-1] = found[-1]._replace(length=found[-1].length + one.length)
            else:
                found.append(one)
        return found

    def _receive_one(self, slot: int) -> Datagrams | None:
        """One receive; None: there is nothing."""
        try:
            length, notes, _, address = self.socket.recvmsg_into([self.buffers[slot]], _ANCILLARY)
        except (BlockingIOError, InterruptedError, ConnectionError):
            return None
        self.receives += 1
        segment = max(1, length)
        for level, kind, data in notes:
            if level == SOL_UDP and kind == UDP_GRO:
                segment = int.from_bytes(data[:4], sys.byteorder)
        return Datagrams(address, slot, length, segment)

    def _joins(self, last: Datagrams, one: Datagrams) -> bool:
        """Copy a single datagram behind earlier ones of the same sender and size, where receives bring only one."""
        if self.receives_segments or one.address != last.address or not 0 < one.length <= last.segment:
            return False
        if last.length % last.segment or last.length + one.length > SLOT_BYTES:
            return False
        self.buffers[last.slot][last.length : last.length + one.length] = self.buffers[one.slot][: one.length]
        return True

    def send(self, address: Address, parts: Sequence[Buffer], segment: int) -> int:
        """Send datagrams of `segment` bytes to an address; returns how many the kernel took.

        `parts` are contiguous buffers of bytes, one after the other, each a whole number of datagrams. Datagrams that
        the kernel has no room for within `SEND_WAIT_MS` are counted in `unsent`: UDP loses packets elsewhere too.
        """
        sent = 0
        for batch in batches(parts, segment, MOST_SEGMENTS if self.sends_segments else 1):
            count = sum(len(part) for part in batch) // segment
            if self._send_batch(address, batch, segment, count):
                sent += count
        return sent

    def _send_batch(self, address: Address, batch: Sequence[Buffer], segment: int, count: int) -> bool:
        notes: list[tuple[int, int, bytes]] = []
        if count > 1:
            notes = self._segment_notes.setdefault(segment, [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment))])
        for last in (False, True):
            try:
                self.sends += 1
                self.socket.sendmsg(batch, notes, 0, address)
            except OSError as error:
                if error.errno in _NO_ROOM and not last and self._wait_for_room():
                    continue
                if error.errno in _CANNOT_SEGMENT and count > 1:  # the interface cannot: from here on one by one
                    self.sends_segments = False
                    return self.send(address, batch, segment) == count
                self.unsent += count
                return False
            return True
        return False

    def _wait_for_room(self) -> bool:
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT)
        return bool(poll.poll(SEND_WAIT_MS))


def batches(parts: Sequence[Buffer], segment: int, most: int) -> list[list[Buffer]]:
    """Divide buffers into lists of at most `most` datagrams and `MOST_BYTES` bytes, without a copy.

    Raises `ValueError` for a datagram that is larger than UDP can carry, or a part that is no whole number of them.
    """
    if not 0 < segment <= MOST_BYTES:
        raise ValueError(f"a datagram of {segment} bytes: UDP carries 1 to {MOST_BYTES}")
    room = max(1, min(most, MOST_BYTES // segment)) * segment
    found: list[list[Buffer]] = []
    free = 0
    for part in parts:
        if len(part) % segment:
            raise ValueError(f"{len(part)} bytes are no whole number of datagrams of {segment}")
        at, view = 0, memoryview(part)
        while at < len(part):
            if free == 0:
                found.append([])
                free = room
            step = min(free, len(part) - at)
            found[-1].append(view[at : at + step])
            at, free = at + step, free - step
    return found
