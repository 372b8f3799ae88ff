"""The order of the queue with the numbers that policies order by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from plait.core.jobs import Phase
from plait.live.layout import job_name
from plait.live.scheduler.context import Context
from plait.live.scheduler.explain.views import waiting_reason


def queue(ctx: Context, now_s: float, limit: int, offset: int) -> dict[str, Any]:
    """{now_s, policy, total, jobs}: `limit` jobs after `offset` in the order of the last decision, first the first.

    Of each: its `place` from 1, priority `level` (None where the policy has none), attained service in GPU-seconds,
    seconds since it waits, seconds of work left when it runs alone, None where that is not known, and the `reason`
    why it waits, "" while it runs.
    """
    out: dict[str, Any] = {"now_s": now_s, "policy": ctx.state.policy_text, "total": 0, "jobs": []}
    controller = ctx.state.controller
    if controller is None:
        return out
    columns, active = controller.job_store.columns, controller.active
    out["total"] = len(active)
    shown = active[np.lexsort((active, columns["position"][active]))][offset : offset + limit]
    for place, number in enumerate(shown.tolist(), offset + 1):
        job = ctx.state.jobs[number]
        left_s = float(
            (columns["iterations"][number] - columns["iterations_done"][number]) * columns["iteration_s"][number]
        )
        waits = int(columns["phase"][number]) == int(Phase.WAITING)
        level = int(columns["level"][number])
        out["jobs"].append(
            {
                "place": place, "id": job_name(number), "number": number, "name": job.request.get("name") or "",
                "user": job.owner, "project": job.project,
                "class": job.request.get("class") or "guaranteed", "priority": job.request.get("priority"),
                "gpus": int(columns["gpus"][number]), "waits": waits, "level": None if level < 0 else level,
                "attained_gpu_s": round(float(columns["attained_gpu_s"][number]), 3),
                "waited_s": round(now_s - float(columns["pending_since_s"][number]), 3) if waits else None,
                "left_s": round(left_s, 3) if math.isfinite(left_s) else None,
                "reason": waiting_reason(ctx, job) if waits else "",
            }
        )  # fmt: skip
    return out
