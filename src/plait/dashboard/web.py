"""Shared by all pages: the viewer, requests to the API on their behalf, templates, and the checks of forms."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qsl, quote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from plait.core.version import __version__
from plait.core.words import counted, duration, gpu_hours, in_unit
from plait.dashboard.api_client import Answers, ApiClient, Refused, Session, Sessions, segment
from plait.dashboard.figures import ago, hue, share
from plait.live.scheduler.records.event_words import brief

#: Where the pages are.
ROOT = "/web"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Bytes of a form at most.
LARGEST_FORM = 100_000


def shown_plainly(value: Any) -> Any:
    """A text without controls and marks of direction, which would reverse its neighbours on a page."""
    return type(value)(_CONTROLS.sub("", value)) if isinstance(value, str) else value


class Web:
    """The pages of one service."""

    def __init__(self, api: ASGIApp) -> None:
        """No session yet. `api`: the application that answers under `/v1/`."""
        self.api, self.sessions, self.answers = api, Sessions(), Answers()
        self.templates = Environment(
            loader=PackageLoader("plait.dashboard"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, finalize=shown_plainly,
        )  # fmt: skip
        self.templates.globals.update(root=ROOT, version=__version__, ago=ago, share=share, hue=hue, counted=counted)
        self.templates.filters.update(linked=linked, duration=duration, brief=brief, unit=in_unit, gpu_hours=gpu_hours)

    def client(self, secret: str) -> ApiClient:
        return ApiClient(self.api, secret)

    async def look_up(self, secret: str) -> Session:
        """Whose token this is; raises `Refused`."""
        me = await self.client(secret).get("/v1/me")
        return Session(secret, me["user"], me["role"], me["project"])


@dataclass
class Viewer:
    """One request of a logged-in user."""

    web: Web
    request: Request
    session: Session
    api: ApiClient

    async def get(self, age_s: float, path: str, **query: Any) -> Any:
        """The API's answer, at most so many seconds old; raises `Refused`."""
        return await self.web.answers.get(self.api, self.session, age_s, path, **query)

    def page(self, template: str, code: int = 200, **values: Any) -> Response:
        """A page; only the part in its frame where the page itself requests news."""
        given = {"viewer": self.session, "path": self.request.url.path, "url": url_of(self.request), **values}
        given["not_current"] = self.api.not_current
        frame = "part.html.j2" if self.request.headers.get("hx-request") else "base.html.j2"
        text = self.web.templates.get_template(template).render(frame=frame, **given)
        return HTMLResponse(text, code)


Page: TypeAlias = Callable[[Viewer], Awaitable[Response]]
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


def web_of(request: Request) -> Web:
    """The pages that a request came to."""
    return cast("Web", request.app.state.web)


def cookie_name(request: Request) -> str:
    """The session's cookie: browsers share cookies between two ports of a machine."""
    return f"plait_session_{request.url.port or request.url.scheme}"


def linked(text: str) -> Markup:
    """A text in which names of jobs are links.

    >>> str(linked("for j-7 & j-8"))
    'for <a href="/web/jobs/j-7">j-7</a> &amp; <a href="/web/jobs/j-8">j-8</a>'
    """
    return Markup(
        re.sub(r"\bj-\d+\b", lambda found: f'<a href="{ROOT}/jobs/{found[0]}">{found[0]}</a>', str(escape(text)))
    )


def url_of(request: Request) -> str:
    """The path and query of a request, for links to itself."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def shown(page: Page) -> Handler:
    """A handler for logged-in users; others are sent to the page for a token."""

    @wraps(page)
    async def handler(request: Request) -> Response:
        web = web_of(request)
        name = request.cookies.get(cookie_name(request), "")
        session = web.sessions.find(name)
        if session is None:
            return _to_login(request)
        api = web.client(session.secret)
        try:
            me = await api.get("/v1/me")  # it may have been revoked since
        except Refused:
            web.sessions.end(name)
            return _to_login(request)
        session.user, session.role, session.project = me["user"], me["role"], me["project"]
        if (known := request.scope.get("state", {}).get("known")) is not None:
            known(session.user)
        viewer = Viewer(web, request, session, api)
        try:
            return await page(viewer)
        except Refused as error:
            return refused(viewer, error)

    return handler


def refused(viewer: Viewer, error: Refused) -> Response:
    """The API's refusal, as a page."""
    return viewer.page("error.html.j2", error.status, error=error, title="That did not work")


def done(page: Callable[[Viewer, dict[str, str]], Awaitable[str]]) -> Handler:
    """A handler of a form: it has to come from a page of the same session; `page` returns where to go next."""

    async def act(viewer: Viewer) -> Response:
        target = await page(viewer, await checked_form(viewer))
        viewer.web.answers.forget()
        return RedirectResponse(target, 303)

    return shown(wraps(page)(act))


def sends(
    method: str, path: str, target: str, body: Callable[[dict[str, str]], Mapping[str, Any] | None] = lambda form: None
) -> Handler:
    """A handler of a form that sends one request to the API and goes to `target`; both paths as in routes."""

    async def send(viewer: Viewer, form: dict[str, str]) -> str:
        names = {name: segment(value) for name, value in viewer.request.path_params.items()}
        await viewer.api.ask(method, path.format(**names), body=body(form))
        return ROOT + target.format(**names)

    return done(send)


def ticked(name: str) -> Callable[[dict[str, str]], Mapping[str, Any]]:
    """The body of a request with one flag: whether its box is ticked."""
    return lambda form: {name: form.get(name) == "on"}


async def checked_form(viewer: Viewer) -> dict[str, str]:
    """The fields of a form; raises `Refused` unless it comes from a page of the same session."""
    form = await form_of(viewer.request)
    if not from_here(viewer.request) or not viewer.session.sent(form.pop("csrf", "")):
        raise Refused(403, "this form was not sent from a page of this session", "load the page again")
    return form


def page_of(text: str | None) -> int:
    """Which page of a list, from 1; 1 for anything else.

    >>> page_of("3"), page_of("-1"), page_of(None)
    (3, 1, 1)
    """
    return max(int(text), 1) if text is not None and text.isascii() and text.isdigit() and len(text) < 8 else 1


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; raises `Refused` for an invalid or too large one."""
    content = await request.body()
    if len(content) > LARGEST_FORM:
        raise Refused(413, f"the form has more than {LARGEST_FORM:,} bytes")
    try:
        return dict(parse_qsl(content.decode("utf-8"), keep_blank_values=True, max_num_fields=200))
    except ValueError:
        raise Refused(400, "the form cannot be read") from None


def from_here(request: Request) -> bool:
    """Whether a form comes from this site, as far as the browser tells."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _to_login(request: Request) -> Response:
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"HX-Redirect": f"{ROOT}/login"})
    target = f"{ROOT}/login"
    if request.method == "GET" and request.url.path != f"{ROOT}/":
        target += f"?next={quote(url_of(request), safe='')}"
    return RedirectResponse(target, 303)
