"""Paces at tokens held for whole stages, beside what was measured on paced devices (spec, section 4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.runtime.gate_choice import paces, queued_iterations

M4 = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]
G4 = [(0.5, 0.5, 2, 0.5)] * 4


@pytest.mark.parametrize(
    ("stages", "alone", "measured"),
    [
        (M4, 3.0, 2.94 / 0.54),
        ([(2, 0.5, 1, 0.5), (0.5, 1, 2, 0.5)], 2.5, 1.69 / 0.53),
        (G4, 2.5, 4.16 / 0.52),
    ],
    ids=["M4", "M2", "G4"],
)
def test_published_mixes_with_prefetch_are_predicted(
    stages: list[tuple[float, ...]], alone: float, measured: float
) -> None:
    predicted = paces("tokens", stages, [alone] * len(stages), [0] * len(stages))
    assert predicted == pytest.approx([measured] * len(stages), rel=0.08)


def test_a_short_stage_waits_behind_a_long_one_in_each_iteration() -> None:
    assert queued_iterations([(0, 0, 8, 0), (0, 3, 1, 0)], (8, 4)) == pytest.approx((9, 9))


def test_gradients_make_a_job_ask_for_the_gpu_twice() -> None:
    busy, exchanging = (0, 0, 30, 0), (0, 0, 4, 20)
    long_s, twice_s = queued_iterations([busy, exchanging], (30, 24))
    assert twice_s > 60  # behind two stages of the other
    assert long_s == pytest.approx(32, rel=0.05)


def test_a_loader_works_ahead_of_its_training_only_if_it_did_alone() -> None:
    row = [(4, 0, 5, 0)]
    assert queued_iterations(row, (5,)) == pytest.approx((5,))
    assert queued_iterations(row, (9,)) == pytest.approx((9,))


times = st.floats(0.1, 10.0)


@given(st.lists(st.tuples(times, times, times, times), min_size=1, max_size=5))
def test_never_faster_than_alone_or_than_a_resource_allows(rows: list[tuple[float, ...]]) -> None:
    alone = [max(row[0] + row[1], row[2] + row[3]) for row in rows]
    iterations = queued_iterations(rows, alone)
    for r in range(4):  # part of its time that the resource is busy
        assert sum(row[r] / s for row, s in zip(rows, iterations, strict=True)) < 1.35
    assert all(s >= a for s, a in zip(iterations, alone, strict=True))


def test_very_different_jobs_take_no_longer_to_predict() -> None:
    short, long_s = queued_iterations([(0, 0, 1e-6, 0), (0, 0, 1.0, 0)], (1e-6, 1.0))
    assert long_s >= 1.0
    assert short >= 0.5
