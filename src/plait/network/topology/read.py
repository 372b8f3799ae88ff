"""Networks from a text such as `leaf-spine:oversubscription=2,link_gbps=100`. Start at `networked`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.core.cluster import Cluster, Network
from plait.core.errors import InputError, suggest
from plait.network.topology.build import build
from plait.network.topology.fields import placed, read_options, split_options
from plait.network.topology.shapes import SHAPES

#: What errors call a text, and their example.
NAMES = "network", "leaf-spine:link_gbps=100,aggregators=20000"


def networked(cluster: Cluster, text: str) -> Cluster:
    """The cluster with the network that `TOPOLOGY[:option=value,...]` describes.

    Raises `InputError` for an unknown topology or option, a value out of range, or nodes that do not fit.

    >>> from plait.core.cluster import Cluster
    >>> net = networked(Cluster.parse("8x4@4"), "leaf-spine:oversubscription=2,aggregators=20000").network
    >>> len(net.switches), [link.bits_per_s for link in net.links][-1]
    (4, 100000000000.0)
    """
    name, values, where = split_options(text, *NAMES)
    network = network_of_shape(cluster, name, values, where, text)
    return placed(lambda: cluster.with_network(network), where)


def network_of_shape(cluster: Cluster, name: str, values: Mapping[str, Any], where: str, description: str) -> Network:
    """The network of a topology with these options; `where` is the place that errors name."""
    if name not in SHAPES:
        raise InputError(f"{where}: topology {name!r} is unknown; {suggest(name, SHAPES)}")
    shape = read_options(SHAPES[name], values, where)
    return placed(lambda: build(cluster, shape, description), where)
