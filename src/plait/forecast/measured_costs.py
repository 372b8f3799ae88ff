"""Input of a simulation from a live log: the cost of starts and stops, and the times of external events.

Every job's seconds are measured by its agent: from the assignment to its first iteration, from its last iteration
to its end, from the stop request to its end. Where something was not measured, a job counts like the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plait.control.messages import (
    GoodputReported,
    JobFailed,
    JobHeld,
    JobKept,
    JobProfiled,
    LaunchFailed,
    ProgressReported,
    ReplanDue,
    StopCostReported,
)
from plait.core.policy import Policy
from plait.forecast.log_replay import LoggedEntry
from plait.live.scheduler.records.notes import AttemptBegan, AttemptOver, Note, Requested, StopAsked
from plait.live.scheduler.state import State
from plait.sim.training import Report


@dataclass
class Costs:
    """Seconds of one job: of each start until an iteration was done, of each stop, and from the last iteration on."""

    starts_s: list[float] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)
    tail_s: float = math.nan


@dataclass
class _Attempt:
    """`blocked_s`: until then a job that had to stop was still on its GPUs; that wait is predicted."""

    began_s: float
    gpus: frozenset[int] = frozenset()
    stop_s: float = math.nan
    blocked_s: float = -math.inf


class MeasuredCosts:
    """Follows a replay (`replay(..., observe=observed)`) and records measurements and external events."""

    def __init__(self) -> None:
        self.costs: dict[int, Costs] = {}
        self.policies: list[tuple[float, Policy]] = []
        self.policy_texts: list[tuple[float, str]] = []
        self.profiles: list[JobProfiled] = []
        self.estimates: list[GoodputReported] = []
        self.stop_costs: list[StopCostReported | JobKept | JobHeld] = []
        self.reports: dict[int, list[Report]] = {}  # of each job that adapts its batch
        self.silent_s: dict[int, float] = {}  # seconds that it held its GPUs until the first report
        self.first_decision_s = math.nan
        self.failures = 0
        self.world_sizes: dict[int, int] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._began: dict[int, float] = {}

    def __call__(self, state: State, row: LoggedEntry) -> None:
        """Record an entry of the log and the state after it."""
        self._follow_policy(state, row)
        event = row.event
        if isinstance(row.entry, Note):
            self._note(row.entry)
        elif isinstance(event, ReplanDue) and math.isnan(self.first_decision_s):
            self.first_decision_s = event.at_s
        elif isinstance(event, JobProfiled):
            self.profiles.append(event)
        elif isinstance(event, GoodputReported):
            self.estimates.append(event)
            self._report(state, event)
        elif isinstance(event, (StopCostReported, JobKept, JobHeld)):
            self.stop_costs.append(event)
        elif isinstance(event, (JobFailed, LaunchFailed)):
            self.failures += len(event.jobs)
        elif isinstance(event, ProgressReported):
            self._progress(event)

    def _follow_policy(self, state: State, row: LoggedEntry) -> None:
        policy = state.controller.policy if state.controller is not None else None
        if policy is None or (self.policies and self.policies[-1][1] is policy):
            return
        self.policies.append((state.now_s, policy))
        if not self.policy_texts or self.policy_texts[-1][1] != state.policy_text:
            self.policy_texts.append((state.now_s, state.policy_text))

    def _note(self, note: Note) -> None:
        if isinstance(note, Requested):
            for i, request in enumerate(note.requests):
                self.world_sizes[note.first + i] = int(request.get("processes_per_gpu") or 1)
        elif isinstance(note, AttemptBegan):
            self._attempts[note.job] = _Attempt(note.at_s, frozenset(note.gpus))
        elif isinstance(note, StopAsked) and note.job in self._attempts:
            self._attempts[note.job].stop_s = note.at_s
        elif isinstance(note, AttemptOver) and note.job in self._attempts:
            self._over(self._attempts.pop(note.job), note)

    def _over(self, attempt: _Attempt, note: AttemptOver) -> None:
        costs = self.costs.setdefault(note.job, Costs())
        first_s, last_s, held_s = note.first_step_s, note.last_step_s, note.held_s
        ended_s = note.ended_s
        if first_s is not None:
            costs.starts_s.append(max(0.0, ended_s - held_s - max(attempt.began_s, attempt.blocked_s)) + first_s)
        if math.isfinite(attempt.stop_s):
            for waiting in self._attempts.values():
                if waiting.gpus & attempt.gpus:
                    waiting.blocked_s = max(waiting.blocked_s, ended_s)
        if note.outcome == "finished" and last_s is not None:
            costs.tail_s = max(0.0, held_s - last_s)
        elif note.outcome == "preempted" and math.isfinite(attempt.stop_s):
            costs.stops_s.append(max(0.0, note.at_s - attempt.stop_s))

    def _report(self, state: State, event: GoodputReported) -> None:
        assert state.controller is not None
        columns = state.controller.job_store.columns
        done = columns["iterations_done"]
        for job, row in zip(event.jobs.tolist(), event.goodput, strict=True):
            self.silent_s.setdefault(job, float(columns["run_s"][job]))
            self.reports.setdefault(job, []).append((float(done[job]), row))

    def _progress(self, event: ProgressReported) -> None:
        """Estimate the start of jobs with less detailed reports: time held at the first report, less its iterations."""
        for job, done, held, pace in zip(
            event.jobs.tolist(), event.iterations_done.tolist(), event.run_s.tolist(), event.iteration_s.tolist(),
            strict=True,
        ):  # fmt: skip
            if done > 0 and math.isfinite(pace) and job not in self._began:
                self._began[job] = max(0.0, held - (done - 1) * pace)

    def start_s(self, job: int) -> float:
        """Seconds of the job's first start, its first iteration included; NaN if it was not seen."""
        costs = self.costs.get(job)
        return costs.starts_s[0] if costs and costs.starts_s else self._began.get(job, math.nan)

    def again_s(self, job: int) -> float:
        """Seconds of a later start; NaN if there was none."""
        costs = self.costs.get(job)
        return _mean(costs.starts_s[1:] if costs else [])

    def stop_s(self, job: int) -> float:
        """Seconds from the stop request to the end; NaN without one."""
        costs = self.costs.get(job)
        return _mean(costs.stops_s if costs else [])

    def tail_s(self, job: int) -> float:
        """Seconds from the last iteration to the end; NaN if it was not seen."""
        costs = self.costs.get(job)
        return costs.tail_s if costs else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
