"""The artifact's event loop and its results.

`run` is the front: a trace, a policy, its options. By default everything is as released: decisions at every
event, overhead subtracted at every event from every running job. Two parameters make the world more real:
`round_s` lets decisions wait for a multiple of it, as the real prototype does (360 s), and
`overhead="at_start"` charges a job once when it starts or its group or its nodes change, always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError, SimulationError, suggest
from plait_papers.muri.artifact.settings import make_rule
from plait_papers.muri.artifact.state import Rule, State, advance, ends, first_to_end, same, waiting
from plait_papers.muri.artifact.trace import ArtifactTrace, p99

Overhead = Literal["every_event", "at_start"]


@dataclass(frozen=True, eq=False)
class ArtifactRun:
    """One finished run. Columns over the jobs of the trace, in its order, and samples over the events.

    `attained_s` is the wall time a job ran, `starts` how often it went from waiting to running. `event_s`, `queue` and
    `blocking` are the time of each event and, after its decision, how many jobs wait and their mean of time waited /
    remaining solo run time (0 if none waits).
    """

    submit_s: FloatArray
    first_start_s: FloatArray
    end_s: FloatArray
    attained_s: FloatArray
    starts: IntArray
    event_s: FloatArray
    queue: IntArray
    blocking: FloatArray

    @property
    def events(self) -> int:
        """Events handled, that is decisions made."""
        return len(self.event_s)

    @property
    def jct_s(self) -> FloatArray:
        """Completion time of each job, from its submission."""
        return self.end_s - self.submit_s

    @property
    def mean_jct_s(self) -> float:
        """Mean job completion time, seconds."""
        total = 0.0
        for jct_s in self.jct_s.tolist():
            total += jct_s
        return total / len(self.end_s)

    @property
    def makespan_s(self) -> float:
        """When the last job ends; the first is submitted at 0 in the artifact's traces."""
        return float(self.end_s.max())

    @property
    def p99_jct_s(self) -> float:
        """The 99th percentile as the artifact takes it."""
        return p99(self.jct_s)

    @property
    def mean_queue(self) -> float:
        """Waiting jobs, averaged over the time from the first event to the last."""
        span_s = np.diff(self.event_s)
        total_s = float(span_s.sum())
        return float((self.queue[:-1] * span_s).sum() / total_s) if total_s > 0 else float(self.queue[0])

    @property
    def mean_blocking(self) -> float:
        """The blocking index, averaged over events; a nearly finished job that waits makes it explode."""
        return float(self.blocking.mean())

    @property
    def median_blocking(self) -> float:
        """The blocking index of the middle event."""
        return float(np.median(self.blocking))


def run(
    trace: ArtifactTrace,
    policy: str,
    options: Mapping[str, object] | None = None,
    *,
    ended: Callable[[int], None] | None = None,
    round_s: float = 0.0,
    overhead: Overhead = "every_event",
    seen: ArtifactTrace | None = None,
) -> ArtifactRun:
    """Runs a trace to its end on the artifact's 64 GPUs.

    policy: srtf, srsf, tiresias, themis, antman, muri-s or muri-l; options: see `artifact.options`.
    ended: called with the number of jobs ended so far, after every event that ends some.
    round_s: decide only at multiples of this many seconds; 0 decides at every event.
    seen: the same jobs with the stage times that Muri believes, the true ones by default.

    Raises `InputError` for unknown names or values and `SimulationError` if a job can never run.
    """
    if not (math.isfinite(round_s) and round_s >= 0):
        raise InputError(f"round_s must be a number of seconds >= 0, got {round_s}")
    if overhead not in ("every_event", "at_start"):
        raise InputError(f"unknown overhead {overhead!r}; {suggest(overhead, ('every_event', 'at_start'))}")
    return _World(trace, make_rule(policy, options or {}, trace, seen), round_s, overhead).run(ended)


@dataclass(frozen=True, eq=False)
class _Event:
    """The next event: jobs up to `arrived` (exclusive) have been submitted, `done` have ended at `done_s`."""

    at_s: float
    arrived: int
    done: IntArray
    done_s: FloatArray


