"""Administration: tokens, projects, backup."""

from __future__ import annotations

import asyncio
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from plait.core.errors import InputError
from plait.live.layout import make_private
from plait.live.scheduler.engine import Engine
from plait.live.service.http.answers.admin import (
    BackupMade,
    Me,
    NewToken,
    ProjectGone,
    ProjectRow,
    ProjectSettings,
    RevokedToken,
    TokenRow,
)
from plait.live.service.http.api import Json, api_of
from plait.live.service.http.models import BackupIn, ProjectIn, TokenIn, parse
from plait.live.service.http.openapi.routes import answers
from plait.live.store import Token

_ADMIN = ("admin",)
router = APIRouter(tags=["administration"])


@router.get("/v1/me", **answers(Me))
async def me(request: Request) -> Response:
    """The caller: user, role and project of the token."""
    token = api_of(request).who(request)
    return Json({"user": token.user, "role": token.role, "project": token.project})


@router.get("/v1/tokens", **answers(list[TokenRow], roles=_ADMIN))
async def tokens(request: Request) -> Response:
    """Tokens, without their secrets."""
    api = api_of(request)
    api.who(request, "admin")
    now = api.tokens.now()
    return Json([_shown(token, now) for token in api.tokens.all()])


@router.post("/v1/tokens", **answers(NewToken, body=TokenIn, roles=_ADMIN))
async def make_token(request: Request) -> Response:
    """A new token; its secret is in this answer and nowhere else."""
    api = api_of(request)
    api.who(request, "admin")
    given = parse(TokenIn, await api.body(request))
    now = api.tokens.now()
    expires_s = None if given.expires_in_s is None else now + given.expires_in_s
    secret, token = await asyncio.to_thread(
        api.tokens.make, given.user, given.role, given.project, now, expires_s=expires_s, node=given.node
    )
    return Json({**_shown(token, now), "token": secret})


@router.delete("/v1/tokens/{token_id}", **answers(RevokedToken, roles=_ADMIN))
async def revoke(request: Request, token_id: Annotated[str, Path(description="Its `id`: t-1f2e3d4c.")]) -> Response:
    """A token that counts no more."""
    api = api_of(request)
    api.who(request, "admin")
    if not await asyncio.to_thread(api.tokens.revoke, token_id):
        raise LookupError(f"no token {token_id[:40]!r}; `plait token ls` lists the present ones")
    return Json({"id": token_id, "revoked": True})


@router.get("/v1/projects", **answers(list[ProjectRow]))
async def projects(request: Request) -> Response:
    """Projects with quotas and weights."""
    api = api_of(request)
    api.who(request)
    return Json(await api.worker.look(_projects))


@router.post("/v1/projects", **answers(ProjectSettings, body=ProjectIn, roles=_ADMIN))
async def set_project(request: Request) -> Response:
    """Make a project, or change what is given of one; a quota of null lifts it."""
    api = api_of(request)
    api.who(request, "admin")
    given = parse(ProjectIn, await api.body(request))

    def work(engine: Engine, now_s: float) -> dict[str, Any]:
        known = engine.state.projects.get(given.name, {"gpu_quota": None, "weight": 1.0})
        quota = given.quota_gpus if "quota_gpus" in given.model_fields_set else known["gpu_quota"]
        weight = given.weight if given.weight is not None else known["weight"]
        engine.set_project(given.name, gpu_quota=quota, weight=weight, now_s=now_s)
        return {"name": given.name, "quota_gpus": quota, "weight": weight}

    return Json(await api.worker.call(work))


@router.delete("/v1/projects/{name}", **answers(ProjectGone, roles=_ADMIN))
async def drop_project(request: Request, name: Annotated[str, Path(description="Name of the project.")]) -> Response:
    """Forget a project's quota and weight."""
    api = api_of(request)
    api.who(request, "admin")
    await api.worker.call(lambda engine, now_s: engine.drop_project(name, now_s))
    return Json({"name": name, "gone": True})


@router.post("/v1/backup", **answers(BackupMade, body=BackupIn, roles=_ADMIN))
async def backup(request: Request) -> Response:
    """A consistent copy of the store in the folder of backups of the service, for its owner alone."""
    api = api_of(request)
    api.who(request, "admin")
    given = parse(BackupIn, await api.body(request))
    path = await asyncio.to_thread(api.store.backup, _below(api.backups, given.path))
    return Json({"path": str(path), "bytes": path.stat().st_size})


def _below(folder: FilePath, name: str) -> FilePath:
    """The path of a backup in `folder`, which is made; `InputError` for one anywhere else."""
    make_private(folder)
    path = (folder / name).resolve()
    if folder.resolve() not in path.parents:
        raise InputError(
            f"backups go below {folder}, and path is {name!r}; give a name such as copy.db, or another folder with: "
            "plait up --backup-folder"
        )
    return path


def _projects(engine: Engine, now_s: float) -> list[dict[str, Any]]:
    held: dict[str, int] = {}
    for number in engine.state.live:
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


def _shown(token: Token, now_s: float) -> dict[str, Any]:
    left_s = None if token.expires_s is None else round(token.expires_s - now_s, 3)
    return {
        "id": token.id, "user": token.user, "role": token.role, "project": token.project, "node": token.node,
        "created_s": token.created_s, "expires_s": token.expires_s, "left_s": left_s,
    }  # fmt: skip
