"""The cluster: nodes, the event log and logs of jobs, the policy, and the queue under other choices."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from plait.core.errors import InputError
from plait.dashboard.api_client import Refused, segment
from plait.dashboard.figures import node_drawings, of_node, utilisation
from plait.dashboard.web import ROOT, Viewer, checked_form, done, page_of, shown
from plait.live.scheduler.explain.choices import parse_priorities
from plait.live.scheduler.records.event_words import step_in_words, telling
from plait.policies.catalog import rows

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


# The policy, and the queue under other choices.


@shown
async def show_policy(viewer: Viewer) -> Response:
    """The page."""
    return await _page(viewer)


async def _page(viewer: Viewer, refused: Refused | None = None, given: str | None = None) -> Response:
    """The page; `refused`: why the policy `given` in its form was not set."""
    policy = await viewer.api.get("/v1/policy")
    projects = await viewer.get(1.0, "/v1/projects")
    lost = await viewer.get(1.0, "/v1/losses") if viewer.session.may_manage else None
    return viewer.page(
        "policy.html.j2", 200 if refused is None else refused.status, title="Policy", refused=refused, policy=policy,
        projects=projects, names=sorted(rows()), live=False, losses=lost["losses"] if lost else [], given=given,
    )  # fmt: skip


@shown
async def set_policy(viewer: Viewer) -> Response:
    """Switch the policy, and show the page; if it was refused, with the reason and what was typed."""
    form = await checked_form(viewer)
    given = form.get("policy", "").strip()
    try:
        body = {"policy": given, "may_lose_work": form.get("may_lose_work") == "yes"}
        await viewer.api.ask("PUT", "/v1/policy", body=body)
    except Refused as error:
        return await _page(viewer, error, given[:200])
    viewer.web.answers.forget()
    return RedirectResponse(f"{ROOT}/policy", 303)


# The live queue under another choice: who gains, who loses, in hours; nothing is changed.

#: Fields of the form; and characters of each at most.
CHOICES, LONGEST_CHOICE = ("policy", "nodes", "without", "priority"), 500
#: Names that are offered at most.
OFFERED = 1000


@shown
async def what_if(viewer: Viewer) -> Response:
    """The form; filled in, also the answer."""
    query = viewer.request.query_params
    given = {name: query.get(name, "").strip()[:LONGEST_CHOICE] for name in CHOICES}
    found, wrong = None, None
    try:
        if any(given.values()):
            # The form as the API's request; raises `Refused` for priorities that cannot be read.
            try:
                priority = parse_priorities(_words(given["priority"]))
            except InputError as unreadable:
                raise Refused(422, str(unreadable), field="priority") from None
            choice = {
                "policy": given["policy"] or None, "nodes": given["nodes"] or None, "without": _words(given["without"]),
                "priority": {f"j-{job}": value for job, value in priority.items()},
            }  # fmt: skip
            found = await viewer.api.ask("POST", "/v1/what-if/queue", body=choice)
    except Refused as error:
        wrong = error
    nodes = await viewer.get(2.0, "/v1/nodes")
    policy = await viewer.api.get("/v1/policy")
    return viewer.page(
        "what_if.html.j2", 200 if wrong is None else wrong.status, title="What if", given=given, found=found,
        wrong=wrong, names=sorted(rows()), nodes=[one["id"] for one in nodes[:OFFERED]], now=policy["policy"],
        live=False,
    )  # fmt: skip


def _words(text: str) -> list[str]:
    """Words between commas and spaces.

    >>> _words("n1, n2 n3")
    ['n1', 'n2', 'n3']
    """
    return [word for word in re.split(r"[\s,]+", text) if word]


# The event log of the cluster, and the logs of jobs.

#: Rows of a page; entries that are searched for them.
EVENT_ROWS, SEARCHED = 100, 5000
#: Kinds of entries to filter by -> their types.
KINDS = {
    "submissions": ("Requested", "JobSubmitted"),
    "starts": ("AttemptBegan", "LaunchFailed"),
    "stops": ("StopAsked", "AttemptOver", "CancelAsked"),
    "ends": ("JobFinished", "JobFailed", "JobCancelled"),
    "failures": ("JobFailed", "LaunchFailed", "NodeLost", "RankEnded", "Undelivered"),
    "nodes": (
        "NodeJoined",
        "NodeLost",
        "NodeSuspected",
        "NodeDrained",
        "NodeLeaving",
        "NodeForgotten",
        "NodesReserved",
        "ReservationCancelled",
    ),
    "restarts": ("ServiceStarted", "AgentRestarted"),
    "policy": ("PolicySet", "ProjectSet", "ReplanDue"),
}
#: With measurements, estimates and decisions that change nothing.
EVERYTHING = "everything"


@shown
async def list_events(viewer: Viewer) -> Response:
    """Entries before `?before=`, else the newest."""
    query = viewer.request.query_params
    kind, text = query.get("kind", ""), query.get("q", "").strip()[:200]
    status = await viewer.get(1.0, "/v1/status")
    newest = int(status["log_seq"])
    before = query.get("before", "")
    last = min(int(before) - 1, newest) if before.isascii() and before.isdigit() and len(before) < 16 else newest
    wanted, everything = KINDS.get(kind), kind == EVERYTHING
    plain = everything and not text
    after = max(last - (EVENT_ROWS if plain else SEARCHED), 0)
    found = await viewer.get(1.0, "/v1/events", after=after, limit=max(last - after, 1))
    rows, oldest = [], after + 1
    for one in reversed(found["events"]):
        if one["seq"] > last:
            continue
        if not everything and not telling(one["event"], one["commands"]):
            continue
        words = step_in_words(one["event"], one["commands"], whole=everything)
        if (wanted is None or one["event"]["type"] in wanted) and text.lower() in words.lower():
            rows.append((one["seq"], one["at_s"], one["event"]["type"], words))
            if len(rows) == EVENT_ROWS:
                oldest = one["seq"]
                break
    return viewer.page(
        "events.html.j2", title="Events", rows=rows, kind=kind, q=text, kinds=(*KINDS, EVERYTHING),
        now_s=status["now_s"], oldest=oldest if oldest > 1 else None, first=last == newest, live=last == newest,
    )  # fmt: skip


# Output of the processes of a job: all of it as text, and a continuing stream.

#: Bytes of a log that are read at a time.
PART = 250_000


@shown
async def tail(viewer: Viewer) -> Response:
    """The log as it grows: the API's own stream of server-sent events, passed on."""
    return LogStream(viewer)


