"""What the processes of a job wrote: parts as text, and a stream that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from plait.dashboard.api_client import segment
from plait.dashboard.web import Viewer, shown

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: Bytes of a log that are sent as a file at most.
MOST = 1_000_000


@shown
async def tail(viewer: Viewer) -> Response:
    """The log as it grows: the API's own stream of server-sent events, passed on."""
    return LogStream(viewer)


@shown
async def text(viewer: Viewer) -> Response:
    """A log, or its first million bytes, as a file to keep."""
    query, name = viewer.request.query_params, viewer.request.path_params["job"]
    given = {key: query.get(key) for key in ("rank", "epoch", "offset")}
    part = await viewer.api.get(f"/v1/jobs/{segment(name)}/logs", limit=MOST, **given)
    return Response(part["text"], media_type="text/plain; charset=utf-8")


class LogStream(Response):
    """An answer that the API writes."""

    def __init__(self, viewer: Viewer) -> None:
        """For the job, rank and offset of the request."""
        super().__init__()
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the API answer."""
        query, name = self._viewer.request.query_params, self._viewer.request.path_params["job"]
        given = {key: query.get(key) for key in ("rank", "offset")}
        await self._viewer.api.pass_on(f"/v1/jobs/{segment(name)}/logs", {**given, "follow": 1}, receive, send)
