"""Elastic jobs with a fixed batch: seconds of an iteration by the number of GPUs, as the job measured them.

The throughput of Pollux (OSDI'21, section 3.2) with the batch held: each of K GPUs takes its part of it, and

    T_iter(N, K) = alpha_c + beta_c B / K + T_sync(N, K)

Of such a job only whole iterations are measured, at few sizes. So compute and synchronisation do not overlap here
(gamma = 1), which makes the time linear in the other six parameters: least squares of relative errors, none negative.
Sizes that have not been measured count a little (`TRUST`) with the time that the six shipped models suggest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import compress, product
from typing import Any

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray
from plait.core.errors import InputError
from plait.core.goodput import LEAST_S, THETA, Estimate
from plait.core.jobs import JobBatch
from plait.goodput.batch import SLACK, fixed_batch
from plait.goodput.shipped import measured_node, shipped
from plait.goodput.throughput import iteration_s, step_s

#: Examples B that stand for the batch of a job that does not state it: enough for any number of GPUs to divide evenly.
UNIT = 1 << 12

#: Weight of a size of the prior; a measured size has 1.
TRUST = 1e-4

#: (nodes, GPUs) at which the prior is taken.
SIZES = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16), (8, 32), (16, 64))

#: Columns of a batch that make a fixed batch of an elastic job without limits.
LIMITS = {"batch_size": UNIT, "max_batch_size": UNIT, "min_local_batch": 1, "max_local_batch": UNIT, "accumulates": 0}


def fixed_s(theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike) -> FloatArray:
    """Seconds of an iteration by `theta` (..., 7) with the batch `UNIT` over `gpus` GPUs on `nodes` nodes."""
    return step_s(theta, nodes, gpus, np.ceil(UNIT / np.asarray(gpus) - SLACK))


def scaled_to(theta: FloatArray, iteration_s: npt.ArrayLike, gpus: npt.ArrayLike, per_node: int) -> FloatArray:
    """`theta` (..., 7) with all times changed alike, so that an iteration takes `iteration_s` on `gpus` GPUs.

    The GPUs are on as few nodes of `per_node` as hold them.
    """
    factor = np.asarray(iteration_s) / fixed_s(theta, -(-np.asarray(gpus) // per_node), gpus)
    out = np.array(np.broadcast_to(theta, (*np.shape(factor), THETA)))
    out[..., : Estimate.GAMMA] = np.maximum(out[..., : Estimate.GAMMA] * factor[..., None], LEAST_S)
    return out


@cache
def prior() -> FloatArray:
    """Theta (7,) of a job about which nothing is known: the middle of the six shipped models, 1 s on one GPU.

    Each model has its largest batch, as users choose a batch that many GPUs can divide.
    """
    curves = []
    for model in shipped().values():
        limits, theta = model.batch, np.array(model.theta)
        nodes, gpus = np.array([(-(-k // measured_node()), k) for _, k in SIZES]).T
        local, passes = fixed_batch(
            limits.most, gpus, initial=limits.initial, most=limits.most,
            most_local=limits.most_local,
        )  # fmt: skip
        seconds = iteration_s(theta, nodes, gpus, local, passes)
        curves.append(np.log(seconds / seconds[0]))
    middle = np.exp(np.median(curves, axis=0))
    theta = _least_squares(dict(zip(SIZES, middle.tolist(), strict=True)), {})
    theta.setflags(write=False)
    return scaled_to(theta, 1.0, 1, 1)


def fit_sizes(measured: Mapping[tuple[int, int], float]) -> FloatArray:
    """Theta (7,) of the batch `UNIT` from seconds of an iteration by (nodes, GPUs).

    Raises `InputError` without a measurement, or for one that is not positive.
    """
    seconds = np.array(list(measured.values()))
    if not len(seconds) or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError(f"the scaling of a job needs positive seconds at one size at least, got {dict(measured)}")
    nodes, gpus = np.array(list(measured)).T
    base = prior()
    factor = float(np.exp(np.log(seconds / fixed_s(base, nodes, gpus)).mean()))
    expected = {size: factor * float(fixed_s(base, *size)) for size in SIZES if size not in measured}
    return _least_squares(measured, expected)


def _least_squares(measured: Mapping[tuple[int, int], float], expected: Mapping[tuple[int, int], float]) -> FloatArray:
    """The six parameters with the least squared relative errors, none negative.

    The optimum is the ordinary solution on those parameters that are not 0 there, so all 64 choices are tried: plainer
    than an active set, and 2 ms.
    """
    rows, weights = [], []
    for weight, times in ((1.0, measured), (TRUST, expected)):
        for (nodes, gpus), seconds in times.items():
            sync = (1.0, max(gpus - 2, 0)) if gpus > 1 else (0.0, 0.0)
            pairs = (0.0, 0.0, *sync) if nodes == 1 else (*sync, 0.0, 0.0)
            rows.append(np.array([1.0, UNIT / gpus, *pairs]) / seconds)
            weights.append(weight**0.5)
    left, right = np.array(rows) * np.array(weights)[:, None], np.array(weights)
    best, least = np.zeros(THETA - 1), np.inf
    for some in product((True, False), repeat=THETA - 1):
        columns = list(compress(range(THETA - 1), some))
        found = np.linalg.lstsq(left[:, columns], right, rcond=None)[0] if columns else np.zeros(0)
        error = float(((left[:, columns] @ found - right) ** 2).sum())
        if (found >= 0).all() and error < least:
            best, least = np.zeros(THETA - 1), error
            best[columns] = found
    return np.append(np.maximum(best, LEAST_S), 1.0)


def elastic_fixed(columns: Any) -> BoolArray:
    """(J,): elastic jobs whose batch does not adapt, of a `JobBatch` or `JobTable`."""
    column = columns.column if isinstance(columns, JobBatch) else lambda name: getattr(columns, name)
    rows: BoolArray = (column("batch_size") == 0) & (column("min_gpus") < column("max_gpus"))
    return rows


def with_fixed_batches(jobs: JobBatch) -> JobBatch:
    """The same jobs, where elastic ones without a batch have one of `UNIT` examples that never changes."""
    rows = elastic_fixed(jobs) & (jobs.column("min_gpus") <= UNIT)
    if not rows.any():
        return jobs
    return jobs.replace(**{name: np.where(rows, value, jobs.column(name)) for name, value in LIMITS.items()})


def is_fixed(jobs: JobBatch) -> BoolArray:
    """(J,): jobs to which `with_fixed_batches` gave their batch."""
    rows: BoolArray = np.logical_and.reduce([jobs.column(name) == value for name, value in LIMITS.items()])
    return rows


def parse_scaling(text: str) -> tuple[tuple[int, float], ...]:
    """Measured seconds of an iteration by GPUs, as traces write them; raises `InputError` for other text.

    >>> parse_scaling("1:0.52 4:0.17")
    ((1, 0.52), (4, 0.17))
    """
    try:
        pairs = tuple((int(gpus), float(seconds)) for gpus, seconds in (part.split(":") for part in text.split()))
    except ValueError:
        pairs = ()
    if not pairs or not all(gpus >= 1 and 0 < seconds < np.inf for gpus, seconds in pairs):
        raise InputError(f"scaling is {text!r}; give seconds of an iteration by GPUs, e.g. 1:0.52 2:0.29 4:0.17")
    return pairs


def scaling_of(scaling: Iterable[tuple[int, float]], per_node: int) -> FloatArray:
    """Theta (7,) of the batch `UNIT` by measured (GPUs, seconds) on nodes of `per_node` GPUs, or else the prior."""
    measured = {(-(-size // per_node), size): seconds for size, seconds in scaling}
    return fit_sizes(measured) if measured else prior()


def true_scaling(jobs: JobBatch, job: int, per_node: int) -> FloatArray:
    """Theta (7,) of an elastic job with a batch, by the `scaling` of its trace, or else the prior.

    An iteration takes its `iteration_s` at the requested size, on as few nodes of `per_node` GPUs as hold that.
    """
    theta = scaling_of(jobs.column("scaling")[job], per_node)
    theta = scaled_to(theta, float(jobs.iteration_s[job]), int(jobs.gpus[job]), per_node)
    theta[Estimate.BETA_C] *= UNIT / jobs.column("batch_size")[job]
    return theta
