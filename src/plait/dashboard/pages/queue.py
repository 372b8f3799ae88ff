"""The queue in the order of the last decision."""

from __future__ import annotations

from starlette.responses import Response

from plait.dashboard.outlook import outlook
from plait.dashboard.web import Viewer, page_of, shown

#: Rows of a page.
ROWS = 50


@shown
async def show_queue(viewer: Viewer) -> Response:
    """A page of it."""
    page = page_of(viewer.request.query_params.get("page"))
    found = await viewer.get(1.0, "/v1/queue", limit=ROWS, offset=(page - 1) * ROWS)
    status = await viewer.get(1.0, "/v1/status")
    levels = any(job["level"] is not None for job in found["jobs"])
    return viewer.page(
        "queue.html.j2", title="Queue", queue=found, page=page, pages_of_list=-(-found["total"] // ROWS), levels=levels,
        ahead=await outlook(viewer, status, [job["number"] for job in found["jobs"]]),
    )  # fmt: skip
