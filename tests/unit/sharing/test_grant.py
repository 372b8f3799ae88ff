"""The bound from the mechanism, its exact values; impossible input of the coordinator, and the way through JSON."""

import json
import random
from collections.abc import Callable

import pytest

from plait.core.errors import InputError
from plait.sharing.contrast import (
    Sum,
    block_steps,
    contrast,
    local_variance,
    noise_after,
    period_of,
    placebo,
    small_shift,
)
from plait.sharing.coordinator import CODEC
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, SpillReason, StepStats
from plait.sharing.grant import EPS, Bound, beside_gated_server, by_work, expected_cost, grant, idle_room


@pytest.mark.parametrize(
    ("step_s", "returns", "quanta_s", "shares"),
    [
        (0.2, 1, [0.002], [1.0]),
        (0.2, 1, [0.02], [0.30]),
        (0.2, 1, [0.002, 0.02], [0.5, 0.15]),
        (0.2, 1, [0.3], [0.02]),
        (0.2, 20, [0.004], [0.075]),
        (0.035, 5, [0.001], [0.21]),
    ],
)
def test_a_grant_is_what_the_mechanism_allows(step_s, returns, quanta_s, shares) -> None:
    found = grant(step_s, returns, quanta_s, [1.0] * len(quanta_s))
    assert found.shares == pytest.approx(shares)
    assert found.total == pytest.approx(sum(shares))
    assert found.bound is (Bound.CERTAIN if found.total == 1.0 and len(quanta_s) == 1 else Bound.EXPECTED)


def test_a_grant_that_is_certain_is_divided_by_weight() -> None:
    assert grant(0.2, 1, [0.001, 0.003], [1.0, 3.0]).shares == (0.25, 0.75)


def test_a_guest_whose_quantum_nobody_has_seen_gets_what_work_alone_allows() -> None:
    assert grant(0.2, 1, [0.0], [1.0]).shares == (EPS,)
    assert grant(0.2, 1, [0.0], [1.0]).bound is Bound.UNKNOWN
    assert grant(0.2, 1, [0.002, 0.0], [1.0, 1.0]).shares == (0.5, EPS / 2)
    assert by_work([1.0, 1.0]).total == pytest.approx(EPS)


def test_an_expected_grant_costs_three_quarters_of_eps() -> None:
    for returns, q in ((1, 0.02), (20, 0.004), (5, 0.005)):
        level = grant(0.2, returns, [q], [1.0]).total
        assert expected_cost(0.2, returns, [q], level) == pytest.approx(0.75 * EPS)


@pytest.mark.parametrize(
    ("service_s", "quantum_s", "room"), [(0.02, 0.005, 1.0), (0.02, 0.02, 0.25), (0.005, 0.002, 0.625)]
)
def test_the_room_beside_a_gated_server(service_s, quantum_s, room) -> None:
    assert idle_room(service_s, quantum_s) == pytest.approx(room)
    assert beside_gated_server(service_s, [quantum_s], [1.0]).total == pytest.approx(room**2)


def test_a_quantum_longer_than_a_request_is_refused() -> None:
    assert beside_gated_server(0.005, [0.0051], [1.0]).total == 0.0


def test_a_sum_is_clipped_and_needs_two_contrasts() -> None:
    one = Sum().add(0.1, 4.0, 1.5)
    assert (one.height, one.alarm, one.suspect) == (4.0, False, True)
    two = one.add(0.1, 4.0, 1.5)
    assert (two.height, two.alarm) == (8.0, True)
    assert not Sum().add(0.1, 100.0, 2.0).alarm


def test_a_sum_stays_at_zero_below_half_of_its_shift() -> None:
    heights, one = [], Sum()
    for _ in range(5):
        one = one.add(0.01, 1.0, 2.0)
        heights.append(one.height)
    assert heights == [0.0] * 5
    assert one.since == ()
    for height in (2.0, 4.0, 6.0, 8.0):
        assert not one.alarm
        one = one.add(0.02, 2.0, 2.0)
        assert one.height == height
    assert one.alarm


def test_sums_look_for_eps() -> None:
    assert small_shift(0.02, 0.02) == 1.0
    assert (small_shift(0.02, 1.0), small_shift(0.02, 1e-4)) == (0.2, 2.0)


