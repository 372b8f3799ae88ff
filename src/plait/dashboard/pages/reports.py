"""Reports of simulations, each in a sandbox, and the simulator checked against the log of this service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from plait.dashboard.api_client import Refused, segment
from plait.dashboard.web import Viewer, shown
from plait.dashboard.work import Note, Work
from plait.report.charts import Cloud, scatter_svg

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: Maximum entries of a log for a simulation, and entries of one request.
MOST_ENTRIES, PART = 100_000, 1000
#: Seconds after which a comparison is ended, and for which it is shown.
LIMIT_S, KEPT_S = 300.0, 600.0


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


@shown
async def fidelity(viewer: Viewer) -> Response:
    """The simulator's predictions for the jobs in the log, compared with measurements; with `?run=1` it runs."""
    if viewer.session.role == "user":
        raise Refused(403, "the log of all jobs is for administrators and viewers", "plait fidelity --log FILE")
    status = await viewer.api.get("/v1/status")
    works, key = viewer.web.works, ("fidelity",)
    work = works.find(key, KEPT_S)
    if work is None and viewer.request.query_params.get("run") == "1":
        work = _begin(viewer, int(status["log_seq"]))
    return viewer.page(
        "fidelity.html.j2", title="Simulated against measured", work=work, live=False, entries=status["log_seq"],
        finished=status["jobs"]["finished"], age_s=works.age_s(work) if work else 0.0,
    )  # fmt: skip


@shown
async def picture(viewer: Viewer) -> Response:
    """Simulated over measured times of the last comparison, a point a job."""
    work = None if viewer.session.role == "user" else viewer.web.works.find(("fidelity",), KEPT_S)
    if work is None or not work.result:
        raise Refused(404, "nothing was compared yet")
    jobs = work.result["points"]
    cloud = Cloud("a job", [measured for measured, _ in jobs], [predicted for _, predicted in jobs])
    svg = scatter_svg("Completion times", [cloud], "measured, s", "simulated, s", band=0.1)
    return Response(svg, media_type="image/svg+xml")


def _begin(viewer: Viewer, entries: int) -> Work:
    async def ask(note: Note) -> Any:
        if entries > MOST_ENTRIES:
            text = f"the log has {entries:,} entries, and up to {MOST_ENTRIES:,} are simulated for a page"
            raise Refused(422, f"{text}; run the command there: plait fidelity")
        policy = await viewer.api.get("/v1/policy")
        rows: list[Any] = []
        while len(rows) < entries:
            note((len(rows), entries, f"reading the log, {len(rows):,} of {entries:,} entries"))
            part = await viewer.api.get("/v1/events", after=len(rows), limit=min(PART, entries - len(rows)))
            if not part["events"]:
                break
            rows += part["events"]
        return {"rows": rows, "round_s": policy["round_s"]}

    return viewer.web.works.begin(("fidelity",), "plait.dashboard.calculations.fidelity", ask, LIMIT_S)
