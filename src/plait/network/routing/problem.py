"""Gradient flows, the switches that may add them up, and what a choice of switches uses. Start at `Problem.of`.

A worker sends its gradient to a switch, where those of its job become one, which goes on to the parameter server; or
straight to the server. Routes are shortest paths, split equally where there are several. Results come back the other
way, on the other channels of the same links, with the same loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError, suggest
from plait.network.fluid.jobs import PlacedJob
from plait.network.topology.paths import Graph, Shares
from plait.network.topology.trees import STRAIGHT

#: Seconds that a packet spends in the parameter server.
SERVER_S = 1e-6


@dataclass(frozen=True)
class GradientFlow:
    """The gradients of a job with a parameter server: each worker sends `bits_per_s` of payload."""

    job: PlacedJob
    bits_per_s: float

    def __post_init__(self) -> None:
        """Raise `InputError` without server or rate."""
        if self.job.server is None:
            raise InputError(f"gradients of workers {self.job.workers} have no parameter server; routes lead to one")
        if not 0 < self.bits_per_s < np.inf:
            raise InputError(f"gradients of {self.bits_per_s:g} bits/s; needs a positive, finite rate")


#: The switch of each worker of each job, by its number in the graph, or `STRAIGHT`.
Choice = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Routing:
    """The switch of each worker, and what that means.

    `choice[j][i]`: the number in the graph of the switch at which worker i of job j is added up, or `STRAIGHT`.
    `utilisation`: load over capacity of the fullest channel; above 1 no job can have its rate. `channel`: that channel.
    `relaxed`: the same if workers could be divided among switches, a lower bound; NaN if it was not computed.
    """

    choice: Choice
    utilisation: float
    channel: int
    relaxed: float = np.nan

    def switches(self, graph: Graph) -> tuple[tuple[str | None, ...], ...]:
        """The names of the switches; None for the parameter server."""
        return tuple(tuple(None if v == STRAIGHT else graph.names[v] for v in row) for row in self.choice)


@dataclass(frozen=True)
class Problem:
    """Flows, and for each job and candidate switch: shares of channels, aggregators, and limits of the switches.

    `there[j][v][i]`: what channels carry of the flow of worker i to v; `on[j][v]`: of that from v to the server;
    `aggregators[j][v]`: rate times RTT over payload. `memory` and `processing` (payload bits/s) of each candidate.
    """

    graph: Graph
    flows: tuple[GradientFlow, ...]
    candidates: tuple[int, ...]
    there: tuple[dict[int, tuple[Shares, ...]], ...]
    on: tuple[dict[int, Shares], ...]
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
        there, on, needs = [], [], []
        for flow in flows:
            job, server = flow.job, _server(flow)
            there.append(
                {v: tuple(graph.shares(worker, v if v != STRAIGHT else server) for worker in job.workers)
                 for v in (*candidates, STRAIGHT)}
            )  # fmt: skip
            on.append({v: graph.shares(v, server) for v in candidates})
            needs.append(
                {v: flow.bits_per_s * _rtt_s(graph, job.workers, v, server) / (8 * hardware[v].payload_bytes)
                 for v in candidates}
            )  # fmt: skip
        return cls(
            graph, tuple(flows), candidates, tuple(there), tuple(on), tuple(needs),
            {v: float(hardware[v].usable) for v in candidates},
            {v: hardware[v].process_bits_per_s or np.inf for v in candidates},
        )  # fmt: skip

    def load(self, choice: Choice) -> FloatArray:
        """Bits a second on each channel."""
        load = np.zeros(len(self.graph.channel_bits_per_s))
        for j, row in enumerate(choice):
            rate = self.flows[j].bits_per_s
            carried = [self.there[j][v][i] for i, v in enumerate(row)]
            carried += [self.on[j][v] for v in sorted(set(row) - {STRAIGHT})]
            for shares in carried:
                for channel, share in shares.items():
                    load[channel] += rate * share
        return load

    def overfull(self, choice: Choice) -> list[int]:
        """Switches with more flows than they have memory for, or more payload than they can process."""
        memory, processing = dict.fromkeys(self.candidates, 0.0), dict.fromkeys(self.candidates, 0.0)
        for j, row in enumerate(choice):
            for v in set(row) - {STRAIGHT}:
                memory[v] += self.aggregators[j][v]
                processing[v] += self.flows[j].bits_per_s * row.count(v)
        slack = 1 + 1e-9
        return [
            v for v in self.candidates
            if memory[v] > self.memory[v] * slack or processing[v] > self.processing[v] * slack
        ]  # fmt: skip

    def repaired(self, choice: Choice) -> Choice:
        """The choice, in which jobs leave switches that are overfull, the last first: their workers send straight."""
        rows = list(choice)
        for v in self.overfull(choice):
            for j in reversed(range(len(rows))):
                if v not in self.overfull(tuple(rows)):
                    break
                rows[j] = tuple(STRAIGHT if one == v else one for one in rows[j])
        return tuple(rows)

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
