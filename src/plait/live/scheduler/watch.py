"""Silent nodes: when one is suspect, when it is lost, and when to look at them again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from plait.control.messages import LaunchFailed, NodeLost, NodeSuspected
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.records.attempts import NodeRecord
from plait.live.scheduler.records.observations import NodeSilent

#: Seconds after which a silent node without processes is lost: there is nothing to wait for.
IDLE_LOST_S = 15.0
#: Beyond its notice a node may need so many seconds to end what runs there (`agent.attempt.RUNNER_PATIENCE_S`, twice).
LEFT_S = 10.0


def watch(ctx: Context, now_s: float) -> Iterator[Step]:
    """Nodes that have been silent for too long become suspect, or lost."""
    options = ctx.options
    for node in list(ctx.state.nodes.values()):
        silent_s = now_s - node.heard_s
        if node.lost or silent_s < min(options.suspect_s, options.lost_s):
            continue
        if silent_s >= _patience_s(ctx, node):
            yield NodeLost(now_s, node.id)
        elif not node.suspect and silent_s >= options.suspect_s:
            yield from _suspect(ctx, node, now_s)


def silence_s(ctx: Context) -> float:
    """When a node will have been silent for too long without a further report; infinite without nodes."""
    suspect_s = ctx.options.suspect_s
    return min(
        (
            node.heard_s + (_patience_s(ctx, node) if node.suspect else suspect_s)
            for node in ctx.state.nodes.values()
            if not node.lost
        ),
        default=math.inf,
    )


def _suspect(ctx: Context, node: NodeRecord, now_s: float) -> Iterator[Step]:
    """A node is silent: nothing new starts there, and jobs that were to start there are placed again."""
    state = ctx.state
    if node.drained or node.leaving or state.controller is None:
        yield NodeSilent(node.id, silent=True)  # no work is due there anyway
        return
    yield NodeSuspected(now_s, node.id, suspect=True)
    cluster = state.controller.cluster
    there = set(np.flatnonzero(cluster.gpu_node == cluster.index(node.id)).tolist())
    jobs = []
    for number, gpus in state.groups.of_job.items():
        job = state.jobs[number]
        begun = job.live is not None and job.live.gpus == gpus
        if there.intersection(gpus) and state.wanted(job) == gpus and not begun:
            jobs.append(number)
    if jobs:
        yield LaunchFailed(now_s, np.array(jobs), f"node {node.id} has not reported lately")


def _patience_s(ctx: Context, node: NodeRecord) -> float:
    """A silent node is lost after so long: what runs there has ended by itself by then.

    A node known to be dead is lost as soon as it is suspect. A node that gave notice has ended its jobs by the time it
    announced, or soon after. Where nothing runs, jobs with GPUs there are not kept waiting.
    """
    options = ctx.options
    if node.gone and node.dead:
        return options.suspect_s
    if node.leaving and node.leaving_s is not None:
        return min(options.lost_s, max(options.suspect_s, node.leaving_s + LEFT_S))
    if not _runs_something(ctx, node):
        return min(options.lost_s, max(options.suspect_s, IDLE_LOST_S))
    return options.lost_s


def _runs_something(ctx: Context, node: NodeRecord) -> bool:
    """Whether a process that was begun on this node may still be there."""
    attempts = (ctx.state.jobs[number].live for number in ctx.state.live)
    return any(r.node == node.id and not r.ended for attempt in attempts if attempt for r in attempt.ranks)
