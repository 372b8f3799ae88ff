"""What a rank has to do with the grants of its job: find new ones, introduce itself to the switch, and change regions.

A new grant is prepared as soon as it is found and used once all ranks have prepared it; until then the one in use goes
on. Start at `Session.look`, then `Session.adopt`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from plait.core.errors import InputError
from plait.core.jit import HAVE_NUMBA
from plait.network.protocol import hello
from plait.network.protocol.fixed_point import NOT_FINITE
from plait.network.protocol.worker import bit_of
from plait.runtime.network.datagrams import BatchSocket
from plait.runtime.network.grant import Address, GrantFile, NetworkGrant
from plait.training.collectives.aggregation_client import AggregationClient, Counts, Link, warm_up
from plait.training.process import OwnGroup

# Agreements of the ranks of a job about one bucket, by a small all-reduce, and what replaces aggregation.
#
# No rank may leave the network alone: one that waits in an all-reduce which the others never start waits for ever. So
# the ranks agree before a bucket (its exponent, the grant that all of them know, whether all can use it) and after it
# (whether all have all sums). Both are the largest of a few whole numbers, on a gloo group of their own. Sums are the
# same on all ranks, so a rank that has all of them waits for nobody: it hands them over while the second agreement is
# under way, and gives them to ranks that miss some. Our design.


class Reason(IntEnum):
    """Why a bucket goes by gloo. Of several the largest one counts, so all ranks give the same."""

    NONE = 0
    NOT_FINITE = 1
    OVERFLOW = 2
    TIMEOUTS = 3
    SOCKET = 4
    GIVEN_UP = 5
    CHANGING = 6
    NO_NUMBERS = 7
    NO_ANSWER = 8
    WRONG_GRANT = 9
    NOT_GRANTED = 10
    NO_GRANT = 11
    NO_COMPILER = 12
    DTYPE = 13
    IN_USE = 14

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Reason.NONE: "",
    Reason.NOT_FINITE: "gradients are not finite",
    Reason.OVERFLOW: "sums may not fit in 32 bits",
    Reason.TIMEOUTS: "sums did not come back in time",
    Reason.SOCKET: "the socket of a rank failed",
    Reason.GIVEN_UP: "too many buckets in a row failed",
    Reason.CHANGING: "not all ranks know the newest grant yet",
    Reason.NO_NUMBERS: "the job has used all numbers of packets",
    Reason.NO_ANSWER: "the switch does not answer",
    Reason.WRONG_GRANT: "the grant cannot be used",
    Reason.NOT_GRANTED: "no switch memory is granted",
    Reason.NO_GRANT: "there is no grant",
    Reason.NO_COMPILER: "numba is not installed (plait[sim])",
    Reason.IN_USE: "another model or process of this rank uses the grant",
    Reason.DTYPE: "gradients are neither float32 nor narrower floats",
}


class Proposal(NamedTuple):
    """What a rank knows before a bucket.

    exponent  of its gradients (`fixed_point.exponent_of`)
    version   of the newest grant it knows, -1 for none
    newest    why it cannot use that one, NONE if it can
    current   the same for the grant in use
    """

    exponent: int
    version: int
    newest: Reason
    current: Reason


class RankAgreement(NamedTuple):
    """What all ranks know together: as `Proposal`, and whether all know the same `version`."""

    exponent: int
    version: int
    same: bool
    newest: Reason
    current: Reason


class RankGroup:
    """The ranks of a DDP process group, for agreements and for buckets that are not aggregated."""

    def __init__(self, process_group: Any = None) -> None:
        """Create a group of the same ranks; all of them do so together. None: all ranks."""
        whole = process_group if process_group is not None else dist.group.WORLD
        self._own = OwnGroup("plait-aggregation", dist.get_process_group_ranks(whole))
        self.rank, self.size = dist.get_rank(self._own.group), dist.get_world_size(self._own.group)

    def largest(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """Begin to find the largest of each value over all ranks; the function that is returned waits for it.

        That function raises `RuntimeError` if a rank is gone.
        """
        numbers = torch.tensor(values, dtype=torch.int64)
        work = self._own.work = dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._own.group, async_op=True)

        def wait() -> list[int]:
            work.wait()
            found: list[int] = numbers.tolist()
            return found

        return wait

    def agree(self, proposal: Proposal) -> RankAgreement:
        """The agreement before a bucket: the largest exponent, the newest version, and the worst reasons."""
        exponent, version, least, newest, current = self.largest(
            [proposal.exponent, proposal.version, -proposal.version, proposal.newest, proposal.current]
        )()
        return RankAgreement(exponent, version, version == -least, Reason(newest), Reason(current))

    def worst(self, reason: Reason) -> Callable[[], tuple[Reason, int]]:
        """Begin the agreement after a bucket; the function that is returned waits for it.

        It returns NONE if it is NONE on every rank, else the worst reason, and the first rank that has none, or -1.
        """
        wait = self.largest([reason, self.size - self.rank if reason is Reason.NONE else 0])

        def outcome() -> tuple[Reason, int]:
            worst, first = wait()
            return Reason(worst), self.size - first if first else -1

        return outcome

    def share(self, tensor: torch.Tensor, source: int) -> None:
        """Replace a tensor on the host by that of the rank `source`."""
        dist.broadcast(tensor, group_src=source, group=self._own.group)

    def mean(self, tensor: torch.Tensor) -> None:
        """Replace a tensor on the host by its mean over all ranks, as DDP computes it: scaled first, then summed."""
        dist.all_reduce(tensor.mul_(1.0 / self.size), group=self._own.group)

    def close(self) -> None:
        self._own.close()


def not_finite(agreement: RankAgreement) -> bool:
    """Whether any rank has a gradient that is not finite."""
    return agreement.exponent >= NOT_FINITE


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
        self._drop_made()
        if self.link is not None:
            self.link.socket.close()
            self.link = None
