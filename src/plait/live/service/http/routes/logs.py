"""Output of the processes of a job: parts of it, or a continuing stream."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from plait.core.errors import Conflict
from plait.live.agent.logs import MOST_BYTES, read_part
from plait.live.api.jobs import FINAL, ConsoleOutput, JobAttempt, LogPart
from plait.live.protocol.profile_keys import processes_per_gpu
from plait.live.protocol.requests import most_gpus
from plait.live.protocol.wire import ConsoleAsk, Reply
from plait.live.service.http.api import Api, Call, Routes
from plait.live.service.http.auth import Denied
from plait.live.service.http.bodies import LARGEST, ConsoleIn, Invalid
from plait.live.service.logs import NoAnswer
from plait.live.store.schema import StoredJob

#: Parts of a log: default, at most.
PART, LARGEST_PART = 65_536, 1_000_000
#: How often a log is looked at that does not grow, and after how long something is sent anyway: clients wait 5 s.
FOLLOW_S, QUIET_S = 0.3, 2.0

ROUTES = Routes("jobs")


class LogQuery(Struct, frozen=True):
    """Which part of a log."""

    rank: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """Which process of the job."""
    offset: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """Where to begin, bytes since the process started."""
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PART)] = PART
    """Bytes at most."""
    epoch: Annotated[int, Meta(ge=1, le=LARGEST)] | None = None
    """Which attempt; the newest if left out."""
    follow: bool = False
    """A stream that goes on until the job has ended."""


@ROUTES.get(
    "/v1/jobs/{job}/logs", LogPart, query=LogQuery, own=True,
    texts=(("text/event-stream", "With `follow=1`: parts, notices and the end."),),
)  # fmt: skip
async def logs(call: Call, query: LogQuery) -> LogPart | Response:
    """Part of what a process wrote: text, where it begins, where the next part does, the whole size in bytes.

    With `follow=1` a stream of such parts as server-sent events, and an event `end` when the job has ended.
    """
    job = await call.job()
    ranks = most_gpus(job.request) * processes_per_gpu(job.request)
    if query.rank >= ranks:
        raise LookupError(f"job {job.row.id} has ranks 0 to {ranks - 1}; there is no rank {query.rank}")
    if query.follow:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = _follow(call, job.row.id, query.rank, query.offset, query.limit)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
    if query.epoch is None and not job.attempts:
        return LogPart(text="", offset=0, next=0, size=0, epoch=0, rank=query.rank)
    return await _part(call.api, job, query.rank, query.offset, query.limit, query.epoch)


@ROUTES.post(
    "/v1/jobs/{job}/consoles/{console}", ConsoleOutput, body=ConsoleIn, roles=("admin", "user"), own=True,
    conflict="The job does not run, or its node refused.",
)  # fmt: skip
async def console(call: Call, given: ConsoleIn) -> ConsoleOutput:
    """Run a program next to a process of a running job, with its environment; send input to it, and get its output.

    The client names the console, starts it with the first request, and repeats requests until there is an exit code.
    A console that nobody asks for two minutes is ended, and each ends with the job's process.
    """
    job = await call.job(change=True)
    attempt = max(job.attempts, key=lambda one: one.epoch, default=None)
    if attempt is None or job.row.state in FINAL or attempt.state != "running":
        raise Conflict(f"job {job.row.id} is {job.row.state}, and does not run")
    if given.rank >= len(attempt.ranks):
        raise LookupError(f"job {job.row.id} has ranks 0 to {len(attempt.ranks) - 1}; there is no rank {given.rank}")
    name = call.path["console"]
    if not re.fullmatch(r"[A-Za-z0-9-]{8,64}", name):
        raise Invalid("needs 8 to 64 letters, digits and dashes", "console")
    fields = {key: value for key, value in msgspec.structs.asdict(given).items() if key != "rank"}
    ask = ConsoleAsk(f"{job.row.id}/{name}", **fields)
    node = attempt.ranks[given.rank].node
    reply = await call.api.mailbox.ask(node, job.row.number, attempt.epoch, given.rank, console=ask)
    if reply.console is None:
        raise Conflict(f"node {node}: {reply.error or 'its agent knows no consoles'}")
    return ConsoleOutput(**vars(reply.console))


async def _part(api: Api, job: StoredJob, rank: int, offset: int, limit: int, epoch: int | None = None) -> LogPart:
    tries = {one.epoch: one for one in job.attempts}
    attempt = tries.get(epoch if epoch is not None else max(tries))
    if attempt is None:
        raise LookupError(f"job {job.row.id} has no attempt {epoch}; it has {len(tries)}")
    if rank >= len(attempt.ranks):
        last = len(attempt.ranks) - 1
        raise LookupError(f"attempt {attempt.epoch} of job {job.row.id} has ranks 0 to {last}")
    node = attempt.ranks[rank].node
    reply = await _read(api, node, job.row.number, attempt.epoch, rank, offset, limit)
    if reply.error and job.row.state == "starting" and attempt.epoch == max(tries):  # it has not begun to write
        return LogPart(text="", offset=offset, next=offset, size=0, epoch=attempt.epoch, rank=rank)
    if reply.error:
        raise LookupError(f"node {node}: {reply.error}")
    following = reply.next or reply.offset + len(reply.text.encode())
    return LogPart(
        text=reply.text, offset=reply.offset, next=following, size=reply.size, epoch=attempt.epoch, rank=rank
    )


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


async def _follow(call: Call, job: str, rank: int, offset: int, limit: int) -> AsyncIterator[str]:
    """The log of the newest attempt, then of the next one, until the job has ended and all of it was sent.

    Between attempts an event `notice` explains why the job does not run and when the next attempt begins. The token is
    checked again at each turn: it may be revoked while the stream is open.
    """
    api = call.api
    epoch, said, patience, noticed = 0, time.monotonic(), 0, 0
    while not api.closing.is_set():
        try:
            token = api.tokens.who(call.request.headers.get("authorization"))
        except Denied as error:
            yield _event({"message": str(error)}, "error")
            return
        found = await api.stored(job, token)
        tries = {one.epoch: one for one in found.attempts}
        newest = max(tries, default=0)
        over = found.row.state in FINAL
        part: LogPart | None = None
        if newest:
            epoch = epoch or newest
            try:
                part = await _part(api, found, rank, offset, limit, epoch)
                patience = 0
            except (NoAnswer, LookupError) as error:
                patience += 1
                if over or patience == 20:
                    yield _event({"message": str(error.args[0])}, "error")
                    return
        if part and part.text:
            offset, said = part.next, time.monotonic()
            yield _event(part)
        elif newest > epoch:
            if epoch:
                yield _event({"message": _between(tries[epoch], noticed) + f"attempt {newest} begins"}, "notice")
            epoch, offset, noticed = newest, 0, epoch
        elif over:
            yield _event({"state": found.row.state}, "end")
            return
        elif epoch and noticed != epoch and tries[epoch].state != "running":
            noticed = epoch
            yield _event({"message": _between(tries[epoch], 0) + "the job waits to start again"}, "notice")
        else:
            if time.monotonic() - said > QUIET_S:
                said = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(FOLLOW_S)


def _between(attempt: JobAttempt, noticed: int) -> str:
    """How an attempt ended, unless that was in the stream already."""
    if noticed == attempt.epoch:
        return ""
    state = "it ended" if attempt.state == "running" else attempt.state
    why = f" ({attempt.reason})" if attempt.reason and attempt.reason != attempt.state else ""
    return f"attempt {attempt.epoch} is over: {state}{why}; "


def _event(data: Any, kind: str = "") -> str:
    """One event; its data is ASCII, as readers split streams at every line separator of Unicode."""
    return (f"event: {kind}\n" if kind else "") + f"data: {json.dumps(msgspec.to_builtins(data))}\n\n"
