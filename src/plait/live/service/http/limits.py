"""Requests that are too large, or too slow, are refused before they are read; every answer is counted.

While the store cannot be written, every answer has a header with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from plait.live.protocol import not_current
from plait.live.service.http.connections import KNOWN, STRANGER, Connection, Connections, Surplus, Turn

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from plait.live.service.http.metrics import Metrics
    from plait.live.service.worker import Worker
    from plait.live.store.leader_lease import LeaderLease

#: Bytes of a body at most; agents may send more, as replies hold parts of logs.
LARGEST_BODY, LARGEST_REPORT = 1_000_000, 16_000_000
#: Seconds for a body, and for each further million bytes of it.
BODY_S = 30.0
#: The status, for logs and counters alone, of a request whose client left before all of it had come.
CLIENT_GONE = 499
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_LOG = logging.getLogger("plait.http")


class TooLarge(Exception):
    """The body has more bytes than allowed."""


class TooSlow(Exception):
    """The body does not come to its end."""


class BodyLimit:
    """Middleware: bodies are counted as they arrive, whatever their header claims."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        agent = scope["path"].startswith("/agent/")
        limit = LARGEST_REPORT if agent else LARGEST_BODY
        began, status = time.perf_counter(), 0

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = _with_age(message, self.metrics.worker)
            await send(message)

        length = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if not length.isdigit() or int(length) > limit:
            await _refuse(counted_send, limit)
        else:
            try:
                await self.app(scope, _limited(receive, limit), counted_send)
            except TooLarge:
                if not status:
                    await _refuse(counted_send, limit)
            except TooSlow:
                if not status:
                    late = f"the body did not come within {BODY_S:g} s and as much for each MB"
                    await answer_at_once(counted_send, 408, {"error": {"message": late}})
        self._count(scope, status, time.perf_counter() - began, agent)

    def _count(self, scope: Scope, status: int, taken_s: float, agent: bool) -> None:
        # Clients may invent methods; each would be remembered for ever.
        self.metrics.requests.labels(scope["method"] if scope["method"] in METHODS else "other", str(status)).inc()
        if agent:
            return
        self.metrics.seconds.observe(taken_s)
        if scope["method"] != "GET" or status >= 400:
            facts = {
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "seconds": round(taken_s, 4),
            }
            _LOG.log(logging.ERROR if status >= 500 else logging.INFO, "request", extra={"facts": facts})


def _with_age(message: Message, worker: Worker) -> Message:
    """The start of an answer with what is wrong with the store, if anything is."""
    if not worker.trouble:
        return message
    value = not_current.header_value(worker.trouble, max(worker.clock() - worker.stored_s, 0.0))
    header = (not_current.HEADER.encode(), value.encode("ascii"))
    return {**message, "headers": [*message.get("headers", ()), header]}


def _limited(receive: Receive, limit: int) -> Receive:
    seen, whole, began = 0, False, time.monotonic()

    async def counted() -> Message:
        nonlocal seen, whole
        if whole:  # what comes now is that the client has gone
            return await receive()
        left_s = began + BODY_S * (1 + seen / 1e6) - time.monotonic()
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                message = await receive()
        except TimeoutError:
            raise TooSlow from None
        whole = not message.get("more_body", False)
        seen += len(message.get("body", b""))
        if seen > limit:
            raise TooLarge
        return message

    return counted


async def _refuse(send: Any, limit: int) -> None:
    await answer_at_once(send, 413, {"error": {"message": f"the body has more than {limit:,} bytes"}})


async def answer_at_once(send: Any, status: int, content: dict[str, Any]) -> None:
    """Send a whole answer, as JSON, and close the connection: nothing more is read from it."""
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# The application at a service's address: the API while it leads, otherwise the leader's address.
#
# A leader whose lease is not renewed answers nothing: the lease is checked just before each answer is sent, since the
# process may have been paused since the request came.

