"""Simulated jobs that cannot resume from a checkpoint, or only from their last one: what stops cost them, and when."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from plait.control.metrics import RunResult
from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import Checkpoints, JobBatch, JobSpec
from plait.core.plan import Group, Member, Plan
from plait.core.policy import View
from plait.core.preemption import DEFAULT_RULE, FREELY, PreemptionRule, rule_named
from plait.policies.catalog import make_policy
from plait.sim.contract import check_policy
from plait.sim.run import Simulation, simulate, with_plain_jobs
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import World, make_world

IDEAL = make_world("ideal")


def job(name: str, seconds: float, **more: object) -> JobSpec:
    return JobSpec(id=name, iterations=seconds, iteration_s=1.0, **more)  # type: ignore[arg-type]


def run(policy: object, *specs: JobSpec, rule: PreemptionRule = DEFAULT_RULE, world: World = IDEAL) -> Simulation:
    cluster = Cluster.parse("1x1")
    return simulate(JobBatch.of(specs), cluster, policy, world, rule=rule, check=True)  # type: ignore[arg-type]


def ends(made: Simulation) -> list[float]:
    return made.controller.job_store.columns["end_s"][: made.controller.job_store.count].tolist()


def lost_s(made: Simulation) -> list[float]:
    return made.controller.job_store.columns["lost_s"][: made.controller.job_store.count].tolist()


def two(kind: Checkpoints) -> list[JobSpec]:
    """A long job, and a short one that goes first and comes at 250 s."""
    return [job("long", 1000.0, checkpoints=kind), job("short", 100.0, submit_s=250.0)]


@pytest.mark.parametrize("policy", ["muri-l", "muri-s", "2d-las", "las", "tiresias-l", "gandiva", "srsf", "themis"])
def test_two_equal_plain_jobs_on_one_slot_run_one_after_the_other(policy: str) -> None:
    pair = [job(name, 2000.0, checkpoints=Checkpoints.NEVER) for name in ("first", "second")]
    made = run(make_policy(policy), *pair, world=make_world("plait"))
    assert ends(made) == [2010.0, 4020.0]  # each with a launch of 10 s
    assert made.controller.job_store.columns["preemptions"][:2].sum() == 0
    assert lost_s(made) == [0.0, 0.0]


def test_a_plain_job_is_not_stopped_for_a_shorter_one() -> None:
    made = run(make_policy("srsf"), *two(Checkpoints.NEVER))
    assert ends(made) == [1000.0, 1100.0]


def test_a_plain_job_that_may_lose_work_begins_again() -> None:
    made = run(make_policy("srsf"), *two(Checkpoints.NEVER), rule=rule_named("may-lose-work"))
    assert ends(made) == [1350.0, 350.0]
    assert lost_s(made) == [250.0, 0.0]


def test_a_job_that_saves_from_time_to_time_is_stopped_after_a_checkpoint() -> None:
    world = replace(IDEAL, checkpoint_every_s=200.0)
    rule = replace(DEFAULT_RULE, runs_for=4.0)
    made = run(make_policy("srsf"), *two(Checkpoints.PERIODIC), rule=rule, world=world)
    assert ends(made) == [1150.0, 350.0]  # at 250 s it has run for 5 times the 50 s since its last checkpoint
    assert lost_s(made) == [50.0, 0.0]


def test_a_job_that_saves_when_it_is_stopped_loses_nothing() -> None:
    made = run(make_policy("srsf"), *two(Checkpoints.ON_STOP), rule=FREELY)
    assert ends(made) == [1100.0, 350.0]
    assert lost_s(made) == [0.0, 0.0]


def test_lost_work_is_a_figure_of_the_run() -> None:
    jobs = JobBatch.of(two(Checkpoints.NEVER))
    case = Case("t", jobs, "srsf", Cluster.parse("1x1"), IDEAL, rule=FREELY)
    result: RunResult = run_case(case)
    assert result.summary["lost_work_s"] == 250.0
    assert result.summary["lost_work_gpu_h"] == 250.0 / 3600
    assert result.jobs["lost_s"].tolist() == [250.0, 0.0]


def test_a_world_draws_its_plain_jobs() -> None:
    jobs = JobBatch.of(job(f"{i}", 10.0) for i in range(400))
    drawn = with_plain_jobs(jobs, 0.25, seed=3).column("checkpoints") == int(Checkpoints.NEVER)
    assert 70 < drawn.sum() < 130
    assert np.array_equal(drawn, with_plain_jobs(jobs, 0.25, seed=3).column("checkpoints") == 0)
    with pytest.raises(InputError, match="plain must be a share"):
        replace(IDEAL, plain=1.5)


@dataclass(frozen=True)
class Newest:
    """The newest job on the first GPUs of the cluster, whoever is there: what a user might write."""

    name: str = "newest"

    def decide(self, view: View) -> Plan:
        groups, free = [], list(range(view.cluster.gpus))
        for row in range(len(view.jobs))[::-1]:
            spec = view.jobs[row].spec
            one_kind = _first_fit(view, free, spec.gpus)
            if len(one_kind):
                groups.append(Group((Member(view.jobs[row].number),), tuple(one_kind)))
                free = [gpu for gpu in free if gpu not in one_kind]
        return Plan.of(groups)


def _first_fit(view: View, free: list[int], gpus: int) -> list[int]:
    kinds: IntArray = view.cluster.node_kind[view.cluster.gpu_node]
    for kind in range(len(view.cluster.kinds)):
        fits = [gpu for gpu in free if kinds[gpu] == kind]
        if len(fits) >= gpus:
            return fits[:gpus]
    return []


def test_the_contract_names_a_policy_that_throws_work_away() -> None:
    (found,) = check_policy(Newest, only=["keeps-work"])
    assert not found.ok
    assert "policy newest stops or moves job" in found.detail
    assert "view.may_stop" in found.detail
