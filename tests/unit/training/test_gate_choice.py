"""The gate of a group: rounds measured on paced devices, what rules a gate out; more work never takes less time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.core.turns import lock_step_s
from plait.runtime.gate_choice import best_turns, choose_gate, paces

M4 = [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]
M2 = [(2, 0.5, 1, 0.5), (0.5, 1, 2, 0.5)]
G4 = [(0.5, 0.5, 2, 0.5)] * 4

rows = st.lists(st.tuples(*[st.floats(0.01, 10)] * 4), min_size=2, max_size=4)


@pytest.mark.parametrize(
    ("mix", "gate", "barrier_s", "measured_s"),
    [(M4, "barrier", 5.0, 2.73 / 0.54), (M2, "tokens", 4.5, 1.69 / 0.53), (G4, "tokens", 8.0, 4.16 / 0.52)],
)
def test_the_measured_mixes(mix, gate, barrier_s, measured_s):
    choice = choose_gate(mix)
    assert (choice.gate, choice.barrier_s) == (gate, barrier_s)
    assert choice.iteration_s == pytest.approx([measured_s] * len(mix), rel=0.06)
    assert not choice.exclusive


def test_turns_may_be_two_slots_apart():
    assert lock_step_s(M2, (0, 1)) == 5.5
    assert best_turns(M2) == ((0, 2), 4.5)


def test_jobs_of_unequal_length_do_not_go_in_lock_step():
    short, long = (1.0, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 2.4)
    assert choose_gate([short, long], [1.3, 2.7]).gate == "tokens"
    assert choose_gate([(2.4, 0.1, 0.1, 0.1), long], [2.7, 2.7]).gain == pytest.approx(2.0, abs=0.1)
    with_slow = choose_gate([(2.4, 0.1, 0.1, 0.1), long], [6.0, 2.7])
    assert with_slow.gate == "tokens"
    assert "at a barrier" in with_slow.reason


def test_jobs_that_want_the_same_thing_run_one_after_the_other():
    found = choose_gate([(0, 0, 1, 0), (0, 0, 1, 0)])
    assert found.exclusive
    assert found.gate == "none"
    assert found.iteration_s == (1, 1)
    assert choose_gate([(1, 1, 1, 1)]).exclusive


def test_more_jobs_than_resources_take_tokens():
    found = choose_gate([(0.2, 0.2, 0.2, 0.2)] * 5)
    assert (found.gate, len(found.turns)) == ("tokens", 5)


@given(rows, st.integers(0, 3), st.floats(0.01, 5))
def test_more_work_never_takes_less_time(mix, resource, more):
    before = choose_gate(mix)
    longer = [(*row[:resource], row[resource] + more, *row[resource + 1 :]) for row in mix]
    after = choose_gate(longer)
    assert after.barrier_s >= before.barrier_s


@given(rows)
def test_no_resource_is_promised_twice(mix):
    found = choose_gate(mix)
    if not found.exclusive:
        for r in range(4):
            used = sum(row[r] / t for row, t in zip(mix, found.iteration_s, strict=True))
            assert used <= 1 + 1e-6
        assert found.gain >= 1.05


@pytest.mark.parametrize("bad", [[(1, 2, 3)], [(0, 0, 0, 0)], [(1, -1, 0, 0)], [(float("nan"), 1, 1, 1)], []])
def test_impossible_stage_times_are_refused(bad):
    with pytest.raises(InputError):
        choose_gate(bad)
    with pytest.raises(InputError, match="iteration_s"):
        choose_gate(M2, [1.0])


def test_a_round_is_never_shorter_than_an_iteration_alone():
    """Gaps that no stage accounts for: neither gate makes a job faster than it is alone."""
    found = choose_gate([(0.1, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.1)], [1.0, 1.0])
    assert found.barrier_s >= 1.0
    assert min(found.iteration_s) >= 1.0
    for gate in ("barrier", "tokens"):
        assert min(paces(gate, [(0.1,) * 4, (0.1,) * 4], (1.0, 0.9), (0, 1))) >= 0.9
    assert paces("barrier", [(0.1,) * 4, (0.1,) * 4], (1.0, 0.9), (0, 1)) == (1.02, 1.02)
