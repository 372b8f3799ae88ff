"""The HTTP API as one application: handlers, and every error as JSON that names a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.requests import ClientDisconnect

from plait.core.errors import InputError, PlaitError, shortened
from plait.core.version import __version__
from plait.live.protocol.wire import WireError
from plait.live.scheduler.errors import Conflict
from plait.live.service.http.api import Api, Json
from plait.live.service.http.auth import Denied
from plait.live.service.http.limits import CLIENT_GONE, BodyLimit
from plait.live.service.http.models import Invalid
from plait.live.service.http.openapi.describe import description
from plait.live.service.http.routes import admin, agents, cluster, costs, jobs, logs, reports, usage, what_if
from plait.live.service.logs import NoAnswer
from plait.live.service.what_if import Busy
from plait.live.service.worker import Stopped
from plait.live.store import NoRoom, StoreError

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def make_app(api: Api, pages: Callable[[ASGIApp], ASGIApp] | None = None) -> FastAPI:
    """The FastAPI application: all routes, and the answers to the errors that plait raises.

    `pages` makes the application for browsers from this one, which it calls; it answers under `/web/`.
    """
    app = FastAPI(title="plait", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.api = api
    _handle_errors(app)
    for part in (jobs, logs, usage, costs, cluster, what_if, admin, agents, reports):
        app.include_router(part.router)
    if pages is not None:
        app.mount("/web", pages(app))
        app.add_route("/", _to_pages, include_in_schema=False)
    app.add_middleware(BodyLimit, metrics=api.metrics)
    app.openapi = cache(partial(description, app))  # type: ignore[method-assign]
    text = cache(lambda: json.dumps(app.openapi()).encode())  # large, and anybody may read it again and again

    async def described(request: Request) -> Response:
        return Response(text(), media_type="application/json")

    app.add_route("/openapi.json", described, include_in_schema=False)
    return app


def make_agents_app(api: Api) -> FastAPI:
    """The application that answers agents alone, in an event loop of its own."""
    app = FastAPI(title="plait", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.api = api
    _handle_errors(app)
    app.include_router(agents.router)
    app.add_middleware(BodyLimit, metrics=api.metrics)
    return app


async def _to_pages(request: Request) -> Response:
    """A browser that opens the address of the service gets the pages."""
    return RedirectResponse("/web/", 307)


def problem(
    status: int, message: str, field: str | None = None, next_step: str | None = None, role: str | None = None
) -> Response:
    """An error as every client gets it; a client that gets one of the role `standby` looks for the leader."""
    error: dict[str, Any] = {"message": shortened(message)}
    if field:
        error["field"] = field
    if next_step:
        error["next"] = next_step
    return Json({"error": error, "role": role} if role else {"error": error}, status_code=status)


def _handle_errors(app: FastAPI) -> None:
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    def add(kind: type[Exception], answer: Callable[[Any], Response]) -> None:
        async def handler(request: Request, error: Exception) -> Response:
            return answer(error)

        app.add_exception_handler(kind, handler)

    def validation(error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return problem(422, str(first["msg"]), ".".join(str(p) for p in first["loc"][1:]) or None)

    add(Denied, lambda e: problem(e.status, str(e), next_step=e.next_step))
    add(Invalid, lambda e: problem(e.status, str(e), e.field))
    add(LookupError, lambda e: problem(404, str(e.args[0]) if e.args else "not there"))
    add(Conflict, lambda e: problem(409, str(e)))
    add(NoRoom, lambda e: problem(507, str(e), next_step="free some space there; the service goes on by itself"))
    add(StoreError, lambda e: problem(500, str(e)))
    add(InputError, lambda e: problem(422, str(e)))
    add(WireError, lambda e: problem(422, str(e)))
    add(NoAnswer, lambda e: problem(503, str(e), next_step="plait nodes"))
    add(Busy, lambda e: problem(503, str(e), next_step="ask again in a few seconds"))
    add(Stopped, lambda e: problem(503, str(e), next_step="ask the leader, or again in a few seconds", role="standby"))
    add(PlaitError, lambda e: problem(500, str(e)))
    add(RequestValidationError, validation)
    add(ClientDisconnect, lambda e: Response(status_code=CLIENT_GONE))
    add(HTTPException, lambda e: problem(e.status_code, str(e.detail)))
    add(Exception, lambda e: problem(500, f"{type(e).__name__}; the service's log has more"))


__all__ = ["Api", "make_app", "problem"]
