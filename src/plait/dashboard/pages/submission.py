"""Submit a job from the page: what was typed stays there where the API refuses it."""

from __future__ import annotations

import json

from starlette.responses import RedirectResponse, Response

from plait.dashboard.api_client import Refused
from plait.dashboard.web import ROOT, Viewer, checked_form, shown


@shown
async def submit(viewer: Viewer) -> Response:
    """Store the job, and show it; or the form again with what is wrong."""
    form = await checked_form(viewer)
    text = form.get("job", "")
    try:
        try:
            job = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"this is not JSON: {error}") from None
        if not isinstance(job, dict):
            raise Refused(422, 'write one job: {"command": [...], ...}')
        found = await viewer.api.ask("POST", "/v1/jobs", body=job)
    except Refused as error:
        return viewer.page(
            "submit.html.j2", error.status, title="Submit a job", text=text, other=None, wrong=error, live=False
        )
    viewer.web.answers.forget()
    number = found["id"] if isinstance(found, dict) else found[0]["id"]
    return RedirectResponse(f"{ROOT}/jobs/{number}", 303)
