"""Questions to agents: they come with the next answer to an agent, whose next message has the reply."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable

from plait.live.protocol.wire import Ask, Reply

#: An agent that has not replied by then is asked again; and after so long nobody waits any more.
AGAIN_S, PATIENCE_S = 2.0, 6.0


class NoAnswer(Exception):
    """The node's agent does not answer."""


class Mailbox:
    """Asks that wait for a reply, by node. Lives in the event loop."""

    def __init__(self) -> None:
        """Empty."""
        self._ids = itertools.count(1)
        # Names come from outside: there is something under one only while somebody waits.
        self._open: dict[str, dict[int, tuple[Ask, asyncio.Future[Reply]]]] = {}
        self._sent: dict[int, float] = {}
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._versions: dict[str, int] = {}

    async def ask(self, node: str, job: int, epoch: int, rank: int, offset: int, limit: int) -> Reply:
        """Part of a log from a node's agent; raises `NoAnswer`."""
        number = next(self._ids)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open.setdefault(node, {})[number] = (Ask(number, job, epoch, rank, offset, limit), future)
        self._ring(node)
        try:
            return await asyncio.wait_for(future, PATIENCE_S)
        except TimeoutError:
            raise NoAnswer(f"the agent of node {node} does not answer") from None
        finally:
            self._open[node].pop(number, None)
            self._sent.pop(number, None)
            if not self._open[node]:
                del self._open[node]

    def due(self, node: str) -> list[Ask]:
        """What to ask now; noted as sent."""
        now = time.monotonic()
        asks = [
            ask for ask, _ in self._open.get(node, {}).values() if now - self._sent.get(ask.id, -AGAIN_S) >= AGAIN_S
        ]
        self._sent.update({ask.id: now for ask in asks})
        return asks

    def take(self, node: str, replies: Iterable[Reply]) -> None:
        """Hand replies of a node to those who asked for them."""
        for reply in replies:
            _, future = self._open.get(node, {}).get(reply.id, (None, None))
            if future is not None and not future.done():
                future.set_result(reply)

    def published(self, versions: dict[str, int]) -> None:
        """Assignments have these versions now."""
        changed = [node for node, version in versions.items() if self._versions.get(node) != version]
        self._versions = versions
        for node in changed:
            self._ring(node)

    def _ring(self, node: str) -> None:
        for bell in self._bells.get(node, ()):
            bell.set()

    async def news(self, node: str, version: int, wait_s: float) -> None:
        """Until the assignment of a node is newer than `version`, there is something to ask, or the time is over."""
        deadline = time.monotonic() + wait_s
        bell = asyncio.Event()
        self._bells.setdefault(node, set()).add(bell)
        try:
            while self._versions.get(node, 0) <= version and not any(
                ask.id not in self._sent for ask, _ in self._open.get(node, {}).values()
            ):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return
                bell.clear()
                try:
                    await asyncio.wait_for(bell.wait(), left_s)
                except TimeoutError:
                    return
        finally:
            self._bells[node].discard(bell)
            if not self._bells[node]:
                del self._bells[node]
