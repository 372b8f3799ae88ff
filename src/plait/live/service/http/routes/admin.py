"""Administration: tokens, projects, backup; and the reports that operators have put into the folder of the service."""

from __future__ import annotations

import asyncio
import re
import time
from html import unescape
from pathlib import Path
from typing import Any, cast

from msgspec import UNSET
from starlette.responses import Response

from plait.core.errors import InputError
from plait.live.api.admin import (
    BackupMade,
    Me,
    NewToken,
    ProjectGone,
    ProjectRow,
    ProjectSettings,
    ReportList,
    ReportRow,
    RevokedToken,
    Role,
    TokenRow,
)
from plait.live.layout import make_private
from plait.live.protocol.requests import needs_no_gpu
from plait.live.scheduler.engine import Engine
from plait.live.service.http.api import Call, Routes
from plait.live.service.http.bodies import BackupIn, ProjectIn, TokenIn
from plait.live.store import Token

#: Names of reports, their maximum bytes, and the number that is listed.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,120}\.html")
LARGEST, MOST = 50 * 2**20, 500
#: Bytes in which the title is searched.
_HEAD = 4096
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL | re.IGNORECASE)
#: A report draws its own charts. It has no origin, so it can send no request to the service, and it loads nothing.
HEADERS = {
    "content-security-policy": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

_ADMIN = ("admin",)
ROUTES = Routes("administration")
REPORTS = Routes("cluster")


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


@ROUTES.route("DELETE", "/v1/projects/{name}", ProjectGone, roles=_ADMIN)
async def drop_project(call: Call) -> ProjectGone:
    """Forget a project's quota and weight."""
    name = call.path["name"]
    await call.api.worker.call(lambda engine, now_s: engine.drop_project(name, now_s))
    return ProjectGone(name, True)


@ROUTES.post("/v1/backup", BackupMade, body=BackupIn, roles=_ADMIN)
async def backup(call: Call, given: BackupIn) -> BackupMade:
    """A consistent copy of the store in the folder of backups of the service, for its owner alone."""
    path = await asyncio.to_thread(call.api.store.backup, _below(call.api.backups, given.path))
    return BackupMade(str(path), path.stat().st_size)


@REPORTS.get("/v1/reports", ReportList)
async def reports(call: Call) -> ReportList:
    """Reports, newest first: name, title, bytes, age in seconds; for administrators also the folder they are in."""
    folder = call.api.worker.engine.layout.reports
    return ReportList(await asyncio.to_thread(_listed, folder), str(folder) if call.token.role == "admin" else None)


@REPORTS.get("/v1/reports/{name}", None, texts=(("text/html", "The report, for a sandbox."),))
async def report(call: Call) -> Response:
    """A report as HTML, for a sandbox."""
    content = await asyncio.to_thread(_content, call.api.worker.engine.layout.reports, call.path["name"])
    return Response(content, media_type="text/html; charset=utf-8", headers=HEADERS)


def _below(folder: Path, name: str) -> Path:
    """The path of a backup in `folder`, which is made; `InputError` for one anywhere else."""
    make_private(folder)
    path = (folder / name).resolve()
    if folder.resolve() not in path.parents:
        raise InputError(
            f"backups go below {folder}, and path is {name!r}; give a name such as copy.db, or another folder with: "
            "plait up --backup-folder"
        )
    return path


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
    """The fields of the row of a token."""
    fields = {field: getattr(token, field) for field in TokenRow.__struct_fields__ if field != "left_s"}
    return {**fields, "left_s": None if token.expires_s is None else round(token.expires_s - now_s, 3)}


def _listed(folder: Path) -> list[ReportRow]:
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if _is_report(path):
            facts = path.stat()
            found.append((facts.st_mtime, path, facts.st_size))
    found.sort(key=lambda one: (-one[0], one[1].name))
    now = time.time()
    return [ReportRow(path.name, _title(path), size, round(max(now - at, 0.0), 3)) for at, path, size in found[:MOST]]


def _content(folder: Path, name: str) -> bytes:
    path = folder / name
    if not NAME.fullmatch(name) or not _is_report(path):
        raise LookupError(f"no report {name[:128]!r}; GET /v1/reports lists the present ones")
    return path.read_bytes()


def _is_report(path: Path) -> bool:
    """Whether this is a file of the folder itself, of a name and size that are shown."""
    if not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size <= LARGEST


def _title(path: Path) -> str:
    with path.open("rb") as file:
        found = _TITLE.search(file.read(_HEAD).decode("utf-8", "replace"))
    return " ".join(unescape(found[1]).split())[:200] if found else path.name.removesuffix(".html")
