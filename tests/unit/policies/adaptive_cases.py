"""Controllers with adaptive jobs, for tests of policies that choose sizes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.messages import GoodputReported, JobSubmitted, ReplanDue
from plait.core.cluster import Cluster
from plait.core.goodput import BatchLimits, Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.core.policy import Policy

#: a job that scales well: seconds, as fitted for an image classifier, and its noise
THETA = (0.0187, 0.00068, 0.0915, 0.0025, 0.0154, 1e-4, 1.28)
LIMITS = BatchLimits(initial=128, most=4096, least_local=32, most_local=1024)


def adaptive(name: str, submit_s: float = 0.0, most: int = 16, **more: Any) -> JobSpec:
    return JobSpec(id=name, submit_s=submit_s, iterations=1e6, batch=LIMITS, max_gpus=most, **more)


def fixed(name: str, gpus: int, submit_s: float = 0.0, **more: Any) -> JobSpec:
    return JobSpec(id=name, submit_s=submit_s, gpus=gpus, iterations=1e6, iteration_s=1.0, **more)


def estimate(sqr: float = 1.0, var: float = 20.0, profiled: int = 8, restart_s: float = 30.0) -> list[float]:
    row = [0.0] * len(Estimate)
    row[: len(THETA)] = THETA
    row[Estimate.SQR], row[Estimate.VAR] = sqr, var
    row[Estimate.PROFILED_GPUS], row[Estimate.RESTART_S] = profiled, restart_s
    return row


def controlled(
    policy: Policy, cluster: str, specs: Sequence[JobSpec], fits: dict[int, list[float]] | None = None
) -> Controller:
    """A controller that has heard of these jobs and estimates, and has decided at 0 s."""
    controller = Controller(policy, Cluster.parse(cluster))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    report(controller, 0.0, fits or {})
    controller.handle(ReplanDue(0.0))
    return controller


def report(controller: Controller, at_s: float, fits: dict[int, list[float]]) -> None:
    if fits:
        controller.handle(GoodputReported(at_s, np.array(list(fits)), np.array(list(fits.values()))))


def sizes(controller: Controller) -> dict[int, int]:
    running = controller.running
    return dict(zip(running.jobs.tolist(), running.gpu_count().tolist(), strict=True))


def nodes_of(controller: Controller, job: int) -> list[int]:
    at = int(np.flatnonzero(controller.running.jobs == job)[0])
    gpus = controller.running.gpus[controller.running.first_gpu[at] : controller.running.first_gpu[at + 1]]
    return sorted(set(controller.cluster.gpu_node[gpus].tolist()))
