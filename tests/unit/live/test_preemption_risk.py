"""The risk of being stopped for others, and what adaptive jobs are worth to backends that add nodes."""

from collections.abc import Callable
from typing import Any

import pytest
from live_cases import Cluster

from plait.cli.commands.explain import explanation_lines
from plait.live.api.cluster import ClusterFigures, WantedGpus
from plait.live.api.explain import PreemptionRisk
from plait.live.protocol.wire import Adaptive
from plait.live.scheduler.options import ANY_SIZE
from plait.policies.pollux import Pollux

Make = Callable[..., Cluster]


def risk(c: Cluster, job: int) -> PreemptionRisk:
    found = c.engine.explain(job, c.now).preemption
    assert found is not None
    return found


def test_jobs_ahead_are_named_with_the_time_until_they_may_stop_it(cluster: Make) -> None:
    c = cluster([1], policy="srsf")
    (long,) = c.submit({"iterations": 1e6, "profile": {"gpu": 1.0}}, then_s=3.0)
    alone = risk(c, long)
    assert (alone.possible, alone.ahead) == (True, [])
    assert alone.text.startswith("no waiting job stands before it in the order; a new one")
    short, _ = c.submit({"iterations": 10, "profile": {"gpu": 1.0}}, {"iterations": 1e9, "profile": {"gpu": 1.0}})
    c.pass_s(2.2)
    found = risk(c, long)
    assert found.ahead == [f"j-{short}"]
    assert found.text.startswith(f"j-{short} waits before it in the order for 1 GPU, and may stop it, but not within")
    assert f"  preemption: {found.text}" in explanation_lines(c.engine.explain(long, c.now))
    assert found.after_s is not None
    c.pass_s(found.after_s - 1.0)
    assert c.state(long) == "running"
    c.pass_s(4.0)
    assert (c.state(long), c.state(short)) == ("waiting", "running")


@pytest.mark.parametrize(
    ("policy", "saves", "text"),
    [
        ("fifo", "yes", "policy fifo stops no job for others"),
        ("srsf", "nothing", "no policy stops it, because it cannot resume from a checkpoint"),
    ],
)
def test_a_job_that_is_never_stopped_for_others_has_the_reason(
    cluster: Make, policy: str, saves: str, text: str
) -> None:
    c = cluster([1], policy=policy)
    (job,) = c.submit({}, then_s=2.0)
    c.nodes[0].report(job, saves=saves, then_s=12.0)
    assert (risk(c, job).possible, risk(c, job).text) == (False, text)


def test_a_job_that_waits_has_no_risk(cluster: Make) -> None:
    c = cluster([1])
    _, waits = c.submit({}, {}, then_s=2.0)
    assert c.engine.explain(waits, c.now).preemption is None


def test_a_waiting_job_has_the_time_when_it_goes_first_because_of_its_wait(cluster: Make) -> None:
    c = cluster([1], policy="plait:wait_lengths=2,group=off", lost_s=1e5, lease_s=5e4)
    c.engine.set_project("nlp", gpu_quota=1, weight=1.0, now_s=c.now)
    (holds,) = c.submit({"iterations": 100, "profile": {"gpu": 1.0}, "priority": 1.0}, then_s=2.0)
    c.nodes[0].report(holds, saves="nothing", held_s=800.0)  # so that none goes before it
    (waits,) = c.submit({"iterations": 400, "profile": {"gpu": 1.0}, "project": "nlp"}, then_s=2.0)
    found = c.engine.explain(waits, c.now)
    bound = "it has waited 2 times its length of about 6 min 40 s, and at least 10 min 0 s"
    bound += ", but after jobs of a higher class and the quota of project nlp"
    assert found.first == f"it is among the first in 13 min 18 s, when {bound}"
    assert f"  {found.first}" in explanation_lines(found)
    c.now += 800.0
    c.pass_s(1.0)
    assert c.state(waits) == "waiting"
    assert c.engine.explain(waits, c.now).first == f"it is among the first, because {bound}"


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        ("plait:wait_lengths=inf,bound_s=7200", "it is among the first in 1 h 59 min, when it has waited 2 h 0 min"),
        ("fifo-backfill:reserve_after_s=7200", "jobs behind wait for it in 1 h 59 min, when it has waited 2 h 0 min"),
        ("srsf", None),
    ],
)
def test_other_bounds_on_waiting_are_named_too(cluster: Make, policy: str, first: str | None) -> None:
    c = cluster([1], policy=policy)
    _, waits = c.submit({}, {}, then_s=2.0)
    assert c.engine.explain(waits, c.now).first == first


