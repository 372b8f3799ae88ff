"""Names for the array types that columns are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from plait.core.codec.values import floats, plain_array

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


def _ints(values: Any) -> IntArray:
    return np.array(values, dtype=np.int64) if values else NO_JOBS


def _floats(values: Any) -> FloatArray:
    return np.array(floats(values), dtype=np.float64)


#: For `Codec.own`: arrays as lists, with null for NaN.
AS_LISTS: dict[Any, Any] = {IntArray: (plain_array, _ints), FloatArray: (plain_array, _floats)}
