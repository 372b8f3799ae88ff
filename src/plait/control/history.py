"""Events, folded into arrays: who held which GPUs when, who waited, which nodes were down.

`History` listens to `drive` and sees only events, commands and the controller's job store, so a simulated, a live
and a replayed run are recorded by the same code. During the run it only keeps references; `timeline`
does the work at the end.

    history = History(controller)
    drive(controller, backend, record=history)
    history.timeline().span_gpus

Times of a span are the scheduler's: from the command that starts a job to the command or event that takes it
off (a completion counts from when it happened, `end_s`, not from when the controller learned of it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from plait.control import messages
from plait.control.controller import Controller
from plait.control.drive import ENDS, STARTS, STOPS, Block
from plait.control.plan_check.check import guest_flags
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Groups, Reservation

Int32Array = npt.NDArray[np.int32]
T = TypeVar("T")
Int8Array = npt.NDArray[np.int8]

#: Messages kept as they came before they are packed into arrays.
PACK_AFTER = 8192


class SpanEnd(IntEnum):
    """Why a span of a job on its GPUs ended."""

    OPEN = 0
    CHANGED = 1
    STOPPED = 2
    FINISHED = 3
    FAILED = 4
    CANCELLED = 5
    NODE_LOST = 6
    LAUNCH_FAILED = 7
    KILLED = 8


_ENDINGS: Mapping[type, int] = {
    messages.JobFinished: int(SpanEnd.FINISHED),
    messages.JobFailed: int(SpanEnd.FAILED),
    messages.JobCancelled: int(SpanEnd.CANCELLED),
    messages.LaunchFailed: int(SpanEnd.LAUNCH_FAILED),
}
_STOPS = (SpanEnd.STOPPED, SpanEnd.KILLED)
_START, _FINISHED = int(SpanEnd.CHANGED), int(SpanEnd.FINISHED)  # a start ends the span before it by a change
#: How a span ends by a row of a block of each kind.
_CODES = np.zeros(3, dtype=np.int8)
_CODES[[ENDS, STOPS, STARTS]] = _FINISHED, int(SpanEnd.STOPPED), _START


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A whole run as columns; jobs and nodes by number, times in seconds.

    span_*   a job on its GPUs, in order of job, then time: `span_group` is its row in the groups,
             `span_company` how many jobs shared the GPUs (itself included), `span_continued` whether it continued the
             previous span without a restart, `span_iterations` the progress made, `span_end` a
             `SpanEnd`
    group_*  jobs on the same GPUs, held from `group_from_s` until the last member left; group `g` has the
             GPUs `group_gpus[group_first_gpu[g]:group_first_gpu[g + 1]]`; `group_guest` is whether as a guest, and
             is empty if no group ever was
    reserved_*  a GPU held for a waiting job, without a host
    lost_*   a switch that is lost, by its number in the network
    grant_*  memory of a switch, by its number in the network, that a job had: `grant_size` aggregators, 0 for all that
             jobs share
    wait_*   a job without GPUs, in order of job, then time; `wait_remaining_s` is the work left alone at the
             asked size as the job store knows it, NaN if unknown
    down_*   a place in the cluster without a node that is up: lost, forgotten or not there yet
    spill_*  bytes of all jobs in host memory from `spill_at_s` until the next row; empty without reports of usage
    exchange_*  how many jobs exchange gradients between nodes from `exchange_at_s` until the next row, and the sums of
             the shares of their packets that switches add up, and that fall back to the server because their
             aggregator belongs to others; empty without reports of the network
    refused  jobs refused when they were submitted
    """

    cluster: Cluster
    jobs: int
    events: int
    last_s: float
    span_job: IntArray
    span_from_s: FloatArray
    span_to_s: FloatArray
    span_gpus: IntArray
    span_company: IntArray
    span_group: IntArray
    span_continued: BoolArray
    span_iterations: FloatArray
    span_end: Int8Array
    group_from_s: FloatArray
    group_to_s: FloatArray
    group_first_gpu: IntArray
    group_gpus: Int32Array
    group_guest: BoolArray
    reserved_gpu: IntArray
    reserved_job: IntArray
    reserved_from_s: FloatArray
    reserved_to_s: FloatArray
    grant_switch: IntArray
    grant_job: IntArray
    grant_size: IntArray
    grant_from_s: FloatArray
    grant_to_s: FloatArray
    lost_switch: IntArray
    lost_from_s: FloatArray
    lost_to_s: FloatArray
    wait_job: IntArray
    wait_from_s: FloatArray
    wait_to_s: FloatArray
    wait_remaining_s: FloatArray
    down_node: IntArray
    down_from_s: FloatArray
    down_to_s: FloatArray
    spill_at_s: FloatArray
    spill_bytes: FloatArray
    exchange_at_s: FloatArray
    exchange_jobs: FloatArray
    exchange_aggregated: FloatArray
    exchange_fallback: FloatArray
    refused: IntArray

    @classmethod
    def empty(cls, cluster: Cluster, jobs: int, events: int, last_s: float) -> Timeline:
        """Of a simulator that keeps no record of who ran where: no column has rows."""
        columns: dict[str, Any] = {field.name: np.zeros(0, dtype=np.int64) for field in fields(cls)[4:]}
        return cls(cluster, jobs, events, last_s, **columns)


