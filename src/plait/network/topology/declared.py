"""Networks that are declared before their nodes are there: of a cluster whose nodes come and go. Start at `Declared`.

declared = Declared.read("leaf-spine:aggregators=4096")   # or of a cluster file: Declared.of_file(text, name)
cluster = declared.join(cluster)                          # whenever nodes have come or gone
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from plait.core.cluster import Cluster, Link, Network
from plait.core.errors import InputError, suggest
from plait.network.topology.build import build_growing
from plait.network.topology.cluster_file import file_text, read_cluster_file
from plait.network.topology.fields import placed, read_options, split_options
from plait.network.topology.read import NAMES
from plait.network.topology.shapes import SHAPES, SingleSwitch

#: The value of `--network` that removes the network of a cluster.
NONE = "none"
#: The rack of a node by the name of the node.
Racks = dict[str, int]


@dataclass(frozen=True)
class Declared:
    """What was declared of a network: the short text of a topology, or the switches and links of a cluster file.

    text     TOPOLOGY[:option=value,...], or how a network was listed, for people
    listed   of a cluster file: the network of all its nodes; None for a topology
    racks    of a cluster file: the rack of each of its nodes
    """

    text: str
    listed: Network | None = None
    racks: tuple[tuple[str, int], ...] = ()

    @classmethod
    def read(cls, text: str) -> Declared:
        """Of a short text; raises `InputError` for an unknown topology or option, and one that cannot grow."""
        one = cls(text.strip())
        one._joined(Cluster.of(1, 1))
        return one

    @classmethod
    def of_file(cls, text: str, file: str) -> Declared:
        """Of the text of a cluster file with a network; `file` is its name in errors, which are `InputError`."""
        cluster = read_cluster_file(text, file)
        if cluster.network is None:
            raise InputError(f"{file} has no [network]; write one, or give --network a topology")
        return cls(str(cluster.network), cluster.network, tuple((node.id, node.rack) for node in cluster.nodes))

    def join(self, cluster: Cluster) -> Cluster:
        """The cluster with this network for the nodes that it has now.

        Switches that were up stay so, all others that aggregate are down until somebody serves them.
        """
        network, before = self._joined(cluster), cluster.network
        up = set() if before is None else before.names - set(before.down)
        down = tuple(one.id for one in network.switches if one.aggregators and one.id not in up)
        return replace(cluster, network=None).with_network(replace(network, down=down))

    def _joined(self, cluster: Cluster) -> Network:
        if self.listed is None:
            shape, where = self._shape()
            return placed(lambda: build_growing(cluster, shape, self.text), where)
        return _attached(self.listed, dict(self.racks), cluster)

    def _shape(self) -> tuple[SingleSwitch, str]:
        name, values, where = split_options(self.text, *NAMES)
        if name not in SHAPES:
            raise InputError(f"{where}: topology {name!r} is unknown; {suggest(name, SHAPES)}")
        return read_options(SHAPES[name], values, where), where


def _attached(network: Network, racks: Racks, cluster: Cluster) -> Network:
    """A listed network with the nodes that are there: its own, and others at the switch of their rack.

    Nodes of the cluster that the file does not have are linked as the first node of their rack is, or the first node.
    """
    here = {node.id for node in cluster.nodes}
    links = [link for link in network.links if {link.a, link.b} <= here | network.names]
    of_node: dict[str, list[Link]] = {}
    for link in network.links:
        for end in (link.a, link.b):
            if end not in network.names:
                of_node.setdefault(end, []).append(link)
    for node in cluster.nodes:
        if node.id not in of_node:
            like = next((name for name in of_node if racks.get(name) == node.rack), next(iter(of_node)))
            links += [
                replace(link, a=node.id if link.a == like else link.a, b=node.id if link.b == like else link.b)
                for link in of_node[like]
            ]
    return replace(network, links=tuple(links))


def read_network(text: str | None) -> Declared | None:
    """Read `--network` of a service: a topology, a cluster file in TOML, or `none`; None if it is not given.

    Raises `InputError` for anything that cannot be read. `none` is a declaration without text and switches.
    """
    if text is None or text == NONE:
        return None if text is None else Declared("")
    return Declared.of_file(file_text(text), text) if text.lower().endswith(".toml") else Declared.read(text)
