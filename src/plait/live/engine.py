"""The live scheduler without sockets, threads or clocks: messages and times in, assignments out.

    engine = Engine(store, Layout.at(home), now=0.0, policy="muri-l")
    number, = engine.submit([{"command": ["python", "train.py"]}], owner="ann", now=1.0)
    assignment = engine.observe(observed, now=1.2)          # what an agent saw -> what should run there
    wake_s = engine.tick(now=2.0)

Everything that happens becomes an entry of the log (`plait.live.state`), is written to the store, and only then acted
on: epochs are fenced and assignments made after the commit. Inside `with engine.batch():` many operations share one
commit; what they return may be told to others after the block.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from plait.control.books import refusal
from plait.control.messages import (
    Command,
    JobCancelled,
    JobProfiled,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    ProgressReported,
    ReplanDue,
    from_json,
    to_json,
)
from plait.core.cluster import Node
from plait.core.errors import InputError, PlaitError
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.live import views
from plait.live.assign import Assigner
from plait.live.attempts import NOT_STARTED, Attempt, JobRecord, NodeRecord
from plait.live.layout import Layout, job_name, make_private
from plait.live.options import Options
from plait.live.reconcile import reconcile
from plait.live.requests import profile_key, spec_of
from plait.live.sane import check_node, sane_profile, sane_seen
from plait.live.state import Entry, State, jobs_of
from plait.live.store import Entry as Row
from plait.live.store import Store
from plait.live.wire import ENDED, STARTING, STATES, Assignment, Observed, Profile, Seen
from plait.policies.catalog import make_policy

DEFAULT_POLICY = "muri-l"
#: Nodes are looked at this often at most, seconds.
WATCH_S = 0.25
#: Coming so many seconds later than was asked for means that the process stood still.
LATE_S = 0.5
#: A stage or iteration time counts as changed from this share on.
DRIFT = 0.2
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUIET = (ProgressReported, JobSubmitted, JobProfiled)


class Conflict(InputError):
    """What was asked for does not go with the state of things, e.g. cancelling a job that has ended."""


class Engine:
    """See the module. After a `StoreError` from a commit the engine is ahead of the store: make a new one."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        *,
        now: float,
        policy: str | None = None,
        options: Options | None = None,
        fence: Callable[[int, int], None] | None = None,
    ) -> None:
        """Go on from the store. `fence(job, epoch)` makes older attempts of a job unable to commit a checkpoint."""
        self.store, self.layout, self.options = store, layout, options or Options()
        self._fence = fence or self._write_epoch
        self.weight = 0.0
        self.broken = False
        #: False while what decisions need is still being compiled: all else goes on.
        self.ready = True
        self.state = self._restored()
        self.begin_s = self.now_s = max(now, self.state.now_s)
        for node in self.state.nodes.values():
            node.heard_s = self.begin_s
        self.term = store.next_term()
        self.live = {job.number for job in self.state.jobs.values() if job.live}
        self.unfenced = set(self.live)
        self._rows: list[Row] = []
        #: Attempts over since the last commit: their jobs may have begun others in the meantime.
        self.over: list[Attempt] = []
        self._projects: dict[str, dict[str, Any] | None] = {}
        self._nodes: set[str] = set(self.state.nodes)
        self._batching = False
        self._stale = True
        self._settle_s = self.begin_s + self.options.settle_s
        self._watched_s = self._reported_s = -math.inf
        self._due_s = math.inf
        #: Whether attempts are to stop after their first step.
        self.deferred = False
        self.assigner = Assigner(self)
        wanted = policy or self.state.policy_text or DEFAULT_POLICY
        if wanted != self.state.policy_text:
            make_policy(wanted)
            self.do({"type": "PolicySet", "at_s": self.begin_s, "policy": wanted})
        self._flush()

    def _restored(self) -> State:
        data, tail = self.store.load()
        state = State() if data is None else State.from_json(data)
        for row in tail:
            if row.seq != state.seq + 1:
                raise PlaitError(f"the log has entry {row.seq} where {state.seq + 1} was expected; restore a backup")
            state.apply(entry_from_json(row.entry))
            self.weight += 1
        state.touched.clear()
        return state

    # -- what happens ---------------------------------------------------------------------------------

    def do(self, entry: Entry) -> Sequence[Command]:
        """Let something happen: change the state and note it for the next commit."""
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
        self.weight += 1 + (0 if note or not isinstance(entry, ReplanDue) else len(state.jobs) / 20)
        if not isinstance(entry, _QUIET) and data["type"] not in ("Requested", "Learnt", "ProjectSet", "PolicySet"):
            self._stale = True

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
        return self.advance(self.clock(now))

    def _flush(self) -> None:
        """Write what happened; then fence new attempts."""
        if self._batching:
            return
        state = self.state
        if self._rows or state.touched or self._nodes or self._projects:
            keep = (state.seq, state.to_json()) if self.weight >= self.options.snapshot_weight else None
            try:
                self.store.commit(self._rows, views.changed(self, self._nodes, self._projects), keep)
            except BaseException:
                self.broken = True
                raise
            self.weight = 0.0 if keep else self.weight
            self._forget()
            self._rows, self.over = [], []
            self._nodes, self._projects = set(), {}
            self.assigner.changed()
        self._raise_fences()

    def _forget(self) -> None:
        """Jobs that have ended and of which nothing runs are in the store from now on."""
        for number in self.state.touched:
            job = self.state.jobs.get(number)
            if job is not None and job.admitted and not job.live and self.state.phase(job) > Phase.RUNNING:
                del self.state.jobs[number]
        self.state.touched.clear()

    def _raise_fences(self) -> None:
        """Attempts are assigned only once older ones cannot commit a checkpoint any more; a full disk means later."""
        for number in sorted(self.unfenced):
            job = self.state.jobs.get(number)
            attempt = job.live if job else None
            if attempt is not None:
                try:
                    self._fence(number, attempt.epoch)
                except OSError:
                    continue
            self.unfenced.discard(number)
            self.assigner.changed()

    def next_epoch(self, job: JobRecord) -> int:
        """Above every one that the job's folder has seen, which may be more than a store knows that was put back.

        A job that never ran has no folder: what is there is of another one of its number, and is put aside.
        """
        reached = self._epoch_on_disk(job.number)
        if reached and not job.epoch:
            folder = self.layout.job(job.number)
            aside = make_private(folder / f"before-{reached}")
            for path in [p for p in folder.iterdir() if p.name != "EPOCH" and not p.name.startswith("before-")]:
                path.replace(aside / path.name)
        return max(reached, job.epoch) + 1

    def _epoch_on_disk(self, number: int) -> int:
        try:
            return int(self.layout.epoch_file(number).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _write_epoch(self, number: int, epoch: int) -> None:
        path = self.layout.epoch_file(number)
        make_private(path.parent)
        if self._epoch_on_disk(number) >= epoch:
            return
        part = path.with_name(path.name + ".part")
        with open(part, "w", encoding="ascii") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def clock(self, now: float) -> float:
        """Time never goes back, whatever the caller's clock does."""
        self.now_s = max(now, self.now_s)
        return self.now_s

    # -- users ----------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Mapping[str, Any]], *, owner: str, now: float) -> list[int]:
        """New jobs, all or none; returns their numbers. Raises `InputError` for one that cannot be."""
        now, state = self.clock(now), self.state
        first = state.numbers
        for i, request in enumerate(requests):
            if not request.get("command"):
                raise InputError("command is empty; give the program and its arguments")
            project = request.get("project") or "default"
            spec = self._spec(first + i, request, owner, project, now)
            quota = state.projects.get(project, {}).get("gpu_quota")
            if quota is not None and spec.gpus > quota:
                raise InputError(f"needs {spec.gpus} GPUs; the quota of project {project} is {quota}")
        if requests:
            rows = [dict(r) for r in requests]
            self.do({"type": "Requested", "at_s": now, "first": first, "owner": owner, "requests": rows})
            self.advance(now)
            self._flush()
        return list(range(first, first + len(requests)))

    def _spec(self, number: int, request: Mapping[str, Any], owner: str, project: str, submit_s: float) -> JobSpec:
        state = self.state
        kinds = () if state.controller is None else state.controller.cluster.kinds
        weight = float(state.projects.get(project, {}).get("weight") or 1.0)
        return spec_of(
            number, request, owner=owner, project=project, submit_s=submit_s, weight=weight, kinds=kinds,
            learnt=state.learnt,
        )  # fmt: skip

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
        self.advance(now)
        self._flush()

    # -- operators ------------------------------------------------------------------------------------

    def set_policy(self, text: str, now: float) -> None:
        """Decide by another policy from now on; `InputError` if there is none of that name."""
        now = self.clock(now)
        make_policy(text)
        self.do({"type": "PolicySet", "at_s": now, "policy": text})
        self.advance(now)
        self._flush()

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
        self.advance(now)
        self._flush()

    def drain(self, node: str, now: float) -> None:
        """Take a node out: no new work, and what runs there stops after a checkpoint and goes on elsewhere."""
        record, now = self._node(node), self.clock(now)
        if not record.drained:
            if not record.lost:
                self.do(NodeLost(now, node))
            self.do({"type": "NodeDrained", "at_s": now, "node": node, "drained": True})
        self._nodes.add(node)
        self.advance(now)
        self._flush()

    def resume(self, node: str, now: float) -> None:
        """Let a drained node work again."""
        record, now = self._node(node), self.clock(now)
        if record.drained:
            self.do({"type": "NodeDrained", "at_s": now, "node": node, "drained": False})
            if not record.lost:
                self.do(NodeJoined(now, self._hardware(record)))
        self._nodes.add(node)
        self.advance(now)
        self._flush()

    def _node(self, node: str) -> NodeRecord:
        record = self.state.nodes.get(node)
        if record is None:
            known = ", ".join(self.state.nodes) or "none yet"
            raise LookupError(f"no node {node!r}; there are: {known}")
        return record

    @staticmethod
    def _hardware(record: NodeRecord) -> Node:
        info = record.info
        assert info is not None
        memory = int(info.gpu_memory_bytes)
        return Node(info.id, info.gpus, info.gpu_kind, memory, info.cpus, info.memory_bytes, info.rack)

    # -- agents ---------------------------------------------------------------------------------------

    def observe(self, seen: Observed, now: float, address: str = "127.0.0.1") -> Assignment:
        """Take what an agent sees, answer what should be there. Inside a `batch` ask `assignment` after it instead."""
        now = self.clock(now)
        node = self._hear(seen, now, address)
        self._notice(node, seen, now)
        self.advance(now)
        self._flush()
        return self.assignment(seen.node.id, seen.agent)

    def assignment(self, node: str, agent: str | None = None) -> Assignment:
        """What a node should run as of the last commit; nothing for an agent whose node another one has taken."""
        return self.assigner.assignment(node, agent)

    def _hear(self, seen: Observed, now: float, address: str) -> NodeRecord:
        info, state = seen.node, self.state
        if not _NODE_NAME.fullmatch(info.id):
            raise InputError(f"a node cannot be called {info.id!r}; use letters, digits, '.', '_' and '-'")
        check_node(info)
        record = state.nodes.get(info.id)
        if record is not None and record.info is not None and record.info.gpus != info.gpus:
            raise Conflict(
                f"node {info.id!r} came back with {info.gpus} GPUs, had {record.info.gpus}; give it another name"
            )
        if record is None:
            self.do(NodeJoined(now, self._hardware(NodeRecord(info.id, info=info))))
            self._settle_s = now + self.options.settle_s
            self._nodes.add(info.id)
            record = state.nodes[info.id]
        # After a restart nobody is known: words of an earlier term are late once the node's agent speaks in this one.
        late = 0 < seen.term < self.term and record.reached > 0
        fresh = seen.agent not in record.agents and not late
        if fresh:
            record.agents.add(seen.agent)
            record.agent, record.reached = seen.agent, 0
        if seen.agent != record.agent:
            return record  # late words of an agent process that was replaced
        if record.lost:
            back = {"type": "NodeDrained", "at_s": now, "node": info.id, "drained": True}
            self.do(back if record.drained else NodeJoined(now, self._hardware(record)))
            self._nodes.add(info.id)
        if record.suspect:
            record.suspect, self._stale = False, True
            self._nodes.add(info.id)
            self.touch_node(info.id)
        record.heard_s, record.address, record.usage = now, address, seen.usage
        if seen.term == self.term:
            record.reached = max(record.reached, seen.reached)
        if fresh:
            self._miss(record, seen, now)
        return record

    def _miss(self, node: NodeRecord, seen: Observed, now: float) -> None:
        """A new agent process took over from a journal; what it does not know of has not survived."""
        listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
        for number in sorted(self.live):
            attempt = self.state.jobs[number].live
            for i, rank in enumerate(attempt.ranks if attempt else ()):
                known = rank.node == node.id and rank.seen is not None and not rank.ended
                if attempt and known and rank.seen is not None and rank.seen.state == STARTING:
                    rank.seen = None  # it waited for its GPUs and had no process: nothing is lost
                    continue
                if attempt and known and (number, attempt.epoch, i) not in listed:
                    self._ended(number, attempt.epoch, i, None, "the agent has lost track of it", True, now)

    def _notice(self, node: NodeRecord, seen: Observed, now: float) -> None:
        for one in seen.attempts:
            self._see(node, one, now)
        if seen.agent != node.agent or seen.term != self.term:
            return
        listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
        for number, epoch, rank in self.assigner.stopped_at(node.id, seen.reached):
            if (number, epoch, rank) not in listed:
                self._ended(number, epoch, rank, None, "it was not running", False, now)

    def _see(self, node: NodeRecord, seen: Seen, now: float) -> None:
        job = self.state.jobs.get(seen.job)
        attempt = job.live if job else None
        if job is None or attempt is None or attempt.epoch != seen.epoch or not 0 <= seen.rank < len(attempt.ranks):
            return  # of an attempt that is over or was replaced: it is not assigned, so the agent stops it
        rank = attempt.ranks[seen.rank]
        if rank.node != node.id or rank.ended or seen.state not in STATES:
            return
        seen = sane_seen(seen)
        before = rank.seen
        if before is not None:
            if STATES.index(seen.state) < STATES.index(before.state):
                return  # an old message
            seen = replace(seen, held_s=max(seen.held_s, before.held_s), steps=max(seen.steps, before.steps))
        rank.seen = seen
        if before is None or before.state != seen.state:
            self.state.touched.add(seen.job)
        if seen.rank == 0:
            self._learn(job, attempt.ranks[0].node, seen, now)
        if seen.state == ENDED:
            started = seen.pid != 0 or seen.exit_code not in NOT_STARTED
            self._ended(seen.job, seen.epoch, seen.rank, seen.exit_code, seen.reason, started, now)

    def _ended(
        self, job: int, epoch: int, rank: int, exit_code: int | None, reason: str | None, started: bool, now: float
    ) -> None:
        self.do(
            {
                "type": "RankEnded", "at_s": now, "job": job, "epoch": epoch, "rank": rank, "exit_code": exit_code,
                "reason": reason, "started": started,
            }
        )  # fmt: skip

    def _learn(self, job: JobRecord, node: str, seen: Seen, now: float) -> None:
        """A profile measured alone: for the job itself and for later ones like it."""
        info = self.state.nodes[node].info
        if info is None or self.state.controller is None:
            return
        key = profile_key(job.request, info.gpu_kind)
        known = self.state.learnt.get(key, {})
        if seen.skew is not None and 0 < seen.skew <= 1 and known.get("skew") != seen.skew:
            self.do({"type": "Learnt", "at_s": now, "key": key, "skew": seen.skew})
        profile = seen.profile
        if profile is None or not sane_profile(profile) or self.state.phase(job) > Phase.RUNNING:
            return
        columns = self.state.controller.books.columns
        if _differs(profile, columns["stage_s"][job.number].tolist(), float(columns["iteration_s"][job.number])):
            stage_s, iteration_s = [float(x) for x in profile.stage_s], float(profile.iteration_s)
            self.do(JobProfiled(now, np.array([job.number]), np.array([iteration_s]), np.array([stage_s])))
            self.do({"type": "Learnt", "at_s": now, "key": key, "stage_s": stage_s, "iteration_s": iteration_s})
            self.state.touched.add(job.number)

    def touch_node(self, node: str) -> None:
        """Jobs on a node are shown differently from now on."""
        for number in self.live:
            attempt = self.state.jobs[number].live
            if attempt and any(r.node == node for r in attempt.ranks):
                self.state.touched.add(number)

    # -- time -----------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what is due; returns when there will be something to do even if nothing happens before."""
        now = self.clock(now)
        wake_s = self.advance(now)
        self._flush()
        return wake_s

    def advance(self, now: float) -> float:
        """Nodes, admission, attempts, decision, in this order; returns when to come again."""
        self._excuse(now)
        if now >= self._watched_s + WATCH_S:
            self._watch(now)
        if self.state.pending:
            self._admit(now)
        self._stale |= self.deferred
        self._settle(now)
        if now >= self._decision_s():
            self.report_progress(now)
            self.do(ReplanDue(now))
            self._settle(now)
        elif self.live and now >= self._reported_s + self.options.progress_s:
            self.report_progress(now)
        self._due_s = self._wake_s(now)
        return self._due_s

    def _excuse(self, now: float) -> None:
        """Nobody was heard while this process itself stood still (stopped, suspended, no CPU): that is no silence."""
        late_s = now - self._due_s
        if late_s > LATE_S:
            for node in self.state.nodes.values():
                node.heard_s = min(now, node.heard_s + late_s)

    def _settle(self, now: float) -> None:
        while self._stale:
            self._stale = False
            reconcile(self, now)

    def _watch(self, now: float) -> None:
        self._watched_s = now
        for node in list(self.state.nodes.values()):
            silent_s = now - node.heard_s
            if not node.lost and silent_s >= self.options.lost_s:
                node.suspect = False
                self.do(NodeLost(now, node.id))
            elif not node.lost and not node.suspect and silent_s >= self.options.suspect_s:
                node.suspect = True
            else:
                continue
            self._nodes.add(node.id)
            self.touch_node(node.id)

    def _admit(self, now: float) -> None:
        """Tell the controller of new jobs, in order. The first that fits no node yet holds up those behind it."""
        state = self.state
        controller = state.controller
        if controller is None:
            return
        specs: list[JobSpec] = []
        waits = now < self._settle_s
        for number in state.pending:
            job = state.jobs[number]
            spec = self._spec(number, job.request, job.owner, job.project, job.created_s)
            if waits and not job.cancelled and refusal(spec, controller.cluster) is not None:
                break
            specs.append(spec)
        if not specs:
            return
        first = controller.books.count
        self.do(JobSubmitted(now, first, JobBatch.of(specs)))
        for number in range(first, first + len(specs)):
            job = state.jobs[number]
            if job.cancelled and state.phase(job) <= Phase.RUNNING:
                self.do(JobCancelled(now, np.array([number])))

    def report_progress(self, now: float, only: Sequence[int] | None = None) -> None:
        """Tell the controller what agents have measured about running jobs."""
        controller = self.state.controller
        if controller is None:
            return
        columns = controller.books.columns
        rows = []
        for number in sorted(self.live) if only is None else only:
            job = self.state.jobs[number]
            attempt = job.live
            if attempt is None or attempt.lead is None or columns["phase"][number] > Phase.RUNNING:
                continue
            steps = attempt.steps
            done = float(columns["iterations_done"][number]) if steps is None else steps
            ran = max(float(columns["run_s"][number]), job.held_s + attempt.held_s)
            service = job.held_gpu_s + attempt.held_s * len(attempt.gpus)
            pace = attempt.lead.step_s
            served = max(float(columns["attained_gpu_s"][number]), service)
            rows.append((number, done, served, ran, math.nan if pace is None or not pace > 0 else pace))
        if only is None:
            self._reported_s = now
        if rows:
            jobs = np.array([r[0] for r in rows], dtype=np.int64)
            done_, attained, ran_, paces = (np.array([r[i] for r in rows]) for i in range(1, 5))
            self.do(ProgressReported(now, jobs, done_, attained, ran_, paces))

    def _decision_s(self) -> float:
        """When the next decision is due."""
        controller = self.state.controller
        if controller is None or not self.ready:
            return math.inf
        pause = max(self.options.round_s, 5.0) if self.state.policy_error else self.options.round_s
        earliest = self.state.decision_s + pause
        return earliest if controller.changed else max(earliest, controller.plan.valid_until_s)

    def _wake_s(self, now: float) -> float:
        times = [self._decision_s()]
        if self.state.pending and now < self._settle_s:
            times.append(self._settle_s)
        if self.live:
            times.append(self._reported_s + self.options.progress_s)
        if self.unfenced or self.deferred:
            times.append(now + 1.0)
        for node in self.state.nodes.values():
            if not node.lost:
                limit = self.options.lost_s if node.suspect else self.options.suspect_s
                times.append(max(node.heard_s + limit, self._watched_s + WATCH_S))
        return max(min(times, default=math.inf), now)

    # -- looking --------------------------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """The cluster in a few numbers."""
        return views.status(self, self.clock(now))

    def nodes(self, now: float) -> list[dict[str, Any]]:
        """Each node: hardware, state, usage, and who is on its GPUs."""
        return views.nodes(self, self.clock(now))

    def explain(self, number: int, now: float) -> dict[str, Any]:
        """Why a job waits, or how it runs; see `plait.live.explain`."""
        from plait.live.explain import explain

        return explain(self, number, self.clock(now))

    def state_for_forecast(self, now: float) -> dict[str, Any]:
        """Everything a forward simulation needs: cluster, policy, unfinished jobs, who runs where."""
        return views.forecast(self, self.clock(now))

    def fields(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What only memory knows of those of these jobs that have not ended."""
        return {n: views.live_fields(self, n) for n in numbers if n in self.state.jobs}


def entry_from_json(text: str) -> Entry:
    """An entry of the log as `State.apply` takes it."""
    data = json.loads(text)
    return data if data["type"] in NOTES else from_json(data)  # type: ignore[return-value]


NOTES = frozenset(State()._notes)


def _differs(profile: Profile, stage_s: Sequence[float], iteration_s: float) -> bool:
    """Whether the books know nothing of the job, or something a good deal different."""
    if math.isnan(iteration_s) or any(math.isnan(t) for t in stage_s):
        return True
    pairs = [(profile.iteration_s, iteration_s), *zip(profile.stage_s, stage_s, strict=True)]
    return any(abs(new - old) > DRIFT * iteration_s for new, old in pairs)
