"""Questions to agents: they come with the next answer to an agent, whose next message has the reply."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError

from plait.live.protocol.wire import Ask, ConsoleAsk, Reply

#: An agent that has not replied after the first gets the request again; after the second the request is dropped.
AGAIN_S, PATIENCE_S = 2.0, 6.0


class NoAnswer(Exception):
    """The node's agent does not answer."""


class Mailbox:
    """Requests that wait for a reply, by node; thread-safe, as agents and users have event loops of their own."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._lock, self._closed = threading.Lock(), False
        # Names come from outside: each entry exists only while a request waits.
        self._open: dict[str, dict[int, tuple[Ask, Future[Reply]]]] = {}
        self._sent: dict[int, float] = {}
        self._bells: dict[str, set[_Bell]] = {}
        self._versions: dict[str, int] = {}

    async def ask(
        self, node: str, job: int, epoch: int, rank: int, offset: int = 0, limit: int = 0,
        console: ConsoleAsk | None = None,
    ) -> Reply:  # fmt: skip
        """Part of a log, or of a console, from a node's agent; raises `NoAnswer`."""
        future: Future[Reply] = Future()
        with self._lock:
            number = next(self._ids)
            self._open.setdefault(node, {})[number] = (Ask(number, job, epoch, rank, offset, limit, console), future)
            self._ring([node])
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), PATIENCE_S)
        except TimeoutError:
            raise NoAnswer(f"the agent of node {node} does not answer") from None
        finally:
            with self._lock:
                self._open[node].pop(number, None)
                self._sent.pop(number, None)
                if not self._open[node]:
                    del self._open[node]

    def due(self, node: str) -> list[Ask]:
        """The requests to send now; noted as sent."""
        now = time.monotonic()
        with self._lock:
            asks = [
                ask for ask, _ in self._open.get(node, {}).values() if now - self._sent.get(ask.id, -AGAIN_S) >= AGAIN_S
            ]
            self._sent.update({ask.id: now for ask in asks})
        return asks

    def take(self, node: str, replies: Iterable[Reply]) -> None:
        """Hand replies of a node to the requests that wait for them."""
        for reply in replies:
            with self._lock:
                _, future = self._open.get(node, {}).get(reply.id, (None, None))
            if future is not None:
                with contextlib.suppress(InvalidStateError):  # replied before, or the request is dropped
                    future.set_result(reply)

    def published(self, versions: dict[str, int]) -> None:
        """Assignments have these versions now."""
        with self._lock:
            changed = [node for node, version in versions.items() if self._versions.get(node) != version]
            self._versions = versions
            self._ring(changed)

    def close(self) -> None:
        """Keep no agent waiting any more."""
        with self._lock:
            self._closed = True
            self._ring(self._bells)

    def _ring(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            for bell in self._bells.get(node, ()):
                bell.ring()

    async def news(self, node: str, version: int, wait_s: float) -> None:
        """Wait until the assignment of a node is newer than `version`, a request is due, or the time is over."""
        deadline = time.monotonic() + wait_s
        bell = _Bell()
        with self._lock:
            self._bells.setdefault(node, set()).add(bell)
        try:
            while not self._has_news(node, version):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return
                try:
                    await asyncio.wait_for(bell.event.wait(), left_s)
                except TimeoutError:
                    return
                bell.event.clear()
        finally:
            with self._lock:
                self._bells[node].discard(bell)
                if not self._bells[node]:
                    del self._bells[node]

    def _has_news(self, node: str, version: int) -> bool:
        with self._lock:
            asks = self._open.get(node, {}).values()
            unsent = any(ask.id not in self._sent for ask, _ in asks)
            return self._closed or self._versions.get(node, 0) > version or unsent


class _Bell:
    """Wakes one coroutine from any thread."""

    def __init__(self) -> None:
        self.event, self._loop = asyncio.Event(), asyncio.get_running_loop()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self.event.set)
