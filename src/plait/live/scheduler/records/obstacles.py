"""Why jobs may not run yet: held by a user, before their time, or waiting for other jobs."""

from __future__ import annotations

from plait.core.words import duration
from plait.live.layout import job_name
from plait.live.scheduler.records.attempts import JobRecord


def obstacle(job: JobRecord, now_s: float) -> str:
    """Why an unfinished job may not run yet; "" if it may."""
    if job.unmet:
        return job.unmet
    if job.request.get("hold"):
        return f"held; release it with: plait release {job_name(job.number)}"
    if job.waits_for:
        return "waits for " + ", ".join(f"{name} ({option_of(field)})" for name, field in job.waits_for.items())
    left_s = begin_s(job) - now_s
    return f"may start in {duration(left_s)} (--begin)" if left_s > 0 else ""


def option_of(field: str) -> str:
    """The option of a field.

    >>> option_of("after_any")
    '--after-any'
    """
    return f"--{field.replace('_', '-')}"


def begin_s(job: JobRecord) -> float:
    """When the time of a job comes, seconds on the clock of the service."""
    return job.created_s + float(job.request.get("begin_s") or 0.0)
