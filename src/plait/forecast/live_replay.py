"""The simulator with the timing of the live service, and with the external events of the log at their times.

decisions    when something has changed, at once if the last one is `gap_s` ago, else then
starting     a job that starts takes part in no gate before its first iteration; then all get a new pace
news         other policies, measured profiles, stop costs and estimates of adaptive jobs arrive when they arrived live
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TypeAlias

import numpy as np

from plait.control.controller import Controller
from plait.control.messages import (
    Command,
    Event,
    GoodputReported,
    JobHeld,
    JobKept,
    JobProfiled,
    Launch,
    StopCostReported,
)
from plait.core.arrays import BoolArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.core.policy import Policy
from plait.sim.backend import Simulator
from plait.sim.settings import SimulationSettings
from plait.sim.state import to_ms

#: Reports of jobs about themselves.
ExternalEvent: TypeAlias = JobProfiled | GoodputReported | StopCostReported | JobKept | JobHeld

News = tuple[float, Policy | ExternalEvent]


class LiveReplay(Simulator):
    """A simulator that calls its controller when the live service would have called it."""

    def __init__(
        self,
        truth: JobBatch,
        cluster: Cluster,
        settings: SimulationSettings,
        reported: JobBatch,
        *,
        gap_s: float,
        first_s: float,
        news: Sequence[News],
    ) -> None:
        """`news` (seconds, what) in order of time; no decision before `first_s`."""
        super().__init__(truth, cluster, settings, reported)
        self.controller: Controller | None = None
        self.gap_ms, self.decide_ms = to_ms(gap_s), to_ms(first_s)
        self.news: list[News] = list(news)
        self.starting: set[int] = set()
        self.reports_estimates = False

    def awake(self, jobs: IntArray) -> BoolArray:
        """Which of these jobs run and have their start behind them."""
        awake: BoolArray = (self.is_running[jobs] == 1) & (self.since_ms[jobs] <= self.now)
        return awake

    def events(self) -> Iterator[Event]:
        """Everything that happens until the last job has ended."""
        assert self.controller is not None
        while self.ended < len(self.truth):
            due = self._due()
            if self.adapt_until(due):
                continue
            if due == math.inf:
                return
            yield from self.happened(due)
            yield from self._external_events(due)
            self._join(due)
            if self._decides(due):
                self.decide_ms = due + self.gap_ms
                yield self.replan_due()
            self.check_progress()

    def _due(self) -> float:
        """When something happens next: to jobs, from outside, or because a decision may be made."""
        due = self.next_due()
        if self.news:
            due = min(due, max(to_ms(self.news[0][0]), self.now))
        for job in self.starting:
            due = min(due, max(float(self.since_ms[job]), self.now))
        assert self.controller is not None
        if self.controller.changed and self.arrived:
            due = min(due, max(self.decide_ms, self.now))
        return due

    def _decides(self, now_ms: float) -> bool:
        """Whether the service would decide now."""
        assert self.controller is not None
        wanted = self.controller.changed or to_ms(self.controller.plan.valid_until_s) <= now_ms
        if wanted and now_ms >= self.decide_ms:
            return True
        if self.wake_ms <= now_ms:
            self.wake_ms = self.decide_ms if wanted else math.inf
        return False

    def _external_events(self, now_ms: float) -> Iterator[Event]:
        """The external events that are due by now."""
        assert self.controller is not None
        while self.news and to_ms(self.news[0][0]) <= now_ms:
            what = self.news.pop(0)[1]
            if isinstance(what, (JobProfiled, GoodputReported, StopCostReported, JobKept, JobHeld)):
                known = np.flatnonzero(what.jobs < self.controller.job_store.count)
                if len(known):
                    yield _rows(what, known, what.jobs[known], now_ms / 1000)
            else:
                self.controller.policy, self.controller.changed = what, True

    def execute(self, command: Command) -> None:
        """Carry out a command; launched jobs do not take part in gates yet."""
        super().execute(command)
        if isinstance(command, Launch):
            self.starting.update(command.groups.jobs.tolist())
            self._join(self.now)

    def _join(self, now_ms: float) -> None:
        """Jobs whose start is over by now change the pace of their group."""
        ready = [job for job in self.starting if not self.is_running[job] or self.since_ms[job] <= now_ms]
        self.starting.difference_update(ready)
        for job in sorted(ready):
            if self.is_running[job] and job in self.groups:
                self.share_gpus(self.groups[job], now_ms)


def _rows(event: ExternalEvent, rows: IntArray, jobs: IntArray, at_s: float) -> ExternalEvent:
    """Some rows of an event, about jobs of these numbers."""
    names = [f.name for f in fields(event) if f.name not in ("at_s", "jobs")]
    return replace(event, at_s=at_s, jobs=jobs, **{name: getattr(event, name)[rows] for name in names})


def numbered(events: Sequence[ExternalEvent], jobs: Sequence[int]) -> list[News]:
    """The events about these jobs of the log, under their numbers in the simulation."""
    number = {job: i for i, job in enumerate(jobs)}
    out: list[News] = []
    for event in events:
        rows = np.array([i for i, job in enumerate(event.jobs.tolist()) if job in number], dtype=np.int64)
        if len(rows):
            new = np.array([number[int(event.jobs[i])] for i in rows], dtype=np.int64)
            out.append((event.at_s, _rows(event, rows, new, event.at_s)))
    return out
