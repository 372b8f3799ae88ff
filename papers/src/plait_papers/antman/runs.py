"""Runs as values, and how they are made."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from plait.core.arrays import BoolArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobClass
from plait.core.preemption import FREELY
from plait.sim.physics import StandardPhysics
from plait.sim.studies import cases
from plait.sim.world import World, make_world
from plait_papers.antman.workload import CLUSTER, Workload, jobs_of
from plait_papers.evaluation import Done, Ended, Evaluation

#: Whose jobs run: all, with their classes; only the guaranteed ones; all, as if each were guaranteed.
Classes = Literal["as drawn", "guaranteed alone", "all guaranteed"]
#: Kept figures of a run's summary, in addition to figures by class.
KEPT = (
    "avg_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s", "lost_work_gpu_h", "gpu_utilisation",
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


def jobs_in(case: Case) -> JobBatch:
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
    sharing = replace(physics.sharing, quantum_s=case.quantum_s, cores_apart=True)  # as jobs there request cores
    return replace(world, physics=replace(physics, sharing=sharing))


def run_case(case: Case, ended: Ended | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    jobs, begin = jobs_in(case), time.process_time()
    one = cases.Case("antman", jobs, case.policy, Cluster.parse(CLUSTER), world_of(case), rule=FREELY)
    result = cases.run_case(one, ended=ended)
    high = guaranteed(jobs_of(case.workload))
    high = high[high] if case.classes == "guaranteed alone" else high
    # Figures of the run; by class as drawn, independent of the policy's view. Undefined figures are left out.
    summary, rows = result.summary, result.jobs
    found = {name: float(summary.get(name, math.nan)) for name in KEPT}
    stretch = rows["run_s"] / (jobs.iterations * jobs.iteration_s)
    for name, some in (("guaranteed", high), ("opportunistic", ~high)):
        if some.any():
            found[f"avg_jct_{name}_s"] = float(rows["jct_s"][some].mean())
            found[f"avg_queue_{name}_s"] = float(rows["queue_s"][some].mean())
            found[f"stretch_{name}"] = float(stretch[some].mean())
    return Done(
        {name: value for name, value in found.items() if math.isfinite(value)}, len(jobs), time.process_time() - begin
    )


EVALUATION: Evaluation[Case, Done] = Evaluation(
    "antman",
    run_case,
    Done,
    jobs=lambda case: len(jobs_in(case)),
    code=(
        *(f"plait.{name}" for name in ("core", "control", "grouping", "placement", "policies", "sharing", "sim")),
        *("plait.traces", "plait.goodput"),
        *(f"plait_papers.antman.{name}" for name in ("runs", "workload", "in_order")),
    ),
)
