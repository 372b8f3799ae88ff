"""Runs as values, and the folder of finished ones."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

import numpy as np

from plait.control.metrics import RunResult
from plait.core.arrays import BoolArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobClass
from plait.core.preemption import FREELY
from plait.reproduce.antman.workload import CLUSTER, Workload, jobs_of
from plait.reproduce.store import RunStore
from plait.sim.physics import StandardPhysics
from plait.sim.studies import cases
from plait.sim.studies.cases import over_processes
from plait.sim.world import World, make_world

#: Modules of this package that no result of a run depends on.
PRESENTATION = {f"{name}.py" for name in ("compare", "page", "published", "tables", "variants")}
#: Whose jobs run: all, with their classes; only the guaranteed ones; all, as if each were guaranteed.
Classes = Literal["as drawn", "guaranteed alone", "all guaranteed"]
#: Kept figures of a run's summary, in addition to figures by class.
KEPT = (
    "avg_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s", "preemptions", "lost_work_gpu_h", "gpu_utilisation",
    "gpu_busy", "opportunistic_kills", "opportunistic_killed_share", "guest_gpu_h", "throttled_h",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a policy of plait's on a workload, in a world of plait's with these values changed.

    `checkpoint_every_s`: seconds of work between the checkpoints that survive a kill; infinite: none does.
    `quantum_s`: GPU work that a guest starts without a look at its share.
    """

    policy: str
    workload: Workload
    world: str = "plait"
    classes: Classes = "as drawn"
    checkpoint_every_s: float = 1800.0
    quantum_s: float = 0.002

    def key(self) -> str:
        """Its name in the store."""
        return hashlib.sha256(json.dumps([asdict(self), code_hash()], sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run: figures (seconds, GPU-hours, shares), how many jobs it had, and the CPU seconds it took."""

    figures: dict[str, float]
    jobs: int
    cpu_s: float


def jobs_in(case: Case) -> JobBatch:
    """The jobs that the case runs."""
    jobs = jobs_of(case.workload)
    if case.classes == "guaranteed alone":
        return jobs[guaranteed(jobs)]
    if case.classes == "all guaranteed":
        return jobs.replace(job_class=np.full(len(jobs), int(JobClass.GUARANTEED)))
    return jobs


def guaranteed(jobs: JobBatch) -> BoolArray:
    """Whether each job is guaranteed, as drawn."""
    flags: BoolArray = jobs.column("job_class") == int(JobClass.GUARANTEED)
    return flags


def world_of(case: Case) -> World:
    """The world of the run. Policies may stop any job, as published."""
    world = replace(make_world(case.world), checkpoint_every_s=case.checkpoint_every_s)
    physics = world.physics
    assert isinstance(physics, StandardPhysics) and physics.sharing is not None  # noqa: PT018
    sharing = replace(physics.sharing, quantum_s=case.quantum_s)
    return replace(world, physics=replace(physics, sharing=sharing))


def run_case(case: Case, ended: Callable[[int], None] | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    jobs, begin = jobs_in(case), time.process_time()
    one = cases.Case("antman", jobs, case.policy, Cluster.parse(CLUSTER), world_of(case), rule=FREELY)
    result = cases.run_case(one, ended=ended)
    high = guaranteed(jobs_of(case.workload))
    high = high[high] if case.classes == "guaranteed alone" else high
    return Done(_figures(result, jobs, high), len(jobs), time.process_time() - begin)


def _figures(result: RunResult, jobs: JobBatch, high: BoolArray) -> dict[str, float]:
    """Figures of the run; by class as drawn, independent of the policy's view. Undefined figures are left out."""
    summary, rows = result.summary, result.jobs
    found = {name: float(summary.get(name, math.nan)) for name in KEPT}
    stretch = rows["run_s"] / (jobs.iterations * jobs.iteration_s)
    for name, some in (("guaranteed", high), ("opportunistic", ~high)):
        if some.any():
            found[f"avg_jct_{name}_s"] = float(rows["jct_s"][some].mean())
            found[f"avg_queue_{name}_s"] = float(rows["queue_s"][some].mean())
            found[f"stretch_{name}"] = float(stretch[some].mean())
    return {name: value for name, value in found.items() if math.isfinite(value)}


class Store(RunStore[Done]):
    """A folder of finished runs."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        """Use this folder, created if necessary; `fresh` ignores existing runs."""
        super().__init__(folder, Done, lambda done: {"avg_jct_s", "makespan_s"} <= set(done.figures), fresh=fresh)


def run_all(
    todo: Sequence[Case], store: Store, processes: int = 1, ended: Callable[[int], None] | None = None
) -> Iterator[tuple[Case, Done]]:
    """Run them and keep each as soon as it is done; call `ended(n)` as jobs end; with processes, as runs end."""
    here = processes == 1 or len(todo) == 1
    work = partial(run_case, ended=ended if here else None)
    for i, done in over_processes(work, todo, processes):
        store.put(todo[i], done)
        if not here and ended is not None:
            ended(done.jobs)
        yield todo[i], done


@cache
def code_hash() -> str:
    """Hash of the code and tables that runs depend on."""
    digest = hashlib.sha256()
    for name in ("core", "control", "grouping", "placement", "policies", "sharing", "sim", "traces", "goodput"):
        for part in _parts(files("plait") / name):
            digest.update(part.read_bytes())
    for part in _parts(files("plait.reproduce.antman")):
        if part.name not in PRESENTATION:
            digest.update(part.read_bytes())
    return digest.hexdigest()


def _parts(folder: Traversable) -> Iterator[Traversable]:
    """Code and tables in a folder and its subfolders, by name."""
    for part in sorted(folder.iterdir(), key=lambda one: one.name):
        if part.is_dir() and part.name != "__pycache__":
            yield from _parts(part)
        elif part.name.endswith((".py", ".csv", ".json")):
            yield part