class _World:
    """One run in progress."""

    def __init__(self, trace: ArtifactTrace, rule: Rule, round_s: float, overhead: Overhead) -> None:
        n = len(trace)
        self.trace, self.rule, self.round_s = trace, rule, round_s
        self.at_start = overhead == "at_start"
        self.state = State.before(trace)
        self.debt_s = np.zeros(n)
        self.no_wait_s = np.zeros(n)
        self.arrived, self.round = 0, -1
        self.first_start_s, self.end_s = np.full(n, np.nan), np.full(n, np.nan)
        self.starts = np.zeros(n, dtype=np.int64)
        self.samples: list[tuple[float, int, float]] = []
        # For each job that opens an arrival event, the job after the last one of it; times within 1e-9 are one event.
        submit_s = trace.submit_s
        after = [0] * len(submit_s)
        first = 0
        for job, at_s in enumerate(submit_s.tolist()):
            if not same(at_s, float(submit_s[first]), 1e-9, 0.0):
                first = job
            after[first] = job + 1
        self.next_arrival = after

    def run(self, ended: Callable[[int], None] | None) -> ArtifactRun:
        """Event after event, until all jobs have ended."""
        done, n = 0, len(self.trace)
        following = self._next_round if self.round_s > 0 else self._next_event
        while done < n:
            event = following()
            self._handle(event)
            if len(event.done):
                done += len(event.done)
                if ended is not None:
                    ended(done)
        at_s, queue, blocking = zip(*self.samples, strict=True)
        return ArtifactRun(
            self.trace.submit_s,
            self.first_start_s,
            self.end_s,
            self.state.attained_s,
            self.starts,
            np.array(at_s),
            np.array(queue, dtype=np.int64),
            np.array(blocking),
        )

    # -- what comes next ---------------------------------------------------------------------------------------

    def _ends(self) -> tuple[IntArray, FloatArray]:
        s = self.state
        wait_s = self.debt_s if self.at_start else self.no_wait_s  # as released the last segment is free of overhead
        return ends(s.now_s, s.listed, s.running, wait_s, s.current_s, s.remaining)

    def _arrival_s(self) -> float:
        return float(self.trace.submit_s[self.arrived]) if self.arrived < len(self.trace) else math.inf

    def _next_event(self) -> _Event:
        rule = self.rule
        jobs, at_s = self._ends()
        completion_s, which = first_to_end(at_s, rule.bucket, rule.near_s)
        arrival_s, due_s = self._arrival_s(), rule.due_s(self.state)
        nobody = jobs[:0]
        if min(arrival_s, completion_s) > due_s:
            return _Event(due_s, self.arrived, nobody, at_s[:0])
        self._check(min(arrival_s, completion_s))
        # Infinities are neither near nor early: one of the two is finite here.
        together = math.isfinite(arrival_s + completion_s) and same(arrival_s, completion_s, rule.joint, rule.joint_s)
        if not together and arrival_s < completion_s:
            return _Event(arrival_s, self.next_arrival[self.arrived], nobody, at_s[:0])
        now_s = arrival_s if together else completion_s
        arrived = self.next_arrival[self.arrived] if together else self.arrived
        return _Event(now_s, arrived, jobs[which], np.full(len(which), now_s))

    def _next_round(self) -> _Event:
        state, round_s = self.state, self.round_s
        jobs, at_s = self._ends()
        first_s = min(self._arrival_s(), float(at_s.min(initial=math.inf)))
        self._check(first_s)
        first_s = min(first_s, self.rule.due_s(state))
        if len(jobs) < len(state.listed) or (state.mates[jobs, 1] >= 0).any():
            first_s = state.now_s  # another order could let others run: no round is skipped
        self.round = max(math.ceil(first_s / round_s), self.round + 1)
        now_s = self.round * round_s
        by_time = np.argsort(at_s, kind="stable")
        over = by_time[at_s[by_time] <= now_s]
        arrived = int(np.searchsorted(self.trace.submit_s, now_s, side="right"))
        return _Event(now_s, arrived, jobs[over], at_s[over])

    def _check(self, at_s: float) -> None:
        if not math.isfinite(at_s):
            row = int(self.trace.row[self.state.listed[0]])
            raise SimulationError(f"job {row} waits, and no event is left")

    # -- what it does ------------------------------------------------------------------------------------------

    def _handle(self, event: _Event) -> None:
        s, rule = self.state, self.rule
        s.now_s = event.at_s
        if len(event.done):
            self.end_s[event.done] = event.done_s
            s.attained_s[event.done] += event.done_s - s.last_s[event.done]
            s.listed = s.listed[~np.isin(s.listed, event.done)]
            rule.leave(s, event.done)
            s.running[event.done] = False
        if event.arrived > self.arrived:
            new = np.arange(self.arrived, event.arrived)
            s.listed = np.append(s.listed, new)
            rule.arrive(s, new)
            self.arrived = event.arrived
        advance(s.now_s, s.listed, s.running, s.last_s, self.debt_s, s.current_s, s.remaining, s.attained_s)
        rule.advanced(s)
        before = (s.running.copy(), s.where.copy(), s.mates.copy())
        rule.decide(s)
        self._settle(*before)
        t = self.trace
        queue, blocking = waiting(s.now_s, s.listed, s.running, t.submit_s, s.attained_s, s.remaining, t.iteration_s)
        self.samples.append((s.now_s, queue, blocking))

    def _settle(self, ran: BoolArray, where: IntArray, mates: IntArray) -> None:
        """Starts are counted, and overheads charged by the rule of this world."""
        s = self.state
        started = s.running & ~ran
        self.starts[started] += 1
        s.has_run |= s.running
        self.first_start_s[started & np.isnan(self.first_start_s)] = s.now_s
        charged = s.running
        if self.at_start:
            charged = s.running & (started | (s.where != where) | (s.mates != mates).any(axis=1))
        self.debt_s[charged] = s.charge_s[charged]
