"""Administration: tokens, projects, backup; and the requests of agents."""

import asyncio
import math
from dataclasses import replace
from typing import Any, cast

from msgspec import UNSET
from starlette.responses import Response

from plait.core.errors import Conflict, InputError
from plait.core.words import counted
from plait.live.api.admin import (
    BackupMade,
    Me,
    NewToken,
    ProjectGone,
    ProjectRow,
    ProjectSettings,
    RevokedToken,
    Role,
    TokenRow,
)
from plait.live.layout import make_private
from plait.live.protocol.requests import needs_no_gpu
from plait.live.protocol.wire import Assignment, Observed, encode
from plait.live.scheduler.engine import Engine
from plait.live.service.http.api import Api, Call, Routes
from plait.live.service.http.auth import speaks_for
from plait.live.service.http.bodies import ASSIGNMENT, REPORT, BackupIn, ProjectIn, TokenIn
from plait.live.store import NoRoom, Token

_ADMIN = ("admin",)
ROUTES = Routes("administration")


@ROUTES.get("/v1/me", Me)
async def me(call: Call) -> Me:
    """The caller: user, role and project of the token."""
    return Me(call.token.user, cast("Role", call.token.role), call.token.project)


@ROUTES.get("/v1/tokens", list[TokenRow], roles=_ADMIN)
async def tokens(call: Call) -> list[TokenRow]:
    """Tokens, without their secrets."""
    now = call.api.tokens.now()
    return [TokenRow(**_shown(token, now)) for token in call.api.tokens.all()]


@ROUTES.post("/v1/tokens", NewToken, body=TokenIn, roles=_ADMIN)
async def make_token(call: Call, given: TokenIn) -> NewToken:
    """A new token; its secret is in this answer and nowhere else."""
    tokens = call.api.tokens
    now = tokens.now()
    expires_s = None if given.expires_in_s is None else now + given.expires_in_s
    secret, token = await asyncio.to_thread(
        tokens.make, given.user, given.role, given.project, now, expires_s=expires_s, node=given.node
    )
    return NewToken(**_shown(token, now), token=secret)


@ROUTES.route("DELETE", "/v1/tokens/{token_id}", RevokedToken, roles=_ADMIN)
async def revoke(call: Call) -> RevokedToken:
    """A token that counts no more."""
    name = call.path["token_id"]
    if not await asyncio.to_thread(call.api.tokens.revoke, name):
        raise LookupError(f"no token {name[:40]!r}; `plait token ls` lists the present ones")
    return RevokedToken(name, True)


@ROUTES.get("/v1/projects", list[ProjectRow])
async def projects(call: Call) -> list[ProjectRow]:
    """Projects with quotas and weights."""
    return await call.api.worker.look(_projects)


@ROUTES.post("/v1/projects", ProjectSettings, body=ProjectIn, roles=_ADMIN)
async def set_project(call: Call, given: ProjectIn) -> ProjectSettings:
    """Make a project, or change what is given of one; a quota or time limit of null lifts it."""

    def work(engine: Engine, now_s: float) -> ProjectSettings:
        known = engine.state.projects.get(given.name, {})

        def either(value: Any, name: str) -> Any:
            return known.get(name) if value is UNSET else value

        settings = ProjectSettings(
            given.name,
            either(given.quota_gpus, "gpu_quota"),
            given.weight if given.weight is not None else known.get("weight", 1.0),
            either(given.default_time_s, "default_time_s"),
            either(given.most_time_s, "most_time_s"),
            either(given.most_idle_s, "most_idle_s"),
        )
        engine.set_project(
            given.name,
            gpu_quota=settings.quota_gpus,
            weight=settings.weight,
            default_time_s=settings.default_time_s,
            most_time_s=settings.most_time_s,
            most_idle_s=settings.most_idle_s,
            now_s=now_s,
        )
        return settings

    settings: ProjectSettings = await call.api.worker.call(work)
    return settings