def test_a_linear_drift_gives_no_contrast() -> None:
    values = [0.2 + 0.003 * i for i in range(30)]
    assert abs(placebo(values, 6)) < 1e-12
    assert abs(contrast(values[:12], values[12:18], values[18:])) < 1e-12


@pytest.mark.parametrize(
    ("cycle", "period"), [([0.15, 0.25], 2), ([0.2] * 3 + [0.6], 4), ([0.2] * 15 + [0.6], 16), ([0.2], 1)]
)
def test_a_period_is_found(cycle, period) -> None:
    assert period_of((cycle * 160)[:160]) == period


def test_noise_has_no_period() -> None:
    chance = random.Random(4)
    values = [chance.gauss(1.0, 0.2) for _ in range(2000)]
    assert all(period_of(values[at : at + 160]) == 1 for at in range(0, 1840, 16))


def test_blocks_are_whole_periods_of_half_a_second_or_more() -> None:
    assert [block_steps(step_s, 1) for step_s in (0.2, 0.05, 0.004, 0.0001, 4.0, 30.0)] == [6, 10, 125, 400, 5, 3]
    assert block_steps(0.2, 4) == 8
    assert block_steps(0.2, 16) == 16


def test_noise_rises_quickly_and_falls_slowly() -> None:
    known = 1000
    assert noise_after(1.0, 5.0, known) - 1.0 == pytest.approx(4.0 / 40)
    assert 1.0 - noise_after(1.0, 0.0, known) == pytest.approx(1.0 / 160)
    assert noise_after(1.0, 1e9, known) == pytest.approx(1.0 + 24.0 / 40)
    assert noise_after(1.0, 0.0, 0) == pytest.approx(1.0 - 1 / 16)


def test_the_variance_of_steps_a_period_apart_leaves_the_period_out() -> None:
    assert local_variance([0.15, 0.25] * 20, 2) == 0.0
    assert local_variance([0.15, 0.25] * 20, 1) == pytest.approx(0.005)
    assert local_variance([0.2], 1) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Directive(share=1.2), "share of a GPU is 1.2, needs a number from 0 to 1"),
        (lambda: Directive(share=float("nan")), "share of a GPU is nan"),
        (lambda: Directive(memory_limit_bytes=-1), "memory limit is -1 bytes"),
        (lambda: Directive(micro_batches=0), "micro-batches are 0"),
        (lambda: StepStats(step=7, step_s=-0.1), "step 7: step_s is -0.1"),
        (lambda: StepStats(step=7, step_s=0.1, work=float("inf")), "step 7: work is inf"),
        (lambda: StepStats(step=7, step_s=0.1, host_spill_bytes=-5), "step 7: host_spill_bytes is -5"),
        (lambda: Sharer(False, weight=0.0), "weight of a job is 0.0, needs a number above 0"),
        (lambda: Sharer(False, persistent_bytes=-1), "-1 persistent bytes"),
        (lambda: Device(1, {"a": Sharer(True), "b": Sharer(True)}), "jobs a, b are guaranteed on one GPU"),
        (lambda: Device(0, {}), "memory of a GPU is 0 bytes"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert message in str(error.value)


def test_all_goes_to_json_and_back() -> None:
    step = StepStats(
        step=3, step_s=0.1 + 0.2, stage_s={"gpu": 0.1}, device_reserved_bytes=5, host_spill_bytes=2,
        spill_reason=SpillReason.OUT_OF_MEMORY, quantum_s=0.004, phase="training", work=32.0, operations=140,
    )  # fmt: skip
    device = Device(10, {"a": Sharer(True), "b": Sharer(False, 2.0, 1, 4)}, {"a": Reached(2, 9)}, {"b": 3})
    for value in (step, device, Directive(0.3, None, 4, Action.CHECKPOINT, 2)):
        assert CODEC.decode(type(value), json.loads(json.dumps(CODEC.encode(value)))) == value


def test_json_of_later_versions_and_of_nobody() -> None:
    assert CODEC.decode(Directive, {"share": 0.5, "color": "green"}) == Directive(0.5)
    for wrong, message in (
        ({"share": "half"}, "Directive.share is 'half', needs float"),
        ({"action": "dance"}, "Directive.action is 'dance', needs one of run, pause, checkpoint, stop"),
        ({"share": -0.5}, "share of a GPU is -0.5"),
        ([], "needs an object"),
    ):
        with pytest.raises(InputError) as error:
            CODEC.decode(Directive, wrong)
        assert message in str(error.value)
