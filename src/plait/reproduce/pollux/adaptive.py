"""A job that adapts its batch: it measures itself, fits its throughput, and takes the batch with the best goodput."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from plait.core.arrays import FloatArray
from plait.goodput.batch import best_batch
from plait.goodput.fit import fit
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import Measurements
from plait.reproduce.pollux.jobs import Job, fixed_batch, within
from plait.reproduce.pollux.tables import Measured
from plait.reproduce.pollux.workload import Submitted

NOT_FITTED = np.full(7, math.nan)


class AdaptiveJob(Job):
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
    def most_gpus(self) -> int:
        """Twice the most it has measured itself on; never more than leave each GPU its least batch."""
        model = self.model
        return min(max(2 * self.profiled_gpus, 1), model.most // model.least_local, model.most_gpus)

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


def table_of(jobs: Sequence[AdaptiveJob]) -> GoodputJobs:
    """The jobs as columns."""
    limits = np.array([(m.initial, m.most, m.least_local, m.most_local) for m in (job.model for job in jobs)])
    initial, most, least_local, most_local = limits.T
    noise = np.array([(job.sqr, job.var) for job in jobs])
    theta = np.stack([job.theta for job in jobs])
    return GoodputJobs(
        theta, noise[:, 0], noise[:, 1], initial, most, least_local, most_local, np.ones(len(jobs), dtype=bool)
    )
