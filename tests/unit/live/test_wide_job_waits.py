"""The service holds GPUs for the first of the queue, explains that to both jobs, and counts what it costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from live_cases import Cluster

from plait.live.service.what_if import WhatIfService

Make = Callable[..., Cluster]


def wide_behind_two(cluster: Make, policy: str = "tiresias-l", **options: object) -> Cluster:
    """Jobs 0 and 1 have run on two GPUs, 0 has just ended; 2 waits for both GPUs, 3 for one."""
    c = cluster((2,), policy=policy, **options)
    c.submit({}, {})
    c.pass_s(2.2)
    c.submit({"gpus": 2, "priority": 5}, {})
    c.pass_s(2.2)
    c.nodes[0].end(0)
    c.pass_s(3.3)
    return c


@pytest.mark.parametrize("policy", ["tiresias-l", "muri-l", "srsf", "fifo-backfill", "gandiva", "antman"])
def test_a_later_job_does_not_take_the_gpu_that_the_first_needs(cluster: Make, policy: str) -> None:
    c = wide_behind_two(cluster, policy)
    assert [c.state(job) for job in range(4)] == ["finished", "running", "waiting", "waiting"]
    c.nodes[0].end(1)
    c.pass_s(3.3)
    assert [c.state(job) for job in (2, 3)] == ["running", "waiting"]


def test_both_jobs_are_explained_and_the_cost_is_counted(cluster: Make) -> None:
    c = wide_behind_two(cluster, "fifo-backfill")
    wide = "needs 2 GPUs; waits until j-1 has ended or may be stopped (1 GPU reserved for it: n0:0)"
    assert c.engine.explain(2, c.now).summary == wide
    assert "held for j-2, which is ahead of it" in c.engine.explain(3, c.now).summary
    assert c.engine.status(c.now).gpus.reserved_idle == 1
    assert c.engine.nodes(c.now)[0].reserved_for == {"0": "j-2"}
    before = c.engine.status(c.now).reserved_idle_gpu_s
    c.pass_s(10.0)
    assert c.engine.status(c.now).reserved_idle_gpu_s == pytest.approx(before + 10.0)
    c.restart()
    c.pass_s(1.0)
    assert c.engine.status(c.now).reserved_idle_gpu_s >= before + 10.0


def test_a_size_that_could_only_start_on_held_gpus_is_not_offered(cluster: Make) -> None:
    c = wide_behind_two(cluster, "fifo-backfill")
    c.submit({"gpus": 2, "priority": 1})
    c.pass_s(2.2)
    what_if, found = WhatIfService(c.store), {}
    for job in (2, 4):
        _, question = what_if.explain(c.engine, job, c.now)
        assert question is not None
        answer = what_if.ask(question)
        assert answer is not None
        found[job] = [one.text for one in answer.result(30.0) if one.change == "gpus"]
    assert found == {2: ["with 1 GPU it would start now"], 4: []}


def test_a_cancelled_wide_job_gives_its_gpus_up(cluster: Make) -> None:
    c = wide_behind_two(cluster)
    c.engine.cancel(2, c.now)
    c.pass_s(2.2)
    assert c.state(3) == "running"
    assert c.engine.status(c.now).gpus.reserved_idle == 0
