"""Observations taken into the state: what is known of nodes and processes beyond the log."""

from __future__ import annotations

from plait.live.scheduler.records.attempts import Attempt
from plait.live.scheduler.records.observations import (
    AgentHeard,
    AgentStarted,
    AttemptKnown,
    EstimateTaken,
    MeasurementTaken,
    NodeCheckDue,
    NodeGone,
    NodeReplaced,
    NodeSilent,
    NoticeReceived,
    Observation,
    ProcessSeen,
    ReportRefused,
    SilenceExcused,
    SuccessorAsked,
    SuccessorOver,
    SuccessorSettled,
    SwitchObserved,
    TotalReported,
)
from plait.live.scheduler.state import State


def remember(state: State, what: Observation) -> None:
    """Take an observation into the state; nodes and jobs that look different from now on are touched."""
    match what:
        case ProcessSeen(job, rank, seen):
            process = _attempt(state, job).ranks[rank]
            if seen is not None and (process.seen is None or process.seen.state != seen.state):
                state.touched.add(job)
            process.seen = seen
            if seen is not None and seen.memory is not None:
                state.jobs[job].device_bytes = seen.memory.persistent_bytes
            if seen is not None and seen.sharing is not None:
                _attempt(state, job).leaves = seen.sharing.leaves or _attempt(state, job).leaves
        case MeasurementTaken(job, rank, kind, at):
            taken = _attempt(state, job).ranks[rank].learnt_s
            taken.pop(kind, None)
            if at is not None:
                taken[kind] = at
        case TotalReported(job, total):
            state.jobs[job].total = total
        case EstimateTaken(at_s, job):
            state.jobs[job].estimated_s = at_s
        case SilenceExcused(at_s, late_s):
            for node in state.nodes.values():
                node.heard_s = min(at_s, node.heard_s + late_s)
        case SwitchObserved(node, said):
            state.nodes[node].switch = said
        case (
            AttemptKnown() | NodeCheckDue() | ReportRefused() | SuccessorAsked() | SuccessorSettled() | SuccessorOver()
        ):
            pass  # the state does not have it
        case _:
            _remember_node(state, what)


def _remember_node(
    state: State, what: AgentStarted | AgentHeard | NodeReplaced | NoticeReceived | NodeSilent | NodeGone
) -> None:
    node = state.nodes[what.node]
    match what:
        case AgentHeard():
            node.heard_s, node.address, node.usage = what.at_s, what.address, what.usage
            node.gone, node.dead, node.term = "", False, max(node.term, what.term)
            if what.reached is not None:
                node.reached = max(node.reached, what.reached)
        case AgentStarted(_, agent, term):
            node.agents.add(agent)
            node.agent, node.reached, node.term = agent, 0, term
        case NodeReplaced(_, agents):
            node.agents = set(agents)
        case NoticeReceived(name, leaving_s):
            node.leaving_s = leaving_s
            state.touch_node(name)
        case NodeSilent(name, silent):
            node.suspect = silent
            state.touch_node(name)
        case NodeGone(_, why, dead):
            node.gone, node.dead = why, dead


def carry_over(old: State, new: State) -> None:
    """Give a state that was read from the store what another one of the same cluster has seen beyond the log."""
    for name in old.nodes.keys() & new.nodes.keys():
        was, node = old.nodes[name], new.nodes[name]
        node.agent, node.agents, node.heard_s, node.address = was.agent, set(was.agents), was.heard_s, was.address
        node.usage, node.reached, node.term, node.switch = was.usage, was.reached, was.term, was.switch
        node.suspect, node.gone, node.dead, node.leaving_s = was.suspect, was.gone, was.dead, was.leaving_s
    for number in old.jobs.keys() & new.jobs.keys():
        past, job = old.jobs[number], new.jobs[number]
        job.estimated_s, job.total, job.device_bytes = past.estimated_s, past.total, past.device_bytes
        seen, attempt = past.attempt, job.attempt
        if seen is None or attempt is None or seen.epoch != attempt.epoch:
            continue
        attempt.leaves, attempt.device_bytes = seen.leaves, seen.device_bytes
        for before, rank in zip(seen.ranks, attempt.ranks, strict=True):
            rank.seen, rank.learnt_s = before.seen, dict(before.learnt_s)


def _attempt(state: State, job: int) -> Attempt:
    attempt = state.jobs[job].attempt
    assert attempt is not None, "a process without an attempt"
    return attempt
