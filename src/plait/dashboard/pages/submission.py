"""The form of a job: its outlook and its submission. The form's values stay where the API refuses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from plait.dashboard.api_client import Refused, segment
from plait.dashboard.figures import Fields, band, horizon_s
from plait.dashboard.job_form import MAIN, MORE, REST, fields, job_of, typed, with_option
from plait.dashboard.pages.jobs import file_of
from plait.dashboard.web import ROOT, Viewer, checked_form, shown


@shown
async def new_job(viewer: Viewer) -> Response:
    """The empty form; with `?from=JOB` filled in with that job."""
    if not viewer.session.may_submit:
        raise Refused(403, f"{viewer.session.user} is {viewer.session.role}; this needs admin or user")
    other = viewer.request.query_params.get("from")
    given = {"command": "python train.py", "gpus": "1"}
    if other:
        given = typed(file_of(await viewer.api.get(f"/v1/jobs/{segment(other)}")))
    return _form(viewer, given, other=other)


@shown
async def submit(viewer: Viewer) -> Response:
    """Store the job, and show it; or the form again with what is wrong."""
    form = await checked_form(viewer)
    try:
        found = await viewer.api.ask("POST", "/v1/jobs", body=job_of(form))
    except Refused as error:
        return _form(viewer, form, wrong=error)
    viewer.web.answers.forget()
    return RedirectResponse(f"{ROOT}/jobs/{found['id']}", 303)


@shown
async def what_if(viewer: Viewer) -> Response:
    """The form with what the job would get; `use` is an option of a variant to fill in first. Nothing is submitted."""
    form = await checked_form(viewer)
    option = form.pop("use", "")
    try:
        form = with_option(form, option) if option else form
        found = await viewer.api.ask("POST", "/v1/what-if", body=job_of(form))
    except Refused as error:
        return _form(viewer, form, wrong=error)
    return _form(viewer, form, found=Fields(found))


@shown
async def like_it(viewer: Viewer) -> Response:
    """A part of the page of a job that waits: what a job like it would get now, also at other sizes."""
    name = viewer.request.path_params["job"]
    job = await viewer.api.get(f"/v1/jobs/{segment(name)}")
    found, wrong = None, None
    try:
        found = Fields(await viewer.api.ask("POST", "/v1/what-if", body=file_of(job)))
    except Refused as error:
        wrong = error
    return viewer.page(
        "like_it.html.j2", job=job["id"], found=found, wrong=wrong, live=False, title=job["id"], **drawn(found)
    )


def _form(
    viewer: Viewer, given: Mapping[str, str], *, other: str | None = None, wrong: Refused | None = None,
    found: Mapping[str, Any] | None = None,
) -> Response:  # fmt: skip
    """The form: `other` the job it is filled in with, `wrong` why it was refused, `found` what the job would get."""
    return viewer.page(
        "submit.html.j2", 200 if wrong is None else wrong.status, title="Submit a job", other=other, wrong=wrong,
        main=fields(MAIN, given), more=fields(MORE, given), rest=given.get(REST, ""), found=found,
        folder=given.get("workdir", "").strip(),
        more_open=any(given.get(name, "").strip() for name in (*MORE, REST)), live=False, **drawn(found),
    )  # fmt: skip


def drawn(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Values for the drawings of a forecast and of its variants: how far they reach, and where bands lie."""
    rows = [] if found is None else [found, *(one for one in found["variants"] if one["change"] != "later")]
    most_s = horizon_s([one[name] for one in rows for name in ("start", "end")])
    return {"most_s": most_s, "band": band}
