"""The cluster as a whole: overview, live updates, queue and costs, and when the queue will be empty.

Forecasts are those of `plait what-if` and `plait explain`; their times count from the moment at which a page is drawn.
They are made once for the pages of half a minute; a page waits for one for a second, and is drawn without if it takes
longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response, StreamingResponse

from plait.dashboard.api_client import Refused
from plait.dashboard.figures import holders, idle_gpus, node_drawings, reasons, recent
from plait.dashboard.web import Viewer, page_of, shown

#: Seconds for which a forecast is shown, and that a page waits for it; jobs that are forecast for a page at most.
KEPT_S, WAIT_S, OUTLOOK_ROWS = 30.0, 1.0, 12


@dataclass(frozen=True)
class PageOutlook:
    """A forecast: `jobs` by number, each {start, end} of [early, middle, late] seconds after `now_s`; or why none."""

    now_s: float = 0.0
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    empty: list[float | None] | None = None
    missing: str = ""

    def at(self, now_s: float) -> PageOutlook:
        """The same forecast at a later moment: all times count from then.

        >>> found = PageOutlook(10.0, {"1": {"start": None, "end": [5.0, 20.0, None]}}, [30.0, 40.0, None]).at(20.0)
        >>> found.jobs["1"]["end"], found.empty
        ([0.0, 10.0, None], [20.0, 30.0, None])
        """
        passed_s = max(now_s - self.now_s, 0.0)

        def later(three: list[float | None] | None) -> list[float | None] | None:
            return three and [None if s is None else max(s - passed_s, 0.0) for s in three]

        jobs = {job: {name: later(three) for name, three in eta.items()} for job, eta in self.jobs.items()}
        return replace(self, now_s=now_s, jobs=jobs, empty=later(self.empty))

    def of(self, job: int) -> Mapping[str, Any] | None:
        return self.jobs.get(str(job))


async def outlook(viewer: Viewer, status: Mapping[str, Any], rows: Sequence[int]) -> PageOutlook | None:
    """The forecast of the queue and of the jobs with these numbers; None if it takes longer than a page waits."""
    if not sum(n for state, n in status["jobs"].items() if state not in ("finished", "failed", "cancelled")):
        return PageOutlook(missing="no job waits or runs")
    now_s, jobs = float(status["now_s"]), sorted(rows)[:OUTLOOK_ROWS]

    async def end_of(job: int) -> tuple[str, Mapping[str, Any]] | None:
        try:
            soon = (await viewer.get(1.0, f"/v1/jobs/j-{job}/explain")).get("forecast")
        except Refused:  # of another user, or over
            return None
        return (str(job), {name: _three(soon.get(name)) for name in ("start", "end")}) if soon else None

    async def make() -> PageOutlook:
        whole, ends = await asyncio.gather(_whole(viewer, status), asyncio.gather(*map(end_of, jobs)))
        made: PageOutlook = replace(whole, jobs=dict(one for one in ends if one))
        return made

    key = ("long", "outlook", viewer.session.role, viewer.session.user, *jobs)
    work = asyncio.ensure_future(viewer.web.answers.share(key, KEPT_S, make))
    work.add_done_callback(lambda one: None if one.cancelled() else one.exception())
    await asyncio.wait({work}, timeout=WAIT_S)
    if not work.done() or work.exception():
        return None
    made: PageOutlook = work.result()
    return made.at(now_s)


def _three(times: Mapping[str, Any] | None) -> list[float | None] | None:
    """Early, middle and late seconds of a forecast of `explain`; None if it has none."""
    return None if times is None else [times["wide_s"][0], times["middle_s"], times["wide_s"][1]]


async def _whole(viewer: Viewer, status: Mapping[str, Any]) -> PageOutlook:
    """When the queue will be empty, as what-if knows it under the present policy; of no single job."""
    now_s = float(status["now_s"])
    try:
        found = await viewer.api.ask("POST", "/v1/what-if/queue", body={"policy": str(status["policy"])})
    except Refused as error:
        return PageOutlook(now_s, missing=str(error))
    hours = (found["totals"]["empty_hours"] or {}).get("now")
    if hours is None:
        return PageOutlook(now_s, missing="no forecast")
    early, _, middle, _, late = (None if h is None else 3600 * h for h in hours)
    return PageOutlook(now_s, empty=[early, middle, late])


#: Rows of each list, of that of failed jobs, and the newest failed jobs from which these are taken.
ROWS, FAILED, NEWEST_FAILED = 10, 5, 50
#: Decisions of the policy are counted over so many seconds, from so many entries of the log at most.
WITHIN_S, ENTRIES = 3600.0, 3000
#: States in which a job has, or is about to have, GPUs.
RUNNING = "running,starting,stopping,unreachable"
#: Maximum jobs of a request, and the age of answers in seconds.
MOST, FRESH_S, CALM_S = 10_000, 1.0, 10.0


@shown
async def overview(viewer: Viewer) -> Response:
    """The page."""
    return viewer.page("overview.html.j2", title="Overview", **await facts(viewer))


async def facts(viewer: Viewer) -> dict[str, Any]:
    """The values of the template."""
    status = await viewer.get(FRESH_S, "/v1/status")
    # A long queue is looked through less often: its reasons hardly change from one second to the next.
    age_s = FRESH_S if status["jobs"]["waiting"] < 1000 else CALM_S
    calm = sum(status["nodes"].values()) > LARGE or status["jobs"]["running"] > 1000
    now_and_then_s = QUIET_S if calm else FRESH_S
    nodes, running, waiting, failed, policy, bill, done = await asyncio.gather(
        viewer.get(now_and_then_s, "/v1/nodes"),
        viewer.get(now_and_then_s, "/v1/jobs", state=RUNNING, limit=MOST),
        viewer.get(age_s, "/v1/jobs", state="waiting", limit=MOST),
        viewer.get(FRESH_S, "/v1/jobs", state="failed", limit=NEWEST_FAILED),
        viewer.get(FRESH_S, "/v1/policy"),
        viewer.get(CALM_S, "/v1/costs", limit=0),
        _done(viewer, status),
    )
    shown = sorted(running, key=lambda job: (-job["gpus"], job["number"]))[:ROWS]
    ahead = await outlook(viewer, status, [job["number"] for job in shown])
    why = reasons(waiting)
    return {
        "status": status, "now_s": status["now_s"], "policy": policy, "done": done, "ahead": ahead,
        "bill": bill, "map": node_drawings(nodes), "idle": idle_gpus(nodes),
        "running": shown, "running_count": len(running),
        "reasons": why[:5], "waiting_count": status["jobs"]["waiting"],
        "failed": sorted(failed, key=lambda job: -(job["ended_s"] or 0.0))[:FAILED],
        "holders": holders(running, waiting)[:ROWS],
    }  # fmt: skip


async def _done(viewer: Viewer, status: dict[str, Any]) -> Any:
    """Recent decisions of the policy; None for viewers who may not read the log of all."""
    try:
        after = max(status["log_seq"] // 100 * 100 - ENTRIES, 0)  # the same for some time, so that answers are shared
        found = await viewer.get(CALM_S, "/v1/events", after=after, limit=ENTRIES + 100)
    except Refused as error:
        if error.status == 403:
            return None
        raise
    entries = found["events"]
    known_s = status["now_s"] - entries[0]["at_s"] if entries else 0.0
    return recent(entries, status["now_s"], min(WITHIN_S, max(known_s, 0.0)))


# Costs of the cluster: its parts, and users, projects and jobs by the GPUs they held.

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


# The queue in the order of the last decision.

#: Rows of a page.
QUEUE_ROWS = 50


@shown
async def show_queue(viewer: Viewer) -> Response:
    """A page of it."""
    page = page_of(viewer.request.query_params.get("page"))
    found = await viewer.get(1.0, "/v1/queue", limit=QUEUE_ROWS, offset=(page - 1) * QUEUE_ROWS)
    status = await viewer.get(1.0, "/v1/status")
    levels = any(job["level"] is not None for job in found["jobs"])
    return viewer.page(
        "queue.html.j2", title="Queue", queue=found, page=page, pages_of_list=-(-found["total"] // QUEUE_ROWS),
        levels=levels, ahead=await outlook(viewer, status, [job["number"] for job in found["jobs"]]),
    )  # fmt: skip


# A stream that reports when a page is out of date.

#: Intervals of checks, seconds, and of messages at least, for progress without an entry in the log.
LOOK_S, QUIET_S = 1.0, 5.0
#: Clusters of more nodes than this are drawn again at most every QUIET_S.
LARGE = 200


@shown
async def stream(viewer: Viewer) -> Response:
    """Server-sent events `changed`, each with the newest entry of the log; `ended` once the token is not valid."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(viewer), media_type="text/event-stream", headers=headers)


async def _events(viewer: Viewer) -> AsyncIterator[str]:
    seen, said_s = None, time.monotonic()
    yield ": hello\n\n"
    while not await viewer.request.is_disconnected():
        try:
            await viewer.api.get("/v1/me")
            status = await viewer.get(LOOK_S, "/v1/status")
        except Refused as error:
            yield f"event: ended\ndata: {error.status}\n\n"
            return
        calm = sum(status["nodes"].values()) > LARGE
        entry, quiet_s = status["log_seq"], time.monotonic() - said_s
        if seen is None:
            seen = entry
        elif quiet_s >= QUIET_S or (entry != seen and not calm):
            seen, said_s = entry, time.monotonic()
            yield f"event: changed\nid: {entry}\ndata: {entry}\n\n"
        await asyncio.sleep(LOOK_S)
