"""Mean completion time of large-model jobs whose execution plan is chosen with their size, against fixed plans.

    python benchmarks/bench_plans.py [--quick]

Jobs of four sizes of model with a fixed batch on 64 GPUs. What a user would have written is the plan that is fastest
at the requested size without accumulation. The same jobs, of the same seeds, run with that plan at every size; with
accumulation as needed; with any plan; and with any plan on no fewer GPUs than the user's plan needs. Seconds of an
iteration follow from operations and bytes: 6 P operations a token at 45 % of 312 TFLOP/s, and an all-reduce of 4 P
bytes at 200 GB/s in a node, 25 GB/s between nodes.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, fewest_gpus
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput.batch import best_batch
from plait.goodput.execution_plans import PlanSpace
from plait.goodput.fixed_batch import true_scaling
from plait.goodput.jobs import GoodputJobs
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world

#: Parameters in billions, layers, width: GPT-2 XL, and LLaMA-like models.
MODELS = {"1.5b": (1.5, 48, 1600), "3b": (3.0, 32, 2560), "7b": (7.0, 32, 4096), "13b": (13.0, 40, 5120)}
TOKENS, VOCABULARY = 2048, 32000
FLOPS = 0.45 * 312e12
NODE_BYTES_S, NETWORK_BYTES_S = 200e9, 25e9
PER_NODE, NODES = 8, 8
SIZES = (1, 2, 4, 8, 16, 32, 64)


def scaling_of(parameters: float, batch: int) -> tuple[tuple[int, float], ...]:
    """Seconds of an iteration by GPUs, of ZeRO stage 0 in one pass."""
    one_s = 6 * parameters * TOKENS * batch / FLOPS
    bandwidth = {1: np.inf} | {k: NODE_BYTES_S if k <= PER_NODE else NETWORK_BYTES_S for k in SIZES[1:]}
    return tuple((k, one_s / k + 4 * parameters / bandwidth[k]) for k in SIZES)


def jobs_of(seed: int, count: int, memory_gb: int) -> list[JobSpec]:
    """Jobs with any plan, in order of submission; requested are sizes on which the user's plan fits."""
    rng = np.random.default_rng(seed)
    out = []
    at = np.cumsum(rng.exponential(100.0, count))
    for i in range(count):
        name = str(rng.choice(list(MODELS), p=[0.3, 0.3, 0.25, 0.15]))
        billions, layers, width = MODELS[name]
        batch = int(rng.choice([64, 128, 256]))
        activations = TOKENS * (2 * layers * width + 34 * width + 8 * VOCABULARY)  # with checkpoints of each layer
        limits = BatchLimits(
            initial=batch, most=batch, least_local=1, most_local=batch, accumulation=True,
            parameters=int(billions * 1e9), example_bytes=activations,
        )  # fmt: skip
        gpus, seconds = int(rng.choice([8, 16, 32], p=[0.6, 0.3, 0.1])), dict(scaling_of(billions * 1e9, batch))
        hours = float(np.clip(rng.lognormal(0.3, 1.0), 0.1, 12))
        spec = JobSpec(
            id=f"j{i}", submit_s=float(at[i]), gpus=gpus, min_gpus=1, max_gpus=64, model=name, batch=limits,
            iterations=max(1.0, hours * 3600 / seconds[gpus]), iteration_s=seconds[gpus],
            scaling=tuple(seconds.items()),
        )  # fmt: skip
        while users_stage(spec, memory_gb) is None:
            spec = replace(spec, gpus=2 * spec.gpus, iteration_s=seconds[2 * spec.gpus])
        out.append(spec)
    return out


def users_stage(spec: JobSpec, memory_gb: int) -> int | None:
    """The stage that is fastest at the requested size without accumulation; None if none fits."""
    assert spec.batch is not None
    column = JobBatch.of([replace(spec, batch=replace(spec.batch, accumulation=False))]).column
    theta = true_scaling(JobBatch.of([spec]), 0, PER_NODE)[None]
    one, batch = np.ones(1, dtype=np.int64), column("batch_size")
    space = PlanSpace.of(column, memory_gb * 1e9)
    known = GoodputJobs(theta, one, 0 * one, batch, batch, one, batch, one < 1, space)
    best = best_batch(known, [-(-spec.gpus // PER_NODE)], [spec.gpus])
    return int(best.stage[0, 0]) if best.local[0, 0] else None


def fixed(spec: JobSpec, memory_gb: int, *, accumulation: bool) -> JobSpec:
    """The same job with the user's stage at every size."""
    assert spec.batch is not None
    stage = users_stage(spec, memory_gb)
    if stage is None:
        raise InputError(f"job {spec.id}: no plan fits on {spec.gpus} GPUs of {memory_gb} GB")
    return replace(spec, batch=replace(spec.batch, zero_stage=stage, accumulation=accumulation))


def mean_jct_s(jobs: list[JobSpec], policy: str, memory_gb: int) -> float:
    """Mean seconds from submission to end."""
    cluster = Cluster(tuple(Node(f"n{i}", PER_NODE, gpu_memory_bytes=memory_gb * 10**9) for i in range(NODES)))
    run = simulate(JobBatch.of(jobs), cluster, make_policy(policy), make_world("pollux"))
    columns = run.controller.job_store.columns
    return float((columns["end_s"] - columns["submit_s"])[: len(jobs)].mean())


def main() -> None:
    """Print a Markdown table: a row for each policy and memory of a GPU."""
    quick = "--quick" in sys.argv
    seeds, count = ((0,), 10) if quick else (range(5), 20)
    head = ("policy", "GPU", "user's plan at every size, h", "the same stage, accumulating", "any plan")
    print("|", " | ".join((*head, "times as fast", "any plan, not smaller", "times as fast")), "|")
    print("|---" * 8 + "|")
    for policy in ("pollux:interval_s=300,exact=off", "sia:interval_s=300"):
        for memory_gb in (80, 40):
            rows = []
            for seed in seeds:
                free = jobs_of(seed, count, memory_gb)
                one = [fixed(spec, memory_gb, accumulation=False) for spec in free]
                some = [fixed(spec, memory_gb, accumulation=True) for spec in free]
                large = [
                    replace(any_, min_gpus=fewest_gpus(spec.batch, memory_gb * 1e9) or any_.gpus)
                    for any_, spec in zip(free, one, strict=True)
                    if spec.batch is not None
                ]
                rows.append([mean_jct_s(jobs, policy, memory_gb) / 3600 for jobs in (one, some, free, large)])
            one_h, some_h, free_h, large_h = np.mean(rows, axis=0)
            hours = f"{one_h:.2f} | {some_h:.2f} | {free_h:.2f} | {one_h / free_h:.2f} | {large_h:.2f}"
            print(f"| `{policy}` | {memory_gb} GB | {hours} | {one_h / large_h:.2f} |", flush=True)


if __name__ == "__main__":
    main()
