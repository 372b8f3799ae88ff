"""The cluster: its figures, costs, use of resources over time, nodes, policy, state and event log."""

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs
from starlette.responses import PlainTextResponse

from plait.core.errors import InputError, PlaitError
from plait.core.version import __version__
from plait.live.api import cluster as answers
from plait.live.api.cluster import NetworkOfCluster as Network
from plait.live.api.costs import Costs, RankUsage, Series, UsageOfJob
from plait.live.api.jobs import FINAL
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.live_policy import live_policy
from plait.live.service.http.api import Api, Call, Json, Routes
from plait.live.service.http.auth import only_of
from plait.live.service.http.bodies import ENTRIES, LARGEST, DrainIn, GoneIn, PolicyIn, ReservationIn
from plait.live.service.usage import MOST_HOURS, MOST_POINTS, SERIES
from plait.live.service.what_if import Busy
from plait.live.store import Entry
from plait.policies.catalog import check_named

#: Jobs of an answer at most.
MOST_JOBS = 1000

ROUTES = Routes("cluster")
OF_JOBS = Routes("jobs")


class CostsQuery(Struct, frozen=True):
    """Which costs."""

    hours: Annotated[int, Meta(ge=1, le=MOST_HOURS)] = 24
    """Hours back from now."""
    job: Annotated[str, Meta(max_length=20)] | None = None
    """Only the row of this job."""
    limit: Annotated[int, Meta(ge=0, le=MOST_JOBS)] = 100
    """Jobs at most, the costliest first."""


@ROUTES.get("/v1/costs", Costs, query=CostsQuery)
async def costs(call: Call, query: CostsQuery) -> Costs:
    """Costs of the cluster in the last `hours`, by user, project and the `limit` costliest jobs, or one `job` alone.

    Users see the sums of all, and rows of their own.
    """
    api, token = call.api, call.token
    found = await asyncio.to_thread(api.costs.of, query.hours, api.worker.clock())
    users, projects, jobs = found.by_user, found.by_project, found.by_job
    if token.role == "user":
        users = [row for row in users if row.user == token.user]
        projects = [row for row in projects if row.project == token.project]
        jobs = [row for row in jobs if row.user == token.user]
    if query.job is not None:
        jobs = [row for row in jobs if row.id == query.job]
    return structs.replace(found, by_user=users, by_project=projects, by_job=jobs[: query.limit])


class UsageQuery(Struct, frozen=True):
    """How many intervals."""

    points: Annotated[int, Meta(ge=10, le=MOST_POINTS)] = MOST_POINTS
    """Intervals at most."""


@OF_JOBS.get("/v1/jobs/{job}/usage", UsageOfJob, query=UsageQuery, own=True)
async def job_usage(call: Call, query: UsageQuery) -> UsageOfJob:
    """Use of a job over time: GPUs, CPU, memory, disk, network, stages, goodput and batch size.

    At most `points` intervals: where there are more, they get longer.
    """
    row, now_s = (await call.job()).row, round(call.api.worker.clock(), 3)
    found = await asyncio.to_thread(call.api.usage.usages.recorded, row.number)
    if found is None:
        return UsageOfJob(row.id, now_s, None, 0.0, {}, [], 0.0, 0.0, 0.0)
    found.series.thin(query.points)
    series = {
        name: Series(
            SERIES[name].unit, SERIES[name].text, SERIES[name].chart,
            [float(f"{value:.5g}") if math.isfinite(value) else None for value in values],
        )
        for name, values in found.series.values().items()
    }  # fmt: skip
    return UsageOfJob(
        id=row.id,
        now_s=now_s,
        from_s=round(found.series.from_s, 3),
        interval_s=found.series.interval_s,
        series=series,
        ranks=[] if found.now is None else [RankUsage(**rank) for rank in found.now.ranks],
        held_gpu_s=round(found.held_gpu_s, 1),
        known_gpu_s=round(found.known_gpu_s, 1),
        idle_gpu_s=round(found.idle_gpu_s, 1),
    )


