"""The batch that makes the most of given GPUs: m examples a GPU and pass, s accumulation-only passes before each step.

Fifty total batch sizes, geometric between the smallest and the largest allowed, are rounded to whole (m, s); the first
with the highest goodput is taken (Pollux, OSDI'21, section 4.1, and its published code). All jobs and configurations
are one array operation over (job and configuration, candidate).

Goodput of every job on every configuration, in one call, for allocators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.goodput import ANY, PLANS, THETA, BatchLimits, Estimate, bytes_a_parameter, state_bytes
from plait.goodput.execution_plans import Speed, speed_of
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import efficiency, throughput

CANDIDATES = 50
PART = np.linspace(0.0, 1.0, CANDIDATES)

#: Tolerance of a quotient that counts as a whole number.
SLACK = 1e-8

#: Pairs of job and configuration looked at together: temporary arrays stay in the processor's cache.
CHUNK = 256


class BatchChoice(NamedTuple):
    """Batches of J jobs on C configurations, and their goodput; where a job cannot run, all are 0."""

    local: IntArray
    """(J, C): m, examples a GPU processes in one pass."""
    passes: IntArray
    """(J, C): s, accumulation-only passes before the synchronising one."""
    goodput: FloatArray
    """(J, C): useful examples per second; a job without a fit counts K (only ratios matter)."""
    stage: IntArray
    """(J, C): the ZeRO stage of its plan; 0 for jobs without plans."""


def goodput(
    jobs: GoodputJobs,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    local: npt.ArrayLike,
    passes: npt.ArrayLike,
    *,
    stage: int = 0,
    speed: Speed = throughput,
) -> FloatArray:
    """Throughput times efficiency of `local` (m) and `passes` (s) for each job, useful examples/s; broadcast to (J,).

    `stage`: the ZeRO stage of their plans. NaN for a job without a fit.
    """
    scale = np.asarray(gpus) * np.asarray(local) * (np.asarray(passes) + 1) / jobs.initial
    rate = speed_of(stage, speed)(jobs.theta, nodes, gpus, local, passes)
    value: FloatArray = rate * efficiency(jobs.sqr, jobs.var, scale)
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

    A job with plans gets the ZeRO stage with the highest, too, of plans that fit into the memory of a GPU; without a
    fit the first stage that does.

    `nodes` and `gpus` are broadcast against (J, C): of shape (C,) every job is evaluated on every configuration, of
    shape (J, 1) each on its own. A job without a fit gets the smallest batch that there is. `speed` replaces the
    model of throughput. With `artifact`, a batch per GPU outside [m_min, m_max] is worth 0, as in the published code;
    otherwise it is moved into the range, and dropped if its total is then below M0 or above M_max (rounding up aside),
    and no job runs on more GPUs than leave each its smallest batch.
    """
    shape = np.broadcast_shapes(np.shape(nodes), np.shape(gpus), (len(jobs), 1))
    local, passes, stage = np.zeros((3, *shape), np.int64)
    choice = BatchChoice(local, passes, np.zeros(shape), stage)
    many, apart = (choice.passes + np.asarray(column, dtype=np.int64) for column in (gpus, nodes))
    possible = many >= 1
    if not artifact:
        possible &= many <= jobs.most_gpus[:, None]
    fitted = jobs.fitted
    rows, columns = np.nonzero(possible & fitted[:, None])
    for begin in range(0, len(rows), CHUNK):
        at = rows[begin : begin + CHUNK], columns[begin : begin + CHUNK]
        found = _best_plan(jobs[at[0]], apart[at], many[at], artifact, speed)
        for column, values in zip(choice, found, strict=True):
            column[at] = values
    if not fitted.all():
        _unfitted(choice, jobs, many, possible & ~fitted[:, None], artifact)
    return choice


def best_batch_each(jobs: GoodputJobs, nodes: npt.ArrayLike, gpus: npt.ArrayLike) -> BatchChoice:
    """As `best_batch`, each job on one configuration: `nodes`, `gpus` and the results have shape (J,)."""
    own = (np.broadcast_to(np.asarray(column), len(jobs))[:, None] for column in (nodes, gpus))
    local, passes, value, stage = best_batch(jobs, *own)
    return BatchChoice(local[:, 0], passes[:, 0], value[:, 0], stage[:, 0])


