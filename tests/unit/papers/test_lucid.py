"""Lucid's published description: scores, who is packed with whom, and that nobody is stopped."""

from __future__ import annotations

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import JobSubmitted, ReplanDue
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate
from plait.core.resources import StageProfile
from plait.policies.catalog import knowledge, make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world


def job(i: int, busy: float, gpus: int = 1, user: str = "u", submit_s: float = 0.0) -> JobSpec:
    profile = StageProfile.of(gpu=busy, cpu=1 - busy)
    return JobSpec(id=f"j{i}", submit_s=submit_s, gpus=gpus, min_gpus=gpus, max_gpus=gpus, iterations=1000.0,
                   iteration_s=1.0, profile=profile, user=user)  # fmt: skip


@pytest.mark.parametrize(
    ("busy", "packed"),
    [((0.1, 0.9), True), ((0.3, 0.4), True), ((0.3, 0.9), False), ((0.9, 0.9), False), ((0.1, 0.1), True)],
)
def test_waiting_jobs_join_running_ones_up_to_a_score_of_two(busy, packed):
    controller = Controller(make_policy("lucid"), Cluster.parse("1x1"))
    for number, part in enumerate(busy):
        controller.handle(JobSubmitted(float(number), number, JobBatch.of([job(number, part)])))
        controller.handle(ReplanDue(float(number)))
    groups = [sorted(m.job for m in g.members) for g in controller.plan.groups]
    assert groups == ([[0, 1]] if packed else [[0]])
    assert controller.plan.groups.gate is None or controller.plan.groups.gate.tolist() == [int(Gate.NONE)]


def test_jobs_are_packed_only_where_some_would_wait_and_with_as_many_gpus():
    controller = Controller(make_policy("lucid"), Cluster.parse("1x4"))
    jobs = [job(0, 0.1, 2), job(1, 0.1), job(2, 0.1), job(3, 0.1), job(4, 0.1, 4)]
    for number in (0, 1, 2):
        controller.handle(JobSubmitted(float(number), number, JobBatch.of([jobs[number]])))
        controller.handle(ReplanDue(float(number)))
    assert controller.running.single, "all fit alone"
    for number in (3, 4):
        controller.handle(JobSubmitted(float(number), number, JobBatch.of([jobs[number]])))
        controller.handle(ReplanDue(float(number)))
    assert sorted(sorted(m.job for m in g.members) for g in controller.running) == [[0], [1, 3], [2]]


def test_no_job_is_stopped_and_its_knowledge_is_stated():
    rng = np.random.default_rng(0)
    jobs = [job(i, float(rng.random()), int(rng.choice([1, 2, 4])), f"u{i % 3}", 100.0 * i) for i in range(60)]
    done = simulate(JobBatch.of(jobs), Cluster.parse("1x4"), make_policy("lucid"), world=make_world("ideal"))
    assert int(done.controller.job_store.columns["preemptions"][:60].sum()) == 0
    assert knowledge("lucid") == "predicted"
