"""The scheduler's record of the network: declaration, serving nodes, leases, grant files of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plait.control.messages import network_from_json, network_to_json
from plait.core.arrays import AS_LISTS
from plait.core.codec.values import Codec
from plait.core.network_grants import NetworkGrant
from plait.live.scheduler.records.notes import NetworkSet, RanksTold
from plait.network.topology.declared import Declared


@dataclass(frozen=True)
class Serving:
    """The node whose agent serves a switch, and the incarnation of it that is in use; "" before it works."""

    node: str
    incarnation: str = ""


@dataclass(frozen=True)
class Leased:
    """The region of a switch that an attempt has: the grant of the controller, and its name in packets.

    The epoch is new for every attempt, every other region and every other window, and never used again for the job.
    The switch knows the job by the number `wire` since the epoch `since`, with these `options` of the protocol; another
    switch and other options are another registration, with another number and another secret. `begun_s`: when the lease
    began; `spent`: the job has used so many numbers of packets that it is to be registered again.
    """

    job: int
    attempt: int
    epoch: int
    grant: NetworkGrant
    wire: int = 0
    since: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    begun_s: float = 0.0
    spent: bool = False


@dataclass
class NetworkBook:
    """See the module. `epochs`: the last epoch of each job that has had a lease and has not ended.

    `former`: by job, the lease before the present one, or the last one, which ranks may still use; `next_wire`: where
    the search for a free number begins, so that one that became free is not the next one.
    """

    declared: Declared | None = None
    serving: dict[str, Serving] = field(default_factory=dict)
    leases: dict[int, Leased] = field(default_factory=dict)
    former: dict[int, Leased] = field(default_factory=dict)
    next_wire: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    told: dict[int, RanksTold] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to remember: the cluster has no network."""
        return self.declared is None and not self.told

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "declared": None if self.declared is None else _BOOK.encode(note_of(self.declared, 0.0)),
            "serving": {name: _BOOK.encode(one) for name, one in self.serving.items()},
            "leases": [_BOOK.encode(one) for one in self.leases.values()],
            "former": [_BOOK.encode(one) for one in self.former.values()],
            "next_wire": self.next_wire,
            "epochs": {str(job): epoch for job, epoch in self.epochs.items()},
            "told": [_BOOK.encode(one) for one in self.told.values()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> NetworkBook:
        """The book that `to_json` wrote; an empty one for None."""
        if data is None:
            return cls()
        declared = data["declared"]
        leases = [_BOOK.decode(Leased, one) for one in data["leases"]]
        former = [_BOOK.decode(Leased, one) for one in data.get("former", ())]
        told = [_BOOK.decode(RanksTold, one) for one in data["told"]]
        return cls(
            None if declared is None else declared_of(_BOOK.decode(NetworkSet, declared)),
            {name: _BOOK.decode(Serving, one) for name, one in data["serving"].items()},
            {one.job: one for one in leases},
            {one.job: one for one in former},
            data.get("next_wire", 0),
            {int(job): epoch for job, epoch in data["epochs"].items()},
            {one.job: one for one in told},
        )


_BOOK = Codec(nulls=True, own=AS_LISTS, sparse=(NetworkSet, RanksTold))


def note_of(declared: Declared | None, at_s: float) -> NetworkSet:
    """The note that the network is declared so from then on."""
    if declared is None:
        return NetworkSet(at_s)
    listed = None if declared.listed is None else network_to_json(declared.listed)
    return NetworkSet(at_s, declared.text, listed, dict(declared.racks) or None)


def declared_of(note: NetworkSet) -> Declared | None:
    """The declaration of a note; None if there is no network any more."""
    if not note.text and note.listed is None:
        return None
    listed = None if note.listed is None else network_from_json(note.listed)
    return Declared(note.text, listed, tuple((note.racks or {}).items()))
