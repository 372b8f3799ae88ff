"""Parameters of a job's throughput from what it has measured of itself (Pollux, OSDI 2021, section 4.1).

Configurations that a job has not tried count as perfect: a network that it has not used costs nothing, for example. So
the job gets more GPUs, measures them, and the fit improves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray
from plait.core.errors import InputError, MissingExtra
from plait.core.goodput import LEAST_S, MOST_GAMMA, THETA, Estimate
from plait.goodput.throughput import Measurements, evaluate, loss, loss_and_gradient, observations

__all__ = ["Measurements", "fit", "fit_many", "loss", "loss_and_gradient"]

#: Where the published code starts, and its bounds: seconds, seconds an example or GPU; gamma is from 1 to 10.
START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
LOWER = (*[LEAST_S] * 6, 1.0)
UPPER = (*[np.inf] * 6, MOST_GAMMA)

#: How much slower the network is than the inside of a node, at least, while it has not been measured.
NETWORK = 1.1


def fit(profile: Measurements, start: FloatArray | None = None, *, artifact: bool = False) -> FloatArray:
    """Theta (7,) with the least `loss` found on `profile`; `start` (7,) and `artifact` as for `fit_many`."""
    theta: FloatArray = fit_many([profile], None if start is None else np.asarray(start)[None], artifact=artifact)[0]
    return theta


def fit_many(
    profiles: Sequence[Measurements], starts: FloatArray | None = None, *, artifact: bool = False
) -> FloatArray:
    """Theta (J, 7) with the least loss found for each of many jobs.

    Searches begin at the published start and at the job's row of `starts` (J, 7), its last optimum; a row with a NaN is
    skipped. The lower end is taken. `artifact`: SciPy's L-BFGS-B from the published start alone, as the published code
    does. Raises `InputError` for an empty profile, and in `artifact` mode `MissingExtra` without SciPy.
    """
    if not profiles:
        return np.zeros((0, THETA))
    limits = np.array([bounds(profile) for profile in profiles])
    seen = [observations(profile) for profile in profiles]
    cold = np.broadcast_to(START, (len(profiles), 1, THETA))
    if artifact:
        with _one_thread():
            theta = np.array([minimised(own, START, *bound)[1] for own, bound in zip(seen, limits, strict=True)])
    else:
        from plait.core.jit import announced
        from plait.goodput.levenberg_marquardt import search_many

        first = np.cumsum([0, *map(len, profiles)])
        warm = np.full_like(cold, np.nan) if starts is None else np.asarray(starts, dtype=np.float64)[:, None]
        with announced("the fit of adaptive jobs", 6):
            theta, _ = search_many(
                np.concatenate(seen, axis=1),
                first,
                np.concatenate([cold, warm], axis=1),
                np.ascontiguousarray(limits[:, 0]),
                np.ascontiguousarray(limits[:, 1]),
            )
    return np.array([_cautious(row, profile) for row, profile in zip(theta, profiles, strict=True)])


def bounds(profile: Measurements) -> tuple[FloatArray, FloatArray]:
    """Least and largest theta (7,) allowed; equal where the profile does not determine them, on the optimistic side."""
    if not len(profile):
        raise InputError("a profile without measurements cannot be fitted; take the job as not fitted yet")
    lower, upper = np.array(LOWER), np.array(UPPER)
    several = profile.nodes > 1
    fixed = {}
    if np.all(profile.local == profile.local[0]):
        fixed[Estimate.ALPHA_C] = max(float(profile.grad_s.mean()) / 2, LEAST_S)
    if not several.any():
        fixed |= dict.fromkeys((Estimate.ALPHA_N, Estimate.BETA_N), lower[Estimate.BETA_N])
    if not np.any(~several & (profile.gpus > 1)):
        fixed |= dict.fromkeys((Estimate.ALPHA_R, Estimate.BETA_R), lower[Estimate.BETA_R])
    if not np.any(profile.gpus > 2):
        fixed |= dict.fromkeys((Estimate.BETA_N, Estimate.BETA_R), lower[Estimate.BETA_N])
    for column, value in fixed.items():
        lower[column] = upper[column] = value
    return lower, upper


def _cautious(theta: FloatArray, profile: Measurements) -> FloatArray:
    """Keep the network no better than the inside of a node while it has not been measured."""
    if not np.any(profile.nodes > 1):
        inside = theta[[Estimate.ALPHA_R, Estimate.BETA_R]]
        between = [Estimate.ALPHA_N, Estimate.BETA_N]
        theta[between] = np.maximum(theta[between], NETWORK * inside)
    return theta


def minimised(
    seen: FloatArray, start: npt.ArrayLike, lower: FloatArray, upper: FloatArray, *, gradient: bool = True
) -> tuple[float, FloatArray]:
    """The loss and the theta (7,) at which SciPy's L-BFGS-B ends, for `observations` and bounds.

    Without `gradient` it takes finite differences. Raises `MissingExtra` without SciPy.
    """
    try:
        from scipy.optimize import Bounds, minimize
    except ImportError as error:
        raise MissingExtra("scipy", "sim", "fitting throughput as the published code does") from error
    slopes = np.zeros(THETA)

    def both(theta: FloatArray) -> tuple[float, FloatArray]:
        return evaluate(theta, seen, slopes), slopes.copy()

    def value(theta: FloatArray) -> float:
        return evaluate(theta, seen, slopes)

    begin, limits = np.clip(start, lower, upper), Bounds(lower, upper, keep_feasible=True)
    end = minimize(both if gradient else value, begin, jac=gradient or None, bounds=limits, method="L-BFGS-B")
    return float(end.fun), np.asarray(end.x, dtype=np.float64)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for the linear algebra of SciPy: more of them only wait for each other on seven numbers."""
    library = _linear_algebra()
    if library is None:
        yield
        return
    threads = library.scipy_openblas_get_num_threads()
    library.scipy_openblas_set_num_threads(1)
    try:
        yield
    finally:
        library.scipy_openblas_set_num_threads(threads)


@cache
def _linear_algebra() -> Any:
    """The OpenBLAS that SciPy's wheels bring, or None if it is another, which then keeps its threads."""
    import ctypes

    try:
        import scipy

        for file in (Path(scipy.__file__).parents[1] / "scipy.libs").glob("libscipy_openblas-*"):
            library = ctypes.CDLL(str(file))
            if hasattr(library, "scipy_openblas_set_num_threads"):
                return library
    except (ImportError, OSError):
        pass
    return None
