"""The law of shared memory against the packet simulator: all points with PLAIT_SLOW, a few of each set by default."""

from __future__ import annotations

from statistics import median

import pytest

from plait_papers.memory_laws import AIMD, GRID, HELD_OUT, PUBLISHED, RACKS, Point, compared
from sampling import sample


@pytest.mark.parametrize(
    ("points", "largest", "middle"),
    [
        pytest.param(sample(PUBLISHED[4:9:2], PUBLISHED), 0.10, 0.03, id="published"),
        pytest.param(sample(GRID[7:8], GRID), 0.25, 0.05, id="grid"),
        pytest.param(sample(AIMD[1:2], AIMD), 0.25, 0.07, id="congestion-control"),
        pytest.param(sample(RACKS[2::7], RACKS), 0.10, 0.05, id="racks"),
        pytest.param(sample(HELD_OUT[6:7], HELD_OUT), 0.40, 0.07, id="held-out"),
    ],
)
def test_goodput_of_every_job_is_that_of_packets(points: tuple[Point, ...], largest: float, middle: float) -> None:
    found = list(compared(points, seeds=(1,)))
    worst = {one.point.name: one.worst for one in found}
    assert max(map(abs, worst.values())) <= largest, worst
    assert median(abs(error) for one in found for error in one.errors) <= max(middle, largest * (len(found) == 1)), (
        worst
    )
    assert max(abs(one.share_error) for one in found) <= 0.07


def test_hash_is_the_law_that_fits_shared_hash_addressing() -> None:
    """`hard` is wrong by a factor where jobs hold much of the memory."""
    errors = {law: abs(next(iter(compared([Point(2048)], (1,), law))).worst) for law in ("hash", "hard")}
    assert errors["hash"] < 0.08
    assert errors["hard"] > 1
