"""`plait up`, `down`: a cluster on this machine, in the background; `web`, `mcp`: its page, its tools for agents."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.connection import HomeOption, JsonFlag, LoseWork, client, print_json
from plait.cli.lazy import command
from plait.core.errors import InputError, MissingExtra
from plait.live.notes import note
from plait.live.supervisor.options import UpOptions

if TYPE_CHECKING:
    from plait.live.layout import Layout


def _up(asked: UpOptions) -> None:
    from plait.cli.policy_modules import named_modules
    from plait.live.layout import Layout, make_private
    from plait.live.supervisor import daemon, keeper
    from plait.live.supervisor import up as cluster
    from plait.live.supervisor.options import pairs

    layout = Layout.at(asked.home)
    make_private(layout.home)
    given = {**asked.given, **pairs(asked.pairs or [])}
    given |= named_modules(given)
    if asked.pass_env:
        # Agents read this whenever they start a process.
        from plait.live.agent.processes.node_environment import FILE, NAME

        for name in asked.pass_env:
            if not NAME.fullmatch(name):
                raise InputError(f"--pass-env {name!r}: write the NAME of a variable, or a pattern such as SLURM_*")
        (layout.home / FILE).write_text("\n".join(asked.pass_env) + "\n", encoding="utf-8")
    files = ("tls-cert", "tls-key", "backup-folder", "notify")
    given |= {key: os.path.abspath(given[key]) for key in files if key in given}
    if asked.standby:
        from plait.live.layout import SECOND
        from plait.live.supervisor import daemon, standby

        with daemon.exclusive(layout):
            url = standby.start(layout, given, asked.name or SECOND)
        typer.echo(f"a standby service runs at {url}; it takes over when the leader dies")
        return
    began = time.monotonic()
    with daemon.exclusive(layout), cluster.start(layout, given) as service:
        keeper.spawn(layout)
        for line in cluster.welcome(service, layout, asked.home, time.monotonic() - began):
            typer.echo(line)
    if asked.foreground:
        from plait.live.supervisor.services import service_process

        note("Ctrl-C stops it; jobs go on")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            while service_process(layout) is not None:
                time.sleep(0.2)
        _end(layout, stop_jobs=False)


@command(UpOptions, _up)
def up() -> None:
    """Start the service and its nodes, here or on a cluster.

    Jobs that are already running continue.

    \b
    plait up
    plait up --nodes 2 --gpus-per-node 4 --policy muri-l
    plait up --backend ray --address 10.0.0.1:6379
    plait up --backend slurm -o partition=gpu -o max-nodes=8
    """


def _end(layout: Layout, *, stop_jobs: bool) -> None:
    from plait.live.supervisor import daemon
    from plait.live.supervisor.down import stop

    kept = daemon.stop_all(layout)  # one that waits for a slow start would keep this waiting
    alone = daemon.exclusive(layout) if layout.home.is_dir() else contextlib.nullcontext()
    with alone:
        for line in stop(layout, stop_jobs=stop_jobs, kept=kept):
            typer.echo(line)


def down(
    stop_jobs: Annotated[bool, typer.Option("--stop-jobs", help="Also stop the jobs, after a checkpoint.")] = False,
    may_lose_work: LoseWork = False,
    home: HomeOption = None,
) -> None:
    """Stop the service and its nodes. Jobs keep running, and the next `plait up` reattaches to them.

    With --stop-jobs nothing is done if a job would lose work, because it has no checkpoint to resume from, unless
    --may-lose-work is given.
    """
    from plait.live.layout import Layout
    from plait.live.supervisor.down import refuse_losses

    layout = Layout.at(home)
    if stop_jobs and not may_lose_work:
        refuse_losses(layout)
    _end(layout, stop_jobs=stop_jobs)


def web(
    open_it: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the browser. [default: only if there is a screen]")
    ] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Open the web page of the service, logged in.

    Prints the link; it logs in one browser, once, within two minutes.
    """
    with client(home) as service:
        link = service.web_link()
    if as_json:
        print_json({"link": link})
    else:
        typer.echo(link)
    # Whether a browser that is opened here would be seen: a desktop, and no connection from elsewhere.
    desktop = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    screen = sys.stdout.isatty() and desktop and "SSH_CONNECTION" not in os.environ
    if open_it or (open_it is None and screen):
        webbrowser.open(link)


def mcp(
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer only tools that change nothing, whatever the token's role.")
    ] = False,
    skill: Annotated[bool, typer.Option("--skill", help="Print the skill file for coding agents and exit.")] = False,
    home: HomeOption = None,
) -> None:
    """Serve tools for coding agents, over the Model Context Protocol.

    Speaks on standard input and output: hosts of agents start it. Tools call the service with your token and role.
    """
    from plait.cli.mcp.skill import skill_text

    if skill:
        typer.echo(skill_text(), nl=False)
        return
    try:
        import mcp.server.mcpserver  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the library mcp", "mcp", "plait mcp") from error
    from plait.cli.mcp.server import Asking, make_server
    from plait.cli.submission import runs_here

    make_server(Asking(lambda: client(home), lambda: runs_here(home, os.environ)), read_only=read_only).run("stdio")
