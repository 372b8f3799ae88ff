"""The pages as one application: its routes, its files, and the headers of every answer."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from plait.dashboard.pages import events, jobs, login, nodes, overview, policy, submission
from plait.dashboard.web import Web

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Nothing is loaded from elsewhere, no script and no style stands in a page, and no other site may frame it.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
ROUTES = [
    Route("/", overview.overview), Route("/live", overview.stream),
    Route("/jobs", jobs.list_jobs), Route("/jobs/{job}", jobs.show_job),
    Route("/jobs/{job}/change", jobs.ask_changes), Route("/jobs/{job}/what-if", submission.like_it),
    Route("/jobs/{job}/log", events.text), Route("/jobs/{job}/tail", events.tail),
    Route("/submit", submission.new_job), Route("/what-if", policy.what_if), Route("/queue", overview.show_queue),
    Route("/nodes", nodes.list_nodes), Route("/nodes/{node}", nodes.show_node),
    Route("/costs", overview.show_costs),
    Route("/events", events.list_events), Route("/policy", policy.show_policy), Route("/login", login.ask),
]  # fmt: skip
ACTIONS = {
    "/login": login.log_in, "/logout": login.log_out, "/codes": login.make_code, "/submit": submission.submit,
    "/submit/what-if": submission.what_if,
    "/jobs/several": jobs.several, "/jobs/{job}/cancel": jobs.cancel, "/jobs/{job}/requeue": jobs.requeue,
    "/jobs/{job}/clone": jobs.clone, "/jobs/{job}/hold": jobs.hold, "/jobs/{job}/change": jobs.change,
    "/nodes/{node}/drain": nodes.drain, "/nodes/{node}/resume": nodes.resume,
    "/reservations": nodes.reserve, "/reservations/{reservation}/cancel": nodes.cancel_reservation,
    "/policy": policy.set_policy,
}  # fmt: skip
ROUTES += [Route(path, action, methods=["POST"]) for path, action in ACTIONS.items()]


def make(api: ASGIApp) -> ASGIApp:
    """The pages over the application `api`, to be mounted under `/web`."""
    web = Web(api)
    assets = _assets()
    web.templates.globals["asset"] = {name: f"/web/assets/{name}?{mark}" for name, (_, mark) in assets.items()}

    async def asset(request: Request) -> Response:
        content, _ = assets.get(request.path_params["name"], (None, ""))
        if content is None:
            return Response("not there", 404)
        kind = TYPES[request.path_params["name"].rpartition(".")[2]]
        return Response(content, media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # for logs alone: the client has left

    app = Starlette(routes=[Route("/assets/{name}", asset), *ROUTES], exception_handlers={ClientDisconnect: gone})
    app.state.web = web
    web.templates.globals["pages"] = {route.path for route in app.routes if isinstance(route, Route)}
    return _with_headers(app)


def _assets() -> dict[str, tuple[bytes, str]]:
    """Content and mark of each file; the mark changes with the content, so browsers may keep it for ever."""
    found = {}
    for one in files("plait.dashboard").joinpath("assets").iterdir():
        if one.name.rpartition(".")[2] in TYPES:
            content = one.read_bytes()
            found[one.name] = content, hashlib.sha256(content).hexdigest()[:12]
    return found


def _with_headers(app: ASGIApp) -> ASGIApp:
    """Add `HEADERS` to every answer that has none of its own of the same name; no cache keeps pages."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                own = {name for name, _ in headers}
                headers += [
                    (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own
                ]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        await app(scope, receive, with_headers)

    return answer
