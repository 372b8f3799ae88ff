"""Reports of simulations and of advice, each in a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from plait.dashboard.api_client import Refused, segment
from plait.dashboard.web import Viewer, shown

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


@shown
async def list_reports(viewer: Viewer) -> Response:
    """The list of the folder of reports."""
    found = await viewer.get(1.0, "/v1/reports")
    return viewer.page(
        "reports.html.j2", title="Reports", reports=found["reports"], folder=found.get("folder"), live=False
    )


@shown
async def show_report(viewer: Viewer) -> Response:
    """One report in a frame."""
    name = viewer.request.path_params["name"]
    found = await viewer.get(1.0, "/v1/reports")
    report = next((one for one in found["reports"] if one["name"] == name), None)
    if report is None:
        raise Refused(404, f"no report {name[:128]!r}")
    return viewer.page("report.html.j2", title=report["title"], report=report, live=False)


@shown
async def file(viewer: Viewer) -> Response:
    """The report itself, with the headers of the API: it may send no request to this service."""
    return ReportFile(viewer)


class ReportFile(Response):
    """An answer that the API writes."""

    def __init__(self, viewer: Viewer) -> None:
        super().__init__()
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._viewer.request.path_params["name"]
        await self._viewer.api.pass_on(f"/v1/reports/{segment(name)}", {}, receive, send)