_LOG = logging.getLogger("plait.service")

_ADMIN = ("admin",)


async def _status(api: Api) -> answers.ClusterStatus:
    found = await api.worker.look(lambda engine, now_s: engine.status(now_s))
    counts = await asyncio.to_thread(api.store.counts)
    trouble = api.worker.trouble or None
    figures = structs.asdict(found) | {"jobs": found.jobs | {state: counts.get(state, 0) for state in FINAL}}
    return answers.ClusterStatus(
        **figures,
        prices=None if api.costs.prices is None else str(api.costs.prices),
        store_error=trouble,
        stored_s=round(api.worker.stored_s, 3) if trouble else None,
        version=__version__,
        uptime_s=time.monotonic() - api.begin,
    )


@ROUTES.get("/v1/status", answers.ClusterStatus)
async def show_status(call: Call) -> answers.ClusterStatus:
    """The service in a few figures."""
    return await _status(call.api)


@ROUTES.get("/metrics", None, texts=(("text/plain", "Prometheus' text format."),))
async def metrics(call: Call) -> PlainTextResponse:
    """Figures for Prometheus."""
    api = call.api
    network = await api.worker.look(lambda engine, now_s: engine.network(now_s))
    now_s = api.worker.clock()
    bill = None if api.costs.prices is None else await asyncio.to_thread(api.costs.of, 24, now_s)
    text = api.metrics.render(await _status(api), network, bill, api.usage.usages.idle_now())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


@ROUTES.get("/v1/state", answers.ForecastState)
async def state(call: Call) -> Json:
    """Everything a forward simulation needs: jobs that have not ended, renumbered, and their numbers."""
    api = call.api
    plain, copy = await api.worker.look(
        lambda engine, now_s: (engine.state_for_forecast(now_s), api.what_if.queue(engine, now_s))
    )
    durations: dict[str, Any] = {"left_s": {}, "left_from": {}}
    if copy is not None:
        with contextlib.suppress(Busy):  # then they are drawn from what is in the answer
            later = api.what_if.later(lambda: api.what_if.durations(copy), call.token.user)
            durations = await asyncio.shield(asyncio.wrap_future(later))
    return await asyncio.to_thread(lambda: Json({**plain(), **durations}))


class PageQuery(Struct, frozen=True):
    """Which jobs of a list."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Jobs at most."""
    offset: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """Jobs to skip."""


@ROUTES.get("/v1/queue", answers.Queue, query=PageQuery)
async def queue(call: Call, query: PageQuery) -> answers.Queue:
    """Jobs that run or wait, in the order of the last decision, with the numbers behind it."""
    only = only_of(call.token)
    found = await call.api.worker.look(lambda engine, now_s: engine.queue(now_s, query.limit, query.offset))
    jobs = [job if only in (None, job.user) else structs.replace(job, name="") for job in found.jobs]
    return structs.replace(found, jobs=jobs)


class PlacementsQuery(Struct, frozen=True):
    """Which attempts."""

    node: Annotated[list[str], Meta(min_length=1, max_length=64)]
    """Name of a node; may be repeated."""
    from_s: Annotated[float, Meta(ge=0, le=1e15)] = 0.0
    """Only attempts that had not ended by then, s."""
    to_s: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    """Only attempts begun by then, s; now."""
    limit: Annotated[int, Meta(ge=1, le=2000)] = 200
    """Attempts at most."""


@ROUTES.get("/v1/placements", answers.Placements, query=PlacementsQuery)
async def placements(call: Call, query: PlacementsQuery) -> answers.Placements:
    """Attempts on GPUs of these nodes, newest first: who shared them, who was there before."""
    now_s = call.api.worker.clock()
    to_s = now_s if query.to_s is None else query.to_s
    rows = await asyncio.to_thread(call.api.store.attempts_on, query.node, query.from_s, to_s, query.limit + 1)
    found = [
        answers.Placement(
            job=job.id,
            user=job.user,
            epoch=attempt.epoch,
            state=attempt.state,
            started_s=attempt.started_s or 0.0,  # the store lists none that never began
            ended_s=attempt.ended_s,
            gpus=sorted({(rank.node, rank.gpu) for rank in attempt.ranks if rank.node in query.node}),
        )
        for job, attempt in rows[: query.limit]
    ]
    return answers.Placements(round(now_s, 3), found, len(rows) > query.limit)


