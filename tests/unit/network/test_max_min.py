"""Max-min fair rates against an iterated linear program, the definition, and the certificate of a bottleneck."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from plait.core.jit import plain
from plait.network.fluid import max_min as module
from plait.network.fluid.max_min import Uses, max_min

Instance = tuple[list[float], list[dict[int, float]], list[float], list[float]]


def max_min_reference(
    capacity: Sequence[float],
    uses: Sequence[Mapping[int, float]],
    weight: Sequence[float],
    limit: Sequence[float],
) -> list[float]:
    """The max-min fair rate of each job; arguments as for `max_min`, with a mapping of resources for each job."""
    rate: dict[int, float] = {}
    while len(rate) < len(uses):
        rising = [job for job in range(len(uses)) if job not in rate]
        levels: dict[int, float] = {}
        for resource, whole in enumerate(capacity):
            taken = sum(uses[job].get(resource, 0.0) * rate[job] for job in rate if uses[job].get(resource))
            slope = sum(uses[job].get(resource, 0.0) * weight[job] for job in rising)
            if slope > 0:
                levels[resource] = max(whole - taken, 0.0) / slope
        level = min([*levels.values(), *(limit[job] / weight[job] for job in rising)], default=math.inf)
        for job in rising:
            full = any(levels[resource] <= level * (1 + 1e-12) for resource in uses[job] if resource in levels)
            if full or limit[job] / weight[job] <= level:
                rate[job] = min(weight[job] * level, limit[job])
    return [rate[job] for job in range(len(uses))]


def instance(seed: int, jobs: int, resources: int) -> Instance:
    rng = np.random.default_rng(seed)
    capacity = rng.choice([10.0, 25.0, 100.0], resources).tolist()
    uses = []
    for _ in range(jobs):
        some = rng.choice(resources, rng.integers(1, min(5, resources) + 1), replace=False)
        uses.append({int(r): float(rng.choice([0.5, 1.0, 1.0, 2.0, 8.0])) for r in some})
    weight = rng.choice([1.0, 1.0, 2.0, 0.5], jobs).tolist()
    limit = np.where(rng.random(jobs) < 0.3, rng.uniform(0.1, 30, jobs), np.inf).tolist()
    return capacity, uses, weight, limit


def solved(made: Instance) -> tuple[np.ndarray, np.ndarray]:
    capacity, uses, weight, limit = made
    return max_min(np.array(capacity), Uses.of(uses), np.array(weight), np.array(limit))


def by_linear_programs(made: Instance) -> list[float]:
    """Raise the least level as far as possible; a job that can rise no further then keeps its rate; repeat."""
    capacity, uses, weight, limit = made
    jobs = len(uses)
    use = np.array([[row.get(r, 0.0) for row in uses] for r in range(len(capacity))])
    fixed: dict[int, float] = {}

    def best(objective: np.ndarray, floor: float | None) -> float:
        """The maximum of a linear function of (rates, level); rates of fixed jobs stay, others are >= the floor."""
        rows = [np.append(row, 0.0) for row in use]
        right = list(capacity)
        if floor is None:  # level * weight <= rate
            for j in range(jobs):
                if j not in fixed:
                    rows.append(np.array([*(-1.0 if i == j else 0.0 for i in range(jobs)), weight[j]]))
                    right.append(0.0)
        bounds = [
            (fixed[j], fixed[j])
            if j in fixed
            else ((floor or 0.0) * weight[j], None if math.isinf(limit[j]) else limit[j])
            for j in range(jobs)
        ]
        found = linprog(-objective, A_ub=np.array(rows), b_ub=right, bounds=[*bounds, (0, None)], method="highs")
        assert found.status == 0
        return float(-found.fun)

    while len(fixed) < jobs:
        level = best(np.append(np.zeros(jobs), 1.0), None)
        slack = level * (1 - 1e-9)
        stuck = [
            j
            for j in range(jobs)
            if j not in fixed and best(np.append(np.eye(jobs)[j], 0.0), slack) <= weight[j] * level * (1 + 1e-6) + 1e-9
        ]
        assert stuck
        fixed |= {j: min(weight[j] * level, limit[j]) * (1 - 1e-12) for j in stuck}
    return [fixed[j] for j in range(jobs)]


@pytest.mark.parametrize("seed", range(15))
def test_rates_are_those_of_an_independent_solver(seed: int) -> None:
    made = instance(seed, 2 + seed % 6, 2 + seed % 4)
    rate, _ = solved(made)
    assert rate == pytest.approx(by_linear_programs(made), rel=1e-6)


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_rates_are_those_of_the_definition(seed: int, jobs: int, resources: int) -> None:
    made = instance(seed, jobs, resources)
    rate, bottleneck = solved(made)
    assert rate == pytest.approx(max_min_reference(*made), rel=1e-9)
    capacity, uses, weight, limit = made
    twin, theirs = plain(module._fill)(
        np.array(capacity), *(getattr(Uses.of(uses), name) for name in ("first", "resource", "amount")),
        np.array(weight), np.array(limit), np.argsort(np.array(limit) / np.array(weight), kind="stable"),
    )  # fmt: skip
    assert twin.tolist() == rate.tolist()
    assert theirs.tolist() == bottleneck.tolist()


def certified(made: Instance) -> None:
    """Rates are max-min fair exactly if every job is at its limit, or has the highest level on a full resource."""
    capacity, uses, weight, limit = made
    rate, bottleneck = solved(made)
    load = Uses.of(uses).load(rate, len(capacity))
    assert (load <= np.array(capacity) * (1 + 1e-9)).all()
    level = rate / np.array(weight)
    highest = np.zeros(len(capacity))
    for j, row in enumerate(uses):
        for r in row:
            highest[r] = max(highest[r], level[j])
    for j, row in enumerate(uses):
        r = int(bottleneck[j])
        if r < 0:
            assert rate[j] == limit[j]
        else:
            assert r in row
            assert load[r] == pytest.approx(capacity[r], rel=1e-9)
            assert level[j] == pytest.approx(highest[r], rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_many_jobs_have_a_certificate(seed: int) -> None:
    certified(instance(seed, 1000, 2000))
    certified(instance(seed, 1000, 30))


def test_equal_jobs_share_equally_and_a_weight_counts() -> None:
    rate, by = max_min(np.array([90.0]), Uses.of([{0: 1.0}, {0: 1.0}, {0: 1.0}]), np.array([1.0, 1.0, 4.0]))
    assert rate.tolist() == [15.0, 15.0, 60.0]
    assert by.tolist() == [0, 0, 0]


def test_the_classic_line_of_two_links() -> None:
    rate, by = max_min(np.array([10.0, 4.0]), Uses.of([{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0}]))
    assert rate.tolist() == [2.0, 8.0, 2.0]
    assert by.tolist() == [1, 0, 1]


def test_edges_of_the_definition() -> None:
    assert [x.tolist() for x in max_min(np.array([1.0]), Uses.of([]))] == [[], []]
    rate, by = max_min(np.array([5.0, 0.0]), Uses.of([{}, {0: 1.0}, {1: 1.0}]))
    assert rate.tolist() == [math.inf, 5.0, 0.0]
    assert by.tolist() == [-1, 0, 1]
    rate, by = max_min(np.array([5.0]), Uses.of([{}, {0: 1.0}]), limit=np.array([3.0, 2.0]))
    assert rate.tolist() == [3.0, 2.0]
    assert by.tolist() == [-1, -1]
