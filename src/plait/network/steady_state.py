"""The steady state of a network whose jobs exchange gradients all the time, one change after the other.

    state = SteadyState.of(graph, {1: Exchange(PlacedJob((0, 8), 3), "hash")})
    state.with_exchange(2, Exchange(PlacedJob((1, 9)))).rate(2)      # bits of gradient a second

Water-filling after the description of NetPack, with the laws of memory of `fluid.memory`: all jobs send more until a
link is full, its jobs stop there, the others go on. Paths are prepared once for each exchange, and a solution starts
from that of the state before, so a question about one more job costs little. Start at `SteadyState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.network.fluid.exchanges import REGION, Adders, Exchange, Prepared, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import SteadyRates, steady_rates
from plait.network.topology.paths import Graph
from plait.network.topology.trees import PUBLISHED

#: Shares of aggregated packets are computed to this; enough to compare places.
NEAR = 1e-3
#: Rates that differ by less, relatively, are equal, and something else decides between places.
SAME_RATE = 1e-2
#: Servers that are tried in the steady state, after all were tried in one step.
MOST_SOLVED = 4
#: Of a job that is new, the share of packets that a shared switch adds up, to begin with.
FIRST_SHARE = 0.5
#: A job whose server is in a rack of some of its workers waits there for sums of other racks, if leaves add those up,
#: too: for each packet so many times that of its link, times this power of the windows of jobs over the memory. Fitted
#: to 34 points by packets, of 2 to 4 racks, oversubscription 1 to 8 and 700 to 20,000 aggregators: there the better of
#: both places is always found, and jobs have 1.62 times the rate with a server among their workers (1 to 3.6).
WAITS, OF_WINDOWS = 8.0, 0.6
#: Exchanges whose paths are kept.
MOST_KNOWN = 20_000


@dataclass(frozen=True)
class SteadyState:
    """Jobs that exchange gradients, by any number, and what each gets. Frozen: changes return another one."""

    graph: Graph
    exchanges: Mapping[int, Exchange] = field(default_factory=dict)
    near: float = NEAR
    _known: dict[Exchange, Prepared] = field(default_factory=dict, repr=False, compare=False)
    _start: Mapping[int, FloatArray] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, graph: Graph, exchanges: Mapping[int, Exchange] | None = None, near: float = NEAR) -> SteadyState:
        """The steady state of these exchanges; raises `InputError` where one does not fit the network."""
        state = cls(graph, dict(exchanges or {}), near)
        for one in state.exchanges.values():
            state.prepared(one)
        return state

    def prepared(self, exchange: Exchange) -> Prepared:
        """The channels and racks of an exchange, computed once."""
        if exchange not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[exchange] = prepared(self.graph, exchange)
        return self._known[exchange]

    def having(self, exchanges: Mapping[int, Exchange]) -> SteadyState:
        """The state of exactly these exchanges, with what is known from this one."""
        for one in exchanges.values():
            self.prepared(one)
        shares = self._shares if "rates" in self.__dict__ else self._start
        start = {job: share for job, share in shares.items() if exchanges.get(job) == self.exchanges.get(job)}
        return SteadyState(self.graph, dict(exchanges), self.near, self._known, start)

    def with_exchange(self, job: int, exchange: Exchange) -> SteadyState:
        """The state in which this job also exchanges, or does so in another way."""
        return self.having({**self.exchanges, job: exchange})

    def without(self, job: int) -> SteadyState:
        """The state without a job; raises `InputError` if it has none of that number."""
        if job not in self.exchanges:
            raise InputError(f"job {job} does not exchange gradients in this state; it has {list(self.exchanges)}")
        return self.having({one: exchange for one, exchange in self.exchanges.items() if one != job})

    @cached_property
    def _used(self) -> dict[int, Prepared]:
        """What each job uses, of those that use anything: a job on one node does not."""
        parts = {job: self.prepared(exchange) for job, exchange in self.exchanges.items()}
        return {job: part for job, part in parts.items() if len(part.channel)}

    @cached_property
    def _adders(self) -> Adders:
        return Adders.of(list(self._used.values()))

    @cached_property
    def rates(self) -> SteadyRates:
        """The solution, in the order of the jobs that use the network; raises `SimulationError` if there is none."""
        guess = [
            self._start[job] if job in self._start else np.full(len(part.switch), _first_share(part))
            for job, part in self._used.items()
        ]
        return steady_rates(self.graph, self._adders, start=np.concatenate(guess), near=self.near)

    @cached_property
    def _shares(self) -> dict[int, FloatArray]:
        """Of each job the shares that its switches add up in full."""
        if not self._used:
            return {}
        ends = np.cumsum([len(part.switch) for part in self._used.values()])[:-1]
        return dict(zip(self._used, np.split(self.rates.share, ends), strict=True))

    @cached_property
    def bits_per_s(self) -> dict[int, float]:
        """Rate of each job: bits of gradient a second at each worker; infinite where it needs no network."""
        found = dict.fromkeys(self.exchanges, np.inf)
        if self._used:
            found.update(zip(self._used, self.rates.bits_per_s.tolist(), strict=True))
        return found

    def rate(self, job: int) -> float:
        """Bits of gradient a second of a job."""
        return self.bits_per_s[job]

    @cached_property
    def load(self) -> FloatArray:
        """Share of each channel in use, shape (channels,)."""
        capacity = self.graph.channel_bits_per_s
        if not self._used:
            return np.zeros(len(capacity))
        uses = self._adders.uses_at(self._adders.sent(self.rates.share))
        used: FloatArray = uses.load(self.rates.bits_per_s, len(capacity)) / capacity
        return used[self.graph.bundle]

    @cached_property
    def residual(self) -> FloatArray:
        """What is free of the links of each node, the busier direction, over their rate; shape (nodes,), 0 to 1."""
        nodes = len(self.graph.nodes)
        free = np.zeros((2, nodes))
        rate = np.zeros((2, nodes))
        capacity = self.graph.channel_bits_per_s
        for side in range(2):
            at = self.graph.ends[:, side]
            mine = at < nodes
            rate[side] = np.bincount(at[mine], capacity[mine], minlength=nodes)
            free[side] = np.bincount(at[mine], (capacity * (1 - self.load))[mine], minlength=nodes)
        found: FloatArray = np.clip(free / rate, 0.0, 1.0).min(axis=0)
        return found

    @cached_property
    def users(self) -> list[tuple[tuple[int, bool], ...]]:
        """Who uses each node: jobs, and whether it is their server."""
        out: list[list[tuple[int, bool]]] = [[] for _ in self.graph.nodes]
        for job, exchange in self.exchanges.items():
            for node in exchange.placed.workers:
                out[node].append((job, False))
            if exchange.placed.server is not None:
                out[exchange.placed.server].append((job, True))
        return [tuple(one) for one in out]


def best_server(
    state: SteadyState, job: int, workers: tuple[int, ...], nodes: Iterable[int], law: str = "hash", window: int = 0,
    adds: str = PUBLISHED["atp"],
) -> tuple[int, SteadyState]:  # fmt: skip
    """The node of `nodes` for the parameter server of a job, and the state with that.

    `adds`: the tree (`ina_request.TREES`). Every node is tried that differs from others in its leaf, its jobs or its
    rate: first with shares of aggregated packets as they are, then the best of these in the steady state. The best rate
    of the job wins, where that in a rack of some of its workers counts less by `WAITS` if the leaf adds up what other
    leaves send, too; among rates within one percent that of all jobs together, then a node without a worker, then the
    lower number. Raises `InputError` without any node.
    """
    tried: dict[tuple[object, ...], int] = {}
    if state.exchanges:
        state.rate(next(iter(state.exchanges)))  # solved once, where the solutions of all candidates start
    rates, ways = state.graph.channel_bits_per_s, state.graph.most_ways
    access = {int(a): float(rates[c]) for c, (a, _) in enumerate(state.graph.ends.tolist()) if a < len(state.users)}
    for node in sorted(nodes):
        kind = (state.graph.leaf(node), node in workers, state.users[node], access[node])
        tried.setdefault(kind, node)
    if not tried:
        raise InputError(f"job {job}: no node for its parameter server; at least one has to be up")
    found = [
        (
            server,
            state.with_exchange(
                job, Exchange(PlacedJob(workers, server), law, window=window, adds=adds, pick=job % ways)
            ),
        )
        for server in tried.values()
    ]

    def worth(server: int, one: SteadyState) -> float:
        part, leaf, rate = one.prepared(one.exchanges[job]), state.graph.leaf(server), one.rate(job)
        near = sum(state.graph.leaf(worker) == leaf for worker in workers)
        at = np.flatnonzero(part.switch == leaf)
        if law != "hash" or not np.isin(at, part.parent).any() or not 0 < near < len(workers):
            return rate
        memory = float(part.memory[at].min())
        windows = sum(leaf in other.switch for other in one._used.values()) * part.rtt_s / part.line_s
        waits_s = WAITS * (windows / memory) ** OF_WINDOWS * part.line_s
        return float(rate / (1 + waits_s * rate / part.payload_bits))

    if len(found) > MOST_SOLVED:
        guess = {server: replace(one, near=np.inf) for server, one in found}  # one step: no fixed point
        found.sort(key=lambda pair: (-worth(pair[0], guess[pair[0]]), -_total(guess[pair[0]]), pair[0]))
        found = found[:MOST_SOLVED]
    fastest = max(worth(*pair) for pair in found)
    good = [pair for pair in found if worth(*pair) >= fastest * (1 - SAME_RATE)]
    return max(good, key=lambda pair: (_total(pair[1]), pair[0] not in workers, -pair[0]))


def _total(state: SteadyState) -> float:
    """Rates of all jobs that use the network, to six digits, so that rounding decides nothing."""
    return float(f"{sum(rate for rate in state.bits_per_s.values() if rate < np.inf):.5e}")


def _first_share(part: Prepared) -> float:
    return 1.0 if part.law >= REGION else FIRST_SHARE
