"""The node of an agent: its settings, and the lock that gives it to one agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass

from plait.live.layout import Layout, make_private
from plait.live.system import procs

_LOCK_TRIES = 10


class AlreadyRuns(Exception):
    """Another agent has the node."""


@dataclass(frozen=True)
class Settings:
    """The settings of an agent.

    `cuda`: the machine's numbers of its GPUs, None for CPU slots. `on_loan`: the node
    returns to its owner when the agent ends, so the agent ends when it has lost the service for good. `parks`: if the
    agent is stopped while no service runs, jobs run on without a lease; services are started on this machine only, and
    begin with `lease.unpark`. `slot_memory`: GB of memory of each CPU slot, None: not limited. `switch`: the
    only switch that the node may serve, "" for that of its rack.
    """

    node: str
    gpus: int
    cuda: list[int] | None = None
    url: str | None = None
    stop_jobs: bool = False
    stop_grace_s: float = 10.0
    on_loan: bool = False
    parks: bool = False
    rack: int = 0
    gpu_kind: str | None = None
    slot_memory: float | None = None
    switch: str = ""


def take_node(layout: Layout, node: str) -> int:
    """Lock the folder of a node; raises `AlreadyRuns`."""
    folder = make_private(layout.node(node))
    fd = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_LOCK_TRIES):  # a process that checks whether an agent runs holds the lock for a moment
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        time.sleep(0.02)
    os.close(fd)
    other = procs.read_json(folder / "agent.json") or {}
    raise AlreadyRuns(f"node {node!r} of {layout.home} already has an agent (pid {other.get('pid', '?')})")
