"""The live scheduler without sockets, threads or clocks: messages and times in, assignments out.

    engine = Engine(store, Layout.at(home), now=0.0, policy="muri-l")
    number, = engine.submit([{"command": ["python", "train.py"]}], owner="ann", now=1.0)
    assignment = engine.observe(observed, now=1.2)          # what an agent saw -> what should run there
    wake_s = engine.tick(now=2.0)

Everything that happens becomes an entry of the log (`plait.live.scheduler.state`), is written to the store, and only
then acted on: epochs are fenced and assignments made after the commit. Inside `with engine.batch():` many operations
share one commit; what they return may be told to others after the block.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from plait.control.job_store import refusal
from plait.control.messages import (
    Command,
    GoodputReported,
    JobCancelled,
    JobProfiled,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    ProgressReported,
    ReplanDue,
    to_json,
)
from plait.core.errors import InputError, PlaitError, suggest
from plait.core.jobs import JobSpec, Phase
from plait.core.words import counted
from plait.live.fencing import Fence, Fences
from plait.live.layout import Layout, job_name
from plait.live.protocol.requests import spec_of
from plait.live.protocol.validation import check_entry
from plait.live.protocol.wire import Assignment, Observed
from plait.live.scheduler.assignments import Assigner
from plait.live.scheduler.attempts import Attempt, JobRecord, NodeRecord
from plait.live.scheduler.decide import Rounds
from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.explain import views
from plait.live.scheduler.gpu_demand import Wants
from plait.live.scheduler.ingest import hardware, hear
from plait.live.scheduler.job_limits import OpenJobs
from plait.live.scheduler.options import ANY_SIZE, Options
from plait.live.scheduler.snapshots import Later, Snapshots, at_once
from plait.live.scheduler.state import Entry, State, entry_from_json, jobs_of
from plait.live.store import Entry as Row
from plait.live.store import Store
from plait.policies.catalog import make_policy
from plait.policies.parts.unheeded import remarks

#: The best and safest on a mixed queue of plain and attached jobs: docs/explanation/preemption.md has the table.
DEFAULT_POLICY = "tiresias-l"
_QUIET = (ProgressReported, JobSubmitted, JobProfiled, GoodputReported)
_QUIET_NOTES = ("Requested", "Learnt", "Restarted", "Foreseen", "ProjectSet", "PolicySet")


class Engine:
    """See the module. After a `StoreError` from a commit the engine is ahead of the store: make a new one."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        *,
        now: float | Callable[[float], float],
        policy: str | None = None,
        may_lose_work: bool | None = None,
        options: Options | None = None,
        fence: Fence | None = None,
        later: Later = at_once,
    ) -> None:
        """Go on from the store. `now` may be a function of the newest time in it.

        `fence(job, epoch, first)` makes older attempts of a job unable to commit a checkpoint; `later` does what need
        not be done at once.
        """
        self.store, self.layout, self.options = store, layout, options or Options()
        self.fences = Fences(layout)
        self._fence = fence or self.fences.write
        self.snapshots = Snapshots(self.options.snapshot_weight, later)
        self.broken = False
        #: False while what decisions need is still being compiled: all else goes on.
        self.ready = True
        self.term = store.next_term()  # before the log is read: from now on nobody else adds to it
        self.state = self._restored()
        last_s = self.state.now_s
        self.begin_s = self.now_s = max(now(last_s) if callable(now) else now, last_s)
        for node in self.state.nodes.values():
            node.heard_s = self.begin_s
        self.open_jobs = OpenJobs((job.owner, job.project) for job in self.state.jobs.values() if not job.cancelled)
        self.live = {job.number for job in self.state.jobs.values() if job.live}
        #: Jobs whose attempt no agent may hear of yet, and why not.
        self.unfenced = dict.fromkeys(self.live, "")
        self._rows: list[Row] = []
        #: For whoever counts, who empties them: ended jobs (how, seconds since they came), attempts by their outcome,
        #: seconds of commits.
        self.left: deque[tuple[str, float]] = deque(maxlen=10_000)
        self.outcomes: Counter[str] = Counter()
        self.commits_s: deque[float] = deque(maxlen=10_000)
        #: Attempts over since the last commit: their jobs may have begun others in the meantime.
        self.over: list[Attempt] = []
        self._projects: dict[str, dict[str, Any] | None] = {}
        #: Nodes shown differently since the last commit.
        self.touched_nodes: set[str] = set(self.state.nodes)
        self._batching = False
        #: Whether attempts have to be compared with what should run.
        self.stale = True
        self.rounds = Rounds(self)
        #: Whether attempts are to stop after their first step.
        self.deferred = False
        self.assigner = Assigner(self)
        self.wants = Wants()
        wanted = policy or self.state.policy_text or DEFAULT_POLICY
        lose = may_lose_work
        if lose is None:  # a permission is for the policy that it was given with
            lose = self.state.may_lose_work and wanted == self.state.policy_text
        if (wanted, lose) != (self.state.policy_text, self.state.may_lose_work):
            make_policy(wanted)
            self.do({"type": "PolicySet", "at_s": self.begin_s, "policy": wanted, "may_lose_work": lose})
        self._flush()

    def _restored(self) -> State:
        data, tail = self.store.load()
        state = State() if data is None else State.from_json(data)
        for row in tail:
            if row.seq != state.seq + 1:
                raise PlaitError(f"the log has entry {row.seq} where {state.seq + 1} was expected; restore a backup")
            state.apply(entry_from_json(json.loads(row.entry)))
            self.snapshots.weight += 1
        state.touched.clear()
        state.jobs = {number: job for number, job in state.jobs.items() if not self._is_over(state, job)}
        return state

    # -- what happens ---------------------------------------------------------------------------------

    def do(self, entry: Entry) -> Sequence[Command]:
        """Let something happen: change the state and note it for the next commit.

        Raises `InputError`, having changed nothing, for what no store and no reader can hold.
        """
        if isinstance(entry, dict):
            check_entry(entry)
        try:
            commands = self.state.apply(entry)
            self._write_down(entry, commands)
        except BaseException:
            self.broken = True  # half of the entry may have been taken: only the log knows the truth now
            raise
        return commands

    def _write_down(self, entry: Entry, commands: Sequence[Command]) -> None:
        state, note = self.state, isinstance(entry, dict)
        data: Mapping[str, Any] = entry if isinstance(entry, dict) else to_json(entry)
        about: list[int] = []
        if isinstance(entry, dict):
            about = [entry["job"]] if "job" in entry else []
            if entry["type"] == "AttemptOver" and (attempt := state.jobs[entry["job"]].attempt) is not None:
                self.over.append(attempt)
            if entry["type"] == "Requested":
                about = list(range(entry["first"], entry["first"] + len(entry["requests"])))
        elif not isinstance(entry, ProgressReported):
            about = jobs_of(entry)
        for command in commands:
            about += jobs_of(command)
        done = json.dumps([to_json(c) for c in commands], separators=(",", ":"), allow_nan=False)
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        self._rows.append(Row(state.seq, state.now_s, data["type"], text, done, tuple(about)))
        self.snapshots.weight += 1 + (0 if note or not isinstance(entry, ReplanDue) else len(state.jobs) / 20)
        if not isinstance(entry, _QUIET) and data["type"] not in _QUIET_NOTES:
            self.stale = True

    @contextmanager
    def batch(self) -> Iterator[Engine]:
        """One commit for all that is done inside; nothing done inside may be acted on before the end."""
        self._batching = True
        try:
            yield self
        finally:
            self._batching = False
        self._flush()

    def step(self, now: float) -> float:
        """Inside a batch: what `tick` does, without a commit of its own."""
        return self.rounds.advance(self.clock(now))

    def _flush(self) -> None:
        """Write what happened; then fence new attempts."""
        if self._batching:
            return
        state = self.state
        if self._rows or state.touched or self.touched_nodes or self._projects:
            keep = self.snapshots.take(state)
            begin = time.perf_counter()
            try:
                self.store.commit(self._rows, views.changed(self, self.touched_nodes, self._projects), keep)
            except BaseException:
                self.broken = True
                raise
            self.commits_s.append(time.perf_counter() - begin)
            self.outcomes.update(attempt.outcome for attempt in self.over)
            self._forget()
            self._rows, self.over = [], []
            self.touched_nodes, self._projects = set(), {}
            self.assigner.changed()
        self._raise_fences()

    def _forget(self) -> None:
        """Jobs that have ended and of which nothing runs are in the store from now on."""
        for number in self.state.touched:
            job = self.state.jobs.get(number)
            if job is not None and self._is_over(self.state, job):
                self.left.append((self.state.phase(job).name.lower(), self._jct_s(job)))
                del self.state.jobs[number]
                if not job.cancelled:
                    self.open_jobs.remove(job.owner, job.project)
        self.state.touched.clear()

    @staticmethod
    def _is_over(state: State, job: JobRecord) -> bool:
        return job.admitted and not job.live and state.phase(job) > Phase.RUNNING

    def _jct_s(self, job: JobRecord) -> float:
        controller = self.state.controller
        end_s = math.nan if controller is None else float(controller.books.columns["end_s"][job.number])
        return max((self.now_s if math.isnan(end_s) else end_s) - job.created_s, 0.0)

    def _raise_fences(self) -> None:
        """Attempts are assigned only once older ones cannot commit a checkpoint any more; a full disk means later."""
        for number in sorted(self.unfenced):
            job = self.state.jobs.get(number)
            attempt = job.live if job else None
            if job is not None and attempt is not None:
                try:
                    self._fence(number, attempt.epoch, job.first_epoch)
                except OSError as error:
                    self.unfenced[number] = str(error)
                    continue
            del self.unfenced[number]
            self.assigner.changed()

    def next_epoch(self, job: JobRecord) -> int:
        """The epoch of a job's next attempt; see `Fences`."""
        return self.fences.next_epoch(job)

    def report_progress(self, now: float, only: Sequence[int] | None = None) -> None:
        """Tell the controller what agents have measured about running jobs."""
        self.rounds.report_progress(now, only)

    def _go_on(self, now: float) -> None:
        """After something happened: what follows from it, and the commit."""
        self.rounds.advance(now)
        self._flush()

    def clock(self, now: float) -> float:
        """Time never goes back, whatever the caller's clock does."""
        self.now_s = max(now, self.now_s)
        return self.now_s

    # -- users ----------------------------------------------------------------------------------------

    def submit(
        self, requests: Sequence[Mapping[str, Any]], *, owner: str, now: float, key: str | None = None
    ) -> list[int]:
        """New jobs, all or none; returns their numbers. Raises `InputError` for one that cannot be.

        The same owner's submission of the same `key` was this one, asked again: it has its jobs already.
        """
        now, state = self.clock(now), self.state
        if (before := state.submissions.find(owner, key, requests)) is not None:
            return before
        first = state.numbers
        projects = [request.get("project") or "default" for request in requests]
        self.open_jobs.check(owner, projects, self.options)
        for i, request in enumerate(requests):
            if not request.get("command"):
                raise InputError("command is empty; give the program and its arguments")
            project = projects[i]
            spec = self.spec(first + i, request, owner, project, now)
            self._check_room(spec, request, now)
            quota = state.projects.get(project, {}).get("gpu_quota")
            if quota is not None and spec.gpus > quota:
                raise InputError(f"needs {counted(spec.gpus, 'GPU')}; the quota of project {project} is {quota}")
        if requests:
            rows = [dict(r) for r in requests]
            said = {} if key is None else {"key": key}
            self.do({"type": "Requested", "at_s": now, "first": first, "owner": owner, "requests": rows, **said})
            self.open_jobs.add(owner, projects)
            self._go_on(now)
        return list(range(first, first + len(requests)))

    def check_project(self, name: str) -> None:
        """Raise `InputError` for a project that nobody made."""
        if name not in (known := {"default": None, **self.state.projects}):
            raise InputError(f"no project {name!r}; {suggest(name, known)}, or make it with: plait project set {name}")

    def room(self, request: Mapping[str, Any]) -> int:
        """GPUs of the cluster that a job may wait for, beyond the nodes that there are."""
        return ANY_SIZE if request.get("wait_for_nodes") else self.options.most_gpus

    def _check_room(self, spec: JobSpec, request: Mapping[str, Any], now: float) -> None:
        """Refuse a job that no node has room for, nor any that may come; while nodes join nobody knows."""
        controller = self.state.controller
        if controller is None or now < self.rounds.settle_s:
            return
        why = refusal(spec, controller.cluster, self.room(request))
        if why is not None:
            raise InputError(f"{why}; ask for less, or wait for nodes that are not there yet with --wait-for-nodes")

    def spec(self, number: int, request: Mapping[str, Any], owner: str, project: str, submit_s: float) -> JobSpec:
        """A request as the policies see it; raises `InputError` for a job that cannot be."""
        state = self.state
        kinds = () if state.controller is None else state.controller.cluster.kinds
        weight = float(state.projects.get(project, {}).get("weight") or 1.0)
        return spec_of(
            number, request, owner=owner, project=project, submit_s=submit_s, weight=weight, kinds=kinds,
            learnt=state.learnt,
        )  # fmt: skip

    def remarks(self, request: Mapping[str, Any]) -> list[str]:
        """What a request asks for and the policy of now ignores, a sentence each."""
        policy = self.state.policy
        priority, deadline_s = float(request.get("priority") or 0.0), request.get("deadline_s")
        return [] if policy is None else remarks(self.state.policy_text, policy, priority, deadline_s)

    def cancel(self, number: int, now: float) -> None:
        """Take a job back; what runs of it is stopped. `Conflict` if it has ended, `LookupError` if it never was."""
        now = self.clock(now)
        if not 0 <= number < self.state.numbers:
            raise LookupError(f"no job {job_name(number)}")
        job = self.state.jobs.get(number)
        if job is None or self.state.phase(job) > Phase.RUNNING:
            raise Conflict(f"job {job_name(number)} has already ended")
        if job.admitted:
            self.do(JobCancelled(now, np.array([number])))
        else:
            self.do({"type": "CancelAsked", "at_s": now, "job": number})
            self.open_jobs.remove(job.owner, job.project)  # it stays until a node joins, and is no open job for so long
        self._go_on(now)

    def foreseen(
        self, number: int, start: Sequence[float | None] | None, end: Sequence[float | None], now: float
    ) -> None:
        """Keep what a client forecast of a job: early end, middle and late end, seconds from now, None for never.

        The first forecast of a job counts; `start` is None of one that runs. `LookupError` for one that has ended.
        """
        now = self.clock(now)
        job = self.state.jobs.get(number)
        if job is None or self.state.phase(job) > Phase.RUNNING:
            raise LookupError(f"job {job_name(number)} has ended")
        if number in self.state.record.open:
            return
        told = None if start is None or job.live is not None else list(start)
        self.do({"type": "Foreseen", "at_s": now, "job": number, "start": told, "end": list(end)})
        self._go_on(now)

    # -- operators ------------------------------------------------------------------------------------

    def set_policy(self, text: str, now: float, *, may_lose_work: bool = False) -> None:
        """Decide by another policy from now on; `InputError` if there is none of that name.

        `may_lose_work`: it may stop jobs that cannot go on from a checkpoint.
        """
        now = self.clock(now)
        make_policy(text)
        self.do({"type": "PolicySet", "at_s": now, "policy": text, "may_lose_work": may_lose_work})
        self._go_on(now)

    def set_project(self, name: str, *, gpu_quota: int | None, weight: float, now: float) -> None:
        """Make or change a project: at most `gpu_quota` GPUs at once (None = no limit), its weight in fair policies."""
        if gpu_quota is not None and gpu_quota < 0:
            raise InputError(f"gpu_quota is {gpu_quota}, needs a whole number >= 0, or null for no limit")
        if not (math.isfinite(weight) and weight > 0):
            raise InputError(f"weight is {weight}, needs a number > 0")
        self._project(name, {"gpu_quota": gpu_quota, "weight": weight}, now)

    def drop_project(self, name: str, now: float) -> None:
        """Forget a project's quota and weight; its jobs stay."""
        if name not in self.state.projects:
            raise LookupError(f"no project {name!r}")
        self._project(name, None, now)

    def _project(self, name: str, project: dict[str, Any] | None, now: float) -> None:
        now = self.clock(now)
        values = {"gone": True} if project is None else project
        self.do({"type": "ProjectSet", "at_s": now, "name": name, **values})
        self._projects[name] = project
        self._go_on(now)

    def drain(self, node: str, now: float) -> None:
        """Take a node out: no new work, and what runs there stops after a checkpoint and goes on elsewhere."""
        record, now = self._node(node), self.clock(now)
        if not record.drained:
            if not record.lost:
                self.do(NodeLost(now, node))
            self.do({"type": "NodeDrained", "at_s": now, "node": node, "drained": True})
        self.touched_nodes.add(node)
        self._go_on(now)

    def resume(self, node: str, now: float) -> None:
        """Let a drained node work again."""
        record, now = self._node(node), self.clock(now)
        if record.drained:
            self.do({"type": "NodeDrained", "at_s": now, "node": node, "drained": False})
            if not record.lost and not record.leaving:
                self.do(NodeJoined(now, hardware(record)))
                self.rounds.look()  # it may be silent
        self.touched_nodes.add(node)
        self._go_on(now)

    def node_gone(self, node: str, why: str, now: float, *, certain: bool = True) -> None:
        """Its backend says that a node is dead: it is lost at once if it is silent, or as soon as it is.

        What it says itself counts for more: one that is still heard of is not lost. Where it is not `certain` that
        nothing runs there any more (it may only be out of reach), its lease is waited for all the same.
        """
        record, now = self._node(node), self.clock(now)
        if not record.gone or (certain and not record.dead):
            record.gone, record.dead, self.stale = why or "its backend says so", certain, True
            self.rounds.look()
        self._go_on(now)

    def forget_node(self, node: str, now: float) -> None:
        """Take a node that will not come back out of the lists; `Conflict` while it may still run something."""
        record, now = self._node(node), self.clock(now)
        here = [n for n in sorted(self.live) if (a := self.state.jobs[n].live) and any(r.node == node for r in a.ranks)]
        if here:
            jobs = ", ".join(job_name(n) for n in here[:5])
            raise Conflict(f"node {node!r} may still run {jobs}; it can be forgotten once they go on elsewhere")
        silent = now - record.heard_s >= self.options.suspect_s
        if not record.lost and not (silent and (record.drained or record.leaving)):
            raise Conflict(
                f"node {node!r} is {record.state} and its agent still reports; end its agent first, with SIGTERM, and "
                "forget it when `plait nodes` shows it as left or lost"
            )
        self.do({"type": "NodeForgotten", "at_s": now, "node": node})
        self.assigner.forget(node)
        self.touched_nodes.add(node)
        self._go_on(now)

    def _node(self, node: str) -> NodeRecord:
        record = self.state.nodes.get(node)
        if record is None:
            known = ", ".join(self.state.nodes) or "none yet"
            raise LookupError(f"no node {node!r}; there are: {known}")
        return record

    # -- agents ---------------------------------------------------------------------------------------

    def observe(self, seen: Observed, now: float, address: str = "127.0.0.1") -> Assignment:
        """Take what an agent sees, answer what should be there.

        Inside a `batch` what follows from it is left to `step`, once for all that report, and `assignment` tells after
        the batch.
        """
        now = self.clock(now)
        hear(self, seen, now, address)
        if not self._batching:
            self._go_on(now)
        return self.assignment(seen.node.id, seen.agent)

    def assignment(self, node: str, agent: str | None = None) -> Assignment:
        """What a node should run as of the last commit; nothing for an agent whose node another one has taken."""
        return self.assigner.assignment(node, agent)

    # -- time -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what is due; returns when there will be something to do even if nothing happens before."""
        now = self.clock(now)
        wake_s = self.rounds.advance(now)
        self._flush()
        return wake_s

    # -- looking --------------------------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """The cluster in a few numbers."""
        return views.status(self, self.clock(now))

    def nodes(self, now: float) -> list[dict[str, Any]]:
        """Each node: hardware, state, usage, and who is on its GPUs."""
        return views.nodes(self, self.clock(now))

    def explain(self, number: int, now: float) -> dict[str, Any]:
        """Why a job waits, or how it runs; see `plait.live.scheduler.explain.waiting`."""
        from plait.live.scheduler.explain.waiting import explain

        return explain(self, number, self.clock(now))

    def state_for_forecast(self, now: float) -> Callable[[], dict[str, Any]]:
        """What a forward simulation needs: taken down now, made into JSON values by the function returned."""
        return views.forecast(self, self.clock(now))

    def fields(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What only memory knows of those of these jobs that have not ended."""
        return {n: views.live_fields(self, n) for n in numbers if n in self.state.jobs}
