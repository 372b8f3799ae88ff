"""Log in with a token or with the link of `plait web`, and log out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from plait.dashboard.api_client import SESSION_S, Refused
from plait.dashboard.web import ROOT, Viewer, cookie_name, done, form_of, from_here, web_of

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