class Intervals(Generic[T]):
    """Since when each of some things has been there, and from when until when others were."""

    def __init__(self) -> None:
        self.now: tuple[T, ...] = ()
        self._since_s: dict[T, float] = {}
        self._past: list[tuple[float, float, T]] = []

    def note(self, now: tuple[T, ...], at_s: float) -> None:
        """These are there at `at_s`: close the intervals of absent ones, and open new ones."""
        if now == self.now:
            return
        self.now = now
        for gone in set(self._since_s) - set(now):
            self._past.append((self._since_s.pop(gone), at_s, gone))
        for one in now:
            self._since_s.setdefault(one, at_s)

    def until(self, last_s: float) -> list[tuple[float, float, T]]:
        """Start, end and value of each interval, to `last_s` for open ones."""
        return [*self._past, *((since_s, last_s, one) for one, since_s in self._since_s.items())]


class History:
    """A `Record`: takes note of every event and its commands, a few list appends each."""

    def __init__(self, controller: Controller) -> None:
        """Listen to this controller, from before its first event."""
        self._controller = controller
        self._up = controller.cluster.up
        self._switch_changes: list[tuple[float, str, bool]] = []
        self._node_changes: list[tuple[float, int, bool]] = []
        self._refused: list[IntArray] = []
        self._spill: list[tuple[float, float]] = []
        self._exchanges: list[tuple[float, float, float, float]] = []
        self._codes: list[int] = []
        self._jobs: list[IntArray] = []
        self._at: list[float] = []
        self._ends: list[FloatArray] = []
        self._done: list[FloatArray] = []
        self._groups: list[Groups] = []
        self._group_at: list[float] = []
        self._reserved = Intervals[Reservation]()
        self._granted = Intervals[NetworkGrant]()
        self._packed: list[dict[str, Any]] = []
        self.events = 0
        self.last_s = -math.inf

    def __call__(self, event: messages.Event, commands: Sequence[messages.Command]) -> None:
        self.events += 1
        at_s = self.last_s = event.at_s
        if isinstance(event, (messages.JobFinished, messages.JobFailed, messages.JobCancelled, messages.LaunchFailed)):
            self._codes.append(_ENDINGS[type(event)])
            self._jobs.append(event.jobs)
            self._at.append(at_s)
            if isinstance(event, messages.JobFinished):
                self._ends.append(event.end_s)
        elif isinstance(event, messages.UsageReported):
            spill = event.spill_bytes * self._controller.job_store.columns["gpus"][event.jobs]  # each of its GPUs
            self._spill.append((at_s, float(np.nansum(spill))))
        elif isinstance(event, messages.NetworkReported):
            sums = float(np.nansum(event.aggregated)), float(np.nansum(event.fallback_share))
            self._exchanges.append((at_s, float(len(event.jobs)), *sums))
        elif isinstance(event, messages.NodeLost):
            self._node_changes.append((at_s, self._controller.cluster.index(event.node), False))
        elif isinstance(event, messages.NodeJoined):
            self._node_changes.append((at_s, self._controller.cluster.index(event.node.id), True))
        elif isinstance(event, (messages.SwitchLost, messages.SwitchJoined)):
            self._switch_changes.append((at_s, event.switch, isinstance(event, messages.SwitchJoined)))
        for command in commands:
            self._note(command, type(event), at_s)
        controller = self._controller
        if self._reserved.now or controller.plan.reservations:
            self._reserved.note(controller.reservations, at_s)
        if self._granted.now or controller.grants:
            self._granted.note(controller.grants, at_s)
        if len(self._codes) >= PACK_AFTER:
            self._pack()

    def take(self, block: Block) -> None:
        """Take note of many instants at once."""
        self._pack()
        self.events += block.events
        self.last_s = block.last_s
        starts = block.kind == STARTS
        count = len(block.gpu_count)
        self._packed.append(
            {
                "code": _CODES[block.kind],
                "job": block.job.astype(np.int32),
                "at_s": block.at_s,
                "done": block.done,
                "members": np.ones(count, dtype=np.int32),
                "gpu_count": block.gpu_count.astype(np.int32),
                "gpus": block.gpus.astype(np.int32),
                "guest": np.zeros(count, dtype=np.bool_),
                "group_at_s": block.at_s[starts],
            }
        )

    def _note(self, command: messages.Command, cause: type, at_s: float) -> None:
        if isinstance(command, (messages.Launch, messages.Adjust)):
            groups = command.groups
            self._codes.append(_START)
            self._jobs.append(groups.jobs)
            self._at.append(at_s)
            self._done.append(self._controller.job_store.columns["iterations_done"].take(groups.jobs))
            self._groups.append(groups)
            self._group_at.append(at_s)
        elif isinstance(command, messages.Stop):
            killed = cause is messages.ReplanDue and not command.checkpoint
            self._codes.append(int(SpanEnd.NODE_LOST if cause is messages.NodeLost else _STOPS[killed]))
            self._jobs.append(command.jobs)
            self._at.append(at_s)
        elif isinstance(command, messages.Refuse) and cause is messages.JobSubmitted:
            self._refused.append(command.jobs)

    def _pack(self) -> None:
        """Turn the messages kept so far into compact arrays."""
        if not self._codes:
            return
        lengths = np.array([len(jobs) for jobs in self._jobs])
        codes = np.repeat(np.array(self._codes, dtype=np.int8), lengths)
        at_s = np.repeat(np.array(self._at, dtype=np.float64), lengths)
        at_s[codes == _FINISHED] = _join(self._ends, np.float64)
        groups = self._groups
        self._packed.append(
            {
                "code": codes,
                "job": _join(self._jobs, np.int32),
                "at_s": at_s,
                "done": _join(self._done, np.float64),
                "members": _counts([g.first_job for g in groups]),
                "gpu_count": _counts([g.first_gpu for g in groups]),
                "gpus": _join([g.gpus for g in groups], np.int32),
                "guest": _join([guest_flags(group) for group in groups], np.bool_),
                "group_at_s": np.repeat(self._group_at, [len(g) for g in groups]).astype(np.float64),
            }
        )
        for kept in (self._codes, self._jobs, self._at, self._ends, self._done, groups, self._group_at):
            kept.clear()

    def _reserved_gpus(self) -> dict[str, Any]:
        """One row a reserved GPU and time, in order of time."""
        rows = sorted((a, b, one.job, gpu) for a, b, one in self._reserved.until(self.last_s) for gpu in one.gpus)
        return {
            "reserved_from_s": np.array([row[0] for row in rows], dtype=np.float64),
            "reserved_to_s": np.array([row[1] for row in rows], dtype=np.float64),
            "reserved_job": np.array([row[2] for row in rows], dtype=np.int64),
            "reserved_gpu": np.array([row[3] for row in rows], dtype=np.int64),
        }

    def _granted_memory(self) -> dict[str, Any]:
        """One row a grant, in order of time."""
        network = self._controller.cluster.network
        number = {} if network is None else {switch.id: i for i, switch in enumerate(network.switches)}
        rows = sorted((a, b, number[g.switch], g.job, g.size) for a, b, g in self._granted.until(self.last_s))
        whole, names = np.array([row[2:] for row in rows], dtype=np.int64).reshape(-1, 3), ("switch", "job", "size")
        return {
            **{f"grant_{name}": whole[:, i].copy() for i, name in enumerate(names)},
            "grant_from_s": np.array([row[0] for row in rows], dtype=np.float64),
            "grant_to_s": np.array([row[1] for row in rows], dtype=np.float64),
        }

    def _lost_switches(self) -> dict[str, Any]:
        """One row for each time that a switch was lost, in order of its return; open ends are infinite."""
        network = self._controller.cluster.network
        number = {} if network is None else {switch.id: i for i, switch in enumerate(network.switches)}
        lost = _down([True] * len(number), [(at_s, number[s], up) for at_s, s, up in self._switch_changes], len(number))
        return {
            "lost_switch": np.array([one[0] for one in lost], dtype=np.int64),
            "lost_from_s": np.array([one[1] for one in lost], dtype=np.float64),
            "lost_to_s": np.array([one[2] for one in lost], dtype=np.float64),
        }

    def _exchanged(self) -> dict[str, Any]:
        """One row a report of the network."""
        rows = np.array(self._exchanges, dtype=np.float64).reshape(-1, 4)
        names = "at_s", "jobs", "aggregated", "fallback"
        return {f"exchange_{name}": rows[:, i].copy() for i, name in enumerate(names)}

    def timeline(self) -> Timeline:
        """The run so far."""
        self._pack()
        log = {name: _join([p[name] for p in self._packed], dtype) for name, dtype in _LOG.items()}
        job_store = self._controller.job_store
        columns = {name: column[: job_store.count] for name, column in job_store.columns.items()}
        refused = _join(self._refused, np.int64)
        marks = _marks(log)
        spans = _spans(marks, log, columns, self.last_s)
        cluster = self._controller.cluster
        down = _down(self._up, self._node_changes, len(cluster.nodes))
        return Timeline(
            cluster=cluster,
            jobs=job_store.count,
            events=self.events,
            last_s=self.last_s,
            **spans,
            group_from_s=log["group_at_s"],
            group_to_s=_group_ends(spans["span_group"], spans["span_to_s"], log["group_at_s"]),
            group_first_gpu=np.concatenate([[0], np.cumsum(log["gpu_count"], dtype=np.int64)]),
            group_gpus=log["gpus"],
            group_guest=log["guest"] if log["guest"].any() else log["guest"][:0],
            **self._reserved_gpus(),
            **self._granted_memory(),
            **self._lost_switches(),
            **_waits(marks, columns, refused, self.last_s),
            down_node=np.array([d[0] for d in down], dtype=np.int64),
            down_from_s=np.array([d[1] for d in down], dtype=np.float64),
            down_to_s=np.array([d[2] for d in down], dtype=np.float64),
            spill_at_s=np.array([row[0] for row in self._spill], dtype=np.float64),
            spill_bytes=np.array([row[1] for row in self._spill], dtype=np.float64),
            **self._exchanged(),
            refused=refused,
        )