@ROUTES.route(
    "DELETE", "/v1/projects/{name}", ProjectGone, roles=_ADMIN, conflict="Tokens or reservations of nodes name it."
)
async def drop_project(call: Call) -> ProjectGone:
    """Forget a project's quota and weight. Refused while tokens name it: their users' jobs would have no limits."""
    name, now = call.path["name"], call.api.tokens.now()
    tokens = [one for one in call.api.tokens.all() if one.project == name and (one.expires_s or math.inf) > now]
    if tokens and name != "default":  # which is there without settings, too
        named = ", ".join(f"{one.id} of {one.user}" for one in tokens[:5])
        raise Conflict(f"{counted(len(tokens), 'token')} of project {name!r}: {named}; revoke with: plait token revoke")
    await call.api.worker.call(lambda engine, now_s: engine.drop_project(name, now_s))
    return ProjectGone(name, True)


@ROUTES.post("/v1/backup", BackupMade, body=BackupIn, roles=_ADMIN)
async def backup(call: Call, given: BackupIn) -> BackupMade:
    """A consistent copy of the store in the folder of backups of the service, for its owner alone."""
    folder = call.api.backups
    make_private(folder)
    target = (folder / given.path).resolve()
    if folder.resolve() not in target.parents:
        raise InputError(
            f"backups go below {folder}, and path is {given.path!r}; give a name such as copy.db, or another folder "
            "with: plait up --backup-folder"
        )
    path = await asyncio.to_thread(call.api.store.backup, target)
    return BackupMade(str(path), path.stat().st_size)


def _projects(engine: Engine, now_s: float) -> list[ProjectRow]:
    held: dict[str, int] = {}
    for number in engine.state.live:
        job = engine.state.jobs[number]
        if job.attempt and not needs_no_gpu(job.request):
            held[job.project] = held.get(job.project, 0) + len(job.attempt.gpus)
    known, use = engine.state.projects, engine.past_use()
    rows = []
    for name in dict.fromkeys([*known, "default", *held]):
        one = known.get(name, {})
        rows.append(
            ProjectRow(
                name, one.get("gpu_quota"), one.get("weight", 1.0), one.get("default_time_s"), one.get("most_time_s"),
                one.get("most_idle_s"), held.get(name, 0), None if use is None else use.get(name, 0.0),
            )
        )  # fmt: skip
    return rows


def _shown(token: Token, now_s: float) -> dict[str, Any]:
    fields = {field: getattr(token, field) for field in TokenRow.__struct_fields__ if field != "left_s"}
    return {**fields, "left_s": None if token.expires_s is None else round(token.expires_s - now_s, 3)}


# Agents send reports and receive assignments, at once or at the end of a long poll.

#: Longest time that an agent's long poll is held.
LONG_POLL_S = 1.0

OF_AGENTS = Routes("agents")


@OF_AGENTS.post("/agent/v1/sync", ASSIGNMENT, body=REPORT, roles=("agent",))
async def sync(call: Call, observed: Observed) -> Response:
    """Take an agent's report and answer with its assignment; see `plait.live.protocol.wire`."""
    api, request = call.api, call.request
    node = observed.node.id
    speaks_for(call.token, node)
    address = request.client.host if request.client else "127.0.0.1"
    api.mailbox.take(node, observed.replies)

    def observe(engine: Engine, now_s: float) -> None:
        engine.observe(observed, now_s, address)

    def assigned(engine: Engine, _: None) -> Assignment:
        return engine.assignment(node, observed.agent)

    try:
        answer = await api.worker.call(observe, assigned)
    except NoRoom:
        return _json(_current_assignment(api, observed))
    asks = api.mailbox.due(node)
    wait_s = min(max(observed.wait_s, 0.0), LONG_POLL_S)
    if answer.version <= observed.reached and answer.term == observed.term and not asks and wait_s > 0:
        await api.mailbox.news(node, answer.version, wait_s)
        try:
            answer = await api.worker.call(lambda engine, now_s: None, assigned)
        except NoRoom:
            return _json(_current_assignment(api, observed))
        asks = api.mailbox.due(node)
    return _json(replace(answer, ask=asks))


def _json(answer: Assignment) -> Response:
    return Response(encode(answer), media_type="application/json")


def _current_assignment(api: Api, report: Observed) -> Assignment:
    """While nothing can be stored: jobs run on under their lease, nothing is begun, stopped or forgotten.

    The node is not lost meanwhile, as the service that waits is the only one, and counts from the start after it.
    """
    keep = [[one.job, one.epoch, one.rank] for one in report.attempts]
    asks = api.mailbox.due(report.node.id)  # logs can be read all the same
    return Assignment(report.term, -1, api.worker.engine.options.lease_s, keep=keep, ask=asks)
