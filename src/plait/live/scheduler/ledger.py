"""The one place that takes steps into the state and commits them.

A step is an entry, which goes into the log and into the state, or an observation, which only the state has. Its
consequences are derived here: open jobs, attempts to fence, rows to show. After a commit, and only then, older attempts
are fenced and assignments change.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from plait.control.messages import (
    Command,
    GoodputReported,
    JobProfiled,
    JobSubmitted,
    NetworkReported,
    NodeJoined,
    ProgressReported,
    ReplanDue,
    UsageReported,
    to_json,
)
from plait.core.errors import PlaitError
from plait.core.jobs import Phase
from plait.live.layout import Layout
from plait.live.protocol.validation import check_entry
from plait.live.scheduler.assignments import Assigner
from plait.live.scheduler.context import FENCE_TRIES, Context, Step, Unfenced
from plait.live.scheduler.decide import settled_s
from plait.live.scheduler.explain import views
from plait.live.scheduler.fold import apply
from plait.live.scheduler.memory import remember
from plait.live.scheduler.records.attempts import Attempt, JobRecord
from plait.live.scheduler.records.entries import Entry, entry_from_json, entry_to_json, jobs_of
from plait.live.scheduler.records.notes import (
    AttemptBegan,
    AttemptOver,
    CancelAsked,
    ForecastRecorded,
    NodeForgotten,
    Note,
    PolicySet,
    ProfileRecorded,
    ProjectSet,
    Requested,
    Restarted,
)
from plait.live.scheduler.records.observations import (
    AgentHeard,
    AttemptKnown,
    NodeCheckDue,
    NodeGone,
    NodeSilent,
    Observation,
    ReportRefused,
    SuccessorAsked,
    SuccessorOver,
    SuccessorSettled,
)
from plait.live.scheduler.records.successors import Successor
from plait.live.scheduler.requests.admission import project_of
from plait.live.scheduler.requests.job_limits import OpenJobs
from plait.live.scheduler.snapshots import Snapshots
from plait.live.scheduler.state import State
from plait.live.store import Entry as Row
from plait.live.store import Store

T = TypeVar("T")
#: Entries after which what runs is still what should run.
_QUIET = (
    ProgressReported, UsageReported, NetworkReported, JobSubmitted, JobProfiled, GoodputReported, Requested,
    ProfileRecorded, Restarted, ForecastRecorded, ProjectSet, PolicySet,
)  # fmt: skip


class Fencing(Protocol):
    """Where attempts are fenced, as `plait.live.fencing.Fences` does on disk."""

    layout: Layout

    def next_epoch(self, number: int, epoch: int) -> int:
        """The epoch of a job's next attempt, its last one being `epoch`; `OSError`: later, perhaps."""

    def write(self, number: int, epoch: int, first: int) -> None:
        """Make attempts of a job before this epoch unable to commit; raises `OSError` if that cannot be written."""

    def may_pass(self, number: int, error: OSError) -> bool:
        """Whether an error of `write` may pass by itself, because it is not due to the job's own folder."""


@dataclass(frozen=True)
class Problem:
    """Something that went wrong without stopping the scheduler, for the log of the service."""

    what: str
    error: Exception
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Counts:
    """Figures and problems for the service, which empties them."""

    #: Ended jobs: how, and seconds since they came.
    left: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=10_000))
    outcomes: Counter[str] = field(default_factory=Counter)
    commits_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    decisions_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    problems: deque[Problem] = field(default_factory=lambda: deque(maxlen=1000))


def restore(store: Store) -> tuple[State, int]:
    """The state as stored, and the number of entries after its snapshot; `PlaitError` for a log with a gap."""
    data, tail = store.load()
    state = State() if data is None else State.from_json(data)
    behind = state.seq
    for row in tail:
        if row.seq != state.seq + 1:
            raise PlaitError(f"the log has entry {row.seq} where {state.seq + 1} was expected; restore a backup")
        apply(state, entry_from_json(json.loads(row.entry)))
    state.touched.clear()
    state.jobs = {number: job for number, job in state.jobs.items() if not _is_over(state, job)}
    state.touched_nodes = set(state.nodes)
    return state, state.seq - behind


