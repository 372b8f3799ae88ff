"""Nodes that `pollux:autoscale=on` values, and batches of waiting jobs."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from adaptive_cases import adaptive, controlled, estimate, fixed
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.core.policy import Autoscaling, Wanted
from plait.policies.catalog import make_policy
from plait.policies.compose import knapsack
from plait.policies.fair import Drf
from plait.policies.pollux import Pollux
from plait.sim.run import simulate
from plait.sim.world import make_world
from sampling import examples

#: a job whose gradients are so noisy that many GPUs bring much, and one for which a larger batch brings nothing
GOOD, BAD = estimate(var=1e5, profiled=64), estimate(var=1e-3, profiled=64)


def wanted(cluster: str, specs: list[Any], fits: dict[int, list[float]], most: int = 64, **options: Any) -> Wanted:
    policy = Pollux(autoscale=True, **options)
    found = policy.wanted_gpus(controlled(policy, cluster, specs, fits).view(), most)
    assert found is not None
    return found


def followed(nodes: int, specs: list[Any], fits: dict[int, list[float]], most: int = 64) -> list[int]:
    """Nodes of four GPUs of a cluster that does what is wanted, until it stays."""
    sizes = [nodes]
    while len(sizes) < 2 or sizes[-1] != sizes[-2]:
        sizes.append(-(-wanted(f"{sizes[-1]}x4", specs, fits, most).gpus // 4))
        assert len(sizes) < 12, sizes
    return sizes


def test_a_job_that_scales_badly_gives_nodes_back_and_one_that_scales_well_gets_more() -> None:
    bad = wanted("8x4", [adaptive("a", most=64)], {0: BAD})
    assert bad.gpus == 4
    assert bad.why.startswith("1 job that adapts uses 8 nodes at ")
    assert ", 1 at " in bad.why
    assert wanted("1x4", [adaptive("a", most=64)], {0: GOOD}).gpus == 8
    grown = followed(1, [adaptive("a", most=64)], {0: GOOD})
    assert grown[:3] == [1, 2, 4]
    assert followed(16, [adaptive("a", most=64)], {0: GOOD})[-1] >= grown[-1] > 2


def test_more_jobs_are_worth_more_nodes_and_none_more_than_they_may_use_or_are_allowed() -> None:
    def end(jobs: int, most: int = 64) -> int:
        return followed(2, [adaptive(f"j{i}", most=16) for i in range(jobs)], dict.fromkeys(range(jobs), GOOD), most)[
            -1
        ]

    assert end(1) <= 4 < end(4)
    assert end(4, most=12) == 3
    assert wanted("1x4", [adaptive("a", most=2)], {0: GOOD}).gpus == 4
    assert wanted("4x4", [adaptive("a")], {0: estimate(var=1e5, profiled=1)}).gpus == 4  # it has to profile 2 first


def test_within_the_band_the_cluster_stays() -> None:
    specs, fits = [adaptive("a", most=64)], {0: GOOD}
    kept = [n for n in range(1, 17) if "which is within 35% to 65%" in (found := wanted(f"{n}x4", specs, fits)).why
            and found.gpus == 4 * n]  # fmt: skip
    assert len(kept) > 1


def test_other_jobs_count_by_what_they_ask_for() -> None:
    guest = adaptive("guest", most=64, job_class=JobClass.OPPORTUNISTIC)
    alone = wanted("8x4", [adaptive("a", most=64)], {0: BAD})
    others = [fixed("b", 6), guest, adaptive("new", most=64)]
    assert wanted("8x4", [adaptive("a", most=64), *others], {0: BAD, 2: GOOD}).gpus == alone.gpus + 8
    assert wanted("2x4", [adaptive("a", most=64), *others], {0: BAD, 2: GOOD}).gpus == 12


def test_who_does_not_know_says_nothing() -> None:
    specs = [adaptive("a"), fixed("b", 4)]
    assert Pollux(autoscale=True).wanted_gpus(controlled(Pollux(), "2x4", specs).view(), 64) is None
    view = controlled(Pollux(), "2x4", specs, {0: GOOD}).view()
    assert Pollux().wanted_gpus(view, 64) is None
    assert isinstance(make_policy("pollux:autoscale=on"), Autoscaling)
    assert not isinstance(Drf(), Autoscaling)
    with pytest.raises(InputError, match="autoscale is 2; it takes on or off"):
        make_policy("pollux:autoscale=2")


def test_each_kind_of_gpu_is_sized_apart_and_cores_count() -> None:
    specs = [adaptive("a", most=64, gpu_kinds=("x",)), fixed("b", 2, gpu_kinds=("y",))]
    assert wanted("4x4:x,4x4:y", specs, {0: BAD}).gpus == 4 + 2
    hungry = [fixed("b", 4, cpus=32.0), adaptive("a", most=2)]
    assert wanted("4x4+16c", hungry, {1: GOOD}).gpus == 12  # 2 GPUs on each of two nodes, and a node for the other


@settings(max_examples=examples(15), deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-3, 1e5), st.integers(1, 16), st.integers(1, 4), st.integers(4, 40)), max_size=5),
    st.lists(st.integers(1, 9), max_size=3), st.integers(1, 6), st.integers(4, 48),
)  # fmt: skip
def test_any_cluster_settles_within_what_is_allowed(
    jobs: list[tuple[float, int, int, int]], others: list[int], nodes: int, most: int
) -> None:
    specs = [
        adaptive(f"j{i}", most=job[3], gpus=job[2], min_gpus=job[2]) for i, job in enumerate([*jobs, (1.0, 1, 1, 8)])
    ]
    fits = {i: estimate(var=job[0], profiled=job[1]) for i, job in enumerate([*jobs, (1.0, 1, 1, 8)])}
    specs += [fixed(f"f{i}", min(gpus, 4)) for i, gpus in enumerate(others)]
    most = max(most // 4 * 4, 16)
    ends = followed(min(nodes, most // 4), specs, fits, most)
    assert all(1 <= n <= most // 4 for n in ends)
    assert all(after <= max(2 * before, ends[-1]) for before, after in pairwise(ends))


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_is_the_best_of_all_choices(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = int(draw.integers(0, 9))
    size, capacity = draw.integers(1, 9, count), int(draw.integers(0, 20))
    value = draw.integers(1, 10, count).astype(np.float64)
    chosen = knapsack(size, value, capacity)
    best = max(
        (
            float(value[list(pick)].sum())
            for flags in product((False, True), repeat=count)
            if size[(pick := np.flatnonzero(flags).tolist())].sum() <= capacity
        ),
        default=0.0,
    )
    assert size[chosen].sum() <= capacity
    assert value[chosen].sum() == pytest.approx(best)


def test_ties_go_to_the_first() -> None:
    assert knapsack(np.array([2, 2, 2]), np.full(3, 2.0), 4).tolist() == [True, True, False]


def starts(policy: str, *jobs: tuple[float, int, float]) -> list[float]:
    """First starts of jobs of (submission, GPUs, seconds) on four GPUs."""
    batch = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=at, gpus=gpus, iterations=seconds, iteration_s=1.0)
        for i, (at, gpus, seconds) in enumerate(jobs)
    )
    run = simulate(batch, Cluster.parse("1x4"), make_policy(policy), make_world("ideal"), check=True)
    return run.controller.job_store.columns["first_start_s"][: len(jobs)].tolist()


def test_what_fills_the_gpus_starts_before_what_came_first() -> None:
    """When the first job ends, jobs of 3 and 2 and 2 GPUs wait; the last two fill all four."""
    jobs = (0.0, 4, 100.0), (1.0, 3, 100.0), (2.0, 2, 100.0), (3.0, 2, 100.0)
    assert starts("knapsack", *jobs) == [0.0, 200.0, 100.0, 100.0]
    assert starts("fifo-backfill", *jobs) == [0.0, 100.0, 200.0, 200.0]


def test_a_job_that_has_waited_long_is_worth_more() -> None:
    jobs = (0.0, 4, 7200.0), (1.0, 3, 100.0), (7100.0, 4, 100.0)
    assert starts("knapsack", *jobs)[1:] == [7200.0, 7300.0]


def test_running_jobs_stay() -> None:
    assert starts("knapsack", (0.0, 3, 100.0), (10.0, 4, 100.0)) == [0.0, 100.0]
