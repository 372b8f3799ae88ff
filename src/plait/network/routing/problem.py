"""Gradient flows, the switches that may add them up, and what a choice of routes uses. Start at `Problem.of`.

A worker sends its gradient to a switch, where those of its job become one, which goes on to the parameter server; or
straight to the server. Packets of a job take one shortest path each, picked by one number for all of its workers, so
that they meet. Results come back the other way, on the other channels of the same links, with the same loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError, suggest
from plait.network.fluid.jobs import PlacedJob
from plait.network.topology.paths import Graph
from plait.network.topology.trees import STRAIGHT, Way

#: Seconds that a packet spends in the parameter server.
SERVER_S = 1e-6


@dataclass(frozen=True)
class GradientFlow:
    """The gradients of a job with a parameter server: each worker sends `bits_per_s` of payload.

    `pick`: which of several equal paths fixed routes take, as for `Graph.path`.
    """

    job: PlacedJob
    bits_per_s: float
    pick: int = 0

    def __post_init__(self) -> None:
        """Raise `InputError` without server or rate."""
        if self.job.server is None:
            raise InputError(f"gradients of workers {self.job.workers} have no parameter server; routes lead to one")
        if not 0 < self.bits_per_s < np.inf:
            raise InputError(f"gradients of {self.bits_per_s:g} bits/s; needs a positive, finite rate")


class JobRoute(NamedTuple):
    """The route of a job: the switch of each worker, by its number or `STRAIGHT`, and which of equal paths it takes."""

    at: tuple[int, ...]
    pick: int = 0


#: The route of each job.
Choice = tuple[JobRoute, ...]


@dataclass(frozen=True)
class Routing:
    """The route of each job, and what that means.

    `utilisation`: load over capacity of the fullest channel; above 1 no job can have its rate. `channel`: that channel.
    `relaxed`: the same if workers could be divided among routes, a lower bound; NaN if it was not computed.
    """

    choice: Choice
    utilisation: float
    channel: int
    relaxed: float = np.nan

    def switches(self, graph: Graph) -> tuple[tuple[str | None, ...], ...]:
        """The names of the switches; None for the parameter server."""
        return tuple(tuple(None if v == STRAIGHT else graph.names[v] for v in route.at) for route in self.choice)


@dataclass(frozen=True)
class Problem:
    """Flows, and for each job and candidate switch: aggregators, and limits of the switches.

    `picks`: how many equal paths there are at most. `aggregators[j][v]`: rate times RTT over payload. `memory` and
    `processing` (payload bits/s) of each candidate.
    """

    graph: Graph
    flows: tuple[GradientFlow, ...]
    candidates: tuple[int, ...]
    picks: int
    aggregators: tuple[dict[int, float], ...]
    memory: dict[int, float]
    processing: dict[int, float]

    @classmethod
    def of(cls, graph: Graph, flows: Sequence[GradientFlow], switches: Sequence[str] | None = None) -> Problem:
        """The problem on a graph; `switches` that may aggregate, by default all that have aggregators.

        Raises `InputError` for an unknown switch, or one without aggregators.
        """
        first = len(graph.nodes)
        all_of = {one.id: first + i for i, one in enumerate(graph.network.switches)}
        hardware = {first + i: one for i, one in enumerate(graph.network.switches)}
        if switches is None:
            switches = [one.id for one in graph.network.switches if one.usable]
        for name in switches:
            if name not in all_of:
                raise InputError(f"switch {name!r} is unknown; {suggest(name, all_of)}")
            if not hardware[all_of[name]].usable:
                raise InputError(
                    f"switch {name!r} has no aggregators that jobs may use; gradients cannot be added there"
                )
        candidates = tuple(all_of[name] for name in switches)
        needs = [
            {v: flow.bits_per_s * _rtt_s(graph, flow.job.workers, v, _server(flow)) / (8 * hardware[v].payload_bytes)
             for v in candidates}
            for flow in flows
        ]  # fmt: skip
        return cls(
            graph, tuple(flows), candidates, graph.most_ways, tuple(needs),
            {v: float(hardware[v].usable) for v in candidates},
            {v: hardware[v].process_bits_per_s or np.inf for v in candidates},
        )  # fmt: skip

    def there(self, j: int, v: int, pick: int) -> tuple[Way, ...]:
        """The channels of each worker of a job to a switch, or straight to the server."""
        flow = self.flows[j]
        end = _server(flow) if v == STRAIGHT else v
        return tuple(self.graph.path(worker, end, pick) for worker in flow.job.workers)

    def on(self, j: int, v: int, pick: int) -> Way:
        """The channels from a switch to the server of a job."""
        return self.graph.path(v, _server(self.flows[j]), pick)

    def load(self, choice: Choice) -> FloatArray:
        """Bits a second on each channel."""
        loads = [self.load_of(j, route) for j, route in enumerate(choice)]
        return np.sum(loads, axis=0) if loads else np.zeros(len(self.graph.channel_bits_per_s))

    def load_of(self, j: int, route: JobRoute) -> FloatArray:
        """Bits a second of one job on each channel."""
        (at, pick), flow = route, self.flows[j]
        ends = [_server(flow) if v == STRAIGHT else v for v in at]
        ways = [self.graph.path(worker, end, pick) for worker, end in zip(flow.job.workers, ends, strict=True)]
        ways += [self.on(j, v, pick) for v in sorted(set(at) - {STRAIGHT})]
        load = np.zeros(len(self.graph.channel_bits_per_s))
        for way in ways:
            for channel in way:
                load[channel] += flow.bits_per_s
        return load

    def overfull(self, choice: Choice) -> list[int]:
        """Switches with more flows than they have memory for, or more payload than they can process."""
        memory, processing = dict.fromkeys(self.candidates, 0.0), dict.fromkeys(self.candidates, 0.0)
        for j, (at, _) in enumerate(choice):
            for v in set(at) - {STRAIGHT}:
                memory[v] += self.aggregators[j][v]
                processing[v] += self.flows[j].bits_per_s * at.count(v)
        slack = 1 + 1e-9
        return [
            v for v in self.candidates
            if memory[v] > self.memory[v] * slack or processing[v] > self.processing[v] * slack
        ]  # fmt: skip

    def repaired(self, choice: Choice) -> Choice:
        """The choice, in which jobs leave switches that are overfull, the last first: their workers send straight."""
        routes = list(choice)
        for v in self.overfull(choice):
            for j in reversed(range(len(routes))):
                if v not in self.overfull(tuple(routes)):
                    break
                at, pick = routes[j]
                routes[j] = JobRoute(tuple(STRAIGHT if one == v else one for one in at), pick)
        return tuple(routes)

    def routing(self, choice: Choice, relaxed: float = np.nan) -> Routing:
        """The utilisation of a choice."""
        used = self.load(choice) / self.graph.channel_bits_per_s
        return Routing(choice, float(used.max(initial=0.0)), int(used.argmax()), relaxed)


def _server(flow: GradientFlow) -> int:
    assert flow.job.server is not None
    return flow.job.server


def _rtt_s(graph: Graph, workers: Sequence[int], switch: int, server: int) -> float:
    """From the farthest worker over the switch to the server and back, without queues."""
    there = max(graph.trip_s(worker, switch, 0.0) for worker in workers)
    passing = graph.network.switches[switch - len(graph.nodes)].delay_s
    return 2 * (there + passing + graph.trip_s(switch, server, 0.0)) + SERVER_S
