"""Forecasts beside what the policy does: fragments, quotas, jobs ahead; nothing is offered as now that would wait."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient
from world import World


def ask(world: World, user: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {world.tokens[user]}"}
    answer = TestClient(world.app).request(method, path, json=body, headers=headers)
    assert answer.status_code == 200, answer.json()
    found: dict[str, Any] = answer.json()
    return found


def what_if(world: World, gpus: int, **more: Any) -> dict[str, Any]:
    body = {"command": ["python", "train.py"], "workdir": "/home/ann", "name": "net", "gpus": gpus, **more}
    return ask(world, "ann", "POST", "/v1/what-if", body)


def hold(world: World, gpus: int, seconds: int, **more: Any) -> int:
    """A job that runs and reports that it has so many seconds to go."""
    number = world.do(lambda engine, now_s: engine.state.numbers)
    world.progress[number] = {"steps": 10.0, "step_s": 1.0}
    world.submit("ann", name="held", gpus=gpus, iterations=seconds + 10, **more)
    world.settle(4)
    return int(number)


def running(world: World, job: int) -> bool:
    return bool(world.do(lambda engine, now_s: job in engine.state.live))


@pytest.fixture
def fragments(world: World) -> World:
    """Two nodes of two GPUs, one GPU free on each; the jobs on the others have 100 s and 300 s to go."""
    world.add("n0", 2)
    world.add("n1", 2)
    jobs = [hold(world, 1, 100 + 200 * (i > 1)) for i in range(4)]
    nodes: Mapping[int, str] = world.do(
        lambda engine, now_s: {job: engine.state.jobs[job].live.ranks[0].node for job in jobs}
    )
    first = [next(job for job in jobs if nodes[job] == node) for node in ("n0", "n1")]
    for job in first:
        world.agents[nodes[job]].end(job)
    world.settle(3)
    return world


def test_a_gang_that_fits_on_no_node_does_not_start_now(fragments: World) -> None:
    found = what_if(fragments, 2)
    assert found["start"]["middle_s"] > 50
    assert found["blocked_by"]["kind"] == "placement"
    assert re.search("node|waits until", found["blocked_by"]["text"])
    one = next(row for row in found["variants"] if row["option"] == "--gpus 1")
    assert one["start"]["middle_s"] == 0
    fragments.submit("ann", name="pair", gpus=2, iterations=50)
    fragments.settle(3)
    job = fragments.do(lambda engine, now_s: engine.state.numbers) - 1
    assert not running(fragments, job)
    forecast = ask(fragments, "ann", "GET", f"/v1/jobs/j-{job}/explain")["forecast"]
    assert forecast["start"]["middle_s"] > 50
    assert forecast["end"]["middle_s"] > forecast["start"]["middle_s"]


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_what_is_offered_as_now_starts_when_it_is_submitted(fragments: World, gpus: int) -> None:
    found = what_if(fragments, gpus)
    offers = [(gpus, found["start"]["middle_s"] == 0)]
    offers += [(row["gpus"], row["start"]["middle_s"] == 0) for row in found["variants"] if row["change"] == "gpus"]
    for size, now in offers:
        job = fragments.do(lambda engine, now_s: engine.state.numbers)
        fragments.submit("ann", name="net", gpus=size, iterations=50)
        fragments.settle(3)
        assert running(fragments, job) == now, (size, offers)
        ask(fragments, "ann", "DELETE", f"/v1/jobs/j-{job}")
        fragments.settle(6)


def test_a_quota_is_no_surprise(world: World) -> None:
    world.add("n0", 4)
    hold(world, 1, 200)
    world.do(lambda engine, now_s: engine.set_project("default", gpu_quota=2, weight=1.0, now_s=now_s))
    world.settle(2)
    found = what_if(world, 2)
    assert found["start"]["middle_s"] > 50
    assert re.search("quota", found["blocked_by"]["text"])
    assert what_if(world, 1)["start"]["middle_s"] == 0


def test_three_runs_of_a_script_make_the_interval_of_the_next(world: World) -> None:
    agent = world.add("n0", 1)
    for i in range(6):
        world.submit("ann", name="", gpus=1, command=["python", "slow.py"] if i % 2 else ["python", "quick.py", str(i)])
        world.settle(4)
        agent.end(i, held_s=12.0 + i)
        world.settle(3)
    found = what_if(world, 1, name="", command=["python", "quick.py", "9"])
    assert found["duration"] == "3 ended jobs of the same user, script and size"
    assert what_if(world, 1, name="", command=["python", "slow.py"])["duration"].startswith(
        "3 ended jobs of the same user, command and size"
    )
    world.submit("ann", name="", gpus=1, command=["python", "quick.py", "7"])
    world.settle(3)
    assert ask(world, "ann", "GET", "/v1/jobs/j-6/explain")["forecast"]["duration"].startswith(
        "3 ended jobs of the same"
    )
