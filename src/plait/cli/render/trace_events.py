"""The event log of a live cluster as a Chrome trace, to open in Perfetto (ui.perfetto.dev) or chrome://tracing.

A process a node and a track a GPU, with a slice for each attempt; a process for the queue, with a span for each wait
and counters of waiting jobs and of held GPUs; instants for stops (who takes the GPUs, and why), nodes and policies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.core.resources import Resource
from plait.live.layout import job_name
from plait.live.scheduler.records.event_words import in_words
from plait.report.files import whole_file

#: The process of the queue; nodes follow.
QUEUE = 0
#: Tracks of one GPU: jobs that share it lie side by side.
TRACKS = 64
#: Entries about the whole cluster that are marked in the trace.
_MARKED = ("NodeJoined", "NodeLost", "NodeDrained", "NodeLeaving", "NodeForgotten", "PolicySet", "SwitchLost")
#: Entries after which a job does not come back, by what it then is.
_ENDS = {"JobFinished": "finished", "JobCancelled": "cancelled", "JobFailed": "failed"}
#: Outcomes of attempts after which a job does not wait for another one.
_FOR_GOOD = ("finished", "cancelled")

Row = Mapping[str, Any]


@dataclass
class _Attempt:
    """An attempt that began: number of the job, when, and (node, GPU of the node) of its ranks."""

    job: int
    epoch: int
    from_s: float
    places: list[tuple[str, int]]
    args: dict[str, Any]
    tracks: list[int] = field(default_factory=list)


@dataclass
class _Trace:
    """The known state of the cluster at one entry of the log, and the events of the trace so far."""

    events: list[dict[str, Any]] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    names: dict[int, dict[str, Any]] = field(default_factory=dict)
    waits: dict[int, float] = field(default_factory=dict)
    runs: dict[int, _Attempt] = field(default_factory=dict)
    busy: dict[tuple[str, int, int], int] = field(default_factory=dict)
    tried: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    now_s: float = 0.0

    def node(self, name: str) -> int:
        """The process of a node."""
        if name not in self.nodes:
            pid = self.nodes[name] = len(self.nodes) + 1
            self.events.append(_meta(pid, "process_name", f"node {name}"))
            self.events.append(
                {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}
            )
        return self.nodes[name]

    def track(self, job: int, node: str, gpu: int) -> int:
        """A free track of a GPU for an attempt, which is then the job's."""
        pid = self.node(node)
        lane = next(n for n in range(TRACKS) if (node, gpu, n) not in self.busy)
        self.busy[node, gpu, lane] = job
        tid = gpu * TRACKS + lane + 1
        self.events.append(_meta(pid, "thread_name", f"GPU {gpu}" + (f", job {lane + 1}" if lane else ""), tid))
        return tid

    def waits_from(self, job: int, at_s: float) -> None:
        """A job begins to wait, unless it has ended."""
        if job not in self.over:
            self.waits.setdefault(job, at_s)

    def waits_until(self, job: int, at_s: float, then: str) -> None:
        """A job waits no longer: its span, from the beginning of the wait."""
        from_s = self.waits.pop(job, None)
        if from_s is not None and _us(at_s) > _us(from_s):
            common = {"cat": "queue", "id": job, "pid": QUEUE, "tid": 0, "name": f"{job_name(job)} waits"}
            args = {**self.names.get(job, {}), "then": then}
            self.events.append({"ph": "b", **common, "ts": _us(from_s), "args": args})
            self.events.append({"ph": "e", **common, "ts": _us(at_s)})

    def begins(self, event: Row) -> None:
        """An attempt gets its GPUs."""
        job = int(event["job"])
        self.waits_until(job, event["at_s"], f"attempt {event['epoch']}")
        places = list(dict.fromkeys((str(node), int(gpu)) for node, gpu in event["ranks"]))
        args = {**self.names.get(job, {}), "attempt": event["epoch"], "gpus": len(event["gpus"])}
        self.tried.add(job)
        attempt = self.runs[job] = _Attempt(job, int(event["epoch"]), event["at_s"], places, args)
        attempt.tracks = [self.track(job, node, gpu) for node, gpu in places]

    def ends(self, job: int, at_s: float, **more: Any) -> None:
        """An attempt leaves its GPUs: a slice on each."""
        attempt = self.runs.pop(job, None)
        if attempt is None:
            return
        args = {name: value for name, value in (attempt.args | more).items() if value not in (None, "", 0.0)}
        for (node, gpu), tid in zip(attempt.places, attempt.tracks, strict=True):
            self.busy.pop((node, gpu, (tid - 1) % TRACKS), None)
            self.events.append({
                "ph": "X", "pid": self.node(node), "tid": tid, "name": job_name(job), "cat": "attempt",
                "ts": _us(attempt.from_s), "dur": max(0, _us(at_s) - _us(attempt.from_s)), "args": args,
            })  # fmt: skip
            self._start_up(attempt, self.node(node), tid, at_s, more.get("first_step_s"))

    def _start_up(self, attempt: _Attempt, pid: int, tid: int, at_s: float, first_step_s: float | None) -> None:
        """Within the slice of an attempt, the time until its first step, if it is known."""
        if first_step_s is not None and 0 < first_step_s <= at_s - attempt.from_s:
            self.events.append({
                "ph": "X", "pid": pid, "tid": tid, "name": "start-up", "cat": "start-up", "ts": _us(attempt.from_s),
                "dur": _us(first_step_s), "args": {"until": "the first step"},
            })  # fmt: skip

    def stops(self, event: Row) -> None:
        """A request to stop an attempt: an instant on its first GPU."""
        attempt = self.runs.get(int(event["job"]))
        if attempt is None or not attempt.places:
            return
        takers = [job_name(int(job)) for job in event.get("takers") or ()]
        args = {"why": event["why"], "reason": event.get("reason", ""), "for": ", ".join(takers)}
        name = f"{job_name(attempt.job)} stops: {event['why']}" + (f", for {', '.join(takers)}" if takers else "")
        self.events.append({
            "ph": "i", "s": "t", "pid": self.node(attempt.places[0][0]), "tid": attempt.tracks[0], "cat": "stop",
            "name": name, "ts": _us(event["at_s"]), "args": args,
        })  # fmt: skip

    def counts(self, at_s: float) -> None:
        """Counters: jobs that wait, GPUs that attempts hold."""
        held = len({(node, gpu) for node, gpu, _ in self.busy})
        for name, unit, value in (("waiting jobs", "jobs", len(self.waits)), ("GPUs held", "GPUs", held)):
            self.events.append(
                {"ph": "C", "pid": QUEUE, "tid": 0, "name": name, "ts": _us(at_s), "args": {unit: value}}
            )


