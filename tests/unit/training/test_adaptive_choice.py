"""Which batch a job takes: by fits of its own times, and by the noise of its gradient."""

import itertools
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from test_adaptive_times import Clock

pytest.importorskip("torch")

import numpy as np
import torch

from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, Estimate
from plait.goodput.fit import Measurements
from plait.runtime.page import Page
from plait.training import attach
from plait.training.adaptive import Adaptive
from plait.training.adaptive.batch import Fitter, choose, first_batch
from plait.training.adaptive.loader import AdaptiveDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:plait. this loader may grow its batch")

#: The example of the specification of goodput: (16, 0) on one GPU, (28, 0) on two, (22, 0) on four.
THETA = (0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5)
LIMITS = BatchLimits(initial=16, most=256, least_local=4, most_local=32, accumulation=True)


class Noise:
    """A gradient of which all is known, or nothing."""

    def __init__(self, sqr: float = 1.0, var: float = 4.0, *, known: bool = True) -> None:
        self.sqr, self.var, self.known = sqr, var, known

    def gain(self, scale: float) -> float:
        return (self.var + self.sqr) / (self.var / scale + self.sqr)


def test_the_best_batch_of_a_new_size_is_taken() -> None:
    assert [choose(LIMITS, THETA, Noise(), nodes, gpus) for nodes, gpus in ((1, 1), (1, 2), (1, 4))] == [
        (16, 0),
        (28, 0),
        (22, 0),
    ]


def test_a_running_job_changes_for_five_per_cent_and_not_for_less() -> None:
    assert choose(LIMITS, THETA, Noise(), 1, 4, (19, 0)) == (19, 0)
    assert choose(LIMITS, THETA, Noise(), 1, 4, (8, 0)) == (22, 0)


@pytest.mark.parametrize(("throughput", "local"), [("pollux", 31), ("racks/nodes=1/slower=3", 32)])
def test_a_job_names_the_model_of_throughput_by_which_its_batch_is_chosen(throughput: str, local: int) -> None:
    model = torch.nn.Linear(1, 1)
    loader = AdaptiveDataLoader(range(512), 16, max_batch_size=256, local_batch=(4, 32), accumulation=True)
    Adaptive(attach(), model, torch.optim.SGD(model.parameters(), 0.1), loader, throughput=throughput)
    loader.decisions.fitter.theta, loader.decisions.noise = THETA, Noise()
    ranks: Any = SimpleNamespace(rank=0, nodes=2, world_size=8, largest=lambda values: values)
    loader.decisions._agree(ranks, None)
    assert loader.plan.latest == (local, 0)
    with pytest.raises(InputError, match="throughput is 'other'; it takes a model: "):
        Adaptive(attach(), model, torch.optim.SGD(model.parameters(), 0.1), loader, throughput="other")


@pytest.mark.parametrize(("theta", "noise"), [(None, Noise()), (THETA, None), (THETA, Noise(known=False))])
def test_without_times_or_noise_the_batch_stays(theta: Any, noise: Any) -> None:
    assert choose(LIMITS, theta, noise, 1, 4, (9, 0)) == (9, 0)
    assert choose(LIMITS, theta, noise, 1, 3) == (6, 0)


@pytest.mark.parametrize(("gpus", "expected"), [(1, (25, 3)), (2, (25, 1)), (3, (17, 1)), (4, (25, 0)), (50, (2, 0))])
def test_the_first_batch_is_the_initial_one(gpus: int, expected: tuple[int, int]) -> None:
    assert (
        first_batch(BatchLimits(initial=100, most=100, least_local=2, most_local=25, accumulation=True), gpus)
        == expected
    )


def test_no_batch_is_small_enough_for_too_many_gpus() -> None:
    limits = BatchLimits(initial=10, most=40, least_local=8, most_local=20)
    assert [first_batch(limits, gpus) for gpus in (1, 4)] == [(10, 0), (8, 0)]
    with pytest.raises(InputError, match="allow at most 5 GPUs"):
        first_batch(limits, 6)


