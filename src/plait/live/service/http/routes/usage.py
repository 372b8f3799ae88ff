"""Resource use of jobs over time."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from plait.live.layout import job_name
from plait.live.service.http.api import Json, api_of
from plait.live.service.http.auth import owns
from plait.live.service.http.openapi.routes import JobName, answers
from plait.live.service.usage.recorder import Recorded
from plait.live.service.usage.series import MOST_POINTS, SERIES

router = APIRouter(tags=["jobs"])


class SeriesOut(BaseModel):
    """One figure of a job over time."""

    unit: str = Field(description="share (0 to 1), bytes, bytes/s, cores, s, 1/s, examples or examples/s")
    text: str = Field(description="Name, for the legend of a chart")
    chart: str = Field(description="Series of one chart have the same")
    values: list[float | None] = Field(description="One an interval: its mean, of memory the most; null if not known")


class RankUsageOut(BaseModel):
    """Recent use of one process of a job, its children included."""

    rank: int
    node: str
    gpu: int = Field(description="The node's number of its GPU")
    gpu_utilisation: float | None = Field(description="0 to 1, mean of the last 10 s, by all users of the GPU")
    gpu_memory_bytes: float | None = Field(description="As the process itself reports it")
    cpus: float | None = Field(description="CPU cores in use")
    memory_bytes: float | None = Field(description="Resident bytes")
    read_bytes_s: float | None
    written_bytes_s: float | None


class UsageOut(BaseModel):
    """A job's use of resources, and its iterations, over time. All attempts are in one series, waits are null."""

    id: str
    now_s: float = Field(description="Time of the service, seconds")
    from_s: float | None = Field(description="Where the first interval begins, null if nothing was measured")
    interval_s: float = Field(description="Seconds of an interval; doubles whenever the series are full")
    series: dict[str, SeriesOut] = Field(description="Only what was measured")
    ranks: list[RankUsageOut] = Field(description="The processes that run now")
    held_gpu_s: float = Field(description="GPU-seconds held while measured; of shared GPUs its part")
    known_gpu_s: float = Field(description="The ones of these with known use of the GPU")
    idle_gpu_s: float = Field(description="The ones of these with the GPU less than 5 % busy")


@router.get("/v1/jobs/{job}/usage", **answers(UsageOut, own=True))
async def job_usage(
    request: Request,
    job: JobName,
    points: int = Query(MOST_POINTS, ge=10, le=MOST_POINTS, description="Intervals at most."),
) -> Response:
    """Use of a job over time: GPUs, CPU, memory, disk, network, stages, goodput and batch size.

    At most `points` intervals: where there are more, they get longer.
    """
    api = api_of(request)
    token = api.who(request)
    row = await api.row(job, token)
    job = job_name(row["number"])
    owns(token, job, row["owner"], change=False)
    found = await asyncio.to_thread(api.usage.usages.recorded, row["number"])
    return Json({"id": job, "now_s": round(api.worker.clock(), 3), **_shown(found, points)})


def _shown(found: Recorded | None, points: int) -> dict[str, Any]:
    if found is None:
        return {
            "from_s": None, "interval_s": 0.0, "series": {}, "ranks": [], "held_gpu_s": 0.0, "known_gpu_s": 0.0,
            "idle_gpu_s": 0.0,
        }  # fmt: skip
    found.series.thin(points)
    series = {
        name: {
            "unit": SERIES[name].unit, "text": SERIES[name].text, "chart": SERIES[name].chart,
            "values": [float(f"{value:.5g}") if math.isfinite(value) else None for value in values],
        }
        for name, values in found.series.values().items()
    }  # fmt: skip
    return {
        "from_s": round(found.series.from_s, 3), "interval_s": found.series.interval_s, "series": series,
        "ranks": [] if found.now is None else found.now.ranks,
        **{name: round(getattr(found, name), 1) for name in ("held_gpu_s", "known_gpu_s", "idle_gpu_s")},
    }  # fmt: skip