def ordered(
    limits: BatchLimits, estimates: FloatArray, nodes: int, gpus: int, memory_bytes: float
) -> BatchLimits | None:
    """The bounds of a job with plans on given GPUs: the best stage alone, and the local batch that it leaves room for.

    `estimates` is the job's row of `Estimate`, NaN unknown; `memory_bytes` of each GPU. None if no plan fits.
    """
    sqr, var = np.nan_to_num(estimates[Estimate.SQR], nan=0.0), np.nan_to_num(estimates[Estimate.VAR], nan=1.0)
    job = GoodputJobs.one(limits, estimates[:THETA], sqr, var, memory_bytes)
    local, _, _, stage = (int(column[0, 0]) for column in best_batch(job, [nodes], [gpus]))
    if not local:
        return None
    # The job may choose each batch between the bounds: it accumulates only if the best batch has room with that too.
    for accumulates in (limits.accumulation, False):
        free = memory_bytes - state_bytes(limits.parameters, stage, gpus, accumulates)
        room = int(min(free / max(limits.example_bytes, 1), limits.most_local))
        if accumulates and room >= local:
            return replace(limits, zero_stage=stage, most_local=room)
    # One GPU alone would have to be allowed the whole batch; several take at most `room` each if the total is bounded.
    largest = max(min(limits.most, room * gpus), limits.initial)
    return replace(limits, zero_stage=stage, most=largest, most_local=max(room, limits.initial), accumulation=False)


def _best_plan(jobs: GoodputJobs, nodes: IntArray, gpus: IntArray, artifact: bool, speed: Speed) -> BatchChoice:
    """The best of all stages for each row of jobs and its configuration; all shapes (P,)."""
    if jobs.plans is None:
        return _best(jobs, nodes, gpus, artifact, speed)
    local, passes, stage = np.zeros((3, len(jobs)), np.int64)
    best = BatchChoice(local, passes, np.zeros(len(jobs)), stage)
    for number, planned, may in _variants(jobs, gpus):
        found = _best(planned, nodes, gpus, artifact, speed_of(number, speed))
        better = may & (found.goodput > best.goodput)
        stage[better] = number
        for column, values in zip(best[:3], found, strict=False):
            column[better] = values[better]
    return best


def _variants(jobs: GoodputJobs, gpus: IntArray) -> Iterator[tuple[int, GoodputJobs, BoolArray]]:
    """Each stage, the jobs with as large a local batch as it leaves memory for on `gpus` (J,), and which can use it."""
    space = jobs.plans
    if space is None:
        yield 0, jobs, np.ones(len(jobs), dtype=bool)
        return
    for stage, accumulates in PLANS:
        whole, in_shards = bytes_a_parameter(stage, accumulates)
        free = space.memory_bytes - space.parameters * (whole + in_shards / gpus)
        room = np.floor(np.minimum(free / np.maximum(space.example_bytes, 1), jobs.most_local)).astype(np.int64)
        may = (space.parameters > 0) & np.isin(space.zero_stage, (ANY, stage)) & (room >= jobs.least_local)
        may |= (space.parameters == 0) & (stage == 0)
        local = np.where(may & (space.parameters > 0), room, jobs.most_local)
        yield stage, replace(jobs, most_local=local, accumulates=jobs.accumulates & accumulates), may


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
    return BatchChoice(local.astype(np.int64), passes.astype(np.int64), reached, np.zeros(len(best), np.int64))


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
    if jobs.plans is not None:  # where all totals are the same: more passes may divide it with less to round up
        passes = passes + ((jobs.plans.parameters > 0) & (start == stop))[:, None] * np.arange(len(part))
    passes *= jobs.accumulates[:, None]
    local = np.ceil(local / (passes + 1) - SLACK)
    pinned: BoolArray = alone & ~jobs.accumulates[:, None]
    return np.where(pinned, initial, local), passes


def _unfitted(choice: BatchChoice, jobs: GoodputJobs, gpus: IntArray, where: BoolArray, artifact: bool) -> None:
    """Fill in jobs without a fit: the smallest batch that there is, and goodput in proportion to the GPUs."""
    at = np.nonzero(where)
    own, many = jobs[at[0]], gpus[at]
    left = np.ones(len(many), dtype=bool)
    for stage, planned, may in _variants(own, many):
        local, passes = _candidates(planned, many, PART[:1])
        local, _, allowed = _moved(planned, many[:, None] * (passes + 1), local)
        usable = may & left & (artifact | allowed[:, 0])
        left &= ~usable
        columns = (local[:, 0], passes[:, 0], many, np.full(len(many), stage))
        for column, values in zip(choice, columns, strict=True):
            column[at] = np.where(usable, values, column[at])


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
