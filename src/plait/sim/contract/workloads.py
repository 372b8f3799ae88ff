"""Small workloads on which a policy is tried: about a dozen jobs each, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.core.resources import StageProfile
from plait.goodput.model.shipped import shipped
from plait.sim.failures import NodeChange
from plait.sim.overheads import Overheads
from plait.sim.physics import StandardPhysics
from plait.sim.world import World

IDEAL = World("contract", "no overheads", StandardPhysics(spread_slowdown=1.3))
COSTLY = replace(
    IDEAL,
    name="contract-costly",
    overheads=Overheads.constant(launch_s=20, checkpoint_s=7, restore_s=11, migrate_s=3),
)

#: clusters on which every placement can place every gang of at most eight GPUs: two nodes of four and more
CLUSTERS = (
    Cluster.parse("2x4"),
    Cluster.parse("4x4@2"),
    Cluster.parse("1x8,2x4"),
    Cluster.parse("2x4:v100,2x4:a100"),
    Cluster.of(3, 4, cpus=16.0, memory_bytes=64e9, gpu_memory_bytes=16_000_000_000),
)


@dataclass(frozen=True)
class Workload:
    """Jobs, hardware and world of one small run."""

    name: str
    jobs: JobBatch
    cluster: Cluster
    world: World = IDEAL
    changes: tuple[NodeChange, ...] = ()
    seed: int = 0


def random_jobs(seed: int, count: int = 12, most_gpus: int = 8, spread_s: float = 1500.0) -> JobBatch:
    """Draw `count` varied jobs of at most `most_gpus` GPUs, submitted over `spread_s` seconds, some at equal times."""
    rng = np.random.default_rng((seed, 0xC0117AC7))
    sizes = [g for g in (1, 1, 1, 2, 2, 3, 4, 8) if g <= most_gpus]
    submits = np.sort(
        np.where(rng.random(count) < 0.5, rng.integers(0, 6, count) * 60.0, rng.uniform(0, spread_s, count))
    )
    return JobBatch.of(_random_job(rng, i, int(rng.choice(sizes)), float(submits[i])) for i in range(count))


def _random_job(rng: np.random.Generator, i: int, gpus: int, submit_s: float) -> JobSpec:
    duration_s = float(rng.choice([30.0, 120.0, 600.0, rng.uniform(1, 900), rng.uniform(1, 2400)]))
    iteration_s = float(rng.choice([0.05, 0.25, 1.0, 0.333]))
    profile = None
    if rng.random() < 0.7:
        parts = rng.dirichlet(np.ones(4)) * iteration_s * (0.3 if i % 3 == 0 else 1.0)  # some have gaps
        profile = StageProfile.from_sequence(parts.tolist(), iteration_s)
    return JobSpec(
        id=f"j{i:03d}",
        submit_s=round(submit_s, 3),
        gpus=gpus,
        iterations=duration_s / iteration_s,
        iteration_s=iteration_s,
        user=f"u{int(rng.integers(0, 3))}",
        project=f"g{int(rng.integers(0, 2))}",
        profile=profile,
        cpus=float(rng.choice([0.0, gpus, 4.0 * gpus])),
        memory_bytes=float(rng.choice([0.0, 8e9 * gpus])),
        gpu_memory_bytes=float(rng.choice([0.0, 6e9, 12e9])),
        skew=None if rng.random() < 0.3 else float(rng.uniform(0, 1)),
    )


def adaptive_jobs(seed: int, count: int = 10) -> JobBatch:
    """Jobs that adapt their batch, elastic jobs and fixed ones, some of them opportunistic."""
    rng = np.random.default_rng((seed, 0xADA97))
    submits = np.sort(np.round(rng.uniform(0, 900.0, count), 3))
    models = shipped()
    rows = []
    for i, submit_s in enumerate(submits.tolist()):
        model = models[str(rng.choice(["cifar10", "ncf", "deepspeech2"]))]
        guest = JobClass.OPPORTUNISTIC if rng.random() < 0.2 else JobClass.GUARANTEED
        common: dict[str, Any] = {"id": f"a{i:03d}", "submit_s": submit_s, "job_class": guest, "user": f"u{i % 3}"}
        duration_s, kind = float(rng.uniform(60, 900)), rng.random()
        if kind < 0.5:
            one_s = model.iteration_s(1, 1)
            common |= {"iterations": duration_s / one_s, "iteration_s": one_s, "model": model.name}
            rows.append(JobSpec(**common, batch=model.batch, max_gpus=int(rng.choice([4, 8]))))
        elif kind < 0.75:
            rows.append(JobSpec(**common, iterations=duration_s, iteration_s=1.0, gpus=2, min_gpus=1, max_gpus=6))
        else:
            rows.append(JobSpec(**common, iterations=duration_s, iteration_s=1.0, gpus=int(rng.choice([1, 3, 8]))))
    return JobBatch.of(rows)


def on_all_clusters(seed: int) -> Iterator[Workload]:
    """A workload on each of the clusters."""
    for i, cluster in enumerate(CLUSTERS):
        yield Workload(f"{cluster}", random_jobs(seed * 100 + i), cluster, seed=seed)


def on_one_cluster(seed: int, **change: Any) -> Workload:
    """One workload on one of the clusters, by the seed."""
    cluster = CLUSTERS[seed % len(CLUSTERS)]
    return replace(Workload(f"{cluster}", random_jobs(seed * 100 + 50), cluster, seed=seed), **change)


def outages(workload: Workload, seed: int) -> tuple[NodeChange, ...]:
    """Take every node down once, two of them at overlapping times."""
    rng = np.random.default_rng((seed, 0x0DD5))
    changes: list[NodeChange] = []
    for i, node in enumerate(workload.cluster.nodes):
        down = round(200.0 * i + float(rng.uniform(50, 400)), 3)
        changes += [NodeChange(down, node.id, False), NodeChange(down + float(rng.integers(60, 400)), node.id, True)]
    return tuple(sorted(changes))
