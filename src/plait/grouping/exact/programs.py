"""Linear and integer programs over groups of classes, solved by HiGHS.

    maximise  sum_S value_S x_S
    so that   every class is used as often as there are jobs of it, and there are as many groups as wanted

One column x_S for each kind of group S that is offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import MissingExtra
from plait.grouping.model.bucket import Node

try:
    import highspy
except ImportError:
    HAVE_HIGHS = False
else:
    HAVE_HIGHS = True

#: Cost of a job or a group that the columns offered so far cannot cover; far above any group's value.
UNCOVERED = 1e4


def need_highs() -> None:
    """Raise `MissingExtra` if HiGHS is not installed."""
    if not HAVE_HIGHS:
        raise MissingExtra("highspy", "sim", "exact grouping")


class LinearProgram:
    """The relaxation, x_S >= 0, to which columns are added between solutions."""

    def __init__(self, counts: IntArray, groups: int) -> None:
        """Start without groups: all jobs uncovered."""
        need_highs()
        self.nodes: list[Node] = []
        self._known: set[Node] = set()
        self._rows = np.array([*counts.tolist(), groups], dtype=np.float64)
        self._highs = _quiet()
        count = len(self._rows)
        none, nothing = np.zeros(0, dtype=np.int32), np.zeros(0)
        self._highs.addRows(count, self._rows, self._rows, 0, np.zeros(count, dtype=np.int32), none, nothing)
        each = np.arange(count, dtype=np.int32)
        ones = np.ones(count)
        self._highs.addCols(count, ones * UNCOVERED, ones * 0.0, ones * np.inf, count, each, each, ones)

    def add(self, nodes: Sequence[Node], values: Sequence[float]) -> int:
        """Offer more kinds of groups; how many were new."""
        new = [(n, v) for n, v in dict(zip(nodes, values, strict=True)).items() if n not in self._known]
        if new:
            fresh = [n for n, _ in new]
            self._known.update(fresh)
            self.nodes += fresh
            _add_columns(self._highs, fresh, [v for _, v in new], len(self._rows) - 1)
        return len(new)

    def solve(self) -> tuple[float, FloatArray, FloatArray]:
        """The optimum, how often each kind of group is taken, and the prices of the classes and of a group."""
        self._highs.run()
        found = self._highs.getSolution()
        x = np.asarray(found.col_value)[len(self._rows) :]
        return -float(self._highs.getInfo().objective_function_value), x, -np.asarray(found.row_dual)

    @property
    def covered(self) -> bool:
        """Whether the last solution places every job."""
        return bool(np.asarray(self._highs.getSolution().col_value)[: len(self._rows)].max() < 1e-6)


def integer_program(
    nodes: Sequence[Node], values: Sequence[float], counts: IntArray, groups: int, gap: float, most_nodes: int
) -> tuple[list[Node] | None, float]:
    """The best of the offered groups, within an absolute `gap` of the best, and a bound on the best.

    No groups if the jobs cannot be placed in the offered ones. The search stops after `most_nodes` branchings (not
    after a time, which would not be repeatable).
    """
    highs = _quiet()
    highs.setOptionValue("mip_abs_gap", gap)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_max_nodes", most_nodes)
    rows = np.array([*counts.tolist(), groups], dtype=np.float64)
    none = np.zeros(0, dtype=np.int32)
    highs.addRows(len(rows), rows, rows, 0, np.zeros(len(rows), dtype=np.int32), none, np.zeros(0))
    _add_columns(highs, nodes, values, len(counts))
    each = np.arange(len(nodes), dtype=np.int32)
    highs.changeColsIntegrality(len(nodes), each, np.full(len(nodes), int(highspy.HighsVarType.kInteger), np.uint8))
    highs.run()
    info = highs.getInfo()
    if info.primal_solution_status != 2:  # 2: a feasible point
        return None, float("inf")
    often = np.rint(np.asarray(highs.getSolution().col_value)).astype(np.int64)
    return [nodes[s] for s in np.repeat(each, often).tolist()], -float(info.mip_dual_bound)


def _quiet() -> Any:
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("parallel", "off")
    return highs


def _add_columns(highs: Any, nodes: Sequence[Node], values: Sequence[float], group_row: int) -> None:
    start: list[int] = []
    index: list[int] = []
    often: list[int] = []
    for node in nodes:
        start.append(len(index))
        for c in dict.fromkeys(node):
            index.append(c)
            often.append(node.count(c))
        index.append(group_row)
        often.append(1)
    count = len(nodes)
    highs.addCols(
        count,
        -np.asarray(values, dtype=np.float64),
        np.zeros(count),
        np.full(count, np.inf),
        len(index),
        np.array(start, dtype=np.int32),
        np.array(index, dtype=np.int32),
        np.array(often, dtype=np.float64),
    )
