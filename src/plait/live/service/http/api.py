"""Routes of the HTTP API, and the common parts of their handlers: authentication, checked requests, rows of jobs.

    ROUTES = Routes("jobs")

    @ROUTES.get("/v1/jobs", list[JobRow], query=ListJobs)
    async def list_jobs(call: Call, query: ListJobs) -> Response: ...

A handler gets the call, then its checked query and its checked body, where the route has them. It returns a value of
the route's answer or a response, and raises the errors that `plait.live.service.http.app` answers. The description of
the API is made of the routes: `plait.live.service.http.openapi`.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_origin, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plait.control.prices import Prices
from plait.core.errors import Conflict
from plait.core.words import counted
from plait.live.api import encoded
from plait.live.api.jobs import FINAL, JobRow
from plait.live.layout import array_index, job_name, job_number
from plait.live.service.costs import Billing
from plait.live.service.http.auth import Tokens, need, only_of, owns
from plait.live.service.http.bodies import Invalid, Schema, parse
from plait.live.service.http.metrics import Metrics
from plait.live.service.logs import Mailbox
from plait.live.service.usage import UsageRecorder
from plait.live.service.what_if import WhatIfService
from plait.live.service.worker import Worker
from plait.live.store import Store, Token
from plait.live.store.schema import StoredJob

#: Roles that may read facts about the whole cluster.
EVERYBODY = ("admin", "user", "viewer")
#: The header that lets a request be sent again, and its form.
KEY = "Idempotency-Key"
_KEY = re.compile(r"[!-~]{1,100}")
T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


class Json(Response):
    """A value of the API as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the value; see `plait.live.api.encoded`."""
        return encoded(content)


class Api:
    """Parts and state of one service."""

    def __init__(
        self, store: Store, worker: Worker, tokens: Tokens, mailbox: Mailbox, begin: float,
        prices: Prices | None = None, backups: Path | None = None,
    ) -> None:  # fmt: skip
        """Parts of one service; `prices`: of GPU-hours, None without any; `backups`: folder, None: the home's."""
        self.backups = backups or worker.engine.layout.home / "backups"
        self.store, self.worker, self.tokens, self.mailbox, self.begin = store, worker, tokens, mailbox, begin
        self.metrics = Metrics(worker)
        self.what_if = WhatIfService(store)
        self.usage = UsageRecorder(worker, worker.engine.layout.home)
        self.costs = Billing(store, self.usage.usages, prices)
        self.closing = asyncio.Event()

    async def stored(self, name: str, token: Token) -> StoredJob:
        """The job of this id, or the one of this name among jobs that `token` may see; raises LookupError.

        Of several with the same name the unfinished one, otherwise the newest; jobs of the token's user come first.
        """
        number = job_number(name) if len(name) <= 20 else None
        if number is None and (member := array_index(name)) is not None:
            array, index = member
            numbers = (await asyncio.to_thread(self.store.members, [array]))[array]
            if index is None and numbers:
                raise Conflict(
                    f"{name} is an array of {counted(len(numbers), 'job')}; name one of them, as plait ls --array "
                    f"{name} lists them"
                )
            number = None if index is None else numbers.get(index)
        elif number is None and name:
            number = await asyncio.to_thread(self._named, name, token)
        job = None if number is None else await asyncio.to_thread(self.store.job, number, self.worker.clock())
        if job is None:
            hint = f"job {name} is j-{name}, and " if name.isascii() and name.isdigit() and len(name) < 16 else ""
            raise LookupError(f"no job {name[:40]!r}; {hint}`plait ls` lists the present ones")
        return job

    def _named(self, name: str, token: Token) -> int | None:
        found = self.store.jobs_named(name, FINAL, token.user)
        if not found and only_of(token) is None:
            found = self.store.jobs_named(name, FINAL, None)
        alive = [job_name(one["number"]) for one in found if one["state"] not in FINAL]
        if len(alive) > 1:
            raise LookupError(
                f"{len(alive)} jobs named {name[:40]!r} have not ended: {', '.join(alive)}; name one of them by its id"
            )
        return found[0]["number"] if found else None

    async def live(self, number: int) -> JobRow | None:
        """The row of a job that has not ended, as it is now; None for others."""
        return (await self.worker.look(lambda engine, now_s: engine.jobs([number], now_s))).get(number)


