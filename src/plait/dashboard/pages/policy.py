"""The policy, and the queue under other choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from plait.core.errors import InputError
from plait.dashboard.api_client import Refused
from plait.dashboard.web import ROOT, Viewer, checked_form, shown
from plait.live.scheduler.explain.choices import parse_priorities
from plait.policies.catalog import rows


@shown
async def show_policy(viewer: Viewer) -> Response:
    """The page."""
    return await _page(viewer)


async def _page(viewer: Viewer, refused: Refused | None = None, given: str | None = None) -> Response:
    """The page; `refused`: why the policy `given` in its form was not set."""
    policy = await viewer.api.get("/v1/policy")
    projects = await viewer.get(1.0, "/v1/projects")
    lost = await viewer.get(1.0, "/v1/losses") if viewer.session.may_manage else None
    return viewer.page(
        "policy.html.j2", 200 if refused is None else refused.status, title="Policy", refused=refused, policy=policy,
        projects=projects, names=sorted(rows()), live=False, losses=lost["losses"] if lost else [], given=given,
    )  # fmt: skip


@shown
async def set_policy(viewer: Viewer) -> Response:
    """Switch the policy, and show the page; if it was refused, with the reason and what was typed."""
    form = await checked_form(viewer)
    given = form.get("policy", "").strip()
    try:
        body = {"policy": given, "may_lose_work": form.get("may_lose_work") == "yes"}
        await viewer.api.ask("PUT", "/v1/policy", body=body)
    except Refused as error:
        return await _page(viewer, error, given[:200])
    viewer.web.answers.forget()
    return RedirectResponse(f"{ROOT}/policy", 303)


# The live queue under another choice: who gains, who loses, in hours; nothing is changed.

#: Fields of the form; and characters of each at most.
FIELDS, LONGEST = ("policy", "nodes", "without", "priority"), 500
#: Names that are offered at most.
OFFERED = 1000


@shown
async def what_if(viewer: Viewer) -> Response:
    """The form; filled in, also the answer."""
    query = viewer.request.query_params
    given = {name: query.get(name, "").strip()[:LONGEST] for name in FIELDS}
    found, wrong = None, None
    try:
        if any(given.values()):
            found = await viewer.api.ask("POST", "/v1/what-if/queue", body=_choice(given))
    except Refused as error:
        wrong = error
    nodes = await viewer.get(2.0, "/v1/nodes")
    policy = await viewer.api.get("/v1/policy")
    return viewer.page(
        "what_if.html.j2", 200 if wrong is None else wrong.status, title="What if", given=given, found=found,
        wrong=wrong, names=sorted(rows()), nodes=[one["id"] for one in nodes[:OFFERED]], now=policy["policy"],
        live=False,
    )  # fmt: skip


def _choice(given: Mapping[str, str]) -> dict[str, Any]:
    """The form as the API's request; raises `Refused` for priorities that cannot be read."""
    try:
        priority = parse_priorities(_words(given["priority"]))
    except InputError as error:
        raise Refused(422, str(error), field="priority") from None
    return {
        "policy": given["policy"] or None, "nodes": given["nodes"] or None, "without": _words(given["without"]),
        "priority": {f"j-{job}": value for job, value in priority.items()},
    }  # fmt: skip


def _words(text: str) -> list[str]:
    """Words between commas and spaces.

    >>> _words("n1, n2 n3")
    ['n1', 'n2', 'n3']
    """
    return [word for word in re.split(r"[\s,]+", text) if word]
