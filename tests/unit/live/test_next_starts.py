"""What forecasts start now is what the policy starts now; after the next ends, what it starts then."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import JobFinished, JobSubmitted, ReplanDue
from plait.control.snapshot import of_active, snapshot
from plait.core.cluster import Cluster
from plait.core.jobs import Checkpoints, JobBatch, JobSpec, Phase
from plait.core.resources import StageProfile
from plait.grouping.interference import PairReports
from plait.live.scheduler.explain.next_starts import Release, next_starts, started
from plait.policies.catalog import make_policy

POLICIES = ("fifo", "fifo-backfill", "tiresias-l", "srsf", "muri-l", "drf", "antman", "fifo-backfill:quota=a=6/b=6")


def spec(i: int, gpus: int, rng: Any, **more: Any) -> JobSpec:
    kept = Checkpoints.NEVER if rng.random() < 0.5 else Checkpoints.ON_STOP
    return JobSpec(
        id=f"j{i}", gpus=gpus, iterations=100.0, iteration_s=1.0, project="ab"[int(rng.integers(2))],
        checkpoints=kept, **more,
    )  # fmt: skip


def filled(policy: str, seed: int) -> tuple[Controller, Any, dict[int, float]]:
    """Jobs on three nodes of three GPUs, some of which have ended since, so that what is free is spread."""
    rng = np.random.default_rng(seed)
    controller = Controller(make_policy(policy), Cluster.parse("3x3"))
    at_s = 0.0
    for i in range(12):
        at_s += 1.0
        one = spec(i, int(rng.choice([1, 1, 1, 2])), rng, submit_s=at_s)
        controller.handle(JobSubmitted(at_s, i, JobBatch.of([one])))
        controller.handle(ReplanDue(at_s))
        running = np.flatnonzero(controller.job_store.columns["phase"][: i + 1] == int(Phase.RUNNING))
        if len(running) and rng.random() < 0.4:
            at_s += 1.0
            controller.handle(JobFinished(at_s, rng.choice(running, size=1), np.array([at_s])))
            controller.handle(ReplanDue(at_s))
    return controller, rng, {i: float(rng.uniform(5.0, 50.0)) for i in range(12)}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_new_job_starts_now_in_a_forecast_if_the_policy_starts_it_now(policy: str) -> None:
    found = set()
    for seed in range(12):
        controller, rng, left_s = filled(policy, seed)
        before = snapshot(controller)
        new = spec(99, int(rng.choice([1, 2, 3])), rng, submit_s=controller.now_s)
        release = next_starts(controller, left_s, new)[-1]
        assert snapshot(controller) == before
        copy, _ = of_active(controller)
        number = copy.job_store.count
        copy.handle(JobSubmitted(copy.now_s, number, JobBatch.of([new])))
        copy.handle(ReplanDue(copy.now_s))
        runs = bool(copy.job_store.columns["phase"][number] == int(Phase.RUNNING))
        assert release.now == runs, (seed, release)
        assert runs or release.ends >= 1 or release.due_s > 0
        found.add(runs)
    assert found == {True, False}


def test_a_job_waits_for_the_ends_after_which_it_fits() -> None:
    controller = Controller(make_policy("fifo-backfill"), Cluster.parse("2x2"))
    rng = np.random.default_rng(0)
    specs = [spec(i, 1, rng) for i in range(4)] + [spec(4, 2, rng)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    controller.handle(ReplanDue(0.0))
    nodes = controller.cluster.gpu_node[controller.running.gpus]
    order = controller.running.jobs.tolist()
    first, second = (next(job for job, node in zip(order, nodes, strict=True) if node == one) for one in (0, 1))
    rest = [job for job in order if job not in (first, second)]
    left_s = {first: 1.0, second: 2.0, rest[0]: 30.0, rest[1]: 40.0, 4: 5.0}
    release = next_starts(controller, left_s)[4]
    assert (release.ends, release.now) == (3, False)  # two free GPUs are on two nodes
    assert "node" in next_starts(controller, left_s, spec(5, 2, rng))[-1].reason or release.reason


def test_starts_are_moved_to_where_decisions_allow_them() -> None:
    starts_s = np.array([[5.0, 0.0, 7.0, math.inf], [1.0, 9.0, 7.0, math.inf]])
    ends_s = np.array([[3.0, 6.0, 9.0], [2.0, 4.0, 8.0]])
    found = started(starts_s, ends_s, [Release(), Release(2), None, Release(9)])
    assert found.tolist() == [[0.0, 6.0, 7.0, math.inf], [0.0, 9.0, 7.0, math.inf]]
    assert started(starts_s[:, :1], ends_s[:, :0], [Release(1, 2.0)]).tolist() == [[5.0], [2.0]]


def test_a_forecast_learns_nothing_of_jobs_that_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs go on as they are expected to, which is no measurement of their speed together."""
    cpu, gpu = StageProfile.of(cpu=0.9, gpu=0.1), StageProfile.of(gpu=0.9, cpu=0.1)
    controller = Controller(make_policy("plait:guests=0"), Cluster.parse("1x1"))
    jobs = [JobSpec(id=f"j{i}", gpus=1, iterations=9e3, iteration_s=1.0, profile=(cpu, gpu)[i % 2]) for i in range(4)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    controller.handle(ReplanDue(0.0))
    assert any(len(group.members) > 1 for group in controller.plan.groups)
    learnt: list[object] = []
    monkeypatch.setattr(PairReports, "note", lambda *report: learnt.append(report))
    next_starts(controller, {i: 50.0 + i for i in range(4)})
    assert not learnt
