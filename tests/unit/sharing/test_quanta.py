"""Quanta of guests that cannot see the host for which they wait, and of programs that are paced from outside."""

import pytest

from plait.sharing.coordinator import CODEC, SeenSteps, State, decide
from plait.sharing.directive import Device, Sharer, StepStats
from plait.sharing.grant import THETA
from plait.sharing.quanta import FIRST_S, RECENT, Quanta


def test_a_place_that_waits_for_the_host_many_times_on_end_is_no_long_quantum() -> None:
    """A step of ten quanta fits a gap, so the first one waits for 100 ms in each of 40 steps."""
    quanta = Quanta()
    longest_s = 0.0
    for step in range(60):
        quanta.step()
        for place in range(10):
            waits = place == 0 and step >= 20
            longest_s = max(longest_s, quanta.ended(0.102 if waits else 0.002, alone=False)[1])
    assert longest_s == 0.002


def test_quanta_that_grow_are_reported_as_they_do() -> None:
    """By 16 % in every 64 quanta, of which a third wait 100 ms for the host."""
    quanta = Quanta()
    for number in range(1500):
        if number % 10 == 0:
            quanta.step()
        own_s = 0.002 * 1.16 ** (number // 64)
        took_s, counts_s = quanta.ended(own_s + 0.1 * (number % 3 == 0), alone=False)
    assert 0.7 * own_s <= took_s == counts_s <= own_s


def test_quanta_may_be_shorter_than_a_tick_of_the_clock() -> None:
    quanta = Quanta()
    for whole_s in (0.0, 0.002):
        quanta.step()
        assert quanta.ended(whole_s, alone=False)[0] == 0.0


def test_a_long_quantum_that_a_host_meets_counts_until_the_host_came() -> None:
    quanta = Quanta()
    for _ in range(RECENT):
        quanta.ended(0.001, alone=True)
    assert quanta.ended(0.3, alone=False, before_s=0.06) == (0.001, 0.06)
    assert quanta.ended(0.1, alone=False, before_s=0.0005)[1] == 0.001  # it began just before the host came


def test_a_guest_that_waits_for_no_other_pays_for_each_quantum_in_full() -> None:
    quanta = Quanta()

    def paid_s(whole_s: float, **seen: float) -> float:
        quanta.step()
        return quanta.ended(whole_s, **({"alone": True} | seen))[0]

    for _ in range(RECENT):
        paid_s(0.001)
    assert paid_s(0.3) == 0.0015
    assert paid_s(0.3, crowded=False) == 0.3
    assert paid_s(9.0, crowded=False) == FIRST_S  # it slept
    assert paid_s(0.3, alone=False, before_s=0.06, crowded=False) == 0.06


def test_quanta_that_are_longer_than_any_wait_count_at_once() -> None:
    """Three of seven quanta wait 100 ms for the host. After 900 they take 100 ms; each place has seen 64 short ones."""
    quanta, found = Quanta(), []
    for number in range(930):
        if number % 10 == 0:
            quanta.step()
        waits_s = 0.1 if number % 7 in (0, 2, 4) else 0.0
        found.append(quanta.ended(waits_s + (0.002 if number < 900 else 0.1), alone=False))
    assert set(found[RECENT:900]) == {(0.002, 0.002)}
    assert found[-1] == pytest.approx((0.1, 0.1))


def shares(*, outside_s: float = 0.0, reported_s: float = 0.0) -> list[float]:
    """Shares of a guest beside a host with steps of 100 ms."""
    device = Device(1 << 60, {"host": Sharer(guaranteed=True), "guest": Sharer(guaranteed=False, quantum_s=outside_s)})
    state, out = State(), []
    for step in range(400):
        stats = {"host": [StepStats(step, 0.1)]}
        if reported_s:
            stats["guest"] = [StepStats(step, 0.1, quantum_s=reported_s)]
        state, directives = decide(state, 0.1 * step, stats, device)
        out.append(directives["guest"].share)
    return out


def test_a_quantum_from_outside_counts_as_one_that_was_reported() -> None:
    assert max(shares(outside_s=0.05)) > 0.0
    assert shares(outside_s=0.05) == pytest.approx(shares(reported_s=0.05))
    assert shares(outside_s=0.05) != shares(outside_s=0.002)


def test_it_is_written_only_where_there_is_one() -> None:
    assert "quantum_s" not in CODEC.encode(Sharer(guaranteed=False))
    throttled = Sharer(guaranteed=False, quantum_s=0.005)
    assert CODEC.decode(Sharer, CODEC.encode(throttled)) == throttled


@pytest.mark.parametrize("gated", [False, True])
def test_the_first_step_of_a_guest_loads_kernels_and_is_soon_forgotten(gated: bool) -> None:
    """On an H100 a guest of 3 ms quanta had one of 157 ms first, and got 0.013 instead of its grant for 30 s."""
    jobs = {"host": Sharer(guaranteed=True), "guest": Sharer(guaranteed=False)}
    state = State()
    for step in range(1200):
        stats = {"host": [StepStats(step, 0.0667, returns=1, entries=1, ended_s=0.0667 * step)] if step else []}
        if step % 15 == 0:
            stats["guest"] = [StepStats(step // 15, 1.0, quantum_s=0.157 if step == 0 else 0.003)]
        state, _ = decide(state, 0.0667 * step, stats, Device(1 << 60, jobs, gated=gated))
    assert state.seen["guest"].quantum_s == 0.003
    assert state.share.granted == pytest.approx(2.0 * THETA * 0.0667 / 0.003, rel=0.01)


def test_until_the_second_step_ends_a_random_time_falls_into_the_longest_quantum() -> None:
    assert SeenSteps(0, 0.157).met_s(0.001) == 0.157
    assert SeenSteps(-1, 0.0).met_s(0.001) == 0.001


def test_a_random_time_falls_into_quanta_as_long_as_the_last_three_steps_had() -> None:
    """Not where they are longer by less than a tenth: they only vary."""
    last = (0.02, 0.03, 0.02), (0.002, 0.03, 0.002), (0.0021, 0.0021, 0.0021)
    assert [round(SeenSteps(9, 0.03, 1.0, 0.002, late).met_s(0.0), 9) for late in last] == [0.02, 0.002, 0.002]
