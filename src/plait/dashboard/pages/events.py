"""The event log of the cluster, and the logs of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from plait.dashboard.api_client import Refused, segment
from plait.dashboard.web import Viewer, shown
from plait.live.scheduler.records.event_words import step_in_words, telling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

#: Rows of a page; entries that are searched for them.
ROWS, SEARCHED = 100, 5000
#: Kinds of entries to filter by -> their types.
KINDS = {
    "submissions": ("Requested", "JobSubmitted"),
    "starts": ("AttemptBegan", "LaunchFailed"),
    "stops": ("StopAsked", "AttemptOver", "CancelAsked"),
    "ends": ("JobFinished", "JobFailed", "JobCancelled"),
    "failures": ("JobFailed", "LaunchFailed", "NodeLost", "RankEnded", "Undelivered"),
    "nodes": (
        "NodeJoined",
        "NodeLost",
        "NodeSuspected",
        "NodeDrained",
        "NodeLeaving",
        "NodeForgotten",
        "NodesReserved",
        "ReservationCancelled",
    ),
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


# Output of the processes of a job: all of it as text, and a continuing stream.

#: Bytes of a log that are read at a time.
PART = 250_000


@shown
async def tail(viewer: Viewer) -> Response:
    """The log as it grows: the API's own stream of server-sent events, passed on."""
    return LogStream(viewer)


@shown
async def text(viewer: Viewer) -> Response:
    """The whole log of an attempt, as far as it is kept and written, as a file to keep.

    A line marks dropped bytes, as in `plait logs`; a later part that cannot be read ends it with a line.
    """
    query = viewer.request.query_params
    first = await _part(viewer, query.get("offset"), query.get("epoch"))
    name = f"{viewer.request.path_params['job']}-attempt{first['epoch']}-rank{first['rank']}.log"
    headers = {"content-disposition": f"inline; filename*=utf-8''{quote(name, safe='')}"}
    return StreamingResponse(_parts(viewer, first), media_type="text/plain; charset=utf-8", headers=headers)


async def _parts(viewer: Viewer, part: dict[str, Any]) -> AsyncIterator[str]:
    """The texts of a log from this part to the end that it has now, of the same attempt."""
    size, epoch = part["size"], part["epoch"]
    while part["text"]:
        yield part["text"]
        if part["next"] >= size:
            return
        try:
            part = await _part(viewer, part["next"], epoch)
        except Refused as error:
            yield f"\n[plait: the rest of this log cannot be read: {error}]\n"
            return


async def _part(viewer: Viewer, offset: Any, epoch: Any) -> dict[str, Any]:
    """The requested part of the log; raises `Refused`."""
    path = f"/v1/jobs/{segment(viewer.request.path_params['job'])}/logs"
    rank = viewer.request.query_params.get("rank")
    found: dict[str, Any] = await viewer.api.get(path, limit=PART, rank=rank, offset=offset, epoch=epoch)
    return found


class LogStream(Response):
    """An answer that the API writes."""

    def __init__(self, viewer: Viewer) -> None:
        super().__init__()
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query, name = self._viewer.request.query_params, self._viewer.request.path_params["job"]
        given = {key: query.get(key) for key in ("rank", "offset")}
        await self._viewer.api.pass_on(f"/v1/jobs/{segment(name)}/logs", {**given, "follow": 1}, receive, send)
