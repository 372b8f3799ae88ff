"""The options of an agent, declared once: its parser, and the words with which backends start one."""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.options import option
from plait.live.agent.node import Settings


@dataclass(frozen=True)
class AgentOptions:
    """The options of an agent; see `Settings`."""

    home: str | None = option("Folder of the cluster", default=None, unset="PLAIT_HOME, else ~/.plait")
    node: str = option("Name of the node", default="n0")
    gpus: int = option("Number of CPU slots, without --cuda", default=1)
    fake: bool = option("Use CPU slots, as without --cuda", default=False)
    cuda: str | None = option("Indices of the machine's GPUs, e.g. 0,1", default=None)
    rack: int = option(
        "Number of the node's rack; gangs are placed within one rack where possible", default=Settings.rack
    )
    slot_memory: float | None = option("Memory of each CPU slot, GB", default=None, unset="not limited")
    gpu_kind: str | None = option("GPU kind of the node", default=None, unset="as the driver reports")
    url: str | None = option("URL of the service", default=None, unset="read from service.json")
    stop_jobs: bool = option(
        "At SIGTERM, checkpoint the jobs so that they resume elsewhere; otherwise they keep running here", default=False
    )
    switch: str = option("Name of the only switch that the agent may serve", default="", unset="that of its rack")
    on_loan: bool = option(
        "End after a lease without contact to the service, so that the node returns to its owner", default=False
    )
    parks: bool = option(
        "The service runs on this machine: at SIGTERM without a running service, jobs keep running without a lease",
        default=False,
    )
    stop_grace_s: float = option(
        "Longest grace period of jobs that the agent stops, seconds", default=Settings.stop_grace_s
    )
