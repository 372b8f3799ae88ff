"""When will it start, when will it end? The current queue, played forward under the same policy.

A forecast is some runs of the simulator from the state the cluster is in now. They differ in what nobody knows: how
long an iteration will really take, and how much work a job has that did not say. What comes out is an interval, with
the assumptions beside it; arrivals of other jobs are not foreseen, so under a policy that lets newcomers go first the
truth tends to lie at the late end or behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.drive import drive
from plait.control.messages import Command, Event, Launch
from plait.core.arrays import FloatArray
from plait.core.errors import PlaitError
from plait.core.jobs import JobBatch, Phase
from plait.forecast.continued import Continued
from plait.sim.overheads import Overheads
from plait.sim.physics import StandardPhysics
from plait.sim.settings import SimulationSettings

#: Runs of one forecast, and the spread of what is not known: the standard deviation of the logarithm of an iteration's
#: time, and the range of the work of a job that did not say, as factors of what is typical here.
RUNS = 10
PACE_NOISE = 0.1
WORK_FACTORS = (0.3, 3.0)
#: What a job is taken to need when nobody said and nothing has ended here yet, seconds.
TYPICAL_S = 300.0
#: The interval: this share of the runs lies below its beginning, and above its end.
TAIL = 0.1
#: How much taking turns costs beside the model of it (measured: 1.10 of the bound for tokens, 1.02 for barriers).
TURNS_COST = (1.0, 1.1, 1.1, 1.1)


@dataclass(frozen=True)
class Interval:
    """Seconds from now: most runs lie between; infinite if it does not happen in a run."""

    low_s: float
    high_s: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The middle of these values."""
        ordered = np.sort(np.array(values, dtype=np.float64))
        last = len(ordered) - 1
        return cls(float(ordered[math.floor(TAIL * last)]), float(ordered[math.ceil((1 - TAIL) * last)]))

    def to_json(self) -> list[float | None]:
        """Both ends; null for never."""
        return [round(v, 3) if math.isfinite(v) else None for v in (self.low_s, self.high_s)]


@dataclass(frozen=True)
class Eta:
    """One job: when it starts next (None if it runs), and when it ends."""

    start: Interval | None
    end: Interval


@dataclass(frozen=True)
class Forecast:
    """The jobs that have not ended, by number, and what was assumed."""

    now_s: float
    runs: int
    etas: dict[int, Eta]
    assumptions: tuple[str, ...] = field(default=())


def forecast(
    make: Callable[[], Controller],
    *,
    round_s: float = 0.0,
    start_up_s: float = 0.0,
    runs: int = RUNS,
    seed: int = 0,
) -> Forecast:
    """Play the state of the controllers that `make` makes forward until all jobs have ended.

    `round_s` is the seconds between decisions, `start_up_s` what a start costs. A function of its arguments.
    """
    first = make()
    now_s, jobs, assumptions = first.now_s, first.active.tolist(), _assumptions(first, runs, start_up_s)
    running = {job for job in jobs if first.books.columns["phase"][job] == int(Phase.RUNNING)}
    starts: dict[int, list[float]] = {job: [] for job in jobs}
    ends: dict[int, list[float]] = {job: [] for job in jobs}
    settings = SimulationSettings(
        physics=StandardPhysics(interference=TURNS_COST),
        overheads=Overheads.constant(launch_s=start_up_s, restore_s=start_up_s),
        round_s=round_s,
    )
    for run in range(runs if jobs else 0):
        controller = first if run == 0 else make()
        launched = play(controller, assumed(controller, np.random.default_rng((seed, run))), settings)
        end_s = controller.books.columns["end_s"]
        for job in jobs:
            starts[job].append(launched.get(job, math.inf) - now_s)
            ended = float(end_s[job])
            ends[job].append(math.inf if math.isnan(ended) else ended - now_s)
    etas = {job: Eta(None if job in running else Interval.of(starts[job]), Interval.of(ends[job])) for job in jobs}
    return Forecast(now_s, runs, etas, assumptions)


def play(controller: Controller, truth: JobBatch, settings: SimulationSettings) -> dict[int, float]:
    """Drive the controller to the end; returns when each job was launched first, by number.

    A run that cannot go on (jobs that fit nowhere, a policy that gives up) ends there: its jobs have no end.
    """
    began: dict[int, float] = {}

    def note(event: Event, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Launch):
                for job in command.groups.jobs.tolist():
                    began.setdefault(job, event.at_s)

    with suppress(PlaitError):
        drive(controller, Continued(controller, truth, settings), note)
    return began


def assumed(controller: Controller, rng: Any) -> JobBatch:
    """What may be true of every job of the books, drawn: its pace, and its work where nobody said."""
    books = controller.books
    n = books.count
    c = {name: column[:n] for name, column in books.columns.items()}
    iteration_s = pace_s(c, n)
    done, total, run_s = c["iterations_done"], c["iterations"], c["run_s"]
    finished = c["phase"] == int(Phase.FINISHED)
    typical_s = float(np.median(run_s[finished])) if finished.any() else TYPICAL_S
    factor = np.exp(rng.uniform(*np.log(WORK_FACTORS), size=n))
    left_s = np.maximum(run_s, max(typical_s, 1.0)) * factor
    iterations = np.where(np.isnan(total), done + np.maximum(left_s / iteration_s, 1.0), total)
    ended = c["phase"] >= int(Phase.FINISHED)
    iterations = np.where(ended, np.maximum(done, 1.0), iterations)
    noise = np.exp(rng.normal(0.0, PACE_NOISE, size=n))
    specs = JobBatch.of([books.spec(i) for i in range(n)])
    return specs.replace(
        iterations=iterations,
        iteration_s=iteration_s * noise,
        stage_s=c["stage_s"] * noise[:, None],
    )


def pace_s(columns: dict[str, Any], n: int) -> FloatArray:
    """Seconds an iteration of each job alone, at the size asked for.

    As measured or said, else as it went so far (of an elastic job by its GPU-seconds, since it may have had other
    sizes), else as others went.
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


def _assumptions(controller: Controller, runs: int, start_up_s: float) -> tuple[str, ...]:
    columns, active = controller.books.columns, controller.active
    silent = int(np.isnan(columns["iterations"][active]).sum())
    unmeasured = int(np.isnan(columns["iteration_s"][active]).sum())
    out = [
        f"{runs} runs of the queue as it is, under {describe(controller.policy)}; nobody else submits, nothing fails",
        f"iterations take {PACE_NOISE:.0%} more or less than measured; a start costs {start_up_s:.1f} s",
    ]
    if silent:
        low, high = WORK_FACTORS
        who = "1 job" if silent == 1 else f"{silent} jobs"
        out.append(f"{who} did not say how much work there is: {low:g} to {high:g} times what is typical here")
    if unmeasured:
        who = "1 job is" if unmeasured == 1 else f"{unmeasured} jobs are"
        out.append(f"{who} not profiled yet, and taken to go as fast as others")
    return tuple(out)
