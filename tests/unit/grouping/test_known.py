"""What is remembered of groups is what would be computed again, and it is computed once."""

from __future__ import annotations

from itertools import combinations_with_replacement, permutations
from unittest import mock

import numpy as np
import pytest

from plait.grouping import Candidates, GroupingCache, group
from plait.grouping.bucket import ClassedBucket, GroupingOptions, KnownWorth

STAGES = np.array([[3.0, 1.0, 0.0], [0.5, 2.0, 1.0], [1.0, 1.0, 4.0]])


@pytest.fixture
def model():
    return ClassedBucket.of(GroupingOptions(max_jobs=3), STAGES, STAGES.sum(axis=1), None, None)


def test_worth_is_what_the_model_says_one_at_a_time(model):
    nodes = [node for jobs in (1, 2, 3) for node in combinations_with_replacement(range(3), jobs)]
    known = KnownWorth(model)
    for asked in (nodes[::2], nodes):
        for node, worth in zip(asked, known.worth(asked), strict=True):
            alone = model.values([node])
            assert tuple(worth) == (alone.iteration_s[0], alone.turn_row[0], alone.value[0], alone.speedup[0])


@pytest.mark.parametrize("members", [2, 3])
def test_turns_follow_the_members_and_take_the_time_of_the_group(model, members):
    known = KnownWorth(model)
    for classes in permutations(range(3), members):
        turns, efficiency = known.arranged(classes)
        (worth,) = known.worth([tuple(sorted(classes))])
        stage_s = model.rows[:, :3]
        slots = [max(stage_s[c, (turn + j) % 3] for c, turn in zip(classes, turns, strict=True)) for j in range(3)]
        assert turns[0] == 0
        assert sum(slots) == pytest.approx(worth.iteration_s)
        assert efficiency == pytest.approx(stage_s[list(classes)].sum() / (3 * worth.iteration_s))


def test_groups_are_evaluated_once_in_a_cache():
    cache = GroupingCache()
    candidates = Candidates(STAGES, STAGES.sum(axis=1), np.ones(3))
    first = group(candidates, max_jobs=2, cache=cache)
    with mock.patch.object(ClassedBucket, "values_of", side_effect=AssertionError("computes again")):
        assert group(candidates, max_jobs=2, cache=cache) == first
