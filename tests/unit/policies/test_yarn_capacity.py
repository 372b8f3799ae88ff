"""The capacity scheduler where nodes are unequal and fail: every job ends; and whom it kills.

With `PLAIT_SLOW=1` 150 drawn traces.
"""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plait.control.history import SpanEnd
from plait.control.metrics import RunResult
from plait.core.cluster import Cluster
from plait.core.jobs import Checkpoints, JobBatch, JobClass, JobSpec
from plait.core.preemption import DEFAULT_RULE, FREELY
from plait.policies.catalog import make_policy
from plait.sim.contract import COSTLY, IDEAL, random_jobs
from plait.sim.run import simulate
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world

CLUSTERS = ("2x4", "1x8,2x4", "4x4@2", "3x8", "1x4,2x2", "1x1,1x2,1x4")
#: drawn traces in which a gang that no switch could hold once kept everybody waiting, and one a cluster besides
SEEDS = (0, 1, 2, 3, 4, 5, 10, 16, 28, 34, 46, 52)
slow = pytest.mark.skipif(os.environ.get("PLAIT_SLOW") != "1", reason="set PLAIT_SLOW=1")


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(s, marks=slow) for s in range(150) if s not in SEEDS)])
def test_every_job_ends_on_nodes_that_fail(seed: int) -> None:
    cluster = Cluster.parse(CLUSTERS[seed % len(CLUSTERS)])
    world = replace(COSTLY if seed % 2 else IDEAL, node_mtbf_s=3000.0, node_mttr_s=300.0, checkpoint_every_s=60.0)
    jobs = random_jobs(seed, 12, min(8, cluster.gpus))
    run = simulate(jobs, cluster, make_policy("yarn-cs"), world, seed=seed, check=True)
    assert (run.controller.job_store.columns["end_s"][: len(jobs)] > 0).all()


@pytest.mark.parametrize("policy", ["yarn-cs", "yarn-cs:shares=1/1"])
def test_a_gang_no_switch_could_hold_runs_on_the_fewest_nodes_that_can(policy: str) -> None:
    jobs = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=float(i), gpus=gpus, iterations=100.0, iteration_s=1.0)
        for i, gpus in enumerate((1, 7, 1))
    )
    run = simulate(jobs, Cluster.parse("1x1,1x2,1x4"), make_policy(policy), make_world("ideal"), check=True)
    assert run.controller.job_store.columns["end_s"][:3].tolist()[1:] == [200.0, 300.0]


# -- preemption ------------------------------------------------------------------------------------------------------


def _job(name: str, submit_s: float, gpus: int, seconds: float, *, lowly: bool = False, **more: Any) -> JobSpec:
    klass = JobClass.OPPORTUNISTIC if lowly else JobClass.GUARANTEED
    return JobSpec(
        id=name, submit_s=submit_s, gpus=gpus, iterations=seconds, iteration_s=1.0, job_class=klass, **more
    )  # fmt: skip


def _figures(policy: str, *jobs: JobSpec, cluster: str = "2x4", every_s: float = 60.0, **more: Any) -> RunResult:
    world = replace(make_world("ideal"), checkpoint_every_s=every_s)
    case = Case("t", JobBatch.of(jobs), policy, Cluster.parse(cluster), world, check=True, **{"rule": FREELY, **more})
    return run_case(case)


def _ends(result: RunResult) -> dict[str, float]:
    return dict(zip(result.jobs["id"].tolist(), result.jobs["end_s"].tolist(), strict=True))


@pytest.mark.parametrize(("every_s", "end_s"), [(60.0, 430.0), (float("inf"), 550.0)])
def test_a_killed_job_goes_on_from_its_last_checkpoint(every_s: float, end_s: float) -> None:
    jobs = (_job("lowly", 0.0, 8, 300.0, lowly=True), _job("high", 150.0, 8, 100.0))
    found = _figures("yarn-cs:preempt=on", *jobs, every_s=every_s)
    assert _ends(found) == {"lowly": end_s, "high": 250.0}
    assert found.summary["opportunistic_kills"] == 1
    assert found.summary["opportunistic_killed_share"] == 1.0
    assert found.summary["lost_work_s"] == (30.0 if every_s == 60.0 else 150.0)
    assert (found.timeline.span_end == int(SpanEnd.KILLED)).sum() == 1


def test_without_preemption_the_guaranteed_job_waits() -> None:
    found = _figures("yarn-cs", _job("lowly", 0.0, 8, 300.0, lowly=True), _job("high", 150.0, 8, 100.0))
    assert _ends(found) == {"lowly": 300.0, "high": 400.0}
    assert found.summary["opportunistic_kills"] == 0


def test_only_those_are_killed_whose_gpus_the_head_gets_and_the_latest_first() -> None:
    jobs = (
        _job("old", 0.0, 4, 500.0, lowly=True),
        _job("mid", 10.0, 2, 500.0, lowly=True),
        _job("new", 20.0, 2, 500.0, lowly=True),
        _job("high", 100.0, 2, 50.0),
    )
    found = _figures("yarn-cs:preempt=on", *jobs)
    assert dict(zip(found.jobs["id"].tolist(), found.jobs["preemptions"].tolist(), strict=True)) == {
        "old": 0, "mid": 0, "new": 1, "high": 0,
    }  # fmt: skip


