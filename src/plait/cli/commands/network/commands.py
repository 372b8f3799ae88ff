"""The commands of `plait network`: options, and calls of what does the work."""

from typing import Annotated

import typer

from plait.cli.commands.network.bench import BenchRequest
from plait.cli.commands.network.packets import PacketsRequest
from plait.cli.connection import HomeOption, JsonFlag, print_json, respond
from plait.cli.lazy import command
from plait.live.dataplane.options import ServerOptions, SwitchOptions

app = typer.Typer(help="Networks of clusters: switches, links, and packets.", no_args_is_help=True)

ClusterOption = Annotated[
    str, typer.Option("--cluster", "-c", help="NODESxGPUS[@NODES_PER_RACK], e.g. 16x8@4, or a cluster file (.toml).")
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network", "-n",
        help="Topology and its options, e.g. leaf-spine:oversubscription=2,aggregators=20000,link_gbps=100. "
        "[default: that of the cluster file, or single-switch]",
    ),
]  # fmt: skip


@app.command()
def show(
    cluster: ClusterOption = "16x8@4",
    network: NetworkOption = None,
    path: Annotated[
        str | None, typer.Option(help="Two nodes, e.g. n0,n9: list the shortest paths between them.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the switches, links and paths of a cluster.

    \b
    plait network show --cluster 16x8@4 --network leaf-spine:oversubscription=2,aggregators=20000
    plait network show --cluster cluster.toml --path n0,n9
    """
    from plait.cli.commands.network.cluster_view import described, paths_between, show_network
    from plait.cli.hardware import read_cluster
    from plait.network.topology.read import networked

    made = read_cluster(cluster, network)
    made = networked(made, "single-switch") if made.network is None else made
    found = None if path is None else paths_between(made, path)
    if as_json:
        print_json(described(made) | ({} if found is None else {"paths": found}))
    else:
        show_network(made, found)


@app.command("simulate")
@command(PacketsRequest, "plait.cli.commands.network.packets:simulate")
def simulate() -> None:
    """Simulate in-network aggregation packet by packet.

    Equal jobs on one switch, or over racks; the table has goodput, fallback and what aggregators were held.

    \b
    plait network simulate --protocol switchml,atp,esa --aggregators 1024 --out packets.html
    plait network simulate -p a2tp -j 2 -w 4 --straggler 0.1:share=0.2,from_us=50,until_us=300
    plait network simulate -p atp --racks 4 --levels 2 --loss 0.001
    """


def _run(options: SwitchOptions | ServerOptions) -> None:
    from plait.live.dataplane.process import run

    raise typer.Exit(run(options))


@app.command("switch")
@command(SwitchOptions, _run)
def switch() -> None:
    """Run a software switch that adds up gradients.

    It runs until a signal or a request to stop, and prints a line of JSON with its addresses when it is ready. Jobs
    are registered at its control socket.

    \b
    plait network switch --name tor0 --aggregators 4096 --control tor0.sock
    plait network switch --control tor0.sock --listen 10.0.0.1:4000 --server 10.0.0.2:4001
    """


@app.command("server")
@command(ServerOptions, _run)
def server() -> None:
    """Run an aggregation server for a switch.

    It completes the sums that a switch with shared aggregators did not, and prints a line of JSON with its addresses
    when it is ready. Jobs are registered at its control socket.

    \b
    plait network server --control server.sock --window 1024 --jobs 16
    """


@app.command()
def status(
    control: Annotated[
        str | None, typer.Option(help="Path of the control socket of one switch or server, instead of a cluster.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the switches of a cluster and who has their memory.

    Also, how each job exchanges gradients.
    With --control, one running switch or aggregation server: what it holds, and what each of its jobs did.

    \b
    plait network status
    plait network status --control tor0.sock
    """
    from plait.cli.commands.network.cluster_view import read_statistics, show_cluster, show_statistics

    if control is not None:
        statistics = read_statistics(control)
        if as_json:
            print_json(statistics)
        else:
            show_statistics(statistics)
        return
    respond(home, as_json, lambda service: service.network(), show_cluster)


@app.command("bench")
@command(BenchRequest, "plait.cli.commands.network.bench:bench")
def bench() -> None:
    """Measure buckets through a switch, compared to gloo.

    Buckets of gradients go through a software switch on this machine, and through gloo's all-reduce. A switch, a server
    and the ranks are started; the tables show where the time of a bucket goes.

    \b
    plait network bench
    plait network bench --workers 4 --mib 4 --protocol esa --json
    """


@app.command()
def topologies() -> None:
    """List topologies and their options."""
    from plait.cli.commands.network.cluster_view import show_topologies

    show_topologies()
