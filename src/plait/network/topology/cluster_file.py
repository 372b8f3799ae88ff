"""Clusters from files in TOML: nodes, and their network. Start at `read_cluster_file`.

Fields and their ranges are those of the dataclasses here and of `shapes`; the reference documentation lists them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plait.core.cluster import Cluster, Link, Network, Node, Switch
from plait.core.errors import InputError, suggest
from plait.core.options import option
from plait.network.topology.fields import placed, read_options, refuse_unknown, tables
from plait.network.topology.read import network_of_shape
from plait.network.topology.shapes import SHAPES

_GIGA, _MICRO = 1e9, 1e-6
_MOST_NODES = 100_000


@dataclass(frozen=True)
class NodesTable:
    """`[[nodes]]` of a cluster file: equal nodes."""

    gpus: int = option("GPUs of each node", least=0, most=10_000)
    count: int = option("Number of such nodes", default=1, least=1, most=_MOST_NODES)
    name: str = option("Name of the node, or what the names of several begin with", default="n")
    gpu_kind: str = option("Kind of the GPUs", default="gpu")
    gpu_memory_gb: float = option("Memory of each GPU, GB; 0: not known", default=0.0, least=0, most=1e6)
    cpus: float = option("CPU cores of each node; 0: not a limit", default=0.0, least=0, most=1e6)
    memory_gb: float = option("Host memory of each node, GB; 0: not a limit", default=0.0, least=0, most=1e9)
    nic_gbps: float = option("Rate of all network cards of a node, Gb/s; 0: not known", default=0.0, least=0, most=1e6)
    rack: int = option("Number of the rack, or of the first one", default=0, least=0, most=_MOST_NODES)
    rack_size: int = option("Nodes in a rack; 0: all in one", default=0, least=0, most=_MOST_NODES)


@dataclass(frozen=True)
class SwitchTable:
    """`[[network.switches]]`: a switch; with a topology, changes to the switch of this name."""

    id: str = option("Name of the switch")
    tier: int = option(
        "1: nodes are attached to it; 2: joins switches of tier 1, and so on", default=1, least=1, most=9
    )
    aggregators: int = option("Aggregators; 0: it does not aggregate", default=0, least=0, most=2**31)
    reserved: int = option("Aggregators of these that no job may use", default=0, least=0, most=2**31)
    payload: int = option("Bytes in one packet and aggregator, a multiple of 4", default=248, least=4, most=65536)
    levels: int = option(
        "1: adds up packets of workers; 2: also sums that other switches send",
        default=1,
        least=1,
        most=2,
    )
    process_gbps: float = option(
        "Payload that it can aggregate, Gb/s; 0: not a limit; rates do not count it yet", default=0.0, least=0, most=1e9
    )
    delay_us: float = option("Delay of a packet in it, microseconds", default=1.0, least=0, most=1e6)


@dataclass(frozen=True)
class LinkTable:
    """`[[network.links]]`: a link; with a topology, changes to the link between these ends."""

    ends: list[str] = option("Names of two switches, or of a node and a switch")
    gbps: float = option("Rate, Gb/s each way", default=100.0, least=0.001, most=1e9)
    delay_us: float = option("Propagation delay, microseconds", default=1.0, least=0, most=1e6)


def file_text(path: str) -> str:
    """The text of a cluster file; raises `InputError` for a file that cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the cluster file {path}: {reason}") from error


