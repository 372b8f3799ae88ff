"""A job that is paced from outside reports no steps; the law takes its quantum from the device."""

from __future__ import annotations

import pytest

from plait.sharing.coordinator import CODEC, SeenSteps, State, decide
from plait.sharing.directive import Device, Sharer, StepStats
from plait.sharing.grant import THETA


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
