"""Statistical efficiency: the worth of an example in a larger batch (Pollux, OSDI'21, section 3.1).

`sqr` is the squared norm of the true (pre-conditioned) gradient, `var` the variance of its estimate at the user's
batch size M0, and scale S = M / M0. The gradient noise scale is phi = M0 var / sqr, in examples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray


def gain(sqr: npt.ArrayLike, var: npt.ArrayLike, scale: npt.ArrayLike) -> FloatArray:
    """Progress of a step at `scale` (S) times M0 examples, in steps at M0: (var + sqr) / (var / S + sqr); 1 if unknown.

    Between 1 (no noise: a larger batch brings nothing) and S (only noise) for S >= 1.
    """
    sqr, var = np.asarray(sqr, dtype=np.float64), np.asarray(var, dtype=np.float64)
    below = var / np.asarray(scale) + sqr
    known = below > 0
    ratio: FloatArray = np.where(known, (var + sqr) / np.where(known, below, 1.0), 1.0)
    return ratio


def efficiency(sqr: npt.ArrayLike, var: npt.ArrayLike, scale: npt.ArrayLike) -> FloatArray:
    """Progress per example relative to M0: `gain` / `scale` = (phi + M0) / (phi + M), in (0, 1] for `scale` >= 1."""
    part: FloatArray = gain(sqr, var, scale) / np.asarray(scale)
    return part


def noise_scale(sqr: npt.ArrayLike, var: npt.ArrayLike, initial: npt.ArrayLike) -> FloatArray:
    """The noise scale phi = M0 var / sqr in examples, M0 being `initial`; infinite where `sqr` is not positive."""
    sqr = np.asarray(sqr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        phi: FloatArray = np.where(sqr > 0, np.asarray(initial) * np.asarray(var) / sqr, np.inf)
    return phi
