"""The client of a rank: one tensor after the other through the network, added up over all ranks.

`AggregationClient` has the state of the protocol and no socket and no clock: datagrams and times go in, rows of packets
come out. `transfer` joins it with a socket for one tensor. Our design around the worker of `plait.network.protocol`,
which decides what is sent when.

A tensor that fails (nothing came back for `max_timeouts` timeouts in a row) leaves no trace: its numbers are not used
again, and `sums` is not valid.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.core.errors import InputError
from plait.core.jit import announced
from plait.network.protocol import header, options, worker
from plait.network.protocol.addressing import Index, check_cycle, cycle_slots
from plait.network.protocol.fixed_point import FloatArray32, scale_of
from plait.network.protocol.options import Options
from plait.network.protocol.worker import GIVES_UP
from plait.runtime.network.datagrams import MOST_BYTES, MOST_SEGMENTS, BatchSocket, Datagrams
from plait.runtime.network.grant import NetworkGrant
from plait.training.collectives import aggregation_kernels as kernels
from plait.training.collectives.aggregation_kernels import HEADER_WORDS, Words

#: Numbers of packets on the wire are below this, and are not used twice in the life of a job.
MOST_SEQS = 1 << 32
#: Sends for which packets are made at once, and times in a row that packets are made before a look at what arrived.
_SENDS, _ROUNDS = 4, 8

#: Counters of a worker that go on when its region changes.
_COUNTERS = ("sent", "resent", "bypassed", "results", "ignored", "overflows", "slot_changes")

Sums = npt.NDArray[np.int32]


class Counts(NamedTuple):
    """Of a client so far: packets sent, sent again, results used, those with a collision, and timeouts."""

    sent: int = 0
    resent: int = 0
    results: int = 0
    collided: int = 0
    timeouts: int = 0


class AggregationClient:
    """The state of one rank in one job on the wire: a window, a region of switch memory, and the next number.

    Times are int64 nanoseconds of any clock that does not go back.
    """

    def __init__(self, grant: NetworkGrant, rank: int) -> None:
        """Be the worker `rank` of a granted job; raises `InputError` for options and regions that do not work."""
        self.options = options_of(grant)
        self.rank, self.job, self.n_workers = rank, grant.job, grant.n_workers
        self._place(grant)
        self._packets, _ = header.make_packets(1)
        words = HEADER_WORDS + self.options.elements
        self.segment = 4 * words
        most = _SENDS * max(1, min(MOST_SEGMENTS, MOST_BYTES // self.segment))
        self._rows = np.zeros((most, words), dtype=np.uint32)
        self._gradients: FloatArray32 = np.zeros(0, dtype=np.float32)
        #: The sums of the newest tensor, an int32 for each gradient; reused by the next one.
        self.sums: Sums = np.zeros(0, dtype=np.int32)
        self.scale = 1.0
        self._end = self._collided = self._timeouts = 0
        self._limited = self._overflows = 0

    def _place(self, grant: NetworkGrant) -> None:
        """Be a worker, with no tensor yet, in the region of a grant."""
        window, mode = self.options.window, self.options.mode
        cycle = self.options.cycle_slots if mode is Index.SHARED_CYCLE else 1
        self._workers = worker.make_workers(1, window, cycle, window if mode is Index.DEDICATED else 1)
        options.set_up(self._workers, 0, self.options, grant.job, self.rank, grant.n_workers)
        self._state = self._workers.state[0]
        offset, size = (grant.offset, grant.size) if grant.size else (0, grant.slots)
        if mode is Index.SHARED_CYCLE:
            count = self.options.cycle_slots
            check_cycle(count, self.options.window, size)
            options.set_cycle(self._workers, 0, cycle_slots(grant.job, count, size, offset), grant.epoch)
        else:
            options.set_region(self._workers, 0, offset, size, grant.epoch)
        self._state["prio"], self._placed = grant.priority, grant.place

    def use_region(self, grant: NetworkGrant) -> None:
        """Use the region, window, epoch and priority of another grant of the same job, from the next tensor on.

        Numbers of packets and counters go on. Congestion control begins again with another region or window.
        Raises `InputError` for a region that does not work; a client made for the grant finds that out before.
        """
        if grant.place == self._placed:
            self._state["prio"] = grant.priority
            return
        before = self._state
        self.options = options_of(grant)
        self._place(grant)
        for name in _COUNTERS:
            self._state[name] = before[name]

    @property
    def numbers(self) -> int:
        """How many numbers of packets are used."""
        return self._end

    def fits(self, elements: int) -> bool:
        """Whether there are numbers left for a tensor of so many elements."""
        return self._end + self.packets_of(elements) <= MOST_SEQS

    def packets_of(self, elements: int) -> int:
        """Packets of a tensor of so many elements."""
        return -(-elements // self.options.elements)

    def scale_for(self, exponent: int) -> float:
        """The factor of fixed point for gradients below 2**exponent on all ranks; infinite if sums may not fit."""
        if self.options.quantise == "exponent":
            return scale_of(exponent, self.n_workers)
        most = self.n_workers * (2.0**exponent * self.options.fixed_scale + 1)
        return self.options.fixed_scale if most < 2.0**31 else float("inf")

    def start(self, gradients: FloatArray32, scale: float, now: int) -> None:
        """Begin with a tensor, which must stay as it is until the end; `scale` as from `scale_for`."""
        self._gradients, self.scale, self._limited = gradients, scale, 0
        self._overflows = int(self._state["overflows"])
        if len(self.sums) < len(gradients):
            self.sums = np.zeros(len(gradients), dtype=np.int32)
        first, self._end = self._end, self._end + self.packets_of(len(gradients))
        worker.worker_start(self._workers, 0, first, self._end, 0, now)

    @property
    def batch(self) -> int:
        """Most packets that `fill` makes at once; fewer are all that may be sent now."""
        return len(self._rows)

    @property
    def finished(self) -> bool:
        return bool(self._state["ack"] >= self._state["end"])

    @property
    def deadline(self) -> int:
        """When `expire` is to be called."""
        return int(self._state["deadline"])

    def fill(self, now: int) -> Words:
        """Packets to send now, a row of words each, valid until the next call; none if the window is full."""
        truncate = self.options.quantise == "fixed"
        count, limited = kernels.fill_packets(
            self._workers, self._packets, self._gradients, self.scale, truncate, self._rows, now
        )
        self._limited += limited
        return self._rows[:count]

    def take(self, words: Words, now: int) -> int:
        """Rows of packets that have arrived; returns how many were new results."""
        accepted, collided = kernels.take_results(
            self._workers, self._packets, words, self.sums[: len(self._gradients)], now
        )
        self._collided += collided
        return int(accepted)

    def expire(self, now: int) -> bool:
        """Let timers expire; False if the tensor is to be given up."""
        answer = worker.worker_timeout(self._workers, 0, now)
        self._timeouts += answer != worker.WAITING
        return answer != GIVES_UP

    @property
    def overflowed(self) -> bool:
        """Whether any sum, or gradient of this rank, did not fit in 32 bits since the last call of `start`."""
        return self._limited > 0 or bool(self._state["overflows"] > self._overflows)

    def mean(self, out: FloatArray32) -> None:
        """Write the mean over all ranks of the newest tensor to `out`."""
        kernels.write_mean(self.sums[: len(out)], self.scale * self.n_workers, out)

    @property
    def counts(self) -> Counts:
        state = self._state
        return Counts(int(state["sent"]), int(state["resent"]), int(state["results"]), self._collided, self._timeouts)


def options_of(grant: NetworkGrant) -> Options:
    """The options of the protocol in a grant; raises `InputError` for wrong ones.

    Fixed point has a shared exponent, also with the systems that multiply by a constant, unless `quantise` is given.
    """
    changed = {"quantise": "exponent", **grant.options, **({"window": grant.window} if grant.window else {})}
    protocol = changed.pop("protocol", None)
    if not isinstance(protocol, str):
        raise InputError(
            f"grant of job {grant.job}: options without protocol; give one of {', '.join(options.PRESETS)}"
        )
    return options.preset(protocol, **changed)


def warm_up(grant: NetworkGrant) -> None:
    """Compile all that a tensor needs, or load it, so that no rank keeps the others waiting in its first one."""
    with announced("in-network aggregation", 8):
        client = AggregationClient(grant, 0)
        gradients = np.ones(1, dtype=np.float32)
        client.start(gradients, client.scale_for(kernels.exponent_of(gradients)), 0)
        client.take(client.fill(0), 0)
        client.expire(0)
        client.mean(gradients)


class Link(NamedTuple):
    """A socket, the address of the switch, and words laid over the buffers of the socket."""

    socket: BatchSocket
    switch: tuple[str, int]
    buffers: list[Words]

    @classmethod
    def over(cls, socket: BatchSocket, switch: tuple[str, int]) -> Link:
        return cls(socket, switch, [np.frombuffer(buffer, dtype=np.uint32) for buffer in socket.buffers])

    def rows(self, found: Datagrams, segment: int) -> Words | None:
        """The packets in a buffer as rows of words; None if they are of another size or sender."""
        if found.address[:2] != self.switch or found.segment != segment or found.length % segment:
            return None
        words = segment // 4
        return self.buffers[found.slot][: found.length // 4].reshape(-1, words)


class Times(NamedTuple):
    """Seconds of a transfer: filling packets, sending and receiving with waiting, unpacking results."""

    quantise_s: float
    transfer_s: float
    decode_s: float


def transfer(client: AggregationClient, link: Link) -> tuple[bool, Times]:
    """Send the tensor that was started and receive its sums; returns whether all are here.

    Blocks the calling thread, without the interpreter's lock for nearly all of the time. Raises `OSError` if the socket
    fails.
    """
    clock, filling, unpacking = time.monotonic_ns, 0, 0
    begin = now = clock()
    good = True
    while not client.finished and good:
        for _ in range(_ROUNDS):
            before = clock()
            rows = client.fill(before)
            now = clock()
            filling += now - before
            if len(rows):
                link.socket.send(link.switch, [rows.data.cast("B")], client.segment)
            if len(rows) < client.batch:
                break
        wait_s = max(0, client.deadline - now) / 1e9
        for found in link.socket.receive(min(wait_s, 1.0)):
            packets = link.rows(found, client.segment)
            if packets is not None:
                before = clock()
                client.take(packets, before)
                unpacking += clock() - before
        now = clock()
        if now >= client.deadline and not client.finished:
            good = client.expire(now)
    total = clock() - begin
    return good, Times(filling / 1e9, (total - filling - unpacking) / 1e9, unpacking / 1e9)