#: Whether this service leads: 200 if it does, 503 if it stands by. Needs no token.
HEALTH = "/v1/health"


class Gateway:
    """The application in front of all others."""

    def __init__(self, lease: LeaderLease | None) -> None:
        """Stands by until there is an `app`; without a lease there is no leader to stand by for."""
        self.lease, self.app = lease, None

    app: ASGIApp | None
    #: Rank and holder of a header `Authorization`, where that is known; see `connections`.
    rank: Callable[[str], tuple[int, str]] = staticmethod(lambda header: (STRANGER, ""))
    connections: Connections | None = None
    #: Whether a standby has loaded all that leading needs.
    prepared = False

    @property
    def leads(self) -> bool:
        """Whether questions are answered now."""
        return self.app is not None and (self.lease is None or self.lease.holds())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        one: Connection | None = scope.get("state", {}).pop("connection", None)
        if one is None or self.connections is None:
            await self._answer(scope, receive, send)
            return
        try:
            if one.rank == STRANGER and self.leads:
                header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
                self.connections.know(one, *self.rank(header.decode("latin-1")))
        except Surplus as error:
            await _refuse_surplus(send, error)
            return
        if one.rank == STRANGER:  # the handler that accepts a browser's cookie calls `known` with its user
            scope.setdefault("state", {})["known"] = partial(self._known, one)
        async with self.connections.turn(one) as turn:
            with _Streams(self.connections, turn, send) as streams:
                await self._answer(scope, receive, streams.send)

    def _known(self, one: Connection, user: str) -> None:
        """Count the connection as known: a logged-in user requested a page."""
        with contextlib.suppress(Surplus):  # it stays a stranger's
            self.connections.know(one, KNOWN, f"web {user}")  # type: ignore[union-attr]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTH:
            role = "leader" if self.leads else "standby"
            said = {"role": role, "prepared": self.prepared or self.leads, **self._who()}
            await answer_at_once(send, 200 if self.leads else 503, said)
        elif self.app is None or not self.leads:
            await self._refuse(send)
        elif self.lease is None:
            await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, self._guarded(send))

    def _guarded(self, send: Send) -> Send:
        refused = False

        async def guarded(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and not self.leads:
                refused = True
                await self._refuse(send)
            if not refused:
                await send(message)

        return guarded

    def _who(self) -> dict[str, Any]:
        if self.lease is None:
            return {}
        if self.leads:
            return {"leader": self.lease.address, "term": self.lease.term}
        seen = self.lease.seen
        return {"leader": None, "term": None} if seen is None else {"leader": seen.url, "term": seen.term}

    async def _refuse(self, send: Send) -> None:
        who = self._who()
        if self.app is not None:
            message = "this service could not renew its lease and may not lead any more"
        elif who["leader"]:
            message = f"this service stands by; the leader is at {who['leader']}"
        else:
            message = "this service stands by, and none leads just now"
        error = {"message": message, "next": "ask the leader, or again in a few seconds"}
        await answer_at_once(send, 503, {"error": error, "role": "standby", **who})


class _Streams:
    """Counts an answer that is a stream; one too many is refused, and what the application sends then is dropped."""

    def __init__(self, connections: Connections, turn: Turn, send: Send) -> None:
        self._connections, self._turn, self._send, self._refused = connections, turn, send, False
        self._end: Callable[[], None] = lambda: None

    def __enter__(self) -> _Streams:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_stream(message):
            try:
                self._end = self._connections.begin_stream(self._turn)
            except Surplus as error:
                self._refused = True
                await _refuse_surplus(self._send, error)  # the application sees that the client has gone
        if not self._refused:
            await self._send(message)


def _is_stream(message: Message) -> bool:
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message.get("headers", ())
    )


async def _refuse_surplus(send: Send, error: Surplus) -> None:
    content = {"message": f"{error}, by the same token or address", "next": "end some of them, then try again"}
    await answer_at_once(send, 429, {"error": content})
