"""Execution plans: published memory, limits by hand, the best plan against all plans, and simulated jobs."""

from dataclasses import replace
from itertools import product
from math import ceil

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import JobSubmitted, NodeJoined, ReplanDue
from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.core.goodput import ANY, ZERO_STAGES, BatchLimits, fewest_gpus, needed_bytes, shortage, state_bytes
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput.batch import best_batch, ordered
from plait.goodput.execution_plans import STEP_VOLUME, plan_s, with_volume
from plait.goodput.fit import fit
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import Measurements, grad_s, iteration_s, step_s
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.training import AdaptiveJobs, Training
from plait.sim.world import make_world
from plait.traces.load import load_jobs
from plait.traces.table import new_meta
from plait.traces.validate import checked_table

GB = 10**9
THETA = np.array([0.02, 0.01, 0.5, 0.02, 0.2, 0.01, 1.6])


def test_memory_is_that_of_the_published_table() -> None:
    """ZeRO, figure 1: 7.5 billion parameters on 64 GPUs."""
    states = [state_bytes(7.5e9, stage, 64, False) / 1e9 for stage in ZERO_STAGES]
    assert states == pytest.approx([120, 16.6, 1.9], abs=0.05)
    assert state_bytes(7.5e9, 3, 64, True) == pytest.approx(2 * 7.5e9 + 14 * 7.5e9 / 64)
    assert state_bytes(1e9, 3, 8, False) == state_bytes(1e9, 3, 1, False) / 8
    assert {state_bytes(1e9, *plan) for plan in product(ZERO_STAGES, [1], [False, True])} == {16e9}


def test_one_gpu_exchanges_nothing_and_shards_exchange_what_zero_says() -> None:
    for stage, passes in product(ZERO_STAGES, [0, 3]):
        assert plan_s(THETA, stage, 1, 1, 8, passes) == pytest.approx(iteration_s(THETA, 1, 1, 8, passes), rel=1e-6)
    only = np.array([1e-8, 1e-8, 0.5, 0.02, 0.2, 0.01, 1.0])  # no computation: volumes are times
    alone = float(step_s(only, 2, 8, 1))
    for stage, step, each in ((0, 1.0, 0.0), (2, 1.0, 0.5), (3, 1.5, 1.0)):
        for passes in (0, 4):
            expected = alone * (step + each * passes)
            assert plan_s(only, stage, 2, 8, 1, passes) == pytest.approx(expected, rel=1e-5)
    nine = np.arange(1.0, 10.0)
    assert with_volume(nine, 2.0).tolist() == [1, 2, 6, 8, 10, 12, 7, 16, 18]


def of(limits: BatchLimits, memory_bytes: float, theta: FloatArray = THETA, noise: float = 0.0) -> GoodputJobs:
    return GoodputJobs.one(limits, theta, 1.0, noise, memory_bytes)


def reference(limits: BatchLimits, memory_bytes: float, nodes: int, gpus: int) -> float:
    """Fixed batches a second, in examples, of the best of all plans; rounding a batch up brings nothing."""
    best = 0.0
    for stage, local in product(ZERO_STAGES, range(limits.least_local, limits.most_local + 1)):
        passes = ceil(limits.initial / (gpus * local)) - 1
        too_large = gpus * (passes + 1) * (local - 1) >= limits.most  # by more than rounding up
        if too_large or (passes and not limits.accumulation) or limits.zero_stage not in (ANY, stage):
            continue
        needed = state_bytes(limits.parameters, stage, gpus, passes > 0) + local * limits.example_bytes
        if needed <= memory_bytes:
            best = max(best, limits.initial / float(plan_s(THETA, stage, nodes, gpus, local, passes)))
    return best


def random_limits(rng: np.random.Generator) -> BatchLimits:
    batch, least = int(2 ** rng.integers(3, 8) + rng.integers(0, 2)), int(rng.choice([1, 1, 1, 5]))
    return BatchLimits(
        initial=batch, most=batch, least_local=least, most_local=batch, accumulation=bool(rng.random() < 0.8),
        parameters=int(rng.uniform(0.5, 12) * GB), example_bytes=int(rng.uniform(0.1, 4) * GB),
        zero_stage=int(rng.choice([ANY, ANY, *ZERO_STAGES])),
    )  # fmt: skip


