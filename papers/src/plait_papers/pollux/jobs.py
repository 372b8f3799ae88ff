"""Jobs of the artifact's world: progress through epochs, with the batch of the workload or one that adapts.

A job that adapts measures itself, fits its throughput, and takes the batch with the best goodput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from plait.core.arrays import FloatArray
from plait.goodput.batch import best_batch
from plait.goodput.fit import fit
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import Measurements
from plait_papers.pollux.tables import Application, Measured, Placement
from plait_papers.pollux.workload import Submitted

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


NOT_FITTED = np.full(7, math.nan)


class PolluxJob(Job):
    """A job that chooses its own batch; the workload's batch is ignored."""

    def __init__(self, number: int, submitted: Submitted, measured: Measured) -> None:
        super().__init__(number, submitted, measured)
        self.profile: dict[tuple[int, int, int], tuple[float, float]] = {}
        self.sqr, self.var = 0.0, 1.0
        self.profiled_gpus = 0
        self._theta, self._fitted = NOT_FITTED, 0
        self._choice: tuple[object, tuple[int, int]] = (None, (0, 0))

    def seen(self, step_s: float, sync_s: float, sqr: float, var: float) -> None:
        """A step time counts once for nodes, GPUs and batch; gradient noise is always the latest."""
        self.sqr, self.var = sqr, var
        key = len(self.placement), self.gpus, self.local
        if key not in self.profile:
            self.profile[key] = (step_s - sync_s, step_s)
            self.profiled_gpus = max(self.profiled_gpus, self.gpus)

    @property
    def theta(self) -> FloatArray:
        """The fit to all measurements, computed on demand; NaN before the first measurement."""
        if len(self.profile) > self._fitted:
            self._fitted = len(self.profile)
            nodes, gpus, local = zip(*self.profile, strict=True)
            grad_s, step_s = zip(*self.profile.values(), strict=True)
            self._theta = fit(Measurements(*map(np.array, (nodes, gpus, local, grad_s, step_s))), artifact=True)
        return self._theta

    @property
    def state(self) -> tuple[int, float, float]:
        """The inputs of its goodput; equal states have equal goodputs."""
        return len(self.profile), self.sqr, self.var

    @property
    def most_gpus_ever(self) -> int:
        """The most GPUs that leave each its least batch, as far as they were measured."""
        return min(self.model.most // self.model.least_local, self.model.most_gpus)

    @property
    def most_gpus(self) -> int:
        """Twice the most it has measured itself on; never more than leave each GPU its least batch."""
        return min(max(2 * self.profiled_gpus, 1), self.most_gpus_ever)

    def choose(self) -> tuple[int, int]:
        """The batch with the best predicted goodput; the least there is while nothing is measured."""
        model = self.model
        if model.fixed_batch or not self.profile:
            return fixed_batch(model, model.fixed_batch or max(model.initial, model.least_local * self.gpus), self.gpus)
        key = self.state, self.gpus, len(self.placement)
        if self._choice[0] != key:
            best = best_batch(table_of([self]), len(self.placement), self.gpus, artifact=True)
            local, passes = int(best.local[0, 0]), int(best.passes[0, 0])
            self._choice = key, (within(model, local, passes, self.gpus), passes)
        return self._choice[1]


class KnownJob(PolluxJob):
    """A job that knows its throughput from the start, by a fit of all that was measured of its model.

    It needs no exploration, so that it may have any number of GPUs at once.
    """

    def __init__(self, number: int, submitted: Submitted, measured: Measured) -> None:
        super().__init__(number, submitted, measured)
        self.profiled_gpus = self.model.most_gpus
        self._theta = offline_fit(measured)

    def seen(self, step_s: float, sync_s: float, sqr: float, var: float) -> None:
        """The noise of gradients is new; step times are not. One entry marks that batches may be chosen."""
        self.sqr, self.var = sqr, var
        self.profile = {(0, 0, 0): (0.0, 0.0)}

    @property
    def theta(self) -> FloatArray:
        """The fit to all measurements of the model."""
        return self._theta


@cache
def offline_fit(measured: Measured) -> FloatArray:
    """The fit of all step times in the files of a model."""
    nodes, gpus, local, step_s, sync_s = measured.every_step
    return fit(Measurements(nodes, gpus, local, step_s - sync_s, step_s), artifact=True)


def table_of(jobs: Sequence[PolluxJob]) -> GoodputJobs:
    limits = np.array([(m.initial, m.most, m.least_local, m.most_local) for m in (job.model for job in jobs)])
    initial, most, least_local, most_local = limits.T
    noise = np.array([(job.sqr, job.var) for job in jobs])
    theta = np.stack([job.theta for job in jobs])
    return GoodputJobs(
        theta, noise[:, 0], noise[:, 1], initial, most, least_local, most_local, np.ones(len(jobs), dtype=bool)
    )
