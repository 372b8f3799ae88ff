"""A Ray cluster on this machine for tests: real `ray start` processes, whose parts can be killed one by one."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from plait.live.backends.ray.local_cluster import RayCluster, RayProcessGroup
from plait.live.layout import Layout
from plait.live.system import procs

#: Ray's own is a minute: it is to find out within the test. Never so tight where people work.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


def why_not() -> str | None:
    if not sys.platform.startswith("linux"):
        return "agents need Linux"
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install 'plait[ray]'"
    return None


class SmallRay:
    """Nodes n0, n1, ... of a home folder, each of `slots` slots."""

    def __init__(self, layout: Layout, slots: int) -> None:
        """Nothing is started yet."""
        self.cluster, self.slots = RayCluster(layout), slots

    @property
    def address(self) -> str:
        return self.cluster.address

    def up(self, nodes: int | None = None) -> list[str]:
        """Start what does not live, end what is too many; the names of what was started."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in HEALTH.items():
                patch.setenv(name, value)
            return self.cluster.up(nodes, self.slots)

    def down(self) -> None:
        self.cluster.down()

    def member(self, name: str) -> RayProcessGroup:
        return next(member for member in self.cluster.members() if member.name == name)

    def pid(self, name: str, program: str) -> int:
        """The process of a program of a node, such as raylet or gcs_server, which is there."""
        pid = self.member(name).pid(program)
        assert pid is not None, f"{program} of {name}"
        return pid

    def executor(self, name: str) -> int | None:
        return next((pid for pid in self.member(name).pids if title(pid).startswith("ray::Executor")), None)

    def kill_machine(self, name: str) -> None:
        """SIGKILL to all that Ray runs on a node, again until nothing is left: it starts its own processes anew."""
        while pids := [pid for pid in self.member(name).pids if procs.start_time(pid) is not None]:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