def test_the_best_plan_is_the_best_of_all_and_fits() -> None:
    rng = np.random.default_rng(7)
    stages, infeasible, accumulated = set(), 0, 0
    for _ in range(60):
        limits, memory = random_limits(rng), float(rng.choice([16, 40, 80])) * GB
        gpus = 2 ** np.arange(0, int(np.log2(limits.most_gpus)) + 1)
        best = best_batch(of(limits, memory), -(-gpus // 8), gpus)
        blind = best_batch(of(limits, memory, np.full(7, np.nan)), -(-gpus // 8), gpus)
        for i, k in enumerate(gpus.tolist()):
            right = reference(limits, memory, -(-k // 8), k)
            assert best.goodput[0, i] == pytest.approx(right, rel=1e-9), (limits, memory, k)
            assert (needed_bytes(limits, k) <= memory) is (right > 0) is bool(blind.local[0, i] > 0)
            infeasible += right == 0
            for choice in (best, blind):
                local, passes, stage = (int(column[0, i]) for column in (choice.local, choice.passes, choice.stage))
                used = state_bytes(limits.parameters, stage, k, passes > 0) + local * limits.example_bytes
                assert not local or (used <= memory and k * local * (passes + 1) >= limits.initial)
            own = ordered(limits, np.array([*THETA, 1.0, 0.0, 1.0, 1.0]), -(-k // 8), k, memory)
            most = own and state_bytes(limits.parameters, own.zero_stage, k, True) + own.most_local * own.example_bytes
            assert own is None or not own.accumulation or most <= memory
            stages.add(int(best.stage[0, i]))
            accumulated += int(best.passes[0, i] > 0)
        fits = [k for k in range(1, limits.most_gpus + 1) if needed_bytes(limits, k) <= memory]
        assert fewest_gpus(limits, memory) == (fits[0] if fits else None)
    odd = replace(LIMITS, initial=33, most=33, least_local=5, parameters=GB, example_bytes=GB, zero_stage=0)
    assert reference(odd, 22.9 * GB, 1, 5) == 0 < reference(odd, 23 * GB, 1, 5)  # two passes of 5 would be 50
    assert needed_bytes(odd, 5) == 23 * GB
    assert shortage(odd, 7, 1e12) == "no plan divides a batch of 33 to 33 over 7 GPUs with 5 to 64 examples on each"
    assert stages == {0, 2, 3}
    assert min(infeasible, accumulated) > 20
    assert fewest_gpus(replace(LIMITS, initial=GB, most=GB, most_local=GB, example_bytes=99 * GB), 80e9) is None


def test_what_is_measured_under_stage_3_predicts_the_others() -> None:
    nodes, gpus, local = (np.array(column) for column in ([1, 1, 2, 4, 1, 2], [2, 4, 8, 16, 8, 16], [4, 8, 4, 2, 2, 1]))
    times = step_s(with_volume(THETA, STEP_VOLUME[3]), nodes, gpus, local)
    volume = np.full(6, STEP_VOLUME[3])
    found = fit(Measurements(nodes, gpus, local, grad_s(THETA, local), times, volume))
    for stage, k in product(ZERO_STAGES, [2, 8, 32]):
        right = plan_s(THETA, stage, -(-k // 4), k, 2, 1)
        assert plan_s(found, stage, -(-k // 4), k, 2, 1) == pytest.approx(right, rel=0.03), (stage, k)


LIMITS = BatchLimits(
    initial=64, most=64, least_local=1, most_local=64, accumulation=True, parameters=7 * GB, example_bytes=GB
)
#: 7 billion parameters take 112 GB on one GPU, and 63 + 1 on each of two: 2 x 7 + 14 x 7 / 2.
JOB = JobSpec(
    id="llm", gpus=8, min_gpus=1, max_gpus=16, iterations=2000.0, iteration_s=1.0, batch=LIMITS,
    scaling=((1, 6.5), (2, 3.4), (4, 1.8), (8, 1.0), (16, 0.8)),
)  # fmt: skip


def cluster(*nodes: tuple[str, int]) -> Cluster:
    return Cluster(tuple(Node(f"n{i}", 8, kind, gpu_memory_bytes=gb * GB) for i, (kind, gb) in enumerate(nodes)))


def store_of(jobs: list[JobSpec], policy: str, on: Cluster):
    run = simulate(JobBatch.of(jobs), on, make_policy(policy), make_world("pollux"), check=True)
    return run.controller.job_store.columns, run.backend.adaptive


@pytest.mark.parametrize("policy", ["pollux", "sia", "pollux:group=interleave", "optimus", "plait"])
def test_jobs_run_where_the_memory_holds_a_plan_and_on_the_fewest_gpus_if_sizes_are_chosen(policy: str) -> None:
    """On 80 GB two GPUs hold a plan, without accumulation eight; 12 GB do not hold 14 GB of gradients."""
    jobs = [replace(JOB, id=f"j{i}") for i in range(8)]
    columns, adaptive = store_of(jobs, policy, cluster(("v100", 12), ("a100", 80), ("a100", 80)))
    assert np.isfinite(columns["end_s"][:8]).all()
    assert adaptive.known.plans.memory_bytes.tolist() == [80e9] * 8
    sizes = {key[1] for profile in adaptive.profiles.values() for key in profile}
    assert min(sizes) == (8 if policy == "plait" else 2), sizes


def test_a_job_without_a_plan_that_fits_is_refused_with_bytes_and_what_would_fit() -> None:
    small = replace(JOB, batch=replace(LIMITS, zero_stage=2))
    columns, _ = store_of([small, replace(JOB, id="fits")], "pollux", cluster(("v100", 24)))
    text = str(columns["reason"][0])
    assert "7,000,000,000 parameters need 34,250,000,000 bytes on each of 8 GPUs" in text
    assert "they have 24,000,000,000 (17 of them do, or GPUs of 34.2 GB)" in text
    assert np.isfinite(columns["end_s"][1])
    controller = Controller(make_policy("pollux"), cluster(*3 * [("gpu", 80)]))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([small, JobSpec(id="other", gpus=1, iterations=9.0)])))
    controller.handle(NodeJoined(1.0, Node("late", 8, "gpu", gpu_memory_bytes=24 * GB)))  # 17 > 16 would hold a plan
    controller.handle(ReplanDue(1.0))
    assert controller.running.jobs.tolist() == [1]
    jobs = JobBatch.of([small])
    with pytest.raises(InputError, match="job 'llm': 7,000,000,000 parameters need 34,250,000,000 bytes on each"):
        AdaptiveJobs(jobs, Training.shipped(jobs, 8)).start(0, 1, 8, 0.0, memory_bytes=24e9)


def test_a_trace_gives_plans_and_the_simulated_time_is_that_of_the_best_plan() -> None:
    row = {
        "job_id": ["a"], "submit_s": [0.0], "gpus": [8], "min_gpus": [1], "max_gpus": [8], "duration_s": [2000.0],
        "iteration_s": [1.0], "batch_size": [8], "batch_scope": ["per_gpu"], "parameters": [7 * GB],
        "example_bytes": [GB], "scaling": ["1:6.5 2:3.4 4:1.8 8:1.0 16:0.8"],
    }  # fmt: skip
    columns = {
        name: np.array(values, dtype=object if name in ("job_id", "scaling") else None) for name, values in row.items()
    }
    jobs = load_jobs(checked_table(columns, meta=new_meta(format="test", source="test"))).jobs
    assert jobs[0].batch == LIMITS
    large, small = (store_of(list(jobs), "fifo", cluster(("gpu", gb)))[0]["end_s"][0] for gb in (200, 24))
    assert large == 2000.0 + 30.0
    assert 2040.0 < small < 3000.0
    with pytest.raises(InputError, match="zero_stage 1: needs numbers >= 0, and a stage of 0, 2, 3, or none"):
        replace(LIMITS, zero_stage=1)
