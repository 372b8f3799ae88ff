"""Keys that precede a policy's own order: priority classes, and deadlines if the policy keeps them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray
from plait.core.errors import InputError
from plait.core.jobs import JobTable
from plait.core.policy import DEADLINE, PRIORITY

#: A waiting job with a deadline takes the place of a running one only if its slack is smaller by this much, seconds.
#: Without it two jobs of equal slack would stop each other all the time: only the slack of the waiting one shrinks.
SWAP_S = 300.0

#: Times closer than this are the same time, seconds; a change of order takes effect this much later at the earliest.
CLOCK_S, TICK_S = 1e-6, 1e-3


@dataclass(frozen=True)
class Urgency:
    """Keys that precede the keys of an order, smaller first.

    Jobs of a higher `priority` go first. With `age_s` a job rises by one for every `age_s` seconds that it has spent
    waiting in all, so that it starves no longer than that per class. Ageing preempts no job: a job that runs keeps
    the class that it rose to, and yields only to jobs submitted in a higher one.

    With `deadlines`, inside a class, jobs that can still meet their deadline go by least slack (deadline less now less
    remaining time, seconds; an unknown remaining time counts as nothing left), before jobs that have no deadline or can
    no longer meet it.
    """

    age_s: float = math.inf
    deadlines: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.age_s, (int, float)) and self.age_s > 0):
            raise InputError(f"age_s must be > 0 seconds, or inf for never, got {self.age_s}")
        if not isinstance(self.deadlines, bool):
            raise InputError(f"deadlines must be on or off, got {self.deadlines!r}")

    @property
    def uses(self) -> frozenset[str]:
        """The requests that a policy with these keys takes into account."""
        return frozenset({PRIORITY, DEADLINE} if self.deadlines else {PRIORITY})

    def __call__(self, jobs: JobTable) -> tuple[tuple[FloatArray | BoolArray, ...], float]:
        """Keys of these jobs, none if all are alike, and the seconds until they change by themselves."""
        keys: tuple[FloatArray | BoolArray, ...] = ()
        soonest = math.inf
        classes, priority = jobs.priority, np.zeros(0)
        if math.isfinite(self.age_s):
            waited = np.maximum(jobs.age_s - jobs.run_s, 0.0)
            steps = np.floor((waited + CLOCK_S) / self.age_s)
            priority = _risen(classes, steps, jobs.running)
            rises = ((steps + 1) * self.age_s - waited)[~jobs.running]
            soonest = max(float(rises.min(initial=math.inf)), TICK_S)
        elif classes.any():
            priority = classes
        if len(priority) and (priority != priority[0]).any():
            keys = (-priority,)
        if self.deadlines and not np.isnan(jobs.deadline_s).all():
            late, slack, changes_s = _by_slack(jobs)
            keys, soonest = (*keys, late, slack), min(soonest, changes_s)
        return keys, soonest


def _risen(classes: FloatArray, steps: FloatArray, running: BoolArray) -> FloatArray:
    """Classes after so many steps up; a running job keeps level with all that were not submitted above it."""
    priority = classes + steps
    if running.any() and not running.all():
        order = np.argsort(classes[~running], kind="stable")
        highest = np.maximum.accumulate(priority[~running][order])
        below = np.searchsorted(classes[~running][order], priority[running], side="right")
        level = np.concatenate([[-math.inf], highest])[below]
        priority[running] = np.maximum(priority[running], level)
    return priority


def _by_slack(jobs: JobTable) -> tuple[BoolArray, FloatArray, float]:
    """Who has no deadline to meet, the slack of the others, and the seconds until their order changes."""
    left = jobs.remaining_s
    slack = jobs.deadline_s - jobs.age_s - np.where(np.isnan(left), 0.0, left)
    can = slack >= -CLOCK_S  # NaN, no deadline, compares as false
    running = jobs.running
    key = np.where(can, slack - SWAP_S * running, 0.0)
    changes = slack[can & ~running]  # then such a job cannot meet its deadline any more
    held, waits = np.sort(key[can & running]), key[can & ~running]
    at = np.searchsorted(held, waits - CLOCK_S)
    overtakes = waits[at > 0] - held[at[at > 0] - 1]
    soonest = min(float(changes.min(initial=math.inf)), float(overtakes.min(initial=math.inf)))
    return ~can, key, max(soonest + CLOCK_S, TICK_S)
