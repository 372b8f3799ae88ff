"""One job of the artifact's world: its progress through epochs, and the batch it runs with."""

from __future__ import annotations

import math

from plait.reproduce.pollux.applications import Application
from plait.reproduce.pollux.tables import Measured, Placement
from plait.reproduce.pollux.workload import Submitted

RESTART_S = 30
"""Seconds of every start and every change of placement; a change while it runs restarts it."""


def fixed_batch(model: Application, batch: int, gpus: int) -> tuple[int, int]:
    """Examples of one GPU's pass and accumulation passes before the last one, for a total `batch` on `gpus` GPUs.

    On one GPU a larger batch than the initial one is taken in two passes at least.
    """
    local = math.ceil(batch / gpus - 1e-8)
    passes = math.ceil(local / model.most_local - 1e-8) - 1
    if gpus == 1 and batch > model.initial:
        passes = max(1, passes)
    return within(model, math.ceil(local / (passes + 1) - 1e-8), passes, gpus), passes


def within(model: Application, local: int, passes: int, gpus: int) -> int:
    """`local`, so that the whole batch is not larger than the model allows."""
    return min(local, model.most // (gpus * (passes + 1)))


class Job:
    """A job with the batch of its workload. Times are seconds since the start of the simulation."""

    def __init__(self, number: int, submitted: Submitted, measured: Measured) -> None:
        """A job that was not started; `number` is its row in the workload, from 0."""
        self.number, self.submitted, self.measured = number, submitted, measured
        self.model = submitted.application
        self.submit_s = submitted.submit_s
        self.epoch = 0
        self.progress = 0.0  # iterations at the initial batch
        self.placement: Placement = ()
        self.gpus = 0
        self.local = self.passes = 0
        self.delay_s = 0.0
        self.restarts = -1  # 0 from the first start on
        self.attained_gpu_s = 0.0
        self.ran_s = 0.0
        self.first_start_s = math.nan
        self.end_s = math.nan

    @property
    def done(self) -> bool:
        """Whether all its epochs are behind it."""
        return self.epoch >= self.model.epochs

    def place(self, now_s: float, placement: Placement) -> None:
        """Another placement from now on, GPUs a node in the order the policy lists them; empty: stop."""
        self.placement, self.gpus = placement, sum(placement)
        if placement:
            if self.restarts < 0:
                self.first_start_s = now_s
            self.restarts += 1
            self.delay_s = RESTART_S
            self.local, self.passes = self.choose()

    def choose(self) -> tuple[int, int]:
        """Examples of one GPU's pass, and accumulation passes, with the present GPUs."""
        return fixed_batch(self.model, self.submitted.batch, self.gpus)

    def seen(self, step_s: float, sync_s: float, sqr: float, var: float) -> None:
        """Record a measurement of this segment; a job with a fixed batch has no use for it."""

    def advance(self, now_s: float, seconds: float, slowdown: float) -> None:
        """Run from `now_s` for `seconds`, by a share of `slowdown` slower than alone."""
        if not self.placement:
            return
        burnt = min(self.delay_s, seconds)
        self.delay_s -= burnt
        ran, left = burnt, seconds - burnt
        while left > 0 and not self.done:
            used = self._segment(left, slowdown)
            ran, left = ran + used, left - used
            self.local, self.passes = self.choose()
        if self.done:
            self.end_s = now_s + ran
        self.ran_s += ran
        self.attained_gpu_s += ran * self.gpus

    def _segment(self, left: float, slowdown: float) -> float:
        """Run until the epoch or the time ends; returns the seconds that took, whole ones to the end of an epoch."""
        measured, passes = self.measured, self.passes
        batch = self.gpus * self.local * (passes + 1)
        step_s, sync_s = measured.step(self.placement, self.local)
        sqr, var = measured.noise(batch, self.epoch)
        self.seen(step_s, sync_s, sqr, var)
        bottom = var / (batch / self.model.initial) + sqr
        gain = (var + sqr) / bottom if bottom > 0 else 1.0
        speed = gain / (step_s + passes * (step_s - sync_s)) * (1 - slowdown)
        until = measured.progress[self.epoch + 1]
        if self.progress + speed * left < until:
            self.progress += speed * left
            return left
        used = round((until - self.progress) / speed)
        self.epoch += 1
        self.progress = until
        return used
