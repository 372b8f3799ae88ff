"""The event log in sentences, newest first, by kind and text."""

from __future__ import annotations

from starlette.responses import Response

from plait.dashboard.web import Viewer, shown
from plait.live.scheduler.records.event_words import step_in_words, telling

#: Rows of a page; entries that are searched for them.
ROWS, SEARCHED = 100, 5000
#: Kinds of entries to filter by -> their types.
KINDS = {
    "submissions": ("Requested", "JobSubmitted"),
    "starts": ("AttemptBegan", "LaunchFailed"),
    "stops": ("StopAsked", "AttemptOver", "CancelAsked"),
    "ends": ("JobFinished", "JobFailed", "JobCancelled"),
    "failures": ("JobFailed", "LaunchFailed", "NodeLost", "RankEnded", "Undelivered"),
    "nodes": ("NodeJoined", "NodeLost", "NodeSuspected", "NodeDrained", "NodeLeaving", "NodeForgotten"),
    "restarts": ("ServiceStarted", "AgentRestarted"),
    "policy": ("PolicySet", "ProjectSet", "ReplanDue"),
}
#: With measurements, estimates and decisions that change nothing.
EVERYTHING = "everything"


@shown
async def list_events(viewer: Viewer) -> Response:
    """Entries before `?before=`, else the newest."""
    query = viewer.request.query_params
    kind, text = query.get("kind", ""), query.get("q", "").strip()[:200]
    status = await viewer.get(1.0, "/v1/status")
    newest = int(status["log_seq"])
    before = query.get("before", "")
    last = min(int(before) - 1, newest) if before.isascii() and before.isdigit() and len(before) < 16 else newest
    wanted, everything = KINDS.get(kind), kind == EVERYTHING
    plain = everything and not text
    after = max(last - (ROWS if plain else SEARCHED), 0)
    found = await viewer.get(1.0, "/v1/events", after=after, limit=max(last - after, 1))
    rows, oldest = [], after + 1
    for one in reversed(found["events"]):
        if one["seq"] > last:
            continue
        if not everything and not telling(one["event"], one["commands"]):
            continue
        words = step_in_words(one["event"], one["commands"], whole=everything)
        if (wanted is None or one["event"]["type"] in wanted) and text.lower() in words.lower():
            rows.append((one["seq"], one["at_s"], one["event"]["type"], words))
            if len(rows) == ROWS:
                oldest = one["seq"]
                break
    return viewer.page(
        "events.html.j2", title="Events", rows=rows, kind=kind, q=text, kinds=(*KINDS, EVERYTHING),
        now_s=status["now_s"], oldest=oldest if oldest > 1 else None, first=last == newest, live=last == newest,
    )  # fmt: skip
