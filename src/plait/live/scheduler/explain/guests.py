"""Sharing of a running job's GPUs with guests, or as one: its neighbours, its share, where it would be alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from plait.core.words import counted
from plait.live.api.jobs import Action, Neighbour, SharingOfJob, Throttle
from plait.live.layout import job_name
from plait.live.protocol.wire import Sharing
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.attempts import Attempt, JobRecord

#: Idle GPUs that are named at most.
NAMED = 4


def shown(ctx: Context, attempt: Attempt) -> SharingOfJob | None:
    """How an attempt shares GPUs with guests or as a guest; None if it does not.

    Reports of agents count that are not silent.
    """
    groups = ctx.state.groups
    mine = groups.by_job.get(attempt.job)  # none for an attempt that the plan dropped before its first step
    if attempt.stop is not None or mine is None or not (attempt.guest or groups.shared):
        return None
    beside = [
        Neighbour(job_name(other), gpu_name(ctx, gpu), groups.by_job[other].guest)
        for gpu in attempt.gpus
        for other in groups.shared.get(gpu, ())
        if other != attempt.job and groups.by_job[other].id != mine.id
    ]
    if not beside and not attempt.guest:
        return None
    said = heard(ctx, attempt)
    throttled = [one for one in said if one.throttled]
    return SharingOfJob(
        guest=attempt.guest,
        beside=beside,
        share=min((one.share for one in said), default=None),
        limit_bytes=min((one.limit_bytes for one in said if one.limit_bytes > 0), default=None),
        action=cast("Action | None", max((one.action for one in said), key=_ACTIONS.index, default=None)),
        throttled=cast("Throttle", throttled[0].throttled) if throttled else None,
        duty=min((one.duty for one in throttled if one.duty is not None), default=None),
        law=next((one.law for one in sorted(said, key=lambda one: one.share) if one.law), None),
    )


def counts(ctx: Context) -> dict[str, int]:
    """Numbers of GPUs with a guest next to another job, and of GPUs held for a waiting job without a host."""
    groups, controller = ctx.state.groups, ctx.state.controller
    hosted = {gpu for gpus in groups.by_gpus for gpu in gpus}
    reserved = {gpu for one in (() if controller is None else controller.reservations) for gpu in one.gpus}
    return {"shared": sum(len(jobs) > 1 for jobs in groups.shared.values()), "reserved_idle": len(reserved - hosted)}


def reserved_by_node(ctx: Context) -> dict[str, dict[str, str]]:
    """For each node the GPUs (numbers on it, as texts) that are held for waiting jobs, and these jobs."""
    controller, out = ctx.state.controller, dict[str, dict[str, str]]()
    for reservation in () if controller is None else controller.reservations:
        for gpu in reservation.gpus:
            node, _, number = gpu_name(ctx, gpu).rpartition(":")
            out.setdefault(node, {})[number] = job_name(reservation.job)
    return out


#: Ordered from letting the guest run to ending it.
_ACTIONS = ("run", "pause", "checkpoint", "stop")


def heard(ctx: Context, attempt: Attempt) -> list[Sharing]:
    """The last reports of agents on how its processes share GPUs, without silent agents, which may be gone."""
    silent = _silent(ctx, attempt)
    return [
        rank.seen.sharing
        for rank in attempt.ranks
        if rank.seen is not None and rank.seen.sharing is not None and rank.node not in silent
    ]


def _silent(ctx: Context, attempt: Attempt) -> list[str]:
    """Nodes of the attempt that have not reported lately."""
    names = dict.fromkeys(rank.node for rank in attempt.ranks if not rank.ended)
    return [name for name in names if (node := ctx.state.nodes.get(name)) is None or node.lost or node.suspect]


def sentence(ctx: Context, job: JobRecord, attempt: Attempt, how: SharingOfJob) -> str:
    """The same for people: as whose guest a job runs, at which share and why; or which guests it has."""
    where = {one.job: one.gpu for one in how.beside}
    if not how.guest:
        shares = ctx.state.jobs
        guests = [f"{one} on {gpu}{_at(ctx, shares.get(int(one[2:])))}" for one, gpu in where.items()]
        return f"runs at full speed; what it leaves goes to {_listed(guests)}"
    hosts = {one.job: one.gpu for one in how.beside if not one.guest}
    others = [f"{name} on {gpu}" for name, gpu in where.items() if name not in hosts]
    share = _share(how)
    if silent := _silent(ctx, attempt):
        share += f", and is paused if the agent of {_listed(silent)} is gone (it has not reported lately)"
    runs = "is frozen" if how.throttled and how.share == 0 else "runs"
    if hosts:
        text = f"{runs} as a guest of {_listed([f'{name} on {gpu}' for name, gpu in hosts.items()])}{share}"
    else:
        places = _listed([gpu_name(ctx, gpu) for gpu in attempt.gpus])
        text = f"{runs} as a guest{share} on {places}, where no guaranteed job is"
    text += f", because {_because(ctx, job, how, list(hosts))}"
    text += f"; next to it: {_listed(others)}" if others else ""
    text += f"; by the share law: {how.law}" if hosts and how.law else ""
    return f"{text}; {_alone(ctx, attempt)}" if how.beside else text


#: By what the processes of a throttled guest are frozen.
_BY = {"cgroup": "the cgroup freezer", "signals": "stop signals"}


def _share(how: SharingOfJob) -> str:
    """The kept share, to follow "runs as a guest of j-0 on n0:0"."""
    if how.share is None:
        return ""
    if how.throttled is None:
        return f" at share {how.share:.2f}"
    by = _BY[how.throttled]
    if how.share == 0:
        return f" by {by} (share 0.00)"
    ran = "" if how.duty is None else f": it ran for {how.duty:.2f} of the last 10 s"
    return f" at share {how.share:.2f}, throttled by {by}{ran}"


def _at(ctx: Context, job: JobRecord | None) -> str:
    attempt = job.live if job is not None else None
    shares = [] if attempt is None else [one.share for one in heard(ctx, attempt)]
    return f" (share {min(shares):.2f})" if shares else ""


def _because(ctx: Context, job: JobRecord, how: SharingOfJob, hosts: Sequence[str]) -> str:
    """Why it is a guest, or why it gets nothing just now."""
    held = how.action == "pause" or how.share == 0
    if held and (unseen := [name for name in hosts if not _steps_seen(ctx, name)]):
        has, leaves = ("have", "leave") if len(unseen) > 1 else ("has", "leaves")
        return f"{_listed(unseen)} {has} reported no steps, and {leaves} it nothing before that"
    if how.action == "pause":
        return f"{_listed(hosts) if hosts else 'the others there'} {'needs' if len(hosts) == 1 else 'need'} the memory"
    if hosts and how.share == 0:
        return f"the steps of {_listed(hosts)} are being measured without it, which takes some of them now and then"
    if job.request.get("class") == "auto":
        return "its class is auto, and its quota or the GPUs do not let it be guaranteed yet"
    if job.request.get("class") == "opportunistic":
        return "its class is opportunistic"
    return "the policy expects more progress of these jobs together than one after the other"


def _steps_seen(ctx: Context, name: str) -> bool:
    """Whether a host reports steps, from which the law learns what it leaves."""
    host = ctx.state.jobs.get(int(name.removeprefix("j-")))
    lead = host.live.lead if host is not None and host.live is not None else None
    return lead is not None and bool(lead.step_s)


def _alone(ctx: Context, attempt: Attempt) -> str:
    """Where it would be alone: idle GPUs of nodes that take work."""
    cluster, used = ctx.state.in_charge.cluster, {gpu for gpus in ctx.state.groups.of_job.values() for gpu in gpus}
    used.update(gpu for _, live in ctx.state.attempts for gpu in live.gpus)
    idle = [
        gpu
        for gpu in range(cluster.gpus)
        if gpu not in used
        and (node := ctx.state.nodes.get(cluster.nodes[int(cluster.gpu_node[gpu])].id)) is not None
        and node.state == "ready"
    ]
    if len(idle) < len(attempt.gpus):
        return f"{counted(len(idle), 'GPU')} idle" if idle else "no GPU is idle"
    names = [gpu_name(ctx, gpu) for gpu in idle]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"would be alone on {', '.join(names[:NAMED])}{more}"


def gpu_name(ctx: Context, gpu: int) -> str:
    """A GPU of the cluster by its node and the node's number of it: n0:1."""
    cluster = ctx.state.in_charge.cluster
    node = int(cluster.gpu_node[gpu])
    return f"{cluster.nodes[node].id}:{gpu - int(cluster.first_gpu[node])}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
