"""The jobs that a switch or server knows, and from which address each of their packets may come."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field

from plait.core.errors import InputError
from plait.network.protocol.header import MOST_WORKERS
from plait.network.protocol.hello import TOKEN_BYTES, Hello
from plait.network.protocol.options import Options
from plait.network.protocol.server import all_bits
from plait.runtime.network.datagrams import Address

#: Numbers of jobs on the wire are below this.
MOST_JOBS = 1 << 16


@dataclass
class Traffic:
    """Datagrams and bytes of a job: what came in and was accepted, and what was sent, once for each receiver."""

    packets_in: int = 0
    bytes_in: int = 0
    packets_out: int = 0
    bytes_out: int = 0

    def came(self, packets: int, size: int) -> None:
        """Count datagrams of `size` bytes that were accepted."""
        self.packets_in += packets
        self.bytes_in += packets * size

    def went(self, packets: int, size: int) -> None:
        """Count datagrams of `size` bytes that were sent."""
        self.packets_out += packets
        self.bytes_out += packets * size


@dataclass
class Member:
    """A job. `regions`: by epoch, (first aggregator, how many); `addresses`: of its workers, with their bits."""

    job: int
    name: str
    n_workers: int
    options: Options
    token: bytes
    regions: dict[int, tuple[int, int]] = field(default_factory=dict)
    addresses: dict[Address, int] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    #: Last message of the other side, a server or a switch, in monotonic nanoseconds.
    heard_ns: int | None = None

    @property
    def expected(self) -> int:
        """The bits of all of its workers."""
        return all_bits(self.n_workers)

    @property
    def dedicated(self) -> bool:
        """Whether it has slots of its own and needs no server."""
        return self.options.protocol == "switchml"

    @property
    def greeted(self) -> int:
        """How many of its workers have introduced themselves."""
        return sum(bits.bit_count() if bits >= 0 else 64 - (~bits).bit_count() for bits in self.addresses.values())


class Members:
    """All jobs, by number and by the addresses of their workers."""

    def __init__(self, payload_bytes: int) -> None:
        self.payload_bytes = payload_bytes
        self.jobs: dict[int, Member] = {}
        self.by_address: dict[Address, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter([self.jobs[job] for job in sorted(self.jobs)])

    def get(self, job: int) -> Member:
        """A job that is registered; raises `InputError` for any other."""
        member = self.jobs.get(job)
        if member is None:
            there = ", ".join(map(str, sorted(self.jobs)[:10])) or "none"
            raise InputError(f"job {job} is not registered here; registered are: {there}")
        return member

    def add(self, job: int, name: str, n_workers: int, options: Options, token: bytes) -> bool:
        """Register a job; False if it was registered with the same values. Raises `InputError` if it cannot be."""
        if not 0 <= job < MOST_JOBS:
            raise InputError(f"job {job}: numbers of jobs are 0 to {MOST_JOBS - 1}")
        if not 1 <= n_workers <= MOST_WORKERS:
            raise InputError(f"job {job}: {n_workers} workers; a job may have 1 to {MOST_WORKERS}")
        if len(token) != TOKEN_BYTES:
            raise InputError(f"job {job}: the token has {len(token)} bytes; give {TOKEN_BYTES}")
        if options.payload_bytes != self.payload_bytes:
            raise InputError(
                f"job {job}: payload_bytes is {options.payload_bytes}; packets here have {self.payload_bytes}"
            )
        known = self.jobs.get(job)
        if known is not None:
            if (known.name, known.n_workers, known.options, known.token) == (name, n_workers, options, token):
                return False
            raise InputError(f"job {job} is registered as {known.name!r} with other values; free it first")
        self.jobs[job] = Member(job, name, n_workers, options, token)
        return True

    def remove(self, job: int) -> Member:
        """Forget a job and the addresses of its workers; raises `InputError` if it is not registered."""
        member = self.get(job)
        del self.jobs[job]
        for address in member.addresses:
            self.by_address.pop(address, None)
        return member

    def proven(self, hello: Hello) -> Member | None:
        """The job that a HELLO names, if its secret is right."""
        member = self.jobs.get(hello.job)
        return member if member is not None and hmac.compare_digest(member.token, hello.token) else None

    def admit(self, address: Address, hello: Hello) -> Member | None:
        """Accept packets of a worker from this address alone; None if the HELLO is wrong.

        A worker that comes again from another address has moved there; an address that comes with another job has left
        its former one.
        """
        member = self.proven(hello)
        if member is None or hello.bitmap == 0 or hello.bitmap & ~member.expected:
            return None
        former = self.by_address.get(address)
        if former is not None and former is not member:
            former.addresses.pop(address, None)
        for other, bits in list(member.addresses.items()):
            if other != address and bits & hello.bitmap:
                member.addresses[other] = bits & ~hello.bitmap
                if member.addresses[other] == 0:
                    del member.addresses[other]
                    self.by_address.pop(other, None)
        member.addresses[address] = member.addresses.get(address, 0) | hello.bitmap
        self.by_address[address] = member
        return member
