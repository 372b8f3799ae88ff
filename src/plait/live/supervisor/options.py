"""The options of `plait up`: its own, those of backends, and those of a service that it hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plait.core.options import declared, option, same
from plait.live.service.discovery import SECOND
from plait.live.service.options import BY_HAND, ServiceOptions

#: The group of options that say what the command does; the others are remembered, for the service and the backend.
COMMAND = "command"
_NOT_KEPT = (COMMAND, BY_HAND)


@dataclass(frozen=True)
class UpOptions:
    """What `plait up` was given; None and False is what was not said."""

    nodes: int | None = option("Nodes to make of this machine", default=None, unset="1", least=1)
    gpus_per_node: int | None = option("GPUs of each, or CPU slots where there are no GPUs", default=None, least=1)
    policy: str | None = same(ServiceOptions, "policy")
    round_s: float | None = same(ServiceOptions, "round_s")
    port: int | None = same(ServiceOptions, "port")
    fake: bool = option("CPU slots even where there are GPUs", default=False)
    db: str | None = same(ServiceOptions, "db")
    user_jobs: int | None = same(ServiceOptions, "user_jobs")
    project_jobs: int | None = same(ServiceOptions, "project_jobs")
    backend: str | None = same(ServiceOptions, "backend")
    address: str | None = option("Of the Ray cluster's head: host:port", default=None)
    pairs: list[str] | None = option(
        "NAME=VALUE for the backend", default=None, flag="option", short="o", group=COMMAND
    )
    host: str | None = same(ServiceOptions, "host")
    tls_cert: str | None = same(ServiceOptions, "tls_cert")
    tls_key: str | None = same(ServiceOptions, "tls_key")
    insecure: bool = same(ServiceOptions, "insecure")
    lost_s: float | None = same(ServiceOptions, "lost_s")
    lease_s: float | None = same(ServiceOptions, "lease_s")
    allow_policy: list[str] | None = same(ServiceOptions, "allow_policy")
    may_lose_work: bool = same(ServiceOptions, "may_lose_work")
    pass_env: list[str] | None = option(
        "Jobs get this variable of their node, too; SLURM_* names all such", default=None, metavar="NAME", group=COMMAND
    )
    standby: bool = option(
        "Start another service that takes over when the first one dies", default=False, group=COMMAND
    )
    name: str | None = option("With --standby: what to call it", default=None, unset=SECOND, group=COMMAND)
    foreground: bool = option("Stay here until Ctrl-C, then stop", default=False, group=COMMAND)
    home: str | None = same(ServiceOptions, "home")

    @property
    def given(self) -> dict[str, Any]:
        """What is remembered of them, by long name: all that was said for the service and the backend."""
        said = {one.word: getattr(self, one.name) for one in declared(UpOptions) if one.option.group not in _NOT_KEPT}
        return {word: value for word, value in said.items() if value is not None and value is not False and value != []}
