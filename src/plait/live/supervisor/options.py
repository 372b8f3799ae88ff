"""The options of `plait up`: its own, the backends', and the service's, which it passes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plait.core.options import declared, option, same
from plait.live.layout import SECOND
from plait.live.service.options import BY_HAND, ServiceOptions

#: The group of options that only this call uses; the others are saved, for the service and the backend.
COMMAND = "command"
_NOT_KEPT = (COMMAND, BY_HAND)


@dataclass(frozen=True)
class UpOptions:
    """The options of `plait up`; None or False if not given."""

    nodes: int | None = option(
        "Number of nodes to run on this machine", default=None, unset="1; 2 where there are no GPUs", least=1
    )
    gpus_per_node: int | None = option(
        "GPUs per node, or CPU slots where there are no GPUs",
        default=None,
        unset="its equal part of them, or 4 slots",
        least=1,
    )
    policy: str | None = same(ServiceOptions, "policy")
    round_s: float | None = same(ServiceOptions, "round_s")
    port: int | None = same(ServiceOptions, "port")
    agent_port: int | None = same(ServiceOptions, "agent_port")
    fake: bool = option("Use CPU slots even where there are GPUs", default=False)
    db: str | None = same(ServiceOptions, "db")
    overlap_s: float | None = same(ServiceOptions, "overlap_s")
    log_mb: float | None = same(ServiceOptions, "log_mb")
    user_jobs: int | None = same(ServiceOptions, "user_jobs")
    project_jobs: int | None = same(ServiceOptions, "project_jobs")
    backend: str | None = same(ServiceOptions, "backend")
    address: str | None = option("Address of the Ray head, host:port", default=None)
    pairs: list[str] | None = option(
        "Option of the backend, NAME=VALUE", default=None, flag="option", short="o", group=COMMAND
    )
    host: str | None = same(ServiceOptions, "host")
    tls_cert: str | None = same(ServiceOptions, "tls_cert")
    tls_key: str | None = same(ServiceOptions, "tls_key")
    insecure: bool = same(ServiceOptions, "insecure")
    lost_s: float | None = same(ServiceOptions, "lost_s")
    lease_s: float | None = same(ServiceOptions, "lease_s")
    network: str | None = same(ServiceOptions, "network")
    rack_size: int | None = option(
        "Nodes of a rack, in order of their names", default=None, unset="half of the nodes with leaf-spine, else all",
        least=1,
    )  # fmt: skip
    allow_policy: list[str] | None = same(ServiceOptions, "allow_policy")
    may_lose_work: bool = same(ServiceOptions, "may_lose_work")
    pass_env: list[str] | None = option(
        "Pass this variable of the node to its jobs; patterns such as SLURM_* work",
        default=None,
        metavar="NAME",
        group=COMMAND,
    )
    web: str | None = same(ServiceOptions, "web")
    price: list[str] | None = same(ServiceOptions, "price")
    currency: str | None = same(ServiceOptions, "currency")
    backup_folder: str | None = same(ServiceOptions, "backup_folder")
    standby: bool = option("Start a standby service that takes over when the leader dies", default=False, group=COMMAND)
    name: str | None = option("Name of the standby service", default=None, unset=SECOND, group=COMMAND)
    foreground: bool = option("Run in the foreground and stop at Ctrl-C", default=False, group=COMMAND)
    home: str | None = same(ServiceOptions, "home")

    @property
    def given(self) -> dict[str, Any]:
        """Options to save for the next `plait up`, keyed by flag."""
        said = {one.word: getattr(self, one.name) for one in declared(UpOptions) if one.option.group not in _NOT_KEPT}
        return {word: value for word, value in said.items() if value is not None and value is not False and value != []}
