"""Output of `plait network status`, `show` and `topologies`: switches, links and paths, and how jobs exchange."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from plait.cli.connection import print_table
from plait.cli.render.console import console
from plait.cli.render.tables import plain_lines
from plait.control.messages import network_to_json, node_to_json
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.options import declared
from plait.core.words import counted
from plait.live.dataplane.control import SwitchControl
from plait.network.topology.paths import Graph
from plait.network.topology.shapes import SHAPES

if TYPE_CHECKING:
    from plait.live.api.cluster import NetworkOfCluster
    from plait.live.api.jobs import JobAggregation, Region


def show_cluster(found: NetworkOfCluster) -> None:
    """Print the switches with who serves them, and the jobs with what they have of them; `found` of the service."""
    if found.network is None:
        typer.echo("this cluster has no network; declare one with: plait up --network leaf-spine:aggregators=4096")
        return
    typer.echo(plain_lines(f"network {found.network}"))
    if not found.grants:
        policy = plain_lines(found.policy)
        typer.echo(f"policy {policy} grants no memory of switches: choose one with ina=, e.g. plait:ina=inalloc")
    rows = [
        (
            one.switch, one.state, one.node or "-", one.aggregators, one.granted, f"{one.held:g}",
            one.restarts, ", ".join(job.id for job in one.jobs) or "-", one.trouble or "",
        )
        for one in found.switches
    ]  # fmt: skip
    heads = ("SWITCH", "STATE", "SERVED BY", "AGGREGATORS", "GRANTED ALONE", "HELD", "RESTARTS", "JOBS", "TROUBLE")
    print_table(heads, rows, "none of its switches aggregates; give them memory with aggregators=4096")
    jobs = [
        (
            one.id, one.switch or "-", region_text(one.region), one.protocol or "-",
            one.mode_used or "-", rate_text(one.bits_per_s), share_text(one.fallback_share),
            share_text(one.gloo_share), one.trouble or one.reason,
        )
        for one in found.jobs
    ]  # fmt: skip
    columns = ("JOB", "SWITCH", "REGION", "PROTOCOL", "USES", "RATE", "FALLBACK", "BY GLOO", "WHY")
    print_table(columns, jobs, "no job exchanges gradients")


def ina_lines(ina: JobAggregation) -> list[str]:
    """Lines of `plait explain` on the exchange of gradients of a running job."""
    if ina.granted:
        has = f"{region_text(ina.region)} of {ina.switch}, {ina.protocol}, epoch {ina.epoch}"
    else:
        has = f"no memory of a switch: {ina.reason}"
    lines = [f"  aggregation: {has}"]
    if ina.trouble and ina.trouble not in ina.reason:
        lines.append(f"    waits for another region: {ina.trouble}")
    if ina.mode_used is not None:
        used = "a switch adds its gradients up" if ina.mode_used == "aggregation" else "its gradients go by gloo"
        why = f" ({ina.reason})" if ina.granted and ina.mode_used == "gloo" else ""
        shares = f"fallback {share_text(ina.fallback_share)}, by gloo {share_text(ina.gloo_share)}"
        lines.append(f"    {used}{why}: {rate_text(ina.bits_per_s)} a rank, {shares} so far")
    return lines


def region_text(region: Region | None) -> str:
    """A region: aggregators, and whose they are.

    >>> from plait.live.api.jobs import Region
    >>> region_text(Region(offset=64, size=128, mode="dedicated", exclusive=True))
    '128 from 64'
    """
    if region is None:
        return "-"
    if not region.size:
        return "what all share"
    return f"{region.size} from {region.offset}" + ("" if region.exclusive else ", shared")


def share_text(share: float | None) -> str:
    """A share in percent."""
    return "-" if share is None else f"{100 * share:.1f} %"


def rate_text(bits_per_s: float | None) -> str:
    """A rate of gradients.

    >>> rate_text(2.5e9), rate_text(4.2e7)
    ('2.50 Gb/s', '42 Mb/s')
    """
    if bits_per_s is None:
        return "-"
    return f"{bits_per_s / 1e9:.2f} Gb/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:.0f} Mb/s"


def read_statistics(path: str) -> dict[str, Any]:
    """The statistics of the process behind a control socket; raises `InputError` if there is none."""
    try:
        with SwitchControl(path) as control:
            return control.statistics()
    except OSError as error:
        raise InputError(
            f"--control {path}: {error.strerror or error}; is a switch or server running there?"
        ) from error


def show_statistics(found: dict[str, Any]) -> None:
    """Print what the process is and dropped, and a row for each job."""
    data = ":".join(map(str, found["data"]))
    if "switch" in found:
        server = ":".join(map(str, found["server"])) if found["server"] else "no server"
        console().print(
            f"switch {found['switch']} at {data}, {server}: {found['held']} of "
            f"{counted(found['aggregators'], 'aggregator')} of {found['payload']} B held"
        )
        columns = ("aggregated", "collided", "evicted", "aged", "stale", "duplicates", "outside")
    else:
        console().print(
            f"server {found['server']} at {data}: payload of {found['payload']} B, windows up to "
            f"{found['window']}, {counted(found['places'], 'place')} for jobs"
        )
        columns = ("results", "answered", "added", "replaced", "dropped", "stale", "broken")
    console().print(
        f"dropped: {found['malformed']} malformed, {found['foreign']} foreign, {found['refused']} wrong secret, "
        f"{found['kernel_drops']} by the kernel, {found['unsent']} not sent"
    )
    if not found["jobs"]:
        console().print("no jobs")
        return
    ours = ("ranks", "held") if "switch" in found else ("switch", "incomplete")
    grid = Table("job", "mode", "regions", *ours, "packets in", "packets out", *columns)
    for job in found["jobs"]:
        regions = ", ".join(f"{epoch}: {at[0]}+{at[1]}" for epoch, at in job["regions"].items()) or "none"
        grid.add_row(
            f"{job['job']} {job['name']}", job["mode"], regions, *_who(job, "switch" in found),
            str(job["packets_in"]), str(job["packets_out"]),
            *(str(job[name]) for name in columns),
        )  # fmt: skip
    console().print(grid)


def _who(job: dict[str, Any], switch: bool) -> tuple[str, str]:
    """Who has introduced themselves for a job, and what is held for it."""
    if switch:
        return f"{job['greeted']}/{job['workers']}", str(job["held"])
    return "connected" if job["connected"] else "waiting", str(job["open"])


# `plait network show` and `topologies`: switches, links and paths of a cluster, and the options of topologies.

#: Paths listed between two nodes, at most.
MOST_PATHS = 64


def described(cluster: Cluster) -> dict[str, Any]:
    """Nodes and network as JSON values."""
    assert cluster.network is not None
    nodes = [node_to_json(node) for node in cluster.nodes]
    return {"cluster": str(cluster), "nodes": nodes, "network": network_to_json(cluster.network)}


def paths_between(cluster: Cluster, text: str) -> list[dict[str, Any]]:
    """The first shortest paths between the two nodes that a text names: hops, delay and smallest rate."""
    ends = [cluster.index(name.strip()) for name in text.split(",")]
    if len(ends) != 2 or ends[0] == ends[1]:
        raise InputError(f"--path is {text!r}, needs two different nodes, e.g. {cluster.nodes[0].id},NODE")
    graph = Graph.of(cluster)
    return [
        {
            "hops": [graph.names[ends[0]], *(graph.names[int(graph.ends[channel][1])] for channel in path)],
            "delay_us": round(1e6 * graph.delay_s(path), 6),
            "gbps": float(graph.channel_bits_per_s[list(path)].min()) / 1e9,
        }
        for path in islice(graph.shortest_paths(ends[0], ends[1]), MOST_PATHS)
    ]


def show_network(cluster: Cluster, paths: list[dict[str, Any]] | None) -> None:
    """Print switches and links by tier, and paths if there are any to print."""
    network = cluster.network
    assert network is not None
    size = f"{counted(len(cluster.nodes), 'node')}, {counted(len(network.links), 'link')}"
    grid = Table(
        "tier", "switches", "aggregators", "reserved", "payload B", "levels", "to nodes Gb/s", "down Gb/s", "up Gb/s",
        "down / up", title=f"{network}: {size}", title_justify="left",
    )  # fmt: skip
    for tier in sorted({switch.tier for switch in network.switches}):
        # The row of the switches of a tier; rates are per switch.
        tiers = {switch.id: switch.tier for switch in network.switches}
        here = [switch for switch in network.switches if switch.tier == tier]
        rates = {switch.id: [0.0, 0.0, 0.0] for switch in here}  # to nodes, to lower tiers, to higher ones
        for link in network.links:
            for one, other in ((link.a, link.b), (link.b, link.a)):
                if one in rates:
                    kind = 0 if other not in tiers else 1 if tiers[other] <= tier else 2
                    rates[one][kind] += link.bits_per_s / 1e9
        ratios = [(nodes + down) / up for nodes, down, up in rates.values() if up]
        grid.add_row(
            str(tier), str(len(here)), _span(s.aggregators for s in here), _span(s.reserved for s in here),
            _span(s.payload_bytes for s in here if s.aggregators), _span(s.levels for s in here if s.aggregators),
            *(_span(rate[kind] for rate in rates.values()) for kind in range(3)), _span(ratios),
        )  # fmt: skip
    console().print(grid)
    if paths is not None:
        table = Table("path", "delay us", "Gb/s")
        for path in paths:
            table.add_row(" ".join(path["hops"]), f"{path['delay_us']:g}", f"{path['gbps']:g}")
        console().print(table)


def _span(values: Iterable[float]) -> str:
    """One value, or the least and the largest; nothing for zeros alone."""
    known = sorted(set(values))
    if not known or known == [0]:
        return "-"
    return f"{known[0]:,.12g}" if len(known) == 1 else f"{known[0]:,.6g} to {known[-1]:,.6g}"


def show_topologies() -> None:
    """Print each topology with its options."""
    for name, kind in SHAPES.items():
        about = (kind.__doc__ or "").partition("\n")[0]
        grid = Table("option", "meaning", "default", title=f"{name}: {about}", title_justify="left")
        for one in declared(kind):
            grid.add_row(one.name, one.option.help, f"{one.default:,g}" if one.type is not str else one.default)
        console().print(grid)
