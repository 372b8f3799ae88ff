"""The share law alone: what it does with the steps of a guaranteed job."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from plait.sharing.contrast import WholeSteps
from plait.sharing.directive import Reached, Sharer, StepStats
from plait.sharing.share_law import (
    CAREFUL,
    HANGS_S,
    LEAST_CAP,
    OBEY_S,
    RAMP,
    UNHEARD_S,
    decided,
    described,
    shares,
)
from plait.sharing.share_state import RETRY_S, Guests, ShareState
from sharing_cases import Bench

STEP_S, TICK_S = 0.2, 0.1


class Law:
    """A law that decides ten times a second. Steps take `host(now, share)` seconds, guests obey after `obeys_s`."""

    def __init__(self, *quanta_s: float, host: Callable[[float, float], float] | None = None, **values: object) -> None:
        self.quanta_s = quanta_s or (0.001,)
        self.host = host or (lambda now_s, share: STEP_S)
        self.values: dict[str, object] = {"returns": 1} | values
        self.state, self.now_s, self.number = ShareState(), 0.0, 0
        self.told = Guests(self.quanta_s, (1.0,) * len(self.quanta_s), acknowledged=None)
        self.begun_s = 0.0
        self.stamped = True

    @property
    def level(self) -> float:
        """Of on blocks."""
        return self.state.level

    def run(self, seconds: float, **values: object) -> Law:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += TICK_S
            found = []
            while self.begun_s + (took_s := self.host(self.begun_s, self.state.allowed)) <= self.now_s:
                self.begun_s += took_s
                ended = {"ended_s": self.begun_s} if self.stamped else {}
                found.append(StepStats(step=self.number, step_s=took_s, **(self.values | ended | values)))  # type: ignore[arg-type]
                self.number += 1
            self.state = decided(self.state, self.now_s, found, self.told)
        return self

    def until(self, on: bool) -> Law:
        for _ in range(100_000):
            if self.state.on is on:
                return self
            self.run(TICK_S)
        raise AssertionError("the block never ends")


def noisy(
    cv: float, cost: float = 0.0, seed: int = 3, every: int = 1, longer: float = 1.0
) -> Callable[[float, float], float]:
    """Steps with independent noise that cost a part `cost` more at share 1; some are `longer` times as long."""
    known: dict[float, float] = {}
    chance = random.Random(seed)

    def step_s(begun_s: float, share: float) -> float:
        usual = 1.0 if len(known) % every else longer
        factor = known.setdefault(begun_s, max(chance.gauss(1.0, cv), 0.1) * usual)
        return STEP_S * factor * (1.0 + cost * share)

    return step_s


def test_nothing_is_granted_before_the_step_is_known() -> None:
    law = Law().run(5.0)
    assert law.state.b0_s is None
    assert law.state.allowed == 0.0
    law.run(3.0)
    assert law.state.b0_s == pytest.approx(STEP_S)
    assert law.state.allowed == 1.0


def test_returns_that_are_not_counted_mean_a_ramp() -> None:
    law = Law(returns=0, host=noisy(0.01)).until(on=True)
    assert law.level == RAMP
    law.run(30.0)
    assert law.state.trust == 1.0


def test_noise_alone_costs_no_share() -> None:
    """A mean of ten steps with 10 % noise is off by 3 %, more than what the job may lose."""
    law, on = Law(host=noisy(0.1)).until(on=True), 0
    for _ in range(6000):
        law.run(TICK_S)
        on += law.state.on
    assert law.state.alarms == 0
    assert law.level == 1.0
    assert on / 6000 > 0.8


@pytest.mark.parametrize("cv", [0.01, 0.05])
def test_what_sharing_really_costs_is_found_and_cut(cv: float) -> None:
    law = Law(host=noisy(cv, cost=0.2))
    while law.state.alarm is None and law.now_s < 120.0:
        law.run(1.0)
    assert law.state.alarm.cost == pytest.approx(0.2, abs=0.08)
    assert "alarm" in described(law.state, law.now_s)
    law.run(120.0 - law.now_s)
    assert law.level * 0.2 <= 0.02


@pytest.mark.parametrize("cost", [lambda share: 0.3 * share, lambda share: share / (share + 0.02)])
def test_what_guests_take_beside_the_gpu_is_found_in_whole_steps(cost: Callable[[float], float]) -> None:
    """The second guest hardly needs the GPU, so that only a very small share of it holds it back from the rest."""
    host = noisy(0.05)
    law = Law(host=lambda now_s, share: host(now_s, 0.0) * (1.0 + cost(share)), stage_s={"gpu": 0.1})
    law.run(300.0)
    assert law.state.by_step
    assert cost(law.level) <= 0.03
    assert "whole steps are judged" in described(law.state, law.now_s)


def test_an_off_block_is_no_scale_of_its_own_contrast() -> None:
    """Noise of 40 % alone would make a cost of 0.015, and a ledger of that left a guest 0.17 of the slack."""
    law = Law(stage_s={"gpu": 0.1}).run(60.0).until(on=True).until(on=False)
    law.host = lambda now_s, share: STEP_S if share else 0.17
    law.until(on=True)
    assert law.state.b0_s == pytest.approx(STEP_S, rel=0.001)


def test_whole_steps_that_changed_within_a_contrast_are_looked_at_again() -> None:
    whole = WholeSteps(tail=(0.24,) * 12, off=(0.2,) * 6, ring=(0.3,) * 12, variance=1e-4, contrasts=9)
    assert not whole.suspect
    assert whole.judged(6, 12, 1, 0.2, 1.0, 0.005).suspect


def test_growth_stops_below_a_small_share_that_was_too_much() -> None:
    host = noisy(0.02)
    law = Law(host=lambda now_s, share: host(now_s, 0.0) * (1.0 + 0.3 * (share > 0.002)), stage_s={"gpu": 0.1})
    while law.run(1.0).now_s < 600.0:
        if law.state.bad is not None and law.now_s < law.state.bad_until_s:
            assert law.level <= CAREFUL * law.state.bad


@pytest.mark.parametrize(("cv", "every", "longer"), [(0.3, 1, 1.0), (0.02, 50, 3.0), (0.02, 8, 3.0)])
def test_whole_steps_that_vary_are_no_cost(cv: float, every: int, longer: float) -> None:
    law = Law(host=noisy(cv, every=every, longer=longer), stage_s={"gpu": 0.1}).run(1200.0)
    assert (law.state.by_step, law.state.alarms, law.level) == (False, 0, 1.0)


def test_a_job_may_mark_its_stages_in_some_steps_only() -> None:
    law = Law(host=noisy(0.05))
    for number in range(60):
        law.run(2.3, **({"stage_s": {"gpu": 0.1}} if number % 2 else {}))
    assert law.state.contrasts
    law = Law(host=noisy(0.05)).run(60.0, stage_s={"gpu": 0.18}).run(60.0)
    law.told = Guests((0.001, 0.001), (1.0, 1.0))
    assert not law.run(60.0).state.suspect, "what whole steps cost is not looked for without stages"


def jumping(now_s: float, share: float) -> float:
    """Steps of 120 ms for 10 s of each 30 s, of 200 ms in between; sharing costs nothing."""
    return 0.12 if now_s % 30.0 < 10.0 else 0.2


def test_a_job_that_changes_by_itself_is_no_noise() -> None:
    law = Law(host=lambda now_s, share: jumping(now_s, share) * (1.0 + 0.01 * (round(now_s * 1e4) % 3 - 1))).run(300.0)
    assert law.state.alarms == 0
    assert law.state.variance is not None
    assert law.state.variance**0.5 < 0.02
    assert law.level == 1.0


@pytest.mark.parametrize("seed", [1, 2])
def test_the_ramp_lasts_until_it_is_known_what_sharing_costs(seed: int) -> None:
    """Noise of 20 %, and a cost of 5 % that the grant does not expect, because the host reports no returns."""
    law = Law(host=noisy(0.2, cost=0.05, seed=seed), returns=0)
    costs = []
    while law.now_s < 600.0:
        law.run(1.0)
        costs.append(0.05 * law.state.allowed)
    assert sum(costs) / len(costs) <= 0.02


@pytest.mark.parametrize("seed", [1, 2])
def test_no_minute_of_the_ramp_costs_a_twentieth(seed: int) -> None:
    """Beside noise of 20 % a few lucky contrasts hide for a minute that a share costs half of itself."""
    law, costs = Law(host=noisy(0.2, cost=0.5, seed=seed), returns=0), []
    while law.now_s < 240.0:
        law.run(1.0)
        costs.append(0.5 * law.state.allowed)
    assert max(sum(costs[second : second + 60]) / 60 for second in range(len(costs) - 60)) <= 0.05


def test_guests_of_which_nothing_is_known_are_not_held_back_by_the_ramp() -> None:
    state = replace(Law(returns=0).until(on=True).state, level=0.05, granted=0.51)
    assert shares(state, Guests((0.001, 0.0), (1.0, 1.0)))[1] == pytest.approx(0.01)


def test_a_cost_within_the_promise_is_no_alarm() -> None:
    law = Law(host=noisy(0.01, cost=0.006)).run(300.0)
    assert law.state.alarms == 0
    assert law.level == 1.0


def test_after_an_alarm_the_level_is_tried_anew() -> None:
    harm = [0.3]
    law = Law(host=lambda now_s, share: STEP_S * (1.0 + harm[0] * share))
    while not law.state.alarms:
        law.run(1.0)
    law.until(on=True)
    assert LEAST_CAP <= law.level < 0.1
    retry_s = law.state.retry_at_s - law.state.alarm.at_s
    assert retry_s == RETRY_S
    harm[0] = 0.0
    law.run(law.state.retry_at_s - law.now_s + 60.0)
    assert law.state.cap is None
    assert law.level == 1.0
    assert law.state.retry_s == 2 * RETRY_S


def test_b0_counts_no_step_that_began_before_guests_obeyed() -> None:
    """Twelve short steps a decision: those that end just after the change still had guests."""
    host = lambda now_s, share: 0.005 * (1.05 if share else 1.0)  # noqa: E731
    for told in (Guests((0.001,), (1.0,), acknowledged=None), Guests((0.001,), (1.0,), acknowledged=True)):
        law = Law(host=host)
        law.told = told
        law.run(60.0)
        assert law.state.b0_s == pytest.approx(0.005, rel=1e-9)


def test_unstamped_steps_of_a_batch_are_taken_as_early_as_they_can_be() -> None:
    law = Law(host=lambda now_s, share: 0.005 * (1.05 if share else 1.0))
    law.stamped = False
    law.run(60.0)
    assert law.state.b0_s == pytest.approx(0.005, rel=1e-9)


def test_a_change_waits_until_guests_acknowledge_it() -> None:
    law = Law().until(on=True)
    law.told = replace(law.told, acknowledged=False)
    law.run(2.0)
    assert law.state.obeyed_s is None
    assert law.state.count == 0
    law.told = replace(law.told, acknowledged=True)
    law.run(1.0)
    assert law.state.count > 0


def test_a_guest_that_needs_the_gpu_later_is_not_waited_for_for_ever() -> None:
    law = Law().until(on=True)
    law.told = replace(law.told, acknowledged=False)
    law.run(UNHEARD_S + 1.0)
    assert law.state.obeyed_s is not None


def test_guests_that_report_nothing_obey_after_their_quantum() -> None:
    law = Law(0.3).until(on=True)
    since_s = law.state.since_s
    law.run(0.6)
    assert law.state.obeyed_s == pytest.approx(since_s + OBEY_S + 0.3)


def test_a_host_that_hangs_does_not_hold_guests_off_for_ever() -> None:
    law = Law().until(on=True).until(on=False)
    law.host = lambda now_s, share: 1e9
    law.run(HANGS_S - 2.0)
    assert not law.state.on
    law.run(4.0)
    assert law.state.on


def test_long_steps_are_left_out_while_they_are_few() -> None:
    def host(begun_s: float, share: float) -> float:
        return 2.2 if round(begun_s / STEP_S) % 60 == 59 else STEP_S

    law = Law(host=host).run(300.0)
    assert law.state.b0_s == pytest.approx(STEP_S, rel=0.05)
    assert law.state.alarms == 0


def test_long_steps_that_guests_cause_are_no_outliers() -> None:
    """A quantum of 0.6 s behind one step in 40."""
    chance, known = random.Random(1), {}

    def host(begun_s: float, share: float) -> float:
        return STEP_S + (0.6 if share and known.setdefault(begun_s, chance.random()) < 0.05 * share else 0.0)

    law = Law(host=host).run(400.0)
    assert law.state.alarms >= 1


@pytest.mark.parametrize(
    "change", [{"phase": "evaluation"}, {"operations": 7}, {"work": 32.0}], ids=["label", "operations", "work stated"]
)
def test_another_kind_of_step_is_measured_without_guests_at_once(change: dict[str, object]) -> None:
    law = Law(host=lambda now_s, share: STEP_S).until(on=True)
    law.run(3.0)
    sigma = law.state.variance
    law.values |= change
    law.host = lambda now_s, share: 2 * STEP_S
    law.run(3 * STEP_S)
    assert not law.state.on
    law.run(8.0)
    assert law.state.b0_s == pytest.approx(2 * STEP_S / change.get("work", 1.0), rel=0.01)  # type: ignore[operator]
    assert law.state.variance == pytest.approx(sigma, rel=1.0)


def test_batches_of_different_length_are_no_interference() -> None:
    law = Law()
    sizes = [1 + i % 7 for i in range(2000)]
    for size in sizes:
        law.now_s += STEP_S * size
        step = StepStats(step=law.number, step_s=STEP_S * size, work=16.0 * size, ended_s=law.now_s, returns=1)
        law.state, law.number = decided(law.state, law.now_s, [step], law.told), law.number + 1
    assert law.level == 1.0
    assert law.state.b0_s == pytest.approx(STEP_S / 16)


def test_a_period_keeps_trust_and_costs_no_share() -> None:
    chance = random.Random(5)
    noise: dict[float, float] = {}
    times: list[float] = []

    def host(begun_s: float, share: float) -> float:
        if begun_s not in noise:
            noise[begun_s] = chance.gauss(1.0, 0.01)
            times.append(begun_s)
        return STEP_S * noise[begun_s] * (0.75 if times.index(begun_s) % 2 else 1.25)

    law = Law(host=host).run(60.0)
    assert law.state.period == 2
    assert law.state.trust == 1.0
    assert law.state.alarms == 0


def test_shorter_steps_lower_the_grant_at_once() -> None:
    law = Law(0.006).until(on=True)
    law.run(4.0)
    assert law.level == pytest.approx(1.0)
    law.host = lambda now_s, share: STEP_S / 4
    law.run(2.0)
    assert law.level == pytest.approx(2 * 0.015 * 0.05 / 0.006, rel=0.01)


def test_a_server_is_judged_by_its_service_and_not_by_its_requests() -> None:
    """At half load a request comes every 40 ms and takes 20."""
    for gated, level in ((False, 2 * 0.015 * 0.02 / 0.005), (True, 1.0)):
        law = Law(0.005, host=lambda now_s, share: 0.04, stage_s={"gpu": 0.02}, entries=1)
        law.told = replace(law.told, latency=True, gated=gated)
        law.until(on=True)
        assert law.level == pytest.approx(level, rel=0.01)
    unstaged = Law(0.005, host=lambda now_s, share: 0.04)
    unstaged.told = replace(unstaged.told, latency=True)
    unstaged.until(on=True)
    assert unstaged.level == pytest.approx(0.02)


def test_on_blocks_differ_in_length_but_not_from_run_to_run() -> None:
    def needs() -> list[int]:
        law, found = Law(), []
        while len(found) < 6:
            law.until(on=True)
            found.append(law.state.need)
            law.until(on=False)
        return found

    assert needs() == needs()
    assert len(set(needs())) > 2


def test_each_guest_gets_its_part_of_the_grant() -> None:
    law = Law(0.002, 0.02).until(on=True)
    assert shares(law.state, law.told) == pytest.approx((0.5, 0.15))
    assert shares(law.until(on=False).state, law.told) == (0.0, 0.0)


def test_changes_of_shares_are_counted_and_acknowledged() -> None:
    bench = Bench({"host": Sharer(True), "guest": Sharer(False, quantum_s=0.001)})
    numbers, seen = set(), 0.0
    for _ in range(200):
        told = bench.decide({"host": {"returns": 1, "ended_s": bench.now_s + 0.2}})
        numbers.add((told["guest"].share_number, told["guest"].share))
        bench.reached["guest"] = Reached(told["guest"].limit_number, bench.limit("guest"), told["guest"].share_number)
        seen = max(seen, told["guest"].share)
    assert seen == 1.0
    assert len({number for number, _ in numbers}) == len(numbers)
    assert bench.directives["host"].share_number == 0
