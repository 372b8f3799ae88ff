"""Jobs on other numbers of GPUs than requested, and many jobs that get another pace at once."""

import math

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.goodput import BatchLimits
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import StageProfile
from plait.goodput.fixed_batch import fixed_s, prior
from plait.outlook.fidelity import TurnsPhysics
from plait.policies.catalog import make_policy
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.running import JobsOnGpus
from plait.sim.world import SimulationSettings, make_world


def job(name: str, gpus: int = 8, least: int = 1, **changes: object) -> JobSpec:
    given = {"iterations": 3600.0, "iteration_s": 1.0, "min_gpus": least, "max_gpus": gpus}
    return JobSpec(id=name, gpus=gpus, **{**given, **changes})


def store_of(jobs: list[JobSpec], policy: str, cluster: str = "2x4"):
    run = simulate(JobBatch.of(jobs), Cluster.parse(cluster), make_policy(policy), make_world("ideal"), check=True)
    return {name: run.controller.job_store.columns[name][: len(jobs)] for name in ("end_s", "attained_gpu_s")}


@pytest.mark.parametrize("policy", ["optimus", "fifo"])
def test_half_of_the_gpus_take_twice_as_long_and_no_work_vanishes(policy: str):
    scaling = tuple((gpus, 8.0 / gpus) for gpus in (1, 2, 4, 8))
    job_store = store_of([job("a", scaling=scaling), job("b", scaling=scaling)], policy)
    assert job_store["end_s"].max() == pytest.approx(7200.0, abs=61.0)  # within a round
    assert job_store["attained_gpu_s"].sum() == pytest.approx(2 * 8 * 3600.0, rel=0.01)


def test_an_adaptive_job_of_a_model_that_nobody_knows_scales_as_the_prior():
    limits = BatchLimits(initial=64, most=64, least_local=1, most_local=64)
    own = [job("a", 4, batch=limits, model="mine")]
    asked, alone = store_of(own, "fifo", "1x4"), store_of(own, "optimus", "1x1")
    assert asked["end_s"][0] == 3600.0
    slower = float(fixed_s(prior(), 1, 1) / fixed_s(prior(), 4, 4))  # nodes have one GPU there
    assert 3.5 < slower < 4
    assert alone["end_s"][0] == pytest.approx(slower * 3600.0, rel=1e-3)


A = StageProfile((0.4, 0.1, 0.3, 0.2), 1.0)
B = StageProfile((0.1, 0.5, 0.3, 0.1), 1.0)


@pytest.mark.parametrize("gate", [Gate.NONE, Gate.BARRIER])
@pytest.mark.parametrize("physics", [StandardPhysics(), TurnsPhysics({})], ids=["simulated", "forecast"])
def test_who_shares_half_of_the_gpus_goes_at_half_the_pace(physics, gate: Gate):
    cluster, seconds = Cluster.parse("1x4"), []
    truth = JobBatch.of([job("a", 4, profile=A), job("b", 4, profile=B)])
    if isinstance(physics, TurnsPhysics):
        columns = {name: truth.column(name) for name in ("batch_size", "iteration_s")}
        physics = TurnsPhysics({**columns, "stage_s": truth.stage_s})
    for gpus in ((0, 1, 2, 3), (0, 1)):
        group = Group((Member(0), Member(1, turn=2)), gpus, gate)
        seconds.append(physics.iteration_s(truth, Groups.of([group]), cluster))
    assert np.allclose(seconds[1], 2 * seconds[0])


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
