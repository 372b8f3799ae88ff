"""Measured use of GPUs, of the jobs on them and of the network, as events for the controller.

`view.usage`: only for policies that share GPUs with guests; others read nothing of it. `view.network`: measurements of
exchanges by ranks. A report has what differs from what the controller knows by a good deal, so that the log of a
cluster at rest does not grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from plait.control.messages import NetworkReported, UsageReported
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import Phase
from plait.core.policy import has_groups, has_guests
from plait.live.protocol.wire import RUNNING, Seen
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.attempts import Attempt

#: Thresholds of change: a difference of utilisation, a fraction of bytes and seconds.
DRIFT_UTILISATION, DRIFT = 0.05, 0.1
#: The same of exchanges: a difference of shares; rates change by the fraction above.
DRIFT_SHARE = 0.02
#: A GPU that a job has for itself shows what the job needs once it has run for so many seconds.
FILLED_S = 60.0
#: A guest that its runner throttles runs if it is not frozen for this part of the time.
RUNS_DUTY = 0.01
#: Columns of a job in a report, in this order.
COLUMNS = ("step_s", "peak_bytes", "persistent_bytes", "spill_bytes")


def report_usage(ctx: Context) -> bool:
    """Record one `UsageReported` about what has changed since the last one, if anything has and policies may want it.

    Returns whether there was one.
    """
    controller, policy = ctx.state.controller, ctx.state.policy
    if controller is None or policy is None or not (has_guests(policy) or has_groups(policy)):
        return False
    utilisation, memory_bytes = _of_gpus(ctx, controller.cluster)
    jobs, figures = _of_jobs(ctx)
    known = controller.usage
    if known is not None:
        utilisation = _news(utilisation, known.utilisation, absolute=DRIFT_UTILISATION)
        memory_bytes = _news(memory_bytes, known.memory_bytes)
        before, there = np.full_like(figures, math.nan), np.isin(jobs, known.jobs)
        at = np.searchsorted(known.jobs, jobs[there])
        for i, name in enumerate(COLUMNS):
            before[there, i] = getattr(known, name)[at]
        changed = np.asarray(_differs(figures, before).any(axis=1), dtype=np.bool_)
        if has_groups(policy):  # the policy before may have learnt nothing from what was reported to it
            columns, peaks = controller.job_store.columns, figures[:, COLUMNS.index("peak_bytes")]
            unknown = (columns["running_group"][jobs] >= 0) & (columns["gpu_memory_bytes"][jobs] == 0)
            changed |= unknown & ~np.isnan(peaks)
        jobs, figures = jobs[changed], figures[changed]
    if not len(jobs) and np.isnan(utilisation).all() and np.isnan(memory_bytes).all():
        return False
    columns = {name: figures[:, i].copy() for i, name in enumerate(COLUMNS)}
    ctx.record(UsageReported(ctx.now_s, utilisation, memory_bytes, jobs, **columns))
    return True


def _of_gpus(ctx: Context, cluster: Cluster) -> tuple[FloatArray, FloatArray]:
    """Mean utilisation and bytes in use of each GPU of the cluster; NaN where no agent reports."""
    utilisation, memory_bytes = np.full(cluster.gpus, math.nan), np.full(cluster.gpus, math.nan)
    for index, node in enumerate(cluster.nodes):
        record, first = ctx.state.nodes.get(node.id), int(cluster.first_gpu[index])
        if record is None or record.lost:
            continue
        for i, mean in enumerate(record.usage.means[: node.gpus]):
            utilisation[first + i] = math.nan if mean.utilisation is None else round(mean.utilisation, 3)
            memory_bytes[first + i] = math.nan if mean.memory_bytes is None else mean.memory_bytes
    return utilisation, memory_bytes


def _of_jobs(ctx: Context) -> tuple[IntArray, FloatArray]:
    """Numbers of the jobs of which something was measured, and a row of `COLUMNS` each."""
    rows = [
        (job.number, figures)
        for job, attempt in ctx.state.attempts
        if job.admitted and (figures := _figures(ctx, attempt)) is not None
    ]
    numbers = np.array([number for number, _ in rows], dtype=np.int64)
    return numbers, np.array([figures for _, figures in rows], dtype=float).reshape(-1, len(COLUMNS))


def _figures(ctx: Context, attempt: Attempt) -> tuple[float, float, float, float] | None:
    """Seconds of a step, and bytes of its fullest process or of its fullest GPU; None if nothing is known.

    A guest that gets nothing makes no steps: its step is then at least as long as it has waited for the end of one.
    """
    running = [r.seen for r in attempt.ranks if r.seen is not None and r.seen.state == RUNNING]
    steps = [seen.step_s for seen in running if seen.step_s]
    memory = [seen.memory for seen in running if seen.memory is not None]
    if attempt.guest:
        steps += [seen.held_s - (seen.last_step_s or 0.0) for seen in running if seen.held_s > 0 and not _runs(seen)]
    largest = [max((getattr(m, name) for m in memory), default=math.nan) for name in COLUMNS[1:]]
    peak_bytes = largest[0] if memory or not running else _used_alone(ctx, attempt)
    if not steps and math.isnan(peak_bytes):
        return None
    return max(steps, default=math.nan), peak_bytes, largest[1], largest[2]


def _used_alone(ctx: Context, attempt: Attempt) -> float:
    """Bytes in use of the fullest GPU of an attempt whose job has not stated its need; NaN if others share it.

    Once others have shared it only if no need is known: when mates end, their memory is still in the next report.
    """
    state, controller = ctx.state, ctx.state.controller
    group, shared = state.groups.group_of(attempt), state.groups.shared.keys() & set(attempt.gpus)
    known = controller is None or controller.job_store.columns["gpu_memory_bytes"][attempt.job] > 0
    alone = group is not None and len(group.members) == 1 and not (attempt.guest or shared)
    attempt.shared |= not alone
    stated = state.jobs[attempt.job].request.get("gpu_memory")
    if stated or not alone or (known and attempt.shared) or ctx.now_s < attempt.began_s + FILLED_S:
        return math.nan
    seen = [mean for r in attempt.ranks for mean in state.nodes[r.node].usage.means[r.gpu : r.gpu + 1]]
    return max((mean.memory_bytes for mean in seen if mean.memory_bytes and mean.utilisation), default=math.nan)


def _runs(seen: Seen) -> bool:
    """Whether a process that reports no steps is known to run, as a guest that its runner throttles."""
    sharing = seen.sharing
    return not seen.steps and sharing is not None and (sharing.duty or 0.0) >= RUNS_DUTY


def _differs(new: FloatArray, known: FloatArray, absolute: float = 0.0) -> BoolArray:
    """Which figures are known now and were not before, or differ by a good deal."""
    least = absolute if absolute else DRIFT * np.maximum(np.abs(new), np.abs(known))
    with np.errstate(invalid="ignore"):
        out: BoolArray = ~np.isnan(new) & (np.isnan(known) | (np.abs(new - known) > least))
    return out


def _news(new: FloatArray, known: FloatArray, absolute: float = 0.0) -> FloatArray:
    before = np.full(len(new), math.nan)  # nodes may have come since then
    before[: len(known)] = known[: len(new)]
    return np.where(_differs(new, before, absolute), new, math.nan)


# -- exchanges of gradients ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Figures of a job; see `plait.core.network_grants.NetworkFigures`."""

    bits_per_s: float
    aggregated: float
    fallback_share: float


