"""The order of the queue with the numbers that policies order by."""

from __future__ import annotations

import math

import numpy as np

from plait.core.jobs import Phase
from plait.live.api.cluster import Queue, QueuedJob
from plait.live.layout import job_name
from plait.live.scheduler.context import Context
from plait.live.scheduler.explain.views import waiting_reason


def queue(ctx: Context, now_s: float, limit: int, offset: int) -> Queue:
    """`limit` jobs after `offset` in the order of the last decision, first the first."""
    controller, jobs = ctx.state.controller, list[QueuedJob]()
    if controller is None:
        return Queue(now_s, ctx.state.policy_text, 0, jobs)
    columns, active = controller.job_store.columns, controller.active
    shown = active[np.lexsort((active, columns["position"][active]))][offset : offset + limit]
    for place, number in enumerate(shown.tolist(), offset + 1):
        job = ctx.state.jobs[number]
        left_s = float(
            (columns["iterations"][number] - columns["iterations_done"][number]) * columns["iteration_s"][number]
        )
        waits = int(columns["phase"][number]) == int(Phase.WAITING)
        level = int(columns["level"][number])
        jobs.append(
            QueuedJob(
                place=place,
                id=job_name(number),
                number=number,
                name=job.request.get("name") or "",
                user=job.owner,
                project=job.project,
                class_=job.request.get("class") or "guaranteed",
                priority=job.request.get("priority"),
                gpus=int(columns["gpus"][number]),
                waits=waits,
                level=None if level < 0 else level,
                attained_gpu_s=round(float(columns["attained_gpu_s"][number]), 3),
                waited_s=round(now_s - float(columns["pending_since_s"][number]), 3) if waits else None,
                left_s=round(left_s, 3) if math.isfinite(left_s) else None,
                reason=waiting_reason(ctx, job) if waits else "",
            )
        )
    return Queue(now_s, ctx.state.policy_text, len(active), jobs)
