"""Gandiva brings a spread job together while other jobs share GPUs that they may not leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plait.core.jobs import JobBatch
from plait.policies.gandiva import Gandiva
from plait.sim.contract import CLUSTERS, COSTLY, SmallWorkload, outages, play, random_jobs


def test_a_migration_beside_a_kept_pair() -> None:
    seed = 57  # at 791 s a spread job may come together while two kept jobs are in one group
    jobs = random_jobs(seed, 14, 8, 600.0)
    saves = np.random.default_rng((seed, 5)).choice([0, 0, 1, 2], len(jobs)).astype(np.int64)
    jobs = JobBatch.of(replace(spec, retries=1000) for spec in jobs.replace(checkpoints=saves))
    world = replace(COSTLY, checkpoint_every_s=120.0, job_mtbf_s=4000.0)
    workload = SmallWorkload("outages", jobs, CLUSTERS[seed % len(CLUSTERS)], world, seed=seed)
    played = play(Gandiva(), replace(workload, changes=outages(workload, seed)))
    assert len(played.ends()) == len(jobs)
