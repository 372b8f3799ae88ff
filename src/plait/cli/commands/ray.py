"""`plait ray up`, `status`, `down`: a small real Ray cluster on this machine, to try the backend ray."""

import time
from typing import Annotated

import typer

from plait.cli.connection import HomeOption
from plait.core.words import duration

app = typer.Typer(help="A small Ray cluster here, to try `--backend ray`.")


@app.command("up")
def up(
    nodes: Annotated[
        int | None, typer.Option(min=1, max=64, help="Number of nodes besides the head. [default: 2]")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="CPU slots per node. [default: 4]")] = None,
    home: HomeOption = None,
) -> None:
    """Start a Ray cluster, or restart its processes that died.

    The head and the nodes are `ray start` processes on this machine.
    """
    from plait.live.backends.ray.local_cluster import RayCluster
    from plait.live.layout import Layout

    began = time.monotonic()
    cluster = RayCluster(Layout.at(home))
    started = cluster.up(nodes, slots)
    typer.echo(f"Ray is up at {cluster.address} ({duration(time.monotonic() - began)}): " + (
        f"started {', '.join(started)}" if started else "everything ran already"
    ))  # fmt: skip
    typer.echo(f"token: {cluster.token_file}")
    with_home = "" if home is None else f" --home {home}"
    typer.echo(f"next: plait up --backend ray --address {cluster.address}{with_home}")
    typer.echo(f"at the end: plait down{with_home}; plait ray down{with_home}")


@app.command("status")
def status(home: HomeOption = None) -> None:
    """Show which processes of the Ray cluster run."""
    from plait.live.backends.ray.local_cluster import RayCluster
    from plait.live.layout import Layout

    cluster = RayCluster(Layout.at(home))
    members = cluster.members()
    if not members:
        typer.echo("no Ray cluster was started here; start one with: plait ray up")
        return
    typer.echo(f"head at {cluster.address}")
    for member in members:
        state = "up" if member.alive else "dead; plait ray up starts it again"
        typer.echo(f"{member.name}: {state} ({len(member.pids)} processes)")


@app.command("down")
def down(home: HomeOption = None) -> None:
    """Stop this Ray cluster and no other. Agents and jobs of plait continue; stop them with `plait down`."""
    from plait.live.backends.ray.local_cluster import RayCluster
    from plait.live.layout import Layout

    ended = RayCluster(Layout.at(home)).down()
    typer.echo(f"ended: {', '.join(ended)}" if ended else "no Ray cluster of this home runs")
