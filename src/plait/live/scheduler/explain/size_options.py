"""Goodput of an adaptive job on other numbers of GPUs, by its own fit: why it has its size."""

from __future__ import annotations

import math

import numpy as np

from plait.core.goodput import THETA, Estimate
from plait.goodput.batch import best_batch
from plait.goodput.fitness import ladder
from plait.goodput.fixed_batch import UNIT
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import replica_cap
from plait.live.api.explain import SizeOption, SizeOptions
from plait.live.protocol.requests import limits_of
from plait.live.scheduler.context import Context
from plait.live.scheduler.measured import row_of
from plait.live.scheduler.records.attempts import JobRecord
from plait.policies.sizing.pools import goodput_jobs

#: Sizes that are shown at most.
MOST_SIZES = 12


def sizes(ctx: Context, job: JobRecord) -> SizeOptions | None:
    """Goodput and batch on each size of the ladder that the job may have, none without a fit, and its bounds now.

    Of an elastic job with a fixed batch: iterations a second, by what it measured or else the prior, and batch 0. None
    for a job of one size.
    """
    limits, controller = limits_of(job.request), ctx.state.controller
    if controller is None:
        return None
    row = row_of(ctx, job)
    known = row[Estimate.PROFILED_GPUS]
    profiled = 0 if math.isnan(known) else int(known)
    asked = int(job.request.get("gpus") or 1)
    least, most = (int(job.request.get(name) or asked) for name in ("min_gpus", "max_gpus"))
    if limits is None and least == most:
        return None
    cap = 2 * max(profiled, asked) if limits is None else int(replica_cap(profiled, limits.most, limits.least_local))
    cap = max(cap, least)
    until_s = controller.plan.valid_until_s
    out = SizeOptions(profiled, min(cap, most), [], max(0.0, until_s - ctx.now_s) if math.isfinite(until_s) else None)
    if not job.admitted or (limits is not None and np.isnan(row[:THETA]).any()):
        return out
    per_node = max((n.info.gpus for n in ctx.state.nodes.values() if n.info), default=1)
    nodes = max(-(-controller.cluster.gpus_up // per_node), 1)
    configs = [(n, k) for n, k in ladder(per_node, nodes, most).tolist() if k >= least][:MOST_SIZES]
    if not configs:
        return out
    table = controller.view().jobs.subset(np.array([job.number]))
    best = best_batch(goodput_jobs(table, per_node) if limits is None else GoodputJobs.of(table), *np.array(configs).T)
    for i, (n, k) in enumerate(configs):
        local, passes, value = int(best.local[0, i]), int(best.passes[0, i]), float(best.goodput[0, i])
        if local and limits is None:
            out.at.append(SizeOption(n, k, 0, value / UNIT))
        elif local:
            out.at.append(SizeOption(n, k, k * local * (passes + 1), value))
    return out
