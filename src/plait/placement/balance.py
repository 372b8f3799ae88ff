"""Placements that balance GPUs or flows, or leave few fragments: baselines of `netpack`. Our design.

They need no network: flows are counted by servers and racks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.policy import View
from plait.placement.located import Chooser, Gang
from plait.placement.servers import best_servers


@dataclass(frozen=True)
class GpuBalance:
    """The servers with most free GPUs first, so that all are about equally full."""

    def __call__(self, view: View) -> Chooser:
        """A function that picks the nodes of a gang."""
        return lambda gang: _filled(gang, (-gang.free,))


@dataclass(frozen=True)
class FlowBalance:
    """The servers with the fewest flows first, so that links are about equally used.

    A flow is a job with GPUs on several servers: it uses the link of each of them, and the uplink of each rack if there
    are several. A job that one server can hold has no flow, and goes where it leaves the minimum GPUs over.
    """

    def __call__(self, view: View) -> Chooser:
        """A function that picks the nodes of a gang."""

        def choose(gang: Gang) -> IntArray:
            alone = on_one_server(gang)
            if alone is not None:
                return alone
            server, uplink = _flows(view.cluster, gang)
            return _filled(gang, (server, uplink, -gang.free))

        return choose


@dataclass(frozen=True)
class LeastFragmentation:
    """The servers that are left with the fewest idle GPUs next to busy ones, in as few racks as possible.

    One server if possible, the one with the minimum room left; otherwise the servers whose shares of idle GPUs have the
    smallest sum (`servers.best_servers`).
    """

    def __call__(self, view: View) -> Chooser:
        """A function that picks the nodes of a gang."""

        def choose(gang: Gang) -> IntArray:
            alone = on_one_server(gang)
            if alone is not None:
                return alone
            return best_servers(gang.room, view.cluster.node_rack, gang.gpus, -left_over(view.cluster, gang))[0]

        return choose


def on_one_server(gang: Gang) -> IntArray | None:
    """The gang on the server that then has the fewest free GPUs; None if none can hold it."""
    fits = np.flatnonzero(gang.room >= gang.gpus)
    if not len(fits):
        return None
    take = np.zeros(len(gang.room), dtype=np.int64)
    take[fits[np.argmin(gang.free[fits])]] = gang.gpus
    return take


def left_over(cluster: Cluster, gang: Gang) -> FloatArray:
    """Share of the GPUs of each server that stays idle if it gives 0 to all of a gang; shape (nodes, GPUs + 1)."""
    given = np.arange(gang.gpus + 1)
    share: FloatArray = (gang.free[:, None] - given) / np.maximum(cluster.node_gpus, 1)[:, None]
    return share


def _filled(gang: Gang, keys: Sequence[IntArray]) -> IntArray:
    """All that a server can give, one server after the other by these keys, ties by number."""
    take = np.zeros(len(gang.room), dtype=np.int64)
    left = gang.gpus
    for node in np.lexsort((np.arange(len(take)), *reversed(keys))).tolist():
        take[node] = min(left, int(gang.room[node]))
        left -= int(take[node])
    return take


def _flows(cluster: Cluster, gang: Gang) -> tuple[IntArray, IntArray]:
    """Flows over the link of each server, and over the uplink of its rack."""
    server = np.zeros(len(cluster.nodes), dtype=np.int64)
    uplink = np.zeros(int(cluster.node_rack.max()) + 1, dtype=np.int64)
    for nodes in gang.placed.values():
        if len(nodes) > 1:
            server[list(nodes)] += 1
            racks = np.unique(cluster.node_rack[list(nodes)])
            uplink[racks] += len(racks) > 1
    return server, uplink[cluster.node_rack]
