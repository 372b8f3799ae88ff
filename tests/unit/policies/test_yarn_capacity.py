"""The capacity scheduler where nodes are unequal and fail: every job ends. With `PLAIT_SLOW=1` 150 drawn traces."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.policies.catalog import make_policy
from plait.sim.contract import COSTLY, IDEAL, random_jobs
from plait.sim.run import simulate
from plait.sim.world import make_world

CLUSTERS = ("2x4", "1x8,2x4", "4x4@2", "3x8", "1x4,2x2", "1x1,1x2,1x4")
#: drawn traces in which a gang that no switch could hold once kept everybody waiting, and one a cluster besides
SEEDS = (0, 1, 2, 3, 4, 5, 10, 16, 28, 34, 46, 52)
slow = pytest.mark.skipif(os.environ.get("PLAIT_SLOW") != "1", reason="set PLAIT_SLOW=1")


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(s, marks=slow) for s in range(150) if s not in SEEDS)])
def test_every_job_ends_on_nodes_that_fail(seed: int) -> None:
    cluster = Cluster.parse(CLUSTERS[seed % len(CLUSTERS)])
    world = replace(COSTLY if seed % 2 else IDEAL, node_mtbf_s=3000.0, node_mttr_s=300.0, checkpoint_every_s=60.0)
    jobs = random_jobs(seed, 12, min(8, cluster.gpus))
    run = simulate(jobs, cluster, make_policy("yarn-cs"), world, seed=seed, check=True)
    assert (run.controller.job_store.columns["end_s"][: len(jobs)] > 0).all()


@pytest.mark.parametrize("policy", ["yarn-cs", "yarn-cs:shares=1/1"])
def test_a_gang_no_switch_could_hold_runs_on_the_fewest_nodes_that_can(policy: str) -> None:
    jobs = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=float(i), gpus=gpus, iterations=100.0, iteration_s=1.0)
        for i, gpus in enumerate((1, 7, 1))
    )
    run = simulate(jobs, Cluster.parse("1x1,1x2,1x4"), make_policy(policy), make_world("ideal"), check=True)
    assert run.controller.job_store.columns["end_s"][:3].tolist()[1:] == [200.0, 300.0]
