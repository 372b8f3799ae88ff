"""Fixed routes, the baseline of GRID: every worker is added up at its own leaf, or at that of the server."""

from __future__ import annotations

from plait.core.errors import InputError
from plait.network.routing.problem import Choice, JobRoute, Problem, Routing
from plait.network.topology.trees import STRAIGHT

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
