"""Formulas (1) to (4): published examples, consequences, shares, and the fast ways against the plain one."""

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouping_cases import MODELS, stages
from plait.core.errors import InputError
from plait.core.turns import turn_vectors
from plait.grouping import times as interleave
from plait.grouping.times import best_turns, efficiency, group_times, interleaved_iteration_s, speedup

# jobs, best T and gamma, worst T and gamma
ORACLES = {
    "figure 4, A + B": ([(2, 1), (1, 2)], 3, 1, 3, 1),
    "figure 4, A + C": ([(2, 1), (2, 1)], 4, 0.75, 4, 0.75),
    "figure 6": ([(1, 2, 1, 1), (1, 1, 2, 1)], 5, 0.5, 6, 0.416667),
    "needs the idle slot": ([(4, 1, 1, 1), (1, 1, 4, 1)], 7, 0.5, 10, 0.35),
    "three jobs": ([(2, 1, 1, 0), (0, 2, 1, 1), (1, 0, 2, 1)], 4, 0.75, 7, 0.428571),
    "four complementary": ([(3, 1, 1, 1), (1, 3, 1, 1), (1, 1, 3, 1), (1, 1, 1, 3)], 6, 1, 10, 0.6),
    "four pure": (np.eye(4), 1, 1, 3, 0.333333),
}


@pytest.mark.parametrize("case", ORACLES)
def test_published_examples(case):
    jobs, best, gamma, worst, gamma_worst = ORACLES[case]
    stage_s = np.array(jobs, dtype=float)
    assert interleaved_iteration_s(stage_s) == best
    assert efficiency(stage_s, best) == pytest.approx(gamma, abs=5e-7)
    assert interleaved_iteration_s(stage_s, order="worst") == worst
    assert efficiency(stage_s, worst) == pytest.approx(gamma_worst, abs=5e-7)


def test_the_printed_formula_has_no_idle_slot():
    stage_s = np.array([[4.0, 1, 1, 1], [1, 1, 4, 1]])
    assert best_turns(stage_s) == (7.0, (0, 2))
    assert best_turns(stage_s, idle_slots=False) == (10.0, (0, 1))
    assert best_turns(np.array([[1.0, 2, 1, 1], [1, 1, 2, 1]]), idle_slots=False) == (5.0, (0, 1))


def test_figure_2_speedup():
    assert speedup([5.5, 5.5], 6.5) == pytest.approx(1.7, abs=0.01)


def test_too_many_jobs_are_refused():
    with pytest.raises(InputError, match="3 jobs cannot take turns on 2 resources"):
        best_turns(np.ones((3, 2)))
    with pytest.raises(InputError, match="their shares leave no room"):
        best_turns(np.ones((3, 2)), shares=np.full((3, 2), 0.6))
    with pytest.raises(InputError, match="order must be 'best' or 'worst', got 'fast'"):
        group_times(np.ones((1, 2)), np.array([[0]]), order="fast")


@given(stages(st.integers(1, 4)), st.sampled_from(["best", "worst"]))
def test_bounds_and_rotations(stage_s, order):
    time, turns = best_turns(stage_s, order=order)
    assert time >= max(stage_s.sum(axis=1).max(), stage_s.sum(axis=0).max()) - 1e-12
    assert time <= stage_s.sum() + 1e-12
    assert efficiency(stage_s, time) <= min(1, len(stage_s) / 4) + 1e-12
    assert turns[0] == 0
    assert len(set(turns)) == len(turns)
    for shift in range(4):  # T of all turns moved together, by the printed formula
        moved = [(t + shift) % 4 for t in turns]
        again = sum(max(stage_s[i, (s + j) % 4] for i, s in enumerate(moved)) for j in range(4))
        assert again == pytest.approx(time)


