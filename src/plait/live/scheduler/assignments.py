"""The assignment of each agent, derived from the state and never stored: a restart derives the same ones."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from plait.core.codec.values import Codec
from plait.live.protocol.requests import command_of, limits_of, merge_key
from plait.live.protocol.wire import Assignment, GroupInfo, Mate, Run, SwitchOrder
from plait.live.scheduler.context import Context
from plait.live.scheduler.network.orders import grant_of_ranks, switch_orders
from plait.live.scheduler.network.tell import waits_for_word
from plait.live.scheduler.records.attempts import Attempt, JobRecord, Key, Rank
from plait.live.scheduler.stops import GRACEFUL, TIME_LIMIT

#: Where a job finds the bounds of its batch that were given when it was submitted: `BatchLimits` as JSON.
BATCH_VARIABLE = "PLAIT_BATCH"
#: Where its agent finds the image of its container; see `plait.live.agent.processes.container`.
CONTAINER_VARIABLE = "PLAIT_CONTAINER"


class Assigner:
    """Assignments by node, with versions that grow when their content changes."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._runs: dict[str, list[Run]] = {}
        self._orders: dict[str, SwitchOrder] = {}
        self._successors: dict[str, list[Run]] = {}
        self._told: dict[str, tuple[list[Run], SwitchOrder | None, list[Run]]] = {}
        self._versions: dict[str, int] = {}
        self._fresh = False
        self._looks = 0
        #: By node: processes that it has to stop, and since which version.
        self._stops: dict[str, dict[Key, int]] = {}

    def changed(self) -> None:
        """Something was committed: look again before the next answer."""
        self._fresh = False

    def forget(self, node: str) -> None:
        """A node has gone for good, or was replaced by another of its name, whose versions continue from there."""
        self._told.pop(node, None)
        self._stops.pop(node, None)
        self._fresh = False

    def renumber(self, node: str) -> None:
        """Restart the versions of a node of this name."""
        self._versions.pop(node, None)

    def looked(self) -> int:
        """A number that grows whenever a version may have."""
        self._refresh()
        return self._looks

    def versions(self) -> dict[str, int]:
        """Versions of the assignments of all nodes as of the last commit."""
        self._refresh()
        return {name: self._versions.get(name, 0) for name in self._ctx.state.nodes}

    def version(self, node: str) -> int:
        """The version of a node's assignment as of the last commit; 0 for an unknown node."""
        self._refresh()
        return self._versions.get(node, 0) if node in self._ctx.state.nodes else 0

    def assignment(self, node: str, agent: str | None = None) -> Assignment:
        """The processes that should run on a node; none for a replaced agent, perhaps of another machine."""
        self._refresh()
        ctx = self._ctx
        record = ctx.state.nodes.get(node)
        if record is None:  # forgotten while its agent's last question was open
            return Assignment(ctx.term, 0, ctx.options.lease_s)
        mine = agent in (None, record.agent)
        runs, order, successors = self._of(node) if mine else ([], None, [])
        version = self._versions.get(node, 0)
        return Assignment(ctx.term, version, ctx.options.lease_s, runs, switch=order, successors=successors)

    def _of(self, node: str) -> tuple[list[Run], SwitchOrder | None, list[Run]]:
        return self._runs.get(node, []), self._orders.get(node), self._successors.get(node, [])

    def stopped_at(self, node: str, reached: int) -> list[Key]:
        """Processes that an agent with this version of its assignment has a request to stop for."""
        stops, jobs = self._stops.get(node, {}), self._ctx.state.jobs
        for number, epoch, rank in list(stops):
            job = jobs.get(number)
            attempt = job.live if job else None
            if attempt is None or attempt.epoch != epoch or attempt.ranks[rank].ended:
                del stops[number, epoch, rank]
        return [key for key, version in stops.items() if version <= reached]

    def _refresh(self) -> None:
        if self._fresh:
            return
        self._fresh = True
        self._looks += 1
        self._runs, self._orders = runs_by_node(self._ctx), switch_orders(self._ctx)
        self._successors = _successors_by_node(self._ctx)
        for node in self._ctx.state.nodes:
            self._number(node)

    def _number(self, node: str) -> None:
        wanted = runs, _, _ = self._of(node)
        version = self._versions.get(node, 0)
        if wanted != self._told.get(node, ([], None, [])) or not version:
            self._told[node] = wanted
            version = self._versions[node] = max(version + 1, self._ctx.state.seq)
        for run in runs:
            if run.stop:
                self._stops.setdefault(node, {}).setdefault((run.job, run.epoch, run.rank), version)


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
        env=dict(request.get("env") or {}) | _batch_env(request) | _container_env(request),
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
        network=grant_of_ranks(ctx, job, attempt),
    )


def _group(ctx: Context, job: JobRecord, attempt: Attempt) -> GroupInfo:
    groups = ctx.state.groups
    if attempt.stop is None and groups.of_job.get(job.number) == attempt.gpus:
        return groups.by_job[job.number]
    # It is stopping: it waits for no turn, and others wait for its GPUs, unless it is a guest there.
    mates = [Mate(job.number, 0, len(attempt.ranks))]
    return GroupInfo(f"left-{job.number}-{attempt.epoch}", members=mates, guest=attempt.guest)


def _container_env(request: Mapping[str, Any]) -> dict[str, str]:
    """The image in which agents run the job."""
    return {CONTAINER_VARIABLE: request["container"]} if request.get("container") else {}


def _batch_env(request: Mapping[str, Any]) -> dict[str, str]:
    """The bounds of the batch for the training library, which may have been given others by the script."""
    limits = limits_of(request)
    return {} if limits is None else {BATCH_VARIABLE: json.dumps(Codec().encode(limits))}


def _grace_s(attempt: Attempt, usual_s: float) -> float:
    """Grace period for the checkpoint of an attempt that has to stop; shorter if its node leaves before."""
    if attempt.grace_s is None:
        return usual_s
    return attempt.grace_s if attempt.stop == TIME_LIMIT else min(usual_s, attempt.grace_s)
