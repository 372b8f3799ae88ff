"""From grants of switch memory to the exchange that they make of a job's gradients. Start at `granted_exchange`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from plait.core.aggregation.grants import NetworkGrant
from plait.network.fluid.exchanges import STRAIGHT, Exchange
from plait.network.fluid.jobs import PlacedJob
from plait.network.topology.paths import Graph


def granted_exchange(graph: Graph, workers: tuple[int, ...], grants: Sequence[NetworkGrant]) -> Exchange:
    """How workers on these nodes exchange gradients with the grants of their job, one or more.

    The packets of a worker are added up at the switch whose grant names it, or, if no grant names any, at the first
    granted switch on its way to the server; they go straight there if there is none. Regions of the job alone count as
    the smallest of them. Memory at the leaf of the server is for the sums of other racks, too, if that switch has a
    second level. Without a server of its own the job has one beside its first worker.
    """
    server = grants[0].server if grants[0].server >= 0 else workers[0]
    number = {name: i for i, name in enumerate(graph.names)}
    switches = {number[grant.switch] for grant in grants}
    named = {worker: number[grant.switch] for grant in grants for worker in grant.workers}
    at = tuple(named.get(worker, STRAIGHT) if named else _first(graph, worker, server, switches) for worker in workers)
    alone = [grant.size for grant in grants if grant.exclusive]
    window = min((grant.window for grant in grants if grant.window), default=0)
    levels = 2 if graph.leaf(server) in switches else 1
    if alone:
        return Exchange(PlacedJob(workers, server), "region", min(alone), window, at=at, levels=levels)
    law = "cycle" if grants[0].mode == "shared_cycle" else "hash"
    return Exchange(PlacedJob(workers, server), law, 0, window, at=at, priority=grants[0].priority, levels=levels)


def _first(graph: Graph, worker: int, server: int, switches: Collection[int]) -> int:
    """The first of these switches on the shortest ways from a worker to the server, or `STRAIGHT`."""
    if worker == server:
        leaf = graph.leaf(worker)
        return leaf if leaf in switches else STRAIGHT
    for channel in graph.shares(worker, server):  # in order of hops
        at = int(graph.ends[channel][1])
        if at in switches:
            return at
    return STRAIGHT
