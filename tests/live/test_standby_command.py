"""`plait up --standby` as a user sees it: it takes over, is kept up, and comes back as it was."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest
from cluster_shell import Shell

from plait.live.discovery import records
from plait.live.supervisor.services import process_of, processes

pytestmark = pytest.mark.engines


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(plait: Shell, name: str, number: int = signal.SIGKILL) -> None:
    """End a service as a crash would, or as for an upgrade; its keeper starts it again."""
    old = processes(plait.layout)[name].pid
    os.kill(old, number)
    plait.comes(lambda: (now := processes(plait.layout).get(name)) is not None and now.pid != old)


def role(plait: Shell, name: str) -> str | None:
    record = records(plait.layout).get(name, {})
    return record["role"] if process_of(record) else None


def test_it_takes_over_is_kept_and_comes_back_as_it_was(plait: Shell, postgres: Callable[[], str]) -> None:
    ports = {"1": free_port(), "2": free_port()}
    words = ("--nodes", 1, "--gpus-per-node", 2, "--fake", "--policy", "fifo", "--round", 0.2, "--port", ports["1"])
    assert "--db postgresql://host/name" in plait("up", "--standby", code=2)
    plait("up", "--db", postgres(), *words)
    assert f"standby service runs at http://127.0.0.1:{ports['2']};" in plait("up", "--standby", "--port", ports["2"])
    assert "runs already" in plait("up", "--standby", code=2)
    assert f"cannot listen on port {ports['2']}" in plait(
        "up", "--standby", "--name", "c", "--port", ports["2"], code=2
    )
    job = plait.submit("--", "sleep", 600)
    plait.until(job, "running")

    kill(plait, "2")
    kill(plait, "2", signal.SIGTERM)
    assert records(plait.layout)["2"]["url"].endswith(f":{ports['2']}")
    kill(plait, "1")
    plait.comes(lambda: (role(plait, "1"), role(plait, "2")) == ("standby", "leader"))
    assert {name: int(r["url"].rpartition(":")[2]) for name, r in records(plait.layout).items()} == ports
    assert plait.until(job, "running")["epoch"] == 1

    assert "2 services are stopped" in plait("down")
    plait("up")
    assert f"standby service runs at http://127.0.0.1:{ports['2']};" in plait("up", "--standby")
    assert role(plait, "1") == "leader"
    assert plait.until(job, "running")["starts"] == 1