@shown
async def text(viewer: Viewer) -> Response:
    """The whole log of an attempt, as far as it is kept and written, as a file to keep.

    A line marks dropped bytes, as in `plait logs`; a later part that cannot be read ends it with a line.
    """
    query = viewer.request.query_params
    first = await _part(viewer, query.get("offset"), query.get("epoch"))
    name = f"{viewer.request.path_params['job']}-attempt{first['epoch']}-rank{first['rank']}.log"
    headers = {"content-disposition": f"inline; filename*=utf-8''{quote(name, safe='')}"}
    return StreamingResponse(_parts(viewer, first), media_type="text/plain; charset=utf-8", headers=headers)


async def _parts(viewer: Viewer, part: dict[str, Any]) -> AsyncIterator[str]:
    """The texts of a log from this part to the end that it has now, of the same attempt."""
    size, epoch = part["size"], part["epoch"]
    while part["text"]:
        yield part["text"]
        if part["next"] >= size:
            return
        try:
            part = await _part(viewer, part["next"], epoch)
        except Refused as error:
            yield f"\n[plait: the rest of this log cannot be read: {error}]\n"
            return


async def _part(viewer: Viewer, offset: Any, epoch: Any) -> dict[str, Any]:
    """The requested part of the log; raises `Refused`."""
    path = f"/v1/jobs/{segment(viewer.request.path_params['job'])}/logs"
    rank = viewer.request.query_params.get("rank")
    found: dict[str, Any] = await viewer.api.get(path, limit=PART, rank=rank, offset=offset, epoch=epoch)
    return found


class LogStream(Response):
    """An answer that the API writes."""

    def __init__(self, viewer: Viewer) -> None:
        super().__init__()
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query, name = self._viewer.request.query_params, self._viewer.request.path_params["job"]
        given = {key: query.get(key) for key in ("rank", "offset")}
        await self._viewer.api.pass_on(f"/v1/jobs/{segment(name)}/logs", {**given, "follow": 1}, receive, send)