def test_of_many_jobs_past_the_bound_some_are_not_among_the_first(cluster: Make) -> None:
    c = cluster([1], policy="plait:group=off", lost_s=1e5, lease_s=5e4)
    (holds,) = c.submit({"iterations": 9999, "profile": {"gpu": 1.0}}, then_s=2.0)
    c.nodes[0].report(holds, saves="nothing")
    waiting = c.submit(*({"iterations": 10, "profile": {"gpu": 1.0}} for _ in range(2)), then_s=2.0)
    c.now += 800.0
    c.pass_s(1.0)
    first, later = (c.engine.explain(job, c.now).first for job in waiting)
    bound = "it has waited 8 times its length of about 10.0 s, and at least 10 min 0 s"
    assert first == f"it is among the first, because {bound}"
    assert later == f"{bound}; others that have waited too long go first, on 50% of the GPUs"


LIMITS = [128, 4096, 32, 1024, 0]
THETA = [0.0187, 0.00068, 0.0915, 0.0025, 0.0154, 1e-4, 1.28]


OPTIONS = {"most_gpus": ANY_SIZE, "estimate_s": 1.0}


def trained(c: Cluster, var: float, **more: Any) -> ClusterFigures:
    """A job that may have 16 GPUs has measured itself on 8; what the service says a few decisions later."""
    batch = {"initial": 128, "most": 4096, "least_local": 32, "most_local": 1024}
    c.submit({"batch": batch, "max_gpus": 16, **more}, then_s=2.0)
    c.nodes[0].report(0, adaptive=Adaptive(10.0, 1e6, 128.0, [*THETA, 1.0, var, 8.0, 1.0], LIMITS), steps=4.0)
    c.pass_s(62.0)
    return c.engine.status(c.now)


def test_a_policy_that_autoscales_says_how_many_and_why(cluster: Make) -> None:
    c = cluster((4,), "pollux:autoscale=on", **OPTIONS)
    status = trained(c, 1e6)
    assert (status.wanted.gpus, status.wanted.by) == (8, "policy")
    assert status.wanted.why.startswith("1 job that adapts uses 1 node at ")
    c.submit({"gpus": 4}, then_s=2.0)
    assert c.engine.status(c.now).gpus.wanted == 8
    c.engine.set_project("small", gpu_quota=4, weight=1.0, now_s=c.now)  # a policy within quotas is asked all the same
    c.submit({"gpus": 4, "project": "small"}, {"gpus": 4, "project": "small"}, then_s=2.0)
    assert c.engine.status(c.now).gpus.wanted == 12  # fewest GPUs of all whom quotas let pass


def test_nodes_that_bring_nothing_are_not_wanted(cluster: Make) -> None:
    status = trained(cluster((4,) * 4, "pollux:autoscale=on", **OPTIONS), 1e-3)
    assert (status.gpus.total, status.gpus.wanted) == (16, 4)


@pytest.mark.parametrize("policy", ["pollux", "fifo-backfill"])
def test_else_jobs_count_by_what_they_ask_for(cluster: Make, policy: str) -> None:
    status = trained(cluster((4, 4), policy, **OPTIONS), 1e6)
    assert status.wanted == WantedGpus(1, "jobs", "what jobs ask for")


def test_a_policy_that_fails_to_say_takes_nobody_the_status(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Pollux, "wanted_gpus", broken)
    c = cluster((4,), "pollux:autoscale=on", **OPTIONS)
    assert trained(c, 1e6).wanted.by == "jobs"
    (problem,) = c.engine.counts.problems  # the service logs it
    assert problem.what.startswith("policy pollux:autoscale=on cannot value GPUs for jobs")
    assert isinstance(problem.error, ZeroDivisionError)
    c.engine.status(c.now)
    assert len(c.engine.counts.problems) == 1  # once per decision, not per question