@dataclass(frozen=True)
class Call:
    """A request of somebody who may make it."""

    api: Api
    request: Request
    token: Token

    @property
    def path(self) -> dict[str, str]:
        """Parts of the path by name."""
        return self.request.path_params

    @property
    def key(self) -> str | None:
        """The key under which the request may be repeated; raises `Invalid` for an impossible one."""
        key = self.request.headers.get(KEY)
        if key is not None and not _KEY.fullmatch(key):
            raise Invalid("needs 1 to 100 visible ASCII characters", KEY)
        return key

    @property
    def array(self) -> str | None:
        """The array that the path names; None for a single job."""
        member = array_index(self.path["job"])
        return self.path["job"] if member is not None and member[1] is None else None

    def key_of(self, number: int) -> str | None:
        """The key of the change of one job of an array, which has the key of the request."""
        return None if self.key is None else f"{self.key} {number}"

    async def members(self, array: str) -> list[int]:
        """Numbers of the jobs of an array, which may be changed; `LookupError` for an unknown one."""
        numbers = sorted((await asyncio.to_thread(self.api.store.members, [array]))[array].values())
        job = await asyncio.to_thread(self.api.store.job, numbers[0]) if numbers else None
        if job is None:
            raise LookupError(f"no array {array}; `plait ls` lists the present ones")
        owns(self.token, array, job.row.user, change=True)
        return numbers

    async def job(self, *, change: bool = False) -> StoredJob:
        """The job that the path names; raises `Denied` if it may not be seen, or with `change` not be changed."""
        job = await self.api.stored(self.path["job"], self.token)
        owns(self.token, job.row.id, job.row.user, change=change)
        return job


@dataclass(frozen=True)
class Route:
    """A request that the service answers.

    answer     type of the JSON; None for none
    query      struct of the parameters; the docstrings of its fields describe them
    body       type of the JSON that is sent, or several, or a schema; may be left out unless `body_required`
    roles      may send it, users only for their `own` jobs
    conflict   description of the answer 409
    texts      other media types and their contents
    key        whether it may be repeated under a key
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    tag: str
    answer: Any
    query: type[msgspec.Struct] | None = None
    body: Any = None
    body_required: bool = True
    roles: tuple[str, ...] = EVERYBODY
    own: bool = False
    conflict: str = ""
    texts: tuple[tuple[str, str], ...] = ()
    key: bool = False

    async def __call__(self, request: Request) -> Response:
        api = cast("Api", request.app.state.api)
        header = request.headers.get("authorization")
        if "agent" in self.roles:
            known = api.tokens.knows(header)
            token = api.tokens.agent(header) if known else await asyncio.to_thread(api.tokens.agent, header)
        else:
            token = api.tokens.who(header)
            need(token, *self.roles)
        given: list[Any] = []
        if self.query is not None:
            # Parameters that the route does not have are ignored.
            sent, hints = request.query_params, get_type_hints(self.query)
            values = {
                name: sent.getlist(name) if get_origin(hint) is list else sent[name]
                for name, hint in hints.items()
                if name in sent
            }
            given.append(parse(self.query, values, strict=False))
        if self.body is not None:
            given.append(_body(self.body, await request.body(), required=self.body_required))
        found = await self.handler(Call(api, request, token), *given)
        return found if isinstance(found, Response) else Json(found)


class Routes(list[Route]):
    """Routes with a common tag of the description; see the module."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.tag = tag

    def route(self, method: str, path: str, answer: Any, **more: Any) -> Callable[[Handler], Handler]:
        """A decorator that makes a function the handler of a route; `more` are fields of `Route`."""

        def add(handler: Handler) -> Handler:
            self.append(Route(method, path, handler, self.tag, answer, **more))
            return handler

        return add

    def get(self, path: str, answer: Any, **more: Any) -> Callable[[Handler], Handler]:
        """A route that changes nothing."""
        return self.route("GET", path, answer, **more)

    def post(self, path: str, answer: Any, **more: Any) -> Callable[[Handler], Handler]:
        """A route that makes or changes something."""
        return self.route("POST", path, answer, **more)


def _body(kind: Any, content: bytes, *, required: bool) -> Any:
    """What a request sends, as this type; raises `Invalid`."""
    if isinstance(kind, Schema) and kind.raw:
        return kind.read(content)
    try:
        data = json.loads(content) if content or required else {}
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}", status=400) from None
    if b"\\u" in content:
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # no answer could contain it
            raise Invalid(f"has half a character, {error.object[error.start]!r}; write the whole of it") from None
    return parse(kind, data)
