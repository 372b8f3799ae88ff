"""Agents on this machine: started, kept over the service's life, started again, ended with or without jobs."""

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from agent_world import TOKEN, World, until

from plait.core.errors import InputError
from plait.live.agent.monitor import Gpu
from plait.live.backends import local
from plait.live.backends.base import UP
from plait.live.backends.local import LocalBackend, LocalNode, Machine, detect, divide
from plait.live.layout import Layout, make_private
from plait.live.system import procs

PATIENT = "import time\nprint('ready')\nwhile True: time.sleep(0.01)\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "home")
    (make_private(world.layout.node("n1")) / "enrol").write_text(TOKEN)
    yield world
    LocalBackend(world.layout, cuda=False).stop(jobs=True)
    world.close()


def pids(backend: LocalBackend) -> list[int | None]:
    return [node.pid for node in backend.list_nodes()]


def run(backend: LocalBackend) -> None:
    until(lambda: all(node.state == UP for node in backend.list_nodes()), "all agents to run")


def test_agents_outlive_the_backend_that_started_them(world: World) -> None:
    first = LocalBackend(world.layout, nodes=2, gpus_per_node=3, cuda=False)
    assert first.start() == ["n0", "n1"]
    run(first)
    assert {told.node.id for told in until(lambda: len(world.service.told) > 3 and world.service.told, "words")}
    second = LocalBackend(world.layout, nodes=2, gpus_per_node=3, cuda=False)
    assert second.start() == []
    assert pids(first) == pids(second)
    assert len(set(pids(first))) == 2
    assert [os.getsid(pid) for pid in pids(first) if pid] == pids(first)
    first.stop(jobs=True)
    assert pids(second) == [None, None]


def test_dead_agents_are_started_again_and_jobs_go_on(world: World) -> None:
    backend = LocalBackend(world.layout, nodes=1, gpus_per_node=2, cuda=False)
    backend.start()
    world.starts(world.python(1, PATIENT))
    runner, agent = world.runner(1), pids(backend)[0]
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    until(backend.maintain, "another agent to be started")
    run(backend)
    assert pids(backend)[0] != agent
    assert backend.maintain() == []
    world.service.told.clear()
    world.service.wait(1, "running")
    assert world.runner(1) == runner
    assert procs.start_time(runner) is not None
    backend.stop(jobs=False)
    assert procs.start_time(runner) is not None  # nobody runs the node, and the job goes on
    backend.stop(jobs=True)
    assert procs.start_time(runner) is None


def test_another_size_replaces_the_agent_and_nodes_that_are_no_more_end(world: World) -> None:
    old = LocalBackend(world.layout, nodes=2, gpus_per_node=2, cuda=False)
    old.start()
    run(old)
    before = pids(old)
    new = LocalBackend(world.layout, nodes=1, gpus_per_node=4, cuda=False)
    assert new.start() == ["n0"]
    run(new)
    assert pids(new)[0] not in before
    assert pids(old)[1] is None


def test_another_size_waits_for_jobs_that_run_and_not_for_those_that_ended_without_an_agent(world: World) -> None:
    old = LocalBackend(world.layout, nodes=1, gpus_per_node=2, cuda=False)
    old.start()
    go = world.layout.home / "go"
    code = f"import os, time\nprint('ready')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    world.starts(world.python(1, code))
    runner = world.runner(1)
    old.stop(jobs=False)
    new = LocalBackend(world.layout, nodes=1, gpus_per_node=3, cuda=False)
    with pytest.raises(InputError, match="node n0 has 2 slots and still runs jobs, so it cannot have 3 now"):
        new.start()
    go.touch()
    until(lambda: procs.start_time(runner) is None, "the end of the job")
    assert new.start() == ["n0"]
    assert world.service.wait(1, "ended").exit_code == 0


def test_a_stopped_agent_is_ended_too(world: World) -> None:
    backend = LocalBackend(world.layout, nodes=1, cuda=False)
    backend.start()
    run(backend)
    agent = pids(backend)[0]
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)
    backend.stop(jobs=True)
    assert procs.start_time(agent) is None


def test_gpus_are_divided_and_too_many_are_refused() -> None:
    four = Machine(tuple(Gpu(i, "H200", 1e11) for i in range(4)), 16.0)
    assert divide(four, None, None, None) == [LocalNode("n0", 4, (0, 1, 2, 3))]
    assert [node.cuda for node in divide(four, 2, 1, None)] == [(0,), (1,)]
    assert [node.gpus for node in divide(four, 3, 2, False)] == [2, 2, 2]
    for nodes, each in ((3, 2), (5, None)):
        with pytest.raises(InputError, match=r"this machine has 4\. Give fewer, or --fake"):
            divide(four, nodes, each, True)
    with pytest.raises(InputError, match="0 nodes; needs 1 to 1024"):
        divide(four, 0, None, None)
    with pytest.raises(InputError, match="this machine has 0"):
        divide(Machine((), 2.0), 1, 1, True)


def test_this_machine_can_run_agents() -> None:
    machine = detect()
    assert machine.problem is None
    assert machine.cores > 0


def test_whoever_stops_says_how_long_jobs_may_take(world: World) -> None:
    LocalBackend(world.layout, nodes=1, cuda=False, stop_grace_s=600.0).start()
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PATIENT
    world.starts(world.python(1, stubborn, grace_s=600.0))
    LocalBackend(world.layout, nodes=1, cuda=False, stop_grace_s=0.2).stop(jobs=True)
    record = procs.read_json(world.folder(1) / "exit.json")
    assert record["reason"] == "did not end within 0.2 s after SIGTERM, so it was killed"


def test_an_agent_that_dies_at_once_is_started_later_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LocalBackend(Layout(tmp_path), nodes=1, cuda=False)
    clock, starts = [1000.0], []
    monkeypatch.setattr(local.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(backend, "ensure_node_agent", lambda name: True)
    for _ in range(600):
        if backend.maintain():
            starts.append(clock[0])
        clock[0] += 0.1
    gaps = [round(later - before, 3) for before, later in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(10.0, abs=0.2)
