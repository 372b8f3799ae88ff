"""The switch without its socket: datagrams in, datagrams out, by the steps that the packet simulator uses too.

Start at `SwitchPlane.take`. Times are monotonic nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.core.errors import InputError
from plait.core.jit import announced
from plait.live.dataplane.batch import admit, admit_known, sort_actions
from plait.live.dataplane.faults import FROM_SERVER, TO_SERVER, TO_SWITCH, TO_WORKER, Faults, Late
from plait.live.dataplane.members import MOST_JOBS, Member, Members
from plait.live.dataplane.packet_rows import PacketRows, Send, StageClock
from plait.network.protocol.header import CONTROL, DATA, EXPONENT, RESEND, RESULT
from plait.network.protocol.hello import Hello, pack, unpack
from plait.network.protocol.options import Options
from plait.network.protocol.switch import HELD, grant, make_switch, register, release, retire, sweep, switch_batch
from plait.runtime.network.datagrams import Address, Buffer

# The aggregators of a switch as memory of jobs: who is registered, and who may use which of them.
#
# Start at `SwitchMemory.region`.

#: A time that never comes.
NEVER = 1 << 62


class SwitchMemory:
    """A switch, its jobs and their regions.

    `priorities`: by job, overriding the ones in packets, -1 for none; `shared`: the jobs that share aggregators;
    `max_age_ns`: the age at which an incomplete aggregator is freed.
    """

    def __init__(self, aggregators: int, payload_bytes: int, max_age_s: float = 0.0) -> None:
        if not 1 <= aggregators <= 1 << 24:
            raise InputError(f"{aggregators} aggregators; a switch has 1 to {1 << 24}")
        self.switch = make_switch(aggregators, MOST_JOBS, payload_bytes // 4)
        self.members = Members(payload_bytes)
        self.priorities = np.full(MOST_JOBS, -1, dtype=np.int16)
        self.shared: list[int] = []
        self.max_age_ns = NEVER
        self._max_age_s = max_age_s

    def register(self, job: int, name: str, n_workers: int, options: Options, token: bytes) -> bool:
        """Make a job known, without memory yet; False if it was, with the same values. Raises `InputError`."""
        if not self.members.add(job, name, n_workers, options, token):
            return False
        register(self.switch, job, self.members.get(job).expected, n_workers, options.rules)
        self.priorities[job] = -1
        self._look()
        return True

    def free(self, job: int) -> int:
        """Forget a job and drop what it holds; returns how many aggregators that were. Raises `InputError`."""
        self.members.remove(job)
        held = int(self.switch.jobs[job]["held"])
        release(self.switch, job)
        self._look()
        return held

    def _look(self) -> None:
        """Know again which jobs share aggregators, and for how long they may hold one."""
        sharing = [one for one in self.members if not one.dedicated]
        self.shared = [one.job for one in sharing]
        self.max_age_ns = min((one.options.max_age_ns for one in sharing), default=NEVER)
        if sharing and self._max_age_s:
            self.max_age_ns = round(1e9 * self._max_age_s)

    def region(self, job: int, offset: int, size: int, epoch: int) -> None:
        """Let packets of an epoch use `size` aggregators from `offset` on; packets of the previous epoch keep theirs.

        Raises `InputError` for a region that is not there, or that another job has where one of both has slots of its
        own.
        """
        member, there = self.members.get(job), len(self.switch.table)
        if offset < 0 or size < 0 or offset + size > there:
            raise InputError(f"job {job}: region of {size} aggregators from {offset} on; the switch has {there}")
        if member.dedicated and size < 2:
            raise InputError(f"job {job}: {size} dedicated slots; a job needs 2 or more, twice its window")
        for other in self.members:
            for at, (first, many) in other.regions.items():
                meets = other is not member and max(first, offset) < min(first + many, offset + size)
                if meets and (member.dedicated or other.dedicated):
                    raise InputError(
                        f"job {job}: aggregators {offset} to {offset + size - 1} are in use by job {other.job} "
                        f"({other.name}, epoch {at}), and dedicated slots are not shared; drain or free that first"
                    )
        for former in [one for one in member.regions if one not in (epoch, epoch - 1)]:
            del member.regions[former]
            grant(self.switch, job, 0, 0, former)  # of the other parity where epochs were left out
            if member.dedicated:
                retire(self.switch, job, former)
        member.regions[epoch] = offset, size
        grant(self.switch, job, offset, size, epoch)

    def withdraw(self, job: int, epoch: int | None) -> list[int]:
        """Take the memory of a job, or of one of its epochs, back: packets of that epoch claim nothing more.

        Dedicated slots are dropped; returns the aggregators that are still held. Raises `InputError`.
        """
        member = self.members.get(job)
        for one in [epoch] if epoch is not None else list(member.regions):
            if member.regions.pop(one, None) is not None:
                grant(self.switch, job, 0, 0, one)
            if member.dedicated:
                retire(self.switch, job, one)
        table = self.switch.table
        mine = (table["key"] >= 0) & (table["key"] >> 32 == job)
        if epoch is not None:
            mine &= table["epoch"] == epoch & 255
        found: list[int] = np.flatnonzero(mine).tolist()
        return found

    def priority(self, job: int, priority: int | None) -> None:
        """Give all packets of a job this priority here; None: the priority in the packets. Raises `InputError`."""
        self.members.get(job)
        if priority is not None and not 0 <= priority <= 255:
            raise InputError(f"job {job}: priority {priority}; it takes 0 to 255")
        self.priorities[job] = -1 if priority is None else priority

    @property
    def held(self) -> int:
        """Aggregators that are not free."""
        return int(self.switch.info[HELD])


#: Types of packets, a bit each, that workers and servers send.
_FROM_WORKER, _FROM_SERVER = 1 << DATA | 1 << RESEND | 1 << EXPONENT, 1 << RESULT | 1 << CONTROL
#: Minimum time between two sweeps; between two HELLOs to a silent server, and to one that answers.
SWEEP_NS, HELLO_NS, ANSWERED_NS = 1_000_000, 50_000_000, 250_000_000


@dataclass
class Dropped:
    """Datagrams that were dropped before any step of the protocol.

    `malformed`: of another size, version or type, or of other workers than their sender; `foreign`: from an address, or
    of a job, that is not known; `refused`: a HELLO with the wrong secret.
    """

    malformed: int = 0
    foreign: int = 0
    refused: int = 0


class SwitchPlane:
    """A switch: aggregators, the jobs that use them, and what becomes of datagrams."""

    def __init__(
        self, aggregators: int, payload_bytes: int, send: Send, *, server: Address | None = None, max_age_s: float = 0.0
    ) -> None:
        """A switch that knows no job. `send` sends its datagrams; `server`: of the jobs that share aggregators.

        `max_age_s`: of incomplete aggregators; 0: the minimum of the jobs' values. Raises `InputError` for sizes that
        do not work.
        """
        self.rows = PacketRows(payload_bytes)
        self.memory = SwitchMemory(aggregators, payload_bytes, max_age_s)
        self.switch, self.members, self._priorities = self.memory.switch, self.memory.members, self.memory.priorities
        self.faults, self.clock, self.dropped = Faults(), StageClock(), Dropped()
        self.server = server
        self.batches = 0
        self._send = send
        most = 2 * self.rows.most
        self._actions, self._spares = np.zeros(most, np.int64), np.zeros(most, np.int64)
        self._up, self._down, self._back = (np.zeros(most, np.int64) for _ in range(3))
        self._counts, self._some = np.zeros(3, np.int64), np.zeros(most, np.int64)
        self._swept_ns = 0
        self._greeted_ns: dict[int, int] = {}

    # Datagrams

    def take(self, address: Address, data: Buffer, segment: int, now: int) -> None:
        """Datagrams of one sender, end to end, `segment` bytes each but the last; results are sent before it returns.

        HELLOs are answered, datagrams of unknown senders are counted and dropped.
        """
        if segment != self.rows.wire:
            for at in range(0, max(1, len(data)), segment):
                self._single(address, data[at : at + segment], now)
            return
        count = len(data) // segment
        member = self.members.by_address.get(address)
        if address == self.server:
            self._arrive(FROM_SERVER, None, address, data, count, now)
        elif member is None:
            self.dropped.foreign += count
        else:
            self._arrive(TO_SWITCH, member, address, data, count, now)
        if len(data) % segment:
            self._single(address, data[count * segment :], now)

    def _single(self, address: Address, datagram: Buffer, now: int) -> None:
        """A datagram that has not the size of packets: a HELLO, or nothing."""
        hello = unpack(datagram)
        if hello is None:
            self.dropped.malformed += 1
        elif address == self.server:
            member = self.members.proven(hello)
            if member is not None:
                member.heard_ns = now
        elif self.members.admit(address, hello) is None:
            self.dropped.refused += 1
        else:
            self._send(address, [bytes(datagram)], len(datagram))

    def _arrive(
        self, direction: str, member: Member | None, address: Address, data: Buffer, count: int, now: int
    ) -> None:
        """Let faults have their part, then step."""
        if direction in self.faults.active:
            onward = []
            for one in self.rows.split(data[: count * self.rows.wire]):
                job = member.job if member is not None else int.from_bytes(one[2:4], "big")
                onward += self.faults.passing(direction, job, [one], address, now)
            for at in range(0, len(onward), self.rows.most - 1):
                part = onward[at : at + self.rows.most - 1]
                self._step(member, address, b"".join(one for _, one in part), len(part), now)
        else:
            self._step(member, address, data, count, now)

    def _step(self, member: Member | None, address: Address, data: Buffer, count: int, now: int) -> None:
        """A batch: decode, drop what may not be sent, step, encode, send. `member`: None for the server."""
        rows, mark = self.rows, self.clock.mark
        self.batches += 1
        found = rows.read(data, count)
        self.dropped.malformed += count - found
        if member is None:
            kept = admit_known(rows.packets, rows.values, found, _FROM_SERVER, self.switch.jobs)
            self.dropped.foreign += found - kept
        else:
            bits = member.addresses.get(address, 0)
            kept = admit(rows.packets, rows.values, found, member.job, bits, _FROM_WORKER, self._priorities)
            self.dropped.malformed += found - kept
            member.traffic.came(kept, rows.wire)
        mark("decode")
        switch_batch(self.switch, rows.packets, rows.values, kept, now, self._actions, self._spares)
        sort_actions(kept, self._actions, self._spares, self._up, self._down, self._back, self._counts)
        mark("step")
        up, down, back = self._counts.tolist()
        if back and member is not None:
            self._unicast(member, down, back, now)
        elif down:
            self._multicast(member, down, now)
        if up:
            self._to_server(up, now)

    def _multicast(self, member: Member | None, count: int, now: int) -> None:
        """Results for all workers of their jobs: encoded once, sent to each."""
        if member is None:
            jobs = self.rows.packets["job"][self._down[:count]]
            if (jobs != jobs[0]).any():
                for job in np.unique(jobs).tolist():
                    mine = self._down[:count][jobs == job]
                    self._some[: len(mine)] = mine
                    self._to_workers(self.members.jobs.get(job), self._some, len(mine), now)
                return
            member = self.members.jobs.get(int(jobs[0]))
        self._to_workers(member, self._down, count, now)

    def _to_workers(self, member: Member | None, rows: Any, count: int, now: int) -> None:
        if member is None:
            return
        data = self.rows.write(rows, count)
        self.clock.mark("encode")
        for address in list(member.addresses):
            self._deliver(member, address, data, now)
        self.clock.mark("send")

    def _unicast(self, member: Member, down: int, back: int, now: int) -> None:
        """Results with some that are only for workers that sent again; each worker gets its own in order."""
        asking = self.rows.packets["bitmap"][self._back[:back]]
        for address, bits in list(member.addresses.items()):
            mine = np.sort(np.concatenate((self._down[:down], self._back[:back][asking & bits != 0])))
            if len(mine):
                self._deliver(member, address, self.rows.write(mine, len(mine)), now)
        self.clock.mark("send")

    def _deliver(self, member: Member, address: Address, data: memoryview, now: int) -> None:
        """Send results to one worker, with their faults."""
        wire = self.rows.wire
        if TO_WORKER in self.faults.active:
            onward = self.faults.passing(TO_WORKER, member.job, self.rows.split(data), address, now)
            sent = self._send_each(onward)
        else:
            sent = self._send(address, [data], wire)
        member.traffic.went(sent, wire)

    def _send_each(self, onward: list[tuple[Address, bytes]]) -> int:
        """Send datagrams that passed the faults, in order, grouped by address; return how many went."""
        at = sent = 0
        while at < len(onward):
            until = at
            while until < len(onward) and onward[until][0] == onward[at][0]:
                until += 1
            sent += self._send(onward[at][0], [one for _, one in onward[at:until]], self.rows.wire)
            at = until
        return sent

    def _to_server(self, count: int, now: int) -> None:
        """Packets in the rows `_up` to the server, if there is one."""
        if self.server is None:
            return
        data = self.rows.write(self._up, count)
        self.clock.mark("encode")
        if TO_SERVER in self.faults.active:
            onward = []
            for one in self.rows.split(data):
                onward += self.faults.passing(TO_SERVER, int.from_bytes(one[2:4], "big"), [one], self.server, now)
            self._send_each(onward)
        else:
            self._send(self.server, [data], self.rows.wire)
        self.clock.mark("send")

    # From time to time

    def next_ns(self, now: int) -> int:
        """When `tend` has something to do."""
        times = [self.faults.next_ns() or NEVER]
        if self.memory.shared:
            times.append(self._swept_ns + max(SWEEP_NS, self.memory.max_age_ns // 2))
            times += [self._greeted_ns.get(job, now) for job in self.memory.shared]
        return min(times)

    def tend(self, now: int) -> None:
        """Do what is due: late datagrams, a sweep over old aggregators, HELLOs to the server."""
        for late in self.faults.due(now):
            self._late(late, now)
        max_age = self.memory.max_age_ns
        if self.memory.shared and now >= self._swept_ns + max(SWEEP_NS, max_age // 2):
            self._swept_ns = now
            self.sweep(now, max_age)
        for job in self.memory.shared:
            if self.server is not None and self._greeted_ns.get(job, 0) <= now:
                member = self.members.jobs[job]
                heard = member.heard_ns is not None and now - member.heard_ns < 2 * ANSWERED_NS
                self._greeted_ns[job] = now + (ANSWERED_NS if heard else HELLO_NS)
                hello = pack(Hello(job, 0, member.token))
                self._send(self.server, [hello], len(hello))

    def _late(self, late: Late, now: int) -> None:
        if late.direction == FROM_SERVER:
            self._step(None, late.where, late.datagram, 1, now)
        elif late.direction == TO_SWITCH:
            member = self.members.by_address.get(late.where)
            if member is not None:
                self._step(member, late.where, late.datagram, 1, now)
        else:
            sent = self._send(late.where, [late.datagram], self.rows.wire)
            known = self.members.jobs.get(int.from_bytes(late.datagram[2:4], "big"))
            if late.direction == TO_WORKER and known is not None:
                known.traffic.went(sent, self.rows.wire)

    def sweep(self, now: int, max_age: int, start: int = 0, count: int = 0) -> None:
        """Send what is older than `max_age` to the server, and free it; all aggregators, or `count` from `start` on."""
        rows, there = self.rows, len(self.switch.table)
        left = count or there
        while left > 0:
            written, after = sweep(self.switch, rows.packets, rows.values, start, left, 0, now, max_age)
            # It ends early when no row is left to write to.
            left -= left if written < len(rows.packets) else (after - start) % there or left
            start = after
            if written:
                self._up[:written] = np.arange(written)
                self._to_server(written, now)

    # Jobs

    def register(self, job: int, name: str, n_workers: int, options: Options, token: bytes) -> None:
        """Make a job known, without memory yet; again with the same values does nothing. Raises `InputError`."""
        if options.protocol != "switchml" and self.server is None:
            raise InputError(
                f"job {job}: protocol {options.protocol} needs a server for what the switch does not complete; this "
                "switch has none, start it with --server or use protocol switchml"
            )
        if self.memory.register(job, name, n_workers, options, token):
            self._greeted_ns.pop(job, None)

    def free(self, job: int) -> int:
        """Forget a job and drop what it holds; returns how many aggregators that were. Raises `InputError`."""
        held = self.memory.free(job)
        self.faults.forget(job)
        self._greeted_ns.pop(job, None)
        return held

    def region(self, job: int, offset: int, size: int, epoch: int, window: int = 0) -> None:
        """As `SwitchMemory.region`; a window is the matter of workers and server."""
        self.memory.region(job, offset, size, epoch)

    def drain(self, job: int, epoch: int | None, now: int) -> int:
        """Take back the memory of a job, or of one of its epochs, and free it; returns how many aggregators it holds.

        Incomplete aggregators go to the server; dedicated slots are dropped. Packets of that epoch claim nothing more.
        Raises `InputError`.
        """
        for index in self.memory.withdraw(job, epoch):
            self.sweep(now, -NEVER, index, 1)
        return int(self.switch.jobs[job]["held"])


def warm_up() -> None:
    """Load or compile all machine code that a switch needs."""
    with announced("the software switch", 15):
        plane = SwitchPlane(4, 16, lambda *_: 0)
        plane.rows.packets["job"], plane.rows.packets["type"] = -1, RESULT
        plane.rows.write(np.zeros(1, np.int64), 0)
        plane.rows.read(bytes(plane.rows.wire), 1)
        rows, counts = plane.rows, np.zeros(3, np.int64)
        admit(rows.packets, rows.values, 0, 0, 1, 1, plane.memory.priorities)
        admit_known(rows.packets, rows.values, 0, 1, plane.switch.jobs)
        none = np.zeros(1, np.int64)
        switch_batch(plane.switch, rows.packets, rows.values, 0, 0, none, none)
        sort_actions(0, none, none, none, none, none, counts)
        sweep(plane.switch, rows.packets, rows.values, 0, 1, 0, 0, 0)
        release(plane.switch, 0)
        retire(plane.switch, 0, 0)
