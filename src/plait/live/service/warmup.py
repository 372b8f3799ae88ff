"""Policies are made ready before they decide: compiling their kernels must not keep users and agents waiting."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from plait.core.compile_policy import ahead

if TYPE_CHECKING:
    from plait.core.policy import Policy
    from plait.live.scheduler.engine import Engine
    from plait.live.service.worker import Worker

_LOG = logging.getLogger("plait.service")


def get_ready(worker: Worker, policy: str) -> None:
    """Warm up, let the engine decide from then on, and compile what only long queues need."""
    try:
        warm_up(policy)
    except Exception:  # the first decision will fail in the same way, and the status will show it
        _LOG.warning("the policy failed on an empty cluster", exc_info=True)

    def ready(engine: Engine, now_s: float) -> None:
        engine.ready = True

    worker.submit(ready)
    compile_rest(policy)


def compile_rest(policy: str) -> None:
    """Compile kernels that a decision about a long queue would wait for, once a machine; until then they run plain.

    What is on disk is left there: reading it takes no longer than a decision.
    """
    try:
        with ahead():
            _decide(policy)
    except Exception:  # the policy, as it does when it decides; or the compiler: then all stays plain
        _LOG.info("the policy is not compiled ahead", exc_info=True)


def warm_up(policy: str) -> None:
    """Let a policy decide, so that all it needs is loaded, or compiled."""
    from plait.policies.sizing.rounds import InRounds

    if isinstance(_decide(policy), InRounds):
        # Jobs and decisions would stand still while these compile.
        import numpy as np

        from plait.goodput.fit import Measurements, fit
        from plait.goodput.knapsack import fill_table

        one, seconds = np.array([1]), np.array([0.1])
        fit(Measurements(nodes=one, gpus=one, local=one, grad_s=seconds, step_s=seconds))
        knapsack_of_one = np.array([[0.0, 1.0]]), np.array([0, 1])
        fill_table(*knapsack_of_one, 1, np.zeros(1, dtype=np.int64))


def _decide(policy: str) -> Policy:
    """Let a policy decide about two jobs on one GPU, or on two nodes, until one has ended; returns it."""
    import numpy as np

    from plait.control.controller import Controller
    from plait.control.messages import JobFinished, JobSubmitted, ProgressReported, ReplanDue
    from plait.core.cluster import Cluster
    from plait.core.jobs import JobBatch, JobSpec
    from plait.core.policy import has_grants
    from plait.core.resources import StageProfile
    from plait.live.scheduler.live_policy import made
    from plait.network.topology.read import networked

    chosen = made(policy)
    granting = has_grants(chosen)
    cluster = networked(Cluster.of(2, 1), "single-switch:aggregators=64") if granting else Cluster.of(1, 1)
    controller = Controller(chosen, cluster)
    stages = (StageProfile.of(cpu=0.2, gpu=0.1), StageProfile.of(cpu=0.1, gpu=0.2))
    gpus = 2 if granting else 1
    length = 10.0, None  # the second one's is unknown: then some policies predict it
    specs = [JobSpec(id=f"warm-{i}", gpus=gpus, iterations=length[i], profile=stages[i]) for i in range(2)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    controller.handle(ReplanDue(0.0))
    jobs = controller.running.jobs
    if len(jobs):
        done = np.ones(len(jobs))
        controller.handle(ProgressReported(1.0, jobs, done, done, done, done))
        controller.handle(JobFinished(1.0, jobs[:1], done[:1]))
        controller.handle(ReplanDue(1.0))
    return controller.policy
