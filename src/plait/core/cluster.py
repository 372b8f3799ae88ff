"""Hardware of a cluster: nodes with GPUs in racks, and the switches and links that join them. Start at `Cluster`.

Hardware only: its use is always computed from a plan, never kept here. `plait.network.topology` builds networks and
finds paths in them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.codec.values import form
from plait.core.errors import InputError, suggest
from plait.core.resources import CPU_KIND


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch. With `aggregators` it can add up gradients; each aggregator holds the payload of one packet.

    tier                 1: nodes are attached to it; 2 joins switches of tier 1, and so on
    aggregators          in its memory; 0: it does not aggregate
    reserved             of these, no job may use so many
    payload_bytes        of one packet and aggregator
    levels               1: it adds up packets of workers; 2: also sums that other switches send
    process_bits_per_s   payload that it can aggregate; 0: not a limit
    delay_s              of a packet that passes it
    """

    id: str
    tier: int = 1
    aggregators: int = 0
    reserved: int = 0
    payload_bytes: int = 248
    levels: int = 1
    process_bits_per_s: float = 0.0
    delay_s: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.reserved <= self.aggregators:
            raise InputError(
                f"switch {self.id!r}: reserved is {self.reserved}, needs 0 to its {self.aggregators} aggregators"
            )
        if self.payload_bytes < 4 or self.payload_bytes % 4:
            raise InputError(
                f"switch {self.id!r}: payload_bytes is {self.payload_bytes}, needs a positive multiple of 4 "
                "(values of 32 bits)"
            )
        if self.tier < 1 or self.levels not in (1, 2):
            raise InputError(
                f"switch {self.id!r}: tier is {self.tier} and levels is {self.levels}, "
                "needs a tier of at least 1 and 1 or 2 levels"
            )
        for name in ("process_bits_per_s", "delay_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"switch {self.id!r}: {name} is {getattr(self, name):g}, needs a finite number >= 0")

    @property
    def usable(self) -> int:
        """Aggregators that jobs may use."""
        return self.aggregators - self.reserved


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex link between `a` and `b`, each a switch or a node by its id.

    `bits_per_s` holds for each direction, `delay_s` is that of propagation.
    """

    a: str
    b: str
    bits_per_s: float
    delay_s: float = 1e-6

    def __post_init__(self) -> None:
        if self.a == self.b:
            raise InputError(f"a link joins {self.a!r} with itself; name two different ends")
        if not 0 < self.bits_per_s < math.inf:
            raise InputError(f"link {self}: bits_per_s is {self.bits_per_s:g}, needs a positive, finite number")
        if not 0 <= self.delay_s < math.inf:
            raise InputError(f"link {self}: delay_s is {self.delay_s:g}, needs a finite number >= 0")

    def __str__(self) -> str:
        return f"{self.a}-{self.b}"


@dataclass(frozen=True)
class Network:
    """Switches and links in a fixed order; ends of links that are no switches are nodes.

    `description` is how it was made, for people and results. `down` names switches that are lost, in the order of
    `switches`: they aggregate nothing, and nodes that they cut off are reported as lost by themselves.

    >>> net = Network((Switch("leaf0"),), (Link("n0", "leaf0", 1e11), Link("n1", "leaf0", 1e11)))
    >>> net.attached
    ('n0', 'n1')
    """

    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    description: str = ""
    down: tuple[str, ...] = field(default=(), metadata=form(omit=True))

    def __post_init__(self) -> None:
        if len(self.names) < len(self.switches):
            twice = next(name for name, count in Counter(s.id for s in self.switches).items() if count > 1)
            raise InputError(f"two switches are called {twice!r}; names must be unique")
        pairs = set()
        for link in self.links:
            if link.a not in self.names and link.b not in self.names:
                raise InputError(f"link {link}: neither end is a switch; known: {', '.join(sorted(self.names))}")
            pair = frozenset((link.a, link.b))
            if pair in pairs:
                raise InputError(f"two links join {link.a} and {link.b}; write one, with the sum of their rates")
            pairs.add(pair)

    @cached_property
    def names(self) -> frozenset[str]:
        """The ids of the switches."""
        return frozenset(switch.id for switch in self.switches)

    @cached_property
    def attached(self) -> tuple[str, ...]:
        """The nodes at the ends of links, each once, in order of first appearance."""
        ends = (end for link in self.links for end in (link.a, link.b))
        return tuple(dict.fromkeys(end for end in ends if end not in self.names))

    def check(self, nodes: Collection[str]) -> None:
        """Raise `InputError` unless exactly these nodes are attached and every node reaches every other."""
        attached = set(self.attached)
        missing = [node for node in nodes if node not in attached]
        if missing:
            raise InputError(f"node {missing[0]!r} has no link; every node needs one to a switch")
        known = set(nodes)
        for link in self.links:
            for end in (link.a, link.b):
                if end not in known and end not in self.names:
                    raise InputError(f"link {link}: {end!r} is neither a switch nor a node of the cluster")
                if end in known and end in self.names:
                    raise InputError(f"{end!r} is the name of a switch and of a node; names must differ")
        reached = self._reached_from(next(iter(nodes)))
        apart = [node for node in nodes if node not in reached]
        if apart:
            raise InputError(f"no path leads from node {next(iter(nodes))!r} to node {apart[0]!r}; link their switches")

    def switch(self, name: str) -> Switch:
        """A switch by its name; raises `InputError` if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise InputError(f"no switch {name!r} in this network; {suggest(name, sorted(self.names))}")
        return found

    @cached_property
    def _by_name(self) -> dict[str, Switch]:
        return {switch.id: switch for switch in self.switches}

    @property
    def most_usable(self) -> int:
        """Aggregators that jobs may use of the switch with most of them, up or down; 0: none aggregates."""
        return max((switch.usable for switch in self.switches), default=0)

    def with_switch(self, name: str) -> Network:
        """The network after a switch came back; raises `InputError` for an unknown one."""
        self.switch(name)
        return replace(self, down=tuple(one for one in self.down if one != name))

    def without_switch(self, name: str) -> Network:
        """The network after a switch was lost; raises `InputError` for an unknown one."""
        self.switch(name)
        gone = {*self.down, name}
        return replace(self, down=tuple(switch.id for switch in self.switches if switch.id in gone))

    def without(self, node: str) -> Network:
        """The network without the links of a node."""
        return replace(self, links=tuple(link for link in self.links if node not in (link.a, link.b)))

    def _reached_from(self, node: str) -> set[str]:
        """Nodes and switches that paths from a node reach; nodes do not forward."""
        beside: dict[str, list[str]] = {}
        for link in self.links:
            beside.setdefault(link.a, []).append(link.b)
            beside.setdefault(link.b, []).append(link.a)
        reached, left = {node}, [node]
        while left:
            at = left.pop()
            if at in self.names or at == node:
                new = [end for end in beside[at] if end not in reached]
                reached.update(new)
                left += new
        return reached

    def __str__(self) -> str:
        return self.description or f"{len(self.switches)} switches, {len(self.links)} links"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its index in the cluster, the index of its node, its kind."""

    index: int
    node: int
    kind: str


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. Zero `cpus` or `memory_bytes` means: not a limit; zero `nic_bytes_per_s`: not known."""

    id: str
    gpus: int
    gpu_kind: str = "gpu"
    gpu_memory_bytes: int = 0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    rack: int = 0
    nic_bytes_per_s: float = field(default=0.0, metadata=form(omit=True))

    def __post_init__(self) -> None:
        if self.gpus < 0:
            raise InputError(f"node {self.id!r}: gpus must be >= 0, got {self.gpus}")
        if self.cpus < 0 or self.memory_bytes < 0 or self.gpu_memory_bytes < 0:
            raise InputError(f"node {self.id!r}: cpus and memory must be >= 0")
        if not 0 <= self.nic_bytes_per_s < np.inf:
            raise InputError(
                f"node {self.id!r}: nic_bytes_per_s is {self.nic_bytes_per_s:g}, needs a finite number >= 0"
            )


#: Characters that describe equal nodes, nodes, and GPUs of one, at most.
_LONGEST, _MOST_NODES, _MOST_GPUS = 200, 100_000, 10_000
_NODES = (
    r"(?P<nodes>\d+)x(?P<gpus>\d+)(?::(?P<kind>[A-Za-z][\w.-]*))?"
    r"(?:\+(?P<cpus>\d+)c)?(?:\+(?P<memory>\d+)g)?(?:@(?P<rack>\d+))?"
)


def _free(index: int) -> str:
    """The placeholder for a forgotten node at `index`; no node may have this name."""
    return f"-{index}"


@dataclass(frozen=True)
class Cluster:
    """Nodes in a fixed order; GPU number `i` of the cluster belongs to `gpu_node[i]`.

    A node that is down keeps its place and its GPU numbers, so plans and logs stay readable. The place of a forgotten
    node is taken by the next new node with as many GPUs, so a cluster whose nodes come and go does not keep growing.
    `network` is None where switches and links are not known; `with_network` checks it. `reserved`: sets of nodes, by
    id, in which jobs find no room that are barred from them (`JobTable.columns["barred"]`, a flag a set).

    >>> Cluster.parse("2x4").gpus
    8
    >>> Cluster.parse("2x8:v100,1x4:a100").kinds
    ('v100', 'a100')
    """

    nodes: tuple[Node, ...]
    up: tuple[bool, ...] = field(default=())
    network: Network | None = None
    reserved: tuple[frozenset[str], ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InputError("a cluster needs at least one node, e.g. --cluster 8x8")
        ids = {n.id for n in self.nodes}
        if len(ids) != len(self.nodes):
            raise InputError("node ids must be unique")
        if not self.up:
            object.__setattr__(self, "up", (True,) * len(self.nodes))
        if len(self.up) != len(self.nodes):
            raise InputError("`up` needs one value a node")

    @classmethod
    def of(cls, nodes: int, gpus_per_node: int, **node: object) -> Cluster:
        """A uniform cluster; further keywords go to every `Node`."""
        return cls(tuple(Node(f"n{i}", gpus_per_node, **node) for i in range(nodes)))  # type: ignore[arg-type]

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read groups of equal nodes, separated by commas.

        Each is `NODESxGPUS[:KIND][+CPUSc][+MEMORYg][@NODES_PER_RACK]`, e.g. `8x8`, `4x8:v100,2x8:a100`,
        `16x8+96c+512g@4` (96 cores and 512 GB a node, racks of four). Raises `InputError` for anything else.
        """
        nodes: list[Node] = []
        rack = 0
        for part in text.split(","):
            match = re.fullmatch(_NODES, part.strip()) if len(part) <= _LONGEST else None
            if not match or int(match["nodes"]) < 1 or int(match["gpus"]) < 1 or match["rack"] == "0":
                raise InputError(
                    f"cannot read cluster {part.strip()[:_LONGEST]!r}; write NODESxGPUS, e.g. 8x8, 4x8:v100,2x8:a100, "
                    "16x8+96c+512g (cores and GB a node), or 16x8@4 for racks of four nodes"
                )
            if len(nodes) + int(match["nodes"]) > _MOST_NODES or int(match["gpus"]) > _MOST_GPUS:
                raise InputError(
                    f"cluster {part.strip()!r} is too large; at most {_MOST_NODES:,} nodes of {_MOST_GPUS:,} GPUs fit"
                )
            per_rack = int(match["rack"]) if match["rack"] else None
            for i in range(int(match["nodes"])):
                if per_rack and i and i % per_rack == 0:
                    rack += 1
                nodes.append(
                    Node(
                        f"n{len(nodes)}",
                        int(match["gpus"]),
                        match["kind"] or "gpu",
                        cpus=float(match["cpus"] or 0),
                        memory_bytes=float(match["memory"] or 0) * 1e9,
                        rack=rack,
                    )
                )
            rack += 1 if per_rack else 0
        return cls(tuple(nodes))

    @cached_property
    def gpus(self) -> int:
        """GPUs in the cluster, on nodes up and down."""
        return int(self.node_gpus.sum())

    @cached_property
    def node_gpus(self) -> IntArray:
        """GPUs of each node."""
        return np.array([n.gpus for n in self.nodes], dtype=np.int64)

    @cached_property
    def first_gpu(self) -> IntArray:
        """Offsets: node `n` has the GPUs `first_gpu[n]` to `first_gpu[n + 1] - 1`."""
        return np.concatenate([[0], np.cumsum(self.node_gpus)]).astype(np.int64)

    @cached_property
    def gpu_node(self) -> IntArray:
        """Node of each GPU."""
        return np.repeat(np.arange(len(self.nodes), dtype=np.int64), self.node_gpus)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """GPU kinds in order of first appearance."""
        return tuple(dict.fromkeys(n.gpu_kind for n in self.nodes))

    @cached_property
    def node_kind(self) -> IntArray:
        """Index into `kinds` for each node."""
        number = {kind: i for i, kind in enumerate(self.kinds)}
        return np.array([number[n.gpu_kind] for n in self.nodes], dtype=np.int64)

    @cached_property
    def node_rack(self) -> IntArray:
        """Rack of each node."""
        return np.array([n.rack for n in self.nodes], dtype=np.int64)

    @cached_property
    def node_up(self) -> BoolArray:
        """Whether each node is up."""
        return np.array(self.up, dtype=bool)

    @cached_property
    def all_up(self) -> bool:
        """Whether no node is down."""
        return all(self.up)

    @cached_property
    def node_cpus(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """CPU cores of each node; infinite where not a limit."""
        return np.array([n.cpus or np.inf for n in self.nodes], dtype=np.float64)

    @cached_property
    def node_memory_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Memory of each node in bytes; infinite where not a limit."""
        return np.array([n.memory_bytes or np.inf for n in self.nodes], dtype=np.float64)

    @cached_property
    def node_gpu_memory_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Memory of each GPU of a node in bytes, by node; infinite where not known."""
        return np.array([n.gpu_memory_bytes or np.inf for n in self.nodes], dtype=np.float64)

    @cached_property
    def kind_gpu_memory_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Memory in bytes that every GPU of a kind has, shape (kinds,); infinite where not known."""
        least = np.full(len(self.kinds), np.inf)
        np.minimum.at(least, self.node_kind, self.node_gpu_memory_bytes)
        return least

    @cached_property
    def limits_gpu_memory(self) -> bool:
        """Whether the GPU memory of some node is known."""
        return bool(np.isfinite(self.node_gpu_memory_bytes).any())

    @cached_property
    def limits_nodes(self) -> bool:
        """Whether some node limits CPU cores or host memory."""
        return bool(np.isfinite(self.node_spare[:, :2]).any())

    @cached_property
    def node_spare(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """CPU cores and memory bytes of each empty node; infinite where not a limit.

        Shape (nodes, 2 + sets that are reserved): a node has no room for jobs that are barred from it.
        """
        barred = [[0.0 if n.id in nodes else np.inf for n in self.nodes] for nodes in self.reserved]
        return np.column_stack([self.node_cpus, self.node_memory_bytes, *barred])

    @cached_property
    def any_kind(self) -> IntArray:
        """The mask of all kinds, as an array of one."""
        return np.array([self.kind_mask(None)], dtype=np.int64)

    @cached_property
    def shapes(self) -> Counter[tuple[str, int, float, float]]:
        """How many nodes there are of each GPU kind, number of GPUs, CPU cores and memory bytes; not free places."""
        there = (n for i, n in enumerate(self.nodes) if n.id != _free(i))
        return Counter((n.gpu_kind, n.gpus, n.cpus, n.memory_bytes) for n in there)

    @cached_property
    def gpus_up(self) -> int:
        """GPUs on nodes that are up."""
        return int(self.node_gpus[self.node_up].sum())

    @cached_property
    def cap_prefix(self) -> IntArray:
        """`cap_prefix[kind, k]`: the most GPUs of a kind that `k + 1` whole nodes have together."""
        table = np.zeros((len(self.kinds), len(self.nodes)), dtype=np.int64)
        for kind in range(len(self.kinds)):
            sizes = np.sort(self.node_gpus[self.node_kind == kind])[::-1]
            table[kind, : len(sizes)] = np.cumsum(sizes)
            table[kind, len(sizes) :] = sizes.sum()
        return table

    def kind_mask(self, kinds: Iterable[str] | None) -> int:
        """Bit mask over `kinds`; None allows all but slots for jobs without GPUs, which jobs have to name."""
        if kinds is None:
            kinds = [kind for kind in self.kinds if kind != CPU_KIND]
        return sum(1 << self.kinds.index(kind) for kind in set(kinds) if kind in self.kinds)

    def gpu(self, index: int) -> Gpu:
        """The GPU with this number."""
        node = int(self.gpu_node[index])
        return Gpu(index, node, self.nodes[node].gpu_kind)

    def index(self, node_id: str) -> int:
        """Position of a node; raises `InputError` if no node has that name."""
        for i, node in enumerate(self.nodes):
            if node.id == node_id:
                return i
        raise InputError(f"no node {node_id!r} in this cluster of {len(self.nodes)} nodes")

    def with_node(self, node: Node) -> Cluster:
        """The cluster after `node` joined: back up if it is known by id, else in a free place, else appended."""
        for i, known in enumerate(self.nodes):
            if known.id == node.id:
                if known.gpus != node.gpus:
                    raise InputError(f"node {node.id!r} came back with {node.gpus} GPUs, had {known.gpus}")
                return self._with_up(i, True)
        for i, known in enumerate(self.nodes):
            if known.id == _free(i) and known.gpus == node.gpus:
                return self._renamed(i, node, True)
        return Cluster(self.nodes + (node,), self.up + (True,), self.network)

    def without_node(self, node_id: str) -> Cluster:
        """The cluster after a node went down."""
        return self._with_up(self.index(node_id), False)

    def forget(self, node_id: str) -> Cluster:
        """The cluster without a node that will not come back: its place stays down until a new node takes it."""
        index = self.index(node_id)
        gone = self._renamed(index, replace(self.nodes[index], id=_free(index)), False)
        return gone if self.network is None else replace(gone, network=self.network.without(node_id))

    def with_network(self, network: Network) -> Cluster:
        """The cluster with this network; raises `InputError` unless it joins exactly the nodes of the cluster."""
        network.check([node.id for node in self.nodes])
        return replace(self, network=network)

    def with_switch(self, name: str) -> Cluster:
        """The cluster after a switch came back; raises `InputError` for an unknown one."""
        return replace(self, network=self._switched(name).with_switch(name))

    def without_switch(self, name: str) -> Cluster:
        """The cluster after a switch was lost; raises `InputError` for an unknown one."""
        return replace(self, network=self._switched(name).without_switch(name))

    def _switched(self, switch: str) -> Network:
        if self.network is None:
            raise InputError(f"no switch {switch!r}: this cluster has no network; give it one with `with_network`")
        return self.network

    def _renamed(self, index: int, node: Node, up: bool) -> Cluster:
        nodes = self.nodes[:index] + (node,) + self.nodes[index + 1 :]
        return replace(self, nodes=nodes)._with_up(index, up)

    def _with_up(self, index: int, up: bool) -> Cluster:
        return replace(self, up=self.up[:index] + (up,) + self.up[index + 1 :])

    def largest_gang(self, kinds: Iterable[str] | None = None) -> int:
        """GPUs of the largest gang that fits when the cluster is whole and empty; one kind a gang."""
        allowed = set(self.kinds if kinds is None else kinds)
        return max(
            (sum(n.gpus for n in self.nodes if n.gpu_kind == kind) for kind in self.kinds if kind in allowed),
            default=0,
        )

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __str__(self) -> str:
        """Equal neighbours together, as `parse` writes them; racks are left out."""
        runs: list[tuple[int, str]] = []
        for node in self.nodes:
            text = f"x{node.gpus}" + ("" if node.gpu_kind == "gpu" else f":{node.gpu_kind}")
            text += f"+{node.cpus:.0f}c" if node.cpus else ""
            text += f"+{node.memory_bytes / 1e9:.0f}g" if node.memory_bytes else ""
            if runs and runs[-1][1] == text:
                runs[-1] = (runs[-1][0] + 1, text)
            else:
                runs.append((1, text))
        return ",".join(f"{count}{text}" for count, text in runs)
