"""Finish-time fairness of jobs that adapt: against their own time on an equal share, in seconds by hand."""

import math

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.goodput import BatchLimits
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput.shipped import shipped
from plait.sim.studies.cases import Case, run_case
from plait.sim.training import Training, isolated_s
from plait.sim.world import make_world

#: a pass takes 0.1 s whatever the batch, synchronising inside a node as much again, between nodes 0.3 s
THETA_BY_HAND = (0.1, 0.0, 0.3, 0.0, 0.1, 0.0, 1.0)
STILL, NOISY = 1e-9, 1e12  # a larger batch brings nothing; everything


def job(**changes: object) -> JobSpec:
    limits = BatchLimits(initial=10, most=40, least_local=1, most_local=10)
    given = {"id": "a", "gpus": 2, "min_gpus": 1, "max_gpus": 8, "iterations": 1000.0, "iteration_s": 0.2}
    return JobSpec(**{**given, "batch": limits, **changes})


def alone_s(share: float, spec: JobSpec, *levels: tuple[float, float], cluster: str = "2x4") -> float:
    ends, noise = (np.array(column) for column in zip(*levels, strict=True))
    training = Training(np.array([THETA_BY_HAND]), (ends,), (noise,))
    return float(isolated_s(JobBatch.of([spec]), training, Cluster.parse(cluster), np.array([share]))[0])


@pytest.mark.parametrize(
    ("share", "seconds"),
    [
        (1.0, 1000 / 10),  # 10 examples in 0.1 s: 10 iterations at the initial batch
        (0.5, 1000 / 5),  # one GPU, half of the time
        (2.0, 1000 / 10),  # 20 examples in 0.2 s are no more: linear speed-up would say 50 s
        (4.0, 1000 / 20),  # 40 examples in 0.2 s
        (3.0, 1000 / 15),
        (3.5, 1000 / 17.5),  # half of the time on three, half on four
        (5.0, 1000 / 20),  # a second node would make it slower: 0.4 s a step
        (math.nan, math.nan),
    ],
)
def test_time_alone_follows_the_throughput_of_the_job(share: float, seconds: float):
    assert alone_s(share, job(), (1000.0, NOISY)) == pytest.approx(seconds, rel=1e-6, nan_ok=True)


def test_time_alone_follows_the_noise_as_the_job_trains():
    # the first 400 iterations one GPU is best: a larger batch brings nothing
    assert alone_s(4.0, job(), (400.0, STILL), (1000.0, NOISY)) == pytest.approx(400 / 10 + 600 / 20, rel=1e-6)
    assert alone_s(4.0, job(iterations=400.0), (500.0, STILL), (np.inf, NOISY)) == pytest.approx(40, rel=1e-6)


def test_time_alone_stays_within_the_sizes_of_the_job():
    assert alone_s(8.0, job(max_gpus=3), (1000.0, NOISY)) == pytest.approx(1000 / 15, rel=1e-6)
    assert alone_s(1.0, job(min_gpus=4, gpus=4), (1000.0, NOISY)) == pytest.approx(4 * 1000 / 20, rel=1e-6)


def test_jobs_that_do_not_adapt_have_no_time_alone_of_their_own():
    training = Training(np.full((1, 7), np.nan), (np.zeros(0),), (np.zeros(0),))
    seconds = isolated_s(JobBatch.of([job()]), training, Cluster.parse("2x4"), np.array([2.0]))
    assert np.isnan(seconds).all()


@pytest.mark.parametrize("gpus", [1, 4])
def test_fairness_and_slowdown_of_a_simulated_run_take_the_jobs_own_model(gpus: int):
    model = shipped()["cifar10"]
    adaptive = JobSpec(
        id="a", gpus=gpus, min_gpus=1, max_gpus=16, iterations=model.iterations,
        iteration_s=model.iteration_s(1, 1) / gpus, model="cifar10", batch=model.batch,
    )  # fmt: skip
    jobs = JobBatch.of([adaptive, JobSpec(id="f", gpus=1, iterations=100.0, iteration_s=1.0)])
    result = run_case(Case("two", jobs, "fifo", Cluster.parse("1x4"), make_world("ideal")))
    jct_s, duration_s, rho, slowdown = (
        result.jobs[name] for name in ("jct_s", "duration_s", "finish_time_fairness", "slowdown")
    )
    truth, cluster = Training.shipped(jobs, 4), Cluster.parse("1x4")
    asked = isolated_s(jobs, truth, cluster, np.array([gpus, math.nan]))[0]
    assert slowdown == pytest.approx(jct_s / [asked, 100])
    assert result.summary["avg_slowdown"] == pytest.approx(slowdown.mean())
    if gpus == 1:  # the other job was there for 100 s; alone it would have used four GPUs
        alone = isolated_s(jobs, truth, cluster, np.array([4 / (1 + 100 / jct_s[0]), math.nan]))[0]
        assert rho == pytest.approx([jct_s[0] / alone, 1.0])
        assert rho[0] > 1.5 * jct_s[0] / duration_s[0]
    else:
        assert slowdown[0] != pytest.approx(jct_s[0] / duration_s[0], rel=0.05)
