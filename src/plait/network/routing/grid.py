"""Gradient routing after the description of GRID: aggregation switches and paths by a linear program and rounding.

The description says that the aggregation switch and the route of each gradient flow are chosen by randomised rounding.
The program, its repair and the number of tries are our design; the approximation bound of the paper is not claimed.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.highs import LinearProgram
from plait.network.routing.problem import Choice, JobRoute, Problem, Routing
from plait.network.topology.trees import STRAIGHT, Way

#: Weight of all traffic beside the fullest channel: among equal solutions the one with shorter routes is taken.
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
