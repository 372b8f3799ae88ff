"""Linear and integer programs, solved by HiGHS; no other module imports it.

    program = Program(cost, upper)
    program.put(program.add(1, -inf, 3.0), columns, values)
    solve(program)                  # integers

`LinearProgram` has columns and rows that come one at a time; `engine` is for programs that grow between solutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import MissingExtra, SimulationError

try:
    import highspy
except ImportError:
    HAVE_HIGHS = False
else:
    HAVE_HIGHS = True


def need_highs(use: str) -> None:
    """Raise `MissingExtra` for this `use` if HiGHS is not installed."""
    if not HAVE_HIGHS:
        raise MissingExtra("highspy", "sim", use)


def engine(**options: Any) -> Any:
    """A HiGHS without a program, silent and on one thread."""
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in {"output_flag": False, "parallel": "off", **options}.items():
        highs.setOptionValue(name, value)
    return highs


def has_point(info: Any) -> bool:
    """Whether a run of an integer program, by its `getInfo`, found a feasible point."""
    return bool(info.primal_solution_status == 2)


def rounded(highs: Any) -> IntArray:
    """The integers of the columns after a run."""
    whole: IntArray = np.rint(np.asarray(highs.getSolution().col_value)).astype(np.int64)
    return whole


def make_integers(highs: Any, columns: int) -> None:
    """Let the first `columns` columns of an engine be integers."""
    each = np.arange(columns, dtype=np.int32)
    highs.changeColsIntegrality(columns, each, np.full(columns, int(highspy.HighsVarType.kInteger), np.uint8))


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
    most_nodes: int | None = None,
    whole: BoolArray | None = None,
) -> Solution | None:
    """The best integers, or the best found when the limit is reached; None if there is no solution or none was found.

    `gap`: absolute, in the unit of the cost. `most_nodes` (branchings) is a limit that repeats, as seconds do not.
    `whole` marks the columns that have to be integers, all of them unless given. Raises `MissingExtra` without HiGHS.
    """
    need_highs("exact allocation")
    # one choice a job and few shared resources: presolve took 7 to 30 times as long as all the rest
    highs = engine(presolve="off", mip_abs_gap=gap, mip_rel_gap=0.0)
    if most_nodes is not None:
        highs.setOptionValue("mip_max_nodes", most_nodes)
    (low, high), (starts, columns, values) = program.bounds(), program.matrix()
    model = _model(program.cost, program.upper, low, high, starts, columns, values)
    integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    marks = np.ones(len(program.cost), dtype=bool) if whole is None else whole
    model.integrality_ = [integer if mark else real for mark in marks.tolist()]
    highs.passModel(model)
    if start is not None:
        known = highspy.HighsSolution()
        known.col_value = start.tolist()
        highs.setSolution(known)
    highs.run()
    info = highs.getInfo()
    if not has_point(info):
        return None
    optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return Solution(rounded(highs), bool(optimal), float(info.objective_function_value - info.mip_dual_bound))


@dataclass
class LinearProgram:
    """Minimise cost @ x over 0 <= x <= upper; rows `low <= sum of value * column <= high`."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    _start: list[int] = field(default_factory=lambda: [0])
    _column: list[int] = field(default_factory=list)
    _value: list[float] = field(default_factory=list)

    def column(self, cost: float, upper: float) -> int:
        """A further column; its number."""
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, low: float, high: float, terms: dict[int, float]) -> None:
        """A further row; `terms`: value by column."""
        self.low.append(low)
        self.high.append(high)
        self._column += terms.keys()
        self._value += terms.values()
        self._start.append(len(self._column))

    def solve(self, use: str) -> FloatArray:
        """The columns of a best solution.

        Raises `MissingExtra` without HiGHS, with its `use` in the message, and `SimulationError` if there is no
        solution.
        """
        need_highs(use)
        highs = engine(threads=1, random_seed=0)
        highs.passModel(_model(self.cost, self.upper, self.low, self.high, self._start, self._column, self._value))
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise SimulationError(f"linear program of {len(self.cost)} columns: {highs.getModelStatus()}")
        return np.asarray(highs.getSolution().col_value, dtype=np.float64)


def _model(
    cost: FloatArray | Sequence[float],
    upper: FloatArray | Sequence[float],
    low: FloatArray | Sequence[float],
    high: FloatArray | Sequence[float],
    start: IntArray | Sequence[int],
    column: IntArray | Sequence[int],
    value: FloatArray | Sequence[float],
) -> Any:
    """A program of HiGHS; the entries of row i are `start[i]` to `start[i + 1]` of `column` and `value`."""
    model: Any = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(low)
    model.col_cost_, model.col_lower_, model.col_upper_ = np.asarray(cost), np.zeros(len(cost)), np.asarray(upper)
    model.row_lower_, model.row_upper_ = np.asarray(low), np.asarray(high)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.asarray(start, dtype=np.int32)
    model.a_matrix_.index_ = np.asarray(column, dtype=np.int32)
    model.a_matrix_.value_ = np.asarray(value, dtype=np.float64)
    return model
