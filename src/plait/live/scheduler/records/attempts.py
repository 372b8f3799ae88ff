"""Records of the service about jobs, their attempts and nodes: plain values that go to JSON and back.

Fields marked *seen* are from the last reports of agents. They are not in the log: after a restart agents send them
again.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from plait.core.codec.values import Codec, form, row
from plait.core.goodput import BatchLimits
from plait.live.api.cluster import NodeState
from plait.live.protocol.wire import PREEMPTED, NodeInfo, Run, Seen, SwitchOrder, SwitchSeen, Usage
from plait.live.scheduler.records.end_words import NOT_STARTED, describe_end, left_before

#: Exit codes of a process that was stopped: by signals of an agent, or as a shell reports them.
TOLD_TO_END = frozenset({-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT, -signal.SIGHUP, 130, 137, 143})

#: Faults of an attempt; each is also the reason to stop the rest of it.
FAILED, START, REQUEUE = "failed", "start", "requeue"
FAULTS = frozenset({FAILED, START, REQUEUE})
#: Of an end that came with the end of a process shared with other jobs: another of them ended it.
BYSTANDER = "bystander"
#: How a process could resume, by `plait.runtime.page.Saves`: from its checkpoint, only from the beginning, not from a
#: checkpoint whose writing failed, and not known because it has made no step yet.
CAN, FROM_START, FAILS, NO_STEP = "yes", ("nothing", "not_resumed"), "failed", "no_boundary"
#: For how long a job is not merged any more.
ONCE, ALWAYS = "once", "always"

#: A process: job, epoch, rank.
Key: TypeAlias = tuple[int, int, int]


@dataclass(slots=True)
class Rank:
    """One process of an attempt: its node, the node's number of its GPU, and how and when it ended.

    `seen` and `learnt_s` (when it was last believed what it measured) are of this service's life only.
    """

    node: str
    gpu: int
    ended: bool = False
    exit_code: int | None = None
    reason: str | None = None
    ended_s: float | None = None
    seen: Seen | None = field(default=None, metadata=form(skip=True))
    learnt_s: dict[str, float] = field(default_factory=dict, metadata=form(skip=True))


#: Ranks are many, and written as the list of their values.
#: In the reason of a process that was ended because another one hung: where it was.
_PLACE = re.compile(r"another process of the job hung; it was ([^;]*)")
_RECORDS = Codec(closed=True, own={Rank: row(Codec(), Rank)})


@dataclass(slots=True)
class Attempt:
    """One try to run a job on these GPUs (numbers of the cluster).

    `stop`: why it has a request to stop, None without one. `fault` and `cause`: the first failure, by itself. `merge`:
    it may share a process with others of its group. `grace_s`: less than the usual time for its checkpoint, None if
    there is no hurry. `stop_s`: when the stop was requested; `stop_reason`: why, in words; `takers`: jobs that get its
    GPUs. `batch_size`: the last one that an adaptive job used, once it is over. `lost_work_s`: seconds of its work that
    are lost, once it is over. `guest`: it uses the GPU time that others leave; `leaves` (*seen*): why it had to leave.
    `networked`: its ranks have grant files of in-network aggregation. `limits`: the bounds of its batch where an
    execution plan was chosen for its GPUs. `device_bytes` (*seen*): of its job, when the attempt began. `shared`
    (*seen*): others have been on its GPUs.
    """

    job: int
    epoch: int
    gpus: tuple[int, ...]
    ranks: list[Rank]
    began_s: float
    port: int = 0
    stop: str | None = None
    fault: str = ""
    cause: str = ""
    ended_s: float | None = None
    outcome: str = ""
    merge: bool = False
    grace_s: float | None = None
    stop_s: float | None = None
    batch_size: float | None = None
    lost_work_s: float = 0.0
    guest: bool = field(default=False, metadata=form(omit=True))
    networked: bool = field(default=False, metadata=form(omit=True))
    limits: BatchLimits | None = field(default=None, metadata=form(omit=True))
    stop_reason: str = field(default="", metadata=form(omit=True))
    takers: tuple[int, ...] = field(default=(), metadata=form(omit=True))
    leaves: str = field(default="", metadata=form(skip=True))
    device_bytes: float = field(default=0.0, metadata=form(skip=True))
    shared: bool = field(default=False, metadata=form(skip=True))

    @property
    def over(self) -> bool:
        """Whether nothing of it is expected any more."""
        return self.ended_s is not None

    @property
    def held_s(self) -> float:
        """Seconds its GPUs have been held, as far as seen."""
        return max((r.seen.held_s for r in self.ranks if r.seen), default=0.0)

    @property
    def steps(self) -> float | None:
        """Iterations since the beginning of the job; None before the first report."""
        known = [r.seen.steps for r in self.ranks if r.seen and r.seen.steps > 0]
        return max(known) if known else None

    @property
    def progress(self) -> float | None:
        """Iterations of an adaptive job at its first batch size since its beginning; None before the first report."""
        known = [r.seen.adaptive.progress for r in self.ranks if r.seen and r.seen.adaptive]
        return max(known, default=0.0) or None

    @property
    def lead(self) -> Seen | None:
        """The last report of rank 0."""
        return self.ranks[0].seen

    def end(
        self, rank: int, exit_code: int | None, reason: str | None, started: bool, ended_s: float | None = None
    ) -> None:
        """Note the end of a process and, if it is the first thing to go wrong, what that means."""
        gone = self.ranks[rank]
        gone.ended, gone.exit_code, gone.reason, gone.ended_s = True, exit_code, reason, ended_s
        if self.stop is not None and self.stop not in FAULTS:
            # Record that a process ended after a requested stop. A rank that is killed in the middle of an exchange
            # takes down the ranks of its gang that wait for it: their exit codes, and the order of the reports, are no
            # failure then.
            codes = [r.exit_code for r in self.ranks if r.ended]
            if any(code is None or code in TOLD_TO_END for code in codes):
                self.fault = self.cause = ""
            elif not self.fault and (code := self.ranks[rank].exit_code) not in (0, PREEMPTED):
                self.fault, self.cause = FAILED, describe_end(rank, len(self.ranks), code, reason, started)
            return
        if self.fault or exit_code == 0:
            return
        if not started and exit_code in NOT_STARTED:
            self.fault = START
        elif exit_code is None:
            self.fault = REQUEUE
        else:
            self.fault = REQUEUE if exit_code == PREEMPTED else FAILED
        self.cause = describe_end(rank, len(self.ranks), exit_code, reason, started)

    def find_cause(self) -> None:
        """Set the cause of a gang's failure: the process that failed first, and the ones that had left before it.

        For an attempt that is over: reports on its processes come in any order.
        """
        ends = [(r.ended_s, i, r.exit_code) for i, r in enumerate(self.ranks) if r.ended_s is not None]
        failed = [(ended_s, i) for ended_s, i, code in ends if code not in (None, 0, PREEMPTED)]
        if self.fault != FAILED or len(self.ranks) == 1 or not failed:
            return
        first_s, first = min(failed)
        rank = self.ranks[first]
        self.cause = describe_end(first, len(self.ranks), rank.exit_code, rank.reason, started=True)
        places = [(i, _PLACE.search(r.reason or "")) for i, r in enumerate(self.ranks)]
        elsewhere = [f"rank {i}: {place[1]}" for i, place in places if place and "network" not in place[1]]
        if elsewhere:  # those that wait for it are in the exchange
            self.cause = f"{', '.join(elsewhere[:5])}; {self.cause}"
        left = [i for ended_s, i, code in ends if code == 0 and ended_s <= first_s]
        if left:
            self.cause = left_before(self.cause, left)


@dataclass(slots=True)
class JobRecord:
    """A job that has not ended, or of which something still runs.

    `held_s`, `held_gpu_s`: service of attempts that are over. `requeues`, `launch_failures`: in a row, without an
    iteration in between (`mark` is the iteration at the last one). `unmerged`: it is kept from sharing a process, for
    its next attempt (`ONCE`) or for good (`ALWAYS`), because one that it shared broke down. `first_epoch`: of its first
    attempt, 0 before that. `down_s`: seconds from the request to stop to the end of its last attempt, if it is to
    resume from there; `restarts` of these were measured until their first step, and cost `restart_s` seconds, an
    average in which the last one counts most. `lost_work_s`: of all its attempts. `profiled`: its profile is its own,
    measured alone; `measured_beside`: measured behind the gate of a group; `seen_outside`: from outside its processes.
    Of an adaptive job (*seen*): `estimated_s`
    is when the scheduler last accepted its own estimate, `total` the progress that it plans to make in all.
    `device_bytes` (*seen*) of GPU memory stay from step to step in each of its processes, 0 unknown.
    `waits_for`: names of jobs and arrays that have to end before it starts, with the field that names each; `unmet`:
    why it can never start, because one of them has ended in another way.
    """

    number: int
    request: dict[str, Any]
    owner: str
    project: str
    created_s: float
    admitted: bool = False
    cancelled: bool = False
    epoch: int = 0
    held_s: float = 0.0
    held_gpu_s: float = 0.0
    requeues: int = 0
    launch_failures: int = 0
    mark: float = 0.0
    reason: str = ""
    unmerged: str = ""
    first_epoch: int = 0
    down_s: float | None = None
    restarts: int = 0
    restart_s: float | None = None
    lost_work_s: float = 0.0
    profiled: bool = False
    measured_beside: bool = False
    seen_outside: bool = False
    attempt: Attempt | None = None
    waits_for: dict[str, str] = field(default_factory=dict, metadata=form(omit=True))
    unmet: str = field(default="", metadata=form(omit=True))
    shown: str = field(default="", metadata=form(skip=True))
    estimated_s: float = field(default=-math.inf, metadata=form(skip=True))
    total: float | None = field(default=None, metadata=form(skip=True))
    device_bytes: float = field(default=0.0, metadata=form(skip=True))

    @property
    def live(self) -> Attempt | None:
        """The attempt that is not over, if there is one."""
        return self.attempt if self.attempt is not None and not self.attempt.over else None

    def to_json(self) -> dict[str, Any]:
        """All but what is derived."""
        out: dict[str, Any] = _RECORDS.encode(self)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobRecord:
        """The record that `to_json` wrote."""
        return _RECORDS.decode(cls, data)


@dataclass(slots=True)
class Successor:
    """Processes for `attempt`, which has not begun and may never do so; requested at `since_s`.

    They start next to the running attempt of their job, are of this service's life only, and in no log: a successor
    runs nothing of the job, and an attempt begins without one if it is missing. `settled`: ranks that need no waiting,
    because they are ready or impossible.
    """

    attempt: Attempt
    since_s: float
    settled: set[int] = field(default_factory=set)


@dataclass(slots=True)
class NodeRecord:
    """A node: its resources, whether it takes work, and (*seen*) when and from which agent process it last reported.

    `term`, `reached`: the last assignment that the agent acknowledged. `leaving`: it gave notice and takes no work, and
    has `leaving_s` left as of its last report; `gone`: why the backend reports it as dead; `dead`: nothing can run
    there any more, so that it is lost sooner. `switch` (*seen*): the switch that it serves, None before its first
    report.

    `assigned`: the processes, the switch and the successors of the newest assignment, its `version`, and the version
    from which on each process in `stops` has a request to stop: of this service's life only.
    """

    id: str
    drained: bool = False
    lost: bool = False
    leaving: bool = False
    info: NodeInfo | None = None
    agent: str = ""
    agents: set[str] = field(default_factory=set)
    heard_s: float = 0.0
    address: str = "127.0.0.1"
    usage: Usage = field(default_factory=Usage)
    reached: int = 0
    term: int = 0
    suspect: bool = False
    gone: str = ""
    dead: bool = False
    leaving_s: float | None = None
    switch: SwitchSeen | None = None
    assigned: tuple[list[Run], SwitchOrder | None, list[Run]] = field(default_factory=lambda: ([], None, []))
    version: int = 0
    stops: dict[Key, int] = field(default_factory=dict)

    @property
    def state(self) -> NodeState:
        if self.lost:
            return "left" if self.leaving else "lost"
        if self.suspect:
            return "suspect"
        return "leaving" if self.leaving else "drained" if self.drained else "ready"
