"""Everything the service knows that matters. It follows from the log alone: `fold.apply` takes an entry into it."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.snapshot import frozen, restore
from plait.core.arrays import IntArray
from plait.core.errors import Conflict, PlaitError
from plait.core.jobs import Phase
from plait.core.policy import Policy
from plait.core.preemption import DEFAULT_RULE, PreemptionRule
from plait.live.layout import array_index
from plait.live.protocol.arrays import all_members, array_of
from plait.live.protocol.requests import PROJECT_TIME
from plait.live.protocol.wire import NodeInfo
from plait.live.scheduler.live_policy import AGGREGATES, GUESTS_PER_GPU, KILLS, made
from plait.live.scheduler.records.attempts import Attempt, JobRecord, NodeRecord
from plait.live.scheduler.records.groups import GroupBook
from plait.live.scheduler.records.network import NetworkBook
from plait.live.scheduler.records.notes import Requested, RequeueAsked, UpdateAsked
from plait.live.scheduler.records.track_record import TrackRecord
from plait.policies.quotas import Quotas, within

_VERSION = 1
#: So many jobs that left last are kept whole: forecasts take them for what is typical here.
RECENT = 200
_RUNNING = int(Phase.RUNNING)


class State:
    """Jobs, attempts, nodes, projects, the controller and its policy. There is no controller before a node is.

    `live`: jobs with an attempt that is not over. `touched`, `touched_nodes`: jobs and nodes with a change to show; the
    reader empties these.
    """

    def __init__(self) -> None:
        self.controller: Controller | None = None
        self.policy_text = ""
        self.policy: Policy | None = None
        #: Whether an operator lets policies stop jobs that cannot resume from a checkpoint.
        self.may_lose_work = False
        self.projects: dict[str, dict[str, Any]] = {}
        self.jobs: dict[int, JobRecord] = {}
        self.pending: deque[int] = deque()
        self.numbers = 0
        self.submissions = Submissions()
        self.keys = KeyMemory()
        self.nodes: dict[str, NodeRecord] = {}
        self.groups = GroupBook()
        self.network = NetworkBook()
        self.learnt: dict[str, dict[str, Any]] = {}
        self.ports_given = 0
        self.record = TrackRecord()
        self.now_s = 0.0
        self.seq = 0
        self.decision_seq = 0
        self.decision_s = -math.inf
        self.policy_error = ""
        self.live: set[int] = set()
        #: Jobs that wait for a job or an array, by its name and the field that names it.
        self.dependents: dict[str, dict[str, list[int]]] = {}
        #: Jobs that have not ended of each array that a job waits for.
        self.open_members: dict[str, set[int]] = {}
        self.touched: set[int] = set()
        self.touched_nodes: set[str] = set()

    @property
    def in_charge(self) -> Controller:
        """The controller, where there is one for sure: a node has joined."""
        assert self.controller is not None, "no node has joined"
        return self.controller

    @property
    def attempts(self) -> list[tuple[JobRecord, Attempt]]:
        """Attempts that are not over with their jobs, by number of the job."""
        jobs = (self.jobs[number] for number in sorted(self.live))
        return [(job, attempt) for job in jobs if (attempt := job.live) is not None]

    def touch_node(self, node: str) -> None:
        """A node is shown differently from now on, and so are jobs that run there."""
        self.touched_nodes.add(node)
        self.touched.update(a.job for _, a in self.attempts if any(r.node == node for r in a.ranks))

    def join_network(self) -> None:
        """Give the cluster its declared network for the nodes that it has now, or take it away."""
        if self.controller is None:
            return
        cluster, declared = self.controller.cluster, self.network.declared
        if declared is not None:
            self.controller.cluster = declared.join(cluster)
        elif cluster.network is not None:
            self.controller.cluster = replace(cluster, network=None)
        network = self.controller.cluster.network
        there = set() if network is None else network.names - set(network.down)
        self.controller.grants = tuple(one for one in self.controller.grants if one.switch in there)
        self.controller.changed = True

    # -- the policy -----------------------------------------------------------------------------------

    def refresh_policy(self) -> None:
        """Let the controller use the current policy at the next decision."""
        if self.controller is not None:
            self.controller.policy = self.limited_policy()
            self.controller.rule = self.preemption_rule()
            self.controller.changed = True

    def preemption_rule(self) -> PreemptionRule:
        """Which running jobs the policy may stop."""
        return replace(DEFAULT_RULE, may_lose_work=self.may_lose_work)

    def with_time_limit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A request with the time limit of its project, if it states none: the default, or else the longest."""
        project = self.projects.get(request.get("project") or "default", {})
        limit_s = project.get("default_time_s") or project.get("most_time_s")
        if limit_s is None or request.get("time_limit_s") is not None:
            return dict(request)
        return {**request, "time_limit_s": limit_s, PROJECT_TIME: True}

    def limited_policy(self) -> Policy:
        """The policy that decides, within the quotas of projects."""
        assert self.policy is not None, "a policy is set before anything else"
        return self._with_quotas(self.policy)

    def policy_again(self) -> Policy:
        """A copy of the current policy, quotas included, for another thread."""
        return self._with_quotas(made(self.policy_text))

    def _with_quotas(self, policy: Policy) -> Policy:
        limits = tuple(
            (name, "", int(p["gpu_quota"])) for name, p in sorted(self.projects.items()) if p["gpu_quota"] is not None
        )
        return within(policy, Quotas(limits)) if limits else policy

    def update_groups(self, per_gpu: Callable[[int], int]) -> None:
        """Follow the groups of the controller; `per_gpu`: processes of a job on a GPU.

        Attempts remember whether they are guests, for as long as they are where their group is.
        """
        guests = self.groups.guests
        self.groups.update(self.in_charge, per_gpu)
        for number in guests | self.groups.guests:
            attempt = self.jobs[number].live if number in self.jobs else None
            if attempt is not None and self.groups.of_job.get(number) == attempt.gpus:
                attempt.guest = self.groups.by_job[number].guest

    # -- looking --------------------------------------------------------------------------------------

    def reserved_idle_gpu_s(self, at_s: float) -> float:
        """GPU-seconds until `at_s` in which GPUs were held for waiting jobs and had no host, in all."""
        held = () if self.controller is None else self.controller.reservations
        gpus = sum(len(reservation.gpus) for reservation in held)
        return self.record.reserved_idle_gpu_s + gpus * max(at_s - self.now_s, 0.0)

    def phase(self, job: JobRecord) -> Phase:
        """The controller's phase of a job; one that it does not have yet waits, or was cancelled."""
        if not job.admitted or self.controller is None:
            return Phase.CANCELLED if job.cancelled else Phase.WAITING
        return Phase(int(self.controller.job_store.columns["phase"][job.number]))

    def is_open(self, number: int) -> bool:
        """Whether the end of a job is still to come in the log."""
        job = self.jobs.get(number)
        return job is not None and (not job.admitted or self.phase(job) <= Phase.RUNNING)

    def follow_waits(self, job: JobRecord) -> None:
        """Find the job by what it waits for."""
        for awaited, field in job.waits_for.items():
            self.dependents.setdefault(awaited, {}).setdefault(field, []).append(job.number)

    def wanted(self, job: JobRecord) -> tuple[int, ...] | None:
        """The GPUs of the cluster that a job should run on now; None if it should not run."""
        if not job.admitted or self.controller is None:
            return None
        columns = self.controller.job_store.columns
        if columns["phase"][job.number] != _RUNNING or columns["running_group"][job.number] < 0:
            return None
        return self.groups.of_job.get(job.number)

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
            self.controller.job_store.forget(RECENT)
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
        if keys := self.keys.rows():
            facts["keys"] = keys
        if not self.network.empty:
            facts["network"] = self.network.to_json()
        return lambda: {**facts, "controller": None if controller is None else controller()}

    def _kept(self) -> IntArray:
        """Jobs that are kept whole: unfinished ones, ones of which something runs, and the last ones."""
        mine, controller = [number for number, job in self.jobs.items() if job.admitted], self.in_charge
        last = controller.job_store.last_departed(RECENT)
        return np.unique(np.concatenate([controller.active, last, controller.running.jobs, np.array(mine, np.int64)]))

    def node_rows(self) -> list[dict[str, Any]]:
        """Nodes as `from_json` reads them; their hardware is the controller's."""
        return [
            {
                "id": n.id, "drained": n.drained, "lost": n.lost, "leaving": n.leaving,
                "suspect": n.suspect and not (n.drained or n.leaving),  # the log does not have it for these
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
        state.policy = made(state.policy_text) if state.policy_text else None
        state.projects = dict(data["projects"])
        state.numbers = data["numbers"]
        state.submissions = Submissions(data.get("submissions", ()))
        state.keys = KeyMemory(data.get("keys", ()))
        state.jobs = {job["number"]: JobRecord.from_json(job) for job in data["jobs"]}
        state.live = {number for number, job in state.jobs.items() if job.live}
        for job in state.jobs.values():
            state.follow_waits(job)
        state.pending = deque(data["pending"])
        state.groups = GroupBook.from_json(data["groups"])
        state.learnt, state.ports_given = dict(data["learnt"]), data["ports_given"]
        state.record = TrackRecord.from_json(data.get("record", {}))
        state.network = NetworkBook.from_json(data.get("network"))
        if data["controller"] is not None:
            state.controller = restore(data["controller"], state.limited_policy(), GUESTS_PER_GPU, KILLS, AGGREGATES)
        state.open_members = {name: set() for name in state.dependents if array_index(name) is not None}
        for number, job in state.jobs.items():
            if (array := array_of(job.request)) in state.open_members and state.is_open(number):
                state.open_members[array].add(number)
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


# -- Submissions and changes of jobs by the keys that clients gave them: a repeated request does nothing more ---

#: Maximum number of keys of each kind; the oldest ones are dropped.
MOST = 10_000


class Submissions:
    """Submitted requests by key and owner. Part of the state: made from the log alone."""

    def __init__(self, rows: Sequence[Sequence[Any]] = ()) -> None:
        self._known = {(owner, key): (first, count, what) for owner, key, first, count, what in rows}

    def rows(self) -> list[list[Any]]:
        """Plain values: owner, key, first number, how many jobs, digest of the request."""
        return [[*who, *what] for who, what in self._known.items()]

    def add(self, note: Requested) -> None:
        """Remember a submission by its key, if it has one."""
        if note.key is not None:
            self._known[note.owner, note.key] = note.first, len(note.requests), digest(note.requests)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]

    def find(self, owner: str, key: str | None, requests: Sequence[Mapping[str, Any]]) -> list[int] | None:
        """Numbers of the jobs that this submission made before; `Conflict` if the key was another one's."""
        found = None if key is None else self._known.get((owner, key))
        if found is None:
            return None
        first, count, before = found
        if before != digest(all_members(requests, first)):
            raise Conflict("this Idempotency-Key was used for another submission; give each its own")
        return list(range(first, first + count))


class KeyMemory:
    """The change that each user requested under each key. Part of the state: made from the log alone."""

    def __init__(self, rows: Sequence[Sequence[str]] = ()) -> None:
        self._known = {(by, key): what for by, key, what in rows}

    def rows(self) -> list[list[str]]:
        """Plain values: user, key, digest of the change."""
        return [[by, key, what] for (by, key), what in self._known.items()]

    def add(self, note: RequeueAsked | UpdateAsked) -> None:
        """Remember a change by its key, if it has one."""
        if note.key is not None:
            fields = note.fields if isinstance(note, UpdateAsked) else None
            self._known[note.by, note.key] = _change(note.job, fields)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]

    def done(self, by: str, key: str | None, job: int, fields: Mapping[str, Any] | None) -> bool:
        """Whether this change of `job` (`fields` None: a requeue) was made before.

        Raises `Conflict` if the key was that of another one.
        """
        found = None if key is None else self._known.get((by, key))
        if found is None:
            return False
        if found != _change(job, fields):
            raise Conflict("this Idempotency-Key was used for another change; give each its own")
        return True


def _change(job: int, fields: Mapping[str, Any] | None) -> str:
    return digest([{"job": job, "fields": None if fields is None else dict(fields)}])


def digest(requests: Sequence[Mapping[str, Any]]) -> str:
    """A short text that stands for these values, of jobs of whole nodes without the size, which the service sets."""
    sizes = ("gpus", "nodes")
    kept = [{k: v for k, v in r.items() if not (r.get("exclusive") and k in sizes)} for r in requests]
    text = json.dumps(kept, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
