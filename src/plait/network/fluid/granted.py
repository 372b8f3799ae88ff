"""From grants of switch memory to the exchange that they make of a job's gradients. Start at `granted_exchange`."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.network_grants import NetworkGrant
from plait.network.fluid.exchanges import Exchange
from plait.network.fluid.jobs import PlacedJob
from plait.network.topology.paths import Graph
from plait.network.topology.trees import STRAIGHT


def granted_exchange(graph: Graph, workers: tuple[int, ...], grants: Sequence[NetworkGrant]) -> Exchange:
    """How workers on these nodes exchange gradients with the grants of their job, one or more.

    The granted switches on the way of a worker's packets add them up, as far as their hardware can; if grants name
    workers, the switch that names one adds up its packets first, and packets of a worker that none names go straight to
    the server. Regions of the job alone count as the smallest of them. With dedicated slots the granted switch that is
    nearest to all workers answers. Without a server of its own the job has one beside its first worker.
    """
    number = {name: i for i, name in enumerate(graph.names)}
    one, pick = grants[0], grants[0].routes[0] if grants[0].routes else 0
    adds = tuple(sorted(number[grant.switch] for grant in grants))
    named = {worker: number[grant.switch] for grant in grants for worker in grant.workers}
    at = tuple(named.get(worker, STRAIGHT) for worker in workers) if named else ()
    window = min((grant.window for grant in grants if grant.window), default=0)
    placed = PlacedJob(workers, one.server if one.server >= 0 else workers[0])
    alone = [grant.size for grant in grants if grant.exclusive]
    if alone:
        law = "dedicated" if one.mode == "dedicated" else "region"
        return Exchange(placed, law, min(alone), window, at=at, adds=adds, pick=pick)
    law = "cycle" if one.mode == "shared_cycle" else "hash"
    return Exchange(placed, law, 0, window, at=at, priority=one.priority, adds=adds, pick=pick)
