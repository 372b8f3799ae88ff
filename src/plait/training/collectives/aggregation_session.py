"""What a rank has to do with the grants of its job: find new ones, introduce itself to the switch, and change regions.

A new grant is prepared as soon as it is found and used once all ranks have prepared it; until then the one in use goes
on. Start at `Session.look`, then `Session.adopt`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from plait.core.errors import InputError
from plait.core.jit import HAVE_NUMBA
from plait.network.protocol import hello
from plait.network.protocol.worker import bit_of
from plait.runtime.network.datagrams import BatchSocket
from plait.runtime.network.grant import Address, GrantFile, NetworkGrant
from plait.training.collectives.aggregation_client import AggregationClient, Counts, Link, warm_up
from plait.training.collectives.agreement import Reason

#: An introduction is sent so often, each time with this wait for the answer, in seconds.
HELLO_TRIES, HELLO_WAIT_S = 8, 0.03
#: Seconds until a switch that did not answer is asked again: twice as many each time.
RETRY_S, MOST_RETRY_S = 0.5, 30.0

Connect = Callable[[NetworkGrant, int], Link]
Greet = Callable[[Link, NetworkGrant, int], None]


class SwitchSilent(Exception):
    """The switch did not answer an introduction."""


def connect(grant: NetworkGrant, rank: int) -> Link:
    """A socket whose address the switch knows as that of the rank.

    Raises `SwitchSilent` if the switch does not answer, as it does for a job or token that it does not know, and
    `OSError` without a route to it.
    """
    assert grant.switch is not None
    switch = resolved(grant.switch)
    link = Link.over(BatchSocket(local_host(switch)), switch)
    try:
        introduce(link, grant, rank)
    except BaseException:
        link.socket.close()
        raise
    return link


def resolved(address: Address) -> Address:
    """An address with a number in place of a name; raises `OSError` for an unknown one."""
    found = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0][4]
    return str(found[0]), int(found[1])


def local_host(switch: Address) -> str:
    """The address of this machine on the way to a switch."""
    family = socket.AF_INET6 if ":" in switch[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        asked.connect(switch)  # sends nothing
        return str(asked.getsockname()[0])


def introduce(link: Link, grant: NetworkGrant, rank: int) -> None:
    """Say which rank the socket is of, and wait for the answer; raises `SwitchSilent` without any."""
    said = hello.Hello(grant.job, bit_of(rank), grant.secret)
    datagram = hello.pack(said)
    for _ in range(HELLO_TRIES):
        link.socket.send(link.switch, [datagram], len(datagram))
        end_s = time.monotonic() + HELLO_WAIT_S
        while (left_s := end_s - time.monotonic()) > 0:
            for found in link.socket.receive(left_s):
                data = link.socket.buffers[found.slot][: found.length]
                if found.address[:2] == link.switch and hello.unpack(data) == said:
                    return
    raise SwitchSilent(f"switch {grant.switch_name or link.switch[0]} does not answer rank {rank} of job {grant.job}")


class Session:
    """The grant in use and the newest one, of one rank. Not for several threads."""

    def __init__(
        self,
        grants: GrantFile | None,
        rank: int,
        size: int,
        *,
        connect: Connect = connect,
        greet: Greet = introduce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of `rank` of `size`; nothing is read yet. `connect` and `greet` introduce the rank to a switch."""
        self._grants, self._rank, self._size = grants, rank, size
        self._connect, self._greet, self._clock = connect, greet, clock
        self.grant: NetworkGrant | None = None
        self.client: AggregationClient | None = None
        self.link: Link | None = None
        self._newest: NetworkGrant | None = None
        self._made: tuple[AggregationClient, Link] | None = None
        self._why = Reason.NO_GRANT if grants is not None else Reason.NOT_GRANTED
        self._doubtful = False
        #: Whether the region in use is used no more, since too many buckets in a row failed.
        self.given_up = False
        #: Version of the newest grant that all ranks have found, so that none uses an older one; -1 for none.
        self.followed = -1
        self._retry_s, self._retry_at = RETRY_S, 0.0
        self._before = Counts()
        #: The newest problem in words.
        self.trouble = ""

    @property
    def counts(self) -> Counts:
        """Counters of all clients so far."""
        now = self.client.counts if self.client is not None else Counts()
        return Counts(*(a + b for a, b in zip(self._before, now, strict=True)))

    def look(self, elements: int) -> tuple[int, Reason, Reason]:
        """Look for a newer grant, and prepare it, before a bucket of so many elements.

        Returns (its version, why it cannot be used, why the one in use cannot).
        """
        if not HAVE_NUMBA:
            return -1, Reason.NO_COMPILER, Reason.NO_COMPILER
        found = self._grants.newest() if self._grants is not None else None
        if self._grants is not None and found is None:
            self.trouble = self._grants.trouble
        if found is not None and found is not self._newest:
            self._newest = found
            self._retry_s, self._retry_at = RETRY_S, 0.0
            self._prepare(found)
        elif found is not None and self._why is Reason.NO_ANSWER and self._clock() >= self._retry_at:
            self._prepare(found)
        if self._doubtful and found is self.grant:
            self._ask_again()
        version = found.version if found is not None else -1
        current = self._why_current(elements)
        newest = current if found is self.grant and found is not None else self._why
        if newest is Reason.NONE and self._made is None and current is Reason.NO_NUMBERS:
            newest = current  # it would be used with the numbers of the one in use
        return version, newest, current

    def _why_current(self, elements: int) -> Reason:
        if self.grant is None or self.client is None:
            return Reason.NO_GRANT
        if self._newest is not None and not self._newest.granted:
            return Reason.NOT_GRANTED
        if self.given_up:
            return Reason.GIVEN_UP
        if self._doubtful:
            return Reason.NO_ANSWER
        return Reason.NONE if self.client.fits(elements) else Reason.NO_NUMBERS

    def _prepare(self, grant: NetworkGrant) -> None:
        """Make all that a grant needs, without disturbing the one in use."""
        self._drop_made()
        if not grant.granted:
            self._why, self.trouble = Reason.NOT_GRANTED, grant.reason
            return
        if grant.n_workers != self._size:
            self._why = Reason.WRONG_GRANT
            self.trouble = f"it is for {grant.n_workers} workers, and the job has {self._size} ranks"
            return
        if self._grants is not None and not self._grants.claim(self._rank):
            self._why, self.trouble = Reason.IN_USE, ""
            return
        try:
            client = AggregationClient(grant, self._rank)
            warm_up(grant)
            if self.grant is None or self.link is None or grant.membership != self.grant.membership:
                self._made = client, self._connect(grant, self._rank)
            else:  # the switch may have forgotten its address since
                self._greet(self.link, grant, self._rank)
                self._doubtful = False
            self._why, self.trouble = Reason.NONE, ""
        except InputError as error:
            self._why, self.trouble = Reason.WRONG_GRANT, str(error)
        except (SwitchSilent, OSError) as error:
            self._why, self.trouble = Reason.NO_ANSWER, str(error)
            self._later()

    def _ask_again(self) -> None:
        """After a bucket that failed: whether the switch of the grant in use still knows this rank."""
        if self.grant is None or self.link is None or self._clock() < self._retry_at:
            return
        try:
            self._greet(self.link, self.grant, self._rank)
            self._doubtful, self._retry_s, self.trouble = False, RETRY_S, ""
        except (SwitchSilent, OSError) as error:
            self.trouble = str(error)
            self._later()

    def _later(self) -> None:
        self._retry_at = self._clock() + self._retry_s
        self._retry_s = min(MOST_RETRY_S, 2 * self._retry_s)

    def adopt(self) -> bool:
        """Use the newest grant, now that all ranks have prepared it; between two buckets.

        Returns whether that is another region, in which nothing has failed yet.
        """
        grant = self._newest
        assert grant is not None
        if grant is self.grant:
            return False
        moves = self.grant is None or grant.place != self.grant.place
        if moves:
            self.given_up = False
        if self._made is not None:
            self._before = self.counts
            if self.link is not None:
                self.link.socket.close()
            (self.client, self.link), self._made = self._made, None
            self._doubtful = False
        else:
            assert self.client is not None
            self.client.use_region(grant)
        self.grant = grant
        return moves

    def failed(self, *, give_up: bool) -> None:
        """Note that the last bucket failed on some rank; `give_up`: use this region no more."""
        self._doubtful = True
        self.given_up |= give_up

    def _drop_made(self) -> None:
        if self._made is not None:
            self._made[1].socket.close()
            self._made = None

    def close(self) -> None:
        """Close the sockets."""
        self._drop_made()
        if self.link is not None:
            self.link.socket.close()
            self.link = None
