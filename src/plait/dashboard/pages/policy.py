"""The policy that decides, the projects and their quotas; administrators may choose another policy."""

from __future__ import annotations

from starlette.responses import Response

from plait.dashboard.web import ROOT, Viewer, done, shown
from plait.policies.catalog import rows


@shown
async def show_policy(viewer: Viewer) -> Response:
    """The page."""
    policy = await viewer.api.get("/v1/policy")
    projects = await viewer.get(1.0, "/v1/projects")
    return viewer.page(
        "policy.html.j2", title="Policy", policy=policy, projects=projects, names=sorted(rows()), live=False
    )


@done
async def set_policy(viewer: Viewer, form: dict[str, str]) -> str:
    """Let another policy decide."""
    body = {"policy": form.get("policy", "").strip(), "may_lose_work": form.get("may_lose_work") == "yes"}
    await viewer.api.ask("PUT", "/v1/policy", body=body)
    return f"{ROOT}/policy"