def test_nobody_is_killed_for_a_head_that_does_not_fit_anyhow() -> None:
    jobs = (
        _job("host", 0.0, 4, 300.0),
        _job("lowly", 10.0, 4, 100.0, lowly=True),
        _job("wide", 20.0, 8, 50.0),
        _job("behind", 30.0, 1, 10.0),
    )
    found = _figures("yarn-cs:preempt=on", *jobs)
    assert found.summary["opportunistic_kills"] == 0
    assert _ends(found) == {"host": 300.0, "lowly": 110.0, "wide": 350.0, "behind": 360.0}


def test_a_job_that_may_not_be_stopped_is_not_killed() -> None:
    jobs = (_job("plain", 0.0, 8, 300.0, lowly=True, checkpoints=Checkpoints.NEVER), _job("high", 150.0, 8, 100.0))
    assert _figures("yarn-cs:preempt=on", *jobs, rule=DEFAULT_RULE).summary["opportunistic_kills"] == 0
    assert _ends(_figures("yarn-cs:preempt=on", *jobs)) == {"plain": 550.0, "high": 250.0}


def test_a_job_is_killed_as_soon_as_it_may_be_stopped() -> None:
    """At 80 s: it ran 80 s, and the 20 s since its checkpoint are less than half of that."""
    lowly = _job("lowly", 0.0, 8, 300.0, lowly=True, checkpoints=Checkpoints.PERIODIC)
    found = _figures("yarn-cs:preempt=on", lowly, _job("high", 10.0, 8, 100.0), rule=DEFAULT_RULE)
    assert _ends(found) == {"high": 180.0, "lowly": 420.0}


@pytest.mark.parametrize("policy", ["yarn-cs:preempt=on", "yarn-cs:preempt=on,shares=1/1"])
def test_guaranteed_jobs_do_not_wait_for_opportunistic_ones(policy: str) -> None:
    """One GPU a job, so that placement does not matter: exactly as if the others were not there."""
    rng = np.random.default_rng(7)
    jobs = [
        replace(
            _job(f"j{i}", float(i * 9), 1, float(rng.integers(20, 200)), lowly=i % 2 == 0), project=f"p{i // 2 % 2}"
        )
        for i in range(40)
    ]
    both = _figures(policy, *jobs, cluster="1x4")
    hosts = [job for job in jobs if job.job_class == JobClass.GUARANTEED]
    alone = _figures(policy.replace("preempt=on", "preempt=off"), *hosts, cluster="1x4")
    ends = _ends(both)
    assert {name: ends[name] for name in _ends(alone)} == _ends(alone)
    assert both.summary["opportunistic_kills"] > 1


def test_a_head_gets_the_gpus_that_were_taken_back_for_it() -> None:
    """`first` goes where a killed job was, and `wide` on the node that was free."""
    jobs = (
        _job("old", 0.0, 4, 500.0, lowly=True),
        _job("gap", 1.0, 4, 14.0),
        _job("new", 2.0, 4, 500.0, lowly=True),
        _job("first", 20.0, 4, 300.0),
        _job("wide", 20.0, 8, 300.0),
        _job("behind", 20.0, 4, 300.0),
    )
    found = _figures("yarn-cs:preempt=on", *jobs, cluster="3x4")
    assert _ends(found) == {"gap": 15.0, "first": 320.0, "wide": 320.0, "behind": 620.0, "old": 820.0, "new": 820.0}
    assert found.summary["opportunistic_kills"] == 2


def test_of_two_that_arrive_together_neither_waits_for_an_opportunistic_job() -> None:
    jobs = (_job("lowly", 0.0, 4, 500.0, lowly=True), _job("a", 10.0, 4, 500.0), _job("b", 10.0, 4, 500.0))
    found = _figures("yarn-cs:preempt=on", *jobs)
    assert _ends(found) == {"a": 510.0, "b": 510.0, "lowly": 1010.0}
    assert found.summary["opportunistic_kills"] == 1


@pytest.mark.parametrize("placement", ["best-fit", "counting", "consolidated", "consolidated-first-fit"])
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_guaranteed_gangs_that_arrive_in_bursts_end_as_if_they_were_alone(seed: int, placement: str) -> None:
    rng = np.random.default_rng(seed)
    drawn = [(int(rng.choice([1, 2, 4, 8])), float(rng.integers(20, 300)), bool(rng.random() < 0.6)) for _ in range(40)]
    jobs = [_job(f"j{i}", i // 8 * 120.0, gpus, s, lowly=lowly) for i, (gpus, s, lowly) in enumerate(drawn)]
    hosts = [job for job in jobs if job.job_class == JobClass.GUARANTEED]
    alone = _ends(_figures(f"yarn-cs:placement={placement}", *hosts, cluster="3x4"))
    both = _figures(f"yarn-cs:preempt=on,placement={placement}", *jobs, cluster="3x4")
    ends = _ends(both)
    assert {name: ends[name] for name in alone} == alone
    assert both.summary["opportunistic_kills"] > 1
