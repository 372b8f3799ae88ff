"""Many jobs that get another pace at once go on as each by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.sim.running import JobsOnGpus
from plait.sim.world import SimulationSettings, make_world


def drawn(seed: int) -> JobsOnGpus:
    """Twenty jobs, some of which have begun."""
    chance, world = np.random.default_rng(seed), make_world("ideal")
    specs = [JobSpec(id=f"j{i}", iterations=1000.0, iteration_s=float(chance.uniform(0.1, 2.0))) for i in range(20)]
    settings = SimulationSettings(physics=world.physics, overheads=world.overheads)
    here = JobsOnGpus(JobBatch.of(specs), Cluster.parse("1x8"), settings)
    here.now = 5000.0
    here.since_ms[:], here.done_ms[:] = chance.integers(0, 9000, 20), chance.uniform(0.0, 90.0, 20)
    here.rate[:], here.fail_ms[:] = chance.uniform(0.1, 1.0, 20), chance.choice([math.inf, 1e5], 20)
    return here


@pytest.mark.parametrize("seed", range(5))
def test_another_pace_for_many_jobs_at_once(seed: int) -> None:
    one_by_one, at_once = drawn(seed), drawn(seed)
    jobs, speed = np.arange(3, 18), np.random.default_rng(seed).uniform(0.01, 1.0, 15)
    for job, solo in zip(jobs.tolist(), speed.tolist(), strict=True):
        one_by_one._settle(job, one_by_one.now)
        one_by_one.solo[job] = solo
        one_by_one._set_pace(job)
    at_once._repace(jobs, speed)
    for name in ("state", "solo", "worked_ms", "end_ms", "stop_ms"):
        np.testing.assert_array_equal(getattr(at_once, name), getattr(one_by_one, name))
    assert at_once.repaced
    assert one_by_one.repaced
