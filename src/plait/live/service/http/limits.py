"""Requests that are too large, or too slow, are refused before they are read; every answer is counted.

While the store cannot be written, every answer has a header with the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

from plait.live.protocol import not_current

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from plait.live.service.http.metrics import Metrics
    from plait.live.service.worker import Worker

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
