"""The options of `plait up`: its own, the backends', and the service's, which it passes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.errors import InputError
from plait.core.options import declared, option, same
from plait.live.agent.node import AgentOptions
from plait.live.backends.base import STOP_GRACE_S, NodeBackend
from plait.live.backends.registry import open_backend
from plait.live.layout import FIRST, SECOND, Layout
from plait.live.service.options import BY_HAND, SERVICE_OPTIONS, ServiceOptions
from plait.live.system import procs

# ---- options of the last start, so that `plait up` or `plait up --standby` alone starts the same again ----

#: Among the options, that `plait down` has ended the nodes; no name of an option looks like it.
_DOWN = "--down"


def pairs(words: Sequence[str]) -> dict[str, str]:
    """Options for the backend, which knows what they mean; `InputError` for what is no NAME=VALUE.

    >>> pairs(["partition=gpu", "sbatch=--account=a"])
    {'partition': 'gpu', 'sbatch': '--account=a'}
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in SERVICE_OPTIONS:
            raise InputError(f"--option {word!r} is no NAME=VALUE for a backend; write for example: -o partition=gpu")
        if name in found:
            raise InputError(f"--option {name} is given twice ({found[name]!r} and {value!r}); give it once")
        found[name] = value
    return found


def remember(layout: Layout, options: dict[str, Any], name: str = FIRST) -> None:
    """These are the options from now on; for the owner of the home alone, for a store may have a password."""
    procs.write_json(layout.options_file(name), options)


def was_up(layout: Layout) -> bool:
    """Whether nodes of a `plait up` may exist: one was completed or killed, and no `plait down` came since."""
    found = procs.read_json(layout.options_file())
    return found is not None and _DOWN not in found


def remember_down(layout: Layout, options: dict[str, Any]) -> None:
    """`plait down` has ended the nodes; the next `plait up` continues with these options."""
    remember(layout, {**options, _DOWN: True})


def remembered(layout: Layout, name: str = FIRST) -> dict[str, Any]:
    """The options of the last `plait up`, or what was given with the last `plait up --standby` of this name."""
    found = procs.read_json(layout.options_file(name)) or {}
    # The store knows the policy, also one set later.
    return {k: v for k, v in found.items() if k not in ("policy", "may-lose-work", _DOWN)}


def and_remembered(layout: Layout, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` and what was given before. `-o NAME=` takes an option back, another backend all but the service's."""
    last, backends = remembered(layout), for_backend(given)
    before = last.get("backend", "local")
    if given.get("backend", before) != before:
        last = {name: value for name, value in last.items() if name in SERVICE_OPTIONS}
    return {name: value for name, value in {**last, **given}.items() if value != "" or name not in backends}


def remembered_backend(layout: Layout, stop_grace_s: float = STOP_GRACE_S) -> NodeBackend:
    """The backend by which this home's nodes were started last."""
    return open_backend(layout, for_backend(remembered(layout)), stop_grace_s)


def for_backend(options: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's part of the options: none of the service's, which it may not know.

    >>> for_backend({"backend": "slurm", "port": 8642, "partition": "gpu"})
    {'backend': 'slurm', 'partition': 'gpu'}
    """
    return {name: value for name, value in options.items() if name == "backend" or name not in SERVICE_OPTIONS}


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
    cpu_slots: int | None = option(
        "Cores of this machine for jobs without GPUs (-g 0)", default=None, unset="none", least=1
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
    as_owner: bool = same(AgentOptions, "as_owner")
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
    notify: str | None = same(ServiceOptions, "notify")
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
