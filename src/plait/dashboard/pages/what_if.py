"""The live queue under another choice: who gains, who loses, in hours; nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from plait.core.errors import InputError
from plait.dashboard.api_client import Refused
from plait.dashboard.web import Viewer, shown
from plait.live.scheduler.explain.choices import parse_priorities
from plait.policies.catalog import rows

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
