"""Notifications of a real service: none twice and none lost silently, although it is killed while it sends one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster_shell import Shell

from plait.live.supervisor.services import service_process

pytestmark = pytest.mark.engines


def pid(plait: Shell) -> int:
    """The process of the service; 0 while there is none."""
    found = service_process(plait.layout)
    return 0 if found is None else found.pid


def test_a_service_that_is_killed_while_it_sends_sends_nothing_twice(plait: Shell, tmp_path: Path) -> None:
    got, slow, file = tmp_path / "got", tmp_path / "slow", tmp_path / "notify.toml"
    slow.touch()
    program = f"cat >> {got}; echo >> {got}; while [ -e {slow} ]; do sleep 0.1; done"
    command = json.dumps(["bash", "-c", program])
    file.write_text(f"[desk]\ncommand = {command}\nevents = ['started', 'finished']\n")

    def told() -> list[tuple[str, str]]:
        lines = got.read_text().splitlines() if got.exists() else []
        return [(one["job"], one["event"]) for line in lines if (one := json.loads(line))]

    plait("up", "--nodes", 1, "--gpus-per-node", 2, "--fake", "--round", 0.2, "--notify", file)
    assert "no such channel; did you mean 'desk'?" in plait("submit", "--notify", "disk", "--", "true", code=2)
    first = plait.submit("--", "true")
    plait.comes(lambda: told() == [(first, "started")])
    old = pid(plait)
    os.kill(old, signal.SIGKILL)  # its try has not ended
    plait.comes(lambda: pid(plait) not in (0, old))
    slow.unlink()
    plait.comes(lambda: told() == [(first, "started"), (first, "finished")])
    events: list[dict[str, Any]] = [json.loads(line)["event"] for line in plait("events", "--json").splitlines()]
    (lost,) = [one for one in events if one["type"] == "Undelivered"]
    assert (lost["channel"], lost["event"]) == ("desk", "started")
    plait("down")
    plait("up")
    second = plait.submit("--", "true")
    plait.comes(lambda: told()[2:] == [(second, "started"), (second, "finished")])
