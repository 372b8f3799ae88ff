"""A linear program for HiGHS: minimise cost @ x over 0 <= x <= upper, under rows of constraints. Start at `solve`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import MissingExtra, SimulationError

try:
    import highspy
except ImportError:
    HAVE_HIGHS = False
else:
    HAVE_HIGHS = True


@dataclass
class LinearProgram:
    """Columns with cost and upper bound, and rows `low <= sum of value * column <= high`."""

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

    def solve(self) -> FloatArray:
        """The columns of a best solution.

        Raises `MissingExtra` without HiGHS, `SimulationError` if there is no solution.
        """
        if not HAVE_HIGHS:
            raise MissingExtra("highspy", "sim", "routing by linear program")
        highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in {"output_flag": False, "parallel": "off", "threads": 1, "random_seed": 0}.items():
            highs.setOptionValue(name, value)
        model: Any = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.cost), len(self.low)
        model.col_cost_, model.col_lower_ = np.array(self.cost), np.zeros(len(self.cost))
        model.col_upper_, model.row_lower_, model.row_upper_ = map(np.array, (self.upper, self.low, self.high))
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self._start, dtype=np.int32)
        model.a_matrix_.index_ = np.array(self._column, dtype=np.int32)
        model.a_matrix_.value_ = np.array(self._value, dtype=np.float64)
        highs.passModel(model)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise SimulationError(f"linear program of {len(self.cost)} columns: {highs.getModelStatus()}")
        return np.asarray(highs.getSolution().col_value, dtype=np.float64)
