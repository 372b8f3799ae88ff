"""The aggregation server without its socket: it completes the sums that switches did not, for many jobs.

Start at `ServerPlane.take`. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from plait.core.errors import InputError
from plait.core.jit import announced
from plait.live.dataplane.batch import admit_rows, sort_results
from plait.live.dataplane.faults import FROM_SERVER, TO_SERVER, Faults
from plait.live.dataplane.members import MOST_JOBS, Member, Members
from plait.live.dataplane.packet_rows import PacketRows, Send, StageClock
from plait.live.dataplane.switch_plane import Dropped
from plait.network.protocol.addressing import Index, check_cycle, cycle_slots
from plait.network.protocol.header import DATA, EVICT, EXPONENT, RESEND
from plait.network.protocol.hello import Hello, unpack
from plait.network.protocol.options import set_windows
from plait.network.protocol.server import make_server, register, server_batch, set_slots
from plait.runtime.network.datagrams import Address, Buffer

_KINDS = 1 << DATA | 1 << RESEND | 1 << EXPONENT | 1 << EVICT
_NEVER = 1 << 62


class ServerPlane:
    """Sums of up to `most_jobs` jobs. A job has the row of `Server` that was free when it was registered."""

    def __init__(self, payload_bytes: int, window: int, most_jobs: int, slots: int, send: Send) -> None:
        """A server that knows no job.

        `window`: the largest of any job; `slots`: the most aggregators of a switch, among which lists of shared_cycle
        may change; `send` sends its datagrams. Raises `InputError` for sizes that do not work.
        """
        if not 1 <= most_jobs <= MOST_JOBS or not 1 <= window <= 65_536 or not 0 <= slots <= 1 << 24:
            raise InputError(
                f"{most_jobs} jobs with windows up to {window} and {slots} slots; it takes 1 to {MOST_JOBS} jobs, "
                f"windows of 1 to 65536 and 0 to {1 << 24} slots"
            )
        self.rows = PacketRows(payload_bytes)
        self.server = make_server(most_jobs, window, payload_bytes // 4, slots)
        self.members = Members(payload_bytes)
        self.faults, self.clock, self.dropped = Faults(), StageClock(), Dropped()
        self.window = window
        self.batches = 0
        self._send = send
        self._free = list(range(most_jobs))[::-1]
        self.row_of: dict[int, int] = {}
        self._job_of = np.zeros(most_jobs, dtype=np.int64)
        #: For each switch, the rows of the jobs that it serves, by their numbers.
        self._rows_of: dict[Address, np.ndarray] = {}
        self._switch_of: dict[int, Address] = {}
        self._actions, self._down = (np.zeros(2 * self.rows.most, np.int64) for _ in range(2))

    # Datagrams

    def take(self, address: Address, data: Buffer, segment: int, now: int) -> None:
        """Datagrams of one sender, end to end, `segment` bytes each but the last; results are sent before it returns.

        HELLOs of switches are answered, datagrams of others are counted and dropped.
        """
        if segment != self.rows.wire:
            for at in range(0, max(1, len(data)), segment):
                self._single(address, data[at : at + segment], now)
            return
        count = len(data) // segment
        if address not in self._rows_of:
            self.dropped.foreign += count
        elif TO_SERVER in self.faults.active:
            onward = []
            for one in self.rows.split(data[: count * segment]):
                onward += self.faults.passing(TO_SERVER, int.from_bytes(one[2:4], "big"), [one], address, now)
            for at in range(0, len(onward), self.rows.most - 1):
                part = onward[at : at + self.rows.most - 1]
                self._step(address, b"".join(one for _, one in part), len(part), now)
        else:
            self._step(address, data, count, now)
        if len(data) % segment:
            self._single(address, data[count * segment :], now)

    def _single(self, address: Address, datagram: Buffer, now: int) -> None:
        """A datagram that has not the size of packets: the HELLO of a switch, or nothing."""
        hello = unpack(datagram)
        if hello is None:
            self.dropped.malformed += 1
            return
        member = self.members.proven(hello)
        if member is None or hello.bitmap != 0:
            self.dropped.refused += 1
            return
        self._serve(member, address, hello)
        member.heard_ns = now
        self._send(address, [bytes(datagram)], len(datagram))

    def _serve(self, member: Member, address: Address, hello: Hello) -> None:
        """Accept packets of a job from this switch alone, to which its results go."""
        former = self._switch_of.get(hello.job)
        if former == address:
            return
        self._switch_of[hello.job] = address
        self._leave(former, hello.job)
        if address not in self._rows_of:
            self._rows_of[address] = np.full(MOST_JOBS, -1, dtype=np.int64)
        self._rows_of[address][hello.job] = self.row_of[member.job]

    def _leave(self, former: Address | None, job: int) -> None:
        """Accept packets of a job from this switch no more, and none at all once it serves no job."""
        if former is not None:
            self._rows_of[former][job] = -1
            if former not in self._switch_of.values():
                del self._rows_of[former]

    def _step(self, address: Address, data: Buffer, count: int, now: int) -> None:
        """A batch: decode, drop what may not be sent, step, encode, send."""
        rows, mark = self.rows, self.clock.mark
        self.batches += 1
        found = rows.read(data, count)
        self.dropped.malformed += count - found
        kept = admit_rows(rows.packets, rows.values, found, _KINDS, self._rows_of[address], self.server.jobs)
        self.dropped.foreign += found - kept
        self._count(kept, came=True)
        mark("decode")
        server_batch(self.server, rows.packets, rows.values, kept, now, self._actions)
        answers = sort_results(rows.packets, kept, self._actions, self._job_of, self._down)
        mark("step")
        if not answers:
            return
        out = rows.write(self._down, answers)
        mark("encode")
        if FROM_SERVER in self.faults.active:
            for one in rows.split(out):
                job = int.from_bytes(one[2:4], "big")
                for where, datagram in self.faults.passing(FROM_SERVER, job, [one], address, now):
                    self._send(where, [datagram], rows.wire)
        else:
            self._send(address, [out], rows.wire)
        self._count(answers, came=False)
        mark("send")

    def _count(self, count: int, *, came: bool) -> None:
        """Count the packets that came, whose `job` is a row, or the ones that went, in the rows `_down`."""
        if count == 0:
            return
        jobs = self.rows.packets["job"][:count] if came else self.rows.packets["job"][self._down[:count]]
        first = int(jobs[0])
        shares = {first: count}
        if (jobs != first).any():
            found, many = np.unique(jobs, return_counts=True)
            shares = dict(zip(found.tolist(), many.tolist(), strict=True))
        for job, packets in shares.items():
            traffic = self.members.jobs[int(self._job_of[job]) if came else job].traffic
            (traffic.came if came else traffic.went)(packets, self.rows.wire)

    # From time to time

    def next_ns(self, now: int) -> int:
        """When `tend` has something to do."""
        return self.faults.next_ns() or _NEVER

    def tend(self, now: int) -> None:
        """Send, or take, the datagrams that were late on purpose."""
        for late in self.faults.due(now):
            if late.direction == FROM_SERVER:
                self._send(late.where, [late.datagram], self.rows.wire)
            elif late.where in self._rows_of:
                self._step(late.where, late.datagram, 1, now)

    # Jobs

    def register(self, job: int, name: str, n_workers: int, options: Any, token: bytes) -> None:
        """Make a job known; again with the same values does nothing. Raises `InputError`."""
        if options.protocol == "switchml":
            raise InputError(f"job {job}: protocol switchml needs no server; register the job at the switch alone")
        self._check_window(job, options.window)
        if not self._free and job not in self.members.jobs:
            raise InputError(f"job {job}: all {len(self.server.jobs)} places for jobs are taken; free one first")
        if self.members.add(job, name, n_workers, options, token):
            row = self.row_of[job] = self._free.pop()
            self._job_of[row] = job
            register(self.server, row, n_workers)
            set_windows(self.server, row, options)

    def free(self, job: int) -> int:
        """Forget a job and its sums; returns how many of them were not complete. Raises `InputError`."""
        self.members.remove(job)
        row = self.row_of.pop(job)
        open_sums = self.open_sums(row)
        self.server.jobs[row]["expected"] = 0
        self._free.append(row)
        self._leave(self._switch_of.pop(job, None), job)
        self.faults.forget(job)
        return open_sums

    def _check_window(self, job: int, window: int) -> None:
        if not 0 <= window <= self.window:
            raise InputError(
                f"job {job}: window of {window} packets; this server keeps results for windows up to {self.window}, "
                "start it with a larger --window"
            )

    def region(self, job: int, offset: int, size: int, epoch: int, window: int = 0) -> None:
        """Learn the region of a job, whose list in shared_cycle may change within it. Raises `InputError`.

        `window`: of its workers in this epoch; 0: as in its options.
        """
        self._check_window(job, window)
        member = self.members.get(job)
        options, slots = member.options, self.server.taken.shape[1]
        if window:
            options = replace(options, window=window)
        member.regions = {epoch: (offset, size)}
        set_windows(self.server, self.row_of[job], options)
        if options.mode != Index.SHARED_CYCLE or options.slot_change != "on":
            return
        check_cycle(options.cycle_slots, options.window, size)
        if offset < 0 or offset + size > slots:
            raise InputError(
                f"job {job}: region of {size} aggregators from {offset} on; this server knows of {slots}, start it "
                "with a larger --slots"
            )
        set_slots(self.server, self.row_of[job], cycle_slots(job, options.cycle_slots, size, offset), offset, size)

    def open_sums(self, row: int) -> int:
        """Sums of a row that are not complete."""
        entries = self.server.entries[row]
        return int(np.count_nonzero((entries["seq"] >= 0) & (entries["bitmap"] != self.server.jobs[row]["expected"])))


def warm_up() -> None:
    """Load or compile all machine code that a server needs."""
    with announced("the aggregation server", 10):
        plane = ServerPlane(16, 1, 1, 0, lambda *_: 0)
        rows, none = plane.rows, np.zeros(1, np.int64)
        rows.write(none, 0)
        rows.read(bytes(rows.wire), 1)
        admit_rows(rows.packets, rows.values, 0, 1, none, plane.server.jobs)
        server_batch(plane.server, rows.packets, rows.values, 0, 0, none)
        sort_results(rows.packets, 0, none, none, none)
