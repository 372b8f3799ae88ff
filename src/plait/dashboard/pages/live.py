"""A stream that reports when a page is out of date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from plait.dashboard.api_client import Refused
from plait.dashboard.web import Viewer, shown

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
