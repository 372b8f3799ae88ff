"""Agreements of the ranks of a job about one bucket, by a small all-reduce, and what replaces aggregation.

No rank may leave the network alone: one that waits in an all-reduce which the others never start waits for ever. So the
ranks agree before a bucket (its exponent, the grant that all of them know, whether all can use it) and after it
(whether all have all sums). Both are the largest of a few whole numbers, on a gloo group of their own. Sums are the
same on all ranks, so a rank that has all of them waits for nobody: it hands them over while the second agreement is
under way, and gives them to ranks that miss some. Our design.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from plait.network.protocol.fixed_point import NOT_FINITE
from plait.training.collectives.process_groups import OwnGroup


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
        """For reports and events."""
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


class Agreement(NamedTuple):
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

    def agree(self, proposal: Proposal) -> Agreement:
        """The agreement before a bucket: the largest exponent, the newest version, and the worst reasons."""
        exponent, version, least, newest, current = self.largest(
            [proposal.exponent, proposal.version, -proposal.version, proposal.newest, proposal.current]
        )()
        return Agreement(exponent, version, version == -least, Reason(newest), Reason(current))

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
        """Destroy the group."""
        self._own.close()


def not_finite(agreement: Agreement) -> bool:
    """Whether any rank has a gradient that is not finite."""
    return agreement.exponent >= NOT_FINITE
