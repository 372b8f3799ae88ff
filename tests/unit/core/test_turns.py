"""Formula (3): the slots of a group by hand, and the form for many groups against the plain one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import plait
from plait.core.turns import lock_step_s, slots_s, turn_vectors
from plait.grouping import group_times

SOURCE = Path(plait.__file__).parent
stages = st.lists(st.tuples(*[st.floats(0, 100)] * 4), min_size=1, max_size=4)


def test_slots_by_hand():
    a, b = (1.0, 2.0, 3.0, 1.0), (2.0, 1.0, 1.0, 0.0)  # slot s: a on resource s, b on s + 1
    assert slots_s([a, b], (0, 1)) == [1.0, 2.0, 3.0, 2.0]
    assert lock_step_s([a, b], (0, 1)) == 8.0


def test_each_job_needs_a_turn():
    with pytest.raises(ValueError, match="shorter"):
        slots_s([(1, 1, 1, 1), (1, 1, 1, 1)], (0,))


@given(stages)
def test_the_form_for_many_groups_agrees(rows):
    times = [lock_step_s(rows, turns) for turns in turn_vectors(4, len(rows))]
    members = np.arange(len(rows))[None, :]
    assert group_times(np.array(rows), members)[0].tolist() == [min(times)]
    assert group_times(np.array(rows), members, order="worst")[0].tolist() == [max(times)]


def test_no_other_file_has_the_formula():
    indexed = re.compile(r"\[\(\w+ \+ [\w.]+\) % (k|K|4|resources|len\(Resource\))\]")
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if indexed.search(path.read_text())}
    assert found == {"core/turns.py"}
