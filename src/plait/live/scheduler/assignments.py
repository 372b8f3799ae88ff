"""The assignment of each agent, derived from the state and never stored: a restart derives the same ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from plait.core.codec.values import Codec
from plait.live.layout import job_name
from plait.live.protocol.arrays import array_of
from plait.live.protocol.requests import command_of, limits_of, merge_key, needs_no_gpu
from plait.live.protocol.wire import Assignment, GroupInfo, Mate, Run
from plait.live.scheduler.context import Context
from plait.live.scheduler.network.orders import grant_of_ranks, switch_orders
from plait.live.scheduler.network.tell import waits_for_word
from plait.live.scheduler.records.attempts import FAILED, Attempt, JobRecord, Rank
from plait.live.scheduler.stops import GRACEFUL, TIME_LIMIT
from plait.placement.servers import starting_ranks

#: Where a job finds the bounds of its batch that were given when it was submitted: `BatchLimits` as JSON.
BATCH_VARIABLE = "PLAIT_BATCH"
#: Where its ranks find which of them start parameter servers.
SERVERS_VARIABLE = "PLAIT_SERVERS"
#: Where its agent finds the image of its container; see `plait.live.agent.processes.container`.
CONTAINER_VARIABLE = "PLAIT_CONTAINER"


def assignment(ctx: Context, node: str, agent: str | None = None) -> Assignment:
    """The processes that should run on a node; none for a replaced agent, perhaps of another machine."""
    record = ctx.state.nodes.get(node)
    if record is None:  # forgotten while its agent's last question was open
        return Assignment(ctx.term, 0, ctx.options.lease_s)
    refresh(ctx)
    runs, order, successors = record.assigned if agent in (None, record.agent) else ([], None, [])
    return Assignment(ctx.term, record.version, ctx.options.lease_s, runs, switch=order, successors=successors)


def refresh(ctx: Context) -> bool:
    """Derive the assignments of all nodes again if they may have changed: versions of changed ones grow.

    Returns whether they may have.
    """
    if not ctx.reassign:
        return False
    ctx.reassign = False
    all_runs, orders, all_successors = runs_by_node(ctx), switch_orders(ctx), _successors_by_node(ctx)
    for name, record in ctx.state.nodes.items():
        runs = all_runs.get(name, [])
        assigned = runs, orders.get(name), all_successors.get(name, [])
        if assigned != record.assigned or not record.version:
            record.assigned, record.version = assigned, max(record.version + 1, ctx.state.seq)
        for run in runs:
            if run.stop:
                record.stops.setdefault((run.job, run.epoch, run.rank), record.version)
    return True


def runs_by_node(ctx: Context) -> dict[str, list[Run]]:
    """Processes that should be on each node: of attempts that are fenced and not over."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for number in sorted(ctx.state.live - ctx.unfenced.keys()):
        job = ctx.state.jobs.get(number)
        attempt = job.live if job else None
        if job is None or attempt is None or waits_for_word(ctx, attempt):
            continue
        for i, rank in enumerate(attempt.ranks):
            if not rank.ended:
                runs[rank.node].append(_run(ctx, job, attempt, i, rank))
    return dict(runs)


def _successors_by_node(ctx: Context) -> dict[str, list[Run]]:
    """Processes that should start on each node next to the current attempt of their job."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for number, successor in sorted(ctx.successors.items()):
        if (job := ctx.state.jobs.get(number)) is not None:
            for i, rank in enumerate(successor.attempt.ranks):
                runs[rank.node].append(_run(ctx, job, successor.attempt, i, rank))
    return dict(runs)


def _run(ctx: Context, job: JobRecord, attempt: Attempt, index: int, rank: Rank) -> Run:
    request, options = job.request, ctx.options
    world_size = len(attempt.ranks)
    same_node = [i for i, r in enumerate(attempt.ranks) if r.node == rank.node]
    lead = ctx.state.nodes[attempt.ranks[0].node]
    graceful = attempt.stop is None or attempt.stop in GRACEFUL
    return Run(
        job=job.number,
        epoch=attempt.epoch,
        rank=index,
        world=world_size,
        argv=command_of(request),
        gpus=[rank.gpu],
        group=_group(ctx, job, attempt),
        workdir=request.get("workdir") or "",
        env=({"OMP_NUM_THREADS": str(max(int(request.get("cpus") or 1), 1))} if needs_no_gpu(request) else {})
        | dict(request.get("env") or {})
        | _batch_env(request, attempt)
        | ({CONTAINER_VARIABLE: request["container"]} if request.get("container") else {})
        | _servers_env(request, attempt),
        stop=attempt.stop is not None,
        grace_s=_grace_s(attempt, options.grace_s) if graceful else options.kill_grace_s,
        local_rank=same_node.index(index),
        local_world=len(same_node),
        master_addr=lead.address,
        master_port=attempt.port,
        checkpoint_s=float(request.get("checkpoint_s") or 60.0),
        log_bytes=int(options.log_mb * 250_000),  # a log has four files
        memory_bytes=float(request.get("memory") or 0.0) / world_size,
        total_steps=request.get("iterations"),
        merge=merge_key(request, job.owner, job.project) if attempt.merge and world_size == 1 else "",
        device_bytes=attempt.device_bytes,
        hung=attempt.fault == FAILED and any((one.reason or "").startswith("hung: ") for one in attempt.ranks),
        output=(request.get("output") or "")
        .replace("{job}", job_name(job.number))
        .replace("{array}", array_of(request) or job_name(job.number)),
        network=grant_of_ranks(ctx, job, attempt),
        owner=job.owner,
    )


def _group(ctx: Context, job: JobRecord, attempt: Attempt) -> GroupInfo:
    groups = ctx.state.groups
    if attempt.stop is None and groups.of_job.get(job.number) == attempt.gpus:
        return groups.by_job[job.number]
    # It is stopping: it waits for no turn, and others wait for its GPUs, unless it is a guest there.
    mates = [Mate(job.number, 0, len(attempt.ranks))]
    return GroupInfo(f"left-{job.number}-{attempt.epoch}", members=mates, guest=attempt.guest)


def _servers_env(request: Mapping[str, Any], attempt: Attempt) -> dict[str, str]:
    servers = int(request.get("servers") or 0)
    if not servers:
        return {}
    return {SERVERS_VARIABLE: json.dumps(starting_ranks([rank.node for rank in attempt.ranks], servers))}


def _batch_env(request: Mapping[str, Any], attempt: Attempt) -> dict[str, str]:
    """The bounds of the batch for the training library, which may have been given others by the script."""
    limits = attempt.limits or limits_of(request)
    return {} if limits is None else {BATCH_VARIABLE: json.dumps(Codec().encode(limits))}


def _grace_s(attempt: Attempt, usual_s: float) -> float:
    """Grace period for the checkpoint of an attempt that has to stop; shorter if its node leaves before."""
    if attempt.grace_s is None:
        return usual_s
    return attempt.grace_s if attempt.stop == TIME_LIMIT else min(usual_s, attempt.grace_s)
