"""Jobs: the list with filters, and one job with its attempts, its explanation, its forecast, and what can be done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from plait.core.words import number
from plait.dashboard.api_client import segment
from plait.dashboard.figures import Fields
from plait.dashboard.outlook import outlook
from plait.dashboard.pages.changes import may_change
from plait.dashboard.timeline import neighbours, timeline
from plait.dashboard.usage import POINTS, charts, rows
from plait.dashboard.web import ROOT, Viewer, page_of, shown
from plait.live.api.jobs import FINAL, STATES
from plait.live.layout import array_index
from plait.live.scheduler.records.event_words import step_in_words

#: Rows of a page of the list, entries of a job's history.
ROWS, ENTRIES = 50, 100
#: Nodes of a job on which neighbours are looked for, and attempts on them at most.
NODES, PLACEMENTS = 64, 300


@shown
async def list_jobs(viewer: Viewer) -> Response:
    """Jobs, newest first, by state, user, tag and text; an array is one row, unless its jobs are to be listed."""
    query = viewer.request.query_params
    state, user, text, tag, array = (
        query.get(name, "").strip()[:200] for name in ("state", "user", "q", "tag", "array")
    )
    page = page_of(query.get("page"))
    given = {
        "state": state or None, "user": user or None, "text": text or None, "tag": tag or None,
        "array": array or None, "arrays": None if array else 1,
    }  # fmt: skip
    status = await viewer.get(1.0, "/v1/status")
    found = await viewer.get(1.0, "/v1/jobs", limit=ROWS + 1, offset=(page - 1) * ROWS, **given)
    rows, more = found[:ROWS], len(found) > ROWS
    return viewer.page(
        "jobs.html.j2", title="Jobs", rows=rows, more=more, page=page, state=state, user=user, q=text, states=STATES,
        tag=tag, array=array,
        ours=[may_change(viewer, job) for job in rows], final=FINAL,
        counts=status["jobs"], now_s=status["now_s"],
    )  # fmt: skip


@shown
async def show_job(viewer: Viewer) -> Response:
    """One job."""
    name = viewer.request.path_params["job"]
    if (member := array_index(name)) is not None and member[1] is None:
        return RedirectResponse(f"{ROOT}/jobs?array={name}", 303)
    path = f"/v1/jobs/{segment(name)}"
    job, why, events, status, usage = await asyncio.gather(
        viewer.api.get(path), viewer.api.get(f"{path}/explain"),
        viewer.api.get(f"{path}/events", newest=1, limit=ENTRIES), viewer.get(1.0, "/v1/status"),
        viewer.api.get(f"{path}/usage", points=POINTS),
    )  # fmt: skip
    job, why = Fields(job), Fields(why)
    now_s, history = status["now_s"], events["events"]
    ahead = await outlook(viewer, status) if job["state"] not in FINAL else None
    mine = may_change(viewer, job)
    others, more = await _others(viewer, job)
    lost = await viewer.api.get("/v1/losses", job=job["id"]) if mine and job["state"] == "running" else None
    return viewer.page(
        "job.html.j2", title=f"{job['id']} {job['name']}".strip(), job=job, why=why, now_s=now_s, mine=mine,
        attempts=job["attempts"][::-1], bars=timeline(job, now_s, others), ahead=ahead,
        beside=neighbours(job, others, now_s), others=len(others), others_more=more,
        eta=ahead.of(job["number"]) if ahead else None, over=job["state"] in FINAL,
        history=[(one["seq"], one["at_s"], step_in_words(one["event"], one["commands"])) for one in history[::-1]],
        preempted=[one for one in job["attempts"] if one["state"] == "preempted"], file=job_file(job),
        losses=lost["losses"] if lost else [], usage=usage, usage_rows=rows(usage), charts=charts(usage),
        stages=_stages(why), ranks=len(job["attempts"][-1]["ranks"]) if job["attempts"] else 0,
    )  # fmt: skip


async def _others(viewer: Viewer, job: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Attempts of other jobs on the nodes of a job since its submission, newest first; whether there were more."""
    nodes = list(dict.fromkeys(rank["node"] for one in job["attempts"] for rank in one["ranks"]))[:NODES]
    if not nodes:
        return [], False
    found = await viewer.api.get(
        "/v1/placements", node=nodes, from_s=job["created_s"], to_s=job["ended_s"], limit=PLACEMENTS
    )
    return [one for one in found["placements"] if one["job"] != job["id"]], found["more"]


def _stages(why: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Stages with their seconds an iteration now and alone; NaN if not measured."""
    return [(name, number(one["now_s"]), number(one["alone_s"])) for name, one in (why.get("stages") or {}).items()]


#: Fields of a job that its submission had, too, in the order of a file.
_FILE = (
    "name", "command", "python", "container", "workdir", "gpus", "min_gpus", "max_gpus", "batch", "iterations", "model",
    "project", "class", "retries", "gpu_memory", "cpus", "memory", "deadline_s", "time_limit_s", "signal_s",
    "hold", "begin_s", "after", "after_any", "after_fail", "tags",
    "checkpoint_s", "priority", "wait_for_nodes", "profile", "skew", "merge", "ina", "env",
)  # fmt: skip


def file_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the job as it could be submitted again."""
    return {name: job[name] for name in _FILE if job.get(name) not in (None, "", [], {})}


def job_file(job: Mapping[str, Any]) -> str:
    """The same as JSON, which is YAML as well."""
    return json.dumps(file_of(job), indent=2, ensure_ascii=False)