class Ledger:
    """Takes steps and commits them. After a `StoreError` it is ahead of the store: make a new one."""

    def __init__(
        self, ctx: Context, store: Store, snapshots: Snapshots, fencing: Fencing, timer: Callable[[], float]
    ) -> None:
        """Continue from the state of `ctx`, which is that of the store. `timer` measures commits, seconds."""
        self.ctx, self.store, self.snapshots = ctx, store, snapshots
        self.fencing = fencing
        self._timer = timer
        jobs = ctx.state.jobs.values()
        self.open_jobs = OpenJobs((job.owner, job.project) for job in jobs if not job.cancelled)
        self.assigner = Assigner(ctx)
        self.counts = Counts()
        self.broken = False
        #: Whether attempts have to be compared with what should run.
        self.stale = True
        self._rows: list[Row] = []
        #: Attempts over since the last commit: their jobs may have begun others in the meantime.
        self._over: list[Attempt] = []
        self._projects: dict[str, dict[str, Any] | None] = {}

    # -- steps ----------------------------------------------------------------------------------------

    def take(self, steps: Generator[Step, None, T] | Iterator[Step]) -> T | None:
        """Take each step before the next one is requested; return the value of the generator."""
        steps = iter(steps)
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                result: T | None = end.value
                return result
            if isinstance(step, Observation):
                self._observe(step)
            else:
                self.do(step)

    def do(self, entry: Entry) -> Sequence[Command]:
        """Take an entry into the state and note it for the next commit; returns what the controller commands.

        Raises `InputError`, having changed nothing, for what no store and no reader can hold.
        """
        data = entry_to_json(entry)
        if isinstance(entry, Note):
            check_entry(data)
        try:
            fresh = isinstance(entry, NodeJoined) and entry.node.id not in self.ctx.state.nodes
            commands = apply(self.ctx.state, entry)
            self._write_down(entry, data, commands)
            self._follow(entry, fresh)
        except BaseException:
            self.broken = True  # half of the entry may have been taken: only the log knows the truth now
            raise
        return commands

    def _write_down(self, entry: Entry, data: Mapping[str, Any], commands: Sequence[Command]) -> None:
        state = self.ctx.state
        about = _about(entry)
        for command in commands:
            about += jobs_of(command)
        done = json.dumps([to_json(c) for c in commands], separators=(",", ":"), allow_nan=False)
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        self._rows.append(Row(state.seq, state.now_s, data["type"], text, done, tuple(about)))
        self.snapshots.weight += 1 + (len(state.jobs) / 20 if isinstance(entry, ReplanDue) else 0)
        self.stale |= not isinstance(entry, _QUIET)

    def _follow(self, entry: Entry, fresh: bool) -> None:
        """Apply the consequences of an entry outside the state; `fresh`: it is of a node that was not known."""
        ctx = self.ctx
        match entry:
            case NodeJoined(at_s=at_s) if fresh:
                ctx.timers.settle_s = settled_s(ctx, at_s)
            case Requested(owner=owner, requests=requests):
                self.open_jobs.add(owner, [project_of(request) for request in requests])
            case CancelAsked(job=job):  # it stays until a node joins, and is no open job for so long
                self.open_jobs.remove(ctx.state.jobs[job].owner, ctx.state.jobs[job].project)
            case AttemptBegan(job=job):
                ctx.unfenced[job] = Unfenced(fresh=True)
            case AttemptOver(job=job):
                attempt = ctx.state.jobs[job].attempt
                assert attempt is not None
                self._over.append(attempt)
            case ProjectSet(name=name):
                self._projects[name] = ctx.state.projects.get(name)
            case NodeForgotten(node=node):
                self.assigner.forget(node)
            case _:
                pass

    def _observe(self, what: Observation) -> None:
        remember(self.ctx.state, what)
        match what:
            case AttemptKnown(job):
                del self.ctx.unfenced[job]
                self.assigner.changed()
            case AgentHeard() if self.ctx.unfenced:
                self.stale = True  # what an agent does not list, it does not run
            case NodeCheckDue():
                self.ctx.timers.watched_s = -math.inf
            case NodeGone() | NodeSilent(silent=False):
                self.stale = True
            case SuccessorAsked(at_s, attempt):
                self.ctx.successors[attempt.job] = Successor(attempt, at_s)
                self.assigner.changed()
            case SuccessorSettled(job, rank):
                self.ctx.successors[job].settled.add(rank)
                self.stale = True
            case SuccessorOver(job):
                self.ctx.overlapped[job] = self.ctx.successors.pop(job).attempt.epoch
                self.assigner.changed()
            case ReportRefused(job, epoch, error):
                self.counts.problems.append(Problem("a report was refused", error, {"job": job, "epoch": epoch}))
            case _:
                pass

    # -- commits --------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write what happened; then fence new attempts."""
        state = self.ctx.state
        if self._rows or state.touched or state.touched_nodes or self._projects:
            keep = self.snapshots.take(state)
            begin_s = self._timer()
            try:
                self.store.commit(self._rows, views.changed(self.ctx, self._over, self._projects), keep)
            except BaseException:
                self.broken = True
                raise
            self.counts.commits_s.append(self._timer() - begin_s)
            self.counts.outcomes.update(attempt.outcome for attempt in self._over)
            self._forget()
            self._rows, self._over, self._projects = [], [], {}
            self.assigner.changed()
        self._raise_fences()

    def _forget(self) -> None:
        """Jobs that have ended and of which nothing runs are in the store from now on."""
        state = self.ctx.state
        for number in state.touched:
            job = state.jobs.get(number)
            if job is not None and _is_over(state, job):
                self.counts.left.append((state.phase(job).name.lower(), self._jct_s(job)))
                del state.jobs[number]
                if not job.cancelled:
                    self.open_jobs.remove(job.owner, job.project)
        state.touched.clear()
        state.touched_nodes.clear()

    def _jct_s(self, job: JobRecord) -> float:
        controller = self.ctx.state.controller
        end_s = math.nan if controller is None else float(controller.job_store.columns["end_s"][job.number])
        return max((self.ctx.now_s if math.isnan(end_s) else end_s) - job.created_s, 0.0)

    def _raise_fences(self) -> None:
        """Attempts are assigned only once older ones cannot commit a checkpoint any more; a full disk means later."""
        unfenced = self.ctx.unfenced
        for number in sorted(unfenced):
            job = self.ctx.state.jobs.get(number)
            attempt = job.live if job else None
            if job is not None and attempt is not None:
                try:
                    self.fencing.write(number, attempt.epoch, job.first_epoch)
                except OSError as error:
                    self._not_fenced(number, unfenced[number], error)
                    continue
            del unfenced[number]
            self.assigner.changed()

    def _not_fenced(self, number: int, attempt: Unfenced, error: OSError) -> None:
        """Note why the attempt of job `number` has to wait; `reconcile` ends it after too many tries."""
        attempt.why = str(error)
        if self.ctx.now_s >= attempt.next_s and not self.fencing.may_pass(number, error):
            attempt.tries, attempt.next_s = attempt.tries + 1, self.ctx.now_s + 1.0
            self.stale |= attempt.tries >= FENCE_TRIES


def _is_over(state: State, job: JobRecord) -> bool:
    return job.admitted and not job.live and state.phase(job) > Phase.RUNNING


def _about(entry: Entry) -> list[int]:
    """Numbers of the jobs by which an entry is found in the log."""
    if isinstance(entry, Requested):
        return list(range(entry.first, entry.first + len(entry.requests)))
    if isinstance(entry, Note):
        job = getattr(entry, "job", None)
        return [] if job is None else [job]
    return [] if isinstance(entry, (ProgressReported, UsageReported, NetworkReported)) else jobs_of(entry)
