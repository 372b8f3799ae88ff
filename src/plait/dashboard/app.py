"""The pages as one application: its routes, its files, the headers of every answer, log in and log out."""

import hashlib
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.dashboard.api_client import SESSION_S, Refused
from plait.dashboard.pages import cluster, jobs, overview, submission
from plait.dashboard.web import ROOT, Viewer, Web, cookie_name, done, form_of, from_here, sends, ticked, web_of

_OLD = "this link was used, or is older than two minutes; make another one with: plait web"


async def ask(request: Request) -> Response:
    """The page with the form for a token; with `?code=` the link of `plait web`, which counts once."""
    code = request.query_params.get("code")
    if code is None:
        return _form(request, "", request.query_params.get("next", ""))
    secret = web_of(request).sessions.redeem(code)
    return _form(request, _OLD, "", 401) if secret is None else await _begin(request, secret, "")


async def log_in(request: Request) -> Response:
    """A token came from the form."""
    if not from_here(request):
        return _form(request, "this form was sent from another site", "", 403)
    try:
        form = await form_of(request)
    except Refused as error:
        return _form(request, str(error), "", error.status)
    return await _begin(request, form.get("token", "").strip(), form.get("next", ""))


async def make_code(request: Request) -> Response:
    """For `plait web`: a code for the holder of a token in `Authorization: Bearer`."""
    web = web_of(request)
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    try:
        if kind.lower() != "bearer" or not secret.strip():
            raise Refused(401, "no token; send it as Authorization: Bearer TOKEN", "plait token new")
        await web.look_up(secret.strip())
    except Refused as error:
        return JSONResponse({"error": {"message": str(error), "next": error.next_step}}, error.status)
    return JSONResponse({"path": f"{ROOT}/login?code={web.sessions.code_for(secret.strip())}"})


async def _begin(request: Request, secret: str, target: str) -> Response:
    web = web_of(request)
    try:
        session = await web.look_up(secret)
    except Refused as error:
        return _form(request, str(error), target, error.status)
    here = target if target.startswith(f"{ROOT}/") and "\\" not in target else f"{ROOT}/"
    answer = RedirectResponse(here, 303)
    answer.set_cookie(
        cookie_name(request), web.sessions.begin(session), max_age=int(SESSION_S), path=ROOT, httponly=True,
        samesite="strict", secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


def _form(request: Request, wrong: str, target: str, status: int = 200) -> Response:
    text = web_of(request).templates.get_template("login.html.j2").render(wrong=wrong, target=target)
    return HTMLResponse(text, status)


@done
async def log_out(viewer: Viewer, form: dict[str, str]) -> str:
    """End the session of this browser."""
    viewer.web.sessions.end(viewer.request.cookies.get(cookie_name(viewer.request), ""))
    return f"{ROOT}/login"


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
    Route("/jobs/{job}/log", cluster.text), Route("/jobs/{job}/tail", cluster.tail),
    Route("/submit", submission.new_job), Route("/what-if", cluster.what_if), Route("/queue", overview.show_queue),
    Route("/nodes", cluster.list_nodes), Route("/nodes/{node}", cluster.show_node),
    Route("/costs", overview.show_costs),
    Route("/events", cluster.list_events), Route("/policy", cluster.show_policy), Route("/login", ask),
]  # fmt: skip
ACTIONS = {
    "/login": log_in, "/logout": log_out, "/codes": make_code, "/submit": submission.submit,
    "/submit/what-if": submission.what_if,
    "/jobs/several": jobs.several, "/jobs/{job}/clone": jobs.clone, "/jobs/{job}/change": jobs.change,
    "/jobs/{job}/cancel": sends("DELETE", "/v1/jobs/{job}", "/jobs/{job}"),
    "/jobs/{job}/requeue": sends("POST", "/v1/jobs/{job}/requeue", "/jobs/{job}", ticked("may_lose_work")),
    "/jobs/{job}/hold": sends("PATCH", "/v1/jobs/{job}", "/jobs/{job}", ticked("hold")),
    "/nodes/{node}/drain": sends("POST", "/v1/nodes/{node}/drain", "/nodes/{node}", ticked("may_lose_work")),
    "/nodes/{node}/resume": sends("POST", "/v1/nodes/{node}/resume", "/nodes/{node}"),
    "/reservations": cluster.reserve,
    "/reservations/{reservation}/cancel": sends("DELETE", "/v1/reservations/{reservation}", "/nodes"),
    "/policy": cluster.set_policy,
}  # fmt: skip
ROUTES += [Route(path, action, methods=["POST"]) for path, action in ACTIONS.items()]


def make(api: ASGIApp) -> ASGIApp:
    """The pages over the application `api`, to be mounted under `/web`."""
    web = Web(api)
    # Content and mark of each file; the mark changes with the content, so browsers may keep it for ever.
    assets = {}
    for one in files("plait.dashboard").joinpath("assets").iterdir():
        if one.name.rpartition(".")[2] in TYPES:
            data = one.read_bytes()
            assets[one.name] = data, hashlib.sha256(data).hexdigest()[:12]
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

    # Add `HEADERS` to every answer that has none of its own of the same name; no cache keeps pages.
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
