"""Groups that cost more than expected: split within three rounds, and not formed again."""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.job_store import JobStore
from plait.control.messages import JobSubmitted, ProgressReported, ReplanDue
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Plan
from plait.core.policy import Policy, View
from plait.core.resources import StageProfile
from plait.policies.catalog import make_policy
from plait.sim.measured_pairs import MeasuredPairs, MeasuredRun
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.world import make_world

CPU, GPU = StageProfile.of(cpu=0.9, gpu=0.1), StageProfile.of(gpu=0.9, cpu=0.1)
ROUND_S = 60.0


def jobs(count: int = 6, gpus: int = 1) -> list[JobSpec]:
    return [
        JobSpec(id=f"j{i}", submit_s=0, gpus=gpus, iterations=20_000.0 + i, iteration_s=1.0, profile=(CPU, GPU)[i % 2],
                model=("cpu", "gpu")[i % 2])
        for i in range(count)
    ]  # fmt: skip


def world(log: float):
    """A world in which pairs of unlike jobs cost so much more than the mean, as a logarithm."""
    one, other = MeasuredRun("a", ()), MeasuredRun("b", ())
    return StandardPhysics(pairs=Nearest({one: 0.1, other: 0.9}, {(one, other): log, (other, one): log}, {}, 0.0))


class Nearest(MeasuredPairs):
    """Each job is the closest one in utilisation."""

    def job(self, model: str, busy: float) -> MeasuredRun:
        return min(self.busy, key=lambda one: abs(self.busy[one] - busy))


@dataclass
class Recorded:
    """A policy, and when which jobs were in a group together."""

    policy: Policy
    groups: list[tuple[float, set[frozenset[int]]]] = field(default_factory=list)

    def decide(self, view: View) -> Plan:
        plan = self.policy.decide(view)
        self.groups.append((view.now_s, {frozenset(m.job for m in g.members) for g in plan.groups}))
        return plan

    def seconds_together(self) -> dict[frozenset[int], float]:
        out: dict[frozenset[int], float] = {}
        for (now_s, groups), (then_s, _) in zip(self.groups, self.groups[1:], strict=False):
            for group in groups:
                if len(group) > 1:
                    out[group] = out.get(group, 0.0) + then_s - now_s
        return out


def run(policy: str, log: float) -> dict[frozenset[int], float]:
    recorded = Recorded(make_policy(policy))
    settings = replace(make_world("ideal"), physics=world(log), round_s=ROUND_S)
    simulate(JobBatch.of(jobs()), Cluster.parse("1x1"), recorded, world=settings)
    return recorded.seconds_together()


@pytest.mark.parametrize(
    ("policy", "without"),
    [("plait:guests=0", "plait:guests=0,learn=off"), ("muri-s:max_jobs=2,learn=on", "muri-s:max_jobs=2")],
)
def test_a_group_that_breaks_its_promise_is_split_within_three_rounds(policy, without):
    together = run(policy, 1.2)
    assert together, "the pair looked good"
    assert sum(together.values()) <= 3 * ROUND_S, "nor is another one of the same models formed"
    assert sum(run(without, 1.2).values()) > 100 * ROUND_S, "without reports it stays"


def test_a_group_that_keeps_its_promise_stays():
    assert max(run("plait:guests=0", 0.0).values()) > 100 * ROUND_S
    assert run("plait:guests=0", 0.0) == run("plait:guests=0,learn=off", 0.0)


def test_reports_of_a_live_group_split_it_and_outlive_a_snapshot():
    controller = Controller(make_policy("plait:guests=0"), Cluster.parse("1x1"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs())))
    controller.handle(ReplanDue(0.0))
    (pair,) = [g for g in controller.plan.groups if len(g.members) > 1]
    numbers = np.array(sorted(m.job for m in pair.members))
    ones = np.ones(len(numbers))
    controller.handle(ProgressReported(30.0, numbers, 10 * ones, 30 * ones, 30 * ones, 3.0 * ones))
    controller.handle(ReplanDue(30.0))
    assert not [g for g in controller.plan.groups if len(g.members) > 1]
    store = controller.job_store
    copy = JobStore.from_json(json.loads(json.dumps(store.to_json())))
    assert copy.pair_reports.pairs == store.pair_reports.pairs != {}
    assert copy.pair_reports.sets == store.pair_reports.sets


def test_speeds_that_have_other_causes_say_nothing_of_a_pair():
    for cluster, gpus in (("1x1:a100,1x1:v100", 1), ("4x1", 2)):
        controller = Controller(make_policy("muri-s"), Cluster.parse(cluster))
        controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs(8, gpus))))
        controller.handle(ReplanDue(0.0))
        group = next(g for g in controller.plan.groups if len(g.members) > 1)
        numbers = np.array(sorted(m.job for m in group.members))
        ones = np.ones(len(numbers))
        controller.handle(ProgressReported(30.0, numbers, 10 * ones, 30 * ones, 30 * ones, 3.0 * ones))
        assert bool(controller.job_store.pair_reports.sets) == (cluster == "4x1")
