"""What the service says that jobs which adapt are worth, by which backends ask for nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from live_cases import Cluster

from plait.live.api.cluster import ClusterFigures, WantedGpus
from plait.live.protocol.wire import Adaptive
from plait.live.scheduler.options import ANY_SIZE
from plait.policies.pollux import Pollux

Make = Callable[..., Cluster]

LIMITS = [128, 4096, 32, 1024, 0]
THETA = [0.0187, 0.00068, 0.0915, 0.0025, 0.0154, 1e-4, 1.28]


OPTIONS = {"most_gpus": ANY_SIZE, "estimate_s": 1.0}


def trained(c: Cluster, var: float, **more: Any) -> ClusterFigures:
    """A job that may have 16 GPUs has measured itself on 8; what the service says a few decisions later."""
    batch = {"initial": 128, "most": 4096, "least_local": 32, "most_local": 1024}
    c.submit({"batch": batch, "max_gpus": 16, **more})
    c.pass_s(2.0)
    c.nodes[0].report(0, adaptive=Adaptive(10.0, 1e6, 128.0, [*THETA, 1.0, var, 8.0, 1.0], LIMITS), steps=4.0)
    c.pass_s(62.0)
    return c.engine.status(c.now)


def test_a_policy_that_autoscales_says_how_many_and_why(cluster: Make) -> None:
    c = cluster((4,), "pollux:autoscale=on", **OPTIONS)
    status = trained(c, 1e6)
    assert (status.wanted.gpus, status.wanted.by) == (8, "policy")
    assert status.wanted.why.startswith("1 job that adapts uses 1 node at ")
    c.submit({"gpus": 4})
    c.pass_s(2.0)
    assert c.engine.status(c.now).gpus.wanted == 8
    c.engine.set_project("small", gpu_quota=4, weight=1.0, now_s=c.now)  # a policy within quotas is asked all the same
    c.submit({"gpus": 4, "project": "small"}, {"gpus": 4, "project": "small"})
    c.pass_s(2.0)
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
