"""Requests that are too large are refused before they are read, and every answer is counted."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from plait.live.service.metrics import Metrics

#: Bytes of a body at most; agents may send more, as replies hold parts of logs.
LARGEST_BODY, LARGEST_REPORT = 1_000_000, 16_000_000
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_LOG = logging.getLogger("plait.http")


class TooLarge(Exception):
    """The body has more bytes than allowed."""


class BodyLimit:
    """Middleware: bodies are counted as they come, whatever their header says."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Before this application."""
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
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
        self._count(scope, status, time.perf_counter() - began, agent)

    def _count(self, scope: Scope, status: int, taken_s: float, agent: bool) -> None:
        # Whoever asks may invent methods; each would be remembered for ever.
        self.metrics.requests.labels(scope["method"] if scope["method"] in METHODS else "other", str(status)).inc()
        if agent:
            return
        self.metrics.seconds.observe(taken_s)
        if scope["method"] != "GET" or status >= 400:
            facts = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(taken_s, 4)}
            _LOG.log(logging.ERROR if status >= 500 else logging.INFO, "request", extra={"facts": facts})


def _limited(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise TooLarge
        return message

    return counted


async def _refuse(send: Any, limit: int) -> None:
    body = json.dumps({"error": {"message": f"the body has more than {limit:,} bytes"}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
