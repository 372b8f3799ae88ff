"""Faults for a live cluster, as they happen in production, at random times that a seed reproduces.

with Cluster(home, nodes=2, slots=4) as cluster:
    ...submit jobs...
    chaos = Chaos(cluster, plan_faults(seed=1, count=10))
    while not done():
        chaos.step()
        time.sleep(0.05)
    chaos.end()
assert leaks(cluster.layout) == []

Start at `chaos.Chaos`; `fleet.Fleet` is a whole cluster of simulated agents in one process.
"""

from __future__ import annotations

from plait.testing.chaos import Chaos, Done, Fault, Kind, leaks, plan_faults
from plait.testing.cluster import Cluster

__all__ = ["Chaos", "Cluster", "Done", "Fault", "Kind", "leaks", "plan_faults"]
