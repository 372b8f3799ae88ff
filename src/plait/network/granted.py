"""How jobs with grants of switch memory exchange gradients in the fluid model (our design).

Start at `granted_exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.aggregation.grants import NetworkGrant
from plait.network.fluid.exchanges import Exchange
from plait.network.fluid.jobs import PlacedJob
from plait.network.topology.paths import Graph


def granted_exchange(graph: Graph, workers: Sequence[int], grants: Sequence[NetworkGrant]) -> Exchange:
    """The exchange of a job with workers on these nodes and these grants, all of one mode.

    A worker is added up at its leaf if that is granted, else at the nearest switch that is, the first by number among
    several. A region of the job's own has law `region` at the size of the smallest; indices by hash or cycle share
    memory by those laws. Without a server in the grants it is beside the first worker. A job without grants, or on
    nodes with several links, is a ring.
    """
    if not grants or not graph.single_links:
        return Exchange(PlacedJob(tuple(workers)))
    first, server = grants[0], max(grant.server for grant in grants)
    placed = PlacedJob(tuple(workers), server if server >= 0 else workers[0])
    window = min((grant.window for grant in grants if grant.window), default=0)
    switches = sorted(graph.number(grant.switch) for grant in grants)
    at = tuple(graph.nearest(worker, switches) for worker in workers)
    if at == tuple(graph.leaf(worker) for worker in workers):
        at = ()
    if first.exclusive and min(grant.size for grant in grants) >= 2:
        return Exchange(placed, "region", min(grant.size for grant in grants), window, at=at)
    if first.mode == "shared_cycle":
        return Exchange(placed, "cycle", window=window, at=at)
    return Exchange(placed, "hash", window=window, at=at, priority=first.priority)
