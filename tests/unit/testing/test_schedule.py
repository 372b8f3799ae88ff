"""Plans of faults: the same from the same seed, every kind in them."""

from __future__ import annotations

import pytest

from plait.core.errors import InputError
from plait.testing import Kind, plan_faults
from plait.testing.chaos import WEIGHTS


def test_a_seed_gives_one_plan():
    assert plan_faults(7, 50) == plan_faults(7, 50)
    assert plan_faults(7, 50) != plan_faults(8, 50)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_and_keeps_to_its_bounds(seed):
    faults = plan_faults(seed, 400, every_s=2.0, longest_s=6.0)
    assert {fault.kind for fault in faults} == set(WEIGHTS) == set(Kind) - {Kind.KILL_SWITCH, Kind.KILL_SERVER}
    assert all(0 <= fault.pick < 1 and fault.after_s >= 0 and 0 <= fault.length_s <= 6.0 for fault in faults)
    assert sum(fault.after_s for fault in faults) / 400 == pytest.approx(2.0, rel=0.25)
    assert {fault.length_s for fault in faults if fault.kind is Kind.STOP_AGENT} == {6.0}


def test_only_kinds_with_a_weight():
    kinds = {fault.kind for fault in plan_faults(1, 40, weights={Kind.KILL_AGENT: 1.0, Kind.FULL_DISK: 0.0})}
    assert kinds == {Kind.KILL_AGENT}


@pytest.mark.parametrize("values", [{"count": -1}, {"count": 1, "every_s": 0}, {"count": 1, "weights": {}}])
def test_numbers_that_make_no_plan_are_named(values):
    with pytest.raises(InputError):
        plan_faults(1, **values)
