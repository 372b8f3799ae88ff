"""Who must not be passed over: jobs that waited long or often, jobs that have just begun, and who has room to grow."""

import numpy as np
import pytest
from adaptive_cases import adaptive, controlled, estimate, fixed, nodes_of, report, sizes

from plait.control.controller import Controller
from plait.control.messages import JobFinished, JobSubmitted, NodeLost, ProgressReported, ReplanDue
from plait.core.cluster import Cluster
from plait.core.highs import HAVE_HIGHS
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.policies.catalog import make_policy
from plait.policies.pollux import Pollux
from plait.sim.run import simulate
from plait.sim.world import make_world

POLICIES = [
    "pollux",
    pytest.param("pollux:exact=on", marks=pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")),
    "pollux-ga:generations=5,population=20",
    "optimus",
    pytest.param("sia", marks=pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")),
]


def run_on(c: Controller, until_s: float, every_s: float = 60.0) -> None:
    """Let everybody run, without progress, and decide every so often."""
    for at_s in np.arange(c.now_s + every_s, until_s + 1e-6, every_s):
        jobs = np.array(sorted(sizes(c)))
        gpus = np.array([sizes(c)[job] for job in jobs.tolist()])
        columns = c.job_store.columns
        ran, attained = columns["run_s"][jobs] + every_s, columns["attained_gpu_s"][jobs] + every_s * gpus
        c.handle(ProgressReported(at_s, jobs, np.zeros(len(jobs)), attained, ran, np.ones(len(jobs))))
        c.handle(ReplanDue(at_s))


def with_options(policy: str, **options: float) -> str:
    """The policy's text with more options."""
    return policy + ("," if ":" in policy else ":") + ",".join(f"{name}={value}" for name, value in options.items())


def test_a_wide_job_gets_on_in_the_gaps_of_a_stream_of_short_ones() -> None:
    """Every minute four jobs of 20 s leave a gap, which the next round fills with newcomers that have lost nothing."""
    wide = JobSpec(id="wide", submit_s=1.0, gpus=4, iterations=600.0, iteration_s=1.0)
    short = [
        JobSpec(id=f"x{k}-{i}", submit_s=60.0 * k + 1.0, gpus=1, iterations=20.0, iteration_s=1.0)
        for k in range(60)
        for i in range(4)
    ]
    jobs = JobBatch.of(sorted([*short, wide], key=lambda spec: spec.submit_s))
    done = simulate(jobs, Cluster.parse("1x4"), make_policy("pollux:patience_s=600"), make_world("pollux"))
    job = jobs.id.tolist().index("wide")
    columns = done.controller.job_store.columns
    assert columns["end_s"][job] < 2000.0  # alone it takes 630 s; it took until the stream had ended
    assert columns["starts"][job] <= 10


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_has_just_begun_is_stopped_for_nobody_but_who_is_due(policy: str) -> None:
    c = controlled(make_policy(policy), "1x4", [fixed(f"short{i}", 1) for i in range(4)])
    c.handle(JobSubmitted(5.0, 4, JobBatch.of([fixed("wide", 4, 5.0)])))
    c.handle(JobFinished(50.0, np.arange(4), np.full(4, 50.0)))
    c.handle(ReplanDue(50.0))
    assert sizes(c) == {4: 4}
    c.handle(JobSubmitted(55.0, 5, JobBatch.of([fixed(f"new{i}", 1, 55.0) for i in range(4)])))
    c.handle(ReplanDue(60.0))
    assert sizes(c) == {4: 4}  # it is still starting


def test_without_a_cost_of_starting_nothing_is_kept_from_moving() -> None:
    c = controlled(Pollux(restart_s=0.0), "1x4", [fixed(f"short{i}", 1) for i in range(4)])
    c.handle(JobSubmitted(5.0, 4, JobBatch.of([fixed("wide", 4, 5.0)])))
    c.handle(JobFinished(50.0, np.arange(4), np.full(4, 50.0)))
    c.handle(ReplanDue(50.0))
    c.handle(JobSubmitted(55.0, 5, JobBatch.of([fixed(f"new{i}", 1, 55.0) for i in range(4)])))
    c.handle(ReplanDue(60.0))
    assert sizes(c) == dict.fromkeys(range(5, 9), 1)


def test_waits_add_up_until_a_job_is_due() -> None:
    """A job that waits 150 s again and again, and runs 90 s in between, has waited 600 s after five turns."""
    c = controlled(Pollux(patience_s=600.0), "1x1", [fixed("a", 1)])
    c.job_store.columns["run_s"][0] = 90.0
    c.job_store.columns["wait_s"][0] = 590.0
    c.handle(JobSubmitted(60.0, 1, JobBatch.of([fixed("b", 1, 60.0)])))
    c.handle(NodeLost(61.0, "n0"))
    c.handle(ReplanDue(61.0))
    c.handle(ReplanDue(120.0))
    assert c.plan.promoted.tolist() == [0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_due_job_that_the_nodes_cannot_hold_stops_nobody_elses_turn(policy: str) -> None:
    c = Controller(make_policy(with_options(policy, patience_s=600)), Cluster.parse("2x4"))
    c.handle(NodeLost(0.0, "n1"))
    jobs = [fixed("big", 8), *(fixed(f"one{i}", 1) for i in range(4)), fixed("four", 4)]
    c.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    c.handle(ReplanDue(0.0))
    run_on(c, 720.0)
    assert 5 in c.job_store.columns["starts"].nonzero()[0].tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_of_weight_0_is_never_due(policy: str) -> None:
    jobs = [
        JobSpec(id="z", gpus=1, iterations=1e6, iteration_s=1.0, weight=0.0),
        *(fixed(f"a{i}", 1) for i in range(6)),
    ]
    c = controlled(make_policy(with_options(policy, patience_s=300)), "1x2", jobs)
    run_on(c, 1500.0)
    assert c.job_store.columns["promotions"][0] == 0
    assert c.job_store.columns["starts"][1:7].all()


@pytest.mark.parametrize(
    ("cluster", "seen"),
    [("4x6", [1, 2, 6, 12, 24]), ("4x3", [1, 3, 6, 12]), ("4x7", [1, 7, 14]), ("4x12", [1, 2, 4, 12, 24])],
)
def test_jobs_explore_on_nodes_whose_gpus_are_no_power_of_two(cluster: str, seen: list[int]) -> None:
    c = controlled(Pollux(exact=False), cluster, [adaptive("a", most=24)])
    sizes_seen = [sizes(c)[0]]
    for at_s in np.arange(60.0, 60.0 * len(seen), 60.0):
        report(c, at_s, {0: estimate(var=1e5, profiled=max(sizes_seen), restart_s=1.0)})
        c.handle(ReplanDue(at_s))
        sizes_seen.append(sizes(c)[0])
    assert sizes_seen == seen


def test_a_step_beyond_what_the_job_may_use_is_not_taken() -> None:
    c = controlled(Pollux(exact=False), "4x6", [adaptive("a", most=5)])
    for at_s in (60.0, 120.0, 180.0):
        report(c, at_s, {0: estimate(var=1e5, profiled=2, restart_s=1.0)})
        c.handle(ReplanDue(at_s))
    assert sizes(c) == {0: 2}


def test_opportunistic_jobs_share_what_is_free_between_rounds() -> None:
    c = controlled(Pollux(), "2x4", [fixed("g", 1)])
    guests = [fixed(f"o{i}", 8, 5.0, min_gpus=1, max_gpus=8, job_class=JobClass.OPPORTUNISTIC) for i in range(3)]
    c.handle(JobSubmitted(5.0, 1, JobBatch.of(guests)))
    c.handle(ReplanDue(5.0))
    assert sizes(c) == {0: 1, 1: 2, 2: 2, 3: 2}
    before = {job: nodes_of(c, job) for job in range(4)}
    c.handle(ReplanDue(60.0))
    assert {job: nodes_of(c, job) for job in range(4)} == before
