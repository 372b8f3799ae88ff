"""The small Ray cluster of a home, with processes that only bear the names of Ray's."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.live.backends.ray import local_cluster
from plait.live.backends.ray.local_cluster import HEAD, RayCluster
from plait.live.layout import Layout
from plait.live.system import procs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
#: Plays `ray start`: leaves processes of Ray's names behind in its session, and ends. The last words are its options.
START = """
import os, subprocess, sys
words, names = sys.argv[1:], ["raylet"]
if os.environ.get("RAY_AUTH_MODE") != "token" or os.environ.get("RAY_ADDRESS"): sys.exit(4)
name = "head" if "--head" in words else words[words.index("--labels") + 1].split(",")[0].removeprefix("plait/node=")
folder = os.environ["PLAIT_TEST_FOLDER"]
with open(f"{folder}/{name}.tries", "a") as file: file.write(" ".join(words) + "\\n")
if os.path.exists(f"{folder}/{name}.fails"):
    os.remove(f"{folder}/{name}.fails")
    sys.exit(3)
temp = words[words.index("--temp-dir") + 1]
for name in names + ["gcs_server"] * ("--head" in words):
    trap = "trap '' TERM; " if os.path.exists(f"{folder}/deaf") else ""
    # It waits for itself to write, without a child: one that had just been forked would bear the name a moment longer.
    ours, its = os.pipe()
    made = subprocess.Popen([name, "-c", trap + "read word", temp], executable="/bin/sh", stdin=ours, pass_fds=[its],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not open(f"/proc/{made.pid}/cmdline").read(): pass  # a moment after it began it has no name yet
"""


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    module = ModuleType("ray")
    module.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", module)
    fake = tmp_path / "fake" / "ray" / "scripts"
    fake.mkdir(parents=True)
    for folder in (fake.parent, fake):
        (folder / "__init__.py").touch()
    (fake / "scripts.py").write_text(START)
    monkeypatch.setenv("PYTHONPATH", f"{fake.parent.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("PLAIT_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "of another cluster")
    monkeypatch.setattr(local_cluster, "_STOP_S", 0.5)
    layout = Layout(tmp_path / "home")
    yield layout
    RayCluster(layout).down()


def tries(layout: Layout, name: str) -> list[str]:
    """The options of each `ray start` of a node."""
    path = layout.home.parent / f"{name}.tries"
    return path.read_text().splitlines() if path.exists() else []


def kill(cluster: RayCluster, name: str, program: str) -> None:
    pid = next(member for member in cluster.members() if member.name == name).pid(program)
    assert pid is not None
    process = procs.Process.of(pid)
    assert process is not None
    os.kill(pid, signal.SIGKILL)
    while process.alive:
        pass


def test_what_was_started_is_found_again_and_ended(layout: Layout) -> None:
    cluster = RayCluster(layout)
    assert (cluster.members(), cluster.address) == ([], "")
    assert cluster.up(2, 3) == [HEAD, "n0", "n1"]
    again = RayCluster(layout)
    assert [(member.name, member.alive) for member in again.members()] == [(HEAD, True), ("n0", True), ("n1", True)]
    assert again.address == cluster.address
    assert f"--port {again.address.partition(':')[2]} " in tries(layout, HEAD)[0]
    assert f"--address {again.address} " in tries(layout, "n1")[0]
    assert "--labels plait/node=n1,plait/slots=3 " in tries(layout, "n1")[0]
    assert cluster.token_file.stat().st_mode & 0o777 == 0o600
    assert again.up() == []  # everything lives
    pids = [pid for member in again.members() for pid in member.pids]
    assert again.down() == [HEAD, "n0", "n1"]
    assert [pid for pid in pids if procs.start_time(pid) is not None] == []
    assert (again.members(), again.down()) == ([], [])


def test_a_node_that_died_comes_back_alone(layout: Layout) -> None:
    cluster = RayCluster(layout)
    cluster.up(2)
    kill(cluster, "n1", "raylet")
    assert [member.alive for member in cluster.members()] == [True, True, False]
    assert cluster.up() == ["n1"]
    assert [len(tries(layout, name)) for name in (HEAD, "n0", "n1")] == [1, 1, 2]


@pytest.mark.parametrize("program", ["gcs_server", "raylet"])
def test_a_head_of_which_a_part_died_comes_back_at_its_address_with_all_nodes(layout: Layout, program: str) -> None:
    cluster = RayCluster(layout)
    cluster.up(1)
    address = cluster.address
    kill(cluster, HEAD, program)
    assert RayCluster(layout).up() == [HEAD, "n0"]
    assert RayCluster(layout).address == address


def test_a_smaller_cluster_stays_smaller(layout: Layout) -> None:
    RayCluster(layout).up(2)
    assert RayCluster(layout).up(1) == []
    cluster = RayCluster(layout)
    assert [member.name for member in cluster.members()] == [HEAD, "n0"]
    assert cluster.up() == []


def test_a_node_that_fails_is_tried_once_more(layout: Layout) -> None:
    (layout.home.parent / "n0.fails").touch()
    assert RayCluster(layout).up(1) == [HEAD, "n0"]
    assert [len(tries(layout, name)) for name in (HEAD, "n0")] == [1, 2]


def test_a_node_that_fails_twice_is_named(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_TEST_FOLDER", "/nowhere")
    with pytest.raises(InputError, match=r"the Ray node head ended with exit code 1; look at .*head\.log"):
        RayCluster(layout).up(1)


def test_after_a_head_that_failed_all_nodes_are_started_still(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PLAIT_TEST_FOLDER", "/nowhere")
        with pytest.raises(InputError, match="the Ray node head"):
            RayCluster(layout).up(3)
    assert RayCluster(layout).up() == [HEAD, "n0", "n1", "n2"]


def test_those_that_do_not_listen_are_killed(layout: Layout) -> None:
    (layout.home.parent / "deaf").touch()
    cluster = RayCluster(layout)
    cluster.up(1)
    assert cluster.down() == [HEAD, "n0"]
    assert cluster.members() == []


def test_a_session_that_has_become_somebody_elses_is_left_alone(layout: Layout) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        facts: dict[str, Any] = {"boot": procs.boot_id(), "temp": "/tmp/plait-ray-none", "nodes": {HEAD: stranger.pid}}
        (layout.home / "ray").mkdir(parents=True)
        procs.write_json(layout.home / "ray" / "cluster.json", facts)
        cluster = RayCluster(layout)
        assert [(member.name, member.pids) for member in cluster.members()] == [(HEAD, ())]
        assert cluster.down() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        assert local_cluster._free_port(port) > port


@pytest.mark.parametrize("has_client", [True, False])
def test_the_clients_server_gets_a_port_only_where_ray_was_installed_with_it(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_client: bool
) -> None:
    monkeypatch.setattr(local_cluster, "_has_client", lambda: has_client)
    RayCluster(layout).up(1)
    assert ("--ray-client-server-port" in (tmp_path / "head.tries").read_text()) == has_client
