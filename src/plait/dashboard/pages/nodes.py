"""Nodes: the list, and one node with its GPUs, jobs and history; drain and resume."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from plait.dashboard.api_client import Refused, segment
from plait.dashboard.figures import node_drawings, of_node, utilisation
from plait.dashboard.web import ROOT, Viewer, done, page_of, shown
from plait.live.scheduler.records.event_words import step_in_words

#: Rows of a page of the list; entries of the log that are searched for entries of a node.
ROWS, ENTRIES = 50, 5000
#: The timeline of a node: seconds, and attempts at most.
DAY_S, PLACEMENTS = 86_400.0, 300


@shown
async def list_nodes(viewer: Viewer) -> Response:
    """All nodes, by name or state."""
    query = viewer.request.query_params
    text, page = query.get("q", "").strip()[:200], page_of(query.get("page"))
    nodes = await viewer.get(1.0, "/v1/nodes")
    kept = [one for one in nodes if text.lower() in f"{one['id']} {one['state']} {one.get('gpu_kind', '')}".lower()]
    rows = kept[(page - 1) * ROWS : page * ROWS]
    projects = await viewer.get(5.0, "/v1/projects") if viewer.session.may_manage else []
    drawn = [(node, node_drawings([{**node, "gone": False}])) for node in rows]
    return viewer.page(
        "nodes.html.j2", title="Nodes", rows=drawn, q=text, page=page,
        pages_of_list=-(-len(kept) // ROWS), count=len(kept), projects=[one["name"] for one in projects],
        reservations=await viewer.get(1.0, "/v1/reservations"),
    )  # fmt: skip


@shown
async def show_node(viewer: Viewer) -> Response:
    """One node."""
    name = viewer.request.path_params["node"]
    node = next((one for one in await viewer.get(1.0, "/v1/nodes") if one["id"] == name), None)
    if node is None:
        raise Refused(404, f"no node {name[:64]!r}", "plait nodes")
    status = await viewer.get(1.0, "/v1/status")
    found = await viewer.get(1.0, "/v1/jobs", state="running,starting,stopping,unreachable", limit=10_000)
    jobs = {job["id"]: job for job in found}
    busy, now_s = utilisation(node), status["now_s"]
    day = await viewer.api.get("/v1/placements", node=name, from_s=max(now_s - DAY_S, 0.0), limit=PLACEMENTS)
    lost = await viewer.api.get("/v1/losses", node=name) if viewer.session.may_manage and not node["drained"] else None
    return viewer.page(
        "node.html.j2", title=f"Node {name}", node=node, jobs=[jobs[one] for one in node["jobs"] if one in jobs],
        gpus=list(enumerate(zip(node["gpu_jobs"], busy, strict=True))),
        history=await _history(viewer, name, status), now_s=now_s,
        losses=lost["losses"] if lost else [], held=day["placements"], held_more=day["more"],
        bars=of_node(node.get("gpus") or 0, day["placements"], now_s, DAY_S),
    )  # fmt: skip


async def _history(viewer: Viewer, name: str, status: dict[str, Any]) -> list[tuple[int, float, str]] | None:
    """Entries about a node itself, newest first; None for viewers who may not read the log of all."""
    if viewer.session.role == "user":
        return None
    after = max(status["log_seq"] // 100 * 100 - ENTRIES, 0)
    found = await viewer.get(5.0, "/v1/events", after=after, limit=ENTRIES + 100)
    about = [one for one in found["events"] if name in _nodes_of(one["event"])]
    return [(one["seq"], one["at_s"], step_in_words(one["event"], one["commands"])) for one in about[:-51:-1]]


def _nodes_of(event: dict[str, Any]) -> list[str]:
    """The nodes that an entry is about."""
    node = event.get("node")
    return event.get("reservation", {}).get("nodes") or [str(node.get("id") if isinstance(node, dict) else node)]


@done
async def reserve(viewer: Viewer, form: dict[str, str]) -> str:
    """Reserve nodes for a project."""
    try:
        in_s, for_s = (3600.0 * float(form.get(name) or 0.0) for name in ("in_hours", "for_hours"))
    except ValueError as error:
        raise Refused(422, f"hours are numbers, e.g. 0.5: {error}") from None
    body = {
        "nodes": form.get("nodes", "").replace(",", " ").split(), "project": form.get("project", ""),
        "for_s": for_s, "in_s": in_s,
    }  # fmt: skip
    await viewer.api.ask("POST", "/v1/reservations", body=body)
    return f"{ROOT}/nodes"


@done
async def cancel_reservation(viewer: Viewer, form: dict[str, str]) -> str:
    """Cancel a reservation."""
    await viewer.api.ask("DELETE", f"/v1/reservations/{segment(viewer.request.path_params['reservation'])}")
    return f"{ROOT}/nodes"


@done
async def drain(viewer: Viewer, form: dict[str, str]) -> str:
    """Give a node no new work; its jobs continue elsewhere."""
    return await _change(viewer, "drain", {"may_lose_work": form.get("may_lose_work") == "on"})


@done
async def resume(viewer: Viewer, form: dict[str, str]) -> str:
    """Let a drained node work again."""
    return await _change(viewer, "resume")


async def _change(viewer: Viewer, action: str, body: dict[str, Any] | None = None) -> str:
    name = viewer.request.path_params["node"]
    await viewer.api.ask("POST", f"/v1/nodes/{segment(name)}/{action}", body=body)
    return f"{ROOT}/nodes/{segment(name)}"
