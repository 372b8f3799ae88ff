"""Hardware of a cluster: nodes with GPUs in racks, and the switches and links that join them.

Start at `nodes.Cluster`.
"""

from plait.core.cluster.network import Link, Network, Switch
from plait.core.cluster.nodes import Cluster, Gpu, Node

__all__ = ["Cluster", "Gpu", "Link", "Network", "Node", "Switch"]