@given(stages(st.integers(1, 4)))
def test_all_distinct_offsets_are_tried(stage_s):
    """Not only those that begin with 0: every injective choice, as the definition says."""
    jobs = len(stage_s)
    times = [
        sum(max(stage_s[i, (s + j) % 4] for i, s in enumerate(offsets)) for j in range(4))
        for offsets in itertools.permutations(range(4), jobs)
    ]
    assert interleaved_iteration_s(stage_s) == pytest.approx(min(times))
    assert interleaved_iteration_s(stage_s, order="worst") == pytest.approx(max(times))
    contiguous = [
        sum(max(stage_s[i, (s + j) % 4] for i, s in enumerate(offsets)) for j in range(4))
        for offsets in itertools.permutations(range(jobs))
    ]
    assert interleaved_iteration_s(stage_s, idle_slots=False) == pytest.approx(min(contiguous))


def test_how_many_turns_there_are():
    counts = [len(turn_vectors(4, p)) for p in range(1, 6)]
    assert counts == [1, 3, 6, 6, 0]
    assert [len(turn_vectors(4, p, idle_slots=False)) for p in range(1, 5)] == [1, 2, 6, 6]
    assert len(turn_vectors(4, 3, shared=True)) == 16


class TestShares:
    def test_three_of_96_cores_exclude_nobody(self):
        """Simulators that need a few cores and a little of the GPU run side by side; without shares they queue."""
        stage_s = np.array([[0.0, 0.5, 0.01, 0.0]] * 3)
        light = np.array([[0.1, 3 / 96, 0.2, 0.1]] * 3)
        assert interleaved_iteration_s(stage_s) == pytest.approx(1.51)
        assert best_turns(stage_s, shares=light) == (0.51, (0, 0, 0))

    def test_a_full_gpu_is_not_shared(self):
        stage_s = np.array([[0.0, 0.5, 0.3, 0.0]] * 2)
        shares = np.array([[0.1, 3 / 96, 1.0, 0.1]] * 2)
        assert best_turns(stage_s, shares=shares) == best_turns(stage_s)

    def test_more_jobs_than_resources(self):
        stage_s = np.array([[1.0, 1.0]] * 4)
        assert best_turns(stage_s, shares=np.full((4, 2), 0.5))[0] == 2.0
        assert sorted(best_turns(stage_s, shares=np.full((4, 2), 0.5))[1]) == [0, 0, 1, 1]

    @given(stages(st.integers(1, 4)), st.sampled_from(["best", "worst"]), st.booleans())
    def test_shares_of_one_are_the_formula(self, stage_s, order, idle_slots):
        plain = best_turns(stage_s, order=order, idle_slots=idle_slots)
        assert best_turns(stage_s, order=order, idle_slots=idle_slots, shares=np.ones(stage_s.shape)) == plain


@given(
    stage_s=stages(st.integers(4, 9), st.integers(2, 5)),
    seed=st.integers(0, 1000),
    order=st.sampled_from(["best", "worst"]),
    idle_slots=st.booleans(),
    shared=st.booleans(),
)
def test_many_groups_at_once_say_the_same(stage_s, seed, order, idle_slots, shared):
    random = np.random.default_rng(seed)
    shares = random.choice([0.25, 0.5, 1.0], stage_s.shape) if shared else None
    members = np.full((7, 4), -1)
    for row in members:
        jobs = random.integers(1, 5)
        row[:jobs] = random.choice(len(stage_s), jobs, replace=False)
    options = {"order": order, "idle_slots": idle_slots}
    answers = []
    for compiled in (True, False):
        with mock.patch.object(interleave, "compiled", return_value=compiled):
            answers.append(group_times(stage_s, members, **options, shares=shares))
    for time, turns in answers:
        for g, row in enumerate(members):
            jobs = row[row >= 0]
            try:
                known = best_turns(stage_s[jobs], **options, shares=None if shares is None else shares[jobs])
            except InputError:
                assert time[g] == np.inf
                assert (turns[g] == -1).all()
                continue
            assert (time[g], tuple(turns[g, : len(jobs)])) == known  # to the last bit
            assert (turns[g, len(jobs) :] == -1).all()


def test_group_times_takes_arrays_as_they_come():
    members = np.array([[0, 1], [2, -1]], dtype=np.int32)
    members.flags.writeable = False
    time, _ = group_times(np.asfortranarray(MODELS), members)
    assert time.tolist() == [interleaved_iteration_s(MODELS[:2]), interleaved_iteration_s(MODELS[2:3])]
