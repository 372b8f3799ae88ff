"""Networks of regular shape for the nodes of a cluster: one switch, leaf-spine, fat tree, rail-optimised.

Start at `build`. Racks are those of the nodes (`16x8@4` has racks of four). A node whose bandwidth is known keeps it;
the others have the rate of the options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plait.core.cluster import Cluster, Link, Network, Node, Switch
from plait.core.errors import InputError
from plait.network.topology.shapes import FatTree, LeafSpine, RailOptimised, SingleSwitch

_GIGA, _MICRO = 1e9, 1e-6


def build(cluster: Cluster, shape: SingleSwitch, description: str = "") -> Network:
    """The network of this shape for the nodes of a cluster; raises `InputError` where they do not fit it."""
    _check_aggregating(shape)
    switches, links = _BUILDERS[type(shape)](cluster, shape)
    return Network(tuple(switches), tuple(links), description)


def build_growing(cluster: Cluster, shape: SingleSwitch, description: str = "") -> Network:
    """The network of this shape for the nodes that a growing cluster has so far; a single rack is enough.

    The leaf of a rack has the number of the rack, so it keeps its name whoever joins later. Raises `InputError` for a
    shape whose switches depend on how many nodes there are: fat trees and rails.
    """
    _check_aggregating(shape)
    if type(shape) is SingleSwitch:
        switches, links = _single_switch(cluster, shape)
    elif type(shape) is LeafSpine:
        switches, links = _joined_racks(_by_rack(cluster), shape)
    else:
        raise InputError("a cluster whose nodes come and go needs single-switch, leaf-spine or a cluster file")
    return Network(tuple(switches), tuple(links), description)


def _check_aggregating(shape: SingleSwitch) -> None:
    aggregating = getattr(shape, "aggregating", "leaf")
    if aggregating not in ("leaf", "all"):
        raise InputError(f"aggregating is {aggregating!r}, needs leaf or all")


def _single_switch(cluster: Cluster, shape: SingleSwitch) -> tuple[list[Switch], list[Link]]:
    return [_switch("leaf0", 1, shape)], [_access(node, "leaf0", shape) for node in cluster.nodes]


def _leaf_spine(cluster: Cluster, shape: LeafSpine) -> tuple[list[Switch], list[Link]]:
    racks = _racks(cluster)
    if len(racks) < 2:
        raise InputError(
            f"leaf-spine needs at least two racks, and all nodes of {cluster} are in one; write the size of a rack "
            f"into the cluster, e.g. {_with_racks(cluster)}, or take --network single-switch"
        )
    return _joined_racks(dict(enumerate(racks)), shape)


def _joined_racks(racks: Mapping[int, list[Node]], shape: LeafSpine) -> tuple[list[Switch], list[Link]]:
    """Racks by the number of their leaf, each leaf linked to every spine."""
    switches = [_switch(f"leaf{i}", 1, shape) for i in racks]
    switches += [_switch(f"spine{i}", 2, shape) for i in range(shape.spines)]
    links = [_access(node, f"leaf{i}", shape) for i, nodes in racks.items() for node in nodes]
    for i, nodes in racks.items():
        up = sum(_rate(node, shape) for node in nodes) / shape.oversubscription
        links += [_between(f"leaf{i}", f"spine{j}", up / shape.spines, shape) for j in range(shape.spines)]
    return switches, links


def _fat_tree(cluster: Cluster, shape: FatTree) -> tuple[list[Switch], list[Link]]:
    """After Al-Fares et al. (SIGCOMM 2008): k pods of k/2 edge and k/2 aggregation switches, k^2/4 core switches.

    Racks of the cluster are edge switches; nodes without racks fill the edge switches in order.
    """
    racks = _racks(cluster)
    if len(racks) < 2:
        half = _half(shape, lambda half: 2 * half**3 >= len(cluster.nodes), f"{len(cluster.nodes)} nodes")
        racks = [list(cluster.nodes[i : i + half]) for i in range(0, len(cluster.nodes), half)]
    else:
        most = max(map(len, racks))
        what = f"{len(racks)} racks of up to {most} nodes"
        half = _half(shape, lambda half: half >= most and 2 * half * half >= len(racks), what)
    pods = range(2 * half)
    switches = [_switch(f"leaf{i}", 1, shape) for i in range(2 * half * half)]
    switches += [_switch(f"pod{p}-{j}", 2, shape) for p in pods for j in range(half)]
    switches += [_switch(f"core{i}", 3, shape) for i in range(half * half)]
    rate = shape.link_gbps * _GIGA
    links = [_access(node, f"leaf{i}", shape) for i, nodes in enumerate(racks) for node in nodes]
    for p in pods:
        for j in range(half):
            links += [_between(f"leaf{p * half + i}", f"pod{p}-{j}", rate, shape) for i in range(half)]
            links += [_between(f"pod{p}-{j}", f"core{j * half + i}", rate, shape) for i in range(half)]
    return switches, links


def _half(shape: FatTree, fits: Callable[[int], bool], what: str) -> int:
    """Half the ports of a switch: as asked for, or the least number that fits."""
    least = next((half for half in range(1, 65) if fits(half)), None)
    if least is None:
        raise InputError(f"{what} fit no fat tree of at most 128 ports; take --network leaf-spine")
    if shape.k == 0:
        return least
    if shape.k % 2:
        raise InputError(f"k is {shape.k}, needs an even number of ports, e.g. {2 * least}")
    if not fits(shape.k // 2):
        raise InputError(f"k is {shape.k}, too small for {what}; needs at least {2 * least}")
    return shape.k // 2


def _rail_optimised(cluster: Cluster, shape: RailOptimised) -> tuple[list[Switch], list[Link]]:
    sizes = {node.gpus for node in cluster.nodes}
    if not shape.rails and len(sizes) > 1:
        raise InputError(
            f"the nodes have {' and '.join(map(str, sorted(sizes)))} GPUs; say how many network cards each has, e.g. "
            f"rail:rails={min(sizes)}"
        )
    rails = shape.rails or sizes.pop()
    racks = _racks(cluster)
    switches = [_switch(f"rack{i}-rail{r}", 1, shape) for i in range(len(racks)) for r in range(rails)]
    links = []
    for i, nodes in enumerate(racks):
        for node in nodes:
            each = _rate(node, shape, rails) / rails
            links += [_between(node.id, f"rack{i}-rail{r}", each, shape) for r in range(rails)]
    if len(racks) == 1:
        return switches, links  # rails meet inside the nodes
    switches += [_switch(f"spine{i}", 2, shape) for i in range(shape.spines)]
    for i, nodes in enumerate(racks):
        up = sum(_rate(node, shape, rails) for node in nodes) / rails / shape.oversubscription / shape.spines
        links += [
            _between(f"rack{i}-rail{r}", f"spine{j}", up, shape) for r in range(rails) for j in range(shape.spines)
        ]
    return switches, links


_BUILDERS: dict[type[SingleSwitch], Callable[[Cluster, Any], tuple[list[Switch], list[Link]]]] = {
    SingleSwitch: _single_switch,
    LeafSpine: _leaf_spine,
    FatTree: _fat_tree,
    RailOptimised: _rail_optimised,
}


def _racks(cluster: Cluster) -> list[list[Node]]:
    return list(_by_rack(cluster).values())


def _by_rack(cluster: Cluster) -> dict[int, list[Node]]:
    """The nodes of each rack, by its number, ascending."""
    racks: dict[int, list[Node]] = {}
    for node in cluster.nodes:
        racks.setdefault(node.rack, []).append(node)
    return {rack: racks[rack] for rack in sorted(racks)}


def _with_racks(cluster: Cluster) -> str:
    """An example of the cluster with racks."""
    return ",".join(f"{part}@4" for part in str(cluster).split(","))


def _rate(node: Node, shape: SingleSwitch, cards: int = 1) -> float:
    """Bits a second of all network cards of a node."""
    return 8 * node.nic_bytes_per_s or shape.link_gbps * _GIGA * cards


def _access(node: Node, switch: str, shape: SingleSwitch) -> Link:
    return _between(node.id, switch, _rate(node, shape), shape)


def _between(a: str, b: str, bits_per_s: float, shape: SingleSwitch) -> Link:
    return Link(a, b, bits_per_s, shape.link_delay_us * _MICRO)


def _switch(name: str, tier: int, shape: SingleSwitch) -> Switch:
    """A switch; those above the leaves aggregate only if all do."""
    aggregates = tier == 1 or getattr(shape, "aggregating", "leaf") == "all"
    return Switch(
        name, tier, shape.aggregators if aggregates else 0, shape.reserved if aggregates else 0, shape.payload,
        shape.levels, shape.process_gbps * _GIGA, shape.switch_delay_us * _MICRO,
    )  # fmt: skip
