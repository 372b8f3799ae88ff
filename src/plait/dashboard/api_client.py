"""Requests to the HTTP API within its own process, for whom, and the answers that viewers share."""

import asyncio
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.live.protocol import not_current


class Refused(Exception):
    """The API refused a request: its status, its sentence, and the remedy."""

    def __init__(self, status: int, message: str, next_step: str | None = None, field: str | None = None) -> None:
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
                headers = message["headers"]
                value = next((value for name, value in headers if name == not_current.HEADER.encode()), b"")
                self.not_current = not_current.sentence_of(value.decode("latin-1"))
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        text = b"".join(parts)
        try:
            value = json.loads(text or b"null")
        except ValueError:
            value = None
        if status < 400:
            return value
        error = value.get("error") if isinstance(value, dict) else None
        fields = error if isinstance(error, dict) else {}
        message = str(fields.get("message") or f"the service answered {status}")
        raise Refused(status, message, fields.get("next"), fields.get("field"))

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


# Who looks at the pages: sessions of browsers, one-time codes of login links, and tokens of forms.
#
# The cookie of a session names it and is no token of the API: tokens stay in the memory of the service. A restart of
# the service therefore ends all sessions, and `plait web` begins the next one.

#: Seconds after its last use at which a session ends, and for which the code of a login link counts.
SESSION_S, CODE_S = 12 * 3600.0, 120.0
#: Sessions and codes that are kept at most; the oldest go first.
MOST = 1000


@dataclass
class Session:
    """One browser that has shown a token: whose it is, and what its forms have to send."""

    secret: str
    user: str
    role: str
    project: str
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    used_s: float = 0.0

    @property
    def may_submit(self) -> bool:
        """Whether it may submit jobs and change its own."""
        return self.role in ("admin", "user")

    @property
    def may_manage(self) -> bool:
        """Whether it may change nodes and the policy."""
        return self.role == "admin"

    def sent(self, token: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(token.encode(), self.csrf.encode())


class Sessions:
    """All sessions and codes of one service."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """No session yet. `clock`: seconds."""
        self._clock = clock
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._codes: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def begin(self, session: Session) -> str:
        """The name of a new session, for its cookie."""
        name = secrets.token_urlsafe(32)
        session.used_s = self._clock()
        self._open[name] = session
        while len(self._open) > MOST:
            self._open.popitem(last=False)
        return name

    def find(self, name: str) -> Session | None:
        """The session of a cookie, if it has not ended."""
        session = self._open.get(name)
        if session is None:
            return None
        if self._clock() - session.used_s > SESSION_S:
            del self._open[name]
            return None
        session.used_s = self._clock()
        self._open.move_to_end(name)
        return session

    def end(self, name: str) -> None:
        """Log out."""
        self._open.pop(name, None)

    def code_for(self, secret: str) -> str:
        """A code that stands for this token once, for a short time: links end up in histories, codes are dead then."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = (secret, self._clock() + CODE_S)
        while len(self._codes) > MOST:
            self._codes.popitem(last=False)
        return code

    def redeem(self, code: str) -> str | None:
        """The token that a code stands for; None if it was used or is too old."""
        secret, until_s = self._codes.pop(code, ("", 0.0))
        return secret if secret and self._clock() < until_s else None


# Answers of the API that several who look at the same time share, for a moment each.

#: Answers that are kept at most.
MOST_ANSWERS = 200
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
            while len(self._known) > MOST_ANSWERS:
                del self._known[next(iter(self._known))]
        return await asyncio.shield(found)


def _audience(session: Session) -> tuple[str, ...]:
    """Whose answers are the same: administrators see more than viewers, and users only what is theirs."""
    return (session.role, session.user, session.project) if session.role == "user" else (session.role,)
