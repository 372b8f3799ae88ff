"""`plait up --backend ray` on a real Ray cluster of a head and four nodes, all of whose parts are killed in turn."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra [live]")
pytest.importorskip("torch", reason="the jobs are real training: needs the extra [torch]")

import test_chaos as chaos

from plait.cli.stopping import job_processes, kill_jobs
from plait.core.errors import InputError
from plait.forecast.replayed import replay, stored_rows
from plait.live.agent import procs
from plait.live.backends.ray import RayBackend
from plait.live.backends.ray_local import HEAD, Member, RayCluster
from plait.live.client import Client
from plait.live.layout import Layout
from plait.live.store import Store

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'plait[ray]'"
    ),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux"),
    pytest.mark.xdist_group("ray"),
]

PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")
JOBS, NODES, SLOTS, LOST_S, PATIENCE_S = 20, 4, 4, 4, 180.0
#: Ray's own is a minute: it is to find out within the test. Never so tight where people work.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class World:
    """A Ray cluster, and plait on it, in one home folder."""

    def __init__(self, home: Path) -> None:
        self.layout = Layout(home.resolve())
        self.ray = RayCluster(self.layout)

    def __call__(self, *words: object) -> str:
        env = {k: v for k, v in os.environ.items() if k not in ("PLAIT_URL", "PLAIT_TOKEN")}
        done = subprocess.run(
            [*PLAIT, *map(str, words)], env=env | {"PLAIT_HOME": str(self.layout.home)},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"plait {words}: {done.stdout}{done.stderr}{self.said()}"
        return done.stdout + done.stderr

    def said(self) -> str:
        path = self.layout.home / "keeper.log"
        return path.read_text() if path.exists() else ""

    def member(self, name: str) -> Member:
        return next(member for member in self.ray.members() if member.name == name)

    def executor(self, name: str) -> int | None:
        return next((pid for pid in self.member(name).pids if title(pid).startswith("ray::Executor")), None)

    def agent(self, name: str) -> int | None:
        pid = (procs.read_json(self.layout.node(name) / "agent.json") or {}).get("pid")
        return pid if isinstance(pid, int) and procs.start_time(pid) is not None else None

    def agents(self) -> list[int | None]:
        return [self.agent(f"n{i}") for i in range(NODES)]

    def states(self) -> Counter[str]:
        return Counter(state for _, _, state, _ in chaos._jobs(self.layout.database))

    def close(self) -> None:
        subprocess.run(
            [*PLAIT, "down", "--stop-jobs", "--home", str(self.layout.home)], capture_output=True, check=False
        )
        kill_jobs(self.layout)
        self.ray.down()


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def until(true: Callable[[], object], what: str, world: World, patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > end:
            members = [(m.name, m.alive, len(m.pids)) for m in world.ray.members()]
            pytest.fail(f"waited {patience_s:g} s for {what}: {world.states()}, {members}\n{world.said()}")
        time.sleep(0.1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name, value in HEALTH.items():
        monkeypatch.setenv(name, value)
    world = World(tmp_path / "home")
    try:
        world.ray.up(NODES, SLOTS)
        yield world
    finally:
        world.close()


def test_no_job_is_lost_whatever_part_of_ray_is_killed(world: World, tmp_path: Path) -> None:
    world(
        "up", "--backend", "ray", "--address", world.ray.address, "--policy", "muri-l", "--round", 1, "--lost", LOST_S
    )
    out = tmp_path / "out"
    out.mkdir()
    shapes = [(width, 0) for width in range(8, 0, -1)] + [(1 + i % 2, 1) for i in range(JOBS - 8)]
    with Client.at(str(world.layout.home)) as client:
        client.submit([
            {
                "name": f"ray-{i}",
                "command": [sys.executable, str(chaos.SCRIPT), str(out), str(seed), "0.3"],
                "gpus": width, "retries": 100, "checkpoint_s": 0.5, "profile": chaos.MIXES[i % len(chaos.MIXES)],
            }
            for i, (width, seed) in enumerate(shapes)
        ])  # fmt: skip
    until(lambda: world.states()["running"] > 1, "jobs to run", world)
    executor_dies(world)
    agent_dies(world)
    raylet_dies(world)
    raylet_hangs(world)
    head_dies(world)
    until(lambda: world.states()["finished"] == JOBS, "all jobs to finish", world, 400.0)
    world("down", "--stop-jobs")
    assert world.agents() == [None] * NODES
    assert job_processes(world.layout) == {}
    assert [world.executor(f"n{i}") for i in range(NODES)] == [None] * NODES
    check_log(world)
    check_weights(world, out, shapes, tmp_path / "alone")


def executor_dies(world: World) -> None:
    """The agent goes on, and Ray's next executor finds it."""
    until(lambda: world.executor("n0"), "an executor", world)
    executor, agent = world.executor("n0"), world.agent("n0")
    assert executor is not None
    os.kill(executor, signal.SIGKILL)
    until(lambda: world.executor("n0") not in (None, executor), "another executor", world)
    assert world.agent("n0") == agent


