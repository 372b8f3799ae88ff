"""Settings of a simulation besides jobs, cluster and policy, and which of its jobs adapt their batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from plait.core.jobs import JobBatch
from plait.sim.adaptive import INTERVAL_S, AdaptiveJobs
from plait.sim.overheads import Overheads
from plait.sim.physics import Physics, StandardPhysics
from plait.sim.training import Training


@dataclass(frozen=True)
class SimulationSettings:
    """What happens besides the jobs; times in seconds, 0 or infinite means never.

    `checkpoint_every_s`: work since the last periodic checkpoint is lost when a node or process dies.
    `job_mtbf_s`: mean GPU time between process failures, exponential.
    `training`: the truth of adaptive jobs; None takes what ships with plait for their models.
    `measure_s`: how long an adaptive job runs in a configuration until it has measured it; `profile_noise`: its step
    times are off by up to this share.
    """

    physics: Physics = field(default_factory=StandardPhysics)
    overheads: Overheads = field(default_factory=Overheads)
    round_s: float = 0.0
    checkpoint_every_s: float = 1800.0
    job_mtbf_s: float = math.inf
    seed: int = 0
    training: Training | None = None
    measure_s: float = INTERVAL_S
    profile_noise: float = 0.0


def adaptive_jobs(truth: JobBatch, settings: SimulationSettings) -> AdaptiveJobs | None:
    """The jobs that adapt their batch; None if none does, so the simulation can skip all of it."""
    if not (truth.column("batch_size") > 0).any():
        return None
    training = Training.shipped(truth) if settings.training is None else settings.training
    if not training.adapts.any():
        return None
    return AdaptiveJobs(truth, training, noise=settings.profile_noise, seed=settings.seed)


def with_known_batches(truth: JobBatch, adaptive: AdaptiveJobs | None) -> JobBatch:
    """The same jobs, with a fixed batch for those whose adaptive behaviour is unknown."""
    unknown = truth.column("batch_size") > 0
    if adaptive is not None:
        unknown &= ~adaptive.adapts
    if not unknown.any():
        return truth
    names = ("batch_size", "max_batch_size", "min_local_batch", "max_local_batch", "accumulates")
    return truth.replace(**{name: np.where(unknown, 0, truth.column(name)) for name in names})
