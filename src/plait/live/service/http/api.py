"""Shared by all handlers of the HTTP API: authentication, the request's body, rows of jobs, answers as JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from fastapi import Request
from fastapi.responses import Response
from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as to_json_bytes

from plait.control.prices import Prices
from plait.live.layout import job_name, job_number
from plait.live.service.costs import Costs
from plait.live.service.http import serializers
from plait.live.service.http.auth import Tokens, need, only_of
from plait.live.service.http.metrics import Metrics
from plait.live.service.http.models import Invalid
from plait.live.service.logs import Mailbox
from plait.live.service.usage.recorder import UsageRecorder
from plait.live.service.what_if import WhatIfService
from plait.live.service.worker import Worker
from plait.live.store import Store, Token


class Json(Response):
    """Plain values as JSON, without a detour through models."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact JSON; NaN and infinities become null, lone surrogates a question mark."""
        try:
            return to_json_bytes(content, inf_nan_mode="null")
        except PydanticSerializationError:
            return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


class Api:
    """State and helpers of all handlers."""

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
        self.costs = Costs(store, self.usage.usages, prices)
        self.closing = asyncio.Event()

    def who(self, request: Request, *roles: str) -> Token:
        """Whose request it is, if they may; raises `Denied`."""
        token = self.tokens.who(request.headers.get("authorization"))
        need(token, *(roles or ("admin", "user", "viewer")))
        return token

    async def body(self, request: Request) -> Any:
        """The request's JSON; raises `Invalid`."""
        try:
            return json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the body is not JSON: {error}", status=400) from None

    async def row(self, name: str, token: Token) -> dict[str, Any]:
        """The job of this id, or the one of this name among jobs that `token` may see; raises LookupError.

        Of several with the same name the unfinished one, otherwise the newest; jobs of the token's user come first.
        """
        number = job_number(name) if len(name) <= 20 else None
        if number is None and name:
            number = await asyncio.to_thread(self._named, name, token)
        row = None if number is None else await asyncio.to_thread(self.store.job, number)
        if row is None:
            raise LookupError(f"no job {name[:40]!r}; `plait ls` lists the present ones")
        return row

    def _named(self, name: str, token: Token) -> int | None:
        ended = sorted(serializers.FINAL)
        found = self.store.jobs_named(name, ended, token.user)
        if not found and only_of(token) is None:
            found = self.store.jobs_named(name, ended, None)
        alive = [job_name(one["number"]) for one in found if one["state"] not in ended]
        if len(alive) > 1:
            raise LookupError(
                f"{len(alive)} jobs named {name[:40]!r} have not ended: {', '.join(alive)}; name one of them by its id"
            )
        return found[0]["number"] if found else None

    async def live(self, number: int) -> dict[str, Any]:
        """Fields of a job that only memory has."""
        found: dict[int, dict[str, Any]] = await self.worker.look(lambda engine, now_s: engine.fields([number]))
        return found.get(number, {})


def api_of(request: Request) -> Api:
    """The service that a request came to."""
    return cast("Api", request.app.state.api)