_LOG: Mapping[str, Any] = {
    "code": np.int8,
    "job": np.int32,
    "at_s": np.float64,
    "done": np.float64,
    "members": np.int32,
    "gpu_count": np.int32,
    "gpus": np.int32,
    "guest": np.bool_,
    "group_at_s": np.float64,
}


def _join(parts: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(parts).astype(dtype, copy=False) if len(parts) else np.zeros(0, dtype=dtype)


def _counts(offsets: Sequence[IntArray]) -> Int32Array:
    """Row lengths of many offset arrays, one after the other."""
    if not offsets:
        return np.zeros(0, dtype=np.int32)
    steps = np.diff(np.concatenate(offsets)).astype(np.int32)
    keep = np.ones(len(steps), dtype=bool)
    keep[np.cumsum([len(o) for o in offsets])[:-1] - 1] = False
    return steps[keep]


def _marks(log: Mapping[str, Any]) -> dict[str, Any]:
    """Starts and ends in order of job, then time; ends of jobs that hold no GPUs are dropped."""
    code, job = log["code"], log["job"]
    is_start = code == _START
    row = np.full(len(code), -1, dtype=np.int64)
    row[is_start] = np.repeat(np.arange(len(log["members"])), log["members"])
    done = np.full(len(code), math.nan)
    done[is_start] = log["done"]
    order = np.argsort(job, kind="stable")
    job, start = job[order], is_start[order]
    held_before = np.zeros(len(job), dtype=bool)
    held_before[1:] = (job[1:] == job[:-1]) & start[:-1]
    keep = start | held_before
    order = order[keep]
    return {
        "job": job[keep].astype(np.int64),
        "at_s": log["at_s"][order],
        "code": code[order],
        "row": row[order],
        "done": done[order],
        "start": start[keep],
        "continued": (start & held_before)[keep],
    }


def _spans(marks: Mapping[str, Any], log: Mapping[str, Any], columns: Mapping[str, Any], last_s: float) -> Any:
    """One span a start mark, until the next mark of the same job."""
    at = np.flatnonzero(marks["start"])
    job = marks["job"][at]
    nxt = np.minimum(at + 1, len(marks["job"]) - 1)
    more = (at + 1 < len(marks["job"])) & (marks["job"][nxt] == job)
    to_s = np.where(more, marks["at_s"][nxt], last_s)
    to_s = np.fmin(to_s, columns["end_s"][job])
    done = marks["done"][at]
    following = np.append(done[1:], math.nan)
    same = np.append(job[1:] == job[:-1], False)[: len(job)]
    after = np.where(same, following[: len(job)], columns["iterations_done"][job])
    row = marks["row"][at]
    return {
        "span_job": job,
        "span_from_s": np.minimum(marks["at_s"][at], to_s),
        "span_to_s": to_s,
        "span_gpus": log["gpu_count"][row].astype(np.int64),
        "span_company": log["members"][row].astype(np.int64),
        "span_group": row,
        "span_continued": marks["continued"][at],
        "span_iterations": np.maximum(after - done, 0.0),
        "span_end": np.where(more, marks["code"][nxt], int(SpanEnd.OPEN)).astype(np.int8),
    }


def _group_ends(row: IntArray, to_s: FloatArray, from_s: FloatArray) -> FloatArray:
    """When the last member of each group left."""
    ends = from_s.copy()
    if len(row):
        order = np.argsort(row, kind="stable")
        rows = row[order]
        first = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
        ends[rows[first]] = np.maximum.reduceat(to_s[order], first)
    return np.maximum(ends, from_s)


def _waits(marks: Mapping[str, Any], columns: Mapping[str, Any], refused: IntArray, last_s: float) -> Any:
    """From submission or from losing the GPUs until the next start, or the end of the job or the run."""
    job, at_s = marks["job"], marks["at_s"]
    first = np.ones(len(job), dtype=bool)
    first[1:] = job[1:] != job[:-1]
    begins = np.flatnonzero(marks["start"] & ~marks["continued"])
    from_s = np.where(first[begins], columns["submit_s"][job[begins]], at_s[begins - 1])
    # Waits that no start ends: after the last mark of a job, or of a job without marks.
    last = np.flatnonzero(np.append(first[1:], True)[: len(job)] & ~marks["start"])
    never = np.ones(len(columns["end_s"]), dtype=bool)
    never[job] = False
    never[refused] = False
    silent = np.flatnonzero(never)
    end_s = np.where(np.isnan(columns["end_s"]), last_s, columns["end_s"])
    tail = np.concatenate([job[last], silent])
    jobs = np.concatenate([job[begins], tail])
    starts_s = np.concatenate([from_s, at_s[last], columns["submit_s"][silent]])
    stops_s = np.concatenate([at_s[begins], end_s[tail]])
    done = np.concatenate([marks["done"][begins], columns["iterations_done"][tail]])
    keep = np.flatnonzero(stops_s > starts_s)
    keep = keep[np.argsort(jobs[keep], kind="stable")]
    jobs = jobs[keep]
    return {
        "wait_job": jobs,
        "wait_from_s": starts_s[keep],
        "wait_to_s": stops_s[keep],
        "wait_remaining_s": (columns["iterations"][jobs] - done[keep]) * columns["iteration_s"][jobs],
    }


def _down(
    up: Sequence[bool], changes: Sequence[tuple[float, int, bool]], places: int
) -> list[tuple[int, float, float]]:
    """(place, from, to) for each time that no node was up in a place; open ends are infinite.

    A place is down on when its node is forgotten, until another node takes it; `up` has the places of the beginning.
    """
    since = {place: -math.inf for place in range(places) if place >= len(up) or not up[place]}
    out: list[tuple[int, float, float]] = []
    for at_s, place, there in changes:
        if there and place in since:
            out.append((place, since.pop(place), at_s))
        elif not there:
            since.setdefault(place, at_s)
    return out + [(place, from_s, math.inf) for place, from_s in since.items()]
