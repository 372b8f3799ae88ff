"""Measured progress of running jobs, as events for the controller."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from plait.control.messages import ProgressReported
from plait.core.jobs import Phase
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.ingest.adaptive import work_of


def report_progress(ctx: Context, jobs: Iterable[int], now_s: float) -> Iterator[Step]:
    """Yield one `ProgressReported` for the measured ones of these jobs (numbers, ascending), if any."""
    controller = ctx.state.controller
    if controller is None:
        return
    columns = controller.job_store.columns
    rows = []
    for number in jobs:
        job = ctx.state.jobs[number]
        attempt = job.live
        if attempt is None or attempt.lead is None or columns["phase"][number] > Phase.RUNNING:
            continue
        work = work_of(ctx, job, attempt)
        done = float(columns["iterations_done"][number]) if work.done is None else work.done
        ran = max(float(columns["run_s"][number]), job.held_s + attempt.held_s)
        service = job.held_gpu_s + attempt.held_s * len(attempt.gpus)
        pace = work.each_s
        served = max(float(columns["attained_gpu_s"][number]), service)
        rows.append((number, done, served, ran, math.nan if pace is None or not pace > 0 else pace))
    if rows:
        numbers = np.array([r[0] for r in rows], dtype=np.int64)
        done_, attained, ran_, paces = (np.array([r[i] for r in rows]) for i in range(1, 5))
        yield ProgressReported(now_s, numbers, done_, attained, ran_, paces)
