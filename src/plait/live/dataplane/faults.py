"""Faults on purpose: loss, delay, duplication and reordering of datagrams, seeded, by direction and job.

The fate of the k-th datagram of a job in a direction depends on the seed, the job, the direction and k alone. Our
design. Start at `Faults.passing`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from plait.core.errors import InputError, suggest
from plait.runtime.network.datagrams import Address, Buffer

#: Ways of datagrams, as a switch sees them; a server knows the last two.
TO_SWITCH, TO_WORKER, TO_SERVER, FROM_SERVER = DIRECTIONS = ("to_switch", "to_worker", "to_server", "from_server")
#: A datagram that is held back is sent after at most so many others, or after so many nanoseconds.
MOST_OVERTAKING, HELD_NS = 8, 5_000_000


@dataclass(frozen=True)
class LinkFault:
    """Faults of datagrams: three probabilities, and a delay for all of them.

    `loss`, `duplicate` and `reorder` (1 to `MOST_OVERTAKING` later datagrams overtake it) are from 0 to 1.
    """

    loss: float = 0.0
    delay_s: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)!r}; it takes a probability from 0 to 1")
        if not 0 <= self.delay_s <= 10:
            raise InputError(f"delay_s is {self.delay_s!r}; it takes 0 to 10 seconds")

    @property
    def harmless(self) -> bool:
        """Whether nothing happens."""
        return not (self.loss or self.delay_s or self.duplicate or self.reorder)


class Late(NamedTuple):
    """A datagram that is sent later: its direction, and the address that it came from or goes to."""

    due_ns: int
    number: int
    direction: str
    where: Address
    datagram: bytes


@dataclass
class _Held:
    overtaking: int
    due_ns: int
    where: Address
    datagram: bytes


@dataclass
class _Stream:
    """The datagrams of one job in one direction."""

    fault: LinkFault
    draw: random.Random
    held: list[_Held] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    overtaken: int = 0


class Faults:
    """All faults of a process; `active` has the directions in which there are any."""

    def __init__(self) -> None:
        self.active: set[str] = set()
        self._rules: dict[tuple[str, int | None], LinkFault] = {}
        self._streams: dict[tuple[str, int], _Stream] = {}
        self._late: list[Late] = []
        self._numbers = count()

    def set(self, direction: str, job: int | None, fault: LinkFault) -> None:
        """Let this happen to the datagrams of a job, or of all jobs without a rule of their own, from the next one on.

        Raises `InputError` for a direction that does not exist.
        """
        if direction not in DIRECTIONS:
            raise InputError(f"direction {direction!r} does not exist; {suggest(direction, DIRECTIONS)}")
        if fault.harmless and (job is None or (direction, None) not in self._rules):
            self._rules.pop((direction, job), None)
        else:
            self._rules[direction, job] = fault
        for key, stream in list(self._streams.items()):
            if key[0] == direction and (job == key[1] or (job is None and (direction, key[1]) not in self._rules)):
                for one in stream.held:
                    self._later(one.due_ns, direction, one.where, one.datagram)
                del self._streams[key]
        self.active = {way for way, _ in self._rules}

    def passing(
        self, direction: str, job: int, datagrams: Sequence[Buffer], where: Address, now: int
    ) -> list[tuple[Address, bytes]]:
        """Datagrams of one job that pass now, in order, with their addresses. Others may follow, see `due`."""
        stream = self._stream(direction, job)
        onward: list[tuple[Address, bytes]] = []
        if stream is None:
            return [(where, bytes(one)) for one in datagrams]
        fault, draw = stream.fault, stream.draw
        for one in datagrams:
            lost, doubled, overtaken = draw.random(), draw.random(), draw.random()
            behind = 1 + int(MOST_OVERTAKING * draw.random())
            if lost < fault.loss:
                stream.lost += 1
                continue
            data = bytes(one)
            if overtaken < fault.reorder:
                stream.overtaken += 1
                stream.held.append(_Held(behind, now + HELD_NS, where, data))
                continue
            copies = 2 if doubled < fault.duplicate else 1
            stream.doubled += copies - 1
            onward += [(where, data)] * copies
            for held in stream.held:
                held.overtaking -= 1
                if held.overtaking == 0:
                    onward.append((held.where, held.datagram))
            stream.held = [held for held in stream.held if held.overtaking > 0]
        if fault.delay_s:
            for where, data in onward:
                self._later(now + round(1e9 * fault.delay_s), direction, where, data)
            return []
        return onward

    def due(self, now: int) -> list[Late]:
        """Late or held-back datagrams that pass now, in order."""
        for (direction, _), stream in self._streams.items():
            for held in stream.held:
                if held.due_ns <= now:
                    self._later(held.due_ns + round(1e9 * stream.fault.delay_s), direction, held.where, held.datagram)
            stream.held = [held for held in stream.held if held.due_ns > now]
        found = []
        while self._late and self._late[0].due_ns <= now:
            found.append(heapq.heappop(self._late))
        return found

    def next_ns(self) -> int | None:
        """When `due` has something, None for never."""
        times = [held.due_ns for stream in self._streams.values() for held in stream.held]
        return min([*times, *(one.due_ns for one in self._late[:1])], default=None)

    def forget(self, job: int) -> None:
        """A job is gone, and its datagrams that were held back with it; rules of its own go too."""
        for direction in DIRECTIONS:
            self._rules.pop((direction, job), None)
            self._streams.pop((direction, job), None)
        self.active = {way for way, _ in self._rules}

    def counters(self) -> list[dict[str, object]]:
        """Counts of faults, for each direction and job."""
        return [
            {"direction": way, "job": job, "lost": s.lost, "duplicated": s.doubled, "reordered": s.overtaken}
            for (way, job), s in sorted(self._streams.items())
        ]

    def _stream(self, direction: str, job: int) -> _Stream | None:
        stream = self._streams.get((direction, job))
        if stream is None:
            fault = self._rules.get((direction, job), self._rules.get((direction, None)))
            if fault is None or fault.harmless:
                return None
            seed = f"{fault.seed} {direction} {job}"
            stream = self._streams[direction, job] = _Stream(fault, random.Random(seed))
        return stream

    def _later(self, due_ns: int, direction: str, where: Address, datagram: bytes) -> None:
        heapq.heappush(self._late, Late(due_ns, next(self._numbers), direction, where, datagram))
