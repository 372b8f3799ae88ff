"""What throughput, efficiency, goodput, shares and restarts must always satisfy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_cases import some_jobs
from plait.goodput.batch import goodput
from plait.goodput.throughput import (
    TINY,
    efficiency,
    fair_share,
    gain,
    grad_s,
    iteration_s,
    noise_scale,
    replica_cap,
    restart_factor,
    speedup,
    step_s,
    sync_s,
    throughput,
)

seeds = st.integers(0, 10**6)
LIMITS = np.array([[16, 4096, 1, 4096]])


@given(seeds)
def test_goodput_is_throughput_times_efficiency_in_its_bounds(seed) -> None:
    jobs = some_jobs(seed, 10, LIMITS)
    rng = np.random.default_rng(seed)
    gpus = rng.integers(1, 16, 10)
    nodes = np.minimum(rng.integers(1, 16, 10), gpus)
    local, passes = rng.integers(16, 64, 10), rng.integers(0, 4, 10)
    rate = throughput(jobs.theta, nodes, gpus, local, passes)
    scale = gpus * local * (passes + 1) / 16
    worth = efficiency(jobs.sqr, jobs.var, scale)
    assert (rate >= 0).all()
    assert ((worth >= 0) & (worth <= 1 + 1e-15)).all()
    assert goodput(jobs, nodes, gpus, local, passes) == pytest.approx(rate * worth, rel=1e-15)
    assert rate == pytest.approx(
        gpus * local * (passes + 1) / iteration_s(jobs.theta, nodes, gpus, local, passes), rel=1e-15
    )


@given(seeds)
def test_efficiency_falls_and_gain_rises_with_the_batch(seed) -> None:
    jobs = some_jobs(seed, 10, LIMITS)
    scale = np.geomspace(1, 100, 40)[:, None]
    assert (np.diff(efficiency(jobs.sqr, jobs.var, scale), axis=0) <= 1e-15).all()
    gains = gain(jobs.sqr, jobs.var, scale)
    assert (np.diff(gains, axis=0) >= -1e-12).all()
    assert (gains >= 1 - 1e-12).all()
    assert (gains <= scale + 1e-12).all()
    phi = noise_scale(jobs.sqr, jobs.var, 16)
    assert efficiency(jobs.sqr, jobs.var, scale) == pytest.approx((phi + 16) / (phi + 16 * scale), rel=1e-12)


@given(seeds)
def test_throughput_rises_and_is_concave_in_the_local_batch(seed) -> None:
    theta = some_jobs(seed, 10, LIMITS).theta
    for nodes, gpus in [(1, 1), (1, 4), (3, 7)]:
        rate = throughput(theta, nodes, gpus, np.arange(1, 60)[:, None], 0)
        assert (np.diff(rate, axis=0) >= -1e-9 * rate[1:]).all()
        assert (np.diff(rate, 2, axis=0) <= 1e-9 * rate[2:]).all()


@given(seeds)
def test_throughput_of_a_gpu_does_not_rise_with_their_number(seed) -> None:
    theta = some_jobs(seed, 10, LIMITS).theta
    for nodes, gpus in [(1, np.arange(1, 17)), (2, np.arange(2, 65))]:
        each = throughput(theta, nodes, gpus[:, None], 16, 1) / gpus[:, None]
        assert (np.diff(each, axis=0) <= 1e-9 * each[1:]).all()


@given(seeds)
def test_the_synchronising_pass_is_between_the_longer_phase_and_the_sum(seed) -> None:
    theta = some_jobs(seed, 10, LIMITS).theta
    grad, sync = grad_s(theta, 20), sync_s(theta, 2, 9)
    both = step_s(theta, 2, 9, 20)
    assert (both >= np.maximum(grad, sync) * (1 - 1e-12)).all()
    assert (both <= (grad + sync) * (1 + 1e-12)).all()
    direct = (grad ** theta[:, 6] + sync ** theta[:, 6]) ** (1 / theta[:, 6])
    assert both == pytest.approx(direct, rel=1e-9)


def test_synchronisation_uses_the_pair_of_the_placement() -> None:
    theta = np.array([0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5])
    times = sync_s(theta, [1, 1, 1, 2, 2], [1, 2, 4, 2, 6])
    assert times == pytest.approx([TINY, 0.2, 0.24, 0.5, 0.7], rel=1e-8)


def test_gain_of_known_noise_and_of_none() -> None:
    assert gain(1, 3, 3) == pytest.approx(2)
    assert gain(0, 0, 4) == 1
    assert gain(0, 1, 4) == 4
    assert efficiency(0, 1, 4) == 1
    assert noise_scale(0, 1, 16) == np.inf


def test_fair_share() -> None:
    assert fair_share(64, 20, 4) == (1, 4)
    assert fair_share(64, 3, 4) == (6, 22)
    assert fair_share(64, 3, 4, one_node=True) == (1, 22)
    assert fair_share(64, 100, 4) == (1, 1)
    assert fair_share(64, 0, 4) == (16, 64)


def test_speedup_where_the_share_cannot_be_used_is_nothing() -> None:
    values = speedup(np.array([[2.0, 4.0], [3.0, 6.0]]), np.array([2.0, 0.0]))
    assert values.tolist() == [[1, 2], [0, 0]]


def test_restart_factor() -> None:
    assert restart_factor([0, 60, 600, 600], [0, 3, 0, 10], 30).tolist() == pytest.approx([0, 0, 600 / 630, 300 / 630])
    assert restart_factor([0, 60], [0, 1], 30, ran=np.array([False, True])).tolist() == pytest.approx([1, 30 / 90])
    assert restart_factor(0, 0, 0) == 1


def test_replica_cap() -> None:
    assert replica_cap([0, 1, 8, 40], 256, 4).tolist() == [1, 2, 16, 64]
