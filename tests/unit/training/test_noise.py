"""The estimators of gradient noise on synthetic gradients of known covariance, and the averages over them."""

import math

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.training.adaptive.noise import SMOOTHING, Estimate, Statistics, from_pair, from_samples

M0 = 8
DRAWS = 20_000


class World:
    """Gradients of 12 parameters, a true one and noise of a known covariance per example, in two halves."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.gradient = self.random.normal(size=12)
        mixing = self.random.normal(size=(12, 12)) * 1.5
        mixing[:6, 6:] = mixing[6:, :6] = 0  # the halves are independent
        self.mixing = mixing
        self.sigma = mixing @ mixing.T

    def samples(self, number: int, size: int, draws: int = DRAWS) -> np.ndarray:
        """(draws, number, 12): means of `size` examples each."""
        noise = self.random.normal(size=(draws, number, 12)) @ self.mixing.T
        return self.gradient + noise / math.sqrt(size)

    def estimates(self, number: int, size: int, part: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """sqr and var of every draw."""
        g = self.samples(number, size)[..., part]
        local = (g**2).sum(2).mean(1)
        total = (g.mean(1) ** 2).sum(1)
        made = from_samples([local], [total], number, number * size / M0)  # works on arrays as on numbers
        return made.sqr[0], made.var[0]


def agree(values: np.ndarray, expected: float) -> None:
    """The mean is within four standard errors."""
    assert abs(values.mean() - expected) < 4 * values.std() / math.sqrt(len(values))


@pytest.mark.parametrize(("number", "size"), [(2, 8), (8, 4), (8, 1)])
def test_means_and_variances_are_those_of_theory(number: int, size: int) -> None:
    world = World(number)
    g, sigma, batch = world.gradient, world.sigma, number * size
    sqr, var = world.estimates(number, size)
    agree(sqr, g @ g)
    agree(var, np.trace(sigma) / M0)
    square = np.trace(sigma @ sigma)
    in_sqr = 4 * g @ sigma @ g / batch + 2 * square * number / (batch**2 * (number - 1))
    assert sqr.var() == pytest.approx(in_sqr, rel=0.1)
    assert var.var() == pytest.approx(2 * square / (M0**2 * (number - 1)), rel=0.1)


def test_accumulated_means_as_samples_are_unbiased_and_vary_more() -> None:
    """2 ranks of 4 passes: every pass as a sample, or the mean of each rank's passes."""
    world = World(3)
    every, ranks = world.estimates(8, 4)[1], world.estimates(2, 16)[1]
    agree(every, np.trace(world.sigma) / M0)
    agree(ranks, np.trace(world.sigma) / M0)
    assert ranks.var() / every.var() == pytest.approx(7, rel=0.1)


def test_parameter_groups_add_up_to_the_whole() -> None:
    world = World(4)
    g, sigma = world.gradient, world.sigma
    for part in (slice(0, 6), slice(6, 12)):
        sqr, var = world.estimates(4, 4, part)
        agree(sqr, g[part] @ g[part])
        agree(var, np.trace(sigma[part, part]) / M0)
    one = np.random.default_rng(0).normal(size=(4, 12))
    squares = lambda part: [(one[:, part] ** 2).sum(1).mean(), (one[:, part].mean(0) ** 2).sum()]  # noqa: E731
    (la, ta), (lb, tb), (lw, tw) = squares(slice(0, 6)), squares(slice(6, 12)), squares(slice(0, 12))
    groups = from_samples([la, lb], [ta, tb], 4, 2.0)
    whole = from_samples([lw], [tw], 4, 2.0)
    assert sum(groups.sqr) == pytest.approx(whole.sqr[0])
    assert sum(groups.var) == pytest.approx(whole.var[0])


@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_one_sample_a_step_compares_two_steps(drift: float) -> None:
    """With a gradient that moves by D between steps var is too large by M |D|^2 / (2 M0)."""
    world, size = World(5), 16
    g = world.samples(2, size)
    moved = drift * np.ones(12) / math.sqrt(12)
    a, b = g[:, 0], g[:, 1] + moved
    made = from_pair([(a * b).sum(1)], [((a - b) ** 2).sum(1)], size / M0)
    agree(made.sqr[0], world.gradient @ (world.gradient + moved))
    agree(made.var[0], np.trace(world.sigma) / M0 + size * drift**2 / (2 * M0))
    assert made.biased
    assert made.scale == 2 * size / M0


