"""What throughput, efficiency, goodput, shares and restarts must always satisfy."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_cases import some_jobs
from plait.core.errors import InputError
from plait.goodput.batch import goodput
from plait.goodput.fit import Measurements, fit, loss
from plait.goodput.lr_scaling import RULES, adamscale, adascale, default_rule, legw, linear, rule_of, square_root
from plait.goodput.shipped import ShippedNoise, shipped
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


# Learning-rate rules: the published factors, to the last digit.

VAR, SQR = [1, 0, 0, 2], [-1, 0, -1, 1]


@pytest.mark.parametrize(
    ("scale", "factors"),
    [
        (0.5, [0.5, 0.5, 0.5, 0.6]),
        (1, [1, 1, 1, 1]),
        (2, [2, 2, 2, 1.5]),
        (4, [4, 4, 4, 2]),
        (10, [10, 10, 10, 2.5]),
    ],
)
def test_factors_of_each_group(scale, factors) -> None:
    assert adascale(scale, SQR, VAR) == pytest.approx(factors, rel=1e-14)
    assert adamscale(scale, SQR, VAR) == pytest.approx(np.sqrt(factors), rel=1e-14)
    assert linear(scale, SQR, VAR).tolist() == [scale] * 4
    assert square_root(scale, SQR, VAR).tolist() == [np.sqrt(scale)] * 4


@pytest.mark.parametrize(("scale", "factor"), [(1, 1 / 20), (4, 1 / 40), (9, 1 / 60)])
def test_legw_warms_up(scale, factor) -> None:
    rule = legw(10, 1000, 100)
    assert rule(scale, [0.0], [1.0], 5) == pytest.approx([factor], rel=1e-14)
    assert rule(scale, [0.0], [1.0], 10_000) == pytest.approx([np.sqrt(scale)], rel=1e-14)


def test_names() -> None:
    assert rule_of("adascale") is adascale
    assert default_rule(preconditioned=False) in RULES
    assert rule_of(default_rule(preconditioned=True)) is square_root
    with pytest.raises(InputError, match="did you mean 'adamscale'"):
        rule_of("adam-scale")
    with pytest.raises(InputError, match="legw with warmup_epochs=0"):
        legw(0, 10, 10)


# The models that ship with plait, against the measurements (where they are) and the published values.

#: Objective of the reference fit of each model, and the noise scale of its first, middle and last epoch.
PUBLISHED = {
    "bert": (0.12953, 423, None, 1124),
    "cifar10": (0.18366, 72, 4944, 38660),
    "deepspeech2": (0.22123, 10, 33200, 210600),
    "imagenet": (0.13636, 928, 11400, 14430),
    "ncf": (0.19590, 1.9e4, 2.1e7, 5.9e7),
    "yolov3": (0.32497, 0.65, 590, 5099),
}


def measured(model: str) -> Measurements:
    """All step times of a model; skips the test where they are not."""
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[3] / ".." / "shared" / "data")) / "pollux" / model
    if not root.exists():
        pytest.skip("needs the measurements of Pollux's authors; set PLAIT_DATA to the folder that has pollux/")
    rows = []
    for name in ("placements", "scalability"):
        with (root / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                nodes = [int(digit) for digit in row.get("placement", "")] or [0]
                at = (len(nodes), sum(nodes)) if sum(nodes) else (int(row["num_nodes"]), int(row["num_replicas"]))
                step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
                rows.append((*at, float(row["local_bsz"]), step_s - sync_s, step_s))
    return Measurements(*np.array(rows).T)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_at_least_as_good_as_the_reference_fit(name: str):
    profile = measured(name)
    theta = np.array(shipped()[name].theta)
    ours = loss(theta, profile)
    assert ours <= PUBLISHED[name][0] + 5e-6
    assert loss(fit(profile, theta), profile) >= ours * (1 - 1e-4)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_noise_curves_pass_through_the_published_values(name: str):
    model = shipped()[name]
    curve = model.noise.by_epoch(model.epochs)
    _, first, middle, last = PUBLISHED[name]
    assert len(curve) == len(model.epoch_ends) == model.epochs
    assert curve[[0, -1]] == pytest.approx([first, last], rel=0.01)
    assert middle is None or curve[model.epochs // 2] == pytest.approx(middle, rel=0.01)
    assert (np.diff(curve) > 0).all()


def test_a_curve_of_one_epoch_stays_where_it_begins():
    assert ShippedNoise(3.0, 7.0, 0.5).by_epoch(1).tolist() == [3.0]


def test_iterations_by_hand():
    bert = shipped()["bert"]
    alpha, beta = bert.theta[:2]
    assert bert.iteration_s(1, 1) == pytest.approx(alpha + 12 * beta, rel=1e-6)  # accumulating brings nothing
    assert bert.iteration_s(1, 4) < bert.iteration_s(1, 2) < bert.iteration_s(1, 1)
    assert bert.epoch_ends.tolist() == [bert.iterations / 2, bert.iterations]


def test_more_gpus_than_there_is_work_for_are_refused():
    yolo = shipped()["yolov3"]
    assert yolo.most_gpus == 512 // 4
    with pytest.raises(InputError, match="at most 128"):
        yolo.iteration_s(33, 129)