def test_a_fit_that_fails_ends_the_adapting_but_not_the_training() -> None:
    calls = []

    def fit(profile: Any, start: Any) -> Any:
        calls.append(profile)
        raise InputError("no library to fit with")

    fitter = Fitter(fit)
    one = np.ones(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            fitter.start(Measurements(one, one, one, one, one))
            fitter.wait()
    assert [str(w.message) for w in caught] == ["plait: the batch size no longer adapts: no library to fit with"]
    assert (len(calls), fitter.theta) == (1, None)


def trained(loader: AdaptiveDataLoader, clock: Clock, after: int) -> list[int]:
    """The batch size of each step, in a world where a pass takes 1 s + 10 ms an example; noise is known `after`."""
    loader.timings._clock = loader.decisions.schedule._clock = clock
    sizes = []
    for number, batch in enumerate(loader):
        sizes.append(loader.current_batch_size)
        clock.now_s += 1 + 0.01 * len(batch)
        loader.decisions.fitter.wait()
        if number == after:
            loader.follow(Noise(1.0, 100.0))
    return sizes


def test_times_are_fitted_beside_training_and_a_better_batch_is_taken() -> None:
    loader = AdaptiveDataLoader(
        range(4000), 10, max_batch_size=160, accumulation=True, local_batch=(1, 80), interval_s=10
    )
    sizes = trained(loader, Clock(), 60)
    assert sizes[:60] == [10] * 60
    theta = loader.decisions.fitter.theta
    assert theta[0] + 10 * theta[1] == pytest.approx(1.1, rel=0.02)
    assert max(sizes) > 20
    assert loader.plan.latest == choose(loader.limits, theta, loader.decisions.noise, 1, 1, loader.plan.latest)
    again = AdaptiveDataLoader(
        range(4000), 10, max_batch_size=160, accumulation=True, local_batch=(1, 80), interval_s=10
    )
    again.load_state_dict(loader.state_dict())
    again.follow(Noise(1.0, 100.0))
    assert next(iter(again)).numel() == loader.plan.latest[0]


class Told:
    """A page that remembers when it was told."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.at_s = clock, []

    def set_goodput(self, numbers: list[float]) -> None:
        self.at_s.append(self.clock.now_s)


@pytest.mark.parametrize("grows", [True, False])
def test_slower_steps_do_not_put_off_looks_and_words_for_long(monkeypatch: pytest.MonkeyPatch, grows: bool) -> None:
    """A batch 64 times as large, or GPUs that have become 64 times as slow."""
    clock, looks = Clock(), []

    def chosen(*_: Any) -> tuple[int, int]:
        looks.append(clock.now_s)
        return (64 if grows and clock.now_s > 20 else 1), 0

    monkeypatch.setattr("plait.training.adaptive.batch.choose", chosen)
    loader = AdaptiveDataLoader(range(20000), 1, max_batch_size=64, interval_s=10)
    loader.timings._clock = loader.decisions.schedule._clock = clock
    page: Any = Told(clock)
    loader.decisions.page = page
    for batch in loader:
        clock.now_s += 0.01 * (len(batch) if grows or clock.now_s < 30 else 64)
        if clock.now_s > 150:
            break
    for times in (looks, page.at_s) if grows else (page.at_s,):
        late = [t for t in times if t > 15] + [150.0]
        assert max(b - a for a, b in itertools.pairwise(late)) < 15


@pytest.mark.parametrize(
    ("local_batch", "most", "accumulation", "expected"),
    [
        ((1, 64), 512, True, (64, 0)),
        ((1, 32), 512, True, (32, 1)),
        ((1, 64), 128, True, (64, 0)),
        ((1, 64), 512, False, (64, 0)),
    ],
)
def test_a_batch_of_a_checkpoint_goes_on_within_the_bounds_of_now(
    local_batch: tuple[int, int], most: int, accumulation: bool, expected: tuple[int, int]
) -> None:
    def made(*bounds: Any) -> AdaptiveDataLoader:
        local_batch, most, accumulation = bounds
        return AdaptiveDataLoader(
            range(4096), 64, max_batch_size=most, local_batch=local_batch, accumulation=accumulation
        )

    loader = made((1, 256), 512, True)
    next(iter(loader))
    loader.plan.change(128, 1, 0)
    state = loader.state_dict()
    same, other = made((1, 128), 512, True), made(local_batch, most, accumulation)
    for one, batch in ((same, (128, 1)), (other, expected)):
        one.load_state_dict(state)
        for _ in range(2):
            next(iter(one))
            assert one.plan.latest == batch


def test_what_is_told_to_the_agent(tmp_path: Any) -> None:
    from plait.training.adaptive.batch import report_estimate, report_progress

    loader = AdaptiveDataLoader(range(100), 10)
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        report_estimate(page, None, None, loader.timings)
        assert page.goodput is not None
        assert all(np.isnan(page.goodput))
        trained(loader, Clock(), 200)
        report_estimate(page, THETA, Noise(), loader.timings)
        report_progress(page, 7.5, 30.0, 64)
        told = page.goodput
        assert told[: len(THETA)] == THETA
        assert (told[Estimate.SQR], told[Estimate.VAR], told[Estimate.PROFILED_GPUS]) == (1, 4, 1)
        assert np.isnan(told[Estimate.RESTART_S])
        assert (page.progress, page.total_progress, page.batch_size) == (7.5, 30, 64)
