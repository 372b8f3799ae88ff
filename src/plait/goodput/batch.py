"""The batch that makes the most of given GPUs: m examples a GPU and pass, s accumulation-only passes before each step.

Fifty total batch sizes, geometric between the smallest and the largest allowed, are rounded to whole (m, s); the first
with the highest goodput is taken (Pollux, OSDI'21, section 4.1, and its published code). All jobs and configurations
are one array operation over (job and configuration, candidate).

Goodput of every job on every configuration, in one call, for allocators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import efficiency, throughput

CANDIDATES = 50
PART = np.linspace(0.0, 1.0, CANDIDATES)

#: Tolerance of a quotient that counts as a whole number.
SLACK = 1e-8

#: Pairs of job and configuration looked at together: temporary arrays stay in the processor's cache.
CHUNK = 256

Speed = Callable[
    [FloatArray, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    FloatArray,
]
"""(theta, nodes, gpus, local, passes) -> examples per second, all broadcast against each other."""


class BatchChoice(NamedTuple):
    """Batches of J jobs on C configurations, and their goodput; where a job cannot run, all three are 0."""

    local: IntArray
    """(J, C): m, examples a GPU processes in one pass."""
    passes: IntArray
    """(J, C): s, accumulation-only passes before the synchronising one."""
    goodput: FloatArray
    """(J, C): useful examples per second; a job without a fit counts K (only ratios matter)."""


def goodput(
    jobs: GoodputJobs,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    local: npt.ArrayLike,
    passes: npt.ArrayLike,
    *,
    speed: Speed = throughput,
) -> FloatArray:
    """Throughput times efficiency of `local` (m) and `passes` (s) for each job, useful examples/s; broadcast to (J,).

    NaN for a job without a fit.
    """
    scale = np.asarray(gpus) * np.asarray(local) * (np.asarray(passes) + 1) / jobs.initial
    value: FloatArray = speed(jobs.theta, nodes, gpus, local, passes) * efficiency(jobs.sqr, jobs.var, scale)
    return value


def fixed_batch(
    batch: npt.ArrayLike,
    gpus: npt.ArrayLike,
    *,
    initial: npt.ArrayLike,
    most: npt.ArrayLike,
    most_local: npt.ArrayLike,
    accumulates: npt.ArrayLike = True,
    least_local: npt.ArrayLike = 1,
) -> tuple[IntArray, IntArray]:
    """Split a total batch over `gpus` GPUs: (m, s), arguments broadcast.

    One GPU with more than M0 examples accumulates at least once, since one sample of the gradient shows little of its
    noise. m is moved between m_min and m_max, never takes the total beyond M_max, and is 0 where m_min would.
    """
    batch, gpus, accumulates = np.asarray(batch), np.asarray(gpus), np.asarray(accumulates)
    local = np.ceil(batch / gpus - SLACK)
    passes = np.ceil(local / np.asarray(most_local) - SLACK) - 1
    passes = np.where((gpus == 1) & (batch > np.asarray(initial)), np.maximum(passes, 1), passes)
    passes = np.where(accumulates, passes, 0)
    local = np.minimum(np.maximum(np.ceil(local / (passes + 1) - SLACK), least_local), most_local)
    local = np.minimum(local, np.asarray(most) // (gpus * (passes + 1)))
    local = np.where(local < least_local, 0, local)
    return local.astype(np.int64), passes.astype(np.int64)


def best_batch(
    jobs: GoodputJobs,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    *,
    artifact: bool = False,
    speed: Speed = throughput,
) -> BatchChoice:
    """The (m, s) with the highest goodput for each job on each configuration of `gpus` GPUs over `nodes` nodes.

    `nodes` and `gpus` are broadcast against (J, C): of shape (C,) every job is evaluated on every configuration, of
    shape (J, 1) each on its own. A job without a fit gets the smallest batch that there is. `speed` replaces the
    model of throughput. With `artifact`, a batch per GPU outside [m_min, m_max] is worth 0, as in the published code;
    otherwise it is moved into the range, and dropped if its total is then below M0 or above M_max (rounding up aside),
    and no job runs on more GPUs than leave each its smallest batch.
    """
    shape = np.broadcast_shapes(np.shape(nodes), np.shape(gpus), (len(jobs), 1))
    choice = BatchChoice(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape))
    many, apart = (choice.passes + np.asarray(column, dtype=np.int64) for column in (gpus, nodes))
    possible = many >= 1
    if not artifact:
        possible &= many <= jobs.most_gpus[:, None]
    fitted = jobs.fitted
    rows, columns = np.nonzero(possible & fitted[:, None])
    for begin in range(0, len(rows), CHUNK):
        at = rows[begin : begin + CHUNK], columns[begin : begin + CHUNK]
        found = _best(jobs[at[0]], apart[at], many[at], artifact, speed)
        for column, values in zip(choice, found, strict=True):
            column[at] = values
    if not fitted.all():
        _unfitted(choice, jobs, many, possible & ~fitted[:, None], artifact)
    return choice


def best_batch_each(
    jobs: GoodputJobs,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    *,
    artifact: bool = False,
    speed: Speed = throughput,
) -> BatchChoice:
    """As `best_batch`, each job on one configuration: `nodes`, `gpus` and the results have shape (J,)."""
    own = (np.broadcast_to(np.asarray(column), len(jobs))[:, None] for column in (nodes, gpus))
    local, passes, value = best_batch(jobs, *own, artifact=artifact, speed=speed)
    return BatchChoice(local[:, 0], passes[:, 0], value[:, 0])


def _best(jobs: GoodputJobs, nodes: IntArray, gpus: IntArray, artifact: bool, speed: Speed) -> BatchChoice:
    """The best candidate for each row of jobs and its configuration; all shapes (P,)."""
    local, passes = _candidates(jobs, gpus)
    pieces = gpus[:, None] * (passes + 1)
    if artifact:
        total = pieces * local
        allowed = (local >= jobs.least_local[:, None]) & (local <= jobs.most_local[:, None])
    else:
        local, total, allowed = _moved(jobs, pieces, local)
    value = speed(jobs.theta[:, None], nodes[:, None], gpus[:, None], local, passes)
    value *= efficiency(jobs.sqr[:, None], jobs.var[:, None], total / jobs.initial[:, None])
    value[~allowed] = 0.0
    best = np.argmax(value, axis=1)
    each = np.arange(len(best))
    reached = value[each, best]
    usable = reached > 0
    local, passes = (np.where(usable, column[each, best], 0) for column in (local, passes))
    return BatchChoice(local.astype(np.int64), passes.astype(np.int64), reached)


def _moved(jobs: GoodputJobs, pieces: FloatArray, local: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Each m between m_min and m_max, the total, and whether that is from M0 to M_max, rounding up aside."""
    local = np.minimum(np.maximum(local, jobs.least_local[:, None]), jobs.most_local[:, None])
    total = pieces * local
    return local, total, (total >= jobs.initial[:, None]) & (total - pieces < jobs.most[:, None])