def agent_dies(world: World) -> None:
    """Its executor starts another."""
    agent = world.agent("n3")
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    until(lambda: world.agent("n3") not in (None, agent), "another agent", world)


def raylet_dies(world: World) -> None:
    """The agent outlives raylet and executor; when the node is back the same agent is attached again."""
    raylet, agent = world.member("n1").pid("raylet"), world.agent("n1")
    assert raylet is not None
    os.kill(raylet, signal.SIGKILL)
    until(lambda: "Ray says that n1 is dead" in world.said(), "Ray to notice", world)
    until(lambda: world.executor("n1") is None, "the executor to follow its raylet", world)
    assert world.agent("n1") == agent
    assert "n1" in world.ray.up()
    until(lambda: world.executor("n1"), "an executor on the node that is back", world)
    assert world.agent("n1") == agent


def raylet_hangs(world: World) -> None:
    """Ray takes the node for dead; its agent still speaks, so nobody takes its jobs away."""
    raylet, agent = world.member("n2").pid("raylet"), world.agent("n2")
    assert raylet is not None
    os.kill(raylet, signal.SIGSTOP)
    until(lambda: "Ray says that n2 is dead" in world.said(), "Ray to take it for dead", world)
    time.sleep(LOST_S)
    with Client.at(str(world.layout.home)) as client:
        assert {node["id"]: node["state"] for node in client.nodes()}["n2"] == "ready"
    os.kill(raylet, signal.SIGCONT)  # finds that it was declared dead, and ends
    until(lambda: not world.member("n2").alive, "the raylet to end", world)
    assert "n2" in world.ray.up()
    until(lambda: world.executor("n2"), "an executor on the node that is back", world)
    assert world.agent("n2") == agent


def head_dies(world: World) -> None:
    """Jobs and agents go on without a head; one at the same address is found and everything attached to it."""
    gcs, agents = world.member(HEAD).pid("gcs_server"), world.agents()
    assert gcs is not None
    os.kill(gcs, signal.SIGKILL)
    until(lambda: "jobs go on" in world.said(), "the keeper to notice", world)
    assert world.agents() == agents
    assert HEAD in world.ray.up()
    until(lambda: "is back" in world.said(), "the keeper to find the head", world)
    until(lambda: all(world.executor(f"n{i}") for i in range(NODES)), "executors on all nodes", world)
    assert world.agents() == agents


def check_log(world: World) -> None:
    """Each job finished exactly once, and every decision is derived again."""
    store = Store.open(world.layout.database)
    try:
        finished: Counter[int] = Counter()
        for row in store.entries():
            event = json.loads(row.entry)
            if event["type"] == "JobFinished":
                finished.update(event["jobs"])
        assert finished == Counter(range(JOBS))
        assert replay(stored_rows(store)).difference is None
    finally:
        store.close()


def check_weights(world: World, out: Path, shapes: list[tuple[int, int]], alone: Path) -> None:
    undisturbed = chaos.Undisturbed(alone)
    try:
        for shape in dict.fromkeys(shapes):
            undisturbed.start(*shape)
            undisturbed.weights(*shape)
        for number, shape in enumerate(shapes):
            for rank, right in enumerate(undisturbed.weights(*shape)):
                written = list(out.glob(f"j-{number}-e*-r{rank}.bin"))
                assert written, f"job {number} rank {rank} has finished and left no weights"
                assert [path.name for path in written if path.read_bytes() != right] == []
    finally:
        undisturbed.close()


def test_without_a_head_it_says_so_at_once(tmp_path: Path) -> None:
    backend = RayBackend(Layout(tmp_path), {"address": "127.0.0.1:1"}, 1.0)
    with pytest.raises(InputError, match=r"no head of a Ray cluster answers at 127\.0\.0\.1:1 .*plait ray up"):
        backend.start()
