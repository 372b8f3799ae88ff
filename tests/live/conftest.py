"""A cluster for each test, of which nothing is left afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


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
