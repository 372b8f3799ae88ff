"""The cluster: its figures, nodes, policy, state and event log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response

from plait.core.errors import InputError, PlaitError
from plait.core.version import __version__
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.live_policy import live_policy
from plait.live.service.http import serializers
from plait.live.service.http.answers.cluster import (
    ClusterStatus,
    ForecastState,
    Losses,
    NodeForgottenAnswer,
    NodeRow,
    Placements,
    PolicyAnswer,
    Queue,
)
from plait.live.service.http.answers.network import NetworkOfCluster
from plait.live.service.http.api import Api, Json, api_of
from plait.live.service.http.auth import only_of
from plait.live.service.http.models import LARGEST, DrainIn, GoneIn, PolicyIn, parse
from plait.live.service.http.openapi.messages import ENTRIES
from plait.live.service.http.openapi.routes import NodeName, answers
from plait.live.service.what_if import Busy
from plait.policies.catalog import check_named

_LOG = logging.getLogger("plait.service")

_ADMIN = ("admin",)
router = APIRouter(tags=["cluster"])


async def _status(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = await api.worker.look(lambda engine, now_s: engine.status(now_s))
    counts = await asyncio.to_thread(api.store.counts)
    found["jobs"].update({state: counts.get(state, 0) for state in serializers.FINAL})
    trouble = api.worker.trouble or None
    prices = None if api.costs.prices is None else str(api.costs.prices)
    return {
        **found,
        "prices": prices,
        "store_error": trouble,
        "stored_s": round(api.worker.stored_s, 3) if trouble else None,
        "version": __version__,
        "uptime_s": time.monotonic() - api.begin,
    }


@router.get("/v1/status", **answers(ClusterStatus))
async def show_status(request: Request) -> Response:
    """The service in a few figures."""
    api = api_of(request)
    api.who(request)
    return Json(await _status(api))


@router.get(
    "/metrics", response_class=PlainTextResponse, **answers(None, texts={"text/plain": "Prometheus' text format."})
)
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    api = api_of(request)
    api.who(request)
    network = await api.worker.look(lambda engine, now_s: engine.network(now_s))
    now_s = api.worker.clock()
    bill = None if api.costs.prices is None else await asyncio.to_thread(api.costs.of, 24, now_s)
    idle = api.usage.usages.idle_now()
    found = {**await _status(api), "network": network, "costs": bill, "held_idle": idle}
    return PlainTextResponse(api.metrics.render(found), media_type="text/plain; version=0.0.4")


@router.get("/v1/state", **answers(ForecastState))
async def state(request: Request) -> Response:
    """Everything a forward simulation needs: jobs that have not ended, renumbered, and their numbers."""
    api = api_of(request)
    token = api.who(request)
    plain, copy = await api.worker.look(
        lambda engine, now_s: (engine.state_for_forecast(now_s), api.what_if.queue(engine, now_s))
    )
    durations: dict[str, Any] = {"left_s": {}, "left_from": {}}
    if copy is not None:
        with contextlib.suppress(Busy):  # then they are drawn from what is in the answer
            later = api.what_if.later(lambda: api.what_if.durations(copy), token.user)
            durations = await asyncio.shield(asyncio.wrap_future(later))
    return await asyncio.to_thread(lambda: Json({**plain(), **durations}))


@router.get("/v1/queue", **answers(Queue))
async def queue(
    request: Request,
    limit: int = Query(100, ge=1, le=10_000, description="Jobs at most."),
    offset: int = Query(0, ge=0, le=LARGEST, description="Jobs to skip."),
) -> Response:
    """Jobs that run or wait, in the order of the last decision, with the numbers behind it."""
    api = api_of(request)
    only = only_of(api.who(request))
    found = await api.worker.look(lambda engine, now_s: engine.queue(now_s, limit, offset))
    for job in found["jobs"]:
        if only not in (None, job["user"]):
            job["name"] = ""
    return Json(found)


@router.get("/v1/placements", **answers(Placements))
async def placements(
    request: Request,
    node: Annotated[list[str], Query(min_length=1, max_length=64, description="Name of a node; may be repeated.")],
    from_s: float = Query(0.0, ge=0, allow_inf_nan=False, description="Only attempts that had not ended by then, s."),
    to_s: float | None = Query(None, ge=0, allow_inf_nan=False, description="Only attempts begun by then, s; now."),
    limit: int = Query(200, ge=1, le=2000, description="Attempts at most."),
) -> Response:
    """Attempts on GPUs of these nodes, newest first: who shared them, who was there before."""
    api = api_of(request)
    api.who(request)
    now_s = api.worker.clock()
    rows = await asyncio.to_thread(api.store.attempts_on, node, from_s, now_s if to_s is None else to_s, limit + 1)
    found = [serializers.placement(row, node) for row in rows[:limit]]
    return Json({"now_s": round(now_s, 3), "placements": found, "more": len(rows) > limit})


@router.get("/v1/nodes", **answers(list[NodeRow]))
async def nodes(request: Request) -> Response:
    """Nodes, their usage, and who holds their GPUs."""
    api = api_of(request)
    api.who(request)
    return Json(await api.worker.look(lambda engine, now_s: engine.nodes(now_s)))


@router.get("/v1/losses", **answers(Losses))
async def losses(
    request: Request,
    job: Annotated[list[str], Query(max_length=1000, description="Id or name of a job; may be repeated.")] = [],  # noqa: B006
    node: Annotated[list[str], Query(max_length=1000, description="Name of a node; may be repeated.")] = [],  # noqa: B006
) -> Response:
    """Work that running jobs would lose if they were stopped now: these jobs, all on these nodes; all if none is named.

    Users get losses of their own jobs.
    """
    api = api_of(request)
    token = api.who(request)
    only = only_of(token)
    numbers = [(await api.row(name, token))["number"] for name in job]
    return Json(await api.worker.look(lambda engine, now_s: engine.losses(numbers, node, only)))


@router.get("/v1/network", **answers(NetworkOfCluster))
async def network(request: Request) -> Response:
    """The network: switches, who serves them, and what jobs have of them."""
    api = api_of(request)
    api.who(request)
    return Json(await api.worker.look(lambda engine, now_s: engine.network(now_s)))


@router.post("/v1/nodes/{node}/gone", **answers(NodeRow, body=GoneIn, roles=_ADMIN))
async def node_gone(request: Request, node: NodeName) -> Response:
    """The backend reports a node as dead; only speeds up the effect of its silence."""
    api = api_of(request)
    api.who(request, "admin")
    said = parse(GoneIn, await api.body(request))
    await api.worker.call(lambda engine, now_s: engine.node_gone(node, said.why, now_s, certain=said.certain))
    return await _shown(api, node)


@router.delete(
    "/v1/nodes/{node}", **answers(NodeForgottenAnswer, roles=_ADMIN, conflict="Something may still run there.")
)
async def forget_node(request: Request, node: NodeName) -> Response:
    """Take a node that has gone out of the lists."""
    api = api_of(request)
    api.who(request, "admin")
    await api.worker.call(lambda engine, now_s: engine.forget_node(node, now_s))
    return Json({"id": node, "state": "forgotten"})


async def _shown(api: Api, node: str) -> Response:
    found = await api.worker.look(lambda engine, now_s: engine.nodes(now_s))
    shown = next((n for n in found if n["id"] == node), None)
    if shown is None:  # forgotten by another request in the meantime
        raise LookupError(f"no node {node[:40]!r} any more; `plait nodes` lists the present ones")
    return Json(shown)


@router.post(
    "/v1/nodes/{node}/{action}",
    **answers(NodeRow, body=DrainIn, body_required=False, roles=_ADMIN, conflict="Jobs there would lose work."),
)
async def change_node(
    request: Request, node: NodeName, action: Annotated[str, Path(description="drain or resume.")]
) -> Response:
    """Drain `node` or resume it, by `action`.

    A drained node gets no new work. Its jobs stop, after a checkpoint if they can resume from one, and continue
    elsewhere. If one would lose work, nothing is done unless `may_lose_work` is true.
    """
    api = api_of(request)
    api.who(request, "admin")
    if action not in ("drain", "resume"):
        raise LookupError(f"a node can be drained and resumed, not {action[:40]!r}")
    lose = parse(DrainIn, await api.body(request) if await request.body() else {}).may_lose_work
    if action == "drain":
        await api.worker.call(lambda engine, now_s: engine.drain(node, now_s, may_lose_work=lose))
    else:
        await api.worker.call(lambda engine, now_s: engine.resume(node, now_s))
    return await _shown(api, node)


@router.get("/v1/policy", **answers(PolicyAnswer))
async def policy(request: Request) -> Response:
    """The policy that decides."""
    api = api_of(request)
    api.who(request)
    return Json(await api.worker.look(_policy))


@router.put("/v1/policy", **answers(PolicyAnswer, body=PolicyIn, roles=_ADMIN))
async def set_policy(request: Request) -> Response:
    """Let another policy decide from now on."""
    api = api_of(request)
    api.who(request, "admin")
    given = parse(PolicyIn, await api.body(request))
    wanted, lose = given.policy, given.may_lose_work
    engine = api.worker.engine
    network = engine.state.network.declared is not None
    await asyncio.to_thread(_try_out, wanted, engine.options.policy_modules, engine.layout.home, network)
    await api.worker.call(lambda engine, now_s: engine.set_policy(wanted, now_s, may_lose_work=lose))
    return Json(await api.worker.look(_policy))


@router.get("/v1/events", **answers(ENTRIES, roles=("admin", "viewer")))
async def events(
    request: Request,
    after: int = Query(0, ge=0, le=LARGEST, description="The entry to begin after, its `seq`."),
    limit: int = Query(1000, ge=1, le=10_000, description="Entries at most."),
) -> Response:
    """The event log after an entry."""
    api = api_of(request)
    token = api.who(request, "admin", "viewer")

    def read() -> Response:
        shown = [serializers.entry(e, secrets=token.role == "admin") for e in api.store.entries(after, limit)]
        return Json({"events": shown})

    return await asyncio.to_thread(read)


def _try_out(policy: str, modules: Collection[str], folder: FilePath, network: bool) -> None:
    """Load and compile what a policy needs: in the engine's thread all users and agents would wait for that.

    Raises `InputError` for a policy that does not exist, that may not be named over HTTP, or with unknown options.
    """
    from plait.live.service.warmup import warm_up

    try:
        check_named(policy, modules, folder)
        live_policy(policy, network)
    except PlaitError:
        raise
    except Exception as error:
        raise InputError(f"policy {policy[:100]!r} cannot be made: {type(error).__name__}: {error}") from error
    try:
        warm_up(policy)
    except Exception:  # on a cluster of its own; the status will show how it does on the real one
        _LOG.warning("policy %s failed on an empty cluster", policy, exc_info=True)


def _policy(engine: Engine, now_s: float) -> dict[str, Any]:
    state = engine.state
    return {
        "policy": state.policy_text, "may_lose_work": state.may_lose_work, "error": state.policy_error or None,
        "round_s": engine.options.round_s,
    }  # fmt: skip
