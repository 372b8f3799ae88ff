"""Wide plain jobs among a stream of narrow ones of unknown length start in time, whatever nodes do meanwhile.

The bound is that of the contract suite: the first of the queue starts at most `LATE_S` after all has ended that ran
when it became first, or when as many GPUs were up again as it needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_cases import Cluster

from plait.control import controller as controllers
from plait.core.jobs import Phase
from plait.live.protocol.wire import NodeInfo, Run
from plait.live.scheduler.options import Options
from plait.live.service.what_if import WhatIfService
from plait.sim.contract import LATE_S
from plait.testing.fleet import Fleet, MemoryDisk, Program, SimulatedAgent

#: The stream of narrow jobs ends at this time; seconds between looks.
STREAM_S, TICK_S = 180.0, 1.0


class Stream:
    """Two nodes of two GPUs and narrow plain jobs of 10 to 60 s, more than the GPUs can run."""

    def __init__(self, home: Path, policy: str) -> None:
        self.draw, self.disk, self.lengths = random.Random(1), MemoryDisk(), dict[int, float]()
        options = Options(lost_s=15.0, lease_s=12.0)
        nodes = [self.node(f"n{i}") for i in range(2)]
        self.fleet = Fleet(home, nodes, policy=policy, options=options, disk=self.disk)
        self.wide: list[int] = []
        self.first, self.ahead = -1, set[int]()
        self.clear_s: float | None = None
        self.late_s = 0.0

    def node(self, name: str) -> SimulatedAgent:
        return SimulatedAgent(NodeInfo(name, 2), lambda run: self.program(run), self.disk)

    def program(self, run: Run) -> Program:
        return Program(steps=self.lengths[run.job], plain=True, stop_s=1.0)

    def submit(self, gpus: int, length_s: float, **more: Any) -> int:
        job = {"command": ["train"], "gpus": gpus, "retries": 50, **more}
        (number,) = self.fleet.engine.submit([job], owner="ann", now_s=self.fleet.now_s)
        self.lengths[number] = length_s
        return number

    def submit_wide(self, gpus: int, **more: Any) -> None:
        self.wide.append(self.submit(gpus, 15.0, **more))

    def run(self, events: dict[float, Callable[[Stream], object]], pause_s: float) -> None:
        """Let the stream pass, and then all that waits; `events` by time, narrow jobs about each `pause_s`."""
        fleet, narrow_s = self.fleet, 0.0
        while fleet.now_s < STREAM_S or not self.over():
            fleet.now_s += TICK_S
            assert fleet.now_s < 5 * STREAM_S, "jobs wait for ever"
            if narrow_s <= fleet.now_s < STREAM_S:
                self.submit(1, self.draw.uniform(10.0, 60.0))
                narrow_s = fleet.now_s + self.draw.uniform(0.7, 1.3) * pause_s
            if fleet.now_s in events:
                events[fleet.now_s](self)
            fleet.sync()
            self.look()
        fleet.close()

    def phases(self) -> Any:
        controller = self.fleet.engine.state.controller
        return controller.job_store.columns["phase"][: controller.job_store.count]

    def over(self) -> bool:
        return not self.fleet.engine.state.pending and bool((self.phases() > Phase.RUNNING).all())

    def look(self) -> None:
        """How late the first of the queue is."""
        controller = self.fleet.engine.state.controller
        phases, columns, active = self.phases(), controller.job_store.columns, controller.active
        order = controller.plan.order
        if order is None:
            order = active[np.lexsort((active, -columns["priority"][active]))]
        waiting = order[phases[order] == Phase.WAITING]
        first = int(waiting[0]) if len(waiting) else -1
        if first < 0 or controller.cluster.gpus_up < columns["gpus"][first]:
            self.first = -1
            return
        if first != self.first:
            self.first, self.ahead = first, set(active[phases[active] == Phase.RUNNING].tolist())
            self.clear_s = None
        if any(phases[job] == Phase.RUNNING for job in self.ahead):
            return
        self.clear_s = self.fleet.now_s if self.clear_s is None else self.clear_s
        self.late_s = max(self.late_s, self.fleet.now_s - self.clear_s)


def submit(gpus: int, **more: Any) -> Callable[[Stream], None]:
    return lambda stream: stream.submit_wide(gpus, **more)


def both(*events: Callable[[Stream], object]) -> Callable[[Stream], None]:
    def each(stream: Stream) -> None:
        for event in events:
            event(stream)

    return each


def node(name: str, do: Callable[[SimulatedAgent, float], object]) -> Callable[[Stream], None]:
    return lambda stream: do(stream.fleet.agents[name], stream.fleet.now_s)


def join(stream: Stream) -> None:
    stream.fleet.agents["x0"] = stream.node("x0")


#: By name: what happens when, and how often a narrow job comes, seconds.
STREAMS: dict[str, tuple[dict[float, Callable[[Stream], object]], float]] = {
    "of all GPUs": ({60.0: submit(4, priority=5)}, 7.0),
    "of low priority": ({60.0: submit(4, priority=-3)}, 10.0),
    "of three sizes": ({60.0: both(submit(4, priority=5), submit(3, priority=4), submit(2, priority=5))}, 7.0),
    "while nodes come and go": (
        {
            40.0: both(submit(4, priority=5), submit(6, priority=5, wait_for_nodes=True)),
            60.0: node("n0", lambda agent, now: setattr(agent, "frozen", True)),
            69.0: node("n0", lambda agent, now: setattr(agent, "frozen", False)),
            90.0: node("n1", lambda agent, now: agent.crash(now)),
            110.0: both(node("n1", lambda agent, now: agent.start()), join),
            150.0: node("x0", lambda agent, now: agent.leave(now)),
            170.0: node("x0", lambda agent, now: (agent.kill(), agent.start())),
        },
        6.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("policy", ["plait", "tiresias-l", "muri-l", "srsf", "pollux", "antman"])
@pytest.mark.parametrize("name", STREAMS)
def test_the_first_of_the_queue_waits_for_those_that_ran_before_it_alone(
    name: str, policy: str, tmp_path: Path
) -> None:
    stream = Stream(tmp_path, policy)
    stream.run(*STREAMS[name])
    assert stream.wide
    assert stream.late_s <= LATE_S


def test_without_gpus_held_for_them_wide_jobs_wait_for_the_end_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "hold_back", lambda view, plan, preempts: plan)
    stream = Stream(tmp_path, "tiresias-l")
    stream.run(*STREAMS["of all GPUs"])
    assert stream.late_s > LATE_S


# -- The service holds GPUs for the first of the queue, explains that to both jobs, and counts what it costs ---

Make = Callable[..., Cluster]


def wide_behind_two(cluster: Make, policy: str = "tiresias-l", **options: object) -> Cluster:
    """Jobs 0 and 1 have run on two GPUs, 0 has just ended; 2 waits for both GPUs, 3 for one."""
    c = cluster((2,), policy=policy, **options, jobs=[{}, {}], then_s=2.2)
    c.submit({"gpus": 2, "priority": 5}, {}, then_s=2.2)
    c.nodes[0].end(0, then_s=3.3)
    return c


@pytest.mark.parametrize("policy", ["plait", "tiresias-l", "muri-l", "srsf", "fifo-backfill", "gandiva", "antman"])
def test_a_later_job_does_not_take_the_gpu_that_the_first_needs(cluster: Make, policy: str) -> None:
    c = wide_behind_two(cluster, policy)
    assert [c.state(job) for job in range(4)] == ["finished", "running", "waiting", "waiting"]
    c.nodes[0].end(1, then_s=3.3)
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
    c.restart(then_s=1.0)
    assert c.engine.status(c.now).reserved_idle_gpu_s >= before + 10.0


def test_a_size_that_could_only_start_on_held_gpus_is_not_offered(cluster: Make) -> None:
    c = wide_behind_two(cluster, "fifo-backfill")
    c.submit({"gpus": 2, "priority": 1}, then_s=2.2)
    what_if, found = WhatIfService(c.store), {}
    for job in (2, 4):
        _, question = what_if.explain(c.engine, job, c.now)
        assert question is not None
        answer = what_if.ask(question)
        found[job] = [one.text for one in answer.result(30.0) if one.change == "gpus"]
    assert found == {2: ["with 1 GPU it would start now"], 4: []}


def test_a_cancelled_wide_job_gives_its_gpus_up(cluster: Make) -> None:
    c = wide_behind_two(cluster)
    c.engine.cancel(2, c.now)
    c.pass_s(2.2)
    assert c.state(3) == "running"
    assert c.engine.status(c.now).gpus.reserved_idle == 0
