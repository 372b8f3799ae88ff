"""`plait network show` and `topologies`: switches, links and paths of a cluster, and the options of topologies."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from rich.table import Table

from plait.cli.render.console import console
from plait.control.messages import network_to_json, node_to_json
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.options import declared
from plait.core.words import counted
from plait.network.topology.paths import Graph
from plait.network.topology.shapes import SHAPES

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
