"""Random rounds to compare optimisers on: repeatable, and tables that say the same of the same configuration."""

from __future__ import annotations

import numpy as np

from plait.testing.allocations import MOST_GPUS, random_round


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
