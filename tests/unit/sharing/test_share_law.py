"""The share law alone: what it does with the steps of a guaranteed job."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from plait.sharing import StepStats
from plait.sharing.share_law import (
    ADD,
    AGAIN_S,
    FIRST_STEPS,
    FLOOR,
    LEAST_ADD,
    LONGEST_PROBE_S,
    PROBE_S,
    WINDOW_STEPS,
    ShareState,
    after_step,
    divided,
)

STEP_S = 0.2


class Law:
    """A law that is fed step by step; `quantum_s` is that of the opportunistic jobs."""

    def __init__(self, quantum_s: float = 0.001) -> None:
        self.state, self.now_s, self.number, self.quantum_s = ShareState(), 0.0, 0, quantum_s

    def feed(self, steps_s: Iterable[float], **values: object) -> Law:
        for step_s in steps_s:
            self.now_s += step_s
            step = StepStats(step=self.number, step_s=step_s, **values)  # type: ignore[arg-type]
            self.state = after_step(self.state, self.now_s, step, self.quantum_s)
            self.number += 1
        return self

    def until(self, share: float) -> Law:
        """Quiet steps until the share is reached."""
        for _ in range(2000):
            if self.state.allowed >= share:
                return self
            self.feed([STEP_S])
        raise AssertionError(f"the share stays at {self.state.share}")


def quiet(steps: int) -> list[float]:
    return [STEP_S] * steps


def settled(quantum_s: float = 0.001) -> Law:
    """With full share and a step that is counted next."""
    law = Law(quantum_s).until(1.0).feed(quiet(1))
    assert not law.state.settling
    return law


def test_b0_is_the_mean_of_steps_without_opportunistic_work() -> None:
    law = Law().feed([5.0])  # the first step is not counted
    law.feed([STEP_S * (1.1 if i % 2 else 0.9) for i in range(FIRST_STEPS - 1)])
    assert law.state.measuring
    assert law.state.allowed == 0.0
    law.feed([STEP_S * 1.1])
    assert law.state.baseline_s == pytest.approx(STEP_S)
    assert not law.state.measuring


def test_the_share_grows_by_windows_of_ten_counted_steps() -> None:
    law = Law().feed(quiet(1 + FIRST_STEPS + 1 + WINDOW_STEPS))
    assert law.state.share == FLOOR
    law.feed(quiet(1 + WINDOW_STEPS - 1))
    assert law.state.share == FLOOR
    law.feed(quiet(1))
    assert law.state.share == FLOOR + ADD


@pytest.mark.parametrize("factor", [1.07, 1.3, 3.0])
def test_a_slower_step_is_answered_within_three(factor: float) -> None:
    law = settled().feed(quiet(7))  # in the middle of a window
    law.feed([STEP_S * factor] * 3)
    assert law.state.share == 0.5
    assert law.state.bad == 1.0


def test_a_long_window_does_not_hide_a_change() -> None:
    law = settled(quantum_s=0.8)  # five quanta: 4 s, twenty steps
    law.feed(quiet(18)).feed([STEP_S * 1.07] * 3)
    assert law.state.share == 0.5


def test_the_mean_counts_and_not_the_median() -> None:
    law = settled().feed(quiet(9)).feed([STEP_S * 1.5])
    assert law.state.share == 0.5


def test_a_small_excess_needs_twice_the_window() -> None:
    law = settled().feed([STEP_S * 1.025] * WINDOW_STEPS)
    assert law.state.share == 1.0
    law.feed([STEP_S * 1.025] * WINDOW_STEPS)
    assert law.state.share == 0.5
    law = settled().feed([STEP_S * 1.035] * WINDOW_STEPS)
    assert law.state.share == 0.5


def test_between_the_limits_the_share_stays() -> None:
    law = Law().until(0.4).feed([STEP_S * 1.017] * 200)
    assert law.state.share == pytest.approx(0.42)


def test_below_the_floor_it_pauses_for_longer_each_time() -> None:
    law, pauses = Law().until(FLOOR), []
    for _ in range(9):
        law.feed(quiet(1)).feed([STEP_S * 1.1] * 3)
        assert law.state.share == 0.0
        begin_s = law.now_s
        pauses.append(law.state.resume_at_s - begin_s)
        law.until(FLOOR)
        assert law.now_s >= begin_s + pauses[-1]
    assert pauses == pytest.approx([min(PROBE_S * 2**i, LONGEST_PROBE_S) for i in range(9)])


def test_growth_is_careful_below_a_level_that_was_too_much_until_it_is_forgotten() -> None:
    law = settled().feed([STEP_S * 1.1] * 3)
    seen = [law.state.share]
    while law.state.bad is not None:
        law.feed(quiet(1))
        if law.state.allowed > seen[-1]:
            seen.append(law.state.allowed)
    assert max(seen[:-1]) < 0.9 + LEAST_ADD
    steps = [b - a for a, b in pairwise(seen)]
    assert max(steps) <= ADD + 1e-9
    assert min(steps[:-1]) >= 0.004
    assert law.until(1.0).state.share == 1.0


def test_calm_makes_the_pause_short_again() -> None:
    law = Law().until(FLOOR)
    for _ in range(3):
        law.feed(quiet(1)).feed([STEP_S * 1.1] * 3)
        law.until(FLOOR)
    assert law.state.probe_s == 8 * PROBE_S
    law.feed(quiet(10 * (WINDOW_STEPS + 1)))
    assert law.state.probe_s == PROBE_S


@pytest.mark.parametrize(
    "change", [{"phase": "evaluation"}, {"operations": 7}, {"work": 32.0}], ids=["label", "operations", "work stated"]
)
def test_another_kind_of_step_is_measured_anew(change: dict[str, object]) -> None:
    law = settled().feed([2 * STEP_S], **change)
    assert law.state.allowed == 0.0
    law.feed([2 * STEP_S] * (1 + FIRST_STEPS), **change)
    per = change.get("work", 1.0)
    assert law.state.baseline_s == pytest.approx(2 * STEP_S / per)  # type: ignore[operator]
    assert law.state.allowed == 1.0


@pytest.mark.parametrize("factor", [1.6, 0.5])
def test_a_lasting_shift_is_another_phase(factor: float) -> None:
    law = settled().feed([STEP_S * factor] * 10)
    steps = 10
    while not law.state.measuring:
        law.feed([STEP_S * factor])
        steps += 1
    assert steps <= 14  # steps after a change of share are not counted
    law.feed([STEP_S * factor] * (1 + FIRST_STEPS))
    assert law.state.baseline_s == pytest.approx(STEP_S * factor)


def test_nine_shifted_steps_are_not_a_phase() -> None:
    law = settled().feed([STEP_S * 0.5] * 9).feed(quiet(20))
    assert law.state.baseline_s == pytest.approx(STEP_S)
    assert not law.state.measuring


def test_flagged_steps_are_left_out() -> None:
    law = settled()
    before = law.state
    law.feed([60.0] * 5, left_out=True)
    assert law.state == before


def test_batches_of_different_length_are_no_interference() -> None:
    law = Law()
    for i in range(400):
        law.feed([STEP_S * (1 + i % 7)], work=16.0 * (1 + i % 7))
    assert law.state.share == 1.0
    assert law.state.baseline_s == pytest.approx(STEP_S / 16)


def test_b0_is_measured_again_after_a_minute_and_a_hundred_steps() -> None:
    for step_s, steps in ((STEP_S, AGAIN_S / STEP_S), (6.0, 100)):
        law = Law().feed([step_s] * (1 + FIRST_STEPS))
        begun_s, counted = law.now_s, 0
        while not law.state.measuring:
            law.feed([step_s])
            counted += 1
        assert law.now_s - begun_s >= AGAIN_S
        assert counted >= 100
        assert counted == pytest.approx(steps, rel=0.1)
        law.feed([step_s * 1.01] * 6)
        assert not law.state.measuring
        assert law.state.baseline_s == pytest.approx(step_s * (20 + 5 * 1.01) / 25)


def test_a_drift_replaces_b0() -> None:
    law = Law().feed(quiet(1 + FIRST_STEPS))
    while not law.state.measuring:
        law.feed(quiet(1))
    law.feed([STEP_S * 1.1] * 6)
    assert law.state.baseline_s == pytest.approx(STEP_S * 1.1)


def test_at_a_low_share_a_window_waits_for_five_quanta() -> None:
    law = Law(quantum_s=0.02).until(FLOOR)
    begin_s = law.now_s
    while law.state.share == FLOOR:
        law.feed(quiet(1))
    assert law.now_s - begin_s >= 5 * 0.02 / FLOOR


def test_shares_are_divided_by_weight() -> None:
    assert divided(0.6, {"a": 1.0, "b": 2.0, "c": 3.0}) == pytest.approx({"a": 0.1, "b": 0.2, "c": 0.3})
    assert divided(1.0, {}) == {}
