"""Jobs: the list with filters, and one job with its attempts, its explanation, its forecast, and what can be done."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from plait.core.words import number
from plait.dashboard.api_client import Refused, segment
from plait.dashboard.figures import USAGE_POINTS, Fields, neighbours, timeline, usage_charts, usage_rows
from plait.dashboard.web import ROOT, Viewer, checked_form, done, page_of, shown
from plait.live.api.jobs import FINAL, STATES
from plait.live.layout import array_index
from plait.live.scheduler.records.event_words import step_in_words
from plait.live.trackers import addresses_in

#: Rows of a page of the list, entries of a job's history.
ROWS, ENTRIES = 50, 100
#: Seconds for which a page waits for the log in which addresses of trackers are looked for.
TRACKERS_S = 1.0
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
        viewer.api.get(f"{path}/usage", points=USAGE_POINTS),
    )  # fmt: skip
    job, why = Fields(job), Fields(why)
    now_s, history = status["now_s"], events["events"]
    mine = may_change(viewer, job)
    others, more = await _others(viewer, job)
    trackers = await _trackers(viewer, path) if mine and job["attempts"] else []
    lost = await viewer.api.get("/v1/losses", job=job["id"]) if mine and job["state"] == "running" else None
    # Stages with their seconds an iteration now and alone; NaN if not measured.
    stages = [(name, number(one["now_s"]), number(one["alone_s"])) for name, one in (why.get("stages") or {}).items()]
    return viewer.page(
        "job.html.j2", title=f"{job['id']} {job['name']}".strip(), job=job, why=why, now_s=now_s, mine=mine,
        attempts=job["attempts"][::-1], bars=timeline(job, now_s, others),
        beside=neighbours(job, others, now_s), others=len(others), others_more=more,
        over=job["state"] in FINAL,
        history=[(one["seq"], one["at_s"], step_in_words(one["event"], one["commands"])) for one in history[::-1]],
        preempted=[one for one in job["attempts"] if one["state"] == "preempted"], file=job_file(job),
        losses=lost["losses"] if lost else [], trackers=trackers, usage=usage, usage_rows=usage_rows(usage),
        charts=usage_charts(usage),
        stages=stages, ranks=len(job["attempts"][-1]["ranks"]) if job["attempts"] else 0,
    )  # fmt: skip


async def _trackers(viewer: Viewer, path: str) -> list[str]:
    """Addresses of experiment trackers at the beginning of the job's log; none if its node does not answer soon."""
    with contextlib.suppress(Refused, TimeoutError):
        found = await asyncio.wait_for(viewer.api.get(f"{path}/logs", limit=65_536), TRACKERS_S)
        return addresses_in(found["text"])
    return []


