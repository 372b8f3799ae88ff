"""Integer programs for HiGHS: columns and rows as arrays, a start, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import MissingExtra

try:
    import highspy
except ImportError:
    HAVE_HIGHS = False
else:
    HAVE_HIGHS = True


@dataclass
class Program:
    """Minimise cost @ x over integers 0 <= x <= upper with rows of linear constraints added one batch at a time."""

    cost: FloatArray
    upper: FloatArray
    _rows: list[IntArray] = field(default_factory=list)
    _columns: list[IntArray] = field(default_factory=list)
    _values: list[FloatArray] = field(default_factory=list)
    _low: list[FloatArray] = field(default_factory=list)
    _high: list[FloatArray] = field(default_factory=list)
    _count: int = 0

    def add(self, count: int, low: float | FloatArray, high: float | FloatArray) -> int:
        """`count` rows between `low` and `high`; the number of the first."""
        first = self._count
        self._low.append(np.broadcast_to(np.asarray(low, dtype=np.float64), count))
        self._high.append(np.broadcast_to(np.asarray(high, dtype=np.float64), count))
        self._count += count
        return first

    def put(self, rows: IntArray | int, columns: IntArray, values: FloatArray | IntArray | float) -> None:
        """Coefficients of `columns` in `rows`; each pair at most once."""
        columns = np.asarray(columns, dtype=np.int64)
        self._rows.append(np.broadcast_to(np.asarray(rows, dtype=np.int64), columns.shape))
        self._columns.append(columns)
        self._values.append(np.broadcast_to(np.asarray(values, dtype=np.float64), columns.shape))

    def matrix(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Where each row starts, then columns and coefficients row by row."""
        rows, columns = np.concatenate(self._rows), np.concatenate(self._columns)
        order = np.lexsort((columns, rows))
        start = np.zeros(self._count + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=self._count), out=start[1:])
        return start, columns[order], np.concatenate(self._values)[order]

    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """Low and high of all rows."""
        return np.concatenate(self._low), np.concatenate(self._high)


@dataclass(frozen=True)
class Solution:
    """Integers of the columns; whether they were proven best (within the gap); how far from it they may be at most."""

    values: IntArray
    optimal: bool
    gap: float


def solve(
    program: Program,
    *,
    start: FloatArray | IntArray | None = None,
    gap: float = 1e-7,
    time_limit_s: float | None = None,
    most_nodes: int | None = None,
    whole: BoolArray | None = None,
) -> Solution | None:
    """The best integers, or the best found when a limit is reached; None if there is no solution or none was found.

    `gap`: absolute, in the unit of the cost. `most_nodes` (branchings) makes a limit repeatable, which seconds are not.
    `whole` marks the columns that have to be integers, all of them unless given. Raises `MissingExtra` without HiGHS.
    """
    if not HAVE_HIGHS:
        raise MissingExtra("highspy", "sim", "exact allocation")
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    # one choice a job and few shared resources: presolve took 7 to 30 times as long as all the rest
    options = {"output_flag": False, "parallel": "off", "presolve": "off", "mip_abs_gap": gap, "mip_rel_gap": 0.0}
    for name, value in options.items():
        highs.setOptionValue(name, value)
    if time_limit_s is not None:
        highs.setOptionValue("time_limit", float(time_limit_s))
    if most_nodes is not None:
        highs.setOptionValue("mip_max_nodes", most_nodes)
    highs.passModel(_model(program, whole))
    if start is not None:
        known = highspy.HighsSolution()
        known.col_value = start.tolist()
        highs.setSolution(known)
    highs.run()
    info = highs.getInfo()
    if info.primal_solution_status != 2:  # 2: a feasible point
        return None
    values = np.rint(np.asarray(highs.getSolution().col_value)).astype(np.int64)
    optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return Solution(values, bool(optimal), float(info.objective_function_value - info.mip_dual_bound))


def _model(program: Program, whole: BoolArray | None) -> Any:
    start, index, value = program.matrix()
    low, high = program.bounds()
    model: Any = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.cost), len(low)
    model.col_cost_, model.col_lower_, model.col_upper_ = program.cost, np.zeros(len(program.cost)), program.upper
    model.row_lower_, model.row_upper_ = low, high
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_ = start.astype(np.int32), index.astype(np.int32)
    model.a_matrix_.value_ = value
    integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    marks = np.ones(len(program.cost), dtype=bool) if whole is None else whole
    model.integrality_ = [integer if mark else real for mark in marks.tolist()]
    return model
