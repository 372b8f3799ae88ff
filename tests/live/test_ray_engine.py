"""`plait up --backend ray` on a real Ray cluster of a head and four nodes, whose parts are killed while jobs run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_chaos as chaos
from small_ray import SmallRay, title, why_not

from plait.core.errors import InputError
from plait.live.api.jobs import JobRow
from plait.live.backends.ray.backend import RayBackend
from plait.live.backends.ray.local_cluster import HEAD
from plait.live.client.client import Client
from plait.live.layout import Layout
from plait.live.store import Store
from plait.live.supervisor.down import job_processes, kill_jobs
from plait.live.system import procs
from plait.outlook.log_replay import replay, stored_rows

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.xdist_group("ray"),
]

PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")
NODES, SLOTS, LOST_S, PATIENCE_S = 4, 4, 25, 240.0
#: Ranks and seed of each of 20 jobs.
SHAPES = [(8, 0), (4, 0), (3, 0), (2, 0), (2, 0), *((1, i % 2) for i in range(15))]
#: Seconds between iterations, of 36, of every other job: some end between the faults, the others after them.
PAUSES_S = (4.0, 0.5)

#: Jobs have GPUs and machines of their own elsewhere: here they leave Ray some of the few cores that all share.
GENTLY = ("nice", "-n", "5")


class World:
    """A Ray cluster, and plait on it, in one home folder."""

    def __init__(self, home: Path) -> None:
        self.layout = Layout(home.resolve())
        self.ray = SmallRay(self.layout, SLOTS)
        self.names = [f"n{i}" for i in range(NODES)]

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

    def executors(self) -> list[int | None]:
        return [self.ray.executor(name) for name in self.names]

    def attached(self, at: int) -> set[str]:
        """The nodes that the keeper has said to be attached, from there on."""
        return {name for names in re.findall(r"attached: ([\w, ]+)", self.said()[at:]) for name in names.split(", ")}

    def agent(self, name: str) -> int | None:
        pid = (procs.read_json(self.layout.node(name) / "agent.json") or {}).get("pid")
        return pid if isinstance(pid, int) and procs.start_time(pid) is not None else None

    def agents(self) -> list[int | None]:
        return [self.agent(name) for name in self.names]

    def states(self) -> Counter[str]:
        return Counter(state for _, _, state, _ in chaos._jobs(self.layout.database))

    def nodes(self) -> dict[str, str]:
        with Client.at(str(self.layout.home)) as client:
            return {node.id: node.state for node in client.nodes()}

    def running(self) -> list[JobRow]:
        with Client.at(str(self.layout.home)) as client:
            return [job for job in client.jobs(limit=100) if job.state == "running"]

    def at_work(self) -> set[str]:
        return {node for job in self.running() if job.iterations_done for node in job.nodes}

    def steps(self) -> float:
        return sum(job.iterations_done for job in self.running())

    def close(self) -> None:
        subprocess.run(
            [*PLAIT, "down", "--stop-jobs", "--may-lose-work", "--home", str(self.layout.home)],
            capture_output=True,
            check=False,
        )
        kill_jobs(self.layout)
        self.ray.down()


def until(true: Callable[[], object], what: str, world: World, patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > end:
            members = [(m.name, m.alive, len(m.pids)) for m in world.ray.cluster.members()]
            pytest.fail(f"waited {patience_s:g} s for {what}: {world.states()}, {members}\n{world.said()}")
        time.sleep(0.2)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "home")
    try:
        world.ray.up(NODES)
        yield world
    finally:
        world.close()


def test_no_job_is_lost_whatever_part_of_ray_is_killed(world: World, tmp_path: Path) -> None:
    world(
        "up", "--backend", "ray", "--address", world.ray.address, "--policy", "muri-l", "--round", 5, "--lost", LOST_S
    )
    out = tmp_path / "out"
    out.mkdir()
    with Client.at(str(world.layout.home)) as client:
        client.submit([
            {
                "name": f"ray-{i}",
                "command": [*GENTLY, sys.executable, str(chaos.SCRIPT), str(out), str(seed), str(PAUSES_S[i % 2])],
                "gpus": width, "retries": 100, "checkpoint_s": 0.5, "profile": chaos.MIXES[i % len(chaos.MIXES)],
            }
            for i, (width, seed) in enumerate(SHAPES)
        ])  # fmt: skip
    until(lambda: world.at_work() >= set(world.names), "jobs to run on all nodes", world)
    parts_of_nodes_die(world)
    until(lambda: len(world.at_work()) > 1, "jobs to run on several nodes again", world)
    head_dies(world)
    assert world.states()["running"] > 0
    (out / "hurry").touch()
    until(lambda: world.states()["finished"] == len(SHAPES), "all jobs to finish", world)
    world("down", "--stop-jobs", "--may-lose-work")
    assert world.agents() == [None] * NODES
    assert job_processes(world.layout) == {}
    assert world.executors() == [None] * NODES
    check_log(world)
    check_weights(out, tmp_path / "alone")


def parts_of_nodes_die(world: World) -> None:
    """On each node another part, all at once. What runs beside it goes on, and what died is started again.

    The executor of n0, the raylet of n1, and the agent of n3; the raylet of n2 hangs, so that Ray takes the node for
    dead, but its agent still speaks, so that nobody takes its jobs away.
    """
    until(lambda: all(world.executors()), "executors on all nodes", world)
    executor, agents = world.ray.executor("n0"), world.agents()
    assert executor is not None
    assert agents[3] is not None
    hangs = world.ray.pid("n2", "raylet")
    os.kill(hangs, signal.SIGSTOP)
    os.kill(world.ray.pid("n1", "raylet"), signal.SIGKILL)
    os.kill(executor, signal.SIGKILL)
    os.kill(agents[3], signal.SIGKILL)
    until(lambda: "Ray reports that n1 is dead" in world.said(), "Ray to notice the dead raylet", world)
    until(lambda: "Ray reports that n2 is dead" in world.said(), "Ray to take the raylet that hangs for dead", world)
    time.sleep(LOST_S)
    until(lambda: world.nodes() == dict.fromkeys(world.names, "ready"), "all agents to speak", world)
    until(lambda: world.ray.executor("n1") is None, "the executor to follow its raylet", world)
    until(lambda: world.ray.executor("n0") not in (None, executor), "another executor", world)
    until(lambda: world.agent("n3") not in (None, agents[3]), "another agent", world)
    os.kill(hangs, signal.SIGCONT)  # finds that it was declared dead, and ends
    until(lambda: not world.ray.member("n2").alive, "the raylet to end", world)
    assert world.ray.up() == ["n1", "n2"]
    until(lambda: all(world.executors()), "executors on the nodes that are back", world)
    assert world.agents()[:3] == agents[:3]


def head_dies(world: World) -> None:
    """Jobs and agents go on without a head; one at the same address is found and everything attached to it."""
    agents = world.agents()
    os.kill(world.ray.pid(HEAD, "gcs_server"), signal.SIGKILL)
    until(lambda: "jobs go on" in world.said(), "the keeper to notice", world)
    made, finished = world.steps(), world.states()["finished"]
    until(lambda: world.steps() > made or world.states()["finished"] > finished, "steps without a head", world)
    assert world.agents() == agents
    at = len(world.said())
    assert world.ray.up() == [HEAD, *world.names]
    until(lambda: world.attached(at) == set(world.names), "all nodes to be attached again", world)
    until(lambda: all(world.executors()), "executors on all nodes", world)
    assert world.agents() == agents


def check_log(world: World) -> None:
    """Each job finished exactly once, no node was ever taken for lost, and every decision is derived again."""
    store = Store.open(world.layout.database)
    try:
        finished: Counter[int] = Counter()
        for row in store.entries():
            event = json.loads(row.entry)
            assert event["type"] != "NodeLost", event
            if event["type"] == "JobFinished":
                finished.update(event["jobs"])
        assert finished == Counter(range(len(SHAPES)))
        assert replay(stored_rows(store)).difference is None
    finally:
        store.close()


def check_weights(out: Path, alone: Path) -> None:
    undisturbed = chaos.Undisturbed(alone)
    try:
        for shape in dict.fromkeys(SHAPES):
            undisturbed.start(*shape)
            undisturbed.weights(*shape)
        for number, shape in enumerate(SHAPES):
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


def test_nodes_are_requested_from_rays_autoscaler_and_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The autoscaler of the head has n0 always, and n1 if it is requested and not idle."""
    world.ray.down()
    cluster, node = world.ray.cluster, {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 1}
    start, flags = cluster._start, ("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check")

    def start_head(what: dict[str, list[str]]) -> None:
        labels = [{"plait/node": f"n{i}", "plait/slots": "2"} for i in range(2)]
        kinds = {f"kind{i}": node | {"min_workers": 1 - i, "labels": labels[i]} for i in range(2)}
        lists = ("setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray", "initialization")
        config = {
            "cluster_name": "rented", "max_workers": 2, "idle_timeout_minutes": 0.05, "upscaling_speed": 1.0,
            "provider": dict.fromkeys((*flags, "foreground_node_launch"), True)
            | {"type": "fake_multinode", "gcs_address": world.ray.address},
            "available_node_types": kinds | {"head": node | {"resources": {"CPU": 0}, "max_workers": 0}},
            "head_node_type": "head", "auth": {}, "docker": {}, "file_mounts": {}, "cluster_synced_files": [],
            **{f"{name}_commands": [] for name in lists},
        }  # fmt: skip
        file = cluster.folder / "rented.json"
        file.write_text(json.dumps(config))
        start({HEAD: [*what[HEAD], "--autoscaling-config", str(file)]} if HEAD in what else {})

    monkeypatch.setattr(cluster, "_start", start_head)
    monkeypatch.setenv("RAY_FAKE_CLUSTER", "1")
    monkeypatch.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "1")
    world.ray.up()
    world("up", "--backend", "ray", "--address", world.ray.address, "-o", "max-nodes=2", "-o", "idle=3", "--round", 0.5)
    for turn in range(2):
        with Client.at(str(world.layout.home)) as client:
            client.submit([{"command": ["sleep", "1000"], "gpus": 2} for _ in range(2 - turn)])
            until(lambda: len({node for job in world.running() for node in job.nodes}) == 2, "two nodes", world)
            client.cancel(next(job.id for job in world.running() if job.nodes == ["n1"]))
        until(lambda: list(world.nodes()) == ["n0"], "n1 to be given back", world)
        until(lambda: sum("raylet/raylet" in title(pid) for pid in world.ray.member(HEAD).pids) == 2, "n1's end", world)
