"""Names for the array types that columns are made of."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
ObjectArray: TypeAlias = npt.NDArray[np.object_]

NO_JOBS: IntArray = np.zeros(0, dtype=np.int64)


def objects(values: list[object]) -> ObjectArray:
    """A one-dimensional object array, also when the values are sequences."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
