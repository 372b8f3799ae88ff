"""Costs of the cluster: its parts, and users, projects and jobs by the GPUs they held."""

from __future__ import annotations

from starlette.responses import Response

from plait.dashboard.web import Viewer, shown

#: Periods that can be chosen, in hours: the longest is the last month.
PERIODS = {24: "day", 168: "week", 744: "month"}
#: Jobs that are listed.
JOBS = 50


@shown
async def show_costs(viewer: Viewer) -> Response:
    """The page; `?hours=` is one of `PERIODS`."""
    asked = viewer.request.query_params.get("hours", "")
    hours = int(asked) if asked in map(str, PERIODS) else next(iter(PERIODS))
    bill = await viewer.get(10.0, "/v1/costs", hours=hours, limit=JOBS)
    return viewer.page("costs.html.j2", title="Costs", bill=bill, hours=hours, periods=PERIODS, most=JOBS)
