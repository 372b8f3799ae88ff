"""Where gradients are added up on their way: an aggregation switch and a route for each worker.

Start at `grid`, after the description of GRID, or `shortest`, fixed routes; `Problem` and `Routing` are what both take
and give.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError, suggest
from plait.core.highs import LinearProgram
from plait.network.fluid.jobs import PlacedJob
from plait.network.topology.paths import Graph
from plait.network.topology.trees import STRAIGHT, Way

# Gradient flows, the switches that may add them up, and what a choice of routes uses. Start at `Problem.of`.
#
# A worker sends its gradient to a switch, where those of its job become one, which goes on to the parameter server;
# or
# straight to the server. Packets of a job take one shortest path each, picked by one number for all of its workers,
# so
# that they meet. Results come back the other way, on the other channels of the same links, with the same loads.


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


# Fixed routes, the baseline of GRID: every worker is added up at its own leaf, or at that of the server.


FIXED = ("leaf", "server")


def shortest(problem: Problem, fixed: str = "leaf") -> Routing:
    """Shortest paths over one fixed switch for each worker.

    `fixed`: as for `fixed_switches`. Where no memory is left when the job's turn comes, workers send straight to the
    server. Raises `InputError` for another word, or nodes with several switches.
    """
    return problem.routing(problem.repaired(fixed_switches(problem, fixed)))


def fixed_switches(problem: Problem, fixed: str = "leaf") -> Choice:
    """The route of each job, whether or not it has memory for all of them: that is for its manager to decide.

    `fixed`: `leaf`, the switch that the worker is attached to, or `server`, that of the parameter server. Where that
    has no aggregators workers send straight to the server. Raises `InputError` as `shortest` does.
    """
    if fixed not in FIXED:
        raise InputError(f"fixed is {fixed!r}, needs {' or '.join(FIXED)}")
    graph = problem.graph
    routes: list[JobRoute] = []
    for flow in problem.flows:
        assert flow.job.server is not None
        ends = flow.job.workers if fixed == "leaf" else (flow.job.server,) * len(flow.job.workers)
        leaves = [graph.leaf(end) for end in ends]
        at = tuple(leaf if leaf in problem.memory else STRAIGHT for leaf in leaves)
        routes.append(JobRoute(at, flow.pick))
    return tuple(routes)


# Gradient routing after the description of GRID: aggregation switches and paths by a linear program and rounding.
#
# The description says that the aggregation switch and the route of each gradient flow are chosen by randomised
# rounding.
# The program, its repair and the number of tries are our design; the approximation bound of the paper is not claimed.


#: Weight of all traffic next to the fullest channel: among equal solutions the one with shorter routes is taken.
DETOUR = 1e-6
#: How often every job has its turn to move.
MOST_PASSES = 4
#: A decision of the program: a switch or `STRAIGHT`, and which of several equal paths.
Target = tuple[int, int]


def grid(problem: Problem, seed: int = 0, tries: int = 20) -> Routing:
    """The best of `tries` roundings of the linear program, drawn by a seeded generator.

    x[w, v, p] is the share of worker w that is added up at switch v, or straight at the server, over paths p;
    z[g, v, p] >= x[w, v, p] whether job g uses these. Minimise lambda, so that every link carries at most lambda times
    its capacity, and switches have the memory (z * rate * RTT) and the processing rate (x * rate). A rounding draws the
    paths of a job, then once for the switches of all of its workers. One that overfills a switch is repaired: the last
    of its jobs send straight. From the best one jobs move, a worker or all of them to another switch, or the job to
    other paths, as long as that makes the fullest channel less full. Same problem and seed, same routing. Raises
    `MissingExtra` without HiGHS.
    """
    if not problem.flows:
        return Routing((), 0.0, -1, 0.0)
    shares, relaxed = relax(problem)
    generator = np.random.default_rng(seed)
    best: Routing | None = None
    for _ in range(max(tries, 1)):
        choice = problem.repaired(tuple(_rounded(problem, share, generator) for share in shares))
        found = problem.routing(choice, relaxed)
        if best is None or _order(problem, found) < _order(problem, best):
            best = found
    assert best is not None
    return problem.routing(_descended(problem, best.choice), relaxed)


def _rounded(problem: Problem, share: FloatArray, generator: np.random.Generator) -> JobRoute:
    """A route drawn by the shares of a job, of shape (workers, paths, candidates + 1)."""
    targets = (*problem.candidates, STRAIGHT)
    pick = int((share.sum(axis=2).mean(axis=0).cumsum() < generator.random()).sum())
    pick = min(pick, problem.picks - 1)
    mine, whole = share[:, pick], share.sum(axis=1)
    mine = np.where(mine.sum(axis=1, keepdims=True) > 0, mine, whole)  # of a worker that the program has on other paths
    # One draw for all workers of a job: those of equal shares go to one switch, where their sum is complete.
    at = ((mine / mine.sum(axis=1, keepdims=True)).cumsum(axis=1) < generator.random()).sum(axis=1)
    return JobRoute(tuple(targets[min(v, len(targets) - 1)] for v in at.tolist()), pick)


def _descended(problem: Problem, choice: Choice) -> Choice:
    """The choice after moves of jobs, each the best of its job, until none helps; at most `MOST_PASSES` times each.

    Of equal maxima the one with fewer channels near it counts, so that jobs which share the fullest channel move one
    after the other.
    """
    targets = (*problem.candidates, STRAIGHT)
    capacity = problem.graph.channel_bits_per_s
    routes = list(choice)
    loads = [problem.load_of(j, route) for j, route in enumerate(routes)]
    total = np.sum(loads, axis=0)
    for _ in range(MOST_PASSES):
        moved = False
        for j, (at, pick) in enumerate(routes):
            others = total - loads[j]
            cost = _crowding(total / capacity)
            found = {JobRoute(at, p) for p in range(problem.picks)}
            found |= {JobRoute((v,) * len(at), p) for v in targets for p in range(problem.picks)}
            found |= {JobRoute((*at[:i], v, *at[i + 1 :]), pick) for i in range(len(at)) for v in targets}
            for other in sorted(found - {routes[j]}):
                load = problem.load_of(j, other)
                new = _crowding((others + load) / capacity)
                if new < cost and not problem.overfull((*routes[:j], other, *routes[j + 1 :])):
                    cost, routes[j], loads[j], moved = new, other, load, True
            total = others + loads[j]
        if not moved:
            break
    return tuple(routes)


def _crowding(used: FloatArray) -> tuple[float, float]:
    """Smaller is better: the fullest channel, then how full all are, most of all the fuller ones."""
    most = float(used.max(initial=0.0))
    return round(most, 9), round(float(((used / (most or 1.0)) ** 8).sum()), 6)


def _order(problem: Problem, routing: Routing) -> tuple[float, float]:
    """Smaller is better: the fullest channel, then all traffic."""
    return round(routing.utilisation, 12), float(problem.load(routing.choice).sum())


def relax(problem: Problem) -> tuple[list[FloatArray], float]:
    """Of each job the shares (workers, paths, candidates + 1), the last one straight to the server; and lambda."""
    program = LinearProgram()
    fullest = program.column(1.0, np.inf)
    capacity = problem.graph.channel_bits_per_s
    total = float(capacity.sum())
    channels: dict[int, dict[int, float]] = {}
    columns: list[list[dict[Target, int]]] = []
    memory: dict[int, dict[int, float]] = {v: {} for v in problem.candidates}
    processing: dict[int, dict[int, float]] = {v: {} for v in problem.candidates}

    def column(rate: float, way: Way) -> int:
        """A decision that sends `rate` over these channels."""
        made = program.column(DETOUR * rate * len(way) / total, 1.0)
        for channel in way:
            channels.setdefault(channel, {})[made] = rate
        return made

    for j, flow in enumerate(problem.flows):
        rate = flow.bits_per_s
        targets = _targets(problem, j)
        uses = {(v, p): column(rate, problem.on(j, v, p)) for v, p in targets if v != STRAIGHT}
        columns.append([])
        for i in range(len(flow.job.workers)):
            mine = {(v, p): column(rate, problem.there(j, v, p)[i]) for v, p in targets}
            columns[-1].append(mine)
            program.row(1.0, 1.0, dict.fromkeys(mine.values(), 1.0))
            for target, use in uses.items():
                program.row(0.0, np.inf, {use: 1.0, mine[target]: -1.0})
                processing[target[0]][mine[target]] = rate
        for (v, _), use in uses.items():
            memory[v][use] = problem.aggregators[j][v]
    for channel, terms in channels.items():
        scale = float(capacity[channel])
        program.row(-np.inf, 0.0, {fullest: -1.0} | {at: value / scale for at, value in terms.items()})
    for limits, rows in ((problem.memory, memory), (problem.processing, processing)):
        for v, terms in rows.items():
            if np.isfinite(limits[v]):
                program.row(-np.inf, 1.0, {at: value / limits[v] for at, value in terms.items()})
    found = program.solve("routing by linear program")
    place = {v: k for k, v in enumerate((*problem.candidates, STRAIGHT))}
    shares = []
    for workers in columns:
        share = np.zeros((len(workers), problem.picks, len(place)))
        for i, mine in enumerate(workers):
            for (v, p), at in mine.items():
                share[i, p, place[v]] = min(max(float(found[at]), 0.0), 1.0)
        shares.append(share / share.sum(axis=(1, 2), keepdims=True))
    return shares, float(found[fullest])


def _targets(problem: Problem, j: int) -> list[Target]:
    """The switches of a job, each over the paths that differ from those before; `STRAIGHT` likewise."""
    found: dict[object, Target] = {}
    for v in (*problem.candidates, STRAIGHT):
        for p in range(problem.picks):
            on = () if v == STRAIGHT else problem.on(j, v, p)
            found.setdefault((v, problem.there(j, v, p), on), (v, p))
    return list(found.values())


# From a routing to a better one, one job after the other. Start at `improved`. Our design.
#
# The linear program of `grid` knows only the fullest channel: what is not on it may be routed anyhow, and rounding
# scatters workers. Here the time of each exchange counts, on the channels that exchanges really use, with headers,
# with
# switches that answer themselves, and as rings where nothing is added up.


#: Of a job by its place and a route: channels, and what these carry of it at rate 1.
UsesOf = Callable[[int, JobRoute], tuple[IntArray, FloatArray]]
#: How often every job has its turn; a change that gains less is none.
MOST_PASSES_OVER_JOBS, GAIN = 2, 1e-6


def improved(problem: Problem, choices: Sequence[Choice], uses_of: UsesOf, required: Collection[int] = ()) -> Choice:
    """The best of these choices after jobs moved, in turn: to one switch, to leaves, or straight, and to other paths.

    A job moves if that shortens exchanges: if the sum over jobs of the load over capacity of their fullest channel
    becomes smaller. (With the fullest channel of all first, as in the program, the others pay for one job, and
    exchanges were longer than over fixed routes in some of the tests.) No switch gets more than its memory and its
    processing rate allow. Jobs whose places are in `required` are never sent straight as a whole.
    """
    found = [_in_turns(problem, choice, uses_of, required) for choice in choices]
    return min(found, key=lambda pair: pair[0])[1]


def _in_turns(problem: Problem, choice: Choice, uses_of: UsesOf, required: Collection[int]) -> tuple[float, Choice]:
    """The sum of the loads and the choice where no job moves any more, or after so many turns."""
    capacity, rates = problem.graph.channel_bits_per_s, [flow.bits_per_s for flow in problem.flows]
    lowest = {problem.graph.leaf(node) for node in range(len(problem.graph.nodes))}
    routes = list(choice)
    uses = [_scaled(uses_of(j, route), rates[j], capacity) for j, route in enumerate(routes)]
    load = np.zeros(len(capacity))
    for channel, share in uses:
        load[channel] += share
    best = 0.0
    for _ in range(MOST_PASSES_OVER_JOBS):
        before = list(routes)
        for j in range(len(routes)):
            channels, first = _joined([channel for i, (channel, _) in enumerate(uses) if i != j])
            load[uses[j][0]] -= uses[j][1]
            best, kept = _cost(load, channels, first, *uses[j]), (routes[j], uses[j])
            for route in _moves(problem, lowest, j, routes[j], j in required):
                new = _scaled(uses_of(j, route), rates[j], capacity)
                cost = _cost(load, channels, first, *new)
                if cost < best - GAIN and not problem.overfull((*routes[:j], route, *routes[j + 1 :])):
                    best, kept = cost, (route, new)
            routes[j], uses[j] = kept
            load[uses[j][0]] += uses[j][1]
        if routes == before:
            break
    return best, tuple(routes)


def _scaled(uses: tuple[IntArray, FloatArray], rate: float, capacity: FloatArray) -> tuple[IntArray, FloatArray]:
    """Shares of capacity that a job takes."""
    channel, amount = uses
    return channel, amount * rate / capacity[channel]


def _joined(channels: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Channels of jobs one after the other, without jobs that use none, and where each job begins."""
    used = [one for one in channels if len(one)]
    ends = np.cumsum([0, *(len(one) for one in used)])
    return np.concatenate([*used, np.zeros(0, dtype=np.int64)]), ends[:-1].astype(np.int64)


