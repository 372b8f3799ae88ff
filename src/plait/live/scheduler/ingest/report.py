"""Take in one report of an agent: the node joins, comes back or gives notice; then each of its processes.

Reports may be repeated or late, and two agents may use one name of a node. So only facts about processes that were
assigned to that node, of the attempt that is not over, are accepted, and progress never decreases.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import replace

from plait.control.messages import NodeJoined, NodeLost, NodeSuspected
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.words import counted
from plait.live.layout import NODE_NAME, job_name
from plait.live.protocol.validation import check_node, sane_notice, sane_switch, sane_usage
from plait.live.protocol.wire import ENDED, NodeInfo, Observed
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.ingest.processes import end_all, end_unlisted, end_untracked, see_each
from plait.live.scheduler.records.attempts import Key, NodeRecord
from plait.live.scheduler.records.notes import AgentRestarted, NodeDrained, NodeForgotten, NodeLeaving
from plait.live.scheduler.records.observations import (
    AgentHeard,
    AgentStarted,
    NodeReplaced,
    NodeSilent,
    NoticeReceived,
    SuccessorSettled,
    SwitchObserved,
)


def ingest(ctx: Context, seen: Observed, told_to_stop: Collection[Key], now_s: float, address: str) -> Iterator[Step]:
    """Process the report `seen` of an agent; `InputError` for an invalid node.

    `told_to_stop`: processes that the agent has a request to stop for, by its assignment. `address`: where other nodes
    reach this one.
    """
    seen = replace(seen, leaving_s=sane_notice(seen.leaving_s), usage=sane_usage(seen.usage))
    seen = replace(seen, switch=None if seen.switch is None else sane_switch(seen.switch))
    record = yield from _register(ctx, seen, now_s, address)
    yield from see_each(ctx, record, seen, now_s)
    if seen.agent == record.agent and seen.term == ctx.term:
        yield from end_unlisted(ctx, seen, told_to_stop, now_s)
        yield from _successors_settled(ctx, seen)
    alive = any(one.state != ENDED for one in seen.attempts)
    if seen.leaving_s == 0 and seen.agent == record.agent and not alive and not record.lost:
        yield NodeLost(now_s, record.id)  # about to go, with nothing left to end: it need not be waited for


def _successors_settled(ctx: Context, seen: Observed) -> Iterator[Step]:
    """Settle processes that start next to an attempt: ready, or impossible, as at an agent without successors."""
    for number, successor in list(ctx.successors.items()):
        for i, rank in enumerate(successor.attempt.ranks):
            known = seen.successors is None or [number, successor.attempt.epoch, i] in seen.successors
            if known and rank.node == seen.node.id and i not in successor.settled:
                yield SuccessorSettled(number, i)


def hardware(info: NodeInfo) -> Node:
    """A node as the controller knows it."""
    memory = int(info.gpu_memory_bytes)
    return Node(info.id, info.gpus, info.gpu_kind, memory, info.cpus, info.memory_bytes, info.rack)


def _register(ctx: Context, seen: Observed, now_s: float, address: str) -> Generator[Step, None, NodeRecord]:
    info, state = seen.node, ctx.state
    if not NODE_NAME.fullmatch(info.id):
        raise InputError(f"a node cannot be called {info.id!r}; use letters, digits, '.', '_' and '-'")
    check_node(info)
    record = state.nodes.get(info.id)
    if record is not None and record.info is not None:
        moved = record.info.rack != info.rack and _idle_newcomer(record, seen)
        if record.info.gpus != info.gpus or (moved and state.network.declared is not None):
            yield from _resized(ctx, record, record.info, seen, now_s)
    if record is None:
        yield NodeJoined(now_s, hardware(info))
    record = state.nodes[info.id]
    # After a restart no agent is known: a report of an earlier term is late once an agent reports in a later one, and
    # if the late one came first, the agent of this term is the node's agent after all.
    new = seen.agent not in record.agents and not 0 < seen.term < record.term
    fresh = new or (seen.agent != record.agent and record.term < seen.term == ctx.term)
    if fresh:
        if record.agent:  # after a start of the service none is known
            yield AgentRestarted(now_s, info.id)
        yield AgentStarted(info.id, seen.agent, seen.term or ctx.term)  # 0: it begins just now
    if seen.agent != record.agent:
        return record  # late words of an agent process that was replaced
    if record.leaving and record.lost and not fresh:
        return record  # it sent its last report; this one is older
    yield from _notice_given(record, seen, fresh, now_s)
    yield from _back(record, now_s)
    reached = seen.reached if seen.term == ctx.term else None
    yield AgentHeard(now_s, info.id, address, seen.usage, seen.term, reached)
    yield SwitchObserved(info.id, seen.switch)
    if fresh:
        yield from end_untracked(ctx, record, seen, now_s)
    return record


def _back(record: NodeRecord, now_s: float) -> Iterator[Step]:
    """Bring back a lost or silent node that reports again."""
    if record.lost:
        assert record.info is not None
        yield NodeDrained(now_s, record.id, True) if record.drained else NodeJoined(now_s, hardware(record.info))
    if record.suspect:
        if record.drained or record.leaving:  # no work is due there: its silence was not announced
            yield NodeSilent(record.id, silent=False)
        else:
            yield NodeSuspected(now_s, record.id, suspect=False)


def _idle_newcomer(record: NodeRecord, seen: Observed) -> bool:
    """Whether an agent that was not known speaks for a node on which nothing runs."""
    return seen.agent not in record.agents and all(one.state == ENDED for one in seen.attempts)


def _resized(ctx: Context, record: NodeRecord, had: NodeInfo, seen: Observed, now_s: float) -> Iterator[Step]:
    """Give a node with another number of GPUs the name, as a new one, once nothing runs on the old one.

    Raises `Conflict` while the old one runs something, and for late words of an agent that was replaced.
    """
    name, info = record.id, seen.node
    running = sorted({one.job for one in seen.attempts if one.state != ENDED})
    if running or seen.agent in record.agents:
        jobs = ", ".join(job_name(number) for number in running)
        raise Conflict(
            f"node {name!r} came back with {counted(info.gpus, 'GPU')}, had {had.gpus}"
            + (f", and still runs {jobs}: start its agent with {had.gpus}, or end them first" if jobs else "")
        )
    yield from see_each(ctx, record, seen, now_s)
    yield from end_all(ctx, name, "its node came back with other GPUs", now_s)
    if not record.lost:
        yield NodeLost(now_s, name)
    yield NodeForgotten(now_s, name)
    yield NodeJoined(now_s, hardware(info))
    yield NodeReplaced(name, frozenset(record.agents))
    if record.drained:
        yield NodeLost(now_s, name)
        yield NodeDrained(now_s, name, True)


def _notice_given(record: NodeRecord, seen: Observed, fresh: bool, now_s: float) -> Iterator[Step]:
    """A node gives notice that it leaves: no new work; its jobs stop after a checkpoint and resume elsewhere.

    Only another agent process withdraws the notice: earlier reports of the same one are late.
    """
    if seen.leaving_s is None:
        if not (record.leaving and fresh):
            return
        yield NodeLeaving(now_s, record.id, leaving=False)
        if not record.drained:
            assert record.info is not None
            yield NodeJoined(now_s, hardware(record.info))
    elif not record.leaving or record.lost:
        if not record.lost and not record.drained:
            yield NodeLost(now_s, record.id)
        yield NodeLeaving(now_s, record.id, leaving=True, leaving_s=seen.leaving_s)
    yield NoticeReceived(record.id, seen.leaving_s)
