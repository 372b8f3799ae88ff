"""The macro model of a shared GPU beside the micro model.

By default against figures of the micro model that are written down here; with `PLAIT_SLOW=1` it runs again, and random
patterns with it.
"""

import os
from dataclasses import replace

import pytest
from sharing_rows import drawn

from plait.core.errors import InputError
from plait.sharing.macro_model import Estimate, Load, estimate
from plait.sim.gpu import PATTERNS, Mode, table_cell

slow = pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="set PLAIT_SLOW=1")
#: The part of the slack in the micro model: 300 s from a cold start, the mean of two seeds (bench_sharing_macro.py).
MICRO = {
    ("5x(4+3)", 1, Mode.LAW): 0.281,
    ("5x(4+3)", 4, Mode.LAW): 0.100,
    ("5x(4+3)", 20, Mode.LAW): 0.023,
    ("10x(5+5)", 1, Mode.LAW): 0.360,
    ("10x(5+5)", 4, Mode.LAW): 0.125,
    ("10x(5+5)", 20, Mode.LAW): 0.028,
    ("100+100", 1, Mode.LAW): 0.897,
    ("100+100", 4, Mode.LAW): 0.897,
    ("100+100", 20, Mode.LAW): 0.357,
    ("20x5 then 100 host", 1, Mode.LAW): 0.042,
    ("20x5 then 100 host", 1, Mode.GATE): 0.888,
    ("20x5 then 100 host", 4, Mode.LAW): 0.042,
    ("20x5 then 100 host", 4, Mode.GATE): 0.890,
    ("20x5 then 100 host", 20, Mode.LAW): 0.028,
    ("20x5 then 100 host", 20, Mode.GATE): 0.352,
    ("80+20", 1, Mode.LAW): 0.902,
    ("80+20", 4, Mode.LAW): 0.692,
    ("80+20", 20, Mode.LAW): 0.516,
    ("10+190", 1, Mode.LAW): 0.896,
    ("10+190", 4, Mode.LAW): 0.903,
    ("10+190", 20, Mode.LAW): 0.269,
}
#: A few long quanta decide; one of these costs just what the guard cuts at.
CHANCE = {
    ("5x(4+3)", 1, Mode.LAW): 0.3,
    ("5x(4+3)", 4, Mode.LAW): 0.5,
    ("20x5 then 100 host", 1, Mode.LAW): 0.25,
    ("10+190", 20, Mode.LAW): 0.25,
}


def macro(name: str, quantum_ms: float, mode: Mode) -> Estimate:
    return estimate(PATTERNS[name].load, quantum_ms / 1e3, gated=mode is Mode.GATE, seconds=300.0, counted=True)


@pytest.mark.parametrize("cell", MICRO)
def test_it_gives_what_the_micro_model_gave(cell: tuple[str, int, Mode]) -> None:
    found = macro(*cell)
    assert found.slack_share == pytest.approx(MICRO[cell], rel=CHANCE.get(cell, 0.15))
    assert 1.0 <= found.slowdown <= 1.02


@slow
@pytest.mark.parametrize("cell", MICRO)
def test_the_micro_model_still_gives_that(cell: tuple[str, int, Mode]) -> None:
    name, quantum_ms, mode = cell
    _, part = table_cell(PATTERNS[name], quantum_ms / 1e3, mode, 300.0, (1, 2))
    assert part == pytest.approx(MICRO[cell], abs=6e-4)


@slow
def test_most_random_patterns_are_within_fifteen_per_cent() -> None:
    off = []
    for i, (pattern, quantum_s) in enumerate(drawn(50, 17)):
        mode = Mode.GATE if pattern.stages < pattern.gaps and i % 2 else Mode.LAW
        _, part = table_cell(pattern, quantum_s, mode, 300.0, (1, 2))
        found = estimate(pattern.load, quantum_s, gated=mode is Mode.GATE, seconds=300.0, counted=True)
        off.append(abs(found.slack_share / part - 1.0))
    assert sum(one <= 0.15 for one in off) >= 42
    assert sorted(off)[len(off) // 2] <= 0.05


def test_it_is_a_function() -> None:
    first = macro("80+20", 4, Mode.LAW)
    estimate.cache_clear()
    assert macro("80+20", 4, Mode.LAW) == first


def test_several_guests_get_more_of_gaps_that_one_locks_into() -> None:
    load = PATTERNS["80+20"].load
    one, two = (estimate(load, 0.02, guests=guests, seconds=200.0).slack_share for guests in (1, 2))
    assert one < two


def test_noise_and_returns_that_are_not_counted_cost_time_without_guests() -> None:
    load = PATTERNS["100+100"].load
    quiet, noisy = (estimate(replace(load, noise=noise), 0.002, seconds=900.0).slack_share for noise in (0.05, 0.2))
    assert quiet > noisy + 0.1
    assert estimate(replace(load, noise=0.2), 0.002, seconds=900.0, counted=True).slack_share > noisy + 0.1


def test_a_job_that_never_leaves_the_gpu_has_no_slack() -> None:
    assert estimate(Load(0.1, 0.1), 0.002) == Estimate(1.0, 0.0)


@pytest.mark.parametrize("wrong", [(0.0, 0.0), (1.0, 2.0), (1.0, 0.5, 3, 2), (1.0, 0.5, 1, 1, -0.1)])
def test_a_step_that_cannot_be_is_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        Load(*wrong)  # type: ignore[arg-type]


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError):
        estimate(Load(1.0, 0.5), 0.0)