def trace_events(entries: Iterable[Row], now_s: float | None = None) -> list[dict[str, Any]]:
    """Events of the Chrome trace format of entries of the log, as `/v1/events` or a saved log has them.

    Times are microseconds on the service's clock. Unfinished intervals end at `now_s`, seconds; by default at the last
    entry.
    """
    trace = _Trace([_meta(QUEUE, "process_name", "queue")])
    for entry in entries:
        before = (len(trace.waits), len(trace.busy))
        event = entry["event"]
        trace.now_s = max(trace.now_s, float(entry.get("at_s", event["at_s"])))
        _take(trace, event)
        if (len(trace.waits), len(trace.busy)) != before:
            trace.counts(event["at_s"])
    end_s = max(trace.now_s, now_s or 0.0)
    for job in list(trace.runs):
        trace.ends(job, end_s, outcome="still runs")
    for job in list(trace.waits):
        trace.waits_until(job, end_s, "still waits")
    return trace.events


def _take(trace: _Trace, event: Row) -> None:
    """One entry of the log."""
    kind, at_s = event["type"], float(event["at_s"])
    if kind == "Requested":
        for number, request in enumerate(event["requests"], start=int(event["first"])):
            trace.names[number] = {"name": request.get("name", ""), "user": event["owner"]}
            trace.waits_from(number, at_s)
    elif kind == "AttemptBegan":
        trace.begins(event)
    elif kind == "AttemptOver":
        said = ("outcome", "steps", "first_step_s", "batch_size", "lost_work_s", "why_lost")
        trace.ends(int(event["job"]), float(event["ended_s"]), **{name: event.get(name) for name in said})
        if event["outcome"] not in _FOR_GOOD:
            trace.waits_from(int(event["job"]), float(event["ended_s"]))
    elif kind == "StopAsked":
        trace.stops(event)
    elif kind == "ProfileRecorded" and event.get("stage_s") and event.get("job") in trace.runs:
        names = (f"{resource.name.lower()}, ms" for resource in Resource)
        times = dict(zip(names, (1000 * s for s in event["stage_s"]), strict=False))
        trace.runs[event["job"]].args["stages of an iteration"] = times
    elif kind in _ENDS and not (kind == "JobFailed" and event.get("again", True)):
        for job in map(int, event["jobs"]):
            trace.over.add(job)
            if (
                kind == "JobFailed" and job in trace.tried
            ):  # since its last attempt failed, it waited for this entry and for nothing else
                trace.waits.pop(job, None)
            trace.waits_until(job, at_s, _ENDS[kind])
    elif kind in _MARKED:
        where = event.get("node")
        node = where["id"] if isinstance(where, Mapping) else where
        pid = QUEUE if node is None else trace.node(str(node))
        trace.events.append({
            "ph": "i", "s": "p", "pid": pid, "tid": 0, "cat": "cluster", "name": in_words(event), "ts": _us(at_s),
            "args": {"entry": kind},
        })  # fmt: skip


def write_trace(entries: Iterable[Row], path: str | Path, now_s: float | None = None) -> int:
    """Write the trace as JSON, whole or not at all; the number of its events. Arguments as of `trace_events`."""
    events = trace_events(entries, now_s)
    with whole_file(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for i, event in enumerate(events):
            file.write((",\n" if i else "\n") + json.dumps(event, separators=(",", ":"), ensure_ascii=False))
        file.write("\n]}\n")
    return len(events)


def _meta(pid: int, name: str, value: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {"name": value}}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
