"""Answers of the API that several who look at the same time share, for a moment each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from plait.dashboard.api_client import ApiClient
from plait.dashboard.sessions import Session

#: Answers that are kept at most.
MOST = 200
#: The first part of keys of what takes long to make, and is kept when something has changed.
_LONG = "long"


class Answers:
    """By who may see them: all administrators see the same, so do all viewers, and each user something else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is known. `clock`: seconds."""
        self._clock = clock
        self._known: dict[tuple[Any, ...], tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, client: ApiClient, session: Session, age_s: float, path: str, **query: Any) -> Any:
        """The API's answer to a GET, `age_s` old at most; simultaneous callers share one request.

        Raises `Refused`. Callers change nothing of what they get.
        """
        key = (_audience(session), path, *sorted(query.items()))
        return await self.share(key, age_s, lambda: client.get(path, **query))

    def forget(self) -> None:
        """Drop all answers after a change: the next caller gets the present state."""
        self._known = {key: one for key, one in self._known.items() if key[0] == _LONG}

    async def share(self, key: tuple[Any, ...], age_s: float, make: Callable[[], Awaitable[Any]]) -> Any:
        """The result of `make`, kept under `key` for `age_s` seconds; its error is not kept."""
        now_s = self._clock()
        at_s, found = self._known.get(key, (0.0, None))
        if found is None or now_s - at_s > age_s or (found.done() and (found.cancelled() or found.exception())):
            found = asyncio.ensure_future(make())
            self._known.pop(key, None)
            self._known[key] = now_s, found
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return await asyncio.shield(found)


def _audience(session: Session) -> tuple[str, ...]:
    """Whose answers are the same: administrators see more than viewers, and users only what is theirs."""
    return (session.role, session.user, session.project) if session.role == "user" else (session.role,)
