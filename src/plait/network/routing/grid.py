"""Gradient routing after the description of GRID: aggregation switches by a linear program and randomised rounding.

The description says that the aggregation switch and the route of each gradient flow are chosen by randomised rounding.
The program, its repair and the number of tries are our design; the approximation bound of the paper is not claimed.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.highs import LinearProgram
from plait.network.routing.problem import Choice, Problem, Routing
from plait.network.topology.trees import STRAIGHT

#: Weight of all traffic beside the fullest channel: among equal solutions the one with shorter routes is taken.
DETOUR = 1e-6
#: How often every job has its turn to move workers.
MOST_PASSES = 4


def grid(problem: Problem, seed: int = 0, tries: int = 20) -> Routing:
    """The best of `tries` roundings of the linear program, drawn by a seeded generator.

    x[w, v] is the share of worker w that is added up at switch v, or straight at the server; z[g, v] >= x[w, v] whether
    job g uses v. Minimise lambda, so that every link carries at most lambda times its capacity, and switches have the
    memory (z * rate * RTT) and the processing rate (x * rate). A rounding draws once for a job. One that overfills a
    switch is repaired: the last of its jobs send straight. From the best one workers move, alone or with all of their
    job, as long as that makes the fullest channel less full. Same problem and seed, same routing. Raises `MissingExtra`
    without HiGHS.
    """
    if not problem.flows:
        return Routing((), 0.0, -1, 0.0)
    shares, relaxed = relax(problem)
    generator = np.random.default_rng(seed)
    targets = (*problem.candidates, STRAIGHT)
    best: Routing | None = None
    for _ in range(max(tries, 1)):
        rows: list[tuple[int, ...]] = []
        for share in shares:
            # One draw for all workers of a job: those of equal shares go to one switch, where their sum is complete.
            picked = (share.cumsum(axis=1) < generator.random()).sum(axis=1)
            rows.append(tuple(targets[min(at, len(targets) - 1)] for at in picked.tolist()))
        choice: Choice = problem.repaired(tuple(rows))
        found = problem.routing(choice, relaxed)
        if best is None or _order(problem, found) < _order(problem, best):
            best = found
    assert best is not None
    return problem.routing(_descended(problem, best.choice), relaxed)


def _descended(problem: Problem, choice: Choice) -> Choice:
    """The choice after moves of workers, each the best of its job, until none helps; at most `MOST_PASSES` times each.

    Of equal maxima the one with fewer channels near it counts, so that jobs which share the fullest channel move one
    after the other.
    """
    targets = (*problem.candidates, STRAIGHT)
    capacity = problem.graph.channel_bits_per_s
    rows = list(choice)
    alone = [tuple(() if i != j else rows[j] for i in range(len(rows))) for j in range(len(rows))]
    loads = [problem.load(one) for one in alone]
    total = np.sum(loads, axis=0)
    for _ in range(MOST_PASSES):
        moved = False
        for j, row in enumerate(rows):
            others = total - loads[j]
            cost = _crowding(total / capacity)
            found = {(v,) * len(row) for v in targets}
            found |= {(*row[:i], v, *row[i + 1 :]) for i in range(len(row)) for v in targets}
            for other in sorted(found - {row}):
                load = problem.load(tuple(() if i != j else other for i in range(len(rows))))
                new = _crowding((others + load) / capacity)
                if new < cost and not problem.overfull((*rows[:j], other, *rows[j + 1 :])):
                    cost, rows[j], loads[j], moved = new, other, load, True
            total = others + loads[j]
        if not moved:
            break
    return tuple(rows)


def _crowding(used: FloatArray) -> tuple[float, float]:
    """Smaller is better: the fullest channel, then how full all are, most of all the fuller ones."""
    most = float(used.max(initial=0.0))
    return round(most, 9), round(float(((used / (most or 1.0)) ** 8).sum()), 6)


def _order(problem: Problem, routing: Routing) -> tuple[float, float]:
    """Smaller is better: the fullest channel, then all traffic."""
    return round(routing.utilisation, 12), float(problem.load(routing.choice).sum())


def relax(problem: Problem) -> tuple[list[np.ndarray[tuple[int, int], np.dtype[np.float64]]], float]:
    """Of each job the shares (workers, candidates + 1), the last one straight to the server; and lambda."""
    program = LinearProgram()
    fullest = program.column(1.0, np.inf)
    capacity = problem.graph.channel_bits_per_s
    total = float(capacity.sum())
    channels: dict[int, dict[int, float]] = {}
    columns: list[list[list[int]]] = []
    memory: dict[int, dict[int, float]] = {v: {} for v in problem.candidates}
    processing: dict[int, dict[int, float]] = {v: {} for v in problem.candidates}

    def column(rate: float, shares: dict[int, float]) -> int:
        """A decision that sends `rate` over these shares of channels."""
        made = program.column(DETOUR * rate * sum(shares.values()) / total, 1.0)
        for channel, share in shares.items():
            channels.setdefault(channel, {})[made] = rate * share
        return made

    for j, flow in enumerate(problem.flows):
        rate = flow.bits_per_s
        uses = {v: column(rate, problem.on[j][v]) for v in problem.candidates}
        columns.append([])
        for i in range(len(flow.job.workers)):
            mine = {v: column(rate, problem.there[j][v][i]) for v in (*problem.candidates, STRAIGHT)}
            columns[-1].append(list(mine.values()))
            program.row(1.0, 1.0, dict.fromkeys(mine.values(), 1.0))
            for v in problem.candidates:
                program.row(0.0, np.inf, {uses[v]: 1.0, mine[v]: -1.0})
                processing[v][mine[v]] = rate
        for v in problem.candidates:
            memory[v][uses[v]] = problem.aggregators[j][v]
    for channel, terms in channels.items():
        scale = float(capacity[channel])
        program.row(-np.inf, 0.0, {fullest: -1.0} | {at: value / scale for at, value in terms.items()})
    for limits, rows in ((problem.memory, memory), (problem.processing, processing)):
        for v, terms in rows.items():
            if np.isfinite(limits[v]):
                program.row(-np.inf, 1.0, {at: value / limits[v] for at, value in terms.items()})
    found = program.solve("routing by linear program")
    shares = [np.clip(found[np.array(workers)], 0.0, 1.0) for workers in columns]
    return [share / share.sum(axis=1, keepdims=True) for share in shares], float(found[fullest])
