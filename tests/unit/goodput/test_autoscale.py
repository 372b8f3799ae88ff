"""The size of the cluster: the rule for one job, the utility of many, and the bisection between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.goodput.autoscale import nodes_for_job, resize, utility, utility_at
from plait.goodput.ladder import ladder


def amdahl(configs: np.ndarray, serial: float) -> np.ndarray:
    gpus = configs[:, 1]
    return gpus / (1 + serial * np.maximum(gpus - 1, 0))


def test_a_job_grows_from_two_thirds_to_a_half_of_ideal_and_stays_between():
    steps = ladder(4, 8)
    nodes, gpus = steps.T
    values = amdahl(steps, 0.05)  # worth 1 / (1 + 0.05 (K - 1)): two thirds at 11, a half at 21
    on = {int(k): c for c, k in enumerate(gpus)}
    assert nodes_for_job(values, gpus, nodes, on[1]) == 5
    assert nodes_for_job(values, gpus, nodes, on[8]) == 5
    assert nodes_for_job(values, gpus, nodes, on[12]) == 3
    assert nodes_for_job(values, gpus, nodes, on[32]) == 5
    assert nodes_for_job(values, gpus, nodes, on[8], grow_above=0.75) == 2
    assert nodes_for_job(amdahl(steps, 0.0), gpus, nodes, 1) == 8
    assert nodes_for_job(amdahl(steps, 9.0), gpus, nodes, on[4]) == 1
    with pytest.raises(InputError, match="the goodput of 1 GPU"):
        nodes_for_job(values[2:], gpus[2:], nodes[2:], 0)


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


def test_a_cluster_follows_its_jobs():
    of = {jobs: utility_at(lambda c, j=jobs: np.tile(amdahl(c, 0.1), (j, 1)), jobs, 4) for jobs in (1, 2, 40)}
    assert all(0.0 < of[1](n) <= 1.0 for n in (1, 4, 16))
    assert of[2](16) < of[2](4)
    assert resize(8, of[40]) == 16  # each job has less than a GPU: all that is allowed
    alone = resize(8, of[1])
    assert alone < resize(8, of[2]) <= 16
    assert abs(of[1](alone) - 0.5) <= abs(of[1](alone + 1) - 0.5)
    with pytest.raises(InputError, match="a target in its band"):
        resize(4, of[1], low=0.6)