@ROUTES.get("/v1/nodes", list[answers.NodeRow])
async def nodes(call: Call) -> list[answers.NodeRow]:
    """Nodes, their usage, and who holds their GPUs."""
    return await call.api.worker.look(lambda engine, now_s: engine.nodes(now_s))


class LossesQuery(Struct, frozen=True):
    """Whose losses."""

    job: Annotated[list[str], Meta(max_length=1000)] = []
    """Id or name of a job; may be repeated."""
    node: Annotated[list[str], Meta(max_length=1000)] = []
    """Name of a node; may be repeated."""


@ROUTES.get("/v1/losses", answers.Losses, query=LossesQuery)
async def losses(call: Call, query: LossesQuery) -> answers.Losses:
    """Work that running jobs would lose if they were stopped now: these jobs, all on these nodes; all if none is named.

    Users get losses of their own jobs.
    """
    only = only_of(call.token)
    numbers = [(await call.api.stored(name, call.token)).row.number for name in query.job]
    return await call.api.worker.look(lambda engine, now_s: engine.losses(numbers, query.node, only))


@ROUTES.get("/v1/network", Network)
async def network(call: Call) -> Network:
    """The network: switches, who serves them, and what jobs have of them."""
    return await call.api.worker.look(lambda engine, now_s: engine.network(now_s))


@ROUTES.post("/v1/nodes/{node}/gone", answers.NodeRow, body=GoneIn, roles=_ADMIN)
async def node_gone(call: Call, said: GoneIn) -> answers.NodeRow:
    """The backend reports a node as dead; only speeds up the effect of its silence."""
    node = call.path["node"]
    await call.api.worker.call(lambda engine, now_s: engine.node_gone(node, said.why, now_s, certain=said.certain))
    return await _shown(call.api, node)


@ROUTES.route(
    "DELETE", "/v1/nodes/{node}", answers.NodeForgottenAnswer, roles=_ADMIN, conflict="Something may still run there."
)
async def forget_node(call: Call) -> answers.NodeForgottenAnswer:
    """Take a node that has gone out of the lists."""
    node = call.path["node"]
    await call.api.worker.call(lambda engine, now_s: engine.forget_node(node, now_s))
    return answers.NodeForgottenAnswer(node, "forgotten")


async def _shown(api: Api, node: str) -> answers.NodeRow:
    found = await api.worker.look(lambda engine, now_s: engine.nodes(now_s))
    shown = next((row for row in found if row.id == node), None)
    if shown is None:  # forgotten by another request in the meantime
        raise LookupError(f"no node {node[:40]!r} any more; `plait nodes` lists the present ones")
    return shown


@ROUTES.post(
    "/v1/nodes/{node}/{action}", answers.NodeRow, body=DrainIn, body_required=False, roles=_ADMIN,
    conflict="Jobs there would lose work.",
)  # fmt: skip
async def change_node(call: Call, said: DrainIn) -> answers.NodeRow:
    """Drain `node` or resume it, by `action`.

    A drained node gets no new work. Its jobs stop, after a checkpoint if they can resume from one, and continue
    elsewhere. If one would lose work, nothing is done unless `may_lose_work` is true.
    """
    node, action = call.path["node"], call.path["action"]
    if action not in ("drain", "resume"):
        raise LookupError(f"a node can be drained and resumed, not {action[:40]!r}")
    if action == "drain":
        await call.api.worker.call(lambda engine, now_s: engine.drain(node, now_s, may_lose_work=said.may_lose_work))
    else:
        await call.api.worker.call(lambda engine, now_s: engine.resume(node, now_s))
    return await _shown(call.api, node)


