"""The options of a service, declared once: its parser, `plait up`, and the words with which that starts one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.options import declared, option, parse, put
from plait.live.discovery import STORE_VARIABLE
from plait.live.layout import FIRST, SECOND
from plait.live.protocol.leases import LEAD_S, LEASE_SHARE
from plait.live.scheduler.options import ANY_SIZE
from plait.live.scheduler.options import Options as EngineOptions

if TYPE_CHECKING:
    from plait.control.prices import Prices
    from plait.live.service.notifications import NotificationChannel

#: The group of options that `plait up` does not have: they are for a service that is started by hand.
BY_HAND = "by hand"


def _scheduler(name: str, default: Any = MISSING, **changed: Any) -> Any:
    """An option of the scheduler that the service has, too; `default` and `changed` fields of `Option` may differ."""
    one = next(one for one in declared(EngineOptions) if one.name == name)
    return put(replace(one.option, **changed), one.default if default is MISSING else default)


@dataclass(frozen=True)
class ServiceOptions:
    """The options of a service; seconds where a name ends in `_s`."""

    home: str | None = option("Folder of the service", default=None, unset="PLAIT_HOME, else ~/.plait", group=BY_HAND)
    host: str = option("Address to listen on", default="127.0.0.1")
    port: int = option("Port to listen on", default=0, unset="a free one", least=0, most=65535)
    agent_port: int = option("Port to listen on for agents", default=0, unset="a free one", least=0, most=65535)
    policy: str | None = option(
        "Policy that `plait policies` lists", default=None, unset="the last one, at first plait", short="p"
    )
    round_s: float = _scheduler("round_s")
    db: str | None = option(
        "Database of the store, postgresql://host/name",
        default=None,
        unset="SQLite in the home folder",
        env=STORE_VARIABLE,
    )
    estimate_s: float = _scheduler("estimate_s", group=BY_HAND)
    lost_s: float = _scheduler("lost_s")
    lease_s: float | None = _scheduler("lease_s", None, unset=f"{LEASE_SHARE:g} of --lost")
    lead_lease_s: float = option(
        "Seconds without contact after which the leader loses the lease", default=LEAD_S, group=BY_HAND
    )
    settle_s: float = _scheduler("settle_s", group=BY_HAND)
    first_step_s: float = _scheduler("first_step_s", 30.0, group=BY_HAND)
    grace_s: float = _scheduler("grace_s", group=BY_HAND)
    log_mb: float = _scheduler("log_mb")
    overlap_s: float = _scheduler("overlap_s")
    user_jobs: int = _scheduler("user_jobs")
    project_jobs: int = _scheduler("project_jobs")
    tls_cert: str | None = option("Certificate file; with --tls-key, the service uses HTTPS", default=None)
    tls_key: str | None = option("Private key file of the certificate", default=None)
    insecure: bool = option("Allow other machines to connect without TLS", default=False)
    backend: str = option("Backend that starts the nodes: local, ray or slurm", default="local")
    most_gpus: int | None = _scheduler("most_gpus", None, unset="with backend local its nodes', otherwise no limit")
    expect_gpus: int = _scheduler("expect_gpus")
    allow_policy: tuple[str, ...] = option(
        "Allow `plait policy set` to use policies of this module", default=(), metavar="MODULE"
    )
    network: str | None = option(
        "Network of the nodes, as in `plait simulate`, e.g. leaf-spine:aggregators=4096, or a cluster file (.toml)",
        default=None, unset="the last one, at first none",
    )  # fmt: skip
    may_lose_work: bool = option("Allow the policy to stop jobs that cannot resume from a checkpoint", default=False)
    policy_path: str | None = option("Folder to search last for modules of policies", default=None, metavar="FOLDER")
    web: str = option(
        "Application that answers under /web/, MODULE:FUNCTION, or none", default="plait.dashboard.app:make"
    )
    price: tuple[str, ...] = option(
        "Price of a GPU-hour, by GPU kind (a100=2.5) or of every kind (2.5)", default=(),
        metavar="KIND=PRICE",
    )  # fmt: skip
    notify: str | None = option("TOML file of channels for notifications about jobs", default=None, metavar="FILE")
    currency: str = option("Label of prices, printed unchanged, e.g. EUR", default="")
    backup_folder: str | None = option(
        "Folder below which `plait backup` writes", default=None, unset="backups in the home folder", metavar="FOLDER"
    )
    standby: bool = option("Wait until no other service leads, then lead", default=False)
    name: str = option(
        "Name of this service, if a home folder has several", default="", unset=f"{FIRST}, with --standby {SECOND}"
    )

    @property
    def engine(self) -> EngineOptions:
        """The scheduler's part of the options."""
        shared = {one.name for one in declared(EngineOptions)} & {one.name for one in declared(ServiceOptions)}
        most_gpus = (0 if self.backend == "local" else ANY_SIZE) if self.most_gpus is None else self.most_gpus
        derived = {"lease_s": self.lease, "most_gpus": most_gpus, "suspect_s": min(3.0, self.lost_s / 2)}
        given = {name: getattr(self, name) for name in shared}
        return EngineOptions(
            **{
                **given,
                **derived,
                "policy_modules": self.allow_policy,
                "channels": tuple(one.name for one in self.channels),
            }
        )

    @property
    def channels(self) -> tuple[NotificationChannel, ...]:
        """Channels for notifications; raises `InputError` for an invalid file of them."""
        from plait.live.service.notifications import read_channels

        return read_channels(Path(self.notify)) if self.notify else ()

    @property
    def prices(self) -> Prices | None:
        """Prices of GPU-hours; None without any. Raises `InputError` for what is no price."""
        from plait.control.prices import Prices

        return Prices.given(self.price, self.currency)

    @property
    def lease(self) -> float:
        """Seconds without a service after which what runs on a node has ended."""
        return LEASE_SHARE * self.lost_s if self.lease_s is None else self.lease_s


def read_options(argv: Sequence[str] | None) -> ServiceOptions:
    """Parse a command line; ends the process if an option is unknown."""
    found = parse(ServiceOptions, argv, prog="plait.live.service", description="The scheduler's service.")
    return replace(found, name=found.name or (SECOND if found.standby else FIRST))


#: Options by long name that `plait up` passes to a service, whether a user gave them or it found them out.
SERVICE_OPTIONS = tuple(one.word for one in declared(ServiceOptions) if one.option.group != BY_HAND)
