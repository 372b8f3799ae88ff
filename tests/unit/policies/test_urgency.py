"""Priority classes and deadlines go before a policy's own order; a policy that ignores them says so."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.core.plan import Plan
from plait.core.policy import View, ignored_by
from plait.policies.catalog import CATALOG, make_policy
from plait.policies.ignored_requests import TELL_CLASSES_APART, remarks
from plait.sim.run import simulate
from plait.sim.world import make_world

ORDERED = [name for name, row in CATALOG.items() if "deadlines" in row.options]


def job(name: str, submit_s: float = 0.0, work_s: float = 100.0, **more: object) -> JobSpec:
    return JobSpec(id=name, submit_s=submit_s, iterations=work_s, iteration_s=1.0, **more)  # type: ignore[arg-type]


def ends(policy: str, jobs: list[JobSpec], cluster: str = "1x1") -> dict[str, float]:
    """When each job ends where starts and stops cost nothing."""
    columns = columns_of(policy, jobs, cluster)
    return dict(zip([job.id for job in sorted(jobs, key=lambda j: j.submit_s)], columns["end_s"].tolist(), strict=True))


def columns_of(policy: str, jobs: list[JobSpec], cluster: str = "1x1") -> dict[str, np.ndarray]:
    """The job store at the end, in order of submission."""
    batch = JobBatch.of(sorted(jobs, key=lambda j: j.submit_s))
    done = simulate(batch, Cluster.parse(cluster), make_policy(policy), make_world("ideal"), check=True)
    return {name: done.controller.job_store.columns[name][: len(batch)] for name in ("end_s", "preemptions")}


@pytest.mark.parametrize("policy", ORDERED)
def test_a_higher_class_goes_first_under_every_policy_that_has_an_order(policy):
    jobs = [job("first", 0, 50), job("low", 1, 50, priority=-1), job("plain", 2, 60), job("high", 3, 70, priority=1)]
    found = ends(policy, jobs)
    assert found["high"] < found["plain"] < found["low"]


def test_a_higher_class_takes_the_gpus_of_a_lower_one_where_the_policy_preempts():
    jobs = [job("low", 0, 50), job("high", 10, 500, priority=1)]
    assert ends("srtf", jobs) == {"low": 550.0, "high": 510.0}
    assert ends("fifo", jobs) == {"low": 50.0, "high": 550.0}


def test_without_priorities_and_deadlines_nothing_changes():
    random = np.random.default_rng(5)
    jobs = [job(f"j{i}", float(random.integers(0, 400)), float(random.integers(10, 300))) for i in range(40)]
    for name in ("srtf", "fifo", "tiresias-l"):
        assert ends(f"{name}:deadlines=on", jobs, "1x2") == ends(name, jobs, "1x2")


def test_a_job_that_waits_long_enough_rises_a_class():
    stream = [job(f"high{i}", 50.0 * i, 50, priority=1) for i in range(20)]
    assert ends("srtf", [job("low", 0, 50), *stream])["low"] == 1050.0
    # After 200 s it is as important as they are, and submitted first.
    found = ends("fifo-backfill:age_s=200", [job("low", 1, 50), *stream])
    assert 250 <= found["low"] <= 300


def test_a_job_keeps_the_class_it_rose_to_while_it_runs():
    jobs = [job("low", 0, 300), job("high", 0, 100, priority=1), job("late", 250, 100, priority=1)]
    found = ends("smallest-first:age_s=100", jobs)
    assert found == {"high": 100.0, "low": 400.0, "late": 500.0}


def test_deadlines_order_by_least_slack_and_only_where_asked():
    jobs = [
        job("busy", 0, 10),
        job("loose", 1, 100, deadline_s=1000.0),
        job("tight", 2, 300, deadline_s=450.0),
        job("none", 3, 20),
    ]
    on = ends("srtf:deadlines=on", jobs)
    assert on["tight"] < on["loose"] < on["none"]
    off = ends("srtf", jobs)
    assert off["none"] < off["loose"] < off["tight"]


def test_least_slack_meets_deadlines_that_the_policy_alone_misses():
    jobs = [job(f"short{i}", i, 100) for i in range(10)] + [job("due", 0, 300, deadline_s=400.0)]
    assert ends("srtf", jobs)["due"] > 400
    assert ends("srtf:deadlines=on", jobs)["due"] <= 400


def test_a_job_that_cannot_meet_its_deadline_hinders_nobody():
    jobs = [job("hopeless", 0, 500, deadline_s=100.0), job("due", 0, 100, deadline_s=150.0), job("plain", 0, 50)]
    found = ends("srtf:deadlines=on", jobs)
    assert found == {"due": 100.0, "plain": 150.0, "hopeless": 650.0}


def test_jobs_of_equal_slack_do_not_stop_each_other_all_the_time():
    jobs = [job(f"j{i}", 0, 1000, deadline_s=2900.0) for i in range(3)]
    found = columns_of("srtf:deadlines=on", jobs)
    assert found["preemptions"].sum() <= 6
    assert found["end_s"].max() == 3000.0


def test_sums_of_keys_that_change_soon_are_looked_at_again():
    """A waiting job that runs out of slack while another one holds the GPU takes it in time."""
    jobs = [job("long", 0, 2000, deadline_s=10_000.0), job("due", 10, 100, deadline_s=1500.0)]
    assert ends("2d-las:quantum_s=1e6,deadlines=on", jobs)["due"] <= 1510.0


@pytest.mark.parametrize(
    "text",
    ["fifo:age_s=0", "fifo:age_s=-5", "fifo:age_s=nan", "fifo:age_s=soon", "fifo:deadlines=maybe", "fifo:deadlines=2"],
)
def test_options_that_cannot_be_are_refused_by_name(text):
    with pytest.raises(InputError, match=r"(age_s|deadlines) is .*; it takes (a finite number of seconds|on or off)"):
        make_policy(text)


@pytest.mark.parametrize("name", CATALOG)
def test_every_policy_says_what_it_ignores(name):
    said = remarks(name, make_policy(name), 1.0, 60.0)
    if name in ORDERED:
        assert said == [f"policy {name} ignores deadlines; {name}:deadlines=on orders by them"]
        asked = f"{name}:deadlines=on"
        assert remarks(asked, make_policy(asked), 1.0, 60.0) == []
    else:
        assert len(said) == 2
        assert said[0].startswith(f"policy {name} ignores priorities; policies that order by them: fifo, ")
    assert remarks(name, make_policy(name), 0.0, None) == []
    assert remarks(name, make_policy(name), 0.0, math.nan) == []


def test_policies_that_treat_all_classes_alike_are_told():
    switched = [f"{name}:preempt=on" for name, row in CATALOG.items() if "preempt" in row.options]
    apart = [
        name
        for name in (*CATALOG, *switched)
        if not remarks(name, make_policy(name), 0.0, None, JobClass.OPPORTUNISTIC)
    ]
    assert sorted(apart) == sorted(TELL_CLASSES_APART)
    (said,) = remarks("fifo", make_policy("fifo"), 0.0, None, JobClass.AUTO)
    assert said.startswith(
        "policy fifo ignores job classes and treats all jobs as guaranteed; policies that honour classes: pollux"
    )


def test_a_policy_of_ones_own_declares_what_it_uses():
    @dataclass(frozen=True)
    class Own:
        uses = frozenset({"priority"})

        def decide(self, view: View) -> Plan:
            raise AssertionError("not asked here")

    assert ignored_by(Own(), 1.0, 60.0) == ["deadline"]
    assert ignored_by(Own(), 1.0, None) == []
