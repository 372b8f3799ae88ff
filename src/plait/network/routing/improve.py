"""From a routing to a better one, one job after the other. Start at `improved`. Our design.

The linear program of `grid` knows only the fullest channel: what is not on it may be routed anyhow, and rounding
scatters workers. Here the time of each exchange counts, on the channels that exchanges really use, with headers, with
switches that answer themselves, and as rings where nothing is added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.network.routing.problem import Choice, JobRoute, Problem
from plait.network.topology.trees import STRAIGHT

#: Of a job by its place and a route: channels, and what these carry of it at rate 1.
UsesOf = Callable[[int, JobRoute], tuple[IntArray, FloatArray]]
#: How often every job has its turn; a change that gains less is none.
MOST_PASSES, GAIN = 2, 1e-6


def improved(problem: Problem, choices: Sequence[Choice], uses_of: UsesOf, required: Collection[int] = ()) -> Choice:
    """The best of these choices after jobs moved, in turn: to one switch, to leaves, or straight, and to other paths.

    A job moves if that shortens exchanges: if the sum over jobs of the load over capacity of their fullest channel
    becomes smaller. (With the fullest channel of all first, as in the program, the others pay for one job, and
    exchanges were longer than over fixed routes in some of the tests.) No switch gets more than its memory and its
    processing rate allow. Jobs whose places are in `required` are never sent straight as a whole.
    """
    found = [_descended(problem, choice, uses_of, required) for choice in choices]
    return min(found, key=lambda pair: pair[0])[1]


def _descended(problem: Problem, choice: Choice, uses_of: UsesOf, required: Collection[int]) -> tuple[float, Choice]:
    """The sum of the loads and the choice where no job moves any more, or after so many turns."""
    capacity, rates = problem.graph.channel_bits_per_s, [flow.bits_per_s for flow in problem.flows]
    lowest = {problem.graph.leaf(node) for node in range(len(problem.graph.nodes))}
    routes = list(choice)
    uses = [_scaled(uses_of(j, route), rates[j], capacity) for j, route in enumerate(routes)]
    load = np.zeros(len(capacity))
    for channel, share in uses:
        load[channel] += share
    best = 0.0
    for _ in range(MOST_PASSES):
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
    # The worker beside the server can add its part there.
    found += [tuple(STRAIGHT if w == job.server else v for w, v in zip(job.workers, row, strict=True)) for row in found]
    if not required:
        found.append((STRAIGHT,) * len(job.workers))
    found.append(now.at)
    routes = [JobRoute(at, pick) for at in dict.fromkeys(found) for pick in range(problem.picks)]
    return [route for route in routes if route != now]
