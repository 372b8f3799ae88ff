"""Fixed routes, the baseline of GRID: every worker is added up at its own leaf, or at that of the server."""

from __future__ import annotations

from plait.core.errors import InputError
from plait.network.routing.problem import STRAIGHT, Choice, Problem, Routing

FIXED = ("leaf", "server")


def shortest(problem: Problem, fixed: str = "leaf") -> Routing:
    """Shortest paths over one fixed switch for each worker.

    `fixed`: `leaf`, the switch that the worker is attached to, or `server`, that of the parameter server. Where that
    has no aggregators, or no memory is left when the job's turn comes, workers send straight to the server.
    Raises `InputError` for another word, or nodes with several switches.
    """
    if fixed not in FIXED:
        raise InputError(f"fixed is {fixed!r}, needs {' or '.join(FIXED)}")
    graph = problem.graph
    rows: list[tuple[int, ...]] = []
    for flow in problem.flows:
        assert flow.job.server is not None
        ends = flow.job.workers if fixed == "leaf" else (flow.job.server,) * len(flow.job.workers)
        leaves = [graph.leaf(end) for end in ends]
        rows.append(tuple(leaf if leaf in problem.memory else STRAIGHT for leaf in leaves))
    choice: Choice = problem.repaired(tuple(rows))
    return problem.routing(choice)
