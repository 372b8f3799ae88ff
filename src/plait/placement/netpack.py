"""Placement by the estimated state of the network, after the description of NetPack. Start at `NetPack`.

In the description, jobs are placed by a steady-state estimate, a valuation of servers by residual bandwidth and free
GPUs, and a dynamic programme over servers. The valuation, the racks as a further index, the order in which places are
compared and the choice of a batch are our design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from plait.core.aggregation.grants import NetworkGrant, by_job
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Network
from plait.core.errors import InputError
from plait.core.policy import View
from plait.network.fluid.exchanges import Exchange
from plait.network.fluid.granted import granted_exchange
from plait.network.fluid.jobs import PlacedJob
from plait.network.steady_state import SteadyState, best_server
from plait.network.topology.paths import Graph
from plait.placement.balance import left_over, on_one_server
from plait.placement.located import Chooser, Gang
from plait.placement.servers import best_servers

#: A job is divided among more racks where that makes its exchange faster by this factor.
FASTER = 1.25
#: How a job that is placed is taken to exchange gradients.
MEMORY_LAWS = ("auto", "none", "hash", "cycle", "hard")


@dataclass(frozen=True)
class NetPack:
    """One server if possible, the fullest that can; else the servers and the parameter server with the best rate.

    Servers come from a dynamic programme, one solution for each number of racks: m GPUs on a server are worth
    `bandwidth` * (free share of its links) * m / GPUs of the job - `fragments` * (share of its GPUs that stays idle).
    For each solution candidates for the parameter server are tried in the steady state of all jobs that run
    (`network.steady_state.best_server`), and the place with the best rate wins; further racks, whose links others would
    need, have to make the job faster by the factor `FASTER`.

    `law`: the law of switch memory (`network.fluid.memory`) for the job that is placed; `none` for a ring all-reduce,
    without a server. `auto` follows the jobs that run: aggregation by `hash` if one of them has switch memory, and on
    an empty network if a switch has aggregators; a ring where nodes have several links. Running jobs without switch
    memory are rings.

    Needs a network: `decide` raises `InputError` where the cluster has none.
    """

    bandwidth: float = 1.0
    fragments: float = 1.0
    law: str = "auto"
    _states: dict[int, tuple[Network, SteadyState]] = field(default_factory=dict, compare=False, repr=False)

    MOST_STATES: ClassVar[int] = 4

    def __post_init__(self) -> None:
        """Raise `InputError` for an unknown law or negative weights."""
        if self.law not in MEMORY_LAWS:
            raise InputError(f"memory law {self.law!r} is unknown; it takes {', '.join(MEMORY_LAWS)}")
        if not (0 <= self.bandwidth < np.inf and 0 <= self.fragments < np.inf):
            raise InputError(f"weights {self.bandwidth} and {self.fragments} of netpack; both are finite and >= 0")

    def __call__(self, view: View) -> Chooser:
        """A function that picks the nodes of a gang; raises `InputError` if the network is not known."""
        return Places(self, view, self._empty(view)).nodes

    def _empty(self, view: View) -> SteadyState:
        """The network without jobs; its paths are kept from one decision to the next."""
        network = view.cluster.network
        if network is None:
            raise InputError(
                "placement=netpack needs the network of the cluster, which is not known; give one, e.g. plait simulate "
                "--network leaf-spine:oversubscription=2, or a cluster file with [network]; gpu-balance, flow-balance "
                "and least-fragmentation work without"
            )
        known = self._states.get(id(network))
        if known is None or known[0] is not network or len(known[1].graph.nodes) != len(view.cluster.nodes):
            if len(self._states) >= self.MOST_STATES:
                self._states.clear()
            known = self._states[id(network)] = network, SteadyState.of(Graph.of(view.cluster))
        return known[1]


@dataclass(eq=False)
class Places:
    """The places of gangs in one decision: where they go, how they exchange, and what rate they would have."""

    options: NetPack
    view: View
    state: SteadyState
    chosen: dict[tuple[int, tuple[int, ...]], Exchange] = field(default_factory=dict)

    def nodes(self, gang: Gang) -> IntArray:
        """GPUs on each node for a gang."""
        alone = on_one_server(gang)
        if alone is not None:
            return alone
        self.state = self.state.having(self._exchanges(gang.placed))
        best, found = 0.0, None
        for take in best_servers(gang.room, self.view.cluster.node_rack, gang.gpus, self._value(gang)):
            exchange, state = self._place(gang, tuple(np.flatnonzero(take).tolist()))
            if found is None or state.rate(gang.row) > best * FASTER:
                best, found = state.rate(gang.row), (take, exchange)
        assert found is not None, "the walk admits only gangs for which there are enough GPUs"
        self.chosen[gang.row, found[1].placed.workers] = found[1]
        return found[0]

    def _place(self, gang: Gang, nodes: tuple[int, ...]) -> tuple[Exchange, SteadyState]:
        """How a gang on these nodes exchanges, and the state with it."""
        if self._law == "none":
            ring = Exchange(PlacedJob(nodes))
            return ring, self.state.with_exchange(gang.row, ring)
        up = np.flatnonzero(self.view.cluster.node_up).tolist()
        _, state = best_server(self.state, gang.row, nodes, up, self._law)
        return state.exchanges[gang.row], state

    def _value(self, gang: Gang) -> FloatArray:
        """Values of 0 to all GPUs of the gang on each server, shape (nodes, GPUs + 1)."""
        share = np.arange(gang.gpus + 1) / gang.gpus
        idle = left_over(self.view.cluster, gang)
        value: FloatArray = (
            self.options.bandwidth * self.state.residual[:, None] * share - self.options.fragments * idle
        )
        return value

    def _exchanges(self, placed: Mapping[int, tuple[int, ...]]) -> dict[int, Exchange]:
        """How the jobs on several nodes exchange."""
        return {row: self._exchange(row, nodes) for row, nodes in placed.items() if len(nodes) > 1}

    def _exchange(self, row: int, nodes: tuple[int, ...]) -> Exchange:
        """How a job exchanges: as chosen in this decision, by its grants, or as a ring."""
        known = self.chosen.get((row, nodes))
        if known is not None:
            return known
        grants = self._granted.get(row)
        return granted_exchange(self.state.graph, nodes, grants) if grants else Exchange(PlacedJob(nodes))

    @cached_property
    def _granted(self) -> dict[int, tuple[NetworkGrant, ...]]:
        """Grants of switch memory in force, by row."""
        number = self.view.jobs.number
        found = by_job(self.view.grants)
        rows = np.searchsorted(number, list(found)).tolist()
        return dict(zip(rows, found.values(), strict=True))

    @property
    def _law(self) -> str:
        """The law of the job that is placed."""
        if self.options.law != "auto":
            return self.options.law
        graph, exchanges = self.state.graph, self.state.exchanges.values()
        aggregates = any(one.law != "none" for one in exchanges)
        if not exchanges:
            aggregates = any(switch.usable for switch in graph.network.switches)
        return "hash" if aggregates and graph.single_links else "none"
