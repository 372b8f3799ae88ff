"""Placement by the estimated state of the network, after the description of NetPack. Start at `NetPack`.

In the description, jobs are placed by a steady-state estimate, a valuation of servers by residual bandwidth and free
GPUs, and a dynamic programme over servers. The valuation, the racks as a further index, the order in which places are
compared and the choice of a batch are our design.

The best servers for a gang, by a dynamic programme over servers and racks. Start at `best_servers`. Our design.

Placements that balance GPUs or flows, or leave few fragments: baselines of `netpack`. Our design.

They need no network: flows are counted by servers and racks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster, Network
from plait.core.errors import InputError
from plait.core.ina_request import MEMORY_LAWS
from plait.core.network_grants import NetworkGrant, by_job
from plait.core.policy import View
from plait.network.fluid.exchanges import Exchange
from plait.network.fluid.granted import granted_exchange
from plait.network.fluid.jobs import PlacedJob
from plait.network.steady_state import SteadyState, best_server
from plait.network.topology.paths import Graph
from plait.placement.located import Chooser, ChoosingGang

#: Additional racks to try, beyond the minimum.
MORE_RACKS = 2
#: Values that differ by less are equal.
TIE = 1e-12


def best_servers(room: IntArray, rack: IntArray, need: int, value: FloatArray) -> list[IntArray]:
    """GPUs on each server, shape (nodes,), best by sum of values, for each number of racks from the minimum on.

    `F[i][k] = max over m of F[i - 1][k - m] + v_i(m)` inside a rack, and the same over racks with their number as a
    further index. `room` (nodes,) GPUs that each can give; `rack` (nodes,); `value[i, m]` of m GPUs on server i, shape
    (nodes, need + 1). Ties: fewer servers with lower numbers. Empty if there are not enough GPUs.
    """
    racks = [np.flatnonzero((rack == r) & (room > 0)) for r in np.unique(rack[room > 0])]
    if int(room.sum()) < need:
        return []
    inside = [_in_rack(room[nodes], need, value[nodes]) for nodes in racks]
    totals = np.sort([int(room[nodes].sum()) for nodes in racks])[::-1].cumsum()
    fewest = int(np.searchsorted(totals, need)) + 1
    most = min(fewest + MORE_RACKS, len(racks))
    best = np.full((most + 1, need + 1), -np.inf)
    best[0, 0] = 0.0
    given = np.zeros((len(racks), most + 1, need + 1), dtype=np.int64)
    for i, (worth, _) in enumerate(inside):
        for count in range(most, 0, -1):
            best[count], given[i, count] = _joined(best[count - 1], worth, best[count])
    counts = [count for count in range(fewest, most + 1) if np.isfinite(best[count, need])]
    return [_traced(count, need, given, racks, inside, len(room)) for count in counts]


#: Values of 0 to `need` GPUs in a rack, and what each server gives of them.
_Rack = tuple[FloatArray, IntArray]


def _in_rack(room: IntArray, need: int, value: FloatArray) -> _Rack:
    """The best value of each number of GPUs in one rack, and what each server gives; shape (servers, need + 1)."""
    best = np.full(need + 1, -np.inf)
    best[0] = 0.0
    gives = np.zeros((len(room), need + 1), dtype=np.int64)
    for i in range(len(room)):
        worth = np.full(need + 1, -np.inf)
        most = min(int(room[i]), need)
        worth[1 : most + 1] = value[i, 1 : most + 1]
        best, gives[i] = _joined(best, worth, best)
    best[0] = -np.inf  # a rack that is used gives at least one GPU
    return best, gives


def _joined(before: FloatArray, worth: FloatArray, otherwise: FloatArray) -> tuple[FloatArray, IntArray]:
    """For each k the best of `before[k - m] + worth[m]` over m >= 1, and that m; 0 where `otherwise[k]` is as good."""
    size = len(before)
    k, m = np.indices((size, size))
    sums = np.where(m <= k, before[k - m], -np.inf) + worth[m]
    sums[:, 0] = -np.inf
    most = sums.max(axis=1)
    pick = (sums >= most[:, None] - TIE).argmax(axis=1)
    with np.errstate(invalid="ignore"):
        better = most > otherwise + TIE
    better |= np.isfinite(most) & ~np.isfinite(otherwise)
    return np.where(better, most, otherwise), np.where(better, pick, 0)


def _traced(count: int, need: int, given: IntArray, racks: list[IntArray], inside: list[_Rack], nodes: int) -> IntArray:
    """The servers behind the best value of `need` GPUs in `count` racks."""
    take = np.zeros(nodes, dtype=np.int64)
    for i in reversed(range(len(racks))):
        part = int(given[i, count, need])
        if not part:
            continue
        count, need = count - 1, need - part
        gives = inside[i][1]
        for at in reversed(range(len(racks[i]))):
            amount = int(gives[at, part])
            take[racks[i][at]] = amount
            part -= amount
    return take


@dataclass(frozen=True)
class GpuBalance:
    """The servers with most free GPUs first, so that all are about equally full."""

    def __call__(self, view: View) -> Chooser:
        return lambda gang: _filled(gang, (-gang.free,))


@dataclass(frozen=True)
class FlowBalance:
    """The servers with the fewest flows first, so that links are about equally used.

    A flow is a job with GPUs on several servers: it uses the link of each of them, and the uplink of each rack if there
    are several. A job that one server can hold has no flow, and goes where it leaves the minimum GPUs over.
    """

    def __call__(self, view: View) -> Chooser:
        def choose(gang: ChoosingGang) -> IntArray:
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
        def choose(gang: ChoosingGang) -> IntArray:
            alone = on_one_server(gang)
            if alone is not None:
                return alone
            return best_servers(gang.room, view.cluster.node_rack, gang.gpus, -left_over(view.cluster, gang))[0]

        return choose


def on_one_server(gang: ChoosingGang) -> IntArray | None:
    """The gang on the server that then has the fewest free GPUs; None if none can hold it."""
    fits = np.flatnonzero(gang.room >= gang.gpus)
    if not len(fits):
        return None
    take = np.zeros(len(gang.room), dtype=np.int64)
    take[fits[np.argmin(gang.free[fits])]] = gang.gpus
    return take


def left_over(cluster: Cluster, gang: ChoosingGang) -> FloatArray:
    """Share of the GPUs of each server that stays idle if it gives 0 to all of a gang; shape (nodes, GPUs + 1)."""
    given = np.arange(gang.gpus + 1)
    share: FloatArray = (gang.free[:, None] - given) / np.maximum(cluster.node_gpus, 1)[:, None]
    return share


def _filled(gang: ChoosingGang, keys: Sequence[IntArray]) -> IntArray:
    """All that a server can give, one server after the other by these keys, ties by number."""
    take = np.zeros(len(gang.room), dtype=np.int64)
    left = gang.gpus
    for node in np.lexsort((np.arange(len(take)), *reversed(keys))).tolist():
        take[node] = min(left, int(gang.room[node]))
        left -= int(take[node])
    return take


def _flows(cluster: Cluster, gang: ChoosingGang) -> tuple[IntArray, IntArray]:
    """Flows over the link of each server, and over the uplink of its rack."""
    server = np.zeros(len(cluster.nodes), dtype=np.int64)
    uplink = np.zeros(int(cluster.node_rack.max()) + 1, dtype=np.int64)
    for nodes in gang.placed.values():
        if len(nodes) > 1:
            server[list(nodes)] += 1
            racks = np.unique(cluster.node_rack[list(nodes)])
            uplink[racks] += len(racks) > 1
    return server, uplink[cluster.node_rack]


#: A job is divided among more racks where that makes its exchange faster by this factor.
FASTER = 1.25


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

    def nodes(self, gang: ChoosingGang) -> IntArray:
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

    def _place(self, gang: ChoosingGang, nodes: tuple[int, ...]) -> tuple[Exchange, SteadyState]:
        """How a gang on these nodes exchanges, and the state with it."""
        if self._law == "none":
            ring = Exchange(PlacedJob(nodes))
            return ring, self.state.with_exchange(gang.row, ring)
        up = np.flatnonzero(self.view.cluster.node_up).tolist()
        _, state = best_server(self.state, gang.row, nodes, up, self._law)
        return state.exchanges[gang.row], state

    def _value(self, gang: ChoosingGang) -> FloatArray:
        """Values of 0 to all GPUs of the gang on each server, shape (nodes, GPUs + 1)."""
        share = np.arange(gang.gpus + 1) / gang.gpus
        idle = left_over(self.view.cluster, gang)
        value: FloatArray = (
            self.options.bandwidth * self.state.residual[:, None] * share - self.options.fragments * idle
        )
        return value

    def _exchanges(self, placed: Mapping[int, tuple[int, ...]]) -> dict[int, Exchange]:
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
