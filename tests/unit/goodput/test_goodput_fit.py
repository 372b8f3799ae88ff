"""The fit: its gradient, its priors, recovery of known parameters, and the published measurements."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError, MissingExtra
from plait.core.jit import HAVE_NUMBA, plain
from plait.goodput import levenberg_marquardt
from plait.goodput.fit import START, Measurements, bounds, fit, fit_many, loss, loss_and_gradient, minimised
from plait.goodput.throughput import array_residuals, grad_s, observations, step_s
from sampling import examples

slow = pytest.mark.skipif(os.environ.get("PLAIT_SLOW") != "1", reason="half a minute; set PLAIT_SLOW=1")

TRUE = np.array([0.1, 0.01, 0.5, 1.0, 1e-6, 1e-6, 1.2])


def noisy(theta: np.ndarray, seed: int, count: int, noise: float, *, nodes: int = 8, gpus: int = 16) -> Measurements:
    """Measurements of `theta` at distinct random keys."""
    rng = np.random.default_rng(seed)
    many = rng.integers(1, gpus + 1, 3 * count)
    keys = np.stack([np.minimum(rng.integers(1, nodes + 1, 3 * count), many), many, rng.integers(1, 65, 3 * count)])
    keys = np.unique(keys, axis=1)
    keys = keys[:, rng.permutation(keys.shape[1])[:count]]
    spread = np.exp(noise * rng.standard_normal((2, keys.shape[1])))
    return Measurements(*keys, grad_s(theta, keys[2]) * spread[0], step_s(theta, *keys) * spread[1])


def some_theta(rng: np.random.Generator) -> np.ndarray:
    return np.append(np.exp(rng.uniform(np.log(1e-3), 0, 6)), rng.uniform(1, 10))


@given(st.integers(0, 10**6))
@settings(max_examples=examples(30))
def test_the_gradient_is_that_of_finite_differences(seed) -> None:
    rng = np.random.default_rng(seed)
    profile = noisy(some_theta(rng), seed, int(rng.integers(1, 40)), 0.1)
    theta = some_theta(rng)
    _, gradient = loss_and_gradient(theta, profile)
    for column in range(7):
        step = np.zeros(7)
        step[column] = 1e-6 * theta[column]
        slope = (loss(theta + step, profile) - loss(theta - step, profile)) / (2e-6 * theta[column])
        assert gradient[column] == pytest.approx(slope, rel=1e-4, abs=1e-6 / theta[column])


def test_the_loss_of_the_truth_is_what_regularises_it() -> None:
    profile = noisy(TRUE, 0, 50, 0.0)
    value, gradient = loss_and_gradient(TRUE, profile)
    assert value == pytest.approx(1e-3 * 0.2**2 + 1e-2 * ((1 / 0.5) ** 2 + 1), rel=1e-9)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("noise", [0.001, 0.01])
@pytest.mark.parametrize("artifact", [False, True])
def test_a_thousand_noisy_points_are_recovered(noise, artifact) -> None:
    profile = noisy(TRUE, 1, 1000, noise, nodes=16, gpus=32)
    theta = fit(profile, artifact=artifact)
    assert loss(theta, profile) <= 1.1 * loss(TRUE, profile)


def test_priors_where_the_profile_cannot_tell() -> None:
    alone = Measurements([1], [1], [16], [0.3], [0.3])
    theta = fit(alone)
    assert theta[0] == pytest.approx(0.15)
    assert theta[4:6].tolist() == [1e-8] * 2
    assert theta[2:4] == pytest.approx([1.1e-8] * 2)
    lower, upper = bounds(Measurements([1, 1], [1, 2], [16, 8], [0.3, 0.2], [0.3, 0.3]))
    assert (lower == upper).tolist() == [False, False, True, True, False, True, False]
    lower, upper = bounds(Measurements([1, 1, 2], [1, 4, 4], [16, 8, 8], [0.3, 0.2, 0.2], [0.3, 0.3, 0.4]))
    assert (lower < upper).all()


def test_the_network_is_never_better_than_the_node_before_it_is_measured() -> None:
    profile = Measurements([1, 1, 1], [1, 2, 4], [16, 16, 8], [0.3, 0.3, 0.2], [0.3, 0.5, 0.5])
    theta = fit(profile)
    assert theta[4] > 1e-3
    assert theta[2] == pytest.approx(1.1 * theta[4])
    assert theta[3] == pytest.approx(1.1 * theta[5])


def test_a_start_never_makes_the_fit_worse() -> None:
    rng = np.random.default_rng(4)
    for seed in range(10):
        profile = noisy(some_theta(rng), seed, int(rng.integers(1, 30)), 0.05)
        cold = loss(fit(profile), profile)
        warm = loss(fit(profile, some_theta(rng)), profile)
        assert warm <= cold + 1e-9
        assert fit(profile, some_theta(rng), artifact=True).tolist() == fit(profile, artifact=True).tolist()


def test_many_jobs_at_once_are_each_alone() -> None:
    rng = np.random.default_rng(5)
    profiles = [noisy(some_theta(rng), seed, 1 + 7 * seed, 0.05) for seed in range(4)]
    starts = np.array([some_theta(rng) for _ in profiles])
    starts[1, 3] = np.nan
    many = fit_many(profiles, starts)
    single = [fit(profile, start) for profile, start in zip(profiles, starts, strict=True)]
    assert many == pytest.approx(np.array(single), rel=1e-12)
    assert fit_many([]).shape == (0, 7)


def drawn(seed: int) -> tuple[Measurements, np.ndarray]:
    """A random profile of any size and spread, and a start."""
    rng = np.random.default_rng(seed)
    count, noise = int(rng.choice([1, 2, 3, 5, 10, 30, 100])), float(rng.choice([0, 0.01, 0.1]))
    nodes, gpus = int(rng.choice([1, 2, 8])), int(rng.choice([2, 8, 32]))
    return noisy(some_theta(rng), seed, count, noise, nodes=nodes, gpus=gpus), some_theta(rng)


def test_never_above_the_published_search_from_the_same_starts() -> None:
    excess = []
    for seed in range(20):
        profile, start = drawn(seed)
        limits, seen = bounds(profile), observations(profile)
        scipys = min(minimised(seen, begin, *limits)[0] for begin in (START, start))
        ours = np.clip(fit(profile, start), *limits)  # without what is added for a network never measured
        excess.append(loss(ours, profile) - scipys)
    assert max(excess) < 1e-6
    assert np.mean(excess) < -1e-4


def few(seed: int) -> Measurements:
    """One to eleven measurements with 5 % noise of a job of any kind, some in other units of time."""
    rng = np.random.default_rng(seed)
    theta = np.exp(1.5 * rng.standard_normal(7)) * [0.1, 0.001, 0.1, 0.01, 0.05, 0.005, 1]
    theta[6] = 1 + 9 * rng.random() ** 2
    count = int(rng.integers(1, 12))
    gpus = 2 ** rng.integers(0, 6, count)
    nodes, local = np.minimum(gpus, 2 ** rng.integers(0, 3, count)), rng.integers(1, 500, count)
    spread = np.exp(0.05 * rng.standard_normal((2, count))) * 10.0 ** (rng.integers(-6, 5) if seed % 4 == 0 else 0)
    return Measurements(
        nodes, gpus, local, grad_s(theta, local) * spread[0], step_s(theta, nodes, gpus, local) * spread[1]
    )


@pytest.mark.parametrize("count", [12, pytest.param(30, marks=slow), pytest.param(250, marks=slow)])
def test_hardly_one_in_many_small_profiles_ends_above_the_published_search_and_none_by_much(count) -> None:
    profiles = [few(seed) for seed in range(count)]
    excess = []
    for profile, theta in zip(profiles, fit_many(profiles), strict=True):
        limits = bounds(profile)
        scipys = minimised(observations(profile), START, *limits)[0]
        excess.append(loss(np.clip(theta, *limits), profile) - scipys)
    above = np.array(excess)
    assert (above > 1e-6).sum() <= count / 60
    assert above.max() < 1e-3


WORST = (155, 413, 903, 999, 1204)


@pytest.mark.parametrize("seed", WORST)
def test_no_end_where_measured_synchronisation_is_free_but_costs_more(seed) -> None:
    profile = few(seed)
    limits = bounds(profile)
    _, theirs = minimised(observations(profile), START, *limits)
    ours = np.clip(fit(profile), *limits)
    assert loss(ours, profile) <= loss(theirs, profile) + 1e-6
    paid = [
        pair for pair in (2, 4) if limits[0][pair] < limits[1][pair] and theirs[pair] > 0.01 * profile.grad_s.mean()
    ]
    assert paid
    assert (ours[paid] > 0.01 * theirs[paid]).all()


def test_loops_and_arrays_agree() -> None:
    for seed in range(10):
        profile, theta = drawn(seed)
        seen = observations(profile)
        both = [(np.zeros((2, len(profile))), np.zeros((9, len(profile)))) for _ in range(2)]
        array_residuals(theta, seen, *both[0])
        levenberg_marquardt.each_residual(theta, seen, *both[1])
        for arrays, loops in zip(*both, strict=True):
            np.testing.assert_allclose(loops, arrays, rtol=1e-11, atol=1e-14)


@pytest.mark.skipif(not HAVE_NUMBA, reason="without a compiler there is only the plain search")
def test_the_plain_search_ends_where_the_compiled_one_does() -> None:
    for seed in (0, 1, 4, 9):
        profile, start = drawn(seed)
        lower, upper = bounds(profile)
        problem = (
            observations(profile),
            np.array([0, len(profile)]),
            start[None, None],
            lower[None],
            upper[None],
        )
        assert plain(levenberg_marquardt.search_many)(*problem)[1] == pytest.approx(
            levenberg_marquardt.search_many(*problem)[1], rel=1e-7
        )


def test_wrong_profiles_are_refused() -> None:
    with pytest.raises(InputError, match="row 1 of a profile has nodes=2, gpus=1"):
        Measurements([1, 2], [1, 1], [8, 8], [0.1, 0.1], [0.1, 0.1])
    with pytest.raises(InputError, match="shapes"):
        Measurements([1, 2], [1], [8], [0.1], [0.1])
    with pytest.raises(InputError, match="without measurements"):
        fit(Measurements([], [], [], [], []))


def test_without_scipy_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtra, match=r"plait\[sim\]"):
        fit(noisy(TRUE, 0, 5, 0.01), artifact=True)


REFERENCE = """
bert        0.1719   0.05861   1.386   0.00943  0.284   0.0096  1.90  0.12953 0.065
cifar10     0.01866  0.0006798 0.09152 0.002525 0.01540 0       1.277 0.18366 0.100
ncf         0.006957 6.355e-7  0.01748 0.000556 0.0060  0       1.248 0.19590 0.096
imagenet    0.06417  0.004480  0.2994  0.006638 0.02649 5.35e-5 2.470 0.13636 0.073
deepspeech2 0.3111   0.02384   0.4871  0.009818 0.0839  0.00137 1.413 0.22123 0.085
yolov3      0.1871   0.02538   0.7491  0.01071  0.1283  0.01744 1.108 0.32497 0.090
"""
"""Fits of all published measurements: theta, objective, mean relative error of T_opt (pollux.md, section 2)."""


@pytest.fixture(scope="module")
def measured() -> Path:
    folder = Path(os.environ.get("PLAIT_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")) / "pollux"
    if not (folder / "bert" / "placements.csv").exists():
        pytest.skip(f"no published measurements in {folder}; set PLAIT_DATA to the folder that has pollux/bert")
    return folder


def published(folder: Path) -> Measurements:
    """All rows of a model, placed and at scale."""
    rows = []
    with open(folder / "placements.csv", newline="") as file:
        for row in csv.DictReader(file):
            digits = [int(digit) for digit in row["placement"]]
            rows.append((len(digits), sum(digits), row["local_bsz"], row["step_time"], row["sync_time"]))
    with open(folder / "scalability.csv", newline="") as file:
        names = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        rows += [tuple(row[name] for name in names) for row in csv.DictReader(file)]
    nodes, gpus, local, step, sync = np.array(rows, dtype=np.float64).T
    return Measurements(nodes, gpus, local, step - sync, step)


@pytest.mark.parametrize("line", REFERENCE.split("\n")[1:-1], ids=lambda line: line.split()[0])
def test_published_measurements(measured, line) -> None:
    model, *figures = line.split()
    *theta, value, error = map(float, figures)
    profile = published(measured / model)
    found = fit(profile, artifact=True)
    assert loss(found, profile) == pytest.approx(value, abs=6e-6)
    assert found == pytest.approx(np.array(theta), rel=0.02, abs=1e-5)
    times = step_s(found, profile.nodes, profile.gpus, profile.local)
    assert np.abs(times / profile.step_s - 1).mean() == pytest.approx(error, abs=6e-4)
    assert loss(fit(profile), profile) <= loss(found, profile) + 1e-6


def test_neither_compiler_nor_scipy_is_needed_to_adapt() -> None:
    script = """
import subprocess
import sys
sys.modules["numba"] = sys.modules["scipy"] = None
import numpy as np
from plait.goodput import lr_scaling
from plait.goodput.batch import best_batch
from plait.goodput.fit import Measurements, fit
from plait.goodput.jobs import GoodputJobs
assert "plait.core.jit" not in sys.modules, "the compiler is asked for before it is needed"
theta = fit(Measurements([1, 1, 2], [1, 4, 4], [16, 8, 8], [0.3, 0.2, 0.2], [0.3, 0.3, 0.4]))
jobs = GoodputJobs(theta[None], [1], [4], [16], [256], [4], [32], [True])
print(best_batch(jobs, 1, 4).goodput[0, 0] > 0, lr_scaling.linear(2, [1], [1])[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "2.0"], done.stderr
