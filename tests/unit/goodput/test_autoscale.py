"""The size of the cluster: its utility, and the bisection for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.policies.pollux import resize, utility


def test_utility_is_one_when_every_job_scales_linearly_on_full_nodes():
    assert utility(np.array([4.0, 2.0, 0.0]), np.array([4, 2, 0]), 6) == 1.0
    assert utility(np.array([4.0, 1.0]), np.array([4, 2]), 8) == 0.625
    assert utility(np.array([0.0]), np.array([0]), 0) == 0.0


@given(st.integers(1, 40), st.floats(0.5, 60.0), st.integers(1, 5), st.integers(1, 60))
def test_the_size_found_is_the_nearest_to_the_target_of_a_falling_utility(nodes, scale, least, most):
    def falling(n: int) -> float:
        return scale / (scale + n)

    most = max(most, least)
    found = resize(nodes, falling, least=least, most=most)
    top = max(least, min(most, 2 * nodes))
    assert least <= found <= top
    if least <= nodes <= top and 0.35 <= falling(nodes) <= 0.65:
        assert found == nodes
    else:
        assert abs(falling(found) - 0.5) == min(abs(falling(n) - 0.5) for n in range(least, top + 1))


def test_a_cluster_at_most_doubles_and_never_empties():
    assert resize(8, lambda n: 1.0 - n / 1000) == 16
    assert resize(8, lambda n: 0.1 / n) == 1
    assert resize(8, lambda n: 0.5) == 8
    with pytest.raises(InputError, match="a target in its band"):
        resize(4, lambda n: 0.5, low=0.6)
