"""Configurations on GPUs of several kinds, against every choice there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.goodput.kinds import MOST_POWER, Limit, best_configurations, kind_configs, relative
from sampling import examples


def goodputs(seed: int, jobs: int, configs: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(seed)
    slow = rng.uniform(0.0, 0.7, (jobs, 1))
    speed = rng.uniform(0.5, 3.0, (jobs, configs[:, 2].max() + 1))
    return speed[:, configs[:, 2]] * configs[:, 1] / (1 + slow * (configs[:, 1] - 1))


def score(values: np.ndarray, chosen: tuple[int, ...], p: float, penalty: float) -> float:
    total = 0.0
    for row, c in zip(values, chosen, strict=True):
        total += -penalty if c < 0 else (np.log(row[c]) if p == 0 else np.sign(p) * row[c] ** p)
    return float(total)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]),
    st.sampled_from([1.1, 0.2]),
    st.booleans(),
)
def test_no_choice_is_better(seed, jobs, p, penalty, limited):
    configs = kind_configs([2, 4], [2, 1])
    gpus, kind, capacity = configs[:, 1], configs[:, 2], np.array([4, 4])
    values = relative(goodputs(seed, jobs, configs))
    limits = [Limit(np.broadcast_to(gpus.astype(float), values.shape), high=5.0)] if limited else []
    found = best_configurations(values, gpus, kind, capacity, p, penalty=penalty, limits=limits)
    best = -np.inf
    for chosen in product(range(-1, len(configs)), repeat=jobs):
        some = [c for c in chosen if c >= 0]
        used = np.bincount(kind[some], gpus[some], minlength=2)
        if (used <= capacity).all() and (not limited or used.sum() <= 5):
            best = max(best, score(values, chosen, p, penalty))
    used = np.bincount(kind[found[found >= 0]], gpus[found[found >= 0]], minlength=2)
    assert (used <= capacity).all()
    assert score(values, tuple(found.tolist()), p, penalty) == pytest.approx(best, abs=1e-6)


def test_the_penalty_decides_whether_all_run_small_or_some_run_large():
    """At p = -0.5 two jobs of 2 GPUs and two of none cost 2 / sqrt(2) + 2.2, which is less than four of 1."""
    configs = kind_configs([4], [1])
    values = relative(np.tile(configs[:, 1].astype(float), (4, 1)))
    size = configs[:, 1], configs[:, 2], np.array([4])
    assert sorted(best_configurations(values, *size).tolist()) == [-1, -1, 1, 1]
    assert best_configurations(values, *size, penalty=3.0).tolist() == [0, 0, 0, 0]


def test_jobs_go_where_they_gain_most():
    configs = kind_configs([1, 1], [1, 1])
    values = relative(np.array([[1.0, 2.0], [1.0, 8.0]]))
    assert best_configurations(values, configs[:, 1], configs[:, 2], np.array([1, 1])).tolist() == [0, 1]
    runs = Limit(np.array([[0.0, 1.0], [0.0, 0.0]]), low=1.0)
    assert best_configurations(values, configs[:, 1], configs[:, 2], np.array([1, 1]), limits=[runs]).tolist() == [1, 0]


def test_weights_and_what_cannot_run():
    configs = kind_configs([1], [1])
    values = np.array([[1.0], [1.0], [np.nan]])
    size = configs[:, 1], configs[:, 2], np.array([1])
    assert best_configurations(values, *size, weights=np.array([1.0, 2.0, 9.0])).tolist() == [-1, 0, -1]
    assert best_configurations(np.full((2, 1), np.nan), *size).tolist() == [-1, -1]
    with pytest.raises(InputError, match="meets the 1 extra limits"):
        best_configurations(values, *size, limits=[Limit(np.ones((3, 1)), low=2.0)])
    with pytest.raises(InputError, match="limits of shape"):
        best_configurations(values, *size, limits=[Limit(np.ones((2, 1)))])


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 3.0]), st.sampled_from([1e-12, 1e-7, 1e9]))
def test_only_how_weights_compare_matters(seed, p, scale):
    configs = kind_configs([2, 4], [2, 1])
    values = relative(goodputs(seed, 4, configs))
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, 4)
    size = configs[:, 1], configs[:, 2], np.array([4, 4])
    expected = best_configurations(values, *size, p, weights=weights)
    assert best_configurations(values, *size, p, weights=weights * scale).tolist() == expected.tolist()


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([-4.0, -0.5, 0.5, 4.0]))
def test_no_choice_is_better_with_weights_far_apart(seed, p):
    configs = kind_configs([2, 4], [2, 1])
    gpus, kind, capacity = configs[:, 1], configs[:, 2], np.array([4, 4])
    values = relative(goodputs(seed, 3, configs))
    weights = 10 ** np.random.default_rng(seed).uniform(-5, 0, 3)
    found = best_configurations(values, gpus, kind, capacity, p, weights=weights)
    worth = weights[:, None] * np.column_stack([np.sign(p) * values**p, np.full(3, -1.1)])
    best = -np.inf
    for chosen in product(range(-1, len(configs)), repeat=3):
        some = [c for c in chosen if c >= 0]
        if (np.bincount(kind[some], gpus[some], minlength=2) <= capacity).all():
            best = max(best, worth[np.arange(3), chosen].sum())
    assert worth[np.arange(3), found].sum() == pytest.approx(best, rel=1e-9, abs=1e-7 * np.median(weights))


def test_exponents_of_which_numbers_can_hold_no_power_are_refused():
    size = np.array([1, 2]), np.array([0, 0]), np.array([2])
    for p in (MOST_POWER + 1.0, -MOST_POWER - 1.0, np.nan, np.inf):
        with pytest.raises(InputError, match=r"more of goodputs than numbers can hold; give p from -48 to 48"):
            best_configurations(np.array([[1.0, 2.0]]), *size, p)
    values = np.array([[1e-9, 1e6], [1.0, 2.0]])
    for p in (MOST_POWER, -MOST_POWER):  # at the very end, and one restart that loses nearly everything
        assert best_configurations(values, *size[:2], np.array([4]), p)[0] == 1


def test_goodput_is_relative_to_the_least_positive():
    assert np.array_equal(relative(np.array([[0.0, 2.0, 6.0]])), [[np.nan, 1.0, 3.0]], equal_nan=True)
