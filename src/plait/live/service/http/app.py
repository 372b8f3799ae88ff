"""The HTTP API as one application: handlers, and every error as JSON that names a remedy."""

import json
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any

from starlette import routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from plait.core.errors import Conflict, InputError, PlaitError, shortened
from plait.live.protocol.wire import WireError
from plait.live.service.http.api import Api, Json, Route
from plait.live.service.http.auth import Denied
from plait.live.service.http.bodies import Invalid
from plait.live.service.http.limits import CLIENT_GONE, BodyLimit
from plait.live.service.http.openapi import description
from plait.live.service.http.routes import admin, cluster, jobs, logs
from plait.live.service.logs import NoAnswer
from plait.live.service.what_if import Busy
from plait.live.service.worker import Stopped
from plait.live.store import NoRoom, StoreError

#: All routes of users, in the order of the description.
ROUTES = (
    *jobs.ROUTES,
    *logs.ROUTES,
    *cluster.OF_JOBS,
    *cluster.ROUTES,
    *jobs.WHAT_IF,
    *admin.ROUTES,
    *admin.OF_AGENTS,
)


def make_app(api: Api, pages: Callable[[ASGIApp], ASGIApp] | None = None) -> Starlette:
    """The application: all routes, and the answers to the errors that plait raises.

    `pages` makes the application for browsers from this one, which it calls; it answers under `/web/`.
    """
    app = _application(api, ROUTES)
    if pages is not None:
        app.mount("/web", pages(app))
        app.add_route("/", _to_pages)
    app.add_route("/openapi.json", _described)
    return app


def make_agents_app(api: Api) -> Starlette:
    """The application that answers agents alone, in an event loop of its own."""
    return _application(api, admin.OF_AGENTS)


def _application(api: Api, routes: Iterable[Route]) -> Starlette:
    paths = [routing.Route(one.path, one.__call__, methods=[one.method]) for one in routes]
    limit = Middleware(BodyLimit, metrics=api.metrics)
    app = Starlette(routes=paths, middleware=[limit], exception_handlers=_error_handlers())
    app.state.api = api
    return app


@cache
def _description() -> bytes:
    """The description as text: it is large, and anybody may read it again and again."""
    return json.dumps(description(ROUTES)).encode()


async def _described(request: Request) -> Response:
    return Response(_description(), media_type="application/json")


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


def _error_handlers() -> dict[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    answers: dict[Any, Callable[[Any], Response]] = {
        Denied: lambda e: problem(e.status, str(e), next_step=e.next_step),
        Invalid: lambda e: problem(e.status, str(e), e.field),
        LookupError: lambda e: problem(404, str(e.args[0]) if e.args else "not there"),
        Conflict: lambda e: problem(409, str(e)),
        NoRoom: lambda e: problem(507, str(e), next_step="free some space there; the service goes on by itself"),
        StoreError: lambda e: problem(500, str(e)),
        InputError: lambda e: problem(422, str(e)),
        WireError: lambda e: problem(422, str(e)),
        NoAnswer: lambda e: problem(503, str(e), next_step="plait nodes"),
        Busy: lambda e: problem(503, str(e), next_step="ask again in a few seconds"),
        Stopped: lambda e: problem(503, str(e), next_step="ask the leader, or again in a few seconds", role="standby"),
        PlaitError: lambda e: problem(500, str(e)),
        ClientDisconnect: lambda e: Response(status_code=CLIENT_GONE),
        HTTPException: lambda e: problem(e.status_code, str(e.detail)),
        Exception: lambda e: problem(500, f"{type(e).__name__}; the service's log has more"),
    }

    def handler(answer: Callable[[Any], Response]) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def handle(request: Request, error: Exception) -> Response:
            return answer(error)

        return handle

    return {kind: handler(answer) for kind, answer in answers.items()}
