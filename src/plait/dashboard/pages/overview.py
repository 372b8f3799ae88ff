"""The first page: who holds the GPUs, what runs, what waits and why, what failed, and what the policy did."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from plait.dashboard import node_map
from plait.dashboard.api_client import Refused
from plait.dashboard.figures import holders, reasons, recent
from plait.dashboard.outlook import outlook
from plait.dashboard.pages.live import LARGE, QUIET_S
from plait.dashboard.web import Viewer
from plait.dashboard.web import shown as page

#: Rows of each list, of that of failed jobs, and the newest failed jobs from which these are taken.
ROWS, FAILED, NEWEST_FAILED = 10, 5, 50
#: Decisions of the policy are counted over so many seconds, from so many entries of the log at most.
WITHIN_S, ENTRIES = 3600.0, 3000
#: States in which a job has, or is about to have, GPUs.
RUNNING = "running,starting,stopping,unreachable"
#: Maximum jobs of a request, and the age of answers in seconds.
MOST, FRESH_S, CALM_S = 10_000, 1.0, 10.0


@page
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
        "bill": bill, "map": node_map.drawings(nodes), "idle": node_map.idle_gpus(nodes),
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