@ROUTES.get("/v1/reservations", list[answers.ReservationRow])
async def reservations(call: Call) -> list[answers.ReservationRow]:
    """Reservations of nodes that have not ended, the first to begin first."""
    return await call.api.worker.look(lambda engine, now_s: engine.reservations(now_s))


@ROUTES.post(
    "/v1/reservations", answers.ReservationRow, body=ReservationIn, roles=_ADMIN,
    conflict="One of the nodes is reserved at that time.", key=True,
)  # fmt: skip
async def reserve(call: Call, given: ReservationIn) -> answers.ReservationRow:
    """Reserve nodes for a project.

    Until the beginning, jobs of other projects start there only if they have surely left by then. At the beginning the
    ones that resume from a checkpoint are stopped, and others stay until they end. With an `Idempotency-Key` it may be
    sent again until its end.
    """
    key = call.key or ""

    def work(engine: Engine, now_s: float) -> answers.ReservationRow:
        from_s = now_s + given.in_s
        return engine.reserve(given.nodes, given.project, from_s, from_s + given.for_s, call.token.user, now_s, key)

    row: answers.ReservationRow = await call.api.worker.call(work)
    return row


@ROUTES.route("DELETE", "/v1/reservations/{reservation}", answers.ReservationGone, roles=_ADMIN)
async def cancel_reservation(call: Call) -> answers.ReservationGone:
    """Let jobs of all projects use the nodes again."""
    name = call.path["reservation"]
    await call.api.worker.call(lambda engine, now_s: engine.cancel_reservation(name, call.token.user, now_s))
    return answers.ReservationGone(name, True)


@ROUTES.get("/v1/policy", answers.PolicyAnswer)
async def policy(call: Call) -> answers.PolicyAnswer:
    """The policy that decides."""
    return await call.api.worker.look(_policy)


@ROUTES.route("PUT", "/v1/policy", answers.PolicyAnswer, body=PolicyIn, roles=_ADMIN)
async def set_policy(call: Call, given: PolicyIn) -> answers.PolicyAnswer:
    """Let another policy decide from now on."""
    worker, wanted = call.api.worker, given.policy
    engine = worker.engine
    network = engine.state.network.declared is not None
    await asyncio.to_thread(_try_out, wanted, engine.options.policy_modules, engine.layout.home, network)
    await worker.call(lambda engine, now_s: engine.set_policy(wanted, now_s, may_lose_work=given.may_lose_work))
    return await worker.look(_policy)


class EventsQuery(Struct, frozen=True):
    """Which entries of the log."""

    after: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """The entry to begin after, its `seq`."""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    """Entries at most."""


@ROUTES.get("/v1/events", ENTRIES, query=EventsQuery, roles=("admin", "viewer"))
async def events(call: Call, query: EventsQuery) -> Json:
    """The event log after an entry."""
    secrets = call.token.role == "admin"

    def read() -> Json:
        entries = call.api.store.entries(query.after, query.limit)
        return Json({"events": [entry(one, secrets=secrets) for one in entries]})

    return await asyncio.to_thread(read)


def entry(row: Entry, *, secrets: bool) -> dict[str, Any]:
    """An entry of the log; environments only for readers who may see them."""
    event = json.loads(row.entry)
    if not secrets and event["type"] == "Requested":
        for request in event["requests"]:
            request.pop("env", None)
    return {"seq": row.seq, "at_s": row.at_s, "event": event, "commands": json.loads(row.commands)}


def _try_out(policy: str, modules: Collection[str], folder: Path, network: bool) -> None:
    """Load and compile what a policy needs: in the engine's thread all users and agents would wait for that.

    Raises `InputError` for a policy that does not exist, that may not be named over HTTP, or with unknown options.
    """
    from plait.live.service.warmup import compile_rest, warm_up

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
    compile_rest(policy)


def _policy(engine: Engine, now_s: float) -> answers.PolicyAnswer:
    state = engine.state
    return answers.PolicyAnswer(
        state.policy_text, state.may_lose_work, state.policy_error or None, engine.options.round_s
    )