def report_network(ctx: Context) -> bool:
    """Record one `NetworkReported` about jobs whose figures have changed, if any; returns whether there was one."""
    controller = ctx.state.controller
    if controller is None:
        return False
    known, phases, rows = controller.network, controller.job_store.columns["phase"], []
    for number, attempt in ((job.number, attempt) for job, attempt in ctx.state.attempts):
        if phases[number] != int(Phase.RUNNING) or (new := measured(attempt)) is None:
            continue
        at = -1 if known is None else int(np.searchsorted(known.jobs, number))
        if known is not None and at < len(known.jobs) and known.jobs[at] == number:
            old = Measured(*(float(getattr(known, one.name)[at]) for one in fields(Measured)))
            if not _exchange_differs(new, old):
                continue
        rows.append((number, new))
    if not rows:
        return False
    columns = {one.name: np.array([getattr(row, one.name) for _, row in rows]) for one in fields(Measured)}
    ctx.record(NetworkReported(ctx.now_s, np.array([number for number, _ in rows], dtype=np.int64), **columns))
    return True


def measured(attempt: Attempt) -> Measured | None:
    """Figures of an attempt from what its ranks have counted since they started; None before any exchange.

    The rate is that of a rank while it exchanges, mean of all. A sum counts as aggregated if the network made it and no
    packet of it met an occupied aggregator.
    """
    counts = [rank.seen.exchange for rank in attempt.ranks if rank.seen is not None and rank.seen.exchange is not None]
    rates = [
        8 * (each.aggregated_bytes + each.fallback_bytes) / each.exchange_s for each in counts if each.exchange_s > 0
    ]
    total = sum(each.aggregated_bytes + each.fallback_bytes for each in counts)
    if not rates or not total > 0:
        return None
    by_network = sum(each.aggregated_bytes for each in counts)
    whole = sum(each.aggregated_bytes * (1.0 - each.collided_share) for each in counts)
    collided = 0.0 if not by_network else 1.0 - whole / by_network
    return Measured(sum(rates) / len(rates), whole / total, collided)


def _exchange_differs(new: Measured, old: Measured) -> bool:
    if not abs(new.bits_per_s - old.bits_per_s) <= DRIFT * max(new.bits_per_s, old.bits_per_s):  # true of a NaN
        return True
    changes = (new.aggregated - old.aggregated, new.fallback_share - old.fallback_share)
    return any(abs(change) > DRIFT_SHARE for change in changes)
