"""`plait up` and `plait down`: a cluster on this machine, in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.connection import HomeOption
from plait.live.notes import note

if TYPE_CHECKING:
    from plait.live.layout import Layout

SizeOption = Annotated[int | None, typer.Option(min=1, help="GPUs of each, or CPU slots where there are no GPUs.")]
BackendOption = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="NAME=VALUE for the backend; may be repeated.")
]
CertOption = Annotated[str | None, typer.Option(help="Certificate file; with --tls-key the service has HTTPS.")]
StoreOption = Annotated[
    str | None, typer.Option(envvar="PLAIT_DB", help="postgresql://host/name; default: SQLite in the home folder.")
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE", help="Policies of this module may be set while it runs; may be repeated."),
]
PassOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Jobs get this variable of their node, too; SLURM_* names all such."),
]
LoseFlag = Annotated[
    bool, typer.Option("--may-lose-work", help="Let the policy stop jobs that cannot go on from a checkpoint.")
]
StandbyFlag = Annotated[
    bool, typer.Option("--standby", help="Start another service, that takes over when the first one dies.")
]


def up(
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes to make of this machine; default: 1.")] = None,
    gpus_per_node: SizeOption = None,
    policy: Annotated[str | None, typer.Option("--policy", "-p", help="A policy of `plait policies`.")] = None,
    round_s: Annotated[float | None, typer.Option("--round", min=0.01, help="Least seconds between decisions.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; default: a free one.")] = None,
    fake: Annotated[bool, typer.Option("--fake", help="CPU slots even where there are GPUs.")] = False,
    db: StoreOption = None,
    user_jobs: Annotated[int | None, typer.Option(min=0, help="Jobs a user may have open; default: 10000.")] = None,
    project_jobs: Annotated[int | None, typer.Option(min=0, help="... and a project; default: 50000.")] = None,
    backend: Annotated[str | None, typer.Option(help="Who starts the nodes: local (default), ray, slurm.")] = None,
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster's head: host:port.")] = None,
    option: BackendOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")] = None,
    tls_cert: CertOption = None,
    tls_key: Annotated[str | None, typer.Option(help="Key file.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without TLS.")] = False,
    lost: Annotated[float | None, typer.Option(min=1, help="A node silent for so many seconds is lost: 300.")] = None,
    lease: Annotated[
        float | None, typer.Option(min=0.5, help="... and ends its jobs before that, after so many: 0.8 of --lost.")
    ] = None,
    allow_policy: AllowOption = None,
    may_lose_work: LoseFlag = False,
    pass_env: PassOption = None,
    standby: StandbyFlag = False,
    name: Annotated[str | None, typer.Option(help="With --standby: what to call it; default: 2.")] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here until Ctrl-C, then stop.")] = False,
    home: HomeOption = None,
) -> None:
    """Start the service and its nodes, here or on a cluster.

    Jobs of an earlier run go on.

    \b
    plait up
    plait up --nodes 2 --gpus-per-node 4 --policy muri-l
    plait up --backend ray --address 10.0.0.1:6379
    plait up --backend slurm -o partition=gpu -o max-nodes=8
    """
    from plait.cli.policy_modules import named_modules
    from plait.live.layout import Layout, make_private
    from plait.live.supervisor import daemon, keeper
    from plait.live.supervisor import up as starting
    from plait.live.supervisor.saved_options import pairs

    layout = Layout.at(home)
    make_private(layout.home)
    given: dict[str, Any] = {
        "nodes": nodes, "gpus-per-node": gpus_per_node, "policy": policy, "round": round_s, "port": port,
        "fake": fake or None, "db": db, "user-jobs": user_jobs, "project-jobs": project_jobs, "backend": backend,
        "address": address, "host": host, "tls-cert": tls_cert, "tls-key": tls_key, "insecure": insecure or None,
        "lost": lost, "lease": lease, "allow-policy": allow_policy or None,
        "may-lose-work": may_lose_work or None, **pairs(option or []),
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    given |= named_modules(given)
    if pass_env:
        _pass_on(layout, pass_env)
    given |= {key: os.path.abspath(given[key]) for key in ("tls-cert", "tls-key") if key in given}
    if standby:
        _stand_by(layout, given, name)
        return
    began = time.monotonic()
    with daemon.exclusive(layout), starting.start(layout, given) as service:
        keeper.spawn(layout)
        for line in starting.welcome(service, layout, home, time.monotonic() - began):
            typer.echo(line)
    if foreground:
        _stay(layout)


def _pass_on(layout: Layout, names: list[str]) -> None:
    """Note which variables of their nodes jobs get; agents look each time they start a process."""
    from plait.core.errors import InputError
    from plait.live.agent.processes.node_environment import FILE, NAME

    for name in names:
        if not NAME.fullmatch(name):
            raise InputError(f"--pass-env {name!r}: write the NAME of a variable, or a pattern such as SLURM_*")
    (layout.home / FILE).write_text("\n".join(names) + "\n", encoding="utf-8")


def _stand_by(layout: Layout, given: dict[str, Any], name: str | None) -> None:
    from plait.live.supervisor import daemon as daemon
    from plait.live.supervisor import follower as standby

    with daemon.exclusive(layout):
        url = standby.start(layout, given, name or standby.SECOND)
    typer.echo(f"a service stands by at {url}; it takes over when the one that leads dies")


def _stay(layout: Layout) -> None:
    from plait.live.supervisor.services import service_process

    note("Ctrl-C stops it; jobs go on")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        while service_process(layout) is not None:
            time.sleep(0.2)
    _end(layout, stop_jobs=False)


def _end(layout: Layout, *, stop_jobs: bool) -> None:
    from plait.live.supervisor import daemon as daemon
    from plait.live.supervisor.down import stop

    if not layout.home.is_dir():
        typer.echo(f"nothing runs in {layout.home}")
        return
    with daemon.exclusive(layout):
        for line in stop(layout, stop_jobs=stop_jobs):
            typer.echo(line)


def down(
    stop_jobs: Annotated[bool, typer.Option("--stop-jobs", help="Jobs too, after a checkpoint.")] = False,
    home: HomeOption = None,
) -> None:
    """Stop the service and its nodes. Jobs go on, and are taken back by the next `plait up`; or stop them too."""
    from plait.live.layout import Layout

    _end(Layout.at(home), stop_jobs=stop_jobs)
