"""Unknown properties of queued jobs, drawn for one run of a forecast: pace, work, and the cost of starts and ends.

Costs of starts and ends are drawn from measurements of this cluster. The remaining time of a job without own progress
comes from the service, which knows earlier runs of the same script. Otherwise a job without stated work runs as long as
finished jobs here; a running one, as long as longer ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.core.arrays import FloatArray
from plait.core.jobs import JobBatch, Phase
from plait.live.scheduler.records.track_record import START_UP_S, STOP_S, TrackRecord
from plait.sim.overheads import CHECKPOINT, FIELDS, LAUNCH, RESTORE

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
    specs = JobBatch.of([job_store.spec(i) for i in range(n)])
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
    work_s = _durations(c, specs, ran_s, silent & ~ended & ~given, rng)
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


def _durations(c: dict[str, Any], specs: JobBatch, ran_s: FloatArray, wanted: Any, rng: Any) -> FloatArray:
    """Total seconds of jobs that did not state their work, each longer than it has run."""
    out = np.zeros(len(ran_s))
    finished = np.flatnonzero(c["phase"] == int(Phase.FINISHED))
    users, models = specs.column("user"), specs.column("model")
    for job in np.flatnonzero(wanted).tolist():
        alike = finished[(users[finished] == users[job]) & (models[finished] == models[job])]
        pool = alike if len(alike) >= ALIKE else finished
        out[job] = _longer(np.sort(c["run_s"][pool]), float(ran_s[job]), rng)
    return out


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
