"""Forecasts of starts and ends: the current queue, simulated forward under the same policy.

A forecast is some runs of the simulator from the state the cluster is in now. They differ in what is unknown: the
true time of an iteration, the work of a job that did not state it, and the cost of its start and end. The result is an
interval, with its assumptions. Arrivals of other jobs and other load of the machines are not predicted, so the interval
is widened by the errors of earlier forecasts (`calibrated`).

Costs of starts and ends are drawn from measurements of this cluster. The remaining time of a job without own progress
comes from the service, which knows earlier runs of the same script. Otherwise a job without stated work runs as long as
finished jobs here; a running one, as long as longer ones.
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
from plait.core.errors import InputError, PlaitError
from plait.core.jobs import JobBatch, Phase
from plait.core.plan import Group, Groups
from plait.core.policy import has_groups
from plait.core.words import counted
from plait.goodput.fixed_batch import with_fixed_batches
from plait.live.scheduler.records.track_record import ENOUGH, START_UP_S, STOP_S, Calibration, Said, TrackRecord
from plait.sim.backend import Simulator
from plait.sim.physics import StandardPhysics
from plait.sim.state import DONE, RUN, SERVICE, to_ms
from plait.sim.training import Training
from plait.sim.world import CHECKPOINT, FIELDS, LAUNCH, RESTORE, Overheads, SimulationSettings

#: Standard deviation of the logarithm of an iteration's time: of each job, and of all jobs of the cluster together.
PACE_NOISE = 0.1
#: Range of the work of a job that did not state it, as factors of the typical work here, while too few have ended; and
#: the typical work assumed while none has ended, seconds.
WORK_FACTORS, TYPICAL_S = (0.3, 3.0), 300.0
#: Number of ended jobs of the same user and model from which their durations count as typical.
ALIKE = 3
#: The longest known one is exceeded by up to this factor.
BEYOND = 3.0
#: Seconds from the last iteration to the end, and around a process that reports nothing, where none was measured.
END_S, LAG_S = 0.5, 0.5
#: Range of these, as factors.
COST_FACTORS = (0.3, 3.0)


@dataclass(frozen=True)
class Drawn:
    """Jobs as drawn; seconds that running ones need in addition to their iterations; costs of each, shape (jobs, 4)."""

    truth: JobBatch
    left_s: FloatArray
    costs_s: FloatArray


def draw(
    controller: Controller, pace: FloatArray, record: TrackRecord, starting: Collection[int], rng: Any,
    takes_s: FloatArray | None = None,
) -> Drawn:  # fmt: skip
    """One possible truth of every job of the job store, at these seconds an iteration (`pace_s`).

    `starting`: running jobs without an iteration since their last start. `takes_s`, shape (jobs,): seconds that jobs
    still take, their start and end included; NaN for jobs with known work and pace.
    """
    job_store, now_s = controller.job_store, controller.now_s
    n = job_store.count
    c = {name: column[:n] for name, column in job_store.columns.items()}
    specs = JobBatch.of([job_store.spec(i) for i in range(n)]).replace(checkpoints=c["checkpoints"].copy())
    noise = np.exp(rng.normal(0.0, PACE_NOISE) + rng.normal(0.0, PACE_NOISE, size=n))
    done, running = c["iterations_done"], c["phase"] == int(Phase.RUNNING)
    ended = c["phase"] >= int(Phase.FINISHED)
    silent = np.isnan(c["iterations"])
    takes_s = np.full(n, np.nan) if takes_s is None else takes_s
    given = np.isfinite(takes_s) & ~ended
    whole = silent | given  # its seconds are drawn, not its iterations
    iteration_s = np.where(given & ~silent, takes_s / np.maximum(c["iterations"] - done, 1.0), pace * noise)
    held_s = np.where(running, now_s - c["last_start_s"], 0.0)
    # Work of jobs that stated none is drawn in seconds since the start, which includes all costs.
    ran_s = np.where(running & (done <= 0), held_s, c["run_s"])
    # Total seconds of jobs that did not state their work, each longer than it has run.
    wanted = silent & ~ended & ~given
    work_s = np.zeros(len(ran_s))
    finished = np.flatnonzero(c["phase"] == int(Phase.FINISHED))
    users, models = specs.column("user"), specs.column("model")
    for job in np.flatnonzero(wanted).tolist():
        alike = finished[(users[finished] == users[job]) & (models[finished] == models[job])]
        pool = alike if len(alike) >= ALIKE else finished
        work_s[job] = _longer(np.sort(c["run_s"][pool]), float(ran_s[job]), rng)
    left = np.maximum(np.where(given, takes_s, work_s - ran_s) / iteration_s, 1.0)
    most = np.maximum((c["time_limit_s"] - ran_s) / iteration_s, 1.0)
    iterations = np.fmin(np.where(silent, done + left, c["iterations"]), done + most)
    truth = specs.replace(
        iterations=np.where(ended, np.maximum(done, 1.0), iterations),
        iteration_s=iteration_s,
        stage_s=c["stage_s"] * (iteration_s / pace)[:, None],
    )
    lag_s = _costs(record.lags_s, LAG_S, n, rng)
    start_s = np.where(whole & (done <= 0), lag_s, _costs(record.starts_s, START_UP_S, n, rng))
    end_s = np.where(whole, 0.0, _costs(record.tails_s, END_S, n, rng))
    costs_s = np.zeros((n, len(FIELDS)))
    costs_s[:, LAUNCH] = costs_s[:, RESTORE] = start_s + end_s
    costs_s[:, CHECKPOINT] = _costs(record.stops_s, STOP_S, n, rng)
    begins = running & np.isin(np.arange(n), list(starting)) & ~(whole & (done <= 0))
    left_s = np.where(running, end_s + np.where(begins, np.maximum(start_s - held_s, 0.0), 0.0), 0.0)
    return Drawn(truth, left_s, costs_s)


def _costs(measured: Sequence[float], unknown_s: float, n: int, rng: Any) -> FloatArray:
    """Seconds for each job, drawn from `measured` ones, or around `unknown_s`."""
    if len(measured):
        found: FloatArray = rng.choice(np.array(measured), size=n)
        return found
    guess: FloatArray = unknown_s * np.exp(rng.uniform(*np.log(COST_FACTORS), size=n))
    return guess


def _longer(known: FloatArray, than_s: float, rng: Any) -> float:
    """A duration that is longer, by the known ones (ascending): in each gap between them with the same chance."""
    if len(known) < ALIKE:
        typical = max(float(np.median(known)) if len(known) else TYPICAL_S, 1.0)
        return than_s + max(than_s, typical) * float(np.exp(rng.uniform(*np.log(WORK_FACTORS))))
    ends = np.concatenate([[than_s], known[known > than_s]])
    gap = int(rng.integers(len(ends)))
    low = float(ends[gap])
    high = float(ends[gap + 1]) if gap + 1 < len(ends) else max(low, 1.0) * BEYOND
    return float(rng.uniform(low, high))


class ResumedSimulator(Simulator):
    """A cluster that is in the state of a controller's job store: running jobs and their GPUs, progress, waiting jobs.

    `truth` has every job of the job store by number, with the work and pace that are assumed to be true. A running job
    needs `left_s` seconds in addition to its iterations (the rest of its start-up, and its end). `costs_s` (jobs, 4)
    are costs job by job, in the order of `plait.sim.world.FIELDS`, instead of those of `settings`. The first event
    is a decision.
    """

    def __init__(
        self, controller: Controller, truth: JobBatch, settings: SimulationSettings,
        left_s: FloatArray | None = None, costs_s: FloatArray | None = None,
    ) -> None:  # fmt: skip
        """Take over the present state of `controller`."""
        job_store = controller.job_store
        n = job_store.count
        if len(truth) != n:
            raise InputError(f"the job store has {n} jobs, the assumptions {len(truth)}; give one row a job")
        columns = {name: column[:n] for name, column in job_store.columns.items()}
        # Jobs that adapt their batch, or are elastic, continue by their own reports, at the pace of `truth`.
        per_node = int(controller.cluster.node_gpus.max())
        slower = truth.iteration_s / columns["iteration_s"]
        reports = [[(0.0, row)] for row in columns["goodput"]]
        slower = np.where(np.isfinite(slower), slower, 1.0)
        training = Training.reported(with_fixed_batches(truth), reports, per_node, slower)
        super().__init__(truth, controller.cluster, replace(settings, overheads=Overheads(), training=training))
        if self.adaptive is not None:
            self.adaptive.trust(columns["goodput"])
        self.now = to_ms(max(controller.now_s, 0.0))
        self.arrived = n
        self.ended = int((columns["phase"] >= int(Phase.FINISHED)).sum())
        self.state[:, DONE] = columns["iterations_done"] * self.unit_ms
        self.state[:, RUN] = columns["run_s"] * 1000
        self.state[:, SERVICE] = columns["attained_gpu_s"] * 1000
        self.safe_ms[:] = self.done_ms
        self.attempts[:] = columns["starts"]
        over = (columns["phase"] < int(Phase.FINISHED)) & (self.done_ms >= self.total_ms)
        self.total_ms[over] = self.done_ms[over] + 1.0
        if left_s is not None:
            self.cost_ms[:, RESTORE] = np.rint(left_s * 1000)
        self.run_groups(running_now(controller))
        self.cost_ms = np.rint((settings.overheads.for_batch(truth) if costs_s is None else costs_s) * 1000)
        self.saves = bool(self.cost_ms[:, CHECKPOINT].any())
        self.news_ms = self.now


def running_now(controller: Controller) -> Groups:
    """The groups of a controller without members that have ended since the last decision."""
    phases = controller.job_store.columns["phase"]
    groups = []
    for group in controller.running:
        members = tuple(m for m in group.members if phases[m.job] == int(Phase.RUNNING))
        if members:
            groups.append(Group(members, group.gpus, group.gate))
    return Groups.of(groups)


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
    runs_s: tuple[float, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The middle of these values."""
        ordered = np.sort(np.array(values, dtype=np.float64))
        last = len(ordered) - 1
        low, high = float(ordered[math.floor(TAIL * last)]), float(ordered[math.ceil((1 - TAIL) * last)])
        return cls(low, high, float(ordered[last // 2]), tuple(ordered.tolist()))

    def held(self, bounds: Sequence[float | None]) -> int:
        """How many of the runs lie between these `bounds` (null: never), to a second or a hundredth of the time."""
        low, high = (math.inf if bound is None else bound for bound in bounds)
        return sum(0.99 * low - 1.0 <= s <= 1.01 * high + 1.0 for s in self.runs_s)

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
class KnownDurations:
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
    known: KnownDurations | None = None,
) -> Forecast:
    """Play the state of the controllers that `make` makes forward until all jobs have ended.

    `round_s` is the seconds between decisions, `record` what starts and ends cost on this cluster, `starting` the jobs
    that run and have not made an iteration since their last start, `known` what the service knows of durations. A
    function of its arguments.
    """
    first = make()
    record, known = record or TrackRecord(), known or KnownDurations()
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
    controller.measures_memory = False

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


def _assumptions(controller: Controller, runs: int, record: TrackRecord, known: KnownDurations) -> tuple[str, ...]:
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
    memory_bytes = columns["gpu_memory_bytes"][controller.active]
    if has_groups(controller.policy) and controller.cluster.limits_gpu_memory and not memory_bytes.all():
        out.append("jobs whose GPU memory is neither stated nor measured yet are taken to fit next to any other job")
    if unmeasured:
        who = "1 job is" if unmeasured == 1 else f"{unmeasured} jobs are"
        out.append(f"{who} not profiled yet, and taken to go as fast as others")
    return tuple(out)
