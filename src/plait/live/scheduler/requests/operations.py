"""Requests of users and operators that are not about jobs: each is checked, and recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plait.control.messages import NodeJoined, NodeLost, NodesReserved, ReservationCancelled
from plait.core.errors import Conflict, InputError, suggest
from plait.core.jobs import Phase
from plait.core.plan import NodeReservation
from plait.core.policy import Policy, has_grants
from plait.core.words import duration
from plait.live.layout import job_name
from plait.live.protocol.requests import ina_of
from plait.live.scheduler.context import Context
from plait.live.scheduler.live_policy import live_policy
from plait.live.scheduler.records.attempts import NodeRecord
from plait.live.scheduler.records.notes import ForecastRecorded, NodeDrained, NodeForgotten, PolicySet, ProjectSet
from plait.live.scheduler.report import hardware
from plait.live.scheduler.requests.admission import check_project
from plait.live.scheduler.requests.losses import losses, on_node, refuse
from plait.policies.aggregation import aggregation_of
from plait.policies.quotas import Quotas


def foreseen(ctx: Context, number: int, start: Sequence[float | None] | None, end: Sequence[float | None]) -> None:
    """Record the first forecast of job `number`: `start`, `end` in seconds from now. `LookupError` if it has ended."""
    job = ctx.state.jobs.get(number)
    if job is None or ctx.state.phase(job) > Phase.RUNNING:
        raise LookupError(f"job {job_name(number)} has ended")
    if number not in ctx.state.record.open:
        begin = None if start is None or job.live is not None else list(start)
        ctx.record(ForecastRecorded(ctx.now_s, number, begin, list(end)))


def set_policy(ctx: Context, text: str, may_lose_work: bool) -> None:
    """Change the policy to `text`; `may_lose_work`: it may stop jobs without checkpoints.

    Raises `InputError` for an unknown policy, one with needs that live clusters do not meet, or quotas of unknown
    projects or GPU kinds.
    """
    policy, state = check_policy(ctx, text), ctx.state
    quotas = getattr(policy, "quotas", None)
    if isinstance(quotas, Quotas) and state.controller is not None:
        projects = {"default", *state.projects, *(job.project for job in state.jobs.values())}
        quotas.refuse_unknown(projects, state.controller.cluster.kinds)
    ctx.record(PolicySet(ctx.now_s, text, may_lose_work))


def check_policy(ctx: Context, text: str) -> Policy:
    """The policy of this name, which this cluster can run.

    Raises `InputError` for an unknown one, and for one that could never run the present jobs: jobs that require
    aggregation need one that grants memory of switches, for the system that they request.
    """
    policy = live_policy(text, ctx.state.network.declared is not None)
    wants = {n: ina_of(job.request) for n, job in ctx.state.jobs.items() if not job.cancelled}
    needs = {n: ina for n, ina in wants.items() if ina.required}
    if needs and not has_grants(policy):
        raise InputError(
            f"policy {text} grants no memory of switches, which {', '.join(map(job_name, list(needs)[:5]))} require; "
            f"give it ina=, e.g. {text.partition(':')[0]}:ina=inalloc, or cancel them first"
        )
    grants = aggregation_of(policy)
    for n, ina in needs.items():
        if grants is not None and (other := grants.other_system(ina)) is not None:
            raise InputError(f"policy {text}: {job_name(n)} {other}, and requires its own; cancel it first")
    return policy


def set_project(
    ctx: Context, name: str, gpu_quota: int | None, weight: float, default_time_s: float | None,
    most_time_s: float | None, most_idle_s: float | None,
) -> None:  # fmt: skip
    """Make or change a project; `InputError` for an invalid quota, weight or time limit."""
    if gpu_quota is not None and gpu_quota < 0:
        raise InputError(f"gpu_quota is {gpu_quota}, needs a whole number >= 0, or null for no limit")
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"weight is {weight}, needs a number > 0")
    times = {"default_time_s": default_time_s, "most_time_s": most_time_s, "most_idle_s": most_idle_s}
    for field, limit_s in times.items():
        if limit_s is not None and not 0.0 < limit_s < math.inf:
            raise InputError(f"{field} is {limit_s}, needs seconds > 0, or null for no limit")
    if default_time_s is not None and most_time_s is not None and default_time_s > most_time_s:
        raise InputError(
            f"the default time limit (--default-time) is {duration(default_time_s)}, longer than the longest "
            f"(--max-time), {duration(most_time_s)}; give a shorter default, or a longer limit"
        )
    ctx.record(
        ProjectSet(
            ctx.now_s, name, gpu_quota=gpu_quota, weight=weight, default_time_s=default_time_s,
            most_time_s=most_time_s, most_idle_s=most_idle_s,
        )
    )  # fmt: skip


def drop_project(ctx: Context, name: str) -> None:
    """Remove quota and weight of project `name`; `LookupError` if it has none."""
    if name not in ctx.state.projects:
        raise LookupError(f"no project {name!r}")
    if reserved := [one for one in _reservations(ctx) if one.project == name]:
        raise Conflict(f"{reserved[0]}; cancel it with: plait nodes unreserve {reserved[0].id}")
    ctx.record(ProjectSet(ctx.now_s, name, gone=True))


def drain(ctx: Context, node: str, may_lose_work: bool) -> None:
    """Take a node out.

    Raises `Conflict` if a job there would lose work and not `may_lose_work`; `LookupError` for an unknown node.
    """
    record = _node(ctx, node)
    if not record.drained:
        if not may_lose_work and not record.lost:
            refuse(losses(ctx, on_node(ctx, node)))
        if not record.lost:
            ctx.record(NodeLost(ctx.now_s, node))
        ctx.record(NodeDrained(ctx.now_s, node, drained=True))


def resume(ctx: Context, node: str) -> None:
    """Let a drained node work again; `LookupError` for an unknown one."""
    record = _node(ctx, node)
    if record.drained:
        ctx.record(NodeDrained(ctx.now_s, node, drained=False))
        if not record.lost and not record.leaving:
            assert record.info is not None
            ctx.record(NodeJoined(ctx.now_s, hardware(record.info)))
            ctx.timers.watched_s = -math.inf  # it may be silent


def reserve(
    ctx: Context, nodes: Sequence[str], project: str, from_s: float, until_s: float, by: str, key: str = ""
) -> NodeReservation:
    """Record a reservation; see `Engine.reserve`."""
    state = ctx.state
    if unknown := [node for node in nodes if node not in state.nodes]:
        known = sorted(state.nodes)
        raise LookupError(
            f"no node {unknown[0][:64]!r}; {suggest(unknown[0], known) if known else 'none has joined yet'}"
        )
    check_project(ctx, project)
    before = () if state.controller is None else state.controller.reserved
    last = max((int(one.id.removeprefix("r-")) for one in before), default=0)
    made = NodeReservation(f"r-{last + 1}", tuple(dict.fromkeys(nodes)), project, from_s, until_s, by, key)
    for other in (one for one in _reservations(ctx) if key and (one.by, one.key) == (by, key)):
        same = (other.nodes, other.project) == (made.nodes, project)
        if not same or abs((until_s - from_s) - (other.until_s - other.from_s)) > 1e-3:
            raise Conflict("this Idempotency-Key was used for another reservation; give each its own")
        return other
    for other in _reservations(ctx):
        both = set(made.nodes).intersection(other.nodes)
        if both and made.from_s < other.until_s and other.from_s < made.until_s:
            raise Conflict(
                f"{', '.join(sorted(both))} cannot be reserved twice: {other.id}, for project {other.project}, "
                f"{_when(other, ctx.now_s)}; take another time, or cancel it with: plait nodes unreserve {other.id}"
            )
    ctx.record(NodesReserved(ctx.now_s, made))
    return made


def cancel_reservation(ctx: Context, name: str, by: str) -> None:
    """Record that a reservation is cancelled; `LookupError` for one that is unknown or has ended."""
    names = [one.id for one in _reservations(ctx)]
    if name not in names:
        raise LookupError(f"no reservation {name[:64]!r}; there are: {', '.join(names) or 'none'}")
    ctx.record(ReservationCancelled(ctx.now_s, name, by))


def _reservations(ctx: Context) -> list[NodeReservation]:
    known = () if ctx.state.controller is None else ctx.state.controller.reserved
    return [one for one in known if one.until_s > ctx.now_s]


def _when(one: NodeReservation, now_s: float) -> str:
    if one.from_s <= now_s:
        return f"now and for another {duration(one.until_s - now_s)}"
    return f"in {duration(one.from_s - now_s)} for {duration(one.until_s - one.from_s)}"


def node_gone(ctx: Context, node: str, why: str, certain: bool) -> None:
    """Record that the backend reports a node as dead; `LookupError` for an unknown one."""
    record = _node(ctx, node)
    if not record.gone or (certain and not record.dead):
        record.gone, record.dead = why or "reported by its backend", certain
        ctx.stale, ctx.timers.watched_s = True, -math.inf


def forget_node(ctx: Context, node: str) -> None:
    """Take a node out of the lists; `Conflict` while it may still run something, `LookupError` for an unknown one."""
    record = _node(ctx, node)
    here = [job.number for job, attempt in ctx.state.attempts if any(r.node == node for r in attempt.ranks)]
    if here:
        names = ", ".join(job_name(n) for n in here[:5])
        raise Conflict(f"node {node!r} may still run {names}; it can be forgotten once they go on elsewhere")
    silent = ctx.now_s - record.heard_s >= ctx.options.suspect_s
    if not record.lost and not (silent and (record.drained or record.leaving)):
        raise Conflict(
            f"node {node!r} is {record.state} and its agent still reports; end its agent first, with SIGTERM, and "
            "forget it when `plait nodes` shows it as left or lost"
        )
    ctx.record(NodeForgotten(ctx.now_s, node))


def _node(ctx: Context, node: str) -> NodeRecord:
    record = ctx.state.nodes.get(node)
    if record is None:
        known = ", ".join(ctx.state.nodes) or "none yet"
        raise LookupError(f"no node {node!r}; there are: {known}")
    return record
