"""GPUs of several kinds: one configuration (nodes, GPUs, kind) for each job, as an integer program (Sia, section 3).

    maximise  sum_ij x_ij sign(p) G_ij^p - penalty * (jobs without a configuration)
    so that   each job has at most one, and the GPUs of each kind suffice

G is goodput times what a restart leaves of it, each job's divided by its smallest, so that jobs compare. Any linear
constraint on x may be added: `Limit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import MOST_POWER, MOST_TERM
from plait.core.highs import Program, solve
from plait.goodput.fitness import ladder
from plait.goodput.knapsack import knapsack_of_one_size

#: Published: the cost of a job without GPUs, and the exponent (-0.5 in Sia's section 5.7, 0.5 in its section 3.3).
PENALTY, POWER = 1.1, -0.5

#: The largest cost in an integer program relative to a typical one of 1; larger ones hide the others in rounding.
MOST_COST = 1e7


#: By how much less than a typical gain a choice may be worth than the best one.
GAP = 1e-7


@dataclass(frozen=True)
class Limit:
    """One more constraint, low <= sum_ij coefficients_ij x_ij <= high; e.g. power, licences, or a job that must run."""

    coefficients: FloatArray
    low: float = -np.inf
    high: float = np.inf


def kind_configs(gpus_per_node: Sequence[int], nodes: Sequence[int], most: int | None = None) -> IntArray:
    """(C, 3) rows (nodes, GPUs, kind): the ladder of each kind without its row of 0 GPUs; `most` caps a job's GPUs.

    >>> kind_configs([2, 4], [1, 2])[:, 1].tolist()
    [1, 2, 1, 2, 4, 8]
    """
    rows = [np.zeros((0, 3), dtype=np.int64)]
    for kind, (per_node, count) in enumerate(zip(gpus_per_node, nodes, strict=True)):
        steps = ladder(per_node, count, most)[1:]
        rows.append(np.column_stack([steps, np.full(len(steps), kind)]))
    return np.concatenate(rows)


def relative(goodput: FloatArray) -> FloatArray:
    """Goodputs (J, C) over the smallest positive one of each job; NaN where a job cannot run."""
    known = np.where(goodput > 0, goodput, np.nan)
    least = np.where(np.isnan(known), np.inf, known).min(axis=1, initial=np.inf, keepdims=True)
    shares: FloatArray = known / least
    return shares


def best_configurations(
    goodput: FloatArray,
    gpus: IntArray,
    kind: IntArray,
    capacity: IntArray,
    p: float = POWER,
    *,
    penalty: float = PENALTY,
    weights: FloatArray | None = None,
    limits: Sequence[Limit] = (),
    most_nodes: int | None = None,
) -> IntArray:
    """The column of `goodput` (J, C) for each job, -1 for nothing.

    `goodput` is relative to each job's least (`relative`) and discounted for a restart; what is not positive is
    impossible. `gpus`, `kind` (C,) are what a column takes and of what; `capacity` (R,) the GPUs of each kind. For p =
    0 the logarithm takes the place of the power. Only the ratios of weights matter. Raises `InputError` if the
    limits cannot be met, and for p beyond `MOST_POWER`.
    """
    _check_power(p)
    jobs = len(goodput)
    _check_shapes(goodput, gpus, kind, limits)
    share = _shares(jobs, weights)
    gain = _gain(goodput, p, share)
    usable = np.isfinite(gain) & (gpus <= capacity[kind])
    if not limits:  # a choice worse than nothing is never made, and would spoil the scale
        # Which columns are worth more than all with fewer GPUs, or as many and before them, of the same kind
        better = np.zeros(gain.shape, dtype=bool)
        for which in np.unique(kind):
            at = np.flatnonzero(kind == which)
            at = at[np.argsort(gpus[at], kind="stable")]
            nothing = np.full((len(gain), 1), -np.inf)
            before = np.maximum.accumulate(np.concatenate([nothing, gain[:, at]], axis=1), axis=1)[:, :-1]
            better[:, at] = gain[:, at] > before
        usable &= better & (gain >= -penalty * share[:, None])
    job, column = np.nonzero(usable)
    if not len(job) and all(e.low <= 0 <= e.high for e in limits):
        return np.full(jobs, -1, dtype=np.int64)
    program = Program(_in_units(-gain[job, column] - penalty * share[job]), np.ones(len(job)))
    x = np.arange(len(job))
    program.put(program.add(jobs, 0, 1) + job, x, 1)
    program.put(program.add(len(capacity), 0, capacity.astype(np.float64)) + kind[column], x, gpus[column])
    for extra in limits:
        held = extra.coefficients[job, column]
        program.put(program.add(1, extra.low, extra.high), x[held != 0], held[held != 0])
    found = solve(program, most_nodes=most_nodes)
    if found is None:
        raise InputError(
            f"no choice of configurations for {jobs} jobs meets the {len(limits)} extra limits on GPUs of "
            f"{capacity.tolist()} by kind, or the limit on the search was too low"
        )
    chosen = np.full(jobs, -1, dtype=np.int64)
    taken = found.values > 0
    chosen[job[taken]] = column[taken]
    return chosen


def best_of_one_kind(
    goodput: FloatArray,
    column: IntArray,
    gpus: IntArray,
    total: int,
    p: float = POWER,
    *,
    penalty: float = PENALTY,
    weights: FloatArray | None = None,
    stay: BoolArray | None = None,
) -> IntArray:
    """`best_configurations` where each job has one, of one kind of GPU, of which there are `total`: a knapsack.

    `gpus` (C,) are the GPUs of a column, rising, the first 0. Each job may have its `column` (J,), worth `goodput`
    (J,), at most 1, or nothing; the choices are returned, (J,). Among choices that differ by less than the gap of the
    program, most jobs of `stay` (J,) win, then minimum GPUs, then earlier rows. Raises `InputError` as
    `best_configurations` does.
    """
    _check_power(p)
    jobs = len(goodput)
    share = _shares(jobs, weights)
    worth = _gain(goodput[:, None], p, share)[:, 0]
    if stay is not None:
        worth[stay] += GAP / (jobs + 1)
    return knapsack_of_one_size(worth, -penalty * share, column, gpus, total)


def _check_power(p: float) -> None:
    if not abs(p) <= MOST_POWER:
        raise InputError(
            f"p={p:g} makes more of goodputs than numbers can hold; give p from {-MOST_POWER} to {MOST_POWER} "
            f"(published: {POWER:g} and 0.5)"
        )


def _check_shapes(goodput: FloatArray, gpus: IntArray, kind: IntArray, limits: Sequence[Limit]) -> None:
    jobs, columns = goodput.shape
    if (
        gpus.shape != (columns,)
        or kind.shape != (columns,)
        or any(e.coefficients.shape != goodput.shape for e in limits)
    ):
        raise InputError(
            f"configurations of {jobs} jobs need GPUs and kinds for {columns} columns and limits of shape "
            f"{goodput.shape} (got {gpus.shape}, {kind.shape}, {[e.coefficients.shape for e in limits]})"
        )


def _shares(jobs: int, weights: npt.ArrayLike | None) -> FloatArray:
    """Weights (J,) over the largest; all 1 without weights."""
    if weights is None:
        return np.ones(jobs)
    given = np.asarray(weights, dtype=np.float64)
    largest = float(given.max(initial=0.0))
    shares: FloatArray = given / largest if largest > 0 else given
    return shares


def _gain(goodput: FloatArray, p: float, share: FloatArray) -> FloatArray:
    """sign(p) G^p, or log G, never more than `MOST_TERM` either way, times the share; -inf where G is not positive."""
    able = goodput > 0
    known = np.where(able, goodput, 1.0)
    with np.errstate(over="ignore"):
        gain = np.log(known) if p == 0 else np.sign(p) * known**p
    return np.where(able, np.clip(gain, -MOST_TERM, MOST_TERM) * share[:, None], -np.inf)


def _in_units(cost: FloatArray) -> FloatArray:
    """Costs over a typical one: the tolerances of the solver are absolute numbers."""
    size = np.abs(cost[cost != 0])
    if not len(size):
        return cost
    units: FloatArray = cost / max(float(np.median(size)), float(size.max()) / MOST_COST)
    return units
