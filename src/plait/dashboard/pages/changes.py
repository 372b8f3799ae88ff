"""Actions on jobs: cancel, requeue, change, clone; cancel and requeue also for several jobs of the list at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from plait.dashboard.api_client import Refused, segment
from plait.dashboard.web import ROOT, Viewer, checked_form, done, shown
from plait.live.client.client import FINAL

#: Fields of the form with the types of their values; what is empty is as if it had not been given.
FIELDS: Mapping[str, type[Any]] = {
    "priority": float, "class": str, "deadline_s": float, "time_limit_s": float, "gpus": int, "min_gpus": int,
    "max_gpus": int,
}  # fmt: skip
CLASSES = ("guaranteed", "opportunistic", "auto")


@done
async def cancel(viewer: Viewer, form: dict[str, str]) -> str:
    """Cancel a job."""
    name = segment(viewer.request.path_params["job"])
    await viewer.api.ask("DELETE", f"/v1/jobs/{name}")
    return f"{ROOT}/jobs/{name}"


@done
async def requeue(viewer: Viewer, form: dict[str, str]) -> str:
    """Send a job back to the queue."""
    name = segment(viewer.request.path_params["job"])
    body = {"may_lose_work": form.get("may_lose_work") == "on"}
    await viewer.api.ask("POST", f"/v1/jobs/{name}/requeue", body=body)
    return f"{ROOT}/jobs/{name}"


@done
async def hold(viewer: Viewer, form: dict[str, str]) -> str:
    """Hold a waiting job, or release it."""
    name = segment(viewer.request.path_params["job"])
    await viewer.api.ask("PATCH", f"/v1/jobs/{name}", body={"hold": form.get("hold") == "on"})
    return f"{ROOT}/jobs/{name}"


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
