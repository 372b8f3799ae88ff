"""How often intervals hold: each submission of a run or of a log is forecast at its first decision, and then awaited.

A forecast knows only what was known then: jobs that had ended, and what had come of the forecasts before. By these its
intervals are corrected, as the live service does it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.messages import Event, JobSubmitted, ReplanDue
from plait.core.jobs import Phase
from plait.core.words import command_line
from plait.live.scheduler.explain.durations import History
from plait.live.scheduler.explain.outlook import Calibrations, Times, foresee
from plait.live.scheduler.explain.queue_arrays import Who, arrays_of
from plait.live.scheduler.records.track_record import ENOUGH, SCORES, TrackRecord, score
from plait.live.scheduler.state import State
from plait.outlook.log_replay import LoggedEntry

#: A start counts as a wait if it was to come later than this, seconds.
AT_ONCE_S = 1.0


@dataclass(frozen=True)
class HeldForecast:
    """A forecast of a start or an end and what came: whether it lay in the interval of one in two, of four in five.

    `raw`: whether the draws alone, before any correction, had it between their tenth and their ninth tenth. `known`:
    earlier forecasts that it was corrected by. `at_once`: a start that was to come at once.
    """

    job: int
    half: bool
    wide: bool
    raw: bool
    known: int
    at_once: bool
    wide_s: tuple[float, float]
    came_s: float


@dataclass
class _Open:
    at_s: float
    times: dict[str, tuple[Times, int]]


@dataclass(frozen=True)
class HeldShare:
    """Of `count` forecasts the shares that lay in each interval, and the median width of the wide one, seconds."""

    count: int
    half: float
    wide: float
    raw: float
    width_s: float

    @classmethod
    def of(cls, held: Sequence[HeldForecast]) -> HeldShare:
        """Their means; NaN of none."""
        if not held:
            return cls(0, math.nan, math.nan, math.nan, math.nan)
        widths = [one.wide_s[1] - one.wide_s[0] for one in held]
        half, wide, raw = (float(np.mean([getattr(one, name) for one in held])) for name in ("half", "wide", "raw"))
        return cls(len(held), half, wide, raw, float(np.median(widths)))


@dataclass
class Coverage:
    """Watches a controller and forecasts every `each`-th job that is submitted.

    `who`: whose a job is, by its number; `draws` of each forecast.
    """

    who: Callable[[int], Who]
    each: int = 1
    draws: int = 40
    history: History = field(default_factory=History)
    record: TrackRecord = field(default_factory=TrackRecord)
    held: dict[str, list[HeldForecast]] = field(default_factory=lambda: {name: [] for name in SCORES})
    _new: list[int] = field(default_factory=list)
    _open: dict[int, _Open] = field(default_factory=dict)
    _running: set[int] = field(default_factory=set)

    def see(self, controller: Controller, event: Event | None) -> None:
        """After an event: forecast what is new, and settle what came."""
        if isinstance(event, JobSubmitted):
            self._new += range(event.first, event.first + len(event.jobs))
        columns, now_s = controller.job_store.columns, controller.now_s
        running = set(controller.active[columns["phase"][controller.active] == int(Phase.RUNNING)].tolist())
        for job in [job for job in self._open if job not in self._running and job in running]:
            self._came(job, "start", float(columns["first_start_s"][job]))
        for job in self._running - running:
            if columns["phase"][job] < int(Phase.FINISHED):
                continue
            run_s = float(columns["run_s"][job])
            stated_s = float(columns["iterations"][job] * columns["iteration_s"][job])
            user, name, command = self.who(job)
            self.history.add(user, name, int(columns["gpus"][job]), run_s, stated_s, command)
            if job in self._open:
                if columns["phase"][job] == int(Phase.FINISHED):
                    self._came(job, "end", now_s)
                del self._open[job]
                self.record.open.pop(job, None)
        self._running = running
        if isinstance(event, ReplanDue) and self._new:
            self._forecast(controller)

    def _forecast(self, controller: Controller) -> None:
        mine, self._new = [job for job in self._new if job % self.each == self.each - 1], []
        if not mine:
            return
        seed = mine[0]
        found = foresee(arrays_of(controller, self.who), self.history, controller.now_s, self.draws, seed)
        by = Calibrations.of(self.record, controller.now_s)
        for job in mine:
            row = found.row.get(job)
            if row is None:
                continue
            start = Times.of(found.starts_s[:, row], by.start)
            end = Times.of(found.ends_s[:, row], by.end).after(start)
            times = {"end": (end, by.end.known)}
            if found.queue.place[row] < 0:
                times["start"] = start, by.start.known
            self._open[job] = _Open(controller.now_s, times)
            said = {what: list(times[what][0].said) if what in times else None for what in SCORES}
            self.record.open[job] = {"at_s": controller.now_s, **said}

    def _came(self, job: int, what: str, at_s: float) -> None:
        one = self._open[job]
        if what not in one.times:
            return
        times, known = one.times.pop(what)
        self.record.open[job][what] = None
        came_s = at_s - one.at_s
        if (found := score(times.said, came_s)) is not None:
            self.record.scores[what].append(found)
        self.held[what].append(
            HeldForecast(
                job, _in(times.half, came_s), _in(times.wide, came_s), _in((times.said[0], times.said[2]), came_s),
                known, times.said[1] <= AT_ONCE_S, times.wide, came_s,
            )
        )  # fmt: skip

    def shares(self) -> dict[str, HeldShare]:
        """Of starts after a wait and of ends: all, and the ones made after `ENOUGH` others had come."""
        out: dict[str, HeldShare] = {}
        for what in SCORES:
            held = self.held[what]
            out[what] = HeldShare.of(held)
            out[f"{what}, corrected"] = HeldShare.of([one for one in held if one.known >= ENOUGH])
        return out

    def to_json(self) -> dict[str, Any]:
        """The shares as plain values; null for unknown ones."""
        return {
            what: {
                name: None if math.isnan(value) else value
                for name in ("count", "half", "wide", "raw", "width_s")
                for value in [float(getattr(share, name))]
            }
            for what, share in self.shares().items()
        }


def _in(interval: tuple[float, float], came_s: float) -> bool:
    """Whether it lay there, to the resolution of the clock."""
    return interval[0] - AT_ONCE_S / 2 <= came_s <= interval[1] + AT_ONCE_S / 2


class LogCoverage:
    """Follows the replay of a live log (`replay(..., observe=...)`)."""

    def __init__(self, *, forecasts: bool = True) -> None:
        """Nothing is forecast yet. Without `forecasts` it only collects how long jobs took."""
        self._names: dict[int, Who] = {}
        self._numbered = 0
        each = 1 if forecasts else sys.maxsize
        self.coverage = Coverage(lambda number: self._names.get(number, Who("", "")), each)

    def __call__(self, state: State, row: LoggedEntry) -> None:
        if state.controller is None:
            return
        while self._numbered < state.numbers:
            job = state.jobs.get(self._numbered)
            if job is not None:
                name = str(job.request.get("name") or job.request.get("model") or "")
                self._names[self._numbered] = Who(job.owner, name, command_line(job.request["command"]))
            self._numbered += 1
        self.coverage.see(state.controller, row.event)
