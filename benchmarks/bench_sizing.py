"""CPU seconds of a decision of each policy that chooses sizes, from a view to a plan that names GPUs.

    python benchmarks/bench_sizing.py [--quick]

Adaptive jobs of one scalable model with different noise and speed, all running, one round later. Then whole
simulations of jobs that do not adapt, with rounds without changes skipped, and with a decision in every round.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

import common
import numpy as np
from common import Figure

from plait.control.controller import Controller
from plait.control.messages import GoodputReported, JobSubmitted, ReplanDue
from plait.core.cluster import Cluster
from plait.core.goodput import THETA, Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput.shipped import shipped
from plait.policies.catalog import make_policy
from plait.policies.sizing.rounds import InRounds
from plait.sim.run import simulate
from plait.sim.world import make_world

GPUS_A_JOB = 64


def running(policy: str, jobs: int, nodes: int, gpus_per_node: int) -> Controller:
    """A controller whose jobs have all profiled themselves and got their first sizes, 60 s ago."""
    rng = np.random.default_rng(jobs)
    model = shipped()["cifar10"]
    controller = Controller(make_policy(policy), Cluster.of(nodes, gpus_per_node))
    specs = [JobSpec(id=f"j{i}", iterations=1e6, batch=model.batch, max_gpus=GPUS_A_JOB) for i in range(jobs)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    known = np.zeros((jobs, len(Estimate)))
    known[:, :THETA] = np.array(model.theta) * np.exp(rng.normal(0, 0.4, (jobs, THETA)))
    known[:, Estimate.GAMMA] = rng.uniform(1, 3, jobs)
    known[:, Estimate.SQR], known[:, Estimate.VAR] = 1.0, rng.uniform(1, 50, jobs)
    known[:, Estimate.PROFILED_GPUS], known[:, Estimate.RESTART_S] = GPUS_A_JOB // 2, 30.0
    controller.handle(GoodputReported(0.0, np.arange(jobs), known))
    controller.handle(ReplanDue(0.0))
    controller.now_s = 60.0
    return controller


def figures(quick: bool) -> list[Figure]:
    """Each policy beside the published search at the size at which the search still answers."""
    runs = 2 if quick else common.RUNS
    out = []
    for jobs, nodes, gpus in ((20, 16, 4), (160, 16, 4), (160, 64, 4), (300, 256, 8)):
        against = None
        for policy in ("pollux-ga", "pollux", "pollux:exact=on", "sia", "optimus"):
            large = jobs == 300
            if (large and policy in ("pollux-ga", "pollux:exact=on")) or (quick and policy == "pollux-ga"):
                continue
            c = running(policy, jobs, nodes, gpus)
            times = 1 if policy == "pollux-ga" else runs
            seconds = common.cpu_s(lambda c=c: c.policy.decide(c.view()), times)
            goal = {"pollux": "goal 1 s" if large else "goal 0.05 s", "pollux:exact=on": "goal 0.2 s"}.get(policy, "")
            ratio = float("nan") if against is None else against / seconds
            name = f"{policy}, {jobs} jobs, {nodes * gpus:,} GPUs"
            out.append(Figure(name, seconds, times, ratio, "" if against is None else "pollux-ga", goal))
            against = seconds if policy == "pollux-ga" else against
    return out


def quiet_rounds(quick: bool) -> list[Figure]:
    """Simulations of jobs of one size each, CPU seconds; the ratio is to a decision in every round."""
    jobs = common.jobs(40 if quick else 200, 8 if quick else 64, preset="philly")
    cluster, world = Cluster.of(1 if quick else 8, 8), make_world("plait")
    out = []
    for policy in ("pollux", "sia"):

        def run(policy: str = policy, count: int = len(jobs)) -> None:
            simulate(jobs[:count], cluster, make_policy(policy), world)

        run(count=10)
        seconds = common.cpu_s(run, 1)
        with patch.object(InRounds, "_last_round", lambda self, view, allocations, now, *rest: now):
            every = common.cpu_s(run, 1)
        name = f"{policy}, a simulation of {len(jobs)} jobs of one size each"
        out.append(Figure(name, seconds, 1, every / seconds, "every round decided"))
    return out


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    common.show([*figures(quick), *quiet_rounds(quick)])
