"""Costs of the cluster, by job, user and project."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from plait.live.service.http.api import Json, api_of
from plait.live.service.http.openapi.routes import answers
from plait.live.service.usage.files import MOST_HOURS

#: Jobs of an answer at most.
MOST_JOBS = 1000

router = APIRouter(tags=["cluster"])


class PartOut(BaseModel):
    """GPU-hours, and what they cost."""

    gpu_h: float
    cost: float | None = Field(description="null without prices: plait up --price 2.5")


class RowOut(BaseModel):
    """A user, a project or a job: what it held, what of that was idle, and what of that was lost work."""

    user: str | None = None
    project: str | None = None
    id: str | None = Field(None, description="Of a job")
    held: PartOut
    held_idle: PartOut | None = Field(description="Less than 5 % busy, as far as measured; null if nothing was")
    unmeasured: PartOut = Field(description="Of what it held: not known whether it was busy")
    lost: PartOut


class CostsOut(BaseModel):
    """All GPUs of a period: total = jobs + idle + down, whether in GPU-hours or money."""

    currency: str
    prices: dict[str, float] | None = Field(description="Money per GPU-hour by GPU kind; * is every other kind")
    unpriced: list[str] = Field(description="GPU kinds without a price: they count as free of charge")
    from_s: float
    now_s: float
    total: PartOut = Field(description="All GPUs that were there, every hour")
    jobs: PartOut = Field(description="Held by jobs")
    idle: PartOut = Field(description="Held by no job")
    down: PartOut = Field(description="Held by no job on nodes that take no work: lost, drained or leaving")
    held_idle: PartOut | None = Field(
        description="Of those of jobs: less than 5 % busy, as far as measured; null if nothing was"
    )
    unmeasured: PartOut = Field(description="Of those of jobs: not known whether they were busy")
    lost: PartOut = Field(description="Of those of jobs: work from which no attempt resumed")
    by_user: list[RowOut]
    by_project: list[RowOut]
    by_job: list[RowOut]


@router.get("/v1/costs", **answers(CostsOut))
async def costs(
    request: Request,
    hours: int = Query(24, ge=1, le=MOST_HOURS, description="Hours back from now."),
    job: str | None = Query(None, max_length=20, description="Only the row of this job."),
    limit: int = Query(100, ge=0, le=MOST_JOBS, description="Jobs at most, the costliest first."),
) -> Response:
    """Costs of the cluster in the last `hours`, by user, project and the `limit` costliest jobs, or one `job` alone.

    Users see the sums of all, and rows of their own.
    """
    api = api_of(request)
    token = api.who(request)
    found = await asyncio.to_thread(api.costs.of, hours, api.worker.clock())
    out: dict[str, Any] = dict(found)
    if token.role == "user":
        out["by_user"] = [row for row in out["by_user"] if row["user"] == token.user]
        out["by_project"] = [row for row in out["by_project"] if row["project"] == token.project]
        out["by_job"] = [row for row in out["by_job"] if row["user"] == token.user]
    if job is not None:
        out["by_job"] = [row for row in out["by_job"] if row["id"] == job]
    out["by_job"] = out["by_job"][:limit]
    return Json(out)
