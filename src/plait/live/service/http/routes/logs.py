"""Output of the processes of a job: parts of it, or a continuing stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from plait.live.agent.logs import MOST_BYTES, read_part
from plait.live.layout import job_name
from plait.live.protocol.profile_keys import processes_per_gpu
from plait.live.protocol.requests import most_gpus
from plait.live.protocol.wire import Reply
from plait.live.service.http import serializers
from plait.live.service.http.answers.jobs import LogPart
from plait.live.service.http.api import Api, Json, api_of
from plait.live.service.http.auth import Denied, owns
from plait.live.service.http.models import LARGEST
from plait.live.service.http.openapi.routes import JobName, answers
from plait.live.service.logs import NoAnswer
from plait.live.store import Token

#: Parts of a log: default, at most.
PART, LARGEST_PART = 65_536, 1_000_000
#: How often a log is looked at that does not grow, and after how long something is sent anyway: clients wait 5 s.
FOLLOW_S, QUIET_S = 0.3, 2.0

router = APIRouter(tags=["jobs"])


@router.get(
    "/v1/jobs/{job}/logs",
    **answers(LogPart, own=True, texts={"text/event-stream": "With `follow=1`: parts, notices and the end."}),
)
async def logs(
    request: Request,
    job: JobName,
    rank: int = Query(0, ge=0, le=LARGEST, description="Which process of the job."),
    offset: int = Query(0, ge=0, le=LARGEST, description="Where to begin, bytes since the process started."),
    limit: int = Query(PART, ge=1, le=LARGEST_PART, description="Bytes at most."),
    epoch: int | None = Query(None, ge=1, le=LARGEST, description="Which attempt; the newest if left out."),
    follow: bool = Query(False, description="A stream that goes on until the job has ended."),
) -> Response:
    """Part of what a process wrote: text, where it begins, where the next part does, the whole size in bytes.

    With `follow=1` a stream of such parts as server-sent events, and an event `end` when the job has ended.
    """
    api = api_of(request)
    token = api.who(request)
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=False)
    ranks = most_gpus(row["request"]) * processes_per_gpu(row["request"])
    if rank >= ranks:
        raise LookupError(f"job {job} has ranks 0 to {ranks - 1}; there is no rank {rank}")
    if follow:
        stream = _follow(api, lambda: api.who(request), job, rank, offset, limit)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
    if epoch is None and not row["attempts"]:
        return Json({"text": "", "offset": 0, "next": 0, "size": 0, "epoch": 0, "rank": rank})
    return Json(await _part(api, row, rank, offset, limit, epoch))


async def _part(
    api: Api, row: dict[str, Any], rank: int, offset: int, limit: int, epoch: int | None = None
) -> dict[str, Any]:
    tries = {a["epoch"]: a for a in row["attempts"]}
    attempt = tries.get(epoch if epoch is not None else max(tries))
    if attempt is None:
        raise LookupError(f"job {job_name(row['number'])} has no attempt {epoch}; it has {len(tries)}")
    if rank >= len(attempt["ranks"]):
        last = len(attempt["ranks"]) - 1
        raise LookupError(f"attempt {attempt['epoch']} of job {job_name(row['number'])} has ranks 0 to {last}")
    node = attempt["ranks"][rank]["node"]
    reply = await _read(api, node, row["number"], attempt["epoch"], rank, offset, limit)
    if reply.error:
        raise LookupError(f"node {node}: {reply.error}")
    following = reply.next or reply.offset + len(reply.text.encode())
    return {
        "text": reply.text, "offset": reply.offset, "next": following, "size": reply.size, "epoch": attempt["epoch"],
        "rank": rank,
    }  # fmt: skip


async def _read(api: Api, node: str, number: int, epoch: int, rank: int, offset: int, limit: int) -> Reply:
    """From the node's agent or, where there is none any more, from the home folder that it shared with the service."""
    there, layout = await api.worker.look(
        lambda engine, now_s: (node in engine.state.nodes and not engine.state.nodes[node].lost, engine.layout)
    )
    if there:
        return await api.mailbox.ask(node, number, epoch, rank, offset, limit)
    try:
        part = await asyncio.to_thread(read_part, layout.rank(number, epoch, rank), offset, min(limit, MOST_BYTES))
    except OSError as error:
        raise NoAnswer(f"node {node} is gone, and its log is not in {layout.home} ({error.strerror})") from None
    return Reply(0, part.text, part.offset, part.next, part.size)


async def _follow(
    api: Api, may: Callable[[], Token], job: str, rank: int, offset: int, limit: int
) -> AsyncIterator[str]:
    """The log of the newest attempt, then of the next one, until the job has ended and all of it was sent.

    Between attempts an event `notice` explains why the job does not run and when the next attempt begins. `may` raises
    `Denied` once the token is revoked, for open streams, too.
    """
    epoch, said, patience, noticed = 0, time.monotonic(), 0, 0
    while not api.closing.is_set():
        try:
            token = may()
        except Denied as error:
            yield _event({"message": str(error)}, "error")
            return
        row = await api.row(job, token)
        tries = {a["epoch"]: a for a in row["attempts"]}
        newest = max(tries, default=0)
        over = row["state"] in serializers.FINAL
        part: dict[str, Any] | None = None
        if newest:
            epoch = epoch or newest
            try:
                part = await _part(api, row, rank, offset, limit, epoch)
                patience = 0
            except (NoAnswer, LookupError) as error:
                patience += 1
                if over or patience == 20:
                    yield _event({"message": str(error.args[0])}, "error")
                    return
        if part and part["text"]:
            offset, said = part["next"], time.monotonic()
            yield _event(part)
        elif newest > epoch:
            if epoch:
                yield _event({"message": _between(tries[epoch], noticed) + f"attempt {newest} begins"}, "notice")
            epoch, offset, noticed = newest, 0, epoch
        elif over:
            yield _event({"state": row["state"]}, "end")
            return
        elif epoch and noticed != epoch and tries[epoch]["outcome"]:
            noticed = epoch
            yield _event({"message": _between(tries[epoch], 0) + "the job waits to start again"}, "notice")
        else:
            if time.monotonic() - said > QUIET_S:
                said = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(FOLLOW_S)


def _between(attempt: dict[str, Any], noticed: int) -> str:
    """How an attempt ended, unless that was in the stream already."""
    if noticed == attempt["epoch"]:
        return ""
    cause = attempt["cause"]
    why = f" ({cause})" if cause and cause != attempt["outcome"] else ""
    return f"attempt {attempt['epoch']} is over: {attempt['outcome'] or 'it ended'}{why}; "


def _event(data: dict[str, Any], kind: str = "") -> str:
    return (f"event: {kind}\n" if kind else "") + f"data: {json.dumps(data)}\n\n"
