"""Snapshots of the state, so that a restart need not read the whole log; made outside the engine's thread.

The engine copies the parts that may change, which takes milliseconds; another thread makes JSON of it and compresses
it; the next commit writes it. A restart uses a snapshot as soon as it exists, and needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

from plait.live.scheduler.state import State
from plait.live.store import pack

#: Lets something be done, elsewhere and later perhaps.
Later: TypeAlias = Callable[[Callable[[], bytes]], "Future[bytes]"]


def at_once(work: Callable[[], bytes]) -> Future[bytes]:
    """Done here and now, as suits tests and tools."""
    done: Future[bytes] = Future()
    done.set_result(work())
    return done


class Snapshots:
    """Begun when as much has happened as `limit` entries of the log weigh, one at a time."""

    def __init__(self, limit: float, later: Later = at_once) -> None:
        self.weight = 0.0
        self._limit, self._later = limit, later
        self._made: tuple[int, Future[bytes]] | None = None

    def take(self, state: State) -> tuple[int, bytes] | None:
        """Begin a snapshot of the present state if one is due; return one that is ready to be written."""
        if self._made is None and self.weight >= self._limit:
            plain = state.frozen()
            self._made = state.seq, self._later(lambda: pack(plain()))
            self.weight = 0.0
        if self._made is None or not self._made[1].done():
            return None
        (seq, body), self._made = self._made, None
        return seq, body.result()
