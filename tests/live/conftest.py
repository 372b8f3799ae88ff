"""A cluster for each test, of which nothing is left afterwards."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from agent_world import World

#: Agents need Linux, their jobs are real trainings, and switches without compiled kernels take minutes to start.
if not sys.platform.startswith("linux") or not all(find_spec(name) for name in ("starlette", "torch", "numba")):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def plait(tmp_path: Path) -> Iterator[object]:
    """A `Shell` on a home folder of its own; its cluster is ended afterwards, jobs included."""
    from cluster_shell import Shell

    from plait.live.supervisor.down import job_processes
    from plait.live.supervisor.services import processes
    from plait.live.system import modules

    shell = Shell(tmp_path / "home")
    yield shell
    shell("down", "--stop-jobs", "--may-lose-work")
    assert job_processes(shell.layout) == {}
    assert processes(shell.layout) == {}
    for module in (modules.SERVICE, modules.AGENT, modules.KEEPER):
        assert modules.of_home(shell.layout.home, module) == []
    assert not shell.layout.gates.exists()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "home")
    yield world
    world.close()


@pytest.fixture
def started(world: World) -> World:
    """A world whose agent runs."""
    return world.start()
