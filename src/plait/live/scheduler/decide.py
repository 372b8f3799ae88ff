"""When things are done: nodes watched, jobs admitted, attempts reconciled, progress noted, decisions made.

Decisions are made in rounds: at most every `round_s`, and only if something changed or the plan says so. A job that
arrives while GPUs are free need not wait for the round: one early decision is let through once submissions have paused
for a moment, and never so often that deciding takes more than a fifth of the time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from plait.control.job_store import refusal
from plait.control.messages import (
    JobCancelled,
    JobSubmitted,
    LaunchFailed,
    NodeLost,
    NodeSuspected,
    ProgressReported,
    ReplanDue,
)
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.live.scheduler.adaptive import work_of
from plait.live.scheduler.ingest import touch_node
from plait.live.scheduler.reconcile import reconcile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plait.live.scheduler.attempts import NodeRecord
    from plait.live.scheduler.engine import Engine

#: Nodes are looked at this often at most, seconds.
WATCH_S = 0.25
#: A silent node on which nothing runs is lost after so many seconds: there is nobody to wait for.
IDLE_LOST_S = 15.0
#: Beyond its notice a node may need so many seconds to end what runs there (`agent.attempt.RUNNER_PATIENCE_S`, twice).
LEFT_S = 10.0
#: Coming so many seconds later than was asked for means that the process stood still.
LATE_S = 0.5
#: Submissions have paused when none came for so long; an early decision waits so many times this at most.
QUIET_S, QUIETS = 0.05, 4
#: Rounds longer than this are meant to spare preemptions, and an early decision may preempt: there is none.
LONG_ROUND_S = 5.0
#: After a decision the next early one waits so many times as long as that one took.
REST = 4.0


class Rounds:
    """The clockwork of one engine."""

    def __init__(self, engine: Engine) -> None:
        """Nothing is due yet."""
        self._engine = engine
        #: Until then jobs too large for the cluster wait for more nodes.
        self.settle_s = 0.0
        self.joined(engine.begin_s)
        self._watched_s = self._reported_s = -math.inf
        #: No node has been silent for too long before then: a bound, so that not every report looks at all nodes.
        self._silence_s = math.inf
        self._due_s = math.inf
        #: First and last arrival since the last decision of jobs that free GPUs could take; how long that one took.
        self._arrived: tuple[float, float] | None = None
        self._took_s = 0.0
        #: Seconds of decisions, for whoever counts, who empties it.
        self.taken_s: deque[float] = deque(maxlen=10_000)

    def advance(self, now: float) -> float:
        """Nodes, admission, attempts, decision, in this order; returns when to come again."""
        engine = self._engine
        self._excuse(now)
        if now >= self._watched_s + WATCH_S:
            self._watch(now)
        if engine.state.pending:
            self._admit(now)
        engine.stale |= engine.deferred
        self._settle(now)
        if now >= self._decision_s():
            self._decide(now)
        elif engine.live and now >= self._reported_s + engine.options.progress_s:
            self.report_progress(now)
        self._due_s = self._wake_s(now)
        return self._due_s

    def joined(self, now: float) -> None:
        """A new node is there: others may follow, unless these are all."""
        options, controller = self._engine.options, self._engine.state.controller
        there = 0 if controller is None else controller.cluster.gpus
        self.settle_s = now if 0 < options.expect_gpus <= there else now + options.settle_s

    def look(self) -> None:
        """Look at the nodes next time, however short a time ago they were looked at."""
        self._watched_s = -math.inf

    def _excuse(self, now: float) -> None:
        """Nobody was heard while this process itself stood still (stopped, suspended, no CPU): that is no silence."""
        late_s = now - self._due_s
        if late_s > LATE_S:
            for node in self._engine.state.nodes.values():
                node.heard_s = min(now, node.heard_s + late_s)

    def _settle(self, now: float) -> None:
        while self._engine.stale:
            self._engine.stale = False
            reconcile(self._engine, now)

    def _watch(self, now: float) -> None:
        engine = self._engine
        self._watched_s = now
        for node in list(engine.state.nodes.values()):
            silent_s = now - node.heard_s
            if node.lost or silent_s < min(engine.options.suspect_s, engine.options.lost_s):
                continue
            if silent_s >= self._patience_s(node):
                engine.do(NodeLost(now, node.id))
            elif not node.suspect and silent_s >= engine.options.suspect_s:
                self._suspect(node, now)
            else:
                continue
            engine.touched_nodes.add(node.id)
            touch_node(engine, node.id)
        self._silence_s = self._next_silence_s()

    def _suspect(self, node: NodeRecord, now: float) -> None:
        """A node is silent: nothing new starts there, and jobs that were to start there are placed again."""
        engine, state = self._engine, self._engine.state
        if node.drained or node.leaving or state.controller is None:
            node.suspect = True  # no work is due there anyway
            return
        engine.do(NodeSuspected(now, node.id, suspect=True))
        cluster = state.controller.cluster
        there = set(np.flatnonzero(cluster.gpu_node == cluster.index(node.id)).tolist())
        jobs = []
        for number, gpus in state.groups.of_job.items():
            job = state.jobs[number]
            begun = job.live is not None and job.live.gpus == gpus
            if there.intersection(gpus) and state.wanted(job) == gpus and not begun:
                jobs.append(number)
        if jobs:
            engine.do(LaunchFailed(now, np.array(jobs), f"node {node.id} has not been heard of lately"))

    def _next_silence_s(self) -> float:
        """When a node will have been silent for too long if nothing more is heard of it."""
        suspect_s = self._engine.options.suspect_s
        return min(
            (
                node.heard_s + (self._patience_s(node) if node.suspect else suspect_s)
                for node in self._engine.state.nodes.values()
                if not node.lost
            ),
            default=math.inf,
        )

    def _patience_s(self, node: NodeRecord) -> float:
        """A silent node is lost after so long: what runs there has ended by itself by then.

        One that is known to be dead is lost as soon as it is suspect. One that gave notice has ended its jobs when it
        said that it would, or soon after. Where nothing runs, jobs that were given GPUs there are not kept waiting.
        """
        options = self._engine.options
        if node.gone and node.dead:
            return options.suspect_s
        if node.leaving and node.leaving_s is not None:
            return min(options.lost_s, max(options.suspect_s, node.leaving_s + LEFT_S))
        if not self._runs_something(node):
            return min(options.lost_s, max(options.suspect_s, IDLE_LOST_S))
        return options.lost_s

    def _runs_something(self, node: NodeRecord) -> bool:
        """Whether a process that was begun on this node may still be there."""
        jobs = self._engine.state.jobs
        attempts = (jobs[number].live for number in self._engine.live)
        return any(r.node == node.id and not r.ended for attempt in attempts if attempt for r in attempt.ranks)

    # -- jobs -----------------------------------------------------------------------------------------

    def _admit(self, now: float) -> None:
        """Tell the controller of new jobs, in order. The first that fits no node yet holds up those behind it."""
        engine, state = self._engine, self._engine.state
        controller = state.controller
        if controller is None:
            return
        specs: list[JobSpec] = []
        rooms: list[int] = []
        waits = now < self.settle_s
        for number in state.pending:
            job = state.jobs[number]
            spec = engine.spec(number, job.request, job.owner, job.project, job.created_s)
            room = engine.room(job.request)
            if waits and not job.cancelled and refusal(spec, controller.cluster, room) is not None:
                break
            specs.append(spec)
            rooms.append(room)
        if not specs:
            return
        first = number = controller.books.count
        for room, batch in groupby(zip(rooms, specs, strict=True), key=lambda pair: pair[0]):
            several = [spec for _, spec in batch]
            engine.do(JobSubmitted(now, number, JobBatch.of(several), room))
            number += len(several)
        for number in range(first, first + len(specs)):
            job = state.jobs[number]
            if job.cancelled and state.phase(job) <= Phase.RUNNING:
                engine.do(JobCancelled(now, np.array([number])))
        if min(spec.min_gpus for spec in specs) <= self._free_gpus():
            self._arrived = (self._arrived[0] if self._arrived else now, now)

    def _free_gpus(self) -> int:
        """GPUs of nodes that answer which nobody holds or was given."""
        state = self._engine.state
        held = {gpu for gpus in state.groups.by_gpus for gpu in gpus}
        for number in self._engine.live:
            attempt = state.jobs[number].live
            held.update(attempt.gpus if attempt else ())
        there = (n.info.gpus for n in state.nodes.values() if n.state == "ready" and n.info)
        return sum(there) - len(held)

    def report_progress(self, now: float, only: Sequence[int] | None = None) -> None:
        """Tell the controller what agents have measured about running jobs."""
        engine = self._engine
        controller = engine.state.controller
        if controller is None:
            return
        columns = controller.books.columns
        rows = []
        for number in sorted(engine.live) if only is None else only:
            job = engine.state.jobs[number]
            attempt = job.live
            if attempt is None or attempt.lead is None or columns["phase"][number] > Phase.RUNNING:
                continue
            work = work_of(engine, job, attempt)
            done = float(columns["iterations_done"][number]) if work.done is None else work.done
            ran = max(float(columns["run_s"][number]), job.held_s + attempt.held_s)
            service = job.held_gpu_s + attempt.held_s * len(attempt.gpus)
            pace = work.each_s
            served = max(float(columns["attained_gpu_s"][number]), service)
            rows.append((number, done, served, ran, math.nan if pace is None or not pace > 0 else pace))
        if only is None:
            self._reported_s = now
        if rows:
            jobs = np.array([r[0] for r in rows], dtype=np.int64)
            done_, attained, ran_, paces = (np.array([r[i] for r in rows]) for i in range(1, 5))
            engine.do(ProgressReported(now, jobs, done_, attained, ran_, paces))

    # -- decisions ------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        self.report_progress(now)
        begin = time.perf_counter()
        self._engine.do(ReplanDue(now))
        self._took_s = time.perf_counter() - begin
        self.taken_s.append(self._took_s)
        self._arrived = None
        self._settle(now)

    def _decision_s(self) -> float:
        """When the next decision is due."""
        engine, state = self._engine, self._engine.state
        controller = state.controller
        if controller is None or not engine.ready:
            return math.inf
        pause = max(engine.options.round_s, 5.0) if state.policy_error else engine.options.round_s
        earliest = state.decision_s + pause
        if not controller.changed:
            return max(earliest, controller.plan.valid_until_s)
        return min(earliest, self._early_s())

    def _early_s(self) -> float:
        """When a decision may be made before its round, for jobs that arrived while GPUs are free."""
        state, options = self._engine.state, self._engine.options
        if self._arrived is None or state.policy_error or options.round_s > LONG_ROUND_S:
            return math.inf
        first, last = self._arrived
        quiet_s = min(last + QUIET_S, first + QUIETS * QUIET_S)
        return max(quiet_s, state.decision_s + max(options.early_s, REST * self._took_s))

    def _wake_s(self, now: float) -> float:
        engine, state, options = self._engine, self._engine.state, self._engine.options
        times = [self._decision_s()]
        if state.pending and now < self.settle_s:
            times.append(self.settle_s)
        if engine.live:
            times.append(self._reported_s + options.progress_s)
        if engine.unfenced or engine.deferred:
            times.append(now + 1.0)
        if engine.touched_nodes:  # one came, or came back
            self._silence_s = self._next_silence_s()
        times.append(max(self._silence_s, self._watched_s + WATCH_S))
        return max(min(times, default=math.inf), now)
