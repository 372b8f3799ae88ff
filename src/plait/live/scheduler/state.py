"""Everything the service knows that matters, as a fold over its log.

Each entry of the log is an event of the controller (`plait.control.messages`) or a note of the service's own
(`plait.live.scheduler.records.notes`):

    Requested      jobs that users asked for, with the numbers they get       PolicySet    which policy decides
    CancelAsked    a job taken back before the controller knew of it          ProjectSet   a project's quota and weight
    AttemptBegan   a job starts on these processes, under a new epoch         NodeDrained  a node takes no work, or does
    StopAsked      an attempt was told to stop, and why                       Learnt       a profile for later jobs
    RankEnded      a process ended                                            AttemptOver  nothing of it is left
    NodeLeaving    a node gave notice, or is back                             NodeForgotten  it will not come back
    Restarted      the first step after a stop that was asked for, and what the two cost
    Foreseen       a client forecast the start and the end of a job

`apply` is the only thing that changes a `State`, live, after a restart and in `replay --verify`; so all three agree.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.messages import (
    Command,
    Event,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobSubmitted,
    LaunchFailed,
    NodeJoined,
    NodeLost,
    NodeSuspected,
    ProgressReported,
    ReplanDue,
    from_json,
    to_json,
)
from plait.control.snapshot import frozen, restore
from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlaitError
from plait.core.jobs import Phase
from plait.core.policy import Policy
from plait.core.preemption import DEFAULT_RULE, PreemptionRule
from plait.live.protocol.profile_keys import processes_per_gpu
from plait.live.protocol.wire import NodeInfo
from plait.live.scheduler.quota import Quotas
from plait.live.scheduler.records.attempts import ALWAYS, BYSTANDER, ONCE, Attempt, JobRecord, NodeRecord, Rank
from plait.live.scheduler.records.groups import GroupBook
from plait.live.scheduler.records.notes import (
    KINDS,
    AttemptBegan,
    AttemptOver,
    CancelAsked,
    Foreseen,
    Learnt,
    NodeDrained,
    NodeForgotten,
    NodeLeaving,
    Note,
    PolicySet,
    ProjectSet,
    RankEnded,
    Requested,
    Restarted,
    StopAsked,
    note_from_json,
    note_to_json,
)
from plait.live.scheduler.records.submissions import Submissions
from plait.live.scheduler.records.track_record import TrackRecord
from plait.policies.catalog import make_policy

Entry: TypeAlias = Event | Note

_VERSION = 1
#: Profiles kept for later jobs; those go that were learnt longest ago.
MOST_LEARNT = 10_000
#: So many jobs that left last are kept whole: forecasts take them for what is typical here.
RECENT = 200
#: How much the last restart counts in the average of what restarts cost a job.
NEWEST = 0.5
_WAITING, _RUNNING = int(Phase.WAITING), int(Phase.RUNNING)
_CHANGES_GROUPS = (ReplanDue, JobFinished, JobFailed, JobCancelled, LaunchFailed, NodeLost)


class State:
    """Jobs, attempts, nodes, projects, the controller and the policy it asks. There is no controller before a node is.

    `live`: jobs with an attempt that is not over. `touched`, `touched_nodes`: jobs and nodes of which something shown
    has changed; whoever shows them empties these.
    """

    def __init__(self) -> None:
        """Nothing has happened."""
        self.controller: Controller | None = None
        self.policy_text = ""
        self.policy: Policy | None = None
        #: Whether an operator lets policies stop jobs that cannot go on from a checkpoint.
        self.may_lose_work = False
        self.projects: dict[str, dict[str, Any]] = {}
        self.jobs: dict[int, JobRecord] = {}
        self.pending: deque[int] = deque()
        self.numbers = 0
        self.submissions = Submissions()
        self.nodes: dict[str, NodeRecord] = {}
        self.groups = GroupBook()
        self.learnt: dict[str, dict[str, Any]] = {}
        self.ports_given = 0
        self.record = TrackRecord()
        self.now_s = 0.0
        self.seq = 0
        self.decision_seq = 0
        self.decision_s = -math.inf
        self.policy_error = ""
        self.live: set[int] = set()
        self.touched: set[int] = set()
        self.touched_nodes: set[str] = set()
        self._notes: dict[type[Any], Callable[[Any], None]] = {
            Requested: self._requested, CancelAsked: self._cancel_asked, PolicySet: self._policy_set,
            ProjectSet: self._project_set, AttemptBegan: self._attempt_began, StopAsked: self._stop_asked,
            RankEnded: self._rank_ended, AttemptOver: self._attempt_over, NodeDrained: self._node_drained,
            Learnt: self._learnt, NodeLeaving: self._node_leaving, NodeForgotten: self._node_forgotten,
            Restarted: self._restarted, Foreseen: self._foreseen,
        }  # fmt: skip

    # -- the fold -------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> Sequence[Command]:
        """Take the next entry of the log; returns what the controller commands."""
        self.seq += 1
        self.now_s = max(self.now_s, entry.at_s)
        if isinstance(entry, Note):
            self._notes[type(entry)](entry)
            return ()
        if isinstance(entry, NodeJoined):
            self._meet(entry)
        assert self.controller is not None, f"{type(entry).__name__} before any node"
        commands: Sequence[Command]
        try:
            commands = self.controller.handle(entry)
        except Exception as error:
            if not isinstance(entry, ReplanDue):
                raise
            # A policy that fails must not take the cluster with it: what runs goes on, and the status says why.
            text = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
            self.policy_error, commands = text, ()
        else:
            if isinstance(entry, ReplanDue):
                self.policy_error = ""
        self._after(entry, commands)
        return commands

    def _after(self, entry: Event, commands: Sequence[Command]) -> None:
        assert self.controller is not None
        if isinstance(entry, ReplanDue):
            self.decision_s, self.decision_seq = entry.at_s, self.seq
        if isinstance(entry, _CHANGES_GROUPS):
            self.groups.update(self.controller, self._per_gpu)
        if isinstance(entry, JobSubmitted):
            for number in range(entry.first, entry.first + len(entry.jobs)):
                self.pending.popleft()
                self.jobs[number].admitted = True
        elif isinstance(entry, NodeLost):
            self.nodes[entry.node].lost, self.nodes[entry.node].suspect = True, False
            self.touch_node(entry.node)
        elif isinstance(entry, NodeSuspected):
            self.nodes[entry.node].suspect = entry.suspect
            self.touch_node(entry.node)
        elif isinstance(entry, JobFinished):
            for number, end_s in zip(entry.jobs.tolist(), entry.end_s.tolist(), strict=True):
                self.record.came(number, "end", end_s)
        elif isinstance(entry, (JobFailed, JobCancelled)):
            for number in entry.jobs.tolist():
                self.record.forget(number)
        elif isinstance(entry, ProgressReported):
            self._note_losses(entry.jobs.tolist())
        if not isinstance(entry, (ProgressReported, ReplanDue)):
            self.touched.update(jobs_of(entry))
        for command in commands:
            self.touched.update(jobs_of(command))

    def _note_losses(self, numbers: Iterable[int]) -> None:
        """Work that jobs lost, in the books: as their agents measured it, not as the controller makes it out."""
        assert self.controller is not None
        for number in numbers:
            self.controller.books.columns["lost_s"][number] = self.jobs[number].lost_work_s

    def touch_node(self, node: str) -> None:
        """A node is shown differently from now on, and so are jobs that run there."""
        self.touched_nodes.add(node)
        for number in self.live:
            attempt = self.jobs[number].live
            if attempt and any(r.node == node for r in attempt.ranks):
                self.touched.add(number)

    def _per_gpu(self, number: int) -> int:
        return processes_per_gpu(self.jobs[number].request)

    def _meet(self, event: NodeJoined) -> None:
        node, hardware = self.nodes.setdefault(event.node.id, NodeRecord(event.node.id)), event.node
        node.lost = node.drained = node.leaving = node.suspect = False
        self.touched_nodes.add(node.id)
        node.info = NodeInfo(
            hardware.id, hardware.gpus, hardware.gpu_kind, float(hardware.gpu_memory_bytes), hardware.cpus,
            hardware.memory_bytes, hardware.rack,
        )  # fmt: skip
        if self.controller is None:
            self.controller = Controller(self._limited(), Cluster((hardware,)), self._rule())

    # -- notes ----------------------------------------------------------------------------------------

    def _requested(self, note: Requested) -> None:
        first = note.first
        for i, request in enumerate(note.requests):
            record = JobRecord(first + i, dict(request), note.owner, request.get("project") or "default", note.at_s)
            self.jobs[record.number] = record
            self.pending.append(record.number)
            self.touched.add(record.number)
        self.numbers = first + len(note.requests)
        self.submissions.add(note)

    def _cancel_asked(self, note: CancelAsked) -> None:
        self.jobs[note.job].cancelled = True
        self.touched.add(note.job)

    def _policy_set(self, note: PolicySet) -> None:
        self.policy_text, self.may_lose_work = note.policy, note.may_lose_work
        self.policy = make_policy(self.policy_text)
        self._refresh_policy()

    def _project_set(self, note: ProjectSet) -> None:
        if note.gone:
            self.projects.pop(note.name, None)
        else:
            self.projects[note.name] = {"gpu_quota": note.gpu_quota, "weight": note.weight}
        self._refresh_policy()

    def _refresh_policy(self) -> None:
        if self.controller is not None:
            self.controller.policy = self._limited()
            self.controller.rule = self._rule()
            self.controller.changed = True

    def _rule(self) -> PreemptionRule:
        """Which running jobs the policy may stop."""
        return replace(DEFAULT_RULE, may_lose_work=self.may_lose_work)

    def _limited(self) -> Policy:
        assert self.policy is not None, "a policy is set before anything else"
        return self._with_quotas(self.policy)

    def policy_again(self) -> Policy:
        """Another policy like the one that decides, quotas included, for another thread."""
        return self._with_quotas(make_policy(self.policy_text))

    def _with_quotas(self, policy: Policy) -> Policy:
        limits = tuple(
            (name, int(p["gpu_quota"])) for name, p in sorted(self.projects.items()) if p["gpu_quota"] is not None
        )
        return Quotas(policy, limits) if limits else policy

    def _attempt_began(self, note: AttemptBegan) -> None:
        job = self.jobs[note.job]
        ranks = [Rank(node, gpu) for node, gpu in note.ranks]
        job.epoch = note.epoch
        job.first_epoch = job.first_epoch or job.epoch
        job.attempt = Attempt(job.number, job.epoch, tuple(note.gpus), ranks, note.at_s, note.port)
        job.attempt.merge = bool(job.request.get("merge")) and not job.unmerged
        if job.unmerged == ONCE:
            job.unmerged = ""
        if note.port:
            self.ports_given += 1
        self.record.came(job.number, "start", note.at_s)
        self.live.add(job.number)
        self.touched.add(job.number)

    def _stop_asked(self, note: StopAsked) -> None:
        attempt = self.jobs[note.job].attempt
        assert attempt is not None
        attempt.stop, attempt.grace_s, attempt.stop_s = note.why, note.grace_s, note.at_s
        self.touched.add(note.job)

    def _rank_ended(self, note: RankEnded) -> None:
        job = self.jobs[note.job]
        attempt = job.attempt
        assert attempt is not None
        attempt.end(note.rank, note.exit_code, note.reason, note.started)
        if note.merged:
            job.unmerged = ALWAYS if job.unmerged == ALWAYS or note.merged != BYSTANDER else ONCE
        self.touched.add(note.job)

    def _attempt_over(self, note: AttemptOver) -> None:
        job = self.jobs[note.job]
        attempt = job.attempt
        assert attempt is not None
        attempt.ended_s, attempt.outcome = note.at_s, note.outcome
        attempt.batch_size = note.batch_size or None
        attempt.lost_work_s = note.lost_work_s
        job.lost_work_s += attempt.lost_work_s
        self.record.lost(note.why_lost or "failed", attempt.lost_work_s * len(attempt.gpus))
        self._note_losses((job.number,))
        job.held_s += note.held_s
        job.held_gpu_s += note.held_s * len(attempt.gpus)
        if note.steps > job.mark:
            job.mark, job.requeues, job.launch_failures = note.steps, 0, 0
        job.requeues += attempt.outcome == "requeued"
        job.launch_failures += attempt.outcome == "start failed"
        if attempt.cause:
            job.reason = attempt.cause
        self.record.over(note, attempt.began_s, attempt.stop_s)
        job.down_s = None
        if note.outcome == "preempted" and attempt.stop_s is not None:
            job.down_s = max(0.0, (note.ended_s or note.at_s) - attempt.stop_s)
        self.live.discard(job.number)
        self.touched.add(job.number)

    def _restarted(self, note: Restarted) -> None:
        job, cost_s = self.jobs[note.job], note.cost_s
        job.restart_s = cost_s if job.restart_s is None else job.restart_s + NEWEST * (cost_s - job.restart_s)
        job.restarts, job.down_s = job.restarts + 1, None
        self.record.restarts_gpu_s += cost_s * (len(job.attempt.gpus) if job.attempt else 1)
        self.touched.add(job.number)

    def _foreseen(self, note: Foreseen) -> None:
        self.record.told(note)

    def _node_drained(self, note: NodeDrained) -> None:
        node = self.nodes[note.node]
        node.drained = note.drained
        self.touched_nodes.add(node.id)
        if node.drained:  # it is there, only not for work: the controller was told that it is lost
            node.lost = False

    def _node_leaving(self, note: NodeLeaving) -> None:
        node = self.nodes[note.node]
        node.leaving = note.leaving
        node.lost = False  # as with a drained one: it is there, only not for work
        self.touch_node(node.id)

    def _node_forgotten(self, note: NodeForgotten) -> None:
        assert self.controller is not None
        del self.nodes[note.node]
        self.touched_nodes.add(note.node)
        self.controller.cluster = self.controller.cluster.forget(note.node)

    def _learnt(self, note: Learnt) -> None:
        if note.job is not None:
            self.touched.add(note.job)
        if note.beside:
            assert note.job is not None
            self.jobs[note.job].measured_beside = True
            return
        taught = {"stage_s": note.stage_s, "iteration_s": note.iteration_s, "skew": note.skew}
        new = {name: value for name, value in taught.items() if value is not None}
        for key in (*note.like, note.key):
            self.learnt[key] = {**self.learnt.pop(key, {}), **new}  # what was learnt last comes last
        while len(self.learnt) > MOST_LEARNT:
            del self.learnt[next(iter(self.learnt))]
        if note.job is not None:
            self.jobs[note.job].profiled = True

    # -- looking --------------------------------------------------------------------------------------

    def phase(self, job: JobRecord) -> Phase:
        """Where the controller sees a job; one that it does not know yet waits, or was taken back."""
        if not job.admitted or self.controller is None:
            return Phase.CANCELLED if job.cancelled else Phase.WAITING
        return Phase(int(self.controller.books.columns["phase"][job.number]))

    def wanted(self, job: JobRecord) -> tuple[int, ...] | None:
        """The GPUs of the cluster that a job should run on now; None if it should not run."""
        if not job.admitted or self.controller is None:
            return None
        columns = self.controller.books.columns
        if columns["phase"][job.number] != _RUNNING or columns["slot"][job.number] < 0:
            return None
        return self.groups.of_job.get(job.number)

    @property
    def policy_name(self) -> str:
        """The name of the policy that decides."""
        return "" if self.policy is None else describe(self.policy)

    # -- keeping --------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return self.frozen()()

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """Copy what may change, which is quick; the function returned makes JSON values of it, in any thread.

        Of jobs that have ended only their number and service are in it, but for the last ones: the rest is in the log.
        """
        controller: Callable[[], dict[str, Any]] | None = None
        if self.controller is not None:
            self.controller.books.forget(RECENT)
            controller = frozen(self.controller, self._kept(), RECENT)
        facts = {
            "version": _VERSION,
            "seq": self.seq,
            "now_s": self.now_s,
            "decision_seq": self.decision_seq,
            "decision_s": self.decision_s if math.isfinite(self.decision_s) else None,
            "policy": self.policy_text,
            "may_lose_work": self.may_lose_work,
            "policy_error": self.policy_error,
            "projects": dict(self.projects),
            "numbers": self.numbers,
            "submissions": self.submissions.rows(),
            "jobs": [job.to_json() for job in self.jobs.values()],
            "pending": list(self.pending),
            "nodes": self.node_rows(),
            "groups": self.groups.to_json(),
            "learnt": dict(self.learnt),
            "ports_given": self.ports_given,
            "record": self.record.to_json(),
        }
        return lambda: {**facts, "controller": None if controller is None else controller()}

    def _kept(self) -> IntArray:
        """Jobs of which all is kept: those that have not ended, or of which something runs, and the last ones."""
        assert self.controller is not None
        mine = [number for number, job in self.jobs.items() if job.admitted]
        controller = self.controller
        last = controller.books.last_departed(RECENT)
        return np.unique(np.concatenate([controller.active, last, controller.running.jobs, np.array(mine, np.int64)]))

    def node_rows(self) -> list[dict[str, Any]]:
        """Nodes as `from_json` reads them; their hardware is the controller's."""
        return [
            {
                "id": n.id, "drained": n.drained, "lost": n.lost, "leaving": n.leaving,
                "suspect": n.suspect and not (n.drained or n.leaving),  # of such the log does not say it
            }
            for n in self.nodes.values()
        ]  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> State:
        """The state that `to_json` wrote."""
        if data.get("version") != _VERSION:
            raise PlaitError(f"snapshot has version {data.get('version')!r}; this plait reads version {_VERSION}")
        state = cls()
        state.seq, state.now_s, state.decision_seq = data["seq"], data["now_s"], data["decision_seq"]
        state.decision_s = -math.inf if data["decision_s"] is None else data["decision_s"]
        state.policy_text, state.policy_error = data["policy"], data["policy_error"]
        state.may_lose_work = bool(data.get("may_lose_work"))
        state.policy = make_policy(state.policy_text) if state.policy_text else None
        state.projects = dict(data["projects"])
        state.numbers = data["numbers"]
        state.submissions = Submissions(data.get("submissions", ()))
        state.jobs = {job["number"]: JobRecord.from_json(job) for job in data["jobs"]}
        state.live = {number for number, job in state.jobs.items() if job.live}
        state.pending = deque(data["pending"])
        state.groups = GroupBook.from_json(data["groups"])
        state.learnt, state.ports_given = dict(data["learnt"]), data["ports_given"]
        state.record = TrackRecord.from_json(data.get("record", {}))
        if data["controller"] is not None:
            state.controller = restore(data["controller"], state._limited())
        for row in data["nodes"]:
            record = NodeRecord(row["id"], row["drained"], row["lost"], row.get("leaving", False))
            record.suspect = row.get("suspect", False)
            state.nodes[row["id"]] = record
        if state.controller is not None:
            for node in state.controller.cluster:
                if node.id not in state.nodes:
                    continue  # a place that a node was forgotten from
                state.nodes[node.id].info = NodeInfo(
                    node.id, node.gpus, node.gpu_kind, float(node.gpu_memory_bytes), node.cpus, node.memory_bytes,
                    node.rack,
                )  # fmt: skip
        return state


def jobs_of(message: Event | Command) -> list[int]:
    """Numbers of the jobs a message is about."""
    if isinstance(message, JobSubmitted):
        return list(range(message.first, message.first + len(message.jobs)))
    groups = getattr(message, "groups", None)
    jobs = groups.jobs if groups is not None else getattr(message, "jobs", ())
    return [int(job) for job in jobs]


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The JSON object that stands for an entry in the log."""
    return note_to_json(entry) if isinstance(entry, Note) else to_json(entry)


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """The entry that `entry_to_json` wrote; raises `InputError` for one that is not of this version."""
    return note_from_json(data) if data.get("type") in KINDS else from_json(data)  # type: ignore[return-value]
