"""Agents' reports and their silence: nodes join, return, give notice and are lost; processes start, run and end.

Reports may be repeated or late, and two agents may use one name of a node. So only facts about processes that were
assigned to that node, of the attempt that is not over, are accepted, and progress never decreases.

A report is walked once: the node, its processes as reported, those that it does not list, its last word.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from plait.control.messages import LaunchFailed, NodeJoined, NodeLost, NodeSuspected
from plait.core.cluster import Node
from plait.core.errors import Conflict, InputError
from plait.core.words import counted
from plait.live.layout import NODE_NAME, job_name
from plait.live.protocol.wire import ENDED, NONSENSE, STARTING, STATES, NodeInfo, Observed, Seen, sane_text
from plait.live.scheduler.context import Context, Problem
from plait.live.scheduler.measured import report_measurements
from plait.live.scheduler.records.attempts import NodeRecord
from plait.live.scheduler.records.end_words import NOT_STARTED
from plait.live.scheduler.records.notes import AgentRestarted, NodeDrained, NodeForgotten, NodeLeaving, RankEnded
from plait.live.scheduler.stops import YIELDS, ask_stop

#: Seconds after which a silent node without processes is lost: there is nothing to wait for.
IDLE_LOST_S = 15.0
#: Beyond its notice a node may need so many seconds to end what runs there (`agent.attempt.RUNNER_PATIENCE_S`, twice).
LEFT_S = 10.0


def take_report(ctx: Context, seen: Observed, address: str) -> None:
    """Process the report `seen` of an agent; `address`: where other nodes reach this one.

    Raises `InputError` for an invalid node, `Conflict` for one that came back with other GPUs and still runs something.
    """
    info = seen.node
    if not NODE_NAME.fullmatch(info.id):
        raise InputError(f"a node cannot be called {info.id!r}; use letters, digits, '.', '_' and '-'")
    for name in ("gpus", "gpu_memory_bytes", "cpus", "memory_bytes", "rack"):
        value = getattr(info, name)
        most = 1024 if name == "gpus" else 1e18
        if not 0.0 <= value <= most:  # NaN compares false
            raise InputError(f"node {info.id!r}: {name} is {value}, needs a number from 0 to {most:g}")
    if info.gpu_kind != sane_text(info.gpu_kind)[:100]:
        raise InputError(f"node {info.id!r}: gpu_kind is {info.gpu_kind!r:.120}, needs up to 100 plain characters")
    record = ctx.state.nodes.get(info.id)
    replaced = record is not None and _is_other_node(ctx, record, seen)
    if record is None or not replaced:
        record = _node_reported(ctx, seen, address)
    for process in seen.attempts:
        try:
            _process_reported(ctx, record, process)
        except Exception as error:
            if ctx.broken:
                raise
            _refuse(ctx, process, error)
    if replaced:
        _replace_node(ctx, record, info)
        record = _node_reported(ctx, seen, address)
    if seen.agent == record.agent and seen.term == ctx.term:
        _end_unlisted(ctx, record, seen)
        for number, successor in list(ctx.successors.items()):
            for i, rank in enumerate(successor.attempt.ranks):
                known = seen.successors is None or [number, successor.attempt.epoch, i] in seen.successors
                if known and rank.node == info.id and i not in successor.settled:
                    successor.settled.add(i)
                    ctx.stale = True
    alive = any(process.state != ENDED for process in seen.attempts)
    if seen.leaving_s == 0 and seen.agent == record.agent and not alive and not record.lost:
        ctx.record(NodeLost(ctx.now_s, record.id))  # about to go, with nothing left to end: it need not be waited for


# -- nodes --------------------------------------------------------------------------------------------


def _node_reported(ctx: Context, seen: Observed, address: str) -> NodeRecord:
    info, state, now_s = seen.node, ctx.state, ctx.now_s
    if info.id not in state.nodes:
        ctx.record(NodeJoined(now_s, hardware(info)))
    record = state.nodes[info.id]
    # After a restart no agent is known: a report of an earlier term is late once an agent reports in a later one, and
    # if the late one came first, the agent of this term is the node's agent after all.
    new = seen.agent not in record.agents and not 0 < seen.term < record.term
    fresh = new or (seen.agent != record.agent and record.term < seen.term == ctx.term)
    if fresh:
        if record.agent:  # after a start of the service none is known
            ctx.record(AgentRestarted(now_s, info.id))
        record.agents.add(seen.agent)
        record.agent, record.reached, record.term = seen.agent, 0, seen.term or ctx.term  # term 0: it begins just now
    if seen.agent != record.agent:
        return record  # late words of an agent process that was replaced
    if record.leaving and record.lost and not fresh:
        return record  # it sent its last report; this one is older
    _notice_given(ctx, record, seen, fresh)
    if record.lost:
        assert record.info is not None
        back = NodeDrained(now_s, record.id, True) if record.drained else NodeJoined(now_s, hardware(record.info))
        ctx.record(back)
    if record.suspect and (record.drained or record.leaving):  # no work is due there: its silence was not announced
        record.suspect, ctx.stale = False, True
        state.touch_node(record.id)
    elif record.suspect:
        ctx.record(NodeSuspected(now_s, record.id, suspect=False))
    record.heard_s, record.address, record.usage, record.switch = now_s, address, seen.usage, seen.switch
    record.gone, record.dead, record.term = "", False, max(record.term, seen.term)
    if seen.term == ctx.term:
        record.reached = max(record.reached, seen.reached)
    ctx.stale |= bool(ctx.unfenced)  # what an agent does not list, it does not run
    if fresh:
        # After a new agent took over `node`: end processes that its report `seen` does not list; they did not survive.
        listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
        for job, attempt in ctx.state.attempts:
            for i, rank in enumerate(attempt.ranks):
                if rank.node != record.id or rank.seen is None or rank.ended:
                    continue
                if rank.seen.state == STARTING:  # it waited for its GPUs and had no process: nothing is lost
                    rank.seen = None
                elif (job.number, attempt.epoch, i) not in listed:
                    why = "the agent has lost track of it"
                    ctx.record(RankEnded(ctx.now_s, job.number, attempt.epoch, i, None, why, started=True))
    return record


def hardware(info: NodeInfo) -> Node:
    """A node as the controller knows it."""
    memory = int(info.gpu_memory_bytes)
    return Node(info.id, info.gpus, info.gpu_kind, memory, info.cpus, info.memory_bytes, info.rack)


def _notice_given(ctx: Context, record: NodeRecord, seen: Observed, fresh: bool) -> None:
    """A node gives notice that it leaves: no new work; its jobs stop after a checkpoint and resume elsewhere.

    Only another agent process withdraws the notice: earlier reports of the same one are late.
    """
    now_s = ctx.now_s
    if seen.leaving_s is None:
        if not (record.leaving and fresh):
            return
        ctx.record(NodeLeaving(now_s, record.id, leaving=False))
        if not record.drained:
            assert record.info is not None
            ctx.record(NodeJoined(now_s, hardware(record.info)))
    elif not record.leaving or record.lost:
        if not record.lost and not record.drained:
            ctx.record(NodeLost(now_s, record.id))
        ctx.record(NodeLeaving(now_s, record.id, leaving=True, leaving_s=seen.leaving_s))
    record.leaving_s = seen.leaving_s
    ctx.state.touch_node(record.id)


def _is_other_node(ctx: Context, record: NodeRecord, seen: Observed) -> bool:
    """Whether a node with other GPUs (or in another rack of a network) takes the name of this one.

    Raises `Conflict` while the old one runs something, and for late words of an agent that was replaced.
    """
    name, info, had = record.id, seen.node, record.info
    if had is None:
        return False
    running = sorted({process.job for process in seen.attempts if process.state != ENDED})
    known = seen.agent in record.agents
    moved = had.rack != info.rack and ctx.state.network.declared is not None and not known and not running
    if had.gpus == info.gpus and not moved:
        return False
    if running or known:
        jobs = ", ".join(job_name(number) for number in running)
        raise Conflict(
            f"node {name!r} came back with {counted(info.gpus, 'GPU')}, had {had.gpus}"
            + (f", and still runs {jobs}: start its agent with {had.gpus}, or end them first" if jobs else "")
        )
    return True


def _replace_node(ctx: Context, record: NodeRecord, info: NodeInfo) -> None:
    """Give a node with other GPUs the name, as a new one: nothing runs on the old one any more."""
    name, now_s = record.id, ctx.now_s
    for job, attempt in ctx.state.attempts:
        for i, rank in enumerate(attempt.ranks):
            if rank.node == name and not rank.ended:
                why = "its node came back with other GPUs"
                ctx.record(RankEnded(now_s, job.number, attempt.epoch, i, None, why, started=True))
    if not record.lost:
        ctx.record(NodeLost(now_s, name))
    ctx.record(NodeForgotten(now_s, name))
    ctx.record(NodeJoined(now_s, hardware(info)))
    new = ctx.state.nodes[name]
    new.agents, new.version = set(record.agents), record.version
    if record.drained:
        ctx.record(NodeLost(now_s, name))
        ctx.record(NodeDrained(now_s, name, True))


# -- processes ----------------------------------------------------------------------------------------


def _process_reported(ctx: Context, node: NodeRecord, seen: Seen) -> None:
    job = ctx.state.jobs.get(seen.job)
    attempt = job.live if job else None
    if job is None or attempt is None or attempt.epoch != seen.epoch or not 0 <= seen.rank < len(attempt.ranks):
        return  # of an attempt that is over or was replaced: it is not assigned, so the agent stops it
    rank = attempt.ranks[seen.rank]
    if rank.node != node.id or rank.ended or seen.state not in STATES:
        return
    if ctx.unfenced.pop(seen.job, None) is not None:
        ctx.reassign = True  # an agent has it, so it was fenced before a restart, whatever the disk shows now
    if rank.seen is not None:
        if STATES.index(seen.state) < STATES.index(rank.seen.state):
            return  # an old message
        seen = _never_less(seen, rank.seen)
    if rank.seen is None or rank.seen.state != seen.state:
        ctx.state.touched.add(seen.job)
    rank.seen = seen
    if seen.memory is not None:
        job.device_bytes = seen.memory.persistent_bytes
    if seen.sharing is not None and seen.sharing.leaves:
        attempt.leaves = seen.sharing.leaves
        if attempt.stop is None:
            ctx.record(ask_stop(ctx, attempt, YIELDS))
    report_measurements(ctx, job, attempt, seen)
    if seen.state == ENDED:
        if node.leaving and attempt.stop is None:  # its agent stopped it without a request
            ctx.record(ask_stop(ctx, attempt, "leaving"))
        ctx.record(
            RankEnded(
                ctx.now_s, seen.job, seen.epoch, seen.rank, seen.exit_code, seen.reason,
                started=seen.pid != 0 or seen.exit_code not in NOT_STARTED, merged=seen.merged,
                ended_s=ctx.now_s - seen.ended_s_ago,
            )
        )  # fmt: skip


def _never_less(seen: Seen, before: Seen) -> Seen:
    """The report with no less work done than in the previous one."""
    if seen.held_s < before.held_s or seen.steps < before.steps:
        seen = replace(seen, held_s=max(seen.held_s, before.held_s), steps=max(seen.steps, before.steps))
    new, old = seen.adaptive, before.adaptive
    if new is not None and old is not None and new.progress < old.progress:
        seen = replace(seen, adaptive=replace(new, progress=old.progress))
    return seen


def _refuse(ctx: Context, seen: Seen, error: Exception) -> None:
    """A report on one process is invalid: fail that job with the reason, and do nothing else."""
    facts = {"job": seen.job, "epoch": seen.epoch}
    ctx.counts.problems.append(Problem("a report was refused", error, facts))
    job = ctx.state.jobs.get(seen.job)
    attempt = job.live if job else None
    if attempt is not None and attempt.epoch == seen.epoch and not attempt.ranks[seen.rank].ended:
        why = sane_text(f"the agent sent an invalid report about this process: {error}")
        ctx.record(RankEnded(ctx.now_s, seen.job, seen.epoch, seen.rank, NONSENSE, why, started=True))


def _end_unlisted(ctx: Context, record: NodeRecord, seen: Observed) -> None:
    """End processes that the agent was requested to stop and does not list: they have not been running."""
    listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
    for (number, epoch, rank), version in list(record.stops.items()):
        job = ctx.state.jobs.get(number)
        attempt = job.live if job else None
        if attempt is None or attempt.epoch != epoch or attempt.ranks[rank].ended:
            del record.stops[number, epoch, rank]
        elif version <= seen.reached and (number, epoch, rank) not in listed:
            ctx.record(RankEnded(ctx.now_s, number, epoch, rank, None, "it was not running", started=False))


# -- silence ------------------------------------------------------------------------------------------


def watch(ctx: Context) -> None:
    """Nodes that have been silent for too long become suspect, or lost."""
    options, now_s = ctx.options, ctx.now_s
    for node in list(ctx.state.nodes.values()):
        silent_s = now_s - node.heard_s
        if node.lost or silent_s < min(options.suspect_s, options.lost_s):
            continue
        if silent_s >= _patience_s(ctx, node):
            ctx.record(NodeLost(now_s, node.id))
        elif not node.suspect and silent_s >= options.suspect_s:
            _suspect(ctx, node)


def excuse_silence(ctx: Context, late_s: float) -> None:
    """Make up for `late_s` seconds in which the service itself stood still: no report could arrive meanwhile."""
    for node in ctx.state.nodes.values():
        node.heard_s = min(ctx.now_s, node.heard_s + late_s)


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


def _suspect(ctx: Context, node: NodeRecord) -> None:
    """A node is silent: nothing new starts there, and jobs that were to start there are placed again."""
    state = ctx.state
    if node.drained or node.leaving or state.controller is None:  # no work is due there anyway
        node.suspect = True
        state.touch_node(node.id)
        return
    ctx.record(NodeSuspected(ctx.now_s, node.id, suspect=True))
    cluster = state.controller.cluster
    there = set(np.flatnonzero(cluster.gpu_node == cluster.index(node.id)).tolist())
    jobs = []
    for number, gpus in state.groups.of_job.items():
        job = state.jobs[number]
        begun = job.live is not None and job.live.gpus == gpus
        if there.intersection(gpus) and state.wanted(job) == gpus and not begun:
            jobs.append(number)
    if jobs:
        ctx.record(LaunchFailed(ctx.now_s, np.array(jobs), f"node {node.id} has not reported lately"))


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
    runs = any(r.node == node.id and not r.ended for _, attempt in ctx.state.attempts for r in attempt.ranks)
    return options.lost_s if runs else min(options.lost_s, max(options.suspect_s, IDLE_LOST_S))
