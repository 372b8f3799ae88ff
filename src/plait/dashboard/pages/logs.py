"""Output of the processes of a job: all of it as text, and a continuing stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from plait.dashboard.api_client import Refused, segment
from plait.dashboard.web import Viewer, shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

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
        """For the job, rank and offset of the request."""
        super().__init__()
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query, name = self._viewer.request.query_params, self._viewer.request.path_params["job"]
        given = {key: query.get(key) for key in ("rank", "offset")}
        await self._viewer.api.pass_on(f"/v1/jobs/{segment(name)}/logs", {**given, "follow": 1}, receive, send)