def _candidates(jobs: GoodputJobs, gpus: IntArray, part: FloatArray = PART) -> tuple[FloatArray, FloatArray]:
    """Batches m and passes s of every candidate: whole numbers (P, parts), by total batch."""
    start, stop = np.maximum(jobs.initial, jobs.least_local * gpus), jobs.most
    total = start[:, None] * np.exp(np.log(stop / start)[:, None] * part)
    total[:, part == 1.0] = stop[:, None]
    local = total / gpus[:, None]
    alone = (gpus == 1)[:, None]
    initial = jobs.initial[:, None]
    passes = np.ceil(local / jobs.most_local[:, None] - SLACK) - 1
    passes = np.where(alone & (local > initial + SLACK), np.maximum(passes, 1), passes)
    passes *= jobs.accumulates[:, None]
    local = np.ceil(local / (passes + 1) - SLACK)
    pinned: BoolArray = alone & ~jobs.accumulates[:, None]
    return np.where(pinned, initial, local), passes


def _unfitted(choice: BatchChoice, jobs: GoodputJobs, gpus: IntArray, where: BoolArray, artifact: bool) -> None:
    """Fill in jobs without a fit: the smallest batch that there is, and goodput in proportion to the GPUs."""
    at = np.nonzero(where)
    own, many = jobs[at[0]], gpus[at]
    local, passes = _candidates(own, many, PART[:1])
    local, _, allowed = _moved(own, many[:, None] * (passes + 1), local)
    usable = artifact | allowed[:, 0]
    for column, values in zip(choice, (local[:, 0], passes[:, 0], many), strict=True):
        column[at] = np.where(usable, values, 0)


def goodput_table(
    jobs: GoodputJobs,
    configs: npt.ArrayLike,
    *,
    most_gpus: npt.ArrayLike | None = None,
    artifact: bool = False,
    speed: Speed = throughput,
) -> FloatArray:
    """Useful examples per second at the best batch, (J, C); `configs` holds a row (nodes, gpus) for each.

    0 where a job cannot run: no GPUs, so many that not each has its smallest batch, or more than its `most_gpus` (J,),
    for instance its exploration cap. A job without a fit is worth K. Configurations that the model cannot distinguish
    (same K, and one node or several) are computed once. `artifact` and `speed` are as in `best_batch`; a model other
    than `throughput` is called for every (nodes, gpus).
    """
    nodes, gpus = np.asarray(configs, dtype=np.int64).reshape(-1, 2).T
    if speed is throughput:
        nodes = 1 + (nodes > 1)
    (apart, many), kind = np.unique(np.stack([nodes, gpus]), axis=1, return_inverse=True)
    if most_gpus is not None:
        many = np.where(many <= np.asarray(most_gpus)[:, None], many, 0)
    values = best_batch(jobs, apart, many, artifact=artifact, speed=speed).goodput
    table: FloatArray = values[:, kind.reshape(-1)]
    return table
