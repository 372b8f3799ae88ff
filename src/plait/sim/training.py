"""How adaptive jobs really train: true throughput and gradient noise, which neither policies nor jobs get to see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray
from plait.core.goodput import THETA, Estimate
from plait.core.jobs import JobBatch
from plait.goodput.models import shipped


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The truth of J jobs; rows of `theta` that are NaN belong to jobs that do not adapt.

    `ends[j]` are the iterations done at which each level of job j's gradient noise ends, `noise[j]` the levels, in
    examples: from one epoch to the next the noise jumps, within it stays.
    """

    theta: FloatArray
    ends: tuple[FloatArray, ...]
    noise: tuple[FloatArray, ...]

    @property
    def adapts(self) -> BoolArray:
        """(J,): which jobs adapt."""
        known: BoolArray = np.isfinite(self.theta.sum(axis=1))
        return known

    @classmethod
    def shipped(cls, jobs: JobBatch) -> Training:
        """What plait ships of the models of these jobs; jobs without batch limits or of other models do not adapt.

        A job with more or fewer iterations than its model has goes through the same noise slower or faster.
        """
        known = shipped()
        theta = np.full((len(jobs), THETA), np.nan)
        ends, noise = [_NONE] * len(jobs), [_NONE] * len(jobs)
        for j in np.flatnonzero(jobs.column("batch_size") > 0).tolist():
            model = known.get(str(jobs.column("model")[j]))
            if model is not None:
                theta[j] = model.theta
                ends[j] = model.epoch_ends * (jobs.iterations[j] / model.iterations)
                noise[j] = model.noise.by_epoch(model.epochs)
        return cls(theta, tuple(ends), tuple(noise))

    @classmethod
    def estimated(cls, jobs: JobBatch, goodput: FloatArray) -> Training:
        """What jobs have said of themselves, taken as the truth from now on; the noise stays as it is.

        `goodput` has a row of `Estimate` for each job. Jobs that have said nothing do not adapt.
        """
        columns = [*range(THETA), Estimate.SQR, Estimate.VAR]
        known = (jobs.column("batch_size") > 0) & ~np.isnan(goodput[:, columns]).any(axis=1)
        theta = np.where(known[:, None], goodput[:, :THETA], np.nan)
        sqr, var = np.maximum(goodput[:, Estimate.SQR], 1e-12), goodput[:, Estimate.VAR]
        phi = jobs.column("batch_size") * var / sqr
        last = np.array([np.inf])
        return cls(
            theta,
            tuple(last if k else _NONE for k in known.tolist()),
            tuple(phi[j : j + 1] if known[j] else _NONE for j in range(len(jobs))),
        )


_NONE: FloatArray = np.zeros(0)
