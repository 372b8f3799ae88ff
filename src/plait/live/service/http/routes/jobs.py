"""Jobs: submit, list, show, change, cancel, explain, and what happened to them."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from plait.live.agent.processes.node_environment import node_environment, passed
from plait.live.layout import job_name
from plait.live.protocol.runnable import missing
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.explain import views
from plait.live.service.http import serializers
from plait.live.service.http.answers.explained import Explanation
from plait.live.service.http.answers.jobs import (
    CancelledJob,
    ChangedJob,
    JobColumns,
    JobId,
    JobRow,
    SubmittedJob,
    WholeJob,
)
from plait.live.service.http.api import Api, Json, api_of
from plait.live.service.http.auth import Denied, only_of, owns
from plait.live.service.http.models import LARGEST, ForecastIn, Invalid, JobIn, JobsIn, RequeueIn, UpdateIn, parse
from plait.live.service.http.openapi.messages import ENTRIES
from plait.live.service.http.openapi.routes import JobName, answers
from plait.live.service.what_if import Busy
from plait.live.store import Token

#: Addresses of this machine for itself.
_LOOPBACK = ("127.0.0.1", "::1")
#: Characters of a key.
KEY = r"^[!-~]+$"
#: The header that lets a request be sent again.
Key = Annotated[
    str | None, Header(alias="Idempotency-Key", pattern=KEY, max_length=100, description="Chosen by the client.")
]
_ANOTHER = "A submission with other jobs had this key."
_REUSED = "The job has ended, or would lose work, or another request had this key."
#: Some fields of a job, which are checked together with its current ones.
_DIFFERENT = {"type": "object", "description": "Fields of a submission that are to be different."}
_OVER = "The job has ended."
router = APIRouter(tags=["jobs"])


@router.post(
    "/v1/jobs",
    **answers(SubmittedJob | list[SubmittedJob], body=(JobIn, JobsIn), roles=("admin", "user"), conflict=_ANOTHER),
)
async def submit(request: Request, key: Key = None) -> Response:
    """Submit one job, or several, all or none; they are stored when the answer comes.

    With an `Idempotency-Key` it may be repeated: the same key of the same user gets the jobs of the first time.
    """
    api = api_of(request)
    token = api.who(request, "admin", "user")
    data = await api.body(request)
    several = isinstance(data, dict) and "jobs" in data
    jobs = parse(JobsIn, data).jobs if several else [parse(JobIn, data)]
    requests = [in_project(job.request(), token) for job in jobs]
    await check_files(api, requests, several=several)
    numbers, remarks = await api.worker.call(
        lambda engine, now_s: (
            _submit(engine, requests, token, now_s, key),
            [engine.remarks(request) for request in requests],
        )
    )
    answer: list[dict[str, Any]] = [{"id": job_name(n), "number": n} for n in numbers]
    for job, said in zip(answer, remarks, strict=True):
        if said:
            job["remarks"] = said
    return Json(answer if several else answer[0])


@router.get("/v1/jobs", **answers(list[JobRow] | JobColumns))
async def list_jobs(
    request: Request,
    state: str | None = Query(None, description="Only jobs in these states, separated by commas."),
    user: str | None = Query(None, description="Only jobs of this user."),
    text: str = Query(
        "",
        max_length=200,
        description="Only jobs with this in id, user, project, model or nodes, or in a name or command that you "
        "may see; in any case.",
    ),
    limit: int = Query(100, ge=1, le=10_000, description="Jobs at most."),
    offset: int = Query(0, ge=0, le=LARGEST, description="Jobs to skip."),
    columns: bool = Query(False, description="Answer columns instead of rows."),
) -> Response:
    """Jobs, newest first; `state` may be several, separated by commas.

    With `columns=1` an object of columns, `now_s` and what is known `more` of jobs that run: half the bytes.
    """
    api = api_of(request)
    token = api.who(request)
    states = [s for s in (state or "").split(",") if s]
    for one in states:
        if one not in views.STATES:
            raise Invalid(f"{one[:40]!r} is no state; known: {', '.join(views.STATES)}", "state")
    mine = only_of(token)
    found = await asyncio.to_thread(
        api.store.job_columns, states=states, owner=user, text=text, mine=mine, limit=limit, offset=offset
    )
    shown = zip(found["number"], found["state"], strict=True)
    open_ones = [number for number, now in shown if now not in serializers.FINAL]
    live = await api.worker.look(lambda engine, now_s: (now_s, engine.fields(open_ones)))
    return await asyncio.to_thread(_listed, found, live, token, columns)


@router.get("/v1/jobs/{job}", **answers(WholeJob, own=True))
async def show(request: Request, job: JobName) -> Response:
    """Everything about one job."""
    api = api_of(request)
    token = api.who(request)
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=False)
    live = await api.live(row["number"])
    secrets = token.role == "admin" or token.user == row["owner"]
    return Json(serializers.whole_job(row, live, api.worker.clock(), secrets=secrets))


@router.delete("/v1/jobs/{job}", **answers(CancelledJob, roles=("admin", "user"), own=True, conflict=_OVER))
async def cancel(request: Request, job: JobName) -> Response:
    """Cancel a job; asking twice is the same as once."""
    api = api_of(request)
    token = api.who(request, "admin", "user")
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=True)
    number = row["number"]
    if row["state"] != "cancelled":
        try:
            await api.worker.call(lambda engine, now_s: engine.cancel(number, now_s, by=token.user))
        except Conflict:
            row = await api.row(job, token)
            live = await api.live(number)
            if row["state"] != "cancelled" and live.get("state") not in ("stopping", "cancelled"):
                raise
    return Json({"id": job, "state": (await api.live(number)).get("state", "cancelled")})


@router.patch(
    "/v1/jobs/{job}", **answers(ChangedJob, body=UpdateIn, roles=("admin", "user"), own=True, conflict=_REUSED)
)
async def update(request: Request, job: JobName, key: Key = None) -> Response:
    """Change priority, class, deadline or size of a job that waits or runs.

    A size that no longer fits stops a running job after a checkpoint, and it continues at the new size; all else counts
    from the next decision on and touches no process. With an `Idempotency-Key` it may be sent again.
    """
    api = api_of(request)
    token = api.who(request, "admin", "user")
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=True)
    said, number = parse(UpdateIn, await api.body(request)), row["number"]

    def change(engine: Engine, now_s: float) -> list[str]:
        engine.update(
            number, said.fields(), now_s, by=token.user, key=key, may_lose_work=said.may_lose_work
        )  # fmt: skip
        known = engine.state.jobs.get(number)
        return [] if known is None else engine.remarks(known.request)

    return await _changed(api, number, token, await api.worker.call(change))


@router.post(
    "/v1/jobs/{job}/requeue",
    **answers(ChangedJob, body=RequeueIn, body_required=False, roles=("admin", "user"), own=True, conflict=_REUSED),
)
async def requeue(request: Request, job: JobName, key: Key = None) -> Response:
    """Send a job back to the queue: it stops after a checkpoint and waits again, and no failure is counted.

    A job that has ended is not run again under its name; see `clone`. With an `Idempotency-Key` it may be sent again.
    """
    api = api_of(request)
    token = api.who(request, "admin", "user")
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=True)
    said = parse(RequeueIn, await api.body(request) if await request.body() else {})
    number = row["number"]
    await api.worker.call(
        lambda engine, now_s: engine.requeue(
            number, now_s, by=token.user, key=key, may_lose_work=said.may_lose_work
        )
    )  # fmt: skip
    return await _changed(api, number, token, [])


@router.post(
    "/v1/jobs/{job}/clone",
    **answers(SubmittedJob, body=_DIFFERENT, body_required=False, roles=("admin", "user"), own=True, conflict=_ANOTHER),
)
async def clone(request: Request, job: JobName, key: Key = None) -> Response:
    """Submit a job like this one, of any state, as a new job of the caller; it starts from scratch.

    The body has the fields that are to be different, as in a submission; null: as if it had not been given.
    """
    api = api_of(request)
    token = api.who(request, "admin", "user")
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=True)
    different = await api.body(request) if await request.body() else {}
    if not isinstance(different, dict):
        raise Invalid("needs an object of the fields that are to be different")
    fields = {name: value for name, value in {**row["request"], **different}.items() if value is not None}
    wanted = in_project(parse(JobIn, fields).request(), token)
    await check_files(api, [wanted])
    (number,), remarks = await api.worker.call(
        lambda engine, now_s: (_submit(engine, [wanted], token, now_s, key), engine.remarks(wanted))
    )
    return Json({"id": job_name(number), "number": number, **({"remarks": remarks} if remarks else {})})


async def _changed(api: Api, number: int, token: Token, remarks: list[str]) -> Response:
    """A job after a change of it."""
    state = (await api.live(number)).get("state") or (await api.row(job_name(number), token))["state"]
    return Json({"id": job_name(number), "state": state, **({"remarks": remarks} if remarks else {})})


@router.get("/v1/jobs/{job}/explain", **answers(Explanation, own=True))
async def explain(request: Request, job: JobName) -> Response:
    """Why it waits and what would start it now; or how it runs."""
    api = api_of(request)
    token = api.who(request)
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=False)
    number = row["number"]
    try:
        found, question, copy = await api.worker.look(
            lambda engine, now_s: (*api.what_if.explain(engine, number, now_s), api.what_if.queue(engine, now_s))
        )
    except LookupError:
        row = await api.row(job, token)
        found = {"id": job, "number": number, "state": row["state"], "summary": row["reason"]}
        found["started"] = bool(row["attempts"])
        if row["request"].get("batch"):
            found["attempts"] = [serializers.attempt(one) for one in row["attempts"]]
        return Json(found)
    answer = None if question is None else api.what_if.ask(question)
    if answer is not None:
        found["would_start"] = await asyncio.shield(asyncio.wrap_future(answer))
    elif question is not None:
        found["note"] = "many ask at the moment: ask again for what would start it"
    if copy is not None:
        try:
            later = api.what_if.later(lambda: api.what_if.forecast(copy, number), token.user)
        except Busy as error:
            found["note"] = str(error)
        else:
            found["forecast"] = await asyncio.shield(asyncio.wrap_future(later))
    return Json(found)


@router.post("/v1/jobs/{job}/forecast", **answers(JobId, body=ForecastIn, roles=("admin", "user"), own=True))
async def tell_forecast(request: Request, job: JobName) -> Response:
    """Keep a forecast that a client made of its job: what comes of it makes later ones honest."""
    api = api_of(request)
    token = api.who(request, "admin", "user")
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=True)
    said = parse(ForecastIn, await api.body(request))
    number = row["number"]
    await api.worker.call(lambda engine, now_s: engine.foreseen(number, said.start, said.end, now_s))
    return Json({"id": job})


@router.get("/v1/jobs/{job}/events", **answers(ENTRIES, own=True))
async def job_events(
    request: Request,
    job: JobName,
    after: int = Query(0, ge=0, le=LARGEST, description="The entry to begin after, its `seq`."),
    limit: int = Query(1000, ge=1, le=5000, description="Entries at most."),
    newest: bool = Query(False, description="The last entries instead of the first."),
) -> Response:
    """Log entries of a job, oldest first: `limit` entries after entry `after`, or with `newest=1` the last ones."""
    api = api_of(request)
    token = api.who(request)
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=False)
    number = row["number"]

    def read() -> Response:
        entries = api.store.entries(after, limit, number, newest)
        shown = (serializers.entry(entry, secrets=token.role == "admin") for entry in entries)
        return Json({"events": [_only(entry, number, token) for entry in shown]})

    return await asyncio.to_thread(read)


def _submit(engine: Engine, requests: list[dict[str, Any]], token: Token, now_s: float, key: str | None) -> list[int]:
    """Store the jobs; `InputError` for one of a project that does not exist."""
    for project in dict.fromkeys(str(request["project"]) for request in requests):
        if project != token.project:
            engine.check_project(project)
    return engine.submit(requests, owner=token.user, now_s=now_s, key=key)


async def check_files(api: Api, requests: list[dict[str, Any]], *, several: bool = False) -> None:
    """Raise `Invalid` for a job whose folder, program or script is not there, as `plait submit` does.

    Files are looked for only if all nodes run on this machine; other machines may have others.
    """

    def nodes(engine: Engine, _: float) -> list[tuple[str, str]]:
        return [(one.id, one.address) for one in engine.state.nodes.values() if not one.lost]

    known, layout = await api.worker.look(nodes), api.worker.engine.layout

    def check() -> None:
        here = bool(known) and all(at in _LOOPBACK and layout.lease(name).exists() for name, at in known)
        path = node_environment(os.environ, passed(layout.home, os.environ))["PATH"] if here else None
        for i, request in enumerate(requests):
            if (found := missing(request, path)) is not None:
                raise Invalid(found.reason, f"jobs.{i}.{found.field}" if several else found.field)

    await asyncio.to_thread(check)


def in_project(request: dict[str, Any], token: Token) -> dict[str, Any]:
    """The request with its project; raises `Denied` for one of others."""
    project = request.setdefault("project", token.project)
    if token.role != "admin" and project != token.project:
        raise Denied(403, f"{token.user} belongs to project {token.project}, not {project}")
    return request


def _only(entry: dict[str, Any], number: int, token: Token) -> dict[str, Any]:
    """The requested job of a submission of several."""
    event = entry["event"]
    if event["type"] == "Requested":
        event["requests"] = [event["requests"][number - event["first"]]]
        event["first"] = number
    elif event["type"] == "JobSubmitted" and token.role == "user":
        event["jobs"] = [event["jobs"][number - event["first"]]]
        event["first"] = number
    return entry


def _listed(
    found: dict[str, list[Any]], live: tuple[float, dict[int, dict[str, Any]]], token: Token, columns: bool
) -> Response:
    now_s, fields = live
    only = only_of(token)
    if columns:
        return Json(serializers.table(found, fields, now_s, only))
    none: dict[str, Any] = {}
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return Json(
        [
            serializers.job(row, fields.get(row["number"], none), now_s, mine=only in (None, row["owner"]))
            for row in rows
        ]
    )