def _cost(load: FloatArray, channels: IntArray, first: IntArray, own: IntArray, share: FloatArray) -> float:
    """The sum of the loads of each job's fullest channel.

    `channels` are those of the other jobs, `first` where each of them begins; the job of `own` adds `share` there.
    """
    load = load.copy()
    load[own] += share
    mine = float(load[own].max(initial=0.0))
    return mine + (float(np.maximum.reduceat(load[channels], first).sum()) if len(channels) else 0.0)


def _moves(problem: Problem, lowest: set[int], j: int, now: JobRoute, required: bool) -> list[JobRoute]:
    """Routes that a job may have in place of that of `now`; `lowest`: switches to which nodes are attached."""
    job, graph = problem.flows[j].job, problem.graph
    racks = {graph.leaf(node) for node in (*job.workers, *(() if job.server is None else (job.server,)))}
    leaves = tuple(leaf if (leaf := graph.leaf(worker)) in problem.memory else STRAIGHT for worker in job.workers)
    # Leaves of others are out of the way; what is above leaves helps those that have to go there.
    above = [] if len(racks) == 1 else [v for v in problem.candidates if v not in lowest]
    found = [leaves, *((v,) * len(job.workers) for v in [*sorted(racks & problem.memory.keys()), *above])]
    if not required:
        found.append((STRAIGHT,) * len(job.workers))
    found.append(now.at)
    routes = [JobRoute(at, pick) for at in dict.fromkeys(found) for pick in range(problem.picks)]
    return [route for route in routes if route != now]
