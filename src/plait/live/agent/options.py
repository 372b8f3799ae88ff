"""The options of an agent, declared once: its parser, and the words with which backends start one."""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.options import option
from plait.live.agent.node import Settings


@dataclass(frozen=True)
class AgentOptions:
    """What an agent is started with; see `Settings`."""

    home: str | None = option("Folder of the cluster", default=None, unset="PLAIT_HOME, else ~/.plait")
    node: str = option("Name of the node", default="n0")
    gpus: int = option("Slots of CPU, where no --cuda is given", default=1)
    fake: bool = option("CPU slots, as without --cuda", default=False)
    cuda: str | None = option("Numbers of the machine's GPUs, as 0,1", default=None)
    rack: int = option("Number of the node's rack; gangs are kept together in one", default=Settings.rack)
    gpu_kind: str | None = option("What jobs call its GPUs", default=None, unset="what the driver says")
    url: str | None = option("The service", default=None, unset="read from service.json")
    stop_jobs: bool = option(
        "At SIGTERM the node goes: jobs are checkpointed and go on elsewhere; else they stay here", default=False
    )
    on_loan: bool = option(
        "End when the service was not there for the lease, so that whoever lent the node gets it back", default=False
    )
    parks: bool = option(
        "The service is started on this machine: at SIGTERM, if none runs, jobs go on without end", default=False
    )
    stop_grace_s: float = option("Most seconds for jobs that the agent stops", default=Settings.stop_grace_s)
