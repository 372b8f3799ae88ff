"""The node of an agent: its options, and the lock that gives it to one agent.

The options are declared once: for the parser of the agent, and for the words with which backends start one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass

from plait.core.options import option
from plait.live.layout import Layout, make_private
from plait.live.system import procs

_LOCK_TRIES = 10


class AlreadyRuns(Exception):
    """Another agent has the node."""


@dataclass(frozen=True)
class AgentOptions:
    """The options of an agent.

    `on_loan`: the node returns to its owner when the agent ends, so the agent ends when it has lost the service for
    good. `parks`: if the agent is stopped while no service runs, jobs run on without a lease; services are started on
    this machine only, and begin with `lease.unpark`.
    """

    home: str | None = option("Folder of the cluster", default=None, unset="PLAIT_HOME, else ~/.plait")
    node: str = option("Name of the node", default="n0")
    gpus: int = option("Number of CPU slots, without --cuda", default=1)
    fake: bool = option("Use CPU slots, as without --cuda", default=False)
    cuda: str | None = option("Indices of the machine's GPUs, e.g. 0,1", default=None)
    rack: int = option("Number of the node's rack; gangs are placed within one rack where possible", default=0)
    slot_memory: float | None = option("Memory of each CPU slot, GB", default=None, unset="not limited")
    gpu_kind: str | None = option("GPU kind of the node", default=None, unset="as the driver reports")
    url: str | None = option("URL of the service", default=None, unset="read from service.json")
    stop_jobs: bool = option(
        "At SIGTERM, checkpoint the jobs so that they resume elsewhere; otherwise they keep running here", default=False
    )
    switch: str = option("Name of the only switch that the agent may serve", default="", unset="that of its rack")
    as_owner: bool = option("Run each job as the Unix account with its owner's name; needs root", default=False)
    on_loan: bool = option(
        "End after a lease without contact to the service, so that the node returns to its owner", default=False
    )
    parks: bool = option(
        "The service runs on this machine: at SIGTERM without a running service, jobs keep running without a lease",
        default=False,
    )
    stop_grace_s: float = option("Longest grace period of jobs that the agent stops, seconds", default=10.0)

    @property
    def devices(self) -> list[int] | None:
        """The machine's numbers of its GPUs, None for CPU slots; raises `ValueError` for a text that is no list."""
        if self.cuda is None:
            return None
        try:
            numbers = [int(part) for part in self.cuda.split(",")]
        except ValueError:
            raise ValueError(f"{self.cuda!r} is no list of GPU numbers such as 0,1") from None
        if len(set(numbers)) != len(numbers) or min(numbers) < 0:
            raise ValueError(f"{self.cuda!r} names a GPU twice, or one below 0")
        return numbers

    @property
    def slots(self) -> int:
        """The number of its GPUs, or of its CPU slots."""
        return self.gpus if self.devices is None else len(self.devices)


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