async def _others(viewer: Viewer, job: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Attempts of other jobs on the nodes of a job since its submission, newest first; whether there were more."""
    nodes = list(dict.fromkeys(rank["node"] for one in job["attempts"] for rank in one["ranks"]))[:NODES]
    if not nodes:
        return [], False
    found = await viewer.api.get(
        "/v1/placements", node=nodes, from_s=job["created_s"], to_s=job["ended_s"], limit=PLACEMENTS
    )
    return [one for one in found["placements"] if one["job"] != job["id"]], found["more"]


#: Fields of a job that its submission had, too, in the order of a file.
_FILE = (
    "name", "command", "python", "container", "workdir", "output", "gpus", "exclusive",
    "gpu_kinds", "min_gpus", "max_gpus", "batch", "iterations", "model",
    "project", "class", "retries", "gpu_memory", "cpus", "memory", "deadline_s", "time_limit_s", "signal_s",
    "hold", "begin_s", "after", "after_any", "after_fail", "tags",
    "notify", "processes_per_gpu", "gradient_bytes",
    "checkpoint_s", "priority", "wait_for_nodes", "profile", "skew", "merge", "ina", "env",
)  # fmt: skip


def file_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the job as it could be submitted again."""
    return {name: job[name] for name in _FILE if job.get(name) not in (None, "", [], {})}


def job_file(job: Mapping[str, Any]) -> str:
    """The same as JSON, which is YAML as well."""
    return json.dumps(file_of(job), indent=2, ensure_ascii=False)


# Actions on jobs: cancel, requeue, change, clone; cancel and requeue also for several jobs of the list at once.

#: Fields of the form with the types of their values; what is empty is as if it had not been given.
FIELDS: Mapping[str, type[Any]] = {
    "priority": float, "class": str, "deadline_s": float, "time_limit_s": float, "gpus": int, "min_gpus": int,
    "max_gpus": int,
}  # fmt: skip
CLASSES = ("guaranteed", "opportunistic", "auto")


@done
async def clone(viewer: Viewer, form: dict[str, str]) -> str:
    """Submit the same job again, and show the new one."""
    name = segment(viewer.request.path_params["job"])
    found = await viewer.api.ask("POST", f"/v1/jobs/{name}/clone")
    return f"{ROOT}/jobs/{segment(found['id'])}"


@done
async def several(viewer: Viewer, form: dict[str, str]) -> str:
    """Change the chosen jobs and arrays of the list; one error names all that were refused."""
    names = [name for name, value in form.items() if name.startswith(("j-", "a-")) and value == "on"]
    if not names:
        raise Refused(422, "no job is chosen; tick the boxes of some jobs of the list")
    if (action := form.get("act")) not in ("cancel", "requeue", "hold", "release"):
        raise Refused(422, f"nothing was done: act is {(action or '')[:40]!r}; it is cancel, requeue, hold or release")
    refused: list[str] = []
    for name in names:
        path = f"/v1/jobs/{segment(name)}"
        try:
            if action == "requeue":
                await viewer.api.ask("POST", f"{path}/requeue")
            elif action in ("hold", "release"):
                await viewer.api.ask("PATCH", path, body={"hold": action == "hold"})
            else:
                await viewer.api.ask("DELETE", path)
        except Refused as error:
            refused.append(f"{name}: {error}")
    if refused:
        viewer.web.answers.forget()
        raise Refused(409, f"{len(names) - len(refused)} of {len(names)} jobs done. Refused: {'. '.join(refused)}")
    return f"{ROOT}/jobs"


@shown
async def ask_changes(viewer: Viewer) -> Response:
    """The form with the fields of a job that may change."""
    job = await viewer.api.get(f"/v1/jobs/{segment(viewer.request.path_params['job'])}")
    return await _form(viewer, job, {name: job.get(name) for name in FIELDS})


@shown
async def change(viewer: Viewer) -> Response:
    """Change what differs from what the form showed, and show the job; or the form again with what is wrong."""
    form = await checked_form(viewer)
    path = f"/v1/jobs/{segment(viewer.request.path_params['job'])}"
    given = {name: form.get(name, "").strip() for name in FIELDS}
    try:
        fields = {name: _value(name, text) for name, text in given.items() if text != form.get(f"was_{name}", "")}
        if fields:
            lose = form.get("may_lose_work") == "on"
            await viewer.api.ask("PATCH", path, body={**fields, "may_lose_work": lose})
    except Refused as error:
        return await _form(viewer, await viewer.api.get(path), given, error)
    viewer.web.answers.forget()
    return RedirectResponse(f"{ROOT}/jobs/{segment(viewer.request.path_params['job'])}", 303)


async def _form(
    viewer: Viewer, job: dict[str, Any], given: Mapping[str, Any], wrong: Refused | None = None
) -> Response:
    """The form; `given` is what is in its fields, `wrong` why the last change was refused."""
    if not may_change(viewer, job):
        raise Refused(403, f"job {job['id']} is not yours to change")
    if job["state"] in FINAL:
        raise Refused(409, f"job {job['id']} has {job['state']}; submit one like it", f"plait clone {job['id']}")
    lost = await viewer.api.get("/v1/losses", job=job["id"])
    return viewer.page(
        "change.html.j2", 200 if wrong is None else wrong.status, title=f"Change {job['id']}", job=job, wrong=wrong,
        losses=lost["losses"],
        given={name: _text(value) for name, value in given.items()},
        was={name: _text(job.get(name)) for name in FIELDS}, classes=CLASSES, live=False,
    )  # fmt: skip


def may_change(viewer: Viewer, job: Mapping[str, Any]) -> bool:
    """Whether the viewer may change this job, as the API has it: its owner, and administrators."""
    session = viewer.session
    return session.role == "admin" or (session.role == "user" and session.user == job["user"])


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.15g}" if isinstance(value, (int, float)) else str(value)


def _value(name: str, text: str) -> Any:
    """The value of a form field for the API; `Refused` for an invalid number."""
    if not text:
        return None
    try:
        return FIELDS[name](text)
    except ValueError:
        kind = "a whole number" if FIELDS[name] is int else "a number"
        raise Refused(422, f"needs {kind} (got {text[:40]!r})", field=name) from None
