"""Requests to the HTTP API within its own process: the same checks and answers as over the network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from plait.live.protocol import not_current

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Refused(Exception):
    """The API refused a request: its status, its sentence, and the remedy."""

    def __init__(self, status: int, message: str, next_step: str | None = None, field: str | None = None) -> None:
        """From an answer of 400 and above."""
        super().__init__(message)
        self.status, self.next_step, self.field = status, next_step, field


class ApiClient:
    """Sends requests to the API `app` with the token `secret`."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app, self._secret = app, secret
        #: Why the last answer was not current, as a sentence; empty if it was.
        self.not_current = ""

    async def get(self, path: str, **query: Any) -> Any:
        """The answer to a GET; raises `Refused`."""
        return await self.ask("GET", path, query=query)

    async def ask(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """The answer to a request as plain values; raises `Refused`. Values of None in `query` are left out."""
        content = b"" if body is None else json.dumps(body).encode()
        scope = self._scope(method, path, query or {}, len(content))
        sent, status, parts = False, 500, []

        async def receive() -> Message:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._age(message["headers"])
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return _answer(status, b"".join(parts))

    def _age(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        value = next((value for name, value in headers if name == not_current.HEADER.encode()), b"")
        self.not_current = not_current.sentence_of(value.decode("latin-1"))

    async def pass_on(self, path: str, query: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Let the API answer the browser's request for a page, as it comes: for streams."""
        await self._app(self._scope("GET", path, query, 0), receive, send)

    def _scope(self, method: str, path: str, query: Mapping[str, Any], length: int) -> Scope:
        given = {name: value for name, value in query.items() if value is not None}
        headers = [(b"authorization", f"Bearer {self._secret}".encode("latin-1", "replace"))]
        if length:
            headers += [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": quote(path).encode(), "root_path": "", "headers": headers,
            "query_string": urlencode(given, doseq=True).encode(), "client": None, "server": None,
        }  # fmt: skip


def segment(name: str) -> str:
    """A name as one part of a path that the API receives decoded; a slash cannot be in one.

    >>> segment("j-1"), segment("../state")
    ('j-1', '..%2Fstate')
    """
    return name.replace("/", "%2F")


def _answer(status: int, content: bytes) -> Any:
    try:
        value = json.loads(content or b"null")
    except ValueError:
        value = None
    if status < 400:
        return value
    error = value.get("error") if isinstance(value, dict) else None
    said = error if isinstance(error, dict) else {}
    message = str(said.get("message") or f"the service answered {status}")
    raise Refused(status, message, said.get("next"), said.get("field"))
