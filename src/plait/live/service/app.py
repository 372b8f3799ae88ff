"""The HTTP API. Handlers check who asks and what, and leave the rest to the engine and the store."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as to_json_bytes

from plait import __version__
from plait.core.errors import InputError, PlaitError
from plait.live import views
from plait.live.engine import Conflict, Engine
from plait.live.layout import job_name, job_number
from plait.live.service import shapes
from plait.live.service.auth import Denied, Tokens, need, owns
from plait.live.service.limits import BodyLimit
from plait.live.service.logs import Mailbox, NoAnswer
from plait.live.service.metrics import Metrics
from plait.live.service.models import (
    BackupIn,
    ErrorOut,
    Invalid,
    JobIn,
    JobOut,
    JobsIn,
    PolicyIn,
    ProjectIn,
    TokenIn,
    parse,
)
from plait.live.service.worker import Stopped, Worker
from plait.live.store import Store, StoreError, Token
from plait.live.wire import Assignment, Observed, Reply, WireError, from_json, to_json
from plait.policies.catalog import make_policy

#: An agent's question is held back this long at most.
LONG_POLL_S = 1.0
#: Parts of a log: default, at most; and how often a log is looked at that does not grow.
PART, LARGEST_PART = 65_536, 1_000_000
FOLLOW_S = 0.3
_LOG = logging.getLogger("plait.service")


class Json(Response):
    """Plain values as JSON, without a detour through models."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact; numbers that are none become null, half characters a question mark."""
        try:
            return to_json_bytes(content, inf_nan_mode="null")
        except PydanticSerializationError:
            return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


class Api:
    """What all handlers share."""

    def __init__(self, store: Store, worker: Worker, tokens: Tokens, mailbox: Mailbox, begin: float) -> None:
        """Parts of one service."""
        self.store, self.worker, self.tokens, self.mailbox, self.begin = store, worker, tokens, mailbox, begin
        self.metrics = Metrics(worker)
        self.closing = asyncio.Event()

    def who(self, request: Request, *roles: str) -> Token:
        """Whose request it is, if they may; raises `Denied`."""
        token = self.tokens.who(request.headers.get("authorization"))
        need(token, *(roles or ("admin", "user", "viewer")))
        return token

    async def body(self, request: Request) -> Any:
        """The request's JSON; raises `Invalid`."""
        try:
            return json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the body is not JSON: {error}", status=400) from None

    async def row(self, name: str) -> dict[str, Any]:
        """The job of this name; raises LookupError."""
        number = job_number(name) if len(name) <= 20 else None
        row = None if number is None else await asyncio.to_thread(self.store.job, number)
        if row is None:
            raise LookupError(f"no job {name[:40]!r}; `plait ls` shows those there are")
        return row

    async def live(self, number: int) -> dict[str, Any]:
        """What memory knows of a job."""
        found: dict[str, Any] = await self.worker.call(lambda engine, now: views.live_fields(engine, number))
        return found


