"""How adaptive jobs really train: true throughput and gradient noise, which neither policies nor jobs get to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from plait.core.arrays import BoolArray, FloatArray
from plait.core.goodput import THETA, Estimate
from plait.core.jobs import JobBatch
from plait.goodput.model.shipped import shipped

#: Iterations done when a job reported, and its row of `Estimate`.
Report: TypeAlias = tuple[float, FloatArray]

#: A squared gradient norm that is estimated as zero or less counts as this: all the gradient is noise.
LEAST_SQR = 1e-12


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
        """The shipped truth for the models of these jobs; jobs without batch limits or of other models do not adapt.

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
    def reported(
        cls, jobs: JobBatch, reports: Sequence[Sequence[Report]], slower: FloatArray | None = None
    ) -> Training:
        """The truth as jobs have reported it: the last throughput, and all levels of gradient noise.

        `reports` has those of each job in order of its iterations done. A level of noise lasts until the next report,
        the first from the beginning and the last to the end. Jobs without reports do not adapt. Iterations take
        `slower` (J,) times as long as reported.
        """
        theta = np.full((len(jobs), THETA), np.nan)
        ends, noise = [_NONE] * len(jobs), [_NONE] * len(jobs)
        for j in np.flatnonzero(jobs.column("batch_size") > 0).tolist():
            known = [(done, row) for done, row in reports[j] if np.isfinite(row[_USED]).all()]
            if known:
                theta[j] = known[-1][1][:THETA]
                theta[j, : Estimate.GAMMA] *= 1.0 if slower is None else slower[j]
                ends[j] = np.array([*(done for done, _ in known[1:]), np.inf])
                sqr, var = np.array([row[[Estimate.SQR, Estimate.VAR]] for _, row in known]).T
                noise[j] = jobs.column("batch_size")[j] * np.maximum(var, 0.0) / np.maximum(sqr, LEAST_SQR)
        return cls(theta, tuple(ends), tuple(noise))


_NONE: FloatArray = np.zeros(0)
_USED = [*range(THETA), Estimate.SQR, Estimate.VAR]
