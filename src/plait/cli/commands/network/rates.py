"""`plait network rates`: jobs as texts, and the rates that they get of the links they share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from plait.cli.render.console import console
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.jobs import rates as rates_of
from plait.network.fluid.memory import Windows, aggregated_rates
from plait.network.topology.paths import Graph


def rows_of(cluster: Cluster, jobs: Sequence[str], gradient_mb: float) -> list[dict[str, Any]]:
    """One row a job: its rate, its bottleneck, and the seconds of one exchange; None where no link is used."""
    graph, placed = _read(cluster, jobs, gradient_mb)
    found = rates_of(graph, placed)
    rows = []
    for text, job, rate, channel in zip(jobs, placed, found.bits_per_s.tolist(), found.channel.tolist(), strict=True):
        used = channel >= 0
        rows.append(
            {
                "job": text,
                "workers": len(job.workers),
                "exchange": "ring" if job.server is None else "parameter server",
                "gbps": rate / 1e9 if used else None,
                "bottleneck": graph.channel_name(channel) if used else None,
                "exchange_s": 8e6 * gradient_mb / rate if used else 0.0,
            }
        )
    return rows


def aggregated_rows(
    cluster: Cluster, jobs: Sequence[str], gradient_mb: float, law: str, window: int
) -> list[dict[str, Any]]:
    """The same where leaf switches aggregate; also the law, the share aggregated and the packets to the server."""
    graph, placed = _read(cluster, jobs, gradient_mb)
    for text, job in zip(jobs, placed, strict=True):
        if job.server is None:
            raise InputError(f"job {text!r} has no parameter server, which --memory-law needs; write e.g. {text}>NODE")
    if not any(switch.usable for switch in graph.network.switches):
        raise InputError(
            "no switch of the network aggregates; give aggregators, e.g. --network single-switch:aggregators=20000"
        )
    found = aggregated_rates(graph, placed, Windows(window), law)
    rows = []
    for j, (text, job) in enumerate(zip(jobs, placed, strict=True)):
        rate, channel = float(found.bits_per_s[j]), int(found.channel[j])
        rows.append(
            {
                "job": text,
                "workers": len(job.workers),
                "exchange": f"aggregated ({law})",
                "gbps": rate / 1e9,
                "bottleneck": graph.channel_name(channel) if channel >= 0 else "window",
                "exchange_s": 8e6 * gradient_mb / rate,
                "aggregated": float(found.aggregated[j]),
                "server_packets": float(found.server_packets[j]),
            }
        )
    return rows


def _read(cluster: Cluster, jobs: Sequence[str], gradient_mb: float) -> tuple[Graph, list[PlacedJob]]:
    """The graph and the jobs; raises `InputError` for what is wrong with either."""
    if not 0 < gradient_mb < math.inf:
        raise InputError(f"--gradient-mb must be over 0, got {gradient_mb:g}")
    return Graph.of(cluster), [read_job(cluster, text) for text in jobs]


def read_job(cluster: Cluster, text: str) -> PlacedJob:
    """Read `n0,n1,n5`, `n0..n3` or `n0..n3>n9`; raises `InputError` that names the job."""
    workers, server, last = text.partition(">")
    try:
        nodes = [node for part in workers.split(",") for node in _nodes(cluster, part.strip())]
        return PlacedJob(tuple(nodes), cluster.index(last.strip()) if server else None)
    except InputError as error:
        raise InputError(f"job {text!r}: {error}; write e.g. n0,n1,n5, n0..n3 or n0..n3>n9") from error


def _nodes(cluster: Cluster, text: str) -> list[int]:
    """One node by name, or all from one to another in the order of the cluster."""
    match = re.fullmatch(r"(.+?)\.\.(.+)", text)
    if match is None:
        return [cluster.index(text)]
    first, last = cluster.index(match[1]), cluster.index(match[2])
    if last < first:
        raise InputError(f"{match[1]} comes after {match[2]}")
    return list(range(first, last + 1))


def show_rates(rows: list[dict[str, Any]]) -> None:
    """Print the rows."""
    more = {"aggregated": "share aggregated", "server_packets": "packets to server"}
    shown = {title: name for name, title in more.items() if name in rows[0]}
    grid = Table("job", "workers", "exchange", "Gb/s", "bottleneck", "one exchange, ms", *shown)
    for row in rows:
        rate = "no link" if row["gbps"] is None else f"{row['gbps']:.3f}"
        bottleneck = row["bottleneck"] or "-"
        last = [f"{row[name]:.3f}" for name in shown.values()]
        grid.add_row(
            row["job"], str(row["workers"]), row["exchange"], rate, bottleneck, f"{1000 * row['exchange_s']:.3f}", *last
        )
    console().print(grid)
