"""Random rounds to compare optimisers on: repeatable, and tables that say the same of the same configuration."""

import numpy as np
import pytest
from random_rounds import MOST_GPUS, random_round

from plait.core.errors import InputError
from plait.testing import Kind, plan_faults
from plait.testing.chaos import WEIGHTS


def test_a_round_is_repeatable_and_its_ladder_is_part_of_its_sizes():
    one, again = random_round(7), random_round(7)
    assert np.array_equal(one.speedup, again.speedup)
    assert 20 <= len(one.jobs) <= 160
    assert 16 <= one.nodes <= 64
    assert one.configs[:, 1].max() == MOST_GPUS
    assert set(map(tuple, one.steps.tolist())) <= set(map(tuple, one.configs.tolist()))
    assert (one.on_ladder[:, 0] == 0).all()
    assert (one.on_ladder[:, 1] > 0).all()
    over = one.configs[:, 1] > one.most[:, None]
    assert (one.speedup[over] == 0).all()


def test_the_search_gets_the_same_question():
    asked = random_round(3, jobs=5, nodes=2)
    search = asked.search(p=0.0)
    assert search.speedup is asked.speedup
    assert search.running.shape == (5, 2)
    assert search.p == 0.0


# Plans of faults: the same from the same seed, every kind in them.


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