def test_a_pair_is_two_samples_at_twice_the_scale() -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 5))
    pair = from_pair([a @ b], [(a - b) @ (a - b)], 3.0)
    mean = (a + b) / 2
    samples = from_samples([(a @ a + b @ b) / 2], [mean @ mean], 2, 6.0)
    assert pair.sqr == pytest.approx(samples.sqr)
    assert pair.var == pytest.approx(samples.var)
    assert pair.scale == samples.scale


def test_one_sample_is_refused() -> None:
    with pytest.raises(InputError, match="two or more; use from_pair"):
        from_samples([1.0], [1.0], 1, 1.0)


def test_the_average_is_corrected_for_its_start_and_forgets_by_scale() -> None:
    statistics = Statistics(2)
    scales = [1.0, 4.0, 2.5, 0.5]
    values = [(3.0, 1.0), (2.0, 5.0), (7.0, -1.0), (0.5, 2.0)]
    for scale, value in zip(scales, values, strict=True):
        assert statistics.update(Estimate(value, value, scale))
    assert statistics.weight == pytest.approx(1 - SMOOTHING ** sum(scales))
    later = [sum(scales[i + 1 :]) for i in range(4)]
    weights = np.array([(1 - SMOOTHING**s) * SMOOTHING**after for s, after in zip(scales, later, strict=True)])
    expected = weights @ np.array(values) / weights.sum()
    assert statistics.group_sqr == pytest.approx(expected)
    assert statistics.group_var == pytest.approx(expected)
    first = Statistics()
    first.update(Estimate((5.0,), (2.0,), 1.0))
    assert first.group_sqr == pytest.approx((5.0,))


def test_before_any_estimate_every_batch_size_looks_efficient_and_no_learning_rate_is_scaled() -> None:
    statistics = Statistics(3)
    assert (statistics.sqr, statistics.var) == (0.0, 1.0)
    assert statistics.noise_scale(M0) == math.inf
    assert statistics.group_sqr == (1.0,) * 3
    assert statistics.group_var == (0.0,) * 3
    assert statistics.gain(8.0) == 8.0


def test_groups_have_floors_of_their_own() -> None:
    statistics = Statistics(2)
    statistics.update(Estimate((-1.0, 2.0), (-4.0, 3.0), 1.0))
    assert statistics.sqr == pytest.approx(2.0)
    assert statistics.var == pytest.approx(3.0 + 1e-6)
    assert statistics.noise_scale(10) == pytest.approx(15.0, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_leaves_everything_as_it_was(bad: float) -> None:
    statistics = Statistics(2)
    statistics.update(Estimate((1.0, 2.0), (3.0, 4.0), 2.0))
    before = statistics.state_dict()
    assert not statistics.update(Estimate((1.0, bad), (3.0, 4.0), 2.0))
    assert not statistics.update(Estimate((1.0, 1.0), (bad, 4.0), 2.0))
    assert statistics.state_dict() == before


def test_averages_begin_anew_when_they_need_not_be_biased_any_more() -> None:
    statistics = Statistics()
    statistics.update(Estimate((9.0,), (9.0,), 2.0, biased=True))
    assert statistics.biased
    statistics.update(Estimate((1.0,), (2.0,), 1.0))
    assert not statistics.biased
    assert statistics.group_sqr == pytest.approx((1.0,))
    statistics.update(Estimate((2.0,), (2.0,), 1.0, biased=True))
    assert statistics.biased
    assert 1 < statistics.group_sqr[0] < 2, "what was known is kept"


def test_gain_arithmetic() -> None:
    statistics = Statistics()
    statistics.update(Estimate((1.0,), (3.0,), 3.0))
    assert statistics.gain(3.0) == pytest.approx(2.0)
    assert statistics.gain(1.0) == pytest.approx(1.0)
    noise_only = Statistics()
    noise_only.update(Estimate((-1.0,), (3.0,), 3.0))
    assert noise_only.gain(5.0) == pytest.approx(5.0)


def test_state_loads_as_weights_only(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch = pytest.importorskip("torch")
    statistics = Statistics(2)
    statistics.update(Estimate((1.0, 2.0), (3.0, 4.0), 2.0, biased=True))
    torch.save(statistics.state_dict(), tmp_path / "s.pt")
    loaded = Statistics(2)
    loaded.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    assert loaded.state_dict() == statistics.state_dict()
    assert loaded.group_var == statistics.group_var
    with pytest.raises(ValueError, match="2 parameter groups, but the optimizer has 3"):
        Statistics(3).load_state_dict(statistics.state_dict())
    with pytest.raises(InputError, match="add_param_group"):
        Statistics(3).update(Estimate((1.0,), (1.0,), 1.0))
