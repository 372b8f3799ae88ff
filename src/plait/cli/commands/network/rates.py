"""`plait network rates`: jobs as texts, and the rates that they get of the links they share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from rich.table import Table

from plait.cli.render.console import console
from plait.control.messages import network_to_json, node_to_json
from plait.core.cluster import Cluster, Network
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.options import declared
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import Resource, StageProfile
from plait.core.words import counted
from plait.grouping.times import best_turns
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.jobs import rates as rates_of
from plait.network.fluid.memory import Windows, aggregated_rates
from plait.network.measured import MOST_STALLED
from plait.network.topology.paths import Graph
from plait.network.topology.shapes import SHAPES
from plait.sim.contention.network import NetworkPhysics, with_gradient_bytes
from plait.sim.physics import StandardPhysics
from plait.traces.assign import catalogue


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
                "law_holds": bool(found.stalled[j] <= MOST_STALLED),
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
    doubtful = [row["job"] for row in rows if not row.get("law_holds", True)]
    if doubtful:
        console().print(
            f"The law may be far off for {', '.join(doubtful)}: over half a sum of each window stalls. Follow packets: "
            "plait network simulate"
        )


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
        grid.add_row(*_tier(network, tier))
    console().print(grid)
    if paths is not None:
        table = Table("path", "delay us", "Gb/s")
        for path in paths:
            table.add_row(" ".join(path["hops"]), f"{path['delay_us']:g}", f"{path['gbps']:g}")
        console().print(table)


def _tier(network: Network, tier: int) -> list[str]:
    """The row of the switches of a tier; rates are per switch."""
    tiers = {switch.id: switch.tier for switch in network.switches}
    here = [switch for switch in network.switches if switch.tier == tier]
    rates = {switch.id: [0.0, 0.0, 0.0] for switch in here}  # to nodes, to lower tiers, to higher ones
    for link in network.links:
        for one, other in ((link.a, link.b), (link.b, link.a)):
            if one in rates:
                kind = 0 if other not in tiers else 1 if tiers[other] <= tier else 2
                rates[one][kind] += link.bits_per_s / 1e9
    ratios = [(nodes + down) / up for nodes, down, up in rates.values() if up]
    return [
        str(tier), str(len(here)), _span(s.aggregators for s in here), _span(s.reserved for s in here),
        _span(s.payload_bytes for s in here if s.aggregators), _span(s.levels for s in here if s.aggregators),
        *(_span(rate[kind] for rate in rates.values()) for kind in range(3)), _span(ratios),
    ]  # fmt: skip


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


def turn_rows(
    cluster: Cluster, jobs: Sequence[str], overlap: float = 0.0, phases: str = "random"
) -> list[dict[str, Any]]:
    """One row a job `MODEL@NODES`; jobs on the same nodes are a group. Times in seconds an iteration.

    `alone_s`: on these nodes without any other; `all_at_once_s`: with all others, each using resources whenever it
    wants; `in_turns_s`: with the members of its group in turns, while other groups use the network; `turns_alone_s`:
    the same without the other groups. `exchange_alone_s` and `exchange_in_turns_s`: of the exchange. Raises
    `InputError` for a model without a profile at that size, and for groups that overlap.
    """
    specs, nodes = zip(*(_job_on_nodes(cluster, text, i) for i, text in enumerate(jobs)), strict=True)
    truth = with_gradient_bytes(JobBatch.of(specs), 0)
    places = list(dict.fromkeys(nodes))
    taken = [node for place in places for node in place]
    if len(set(taken)) < len(taken):
        raise InputError(
            "two groups share some of their nodes; jobs of one group name the same nodes, others none of them"
        )
    members = {place: [j for j, at in enumerate(nodes) if at == place] for place in places}
    physics = NetworkPhysics(StandardPhysics(interference=(1.0,)), overlap, phases)
    for_itself = {place: _groups(cluster, truth, [(place, members[place])], Gate.BARRIER) for place in places}
    together = [(place, members[place]) for place in places]
    free, turns = (_groups(cluster, truth, together, gate) for gate in (Gate.NONE, Gate.BARRIER))
    paces = {name: _by_job(physics, truth, groups, cluster) for name, groups in (("free", free), ("turns", turns))}
    rows = []
    for j, text in enumerate(jobs):
        one = _groups(cluster, truth, [(nodes[j], [j])], Gate.NONE)
        rows.append(
            {
                "job": text,
                "alone_s": _by_job(physics, truth, one, cluster)[j],
                "exchange_alone_s": _exchange_s(physics, truth, one, cluster, j),
                "all_at_once_s": paces["free"][j],
                "in_turns_s": paces["turns"][j],
                "exchange_in_turns_s": _exchange_s(physics, truth, turns, cluster, j),
                "turns_alone_s": _by_job(physics, truth, for_itself[nodes[j]], cluster)[j],
            }
        )
    return rows


def _job_on_nodes(cluster: Cluster, text: str, number: int) -> tuple[JobSpec, tuple[int, ...]]:
    model, at, where = text.partition("@")
    if not at:
        raise InputError(f"job {text!r}: write MODEL@NODES, e.g. vgg16@n0..n1; models: {', '.join(catalogue().models)}")
    placed = read_job(cluster, where)
    nodes = tuple(sorted(placed.workers))
    if placed.server is not None:
        raise InputError(f"job {text!r}: exchanges in a ring; leave out > and the server")
    gpus = int(cluster.node_gpus[list(nodes)].sum())
    known = catalogue().profile(model, gpus)
    stages = StageProfile.of(
        storage=known.storage_s,
        cpu=known.cpu_s,
        gpu=known.gpu_s,
        network=known.network_s,
        iteration_s=known.iteration_s,
    )
    return JobSpec(id=f"{number}:{text}", gpus=gpus, model=model, iterations=1, profile=stages), nodes


def _groups(
    cluster: Cluster, truth: JobBatch, places: Sequence[tuple[tuple[int, ...], list[int]]], gate: Gate
) -> Groups:
    groups = []
    for nodes, jobs in places:
        turns: Sequence[int] = (0,) * len(jobs)
        if gate == Gate.BARRIER and len(jobs) > 1:
            turns = best_turns(truth.stage_s[jobs])[1]
        gpus = tuple(np.flatnonzero(np.isin(cluster.gpu_node, nodes)).tolist())
        members = tuple(Member(job, turn) for job, turn in zip(jobs, turns, strict=True))
        groups.append(Group(members, gpus, gate if len(jobs) > 1 else Gate.NONE))
    return Groups.of(groups)


def _by_job(physics: NetworkPhysics, truth: JobBatch, groups: Groups, cluster: Cluster) -> dict[int, float]:
    return dict(zip(groups.jobs.tolist(), physics.iteration_s(truth, groups, cluster).tolist(), strict=True))


def _exchange_s(physics: NetworkPhysics, truth: JobBatch, groups: Groups, cluster: Cluster, job: int) -> float:
    """Seconds of the exchange of a job between nodes; its stage on one node."""
    found = physics.exchanges(truth, groups, cluster, {}, physics.inner.alone_s(truth, groups, cluster))
    row = groups.jobs.tolist().index(job)
    return found[row][1] if row in found else float(truth.stage_s[job, Resource.NETWORK])


def show_turns(rows: list[dict[str, Any]]) -> None:
    """Print the rows, and what turns are worth."""
    grid = Table("job", "alone", "exchange", "all at once", "in turns", "exchange in turns", "turns, network idle")
    names = ("alone_s", "exchange_alone_s", "all_at_once_s", "in_turns_s", "exchange_in_turns_s", "turns_alone_s")
    for row in rows:
        grid.add_row(row["job"], *(f"{1000 * row[name]:.1f}" for name in names))
    console().print(grid)
    worth = sum(1 / row["in_turns_s"] for row in rows) / sum(1 / row["all_at_once_s"] for row in rows) - 1
    console().print(f"Milliseconds an iteration. Turns: {100 * worth:+.1f} % iterations of all jobs together.")