def read_cluster_file(text: str, file: str) -> Cluster:
    """The cluster that a file describes in TOML; `file` is its name in errors, which are `InputError`."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not TOML: {error}") from error
    refuse_unknown(data, ("nodes", "network"), file)
    if "nodes" not in data:
        raise InputError(f'{file}: nodes is missing; write nodes = "16x8@4", or one [[nodes]] for each kind of node')
    cluster = _nodes(data["nodes"], file)
    if "network" not in data:
        return cluster
    network = _network(cluster, data["network"], f"{file}: network")
    return placed(lambda: cluster.with_network(network), f"{file}: network")


def _nodes(given: Any, file: str) -> Cluster:
    """The nodes of a file, as a text or as tables of equal nodes."""
    if isinstance(given, str):
        return placed(lambda: Cluster.parse(given), f"{file}: nodes")
    nodes: list[Node] = []
    for i, row in enumerate(tables(given, f"{file}: nodes")):
        where = f"{file}: nodes[{i}]"
        one = read_options(NodesTable, row, where)
        if len(nodes) + one.count > _MOST_NODES:
            raise InputError(f"{where}: count is {one.count}; at most {_MOST_NODES:,} nodes fit in all")
        rack = one.rack
        if "rack" not in row and one.rack_size and nodes:
            rack = max(node.rack for node in nodes) + 1
        for k in range(one.count):
            node = Node(
                _name(one, row, k, len(nodes)), one.gpus, one.gpu_kind, int(one.gpu_memory_gb * _GIGA), one.cpus,
                one.memory_gb * _GIGA, rack + (k // one.rack_size if one.rack_size else 0), one.nic_gbps * _GIGA / 8,
            )  # fmt: skip
            nodes.append(node)
    return placed(lambda: Cluster(tuple(nodes)), f"{file}: nodes")


def _name(one: NodesTable, row: Mapping[str, Any], k: int, number: int) -> str:
    """The name of node `k` of a row, which is node `number` of the cluster."""
    if "name" not in row:
        return f"n{number}"
    return one.name if one.count == 1 else f"{one.name}{k}"


def _network(cluster: Cluster, given: Any, where: str) -> Network:
    """The network of a cluster file: built, changed switch by switch and link by link; or listed."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} is {given!r:.80}, needs a table: [network]")
    listed = {"switches", "links"}
    switches = tables(given.get("switches", []), f"{where}.switches")
    links = tables(given.get("links", []), f"{where}.links")
    if "topology" not in given:
        refuse_unknown(given, (*listed, "topology"), where)
        if not switches or not links:
            raise InputError(
                f"{where}: topology is missing; known: {', '.join(SHAPES)}; or list its switches and links"
            )
        made = [_switch(Switch(""), row, f"{where}.switches[{i}]") for i, row in enumerate(switches)]
        joined = [_link(None, row, f"{where}.links[{i}]") for i, row in enumerate(links)]
        return placed(lambda: Network(tuple(made), tuple(joined)), where)
    options = {key: value for key, value in given.items() if key not in listed | {"topology"}}
    name = given["topology"]
    words = ",".join(f"{key}={value}" for key, value in options.items())
    network = network_of_shape(cluster, str(name), options, where, f"{name}:{words}" if words else str(name))
    return _changed(network, switches, links, where)


def _changed(network: Network, switches: list[Any], links: list[Any], where: str) -> Network:
    """The network after changes to switches by id and to links by their ends."""
    by_id = {switch.id: switch for switch in network.switches}
    by_ends = {frozenset((link.a, link.b)): link for link in network.links}
    for i, row in enumerate(switches):
        at = f"{where}.switches[{i}]"
        name = read_options(SwitchTable, row, at).id
        if name not in by_id:
            raise InputError(f"{at}: id is {name!r}, no switch of this topology; {suggest(name, by_id)}")
        by_id[name] = _switch(by_id[name], row, at)
    for i, row in enumerate(links):
        at = f"{where}.links[{i}]"
        ends = frozenset(read_options(LinkTable, row, at).ends)
        if ends not in by_ends:
            raise InputError(
                f"{at}: ends is {row['ends']!r}, no link of this topology; "
                + suggest("-".join(row["ends"]), [str(link) for link in list(network.links)[:50]])
            )
        by_ends[ends] = _link(by_ends[ends], row, at)
    what = f"{network.description}, changed" if switches or links else network.description
    return replace(network, switches=tuple(by_id.values()), links=tuple(by_ends.values()), description=what)


def _switch(before: Switch, row: Mapping[str, Any], where: str) -> Switch:
    """A switch with the fields of a row."""
    one = read_options(SwitchTable, row, where)
    if "tier" in row and before.id and one.tier != before.tier:
        raise InputError(f"{where}: tier is {one.tier}; it is {before.tier} in this topology, leave it out")
    given: dict[str, Any] = {
        "id": {"id": one.id}, "tier": {"tier": one.tier}, "aggregators": {"aggregators": one.aggregators},
        "reserved": {"reserved": one.reserved}, "payload": {"payload_bytes": one.payload},
        "levels": {"levels": one.levels}, "process_gbps": {"process_bits_per_s": one.process_gbps * _GIGA},
        "delay_us": {"delay_s": one.delay_us * _MICRO},
    }  # fmt: skip
    changes: dict[str, Any] = {}
    for key in row:
        changes |= given[key]
    return placed(lambda: replace(before, **changes), where)


def _link(before: Link | None, row: Mapping[str, Any], where: str) -> Link:
    one = read_options(LinkTable, row, where)
    if before is None:
        return placed(lambda: Link(one.ends[0], one.ends[1], one.gbps * _GIGA, one.delay_us * _MICRO), where)
    rate = one.gbps * _GIGA if "gbps" in row else before.bits_per_s
    return replace(before, bits_per_s=rate, delay_s=one.delay_us * _MICRO if "delay_us" in row else before.delay_s)
