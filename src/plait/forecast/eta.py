"""Forecasts of starts and ends: the current queue, simulated forward under the same policy.

A forecast is some runs of the simulator from the state the cluster is in now. They differ in what is unknown: the
true time of an iteration, the work of a job that did not state it, and the cost of its start and end. The result is an
interval, with its assumptions. Arrivals of other jobs and other load of the machines are not predicted, so the interval
is widened by the errors of earlier forecasts (`calibrated`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.drive import drive
from plait.control.messages import Command, Event, Launch
from plait.core.arrays import FloatArray
from plait.core.errors import PlaitError
from plait.core.jobs import Phase
from plait.core.words import counted
from plait.forecast.drawn import PACE_NOISE, Drawn, draw
from plait.forecast.resume import ResumedSimulator
from plait.live.scheduler.records.track_record import ENOUGH, START_UP_S, Calibration, Said, TrackRecord
from plait.sim.physics import StandardPhysics
from plait.sim.settings import SimulationSettings

#: Runs of one forecast.
RUNS = 10
#: The interval: this share of the runs lies below its beginning, and above its end.
TAIL = 0.1
#: Maximum sources of durations that are named, largest first.
SOURCES = 3
#: Cost of taking turns relative to its model (measured: 1.10 of the bound for tokens, 1.02 for barriers).
TURNS_COST = (1.0, 1.1, 1.1, 1.1)


@dataclass(frozen=True)
class Interval:
    """Seconds from now: most runs lie between; infinite if it does not happen in a run. `middle_s` is their median."""

    low_s: float
    high_s: float
    middle_s: float = field(default=math.nan, compare=False)

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The middle of these values."""
        ordered = np.sort(np.array(values, dtype=np.float64))
        last = len(ordered) - 1
        low, high = float(ordered[math.floor(TAIL * last)]), float(ordered[math.ceil((1 - TAIL) * last)])
        return cls(low, high, float(ordered[last // 2]))

    @property
    def said(self) -> Said:
        """Early bound, median, late bound."""
        return self.low_s, self.middle_s, self.high_s

    def calibrated(self, calibration: Calibration) -> Interval:
        """The same forecast with bounds corrected by the errors of earlier ones."""
        low_s, high_s = calibration.interval(self.said)
        return Interval(low_s, high_s, self.middle_s)

    def to_json(self) -> list[float | None]:
        """Both bounds; null for never."""
        return _plain(self.low_s, self.high_s)

    def said_json(self) -> list[float | None]:
        """Early bound, median, late bound, none of them in the past; null for never."""
        return _plain(*(max(0.0, seconds) for seconds in self.said))


def _plain(*seconds: float) -> list[float | None]:
    return [round(v, 3) if math.isfinite(v) else None for v in seconds]


@dataclass(frozen=True)
class Eta:
    """One job: when it starts next (None if it runs), and when it ends.

    `least_s`: seconds from its start to its end, in the shortest run of the forecast.
    """

    start: Interval | None
    end: Interval
    least_s: float = field(default=0.0, compare=False)

    def consistent(self) -> Eta:
        """The same, with an end that comes as long after the start as the job takes at least, early and late."""
        start, end = self.start, self.end
        if start is None:
            return self
        low_s = max(end.low_s, max(start.low_s, 0.0) + self.least_s)
        return replace(self, end=replace(end, low_s=low_s, high_s=max(end.high_s, start.high_s + self.least_s, low_s)))


@dataclass(frozen=True)
class Forecast:
    """The jobs that have not ended, by number, and what was assumed."""

    now_s: float
    runs: int
    etas: dict[int, Eta]
    assumptions: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Known:
    """Remaining times of jobs without own progress, as the service drew them from ended jobs.

    `left_s`: seconds by the number of the job in the controller, as many draws of each job; `sources`: the same
    number -> from what these are, in words.
    """

    left_s: Mapping[int, Sequence[float]] = field(default_factory=dict)
    sources: Mapping[int, str] = field(default_factory=dict)

    def takes_s(self, n: int, draw: int) -> FloatArray:
        """One draw of all `n` jobs together, seconds; NaN of jobs that are not in it."""
        out = np.full(n, math.nan)
        for job, left_s in self.left_s.items():
            out[job] = left_s[draw % len(left_s)]
        return out


def forecast(
    make: Callable[[], Controller],
    *,
    round_s: float = 0.0,
    record: TrackRecord | None = None,
    starting: Collection[int] = (),
    runs: int = RUNS,
    seed: int = 0,
    known: Known | None = None,
) -> Forecast:
    """Play the state of the controllers that `make` makes forward until all jobs have ended.

    `round_s` is the seconds between decisions, `record` what starts and ends cost on this cluster, `starting` the jobs
    that run and have not made an iteration since their last start, `known` what the service knows of durations. A
    function of its arguments.
    """
    first = make()
    record, known = record or TrackRecord(), known or Known()
    now_s, jobs, assumptions = first.now_s, first.active.tolist(), _assumptions(first, runs, record, known)
    running = {job for job in jobs if first.job_store.columns["phase"][job] == int(Phase.RUNNING)}
    starts: dict[int, list[float]] = {job: [] for job in jobs}
    ends: dict[int, list[float]] = {job: [] for job in jobs}
    settings = SimulationSettings(physics=StandardPhysics(interference=TURNS_COST), round_s=round_s)
    for run in range(runs if jobs else 0):
        controller = first if run == 0 else make()
        n = controller.job_store.count
        pace = pace_s({name: column[:n] for name, column in controller.job_store.columns.items()}, n)
        takes_s = known.takes_s(n, seed + run)
        drawn = draw(controller, pace, record, starting, np.random.default_rng((seed, run)), takes_s)
        launched = play(controller, drawn, settings)
        end_s = controller.job_store.columns["end_s"]
        for job in jobs:
            starts[job].append(launched.get(job, math.inf) - now_s)
            ended = float(end_s[job])
            ends[job].append(math.inf if math.isnan(ended) else ended - now_s)
    etas = {
        job: Eta(
            None if job in running else Interval.of(starts[job]), Interval.of(ends[job]), _least(starts[job], ends[job])
        )
        for job in jobs
    }
    return Forecast(now_s, runs, etas, assumptions)


def calibrated(found: Forecast, record: TrackRecord) -> Forecast:
    """The forecast with intervals that would have held for four in five earlier ones here."""
    start, end = (Calibration.of(list(record.scores[what])) for what in ("start", "end"))
    etas = {
        job: replace(
            eta, start=None if eta.start is None else eta.start.calibrated(start), end=eta.end.calibrated(end)
        ).consistent()
        for job, eta in found.etas.items()
    }
    count = min(start.known, end.known)
    if count >= ENOUGH:
        basis = f"what came of the last {count} forecasts on this cluster"
    else:
        basis = f"what came of {counted(count, 'forecast')} on this cluster, and a prior until there are {ENOUGH}"
    text = f"intervals are as wide as four in five need, by {basis}"
    return replace(found, etas=etas, assumptions=(*found.assumptions, text))


def _least(starts: Sequence[float], ends: Sequence[float]) -> float:
    """Seconds from a start to an end in the shortest of these runs; 0 if it ends in none."""
    took = [end - start for start, end in zip(starts, ends, strict=True) if math.isfinite(end) and math.isfinite(start)]
    return max(0.0, min(took, default=0.0))


def play(controller: Controller, drawn: Drawn, settings: SimulationSettings) -> dict[int, float]:
    """Drive `controller` with the jobs `drawn` to the end; returns the first launch of each job by number, seconds.

    A run that cannot continue (jobs that fit nowhere, a policy that gives up) ends there: its jobs have no end.
    """
    began: dict[int, float] = {}

    def note(event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Launch):
                for job in command.groups.jobs.tolist():
                    began.setdefault(job, event.at_s)

    with suppress(PlaitError):
        drive(controller, ResumedSimulator(controller, drawn.truth, settings, drawn.left_s, drawn.costs_s), note)
    return began


def pace_s(columns: dict[str, Any], n: int) -> FloatArray:
    """Seconds an iteration of each job alone, at the requested size.

    As measured or stated, else from its progress so far (of an elastic job by its GPU-seconds, since it may have had
    other sizes), else from the progress of others.
    """
    known = columns["iteration_s"].copy()
    done, run_s = columns["iterations_done"], columns["run_s"]
    elastic = columns["min_gpus"] < columns["max_gpus"]
    run_s = np.where(elastic, columns["attained_gpu_s"] / columns["gpus"], run_s)
    seen = np.isnan(known) & (done > 0) & (run_s > 0)
    known[seen] = run_s[seen] / done[seen]
    others = known[~np.isnan(known)]
    known[np.isnan(known)] = float(np.median(others)) if len(others) else 1.0
    result: FloatArray = np.maximum(known, 1e-6)
    return result


def _assumptions(controller: Controller, runs: int, record: TrackRecord, known: Known) -> tuple[str, ...]:
    columns = controller.job_store.columns
    active = np.array([job for job in controller.active.tolist() if job not in known.left_s], dtype=np.int64)
    silent = int(np.isnan(columns["iterations"][active]).sum())
    unmeasured = int(np.isnan(columns["iteration_s"][active]).sum())
    starts = record.starts_s
    start = f"{np.median(starts):.1f} s as measured here" if starts else f"{START_UP_S:.1f} s, not measured here yet"
    out = [
        f"{runs} runs of the queue as it is, under {describe(controller.policy)}; no new jobs, no failures",
        f"iterations take {PACE_NOISE:.0%} more or less than measured; a start costs {start}",
    ]
    for source, count in Counter(known.sources.values()).most_common(SOURCES):
        take = "takes" if count == 1 else "take"
        out.append(f"how long {counted(count, 'job')} without progress still {take} is drawn from {source}")
    if silent:
        who = "1 job" if silent == 1 else f"{silent} jobs"
        out.append(f"{who} did not report a total: assumed to run as long as finished jobs here")
    if unmeasured:
        who = "1 job is" if unmeasured == 1 else f"{unmeasured} jobs are"
        out.append(f"{who} not profiled yet, and taken to go as fast as others")
    return tuple(out)
