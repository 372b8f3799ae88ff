"""Grants of switch memory: which aggregators of which switch a job may use, and how it is served."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from plait.core.arrays import FloatArray, IntArray
from plait.core.codec.values import form
from plait.core.errors import InputError
from plait.core.ina_request import MOST_PRIORITY, WITH_REGION, Addressing


@dataclass(frozen=True, slots=True)
class NetworkGrant:
    """A job's grant on one switch; a job may have grants on several switches, one on each.

    switch     its name
    offset     and `size`: the region, aggregators `offset` to `offset + size - 1`; size 0: all that regions of one job
               leave, for addressing modes without a region
    mode       how packets choose an aggregator (`plait.network.protocol.addressing.Index`)
    exclusive  no other job uses any aggregator of the region
    window     packets that a worker may have outstanding; 0: by bandwidth and delay
    priority   of its packets, 1 to 255 in systems with priorities; 0: none
    epoch      counts the regions that the job has had, so that packets of an earlier one are recognised
    server     number of the node whose parameter server adds up what the switch does not; -1: none
    routes     one choice of a path for each flow, as `plait.network.topology.paths.Graph.path` takes it; empty: all
               shortest paths
    workers    numbers of the nodes whose packets it adds up, ascending; empty for all grants of a job: each node's
               packets are added up by the first of its switches on their way to the server. With a grant that names
               some, packets of nodes that none names go straight to the server
    reason     why it is this much, for people; grants that differ in nothing else are equal

    Raises `InputError` for a grant that no switch can serve.
    """

    job: int
    switch: str
    offset: int = 0
    size: int = 0
    mode: Addressing = "shared_hash"
    exclusive: bool = field(default=False, metadata=form(omit=True))
    window: int = 0
    priority: int = field(default=0, metadata=form(omit=True))
    epoch: int = 0
    server: int = -1
    routes: tuple[int, ...] = field(default=(), metadata=form(omit=True))
    workers: tuple[int, ...] = field(default=(), metadata=form(omit=True))
    reason: str = field(default="", compare=False, metadata=form(omit=True))

    def __post_init__(self) -> None:
        for name in ("job", "offset", "size", "window", "epoch"):
            self._require(getattr(self, name) >= 0, name, "a whole number >= 0")
        self._require(list(self.workers) == sorted(set(self.workers)), "workers", "ascending numbers of nodes")
        modes = typing.get_args(Addressing)
        self._require(self.mode in modes, "mode", ", ".join(modes))
        self._require(0 <= self.priority <= MOST_PRIORITY, "priority", f"0 to {MOST_PRIORITY}")
        self._require(self.server >= -1, "server", "the number of a node, or -1 for none")
        if self.mode in WITH_REGION:
            least = 2 if self.mode == "dedicated" else 1
            self._require(self.size >= least, "size", f"at least {least} with mode {self.mode}")
        self._require(not (self.exclusive and not self.size), "size", "a region, to be exclusive")
        alone = self.exclusive or self.mode not in ("dedicated", "hybrid_modulo")
        self._require(alone, "exclusive", f"True with mode {self.mode}")

    def _require(self, ok: bool, name: str, wanted: str) -> None:
        if not ok:
            raise InputError(
                f"grant of switch {self.switch!r} to job number {self.job}: {name} is {getattr(self, name)!r}, "
                f"needs {wanted}"
            )

    @property
    def end(self) -> int:
        """The first aggregator behind its region."""
        return self.offset + self.size

    def clashes(self, other: NetworkGrant) -> bool:
        """Whether both cannot be in force: the region of one job alone has an aggregator of the other's region.

        >>> first = NetworkGrant(0, "leaf0", 0, 64, "dedicated", exclusive=True)
        >>> first.clashes(NetworkGrant(1, "leaf0", 63, 2, "hybrid_region")), first.clashes(NetworkGrant(1, "leaf0"))
        (True, False)
        """
        apart = self.switch != other.switch or self.offset >= other.end or other.offset >= self.end
        return not apart and self.job != other.job and (self.exclusive or other.exclusive)


def by_job(grants: Iterable[NetworkGrant]) -> dict[int, tuple[NetworkGrant, ...]]:
    """The grants of each job, by its number, in the order in which they come."""
    found: dict[int, tuple[NetworkGrant, ...]] = {}
    for grant in grants:
        found[grant.job] = (*found.get(grant.job, ()), grant)
    return found


def clashing(grants: Iterable[NetworkGrant]) -> Iterator[tuple[NetworkGrant, NetworkGrant]]:
    """Pairs of grants that cannot both be in force; there are none if and only if all of them can.

    O(n log n) in the number of grants.
    """
    ordered = sorted((one for one in grants if one.size), key=lambda one: (one.switch, one.offset, one.job))
    furthest: NetworkGrant | None = None  # of the regions so far on this switch, the one with the last end
    for one in ordered:
        if furthest is not None and furthest.clashes(one):
            yield furthest, one
        if furthest is None or furthest.switch != one.switch or one.end > furthest.end:
            furthest = one


@dataclass(frozen=True, slots=True, eq=False)
class NetworkFigures:
    """The last figures of jobs that exchange gradients; NaN where nothing is known.

    `jobs` (n,) are numbers of jobs that ran at the last report, ascending. `bits_per_s` (n,) is the goodput, bits of
    gradients a second; `aggregated` (n,) the share of packets that switches added up from all workers, 0 to 1;
    `fallback_share` (n,) that of packets whose aggregator belonged to others, so that they went to the server.
    """

    jobs: IntArray
    bits_per_s: FloatArray
    aggregated: FloatArray
    fallback_share: FloatArray
