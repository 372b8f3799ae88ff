"""The state, what goes with it, and the one way to change it: `Context.record`."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.control import messages
from plait.core.jobs import JobSpec
from plait.live.protocol.requests import spec_of
from plait.live.protocol.wire import check_entry
from plait.live.scheduler.fold import apply
from plait.live.scheduler.options import ANY_SIZE, Options
from plait.live.scheduler.records import notes
from plait.live.scheduler.records.attempts import Attempt, JobRecord, Successor
from plait.live.scheduler.state import State
from plait.live.store import Entry as Row

#: Why nothing is decided while `Context.ready` is False.
COMPILING = "what decisions need is being compiled, about 20 s, once after an installation"
#: Tries to fence an attempt, where errors do not pass by themselves.
FENCE_TRIES = 10
#: Entries after which what runs is still what should run.
_QUIET = (
    messages.ProgressReported, messages.UsageReported, messages.NetworkReported, messages.JobSubmitted,
    messages.JobProfiled, messages.GoodputReported, notes.Requested, notes.ProfileRecorded, notes.Restarted,
    notes.ForecastRecorded, notes.ProjectSet, notes.PolicySet, notes.Undelivered,
)  # fmt: skip


@dataclass
class Timers:
    """Times of the last work of each kind; times of the engine, seconds.

    `settle_s`: until then jobs too large for the cluster wait for more nodes. `silence_s`: no node has been silent for
    too long before then (a bound, so that not every report looks at all nodes). `due_s`: when the engine wanted to be
    called. `arrived`: first and last arrival since the last decision of jobs that free GPUs could take; `took_s`: how
    long that decision took.
    """

    settle_s: float = -math.inf
    watched_s: float = -math.inf
    reported_s: float = -math.inf
    usage_s: float = -math.inf
    silence_s: float = math.inf
    due_s: float = math.inf
    arrived: tuple[float, float] | None = None
    took_s: float = 0.0


@dataclass
class Unfenced:
    """An attempt that no agent may receive yet, because earlier ones of its job can still commit a checkpoint.

    `why`: the last error; `tries`: of errors that will not pass by themselves, at most one a second, the next one at
    `next_s`. `fresh`: it began in this service's life, so that surely no agent knows it.
    """

    fresh: bool = False
    why: str = ""
    tries: int = 0
    next_s: float = -math.inf


@dataclass(frozen=True)
class Problem:
    """An error that did not stop the scheduler, for the log of the service."""

    what: str
    error: Exception
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class EngineCounts:
    """Figures and problems for the service, which empties them."""

    #: Ended jobs: how, and seconds since they came.
    left: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=10_000))
    outcomes: Counter[str] = field(default_factory=Counter)
    commits_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    decisions_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    problems: deque[Problem] = field(default_factory=lambda: deque(maxlen=1000))


@dataclass
class Pending:
    """Changes since the last commit, for the store.

    `rows`: of the log; `weight`: of all entries since the last snapshot. `over`: attempts that ended: their jobs may
    have begun others in the meantime. `projects`: new values, None for removed ones.
    """

    rows: list[Row] = field(default_factory=list)
    weight: float = 0.0
    over: list[Attempt] = field(default_factory=list)
    projects: dict[str, dict[str, Any] | None] = field(default_factory=dict)


@dataclass
class Context:
    """The state and what goes with it.

    `term`: of the service that leads. `port_seed`: where master ports of gangs begin, so that clusters on one machine
    seldom take the same ones. `now_s`: the newest time that was given. `ready`: False while code that decisions need is
    still being compiled. `unfenced`: jobs whose attempt no agent may start yet. `successors`: by job, the processes
    that start next to its attempt. `overlapped`: by job, the attempt that started so; its start is no measure of a cold
    one. `deferred`: an attempt waits for something that gives no notice, such as its first step or a full disk.
    `secret`: the key from which the tokens of jobs for switches are made. `stale`: attempts have to be compared with
    what should run; `reassign`: assignments have to be derived from the state again. `broken`: the state may differ
    from the store. `open_jobs`: numbers of jobs that have not ended, by (user, name) and (project, name).
    """

    state: State
    options: Options
    term: int
    port_seed: int
    now_s: float = 0.0
    ready: bool = True
    unfenced: dict[int, Unfenced] = field(default_factory=dict)
    successors: dict[int, Successor] = field(default_factory=dict)
    overlapped: dict[int, int] = field(default_factory=dict)
    deferred: bool = False
    secret: bytes = b""
    timers: Timers = field(default_factory=Timers)
    stale: bool = True
    reassign: bool = True
    broken: bool = False
    pending: Pending = field(default_factory=Pending)
    counts: EngineCounts = field(default_factory=EngineCounts)
    open_jobs: Counter[tuple[str, str]] = field(default_factory=Counter)

    # -- changing -------------------------------------------------------------------------------------

    def record(self, entry: notes.Entry) -> Sequence[messages.Command]:
        """Apply an entry to the state, at once, for the log of the next commit; returns the controller's commands.

        Raises `InputError`, having changed nothing, for what no store and no reader can hold.
        """
        data = notes.entry_to_json(entry)
        if isinstance(entry, notes.Note):
            check_entry(data)
        try:
            new = isinstance(entry, messages.NodeJoined) and entry.node.id not in self.state.nodes
            commands = apply(self.state, entry)
            about = _about(entry)
            for command in commands:
                about += notes.jobs_of(command)
            done = json.dumps([messages.to_json(c) for c in commands], separators=(",", ":"), allow_nan=False)
            text = json.dumps(data, separators=(",", ":"), allow_nan=False)
            self.pending.rows.append(Row(self.state.seq, self.state.now_s, data["type"], text, done, tuple(about)))
            self.pending.weight += 1 + (len(self.state.jobs) / 20 if isinstance(entry, messages.ReplanDue) else 0)
            self.stale |= not isinstance(entry, _QUIET)
            self._follow(entry, new)
        except BaseException:
            self.broken = True  # half of the entry may have been taken: only the log knows the truth now
            raise
        return commands

    def _follow(self, entry: notes.Entry, new: bool) -> None:
        """Apply the consequences of an entry outside the state; `new`: it is of a node that was not known."""
        jobs = self.state.jobs
        match entry:
            case messages.NodeJoined() if new:
                self.timers.settle_s = self.settled_s()
            case notes.Requested(first=first, requests=requests):
                for number in range(first, first + len(requests)):
                    self.count_open(jobs[number], 1)
            case notes.CancelAsked(job=job):  # it stays until a node joins, and is no open job for so long
                self.count_open(jobs[job], -1)
            case notes.AttemptBegan(job=job):
                self.unfenced[job] = Unfenced(fresh=True)
            case notes.AttemptOver(job=job):
                attempt = jobs[job].attempt
                assert attempt is not None
                self.pending.over.append(attempt)
            case notes.ProjectSet(name=name):
                self.pending.projects[name] = self.state.projects.get(name)
            case _:
                pass

    def count_open(self, job: JobRecord, more: int) -> None:
        """Count a new open job of its user and project (`more` 1), or one that is open no longer (-1)."""
        for key in (("user", job.owner), ("project", job.project)):
            self.open_jobs[key] += more
            if not self.open_jobs[key]:
                del self.open_jobs[key]

    # -- looking --------------------------------------------------------------------------------------

    def settled_s(self) -> float:
        """Until when jobs too large for the cluster wait for more nodes, one having joined now."""
        expected, controller = self.options.expect_gpus, self.state.controller
        there = 0 if controller is None else controller.cluster.gpus
        return self.now_s if 0 < expected <= there else self.now_s + self.options.settle_s

    def room(self, request: Mapping[str, Any]) -> int:
        """GPUs of the cluster that a job may wait for, beyond the nodes that there are."""
        return ANY_SIZE if request.get("wait_for_nodes") else self.options.most_gpus

    def spec(self, number: int, request: Mapping[str, Any], owner: str, project: str, submit_s: float) -> JobSpec:
        """A request as the policies see it; raises `InputError` for an invalid job."""
        state = self.state
        kinds = () if state.controller is None else state.controller.cluster.kinds
        weight = float(state.projects.get(project, {}).get("weight") or 1.0)
        return spec_of(
            number, request, owner=owner, project=project, submit_s=submit_s, weight=weight, kinds=kinds,
            learnt=state.learnt,
        )  # fmt: skip


def _about(entry: notes.Entry) -> list[int]:
    """Numbers of the jobs by which an entry is found in the log."""
    if isinstance(entry, notes.Requested):
        return list(range(entry.first, entry.first + len(entry.requests)))
    if isinstance(entry, notes.Note):
        job = getattr(entry, "job", None)
        return [] if job is None else [job]
    return (
        []
        if isinstance(entry, (messages.ProgressReported, messages.UsageReported, messages.NetworkReported))
        else notes.jobs_of(entry)
    )