def make_app(api: Api) -> FastAPI:
    """The application."""
    errors: dict[int | str, dict[str, Any]] = {
        code: {"model": ErrorOut} for code in (400, 401, 403, 404, 409, 413, 422)
    }
    app = FastAPI(
        title="plait", version=__version__, description="A scheduler for deep-learning clusters.", responses=errors,
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.state.api = api
    _handle_errors(app)
    _jobs(app, api)
    _logs(app, api)
    _cluster(app, api)
    _admin(app, api)
    _agents(app, api)
    app.add_middleware(BodyLimit, metrics=api.metrics)
    return app


def problem(status: int, message: str, field: str | None = None, next_step: str | None = None) -> Response:
    """An error as every client gets it."""
    error: dict[str, Any] = {"message": message}
    if field:
        error["field"] = field
    if next_step:
        error["next"] = next_step
    return Json({"error": error}, status_code=status)


def _handle_errors(app: FastAPI) -> None:
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    def add(kind: type[Exception], answer: Callable[[Any], Response]) -> None:
        async def handler(request: Request, error: Exception) -> Response:
            return answer(error)

        app.add_exception_handler(kind, handler)

    def validation(error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return problem(422, str(first["msg"]), ".".join(str(p) for p in first["loc"][1:]) or None)

    add(Denied, lambda e: problem(e.status, str(e), next_step=e.next_step))
    add(Invalid, lambda e: problem(e.status, str(e), e.field))
    add(LookupError, lambda e: problem(404, str(e.args[0]) if e.args else "not there"))
    add(Conflict, lambda e: problem(409, str(e)))
    add(StoreError, lambda e: problem(500, str(e)))
    add(InputError, lambda e: problem(422, str(e)))
    add(WireError, lambda e: problem(422, str(e)))
    add(NoAnswer, lambda e: problem(503, str(e), next_step="plait nodes"))
    add(Stopped, lambda e: problem(503, str(e)))
    add(PlaitError, lambda e: problem(500, str(e)))
    add(RequestValidationError, validation)
    add(HTTPException, lambda e: problem(e.status_code, str(e.detail)))
    add(Exception, lambda e: problem(500, f"{type(e).__name__}; the service's log has more"))


# -- jobs -----------------------------------------------------------------------------------------------


def _jobs(app: FastAPI, api: Api) -> None:
    both = {"anyOf": [JobIn.model_json_schema(), JobsIn.model_json_schema()]}
    described = {"requestBody": {"required": True, "content": {"application/json": {"schema": both}}}}

    @app.post("/v1/jobs", response_model=JobOut | list[JobOut], openapi_extra=described)
    async def submit(request: Request) -> Response:
        """Submit one job, or several, all or none; they are stored when the answer comes."""
        token = api.who(request, "admin", "user")
        data = await api.body(request)
        several = isinstance(data, dict) and "jobs" in data
        jobs = parse(JobsIn, data).jobs if several else [parse(JobIn, data)]
        requests = [_in_project(job.request(), token) for job in jobs]
        numbers = await api.worker.call(lambda engine, now: engine.submit(requests, owner=token.user, now=now))
        answer = [{"id": job_name(n), "number": n} for n in numbers]
        return Json(answer if several else answer[0])

    @app.get("/v1/jobs")
    async def list_jobs(
        request: Request, state: str | None = None, user: str | None = None,
        limit: int = Query(100, ge=1, le=10_000), offset: int = Query(0, ge=0), columns: bool = False,
    ) -> Response:  # fmt: skip
        """Jobs, newest first; `state` may be several, separated by commas.

        With `columns=1` an object of columns, `now_s` and what is known `more` of jobs that run: half the bytes.
        """
        token = api.who(request)
        states = [s for s in (state or "").split(",") if s]
        for one in states:
            if one not in views.STATES:
                raise Invalid(f"{one[:40]!r} is no state; known: {', '.join(views.STATES)}", "state")
        found = await asyncio.to_thread(api.store.job_columns, states=states, owner=user, limit=limit, offset=offset)
        shown = zip(found["number"], found["state"], strict=True)
        open_ones = [number for number, now in shown if now not in shapes.FINAL]
        live = await api.worker.call(lambda engine, now: (now, engine.fields(open_ones)))
        return await asyncio.to_thread(_listed, found, live, token, columns)

    @app.get("/v1/jobs/{job}")
    async def show(request: Request, job: str) -> Response:
        """Everything about one job."""
        token, row = api.who(request), await api.row(job)
        owns(token, job, row["owner"], change=False)
        live = await api.live(row["number"])
        secrets = token.role == "admin" or token.user == row["owner"]
        return Json(shapes.whole_job(row, live, api.worker.clock(), secrets=secrets))

    @app.delete("/v1/jobs/{job}")
    async def cancel(request: Request, job: str) -> Response:
        """Take a job back; asking twice is the same as once."""
        token, row = api.who(request, "admin", "user"), await api.row(job)
        owns(token, job, row["owner"], change=True)
        number = row["number"]
        if row["state"] != "cancelled":
            try:
                await api.worker.call(lambda engine, now: engine.cancel(number, now))
            except Conflict:
                row = await api.row(job)
                live = await api.live(number)
                if row["state"] != "cancelled" and live.get("state") not in ("stopping", "cancelled"):
                    raise
        return Json({"id": job, "state": (await api.live(number)).get("state", "cancelled")})

    @app.get("/v1/jobs/{job}/explain")
    async def explain(request: Request, job: str) -> Response:
        """Why it waits and what would start it now; or how it runs."""
        token, row = api.who(request), await api.row(job)
        owns(token, job, row["owner"], change=False)
        number = row["number"]
        try:
            found = await api.worker.call(lambda engine, now: engine.explain(number, now))
        except LookupError:
            ended = (await api.row(job))["state"]
            found = {"id": job, "number": number, "state": ended, "summary": row["reason"] or f"it has {ended}"}
        return Json(found)

    @app.get("/v1/jobs/{job}/events")
    async def job_events(request: Request, job: str) -> Response:
        """What happened to one job, oldest first."""
        token, row = api.who(request), await api.row(job)
        owns(token, job, row["owner"], change=False)
        entries = await asyncio.to_thread(lambda: list(api.store.entries(job=row["number"], limit=5000)))
        shown = [shapes.entry(e, secrets=token.role == "admin") for e in entries]
        return Json({"events": [_only(e, row["number"], token) for e in shown]})


def _in_project(request: dict[str, Any], token: Token) -> dict[str, Any]:
    project = request.setdefault("project", token.project)
    if token.role != "admin" and project != token.project:
        raise Denied(403, f"{token.user} belongs to project {token.project}, not {project}")
    return request


def _only(entry: dict[str, Any], number: int, token: Token) -> dict[str, Any]:
    """Of a submission of several jobs, the one that was asked about."""
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
    only = None if token.role in ("admin", "viewer") else token.user
    if columns:
        return Json(shapes.table(found, fields, now_s, only))
    none: dict[str, Any] = {}
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return Json(
        [shapes.job(row, fields.get(row["number"], none), now_s, mine=only in (None, row["owner"])) for row in rows]
    )


# -- logs -----------------------------------------------------------------------------------------------


def _logs(app: FastAPI, api: Api) -> None:
    @app.get("/v1/jobs/{job}/logs")
    async def logs(
        request: Request, job: str, rank: int = Query(0, ge=0), offset: int = Query(0, ge=0),
        limit: int = Query(PART, ge=1, le=LARGEST_PART), epoch: int | None = Query(None, ge=1), follow: bool = False,
    ) -> Response:  # fmt: skip
        """Part of what a process wrote: text, where it begins, where the next part does, the whole size in bytes.

        With `follow=1` a stream of such parts as server-sent events, and an event `end` when the job has ended.
        """
        token, row = api.who(request), await api.row(job)
        owns(token, job, row["owner"], change=False)
        if rank >= row["gpus"]:
            raise LookupError(f"job {job} has ranks 0 to {row['gpus'] - 1}; there is no rank {rank}")
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
    node = attempt["ranks"][rank]["node"]
    reply: Reply = await api.mailbox.ask(node, row["number"], attempt["epoch"], rank, offset, limit)
    if reply.error:
        raise LookupError(f"node {node}: {reply.error}")
    following = reply.next or reply.offset + len(reply.text.encode())
    return {
        "text": reply.text, "offset": reply.offset, "next": following, "size": reply.size, "epoch": attempt["epoch"],
        "rank": rank,
    }  # fmt: skip


async def _follow(
    api: Api, may: Callable[[], object], job: str, rank: int, offset: int, limit: int
) -> AsyncIterator[str]:
    """The log of the newest attempt, then of the next one, until the job has ended and all of it was sent.

    `may` raises `Denied` once the token was revoked: a stream that is open is no way around that.
    """
    epoch, quiet, patience = 0, 0.0, 0
    while not api.closing.is_set():
        try:
            may()
        except Denied as error:
            yield _event({"message": str(error)}, "error")
            return
        row = await api.row(job)
        newest = max((a["epoch"] for a in row["attempts"]), default=0)
        over = row["state"] in shapes.FINAL
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
            offset, quiet = part["next"], 0.0
            yield _event(part)
        elif newest > epoch:
            epoch, offset = newest, 0
        elif over:
            yield _event({"state": row["state"]}, "end")
            return
        else:
            quiet += FOLLOW_S
            if quiet > 10:
                quiet = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(FOLLOW_S)


def _event(data: dict[str, Any], kind: str = "") -> str:
    return (f"event: {kind}\n" if kind else "") + f"data: {json.dumps(data)}\n\n"


# -- the cluster ----------------------------------------------------------------------------------------


def _cluster(app: FastAPI, api: Api) -> None:
    async def status() -> dict[str, Any]:
        found: dict[str, Any] = await api.worker.call(lambda engine, now: engine.status(now))
        counts = await asyncio.to_thread(api.store.counts)
        found["jobs"].update({state: counts.get(state, 0) for state in shapes.FINAL})
        return {**found, "version": __version__, "uptime_s": time.monotonic() - api.begin}

    @app.get("/v1/status")
    async def show_status(request: Request) -> Response:
        """The service in a few figures."""
        api.who(request)
        return Json(await status())

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        api.who(request)
        return PlainTextResponse(api.metrics.render(await status()), media_type="text/plain; version=0.0.4")

    @app.get("/v1/state")
    async def state(request: Request) -> Response:
        """Everything a forward simulation needs."""
        api.who(request)
        found = await api.worker.call(lambda engine, now: engine.state_for_forecast(now))
        return await asyncio.to_thread(Json, found)

    @app.get("/v1/nodes")
    async def nodes(request: Request) -> Response:
        """Nodes, their usage, and who holds their GPUs."""
        api.who(request)
        return Json(await api.worker.call(lambda engine, now: engine.nodes(now)))

    @app.post("/v1/nodes/{node}/{action}")
    async def change_node(request: Request, node: str, action: str) -> Response:
        """Drain: no new work, what runs goes on elsewhere. Resume: work again."""
        api.who(request, "admin")
        if action not in ("drain", "resume"):
            raise LookupError(f"a node can be drained and resumed, not {action[:40]!r}")
        work = Engine.drain if action == "drain" else Engine.resume
        await api.worker.call(lambda engine, now: work(engine, node, now))
        found = await api.worker.call(lambda engine, now: engine.nodes(now))
        return Json(next(n for n in found if n["id"] == node))

    @app.get("/v1/policy")
    async def policy(request: Request) -> Response:
        """The policy that decides."""
        api.who(request)
        return Json(await api.worker.call(_policy))

    @app.put("/v1/policy")
    async def set_policy(request: Request) -> Response:
        """Let another policy decide from now on."""
        api.who(request, "admin")
        wanted = parse(PolicyIn, await api.body(request)).policy
        await asyncio.to_thread(_try_out, wanted)
        await api.worker.call(lambda engine, now: engine.set_policy(wanted, now))
        return Json(await api.worker.call(_policy))

    @app.get("/v1/events")
    async def events(
        request: Request, after: int = Query(0, ge=0), limit: int = Query(1000, ge=1, le=10_000)
    ) -> Response:
        """The event log after an entry."""
        token = api.who(request, "admin", "viewer")

        def read() -> Response:
            shown = [shapes.entry(e, secrets=token.role == "admin") for e in api.store.entries(after, limit)]
            return Json({"events": shown})

        return await asyncio.to_thread(read)


def _try_out(policy: str) -> None:
    """Load and compile what a policy needs: in the engine's thread all users and agents would wait for that."""
    from plait.live.service.main import warm_up

    make_policy(policy)  # raises InputError for one that there is not
    try:
        warm_up(policy)
    except Exception:  # on a cluster of its own; the status will tell how it does on the real one
        _LOG.warning("policy %s failed on an empty cluster", policy, exc_info=True)


def _policy(engine: Engine, now: float) -> dict[str, Any]:
    state = engine.state
    return {"policy": state.policy_text, "error": state.policy_error or None, "round_s": engine.options.round_s}


# -- administration -------------------------------------------------------------------------------------


def _admin(app: FastAPI, api: Api) -> None:
    @app.get("/v1/tokens")
    async def tokens(request: Request) -> Response:
        """Tokens, without their secrets."""
        api.who(request, "admin")
        return Json([_shown(token) for token in api.tokens.all()])

    @app.post("/v1/tokens")
    async def make_token(request: Request) -> Response:
        """A new token; its secret is in this answer and nowhere else."""
        api.who(request, "admin")
        given = parse(TokenIn, await api.body(request))
        now = api.worker.clock()
        secret, token = await asyncio.to_thread(api.tokens.make, given.user, given.role, given.project, now)
        return Json({**_shown(token), "token": secret})

    @app.delete("/v1/tokens/{token_id}")
    async def revoke(request: Request, token_id: str) -> Response:
        """A token that counts no more."""
        api.who(request, "admin")
        if not await asyncio.to_thread(api.tokens.revoke, token_id):
            raise LookupError(f"no token {token_id[:40]!r}; `plait token ls` shows those there are")
        return Json({"id": token_id, "revoked": True})

    @app.get("/v1/projects")
    async def projects(request: Request) -> Response:
        """Projects with quotas and weights."""
        api.who(request)
        return Json(await api.worker.call(_projects))

    @app.post("/v1/projects")
    async def set_project(request: Request) -> Response:
        """Make a project, or change what is given of one; a quota of null lifts it."""
        api.who(request, "admin")
        given = parse(ProjectIn, await api.body(request))

        def work(engine: Engine, now: float) -> dict[str, Any]:
            known = engine.state.projects.get(given.name, {"gpu_quota": None, "weight": 1.0})
            quota = given.quota_gpus if "quota_gpus" in given.model_fields_set else known["gpu_quota"]
            weight = given.weight if given.weight is not None else known["weight"]
            engine.set_project(given.name, gpu_quota=quota, weight=weight, now=now)
            return {"name": given.name, "quota_gpus": quota, "weight": weight}

        return Json(await api.worker.call(work))

    @app.delete("/v1/projects/{name}")
    async def drop_project(request: Request, name: str) -> Response:
        """Forget a project's quota and weight."""
        api.who(request, "admin")
        await api.worker.call(lambda engine, now: engine.drop_project(name, now))
        return Json({"name": name, "gone": True})

    @app.post("/v1/backup")
    async def backup(request: Request) -> Response:
        """A consistent copy of the store, on the machine of the service, for its owner alone."""
        api.who(request, "admin")
        given = parse(BackupIn, await api.body(request))
        path = await asyncio.to_thread(api.store.backup, given.path)
        return Json({"path": str(path), "bytes": path.stat().st_size})


def _projects(engine: Engine, now: float) -> list[dict[str, Any]]:
    held: dict[str, int] = {}
    for number in engine.live:
        job = engine.state.jobs[number]
        held[job.project] = held.get(job.project, 0) + len(job.attempt.gpus if job.attempt else ())
    names = dict.fromkeys([*engine.state.projects, "default", *held])
    known = engine.state.projects
    return [
        {
            "name": name, "quota_gpus": known.get(name, {}).get("gpu_quota"),
            "weight": known.get(name, {}).get("weight", 1.0), "gpus": held.get(name, 0),
        }
        for name in names
    ]  # fmt: skip


def _shown(token: Token) -> dict[str, Any]:
    return {
        "id": token.id, "user": token.user, "role": token.role, "project": token.project,
        "created_s": token.created_s,
    }  # fmt: skip


# -- agents ---------------------------------------------------------------------------------------------


def _agents(app: FastAPI, api: Api) -> None:
    @app.post("/agent/v1/sync")
    async def sync(request: Request) -> Response:
        """An agent tells what it sees and hears what should be; see `plait.live.wire`."""
        api.who(request, "agent")
        observed = from_json(Observed, await api.body(request))
        node = observed.node.id
        address = request.client.host if request.client else "127.0.0.1"
        api.mailbox.take(node, observed.replies)

        def observe(engine: Engine, now: float) -> None:
            engine.observe(observed, now, address)

        def assigned(engine: Engine, _: None) -> Assignment:
            return engine.assignment(node, observed.agent)

        answer = await api.worker.call(observe, assigned)
        asks = api.mailbox.due(node)
        wait_s = min(max(observed.wait_s, 0.0), LONG_POLL_S)
        if answer.version <= observed.reached and answer.term == observed.term and not asks and wait_s > 0:
            await _unless_gone(request, api.mailbox.news(node, answer.version, wait_s))
            answer = await api.worker.call(lambda engine, now: None, assigned)
            asks = api.mailbox.due(node)
        return Json({**to_json(answer), "ask": [to_json(ask) for ask in asks]})


async def _unless_gone(request: Request, waiting: Awaitable[None]) -> None:
    """Wait; a service that goes down does not keep agents waiting."""
    closing = asyncio.ensure_future(request.app.state.api.closing.wait())
    news = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait({closing, news}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        closing.cancel()
        news.cancel()


__all__ = ["Api", "make_app", "problem"]
