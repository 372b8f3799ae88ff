"""Costs of the cluster by job, user and project, and the use of resources of a job over time."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated

from msgspec import Meta, Struct, structs

from plait.live.api.costs import Costs, RankUsage, Series, UsageOfJob
from plait.live.service.http.api import Call, Routes
from plait.live.service.usage import MOST_HOURS, MOST_POINTS, SERIES

#: Jobs of an answer at most.
MOST_JOBS = 1000

ROUTES = Routes("cluster")
OF_JOBS = Routes("jobs")


class CostsQuery(Struct, frozen=True):
    """Which costs."""

    hours: Annotated[int, Meta(ge=1, le=MOST_HOURS)] = 24
    """Hours back from now."""
    job: Annotated[str, Meta(max_length=20)] | None = None
    """Only the row of this job."""
    limit: Annotated[int, Meta(ge=0, le=MOST_JOBS)] = 100
    """Jobs at most, the costliest first."""


@ROUTES.get("/v1/costs", Costs, query=CostsQuery)
async def costs(call: Call, query: CostsQuery) -> Costs:
    """Costs of the cluster in the last `hours`, by user, project and the `limit` costliest jobs, or one `job` alone.

    Users see the sums of all, and rows of their own.
    """
    api, token = call.api, call.token
    found = await asyncio.to_thread(api.costs.of, query.hours, api.worker.clock())
    users, projects, jobs = found.by_user, found.by_project, found.by_job
    if token.role == "user":
        users = [row for row in users if row.user == token.user]
        projects = [row for row in projects if row.project == token.project]
        jobs = [row for row in jobs if row.user == token.user]
    if query.job is not None:
        jobs = [row for row in jobs if row.id == query.job]
    return structs.replace(found, by_user=users, by_project=projects, by_job=jobs[: query.limit])


class UsageQuery(Struct, frozen=True):
    """How many intervals."""

    points: Annotated[int, Meta(ge=10, le=MOST_POINTS)] = MOST_POINTS
    """Intervals at most."""


@OF_JOBS.get("/v1/jobs/{job}/usage", UsageOfJob, query=UsageQuery, own=True)
async def job_usage(call: Call, query: UsageQuery) -> UsageOfJob:
    """Use of a job over time: GPUs, CPU, memory, disk, network, stages, goodput and batch size.

    At most `points` intervals: where there are more, they get longer.
    """
    row, now_s = (await call.job()).row, round(call.api.worker.clock(), 3)
    found = await asyncio.to_thread(call.api.usage.usages.recorded, row.number)
    if found is None:
        return UsageOfJob(row.id, now_s, None, 0.0, {}, [], 0.0, 0.0, 0.0)
    found.series.thin(query.points)
    series = {
        name: Series(
            SERIES[name].unit, SERIES[name].text, SERIES[name].chart,
            [float(f"{value:.5g}") if math.isfinite(value) else None for value in values],
        )
        for name, values in found.series.values().items()
    }  # fmt: skip
    return UsageOfJob(
        id=row.id,
        now_s=now_s,
        from_s=round(found.series.from_s, 3),
        interval_s=found.series.interval_s,
        series=series,
        ranks=[] if found.now is None else [RankUsage(**rank) for rank in found.now.ranks],
        held_gpu_s=round(found.held_gpu_s, 1),
        known_gpu_s=round(found.known_gpu_s, 1),
        idle_gpu_s=round(found.idle_gpu_s, 1),
    )
