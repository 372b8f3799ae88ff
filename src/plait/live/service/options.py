"""The options of a service, declared once: its parser, `plait up`, and the words with which that starts one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.core.options import declared, option, parse
from plait.live.protocol.leases import LEAD_S, LEASE_SHARE
from plait.live.scheduler.options import ANY_SIZE
from plait.live.scheduler.options import Options as EngineOptions
from plait.live.service.discovery import FIRST, SECOND, STORE_VARIABLE

#: The group of options that `plait up` never says: they are for whoever starts a service by hand.
BY_HAND = "by hand"


@dataclass(frozen=True)
class ServiceOptions:
    """What a service is started with; seconds where a name ends in `_s`."""

    home: str | None = option("Folder of the service", default=None, unset="PLAIT_HOME, else ~/.plait", group=BY_HAND)
    host: str = option("Address to listen on", default="127.0.0.1")
    port: int = option("Port to listen on", default=0, unset="a free one", least=0, most=65535)
    policy: str | None = option(
        "A policy of `plait policies`", default=None, unset="the last one, at first tiresias-l", short="p"
    )
    round_s: float = option("Least seconds between decisions", default=EngineOptions.round_s, least=0.01)
    db: str | None = option(
        "postgresql://host/name", default=None, unset="SQLite in the home folder", env=STORE_VARIABLE
    )
    estimates_s: float = option(
        "Seconds between what an adaptive job is believed of itself", default=EngineOptions.estimate_s, group=BY_HAND
    )
    lost_s: float = option("A node is lost after this many silent seconds", default=EngineOptions.lost_s, least=1)
    lease_s: float | None = option(
        "Silent seconds after which a node ends its jobs", default=None, unset=f"{LEASE_SHARE:g} of --lost", least=0.5
    )
    lead_lease_s: float = option("Seconds a silent leader keeps its place", default=LEAD_S, group=BY_HAND)
    settle_s: float = option("Seconds to wait for more nodes", default=EngineOptions.settle_s, group=BY_HAND)
    first_step_s: float = option(
        "Seconds an attempt gets for its first step before it makes room", default=30.0, group=BY_HAND
    )
    grace_s: float = option("Seconds for a checkpoint at preemption", default=EngineOptions.grace_s, group=BY_HAND)
    user_jobs: int = option("Jobs a user may have open, 0: any number", default=EngineOptions.user_jobs, least=0)
    project_jobs: int = option(
        "Jobs a project may have open, 0: any number", default=EngineOptions.project_jobs, least=0
    )
    tls_cert: str | None = option("Certificate file; with --tls-key the service has HTTPS", default=None)
    tls_key: str | None = option("Key file", default=None)
    insecure: bool = option("Listen beyond this machine without TLS", default=False)
    backend: str = option("Who starts the nodes: local, ray, slurm", default="local")
    most_gpus: int | None = option(
        "GPUs that nodes may come to have: larger jobs are refused, others wait for nodes", default=None,
        unset="those there are, or, with a backend other than local, any number",
    )  # fmt: skip
    expect_gpus: int = option("Once there are so many GPUs, no more are waited for", default=0, unset="not known")
    allow_policy: tuple[str, ...] = option(
        "Policies of this module may be set while it runs", default=(), metavar="MODULE"
    )
    may_lose_work: bool = option("Let the policy stop jobs that cannot resume from a checkpoint", default=False)
    policy_path: str | None = option("Where modules of policies are looked for, last", default=None, metavar="FOLDER")
    standby: bool = option("Wait until no other service leads, then lead", default=False)
    name: str = option(
        "Name of this service, where a home has several", default="", unset=f"{FIRST}, with --standby {SECOND}"
    )

    @property
    def engine(self) -> EngineOptions:
        """What the scheduler needs of them."""
        most_gpus = (0 if self.backend == "local" else ANY_SIZE) if self.most_gpus is None else self.most_gpus
        return EngineOptions(
            round_s=self.round_s, lost_s=self.lost_s, lease_s=self.lease, settle_s=self.settle_s, grace_s=self.grace_s,
            estimate_s=self.estimates_s, first_step_s=self.first_step_s, user_jobs=self.user_jobs,
            project_jobs=self.project_jobs, suspect_s=min(3.0, self.lost_s / 2), most_gpus=most_gpus,
            expect_gpus=self.expect_gpus, policy_modules=self.allow_policy,
        )  # fmt: skip

    @property
    def lease(self) -> float:
        """Seconds without a service after which what runs on a node has ended."""
        return LEASE_SHARE * self.lost_s if self.lease_s is None else self.lease_s


def read_options(argv: Sequence[str] | None) -> ServiceOptions:
    """The options of a command line; ends the process for those that there are not."""
    found = parse(ServiceOptions, argv, prog="plait.live.service", description="The scheduler's service.")
    return replace(found, name=found.name or (SECOND if found.standby else FIRST))


#: Options by long name that `plait up` says to a service, whether somebody gave them or it found them out.
SERVICE_OPTIONS = tuple(one.word for one in declared(ServiceOptions) if one.option.group != BY_HAND)
