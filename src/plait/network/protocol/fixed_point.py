"""Fixed point: gradients as int32 whose sum over all workers fits in 32 bits, and back.

From released code: a shared power of two for each packet (SwitchML), and multiplication by 1,000,000 (ATP). That the
scale leaves room for the rounding of each worker is our design; SwitchML's has `margin` 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from plait.core.jit import kernel
from plait.network.protocol.header import NO_EXPONENT, Values

FloatArray32 = npt.NDArray[np.float32]

#: ATP's factor.
ATP_SCALE = 1e6
#: What `exponent_of` returns for infinities and what is not a number: such gradients must not be quantised.
NOT_FINITE = 1 << 16


@kernel
def exponent_of(x: FloatArray32) -> int:
    """The smallest e with 2**e > max |x|, from -127 on, and -128 for zeros alone; `NOT_FINITE` if any is not finite."""
    most = 0.0
    for value in x:
        size = abs(np.float64(value))
        if not size < math.inf:
            return NOT_FINITE
        most = max(most, size)
    if most == 0.0:
        return NO_EXPONENT
    return max(-127, math.frexp(most)[1])


def scale_of(exponent: int, workers: int, margin: int | None = None) -> float:
    """The factor from gradients below 2**exponent to int32: (2**31 - 1 - margin) / (workers * 2**exponent).

    `margin`: the number of workers unless it is given, since each may round up by a half. `exponent` is the largest of
    all workers.
    """
    room = workers if margin is None else margin
    return (2**31 - 1 - room) / workers * 2.0**-exponent


@kernel
def quantise(x: FloatArray32, scale: float, truncate: bool, out: Values) -> int:
    """Write round(x * scale), ties to even, or towards zero (ATP), to `out`; returns how many had to be limited.

    A limited value is the nearest of 32 bits; what is not a number becomes 0 and counts as limited.
    """
    limited = 0
    for k in range(len(x)):
        value: Any = np.float64(x[k]) * scale
        value = np.trunc(value) if truncate else np.rint(value)
        if not abs(value) <= 2147483647.0:
            limited += 1
            value = 2147483647.0 if value > 0 else -2147483648.0 if value < 0 else 0.0
        out[k] = np.int32(value)
    return limited


@kernel
def dequantise(values: Values, scale: float, out: FloatArray32) -> None:
    """Write values / scale to `out`, rounded once, to float32."""
    for k in range(len(values)):
        out[k] = np.float32(values[k] / scale)
