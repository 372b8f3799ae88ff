"""Current resource use of each running job, from the newest reports of the agents.

GPUs are as busy as their nodes measure them, for all users together; CPU, memory and disk are measured for the job's
own processes. A GPU is *idle* while it is held and known to be less busy than `IDLE`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.goodput import BatchLimits
from plait.core.resources import Resource
from plait.live.protocol.requests import limits_of
from plait.live.protocol.wire import Seen, Usage
from plait.live.scheduler.context import Context
from plait.live.scheduler.measured import work_of
from plait.live.scheduler.records.attempts import Attempt, JobRecord, Rank

#: Utilisation below which a GPU that is held counts as idle.
IDLE = 0.05
#: Bytes a second of disks and sockets, as fields of `wire.Resources`.
RATES = ("read_bytes_s", "written_bytes_s", "sent_bytes_s", "received_bytes_s")
#: A job has stalled that ends no iteration for so many of its own and so many seconds.
STALLED, STALLED_S = 2.0, 5.0


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """A GPU: its node and the node's number of it."""

    node: str
    gpu: int


@dataclass(frozen=True, slots=True)
class JobUsage:
    """A job at a moment: `values` by the names of `plait.live.service.usage.SERIES`, `ranks` as they are shown.

    `gpus`: held by the job; of these, the number that is idle, and the number whose use is known; a GPU of several jobs
    counts as many parts. `exchanged_bytes` of gradients by its attempt `epoch` so far, None if it reports none.
    """

    job: int
    epoch: int
    values: dict[str, float]
    ranks: list[dict[str, Any]]
    held_gpus: float
    known_gpus: float
    idle_gpus: float
    exchanged_bytes: float | None = None


def job_usages(ctx: Context) -> list[JobUsage]:
    """Every job that has an attempt whose processes have reported, by number."""
    live = ctx.state.attempts
    holders = Counter(place for _, attempt in live for place in _places(attempt))
    return [_job_usage(ctx, job, attempt, holders) for job, attempt in live if any(r.seen for r in attempt.ranks)]


def utilisation(usage: Usage, gpu: int) -> float | None:
    """How busy a GPU of a node is, 0..1: its mean of the last 10 s, else its last reading; None if not known."""
    if gpu < len(usage.means) and (mean := usage.means[gpu].utilisation) is not None:
        return mean
    return usage.gpus[gpu].utilisation if gpu < len(usage.gpus) else None


def _places(attempt: Attempt) -> list[GpuPlace]:
    return list(dict.fromkeys(GpuPlace(r.node, r.gpu) for r in attempt.ranks if not r.ended))


def _job_usage(ctx: Context, job: JobRecord, attempt: Attempt, holders: Counter[GpuPlace]) -> JobUsage:
    busy = {place: _busy(ctx, place) for place in _places(attempt)}
    part = {place: 1 / holders[place] for place in busy}
    known = {place: value for place, value in busy.items() if value is not None}
    seen = [r.seen for r in attempt.ranks if r.seen is not None and not r.ended]
    values = _of_processes(seen)
    if known:
        values["gpu_utilisation"] = sum(known.values()) / len(known)
        values["gpu_least"] = min(known.values())
    if (memory := _gpu_memory(ctx, seen, list(busy))) is not None:
        values["gpu_memory_bytes"] = memory
    lead = attempt.lead
    if lead is not None and lead.step_s:
        assert lead.step_s
        since_s = lead.held_s - lead.last_step_s if lead.last_step_s is not None else 0.0
        out = {"iterations_s": 0.0 if since_s > STALLED * lead.step_s + STALLED_S else 1 / lead.step_s}
        if lead.stage_s is not None and len(lead.stage_s) == len(Resource):
            out |= {f"stage_{one.name.lower()}_s": lead.stage_s[one] for one in Resource}
        values |= out
        values |= _of_batch(ctx, job, attempt, lead)
    exchanged = [one.exchange.aggregated_bytes + one.exchange.fallback_bytes for one in seen if one.exchange]
    return JobUsage(
        job.number, attempt.epoch, values, [_rank(i, r, busy) for i, r in enumerate(attempt.ranks) if not r.ended],
        sum(part.values()), sum(part[p] for p in known), sum(part[p] for p, value in known.items() if value < IDLE),
        sum(exchanged) if exchanged else None,
    )  # fmt: skip


def _busy(ctx: Context, place: GpuPlace) -> float | None:
    """The last report of a silent node is out of date."""
    node = ctx.state.nodes.get(place.node)
    return None if node is None or node.lost or node.suspect else utilisation(node.usage, place.gpu)


def _of_processes(seen: Sequence[Seen]) -> dict[str, float]:
    measured = [one.resources for one in seen if one.resources is not None]
    if not measured:
        return {}
    out = {"cpus": sum(one.cpus for one in measured), "memory_bytes": sum(one.memory_bytes for one in measured)}
    for name in RATES:
        known = [rate for one in measured if (rate := getattr(one, name)) is not None]
        if known:
            out[name] = sum(known)
    return out


def _gpu_memory(ctx: Context, seen: Sequence[Seen], places: Sequence[GpuPlace]) -> float | None:
    own = [one.memory.peak_bytes for one in seen if one.memory is not None]
    if own:
        return sum(own)
    found = []
    for place in places:
        node = ctx.state.nodes.get(place.node)
        usage = node.usage if node is not None else Usage()
        if place.gpu < len(usage.means) and (size := usage.means[place.gpu].memory_bytes) is not None:
            found.append(size)
        elif place.gpu < len(usage.gpus):
            found.append(usage.gpus[place.gpu].memory_bytes)
    return sum(found) if found else None


def _of_batch(ctx: Context, job: JobRecord, attempt: Attempt, lead: Seen) -> dict[str, float]:
    """Batch size, examples a second, and goodput: examples a second that advance it as much at its first batch size."""
    limits: BatchLimits | None = limits_of(job.request)
    if limits is None or lead.adaptive is None or not lead.adaptive.batch_size or not lead.step_s:
        return {}
    batch = lead.adaptive.batch_size
    out = {"batch_size": batch, "throughput": batch / lead.step_s}
    if (each_s := work_of(ctx, job, attempt).each_s) and math.isfinite(each_s):
        out["goodput"] = limits.initial / each_s
    return out


def _rank(index: int, rank: Rank, busy: dict[GpuPlace, float | None]) -> dict[str, Any]:
    """One rank for display: its place, and the recent use of its processes."""
    out: dict[str, Any] = {
        "rank": index, "node": rank.node, "gpu": rank.gpu, "gpu_utilisation": busy[GpuPlace(rank.node, rank.gpu)],
    }  # fmt: skip
    used = rank.seen.resources if rank.seen is not None else None
    memory = rank.seen.memory if rank.seen is not None else None
    out["gpu_memory_bytes"] = None if memory is None else memory.peak_bytes
    for name in ("cpus", "memory_bytes", *RATES):
        out[name] = None if used is None else getattr(used, name)
    return out
