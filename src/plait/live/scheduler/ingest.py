"""What agents say, taken in: nodes that join or come back, processes that start, go on and end, measured profiles.

Agents repeat themselves, speak late and may be two of one name: what they say is believed of the processes that were
assigned to their node, of the attempt that is not over, and never backwards.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from plait.control.messages import JobKept, JobProfiled, NodeJoined, NodeLost, NodeSuspected
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.jobs import Phase
from plait.core.words import counted
from plait.live.layout import NODE_NAME, job_name
from plait.live.protocol.validation import NONSENSE, check_node, sane_notice, sane_profile, sane_seen, sane_text
from plait.live.protocol.wire import ENDED, STARTING, STATES, Observed, Seen
from plait.live.scheduler.adaptive import hear_estimate, hear_restart
from plait.live.scheduler.attempts import NOT_STARTED, JobRecord, NodeRecord, Rank
from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.profiles import as_asked, differs, learn_beside, like_keys, pass_on, profile_key, protect
from plait.live.scheduler.reconcile import ask_stop
from plait.live.scheduler.stop_costs import hear_stop_cost

if TYPE_CHECKING:
    from plait.live.scheduler.engine import Engine

_LOG = logging.getLogger("plait.service")
#: A process is believed a new profile this often: each is an entry of the log and a reason to decide.
LEARN_S = 10.0


def hear(engine: Engine, seen: Observed, now: float, address: str) -> None:
    """Take what an agent sees, inside a batch; `InputError` for a node that cannot be."""
    seen = replace(seen, leaving_s=sane_notice(seen.leaving_s))
    record = _meet(engine, seen, now, address)
    _notice(engine, record, seen, now)
    _last_word(engine, record, seen, now)


def hardware(record: NodeRecord) -> Node:
    """A node as the controller knows it."""
    info = record.info
    assert info is not None
    memory = int(info.gpu_memory_bytes)
    return Node(info.id, info.gpus, info.gpu_kind, memory, info.cpus, info.memory_bytes, info.rack)


def _meet(engine: Engine, seen: Observed, now: float, address: str) -> NodeRecord:
    info, state = seen.node, engine.state
    if not NODE_NAME.fullmatch(info.id):
        raise InputError(f"a node cannot be called {info.id!r}; use letters, digits, '.', '_' and '-'")
    check_node(info)
    record = state.nodes.get(info.id)
    if record is not None and record.info is not None and record.info.gpus != info.gpus:
        record = _resized(engine, record, seen, now)
    if record is None:
        engine.do(NodeJoined(now, hardware(NodeRecord(info.id, info=info))))
        engine.rounds.joined(now)
        engine.touched_nodes.add(info.id)
        record = state.nodes[info.id]
    # After a restart nobody is known: words of an earlier term are late once somebody speaks in a later one, and if
    # the late ones came first, whoever speaks in this term is the node's agent after all.
    new = seen.agent not in record.agents and not 0 < seen.term < record.term
    fresh = new or (seen.agent != record.agent and record.term < seen.term == engine.term)
    if fresh:
        record.agents.add(seen.agent)
        record.agent, record.reached, record.term = seen.agent, 0, seen.term or engine.term  # 0: it begins just now
    if seen.agent != record.agent:
        return record  # late words of an agent process that was replaced
    if record.leaving and record.lost and not fresh:
        return record  # it said its last word; this one was under way before
    _notice_given(engine, record, seen, fresh, now)
    if record.lost:
        back = {"type": "NodeDrained", "at_s": now, "node": info.id, "drained": True}
        engine.do(back if record.drained else NodeJoined(now, hardware(record)))
        engine.touched_nodes.add(info.id)
    if record.suspect:
        if record.drained or record.leaving:  # no work is due there: nobody was told that it was silent
            record.suspect = False
        else:
            engine.do(NodeSuspected(now, info.id, suspect=False))
        engine.stale = True
        engine.touched_nodes.add(info.id)
        touch_node(engine, info.id)
    record.heard_s, record.address, record.usage, record.gone = now, address, seen.usage, ""
    record.dead = False
    record.term = max(record.term, seen.term)
    if seen.term == engine.term:
        record.reached = max(record.reached, seen.reached)
    if fresh:
        _miss(engine, record, seen, now)
    return record


def _resized(engine: Engine, record: NodeRecord, seen: Observed, now: float) -> NodeRecord:
    """The node with another number of GPUs: a new one that takes the name, once nothing runs on the old one.

    Raises `Conflict` while the old one runs something, and for late words of an agent that was replaced.
    """
    name, info = record.id, seen.node
    assert record.info is not None
    running = sorted({one.job for one in seen.attempts if one.state != ENDED})
    if running or seen.agent in record.agents:
        jobs = ", ".join(job_name(number) for number in running)
        raise Conflict(
            f"node {name!r} came back with {counted(info.gpus, 'GPU')}, had {record.info.gpus}"
            + (f", and still runs {jobs}: start its agent with {record.info.gpus}, or end them first" if jobs else "")
        )
    _see_each(engine, record, seen, now)
    for number in sorted(engine.live):
        attempt = engine.state.jobs[number].live
        for i, rank in enumerate(attempt.ranks if attempt else ()):
            if attempt and rank.node == name and not rank.ended:
                _ended(engine, number, attempt.epoch, i, None, "its node came back with other GPUs", True, now)
    if not record.lost:
        engine.do(NodeLost(now, name))
    engine.do({"type": "NodeForgotten", "at_s": now, "node": name})
    engine.assigner.forget(name)
    engine.do(NodeJoined(now, hardware(NodeRecord(name, info=info))))
    engine.rounds.joined(now)
    engine.touched_nodes.add(name)
    new = engine.state.nodes[name]
    new.agents, new.version = set(record.agents), record.version
    if record.drained:
        engine.do(NodeLost(now, name))
        engine.do({"type": "NodeDrained", "at_s": now, "node": name, "drained": True})
    return new


def _notice_given(engine: Engine, record: NodeRecord, seen: Observed, fresh: bool, now: float) -> None:
    """A node that says it goes: no new work, and what runs there stops after a checkpoint and goes on elsewhere.

    Only another agent process takes the notice back: what one said before it is late.
    """
    note = {"type": "NodeLeaving", "at_s": now, "node": record.id}
    if seen.leaving_s is None:
        if not (record.leaving and fresh):
            return
        engine.do({**note, "leaving": False})
        if not record.drained:
            engine.do(NodeJoined(now, hardware(record)))
    elif not record.leaving or record.lost:
        if not record.lost and not record.drained:
            engine.do(NodeLost(now, record.id))
        engine.do({**note, "leaving": True, "leaving_s": seen.leaving_s})
    record.leaving_s = seen.leaving_s
    engine.touched_nodes.add(record.id)
    touch_node(engine, record.id)


def _last_word(engine: Engine, record: NodeRecord, seen: Observed, now: float) -> None:
    """A node that is about to go and has nothing left to end need not be waited for."""
    alive = any(one.state != ENDED for one in seen.attempts)
    if seen.leaving_s == 0 and seen.agent == record.agent and not alive and not record.lost:
        engine.do(NodeLost(now, record.id))
        engine.touched_nodes.add(record.id)
        touch_node(engine, record.id)


def _miss(engine: Engine, node: NodeRecord, seen: Observed, now: float) -> None:
    """A new agent process took over from a journal; what it does not know of has not survived."""
    listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
    for number in sorted(engine.live):
        attempt = engine.state.jobs[number].live
        for i, rank in enumerate(attempt.ranks if attempt else ()):
            known = rank.node == node.id and rank.seen is not None and not rank.ended
            if attempt and known and rank.seen is not None and rank.seen.state == STARTING:
                rank.seen = None  # it waited for its GPUs and had no process: nothing is lost
                continue
            if attempt and known and (number, attempt.epoch, i) not in listed:
                _ended(engine, number, attempt.epoch, i, None, "the agent has lost track of it", True, now)


def _see_each(engine: Engine, node: NodeRecord, seen: Observed, now: float) -> None:
    """Take what is said of each process; what cannot be taken is the trouble of its job alone."""
    for one in seen.attempts:
        try:
            _see(engine, node, one, now)
        except Exception as error:
            if engine.broken:
                raise
            _refuse(engine, one, error, now)


def _notice(engine: Engine, node: NodeRecord, seen: Observed, now: float) -> None:
    _see_each(engine, node, seen, now)
    if seen.agent != node.agent or seen.term != engine.term:
        return
    listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
    for number, epoch, rank in engine.assigner.stopped_at(node.id, seen.reached):
        if (number, epoch, rank) not in listed:
            _ended(engine, number, epoch, rank, None, "it was not running", False, now)


def _refuse(engine: Engine, seen: Seen, error: Exception, now: float) -> None:
    """What is said of one process cannot be taken: that job fails with the reason, and nothing else happens."""
    _LOG.warning("a report was refused", exc_info=error, extra={"facts": {"job": seen.job, "epoch": seen.epoch}})
    job = engine.state.jobs.get(seen.job)
    attempt = job.live if job else None
    if attempt is not None and attempt.epoch == seen.epoch and not attempt.ranks[seen.rank].ended:
        why = sane_text(f"what its agent says of it cannot be taken: {error}")
        _ended(engine, seen.job, seen.epoch, seen.rank, NONSENSE, why, True, now)


def _see(engine: Engine, node: NodeRecord, seen: Seen, now: float) -> None:
    job = engine.state.jobs.get(seen.job)
    attempt = job.live if job else None
    if job is None or attempt is None or attempt.epoch != seen.epoch or not 0 <= seen.rank < len(attempt.ranks):
        return  # of an attempt that is over or was replaced: it is not assigned, so the agent stops it
    rank = attempt.ranks[seen.rank]
    if rank.node != node.id or rank.ended or seen.state not in STATES:
        return
    if seen.job in engine.unfenced:  # an agent has it, so it was fenced before a restart, whatever the disk says now
        del engine.unfenced[seen.job]
        engine.assigner.changed()
    seen = sane_seen(seen)
    before = rank.seen
    if before is not None:
        if STATES.index(seen.state) < STATES.index(before.state):
            return  # an old message
        seen = replace(seen, held_s=max(seen.held_s, before.held_s), steps=max(seen.steps, before.steps))
        if seen.adaptive is not None and before.adaptive is not None:
            done = max(seen.adaptive.progress, before.adaptive.progress)
            seen = replace(seen, adaptive=replace(seen.adaptive, progress=done))
    rank.seen = seen
    if before is None or before.state != seen.state:
        engine.state.touched.add(seen.job)
    if seen.rank == 0:
        _learn(engine, job, attempt.ranks[0], seen, now)
        learn_beside(engine, job, attempt.ranks[0], seen, now)
        protect(engine, job, attempt, seen, now)
        hear_restart(engine, job, seen, now)
        hear_estimate(engine, job, seen, now)
    hear_stop_cost(engine, job, attempt, now)
    if seen.state == ENDED:
        if node.leaving and attempt.stop is None:  # its agent did not wait to be told
            ask_stop(engine, attempt, "leaving", now)
        started = seen.pid != 0 or seen.exit_code not in NOT_STARTED
        _ended(engine, seen.job, seen.epoch, seen.rank, seen.exit_code, seen.reason, started, now, seen.merged)


def _ended(
    engine: Engine, job: int, epoch: int, rank: int, exit_code: int | None, reason: str | None, started: bool,
    now: float, merged: str = "",
) -> None:  # fmt: skip
    engine.do(
        {
            "type": "RankEnded", "at_s": now, "job": job, "epoch": epoch, "rank": rank, "exit_code": exit_code,
            "reason": reason, "started": started, **({"merged": merged} if merged else {}),
        }
    )  # fmt: skip


def _learn(engine: Engine, job: JobRecord, rank: Rank, seen: Seen, now: float) -> None:
    """A profile measured alone: for the job itself and for later ones like it; not more often than anybody measures."""
    info, attempt = engine.state.nodes[rank.node].info, job.live
    if info is None or engine.state.controller is None or attempt is None:
        return
    if not as_asked(job, attempt, seen):
        return
    key = profile_key(job.request, info.gpu_kind)
    known = engine.state.learnt.get(key, {})
    learnt_s = rank.learnt_s
    if (
        now >= learnt_s.get("skew", -math.inf) + LEARN_S
        and seen.skew is not None
        and 0 < seen.skew <= 1
        and known.get("skew") != seen.skew
    ):
        learnt_s["skew"] = now
        engine.do({"type": "Learnt", "at_s": now, "key": key, "skew": seen.skew})
    profile = seen.profile
    if now < learnt_s.get("profile", -math.inf) + LEARN_S:
        return
    if profile is None or not sane_profile(profile) or engine.state.phase(job) > Phase.RUNNING:
        return
    columns = engine.state.controller.books.columns
    books = columns["stage_s"][job.number].tolist(), float(columns["iteration_s"][job.number])
    better = job.measured_beside and not job.profiled
    if "stage_s" not in known or better or differs(profile, *books):
        learnt_s["profile"] = now
        stage_s, iteration_s = [float(x) for x in profile.stage_s], float(profile.iteration_s)
        engine.do(JobProfiled(now, np.array([job.number]), np.array([iteration_s]), np.array([stage_s])))
        learnt = {"stage_s": stage_s, "iteration_s": iteration_s, "like": like_keys(job.request)}
        engine.do({"type": "Learnt", "at_s": now, "job": job.number, "key": key, **learnt})
        if learnt_s.pop("kept", None) is not None:
            engine.do(JobKept(now, np.array([job.number]), np.array([math.nan])))
        pass_on(engine, job, now)
        engine.state.touched.add(job.number)


def touch_node(engine: Engine, node: str) -> None:
    """Jobs on a node are shown differently from now on."""
    for number in engine.live:
        attempt = engine.state.jobs[number].live
        if attempt and any(r.node == node for r in attempt.ranks):
            engine.state.touched.add(number)
