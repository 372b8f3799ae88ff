"""Tiresias: queues over attained service, for gangs whose durations are unknown (Gu et al., NSDI 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jobs import JobTable
from plait.core.jobs.keys import CLOCK_S, TICK_S, fill_queues
from plait.core.policy import View
from plait.policies.compose import Ranking
from plait.policies.gittins import GittinsIndex

WithinQueue = Literal["first_start", "running_first", "submit"]
WITHIN: tuple[WithinQueue, ...] = get_args(WithinQueue)

#: 16 GPU-hours, as in the Pollux artifact; no constant suits every workload: fit with `plait tune`.
DEFAULT_THRESHOLDS_GPU_S = (57_600.0,)


@dataclass(frozen=True)
class Queues:
    """Discretised 2D-LAS and 2D-Gittins (Tiresias, section 3).

    A job is in queue 1 + #{thresholds <= attained GPU-seconds}; a lower queue goes first. Inside a queue:

      first_start    by first start, jobs that never ran last (the paper's rule)
      running_first  as a list: arrivals and demotions at the end, running before pending (released simulator)
      submit         by submission

    `index` orders jobs inside all but the last queue by their Gittins index with the queue's upper bound as quantum.
    `knob` promotes a waiting job to the first queue when it has waited `knob` times as long as it ran; its service and
    waiting then count from zero. Plain promotion thrashes under overload, so the required wait doubles with each
    promotion and counts at least `floor_s` of run time; both are plait's guard, off with `guard=False`. A running job
    whose wait is due already is promoted where it would be stopped: otherwise it would be stopped and started again at
    once. `dimensions=1` counts seconds instead of GPU-seconds.
    """

    thresholds: tuple[float, ...] = DEFAULT_THRESHOLDS_GPU_S
    within: WithinQueue = "first_start"
    knob: float = math.inf
    guard: bool = True
    floor_s: float = 3600.0
    dimensions: int = 2
    index: GittinsIndex | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        values = self.thresholds
        if any(t <= 0 or not math.isfinite(t) for t in values) or list(values) != sorted(set(values)):
            raise InputError(f"thresholds must be ascending GPU-seconds > 0, got {list(values)}")
        if self.within not in WITHIN:
            raise InputError(f"within is {self.within!r}; use first_start, running_first or submit")
        if not self.knob > 0:
            raise InputError(f"knob must be > 0, got {self.knob}")
        if not 0 <= self.floor_s < math.inf:
            raise InputError(f"floor_s must be a finite number of seconds >= 0, got {self.floor_s}")
        if self.dimensions not in (1, 2):
            raise InputError(f"dimensions must be 1 (seconds) or 2 (GPU-seconds), got {self.dimensions}")

    def __call__(self, view: View, also: IntArray = NO_JOBS) -> Ranking:
        """Queues, order inside them, promotions, and when each job will leave its place.

        `also` are running rows to promote, in addition to the waiting ones that are due.
        """
        jobs = view.jobs
        service = jobs.service_gpu_s if self.dimensions == 2 else jobs.served_s
        bounds = np.array(self.thresholds)
        promoted, promotion_in_s, due = self._promotions(jobs, service, bounds, also)
        if len(promoted):
            service = service.copy()
            service[promoted] = 0.0
        level, leaves_s = np.zeros(len(jobs), dtype=np.int64), np.zeros(len(jobs))
        speed = jobs.gpus.astype(np.float64) if self.dimensions == 2 else np.ones(len(jobs))
        fill_queues(service, speed, bounds, level, leaves_s)
        return Ranking(
            (level, *self._within(jobs, level, service, promoted)),
            level,
            promoted,
            running_s=leaves_s,
            waiting_s=promotion_in_s,
            due=due,
            promoting=None if due is None else lambda rows: self(view, np.union1d(also, rows)),
        )

    def _promotions(
        self, jobs: JobTable, service: FloatArray, bounds: FloatArray, also: IntArray
    ) -> tuple[IntArray, FloatArray | None, BoolArray | None]:
        """Rows to promote now, seconds each job has to wait on for its next promotion, and `Ranking.due`."""
        if not math.isfinite(self.knob) or not len(bounds):
            return NO_JOBS, None, None
        run = jobs.served_s
        can = (run > 0) & (service + CLOCK_S >= bounds[0])
        asked = self.knob * run
        if self.guard:
            asked = self.knob * np.exp2(jobs.promotions) * np.maximum(run, self.floor_s)
        missing = asked - jobs.idled_s
        due = can & (missing <= CLOCK_S)
        now = due & ~jobs.running
        now[also] = True
        return np.flatnonzero(now), np.where(can & ~now, np.maximum(missing, TICK_S), np.inf), due & ~now

    def _within(
        self, jobs: JobTable, level: IntArray, service: FloatArray, promoted: IntArray
    ) -> tuple[FloatArray | IntArray, ...]:
        keys = self._fifo(jobs, level, promoted)
        if self.index is None:
            return keys
        rank = np.zeros(len(jobs))
        for queue, bound in enumerate(self.thresholds):
            rows = level == queue
            if rows.any():
                rank[rows] = -self.index(jobs, service[rows], bound)
        return (rank, *keys)

    def _fifo(self, jobs: JobTable, level: IntArray, promoted: IntArray) -> tuple[FloatArray | IntArray, ...]:
        if self.within == "submit":
            return ()
        if self.within == "first_start":
            return (np.where(np.isnan(jobs.first_start_s), np.inf, jobs.first_start_s),)
        stayed = level == jobs.level
        stayed[promoted] = False
        return (~stayed, np.where(stayed, ~jobs.running, 0), np.where(stayed, jobs.position, 0))
