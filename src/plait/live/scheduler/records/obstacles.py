"""Why jobs may not run yet: held by a user, before their time, or waiting for other jobs."""

from __future__ import annotations

from itertools import islice

from plait.core.words import counted, duration
from plait.live.layout import job_name
from plait.live.scheduler.records.attempts import JobRecord

#: Jobs and arrays that a reason names.
NAMED = 3


def obstacle(job: JobRecord, now_s: float) -> str:
    """Why an unfinished job may not run yet; "" if it may."""
    if job.unmet:
        return job.unmet
    if job.request.get("hold"):
        return f"held; release it with: plait release {job_name(job.number)}"
    if job.waits_for:
        names = [f"{name} ({option_of(field)})" for name, field in islice(job.waits_for.items(), NAMED)]
        more = f" and {len(job.waits_for) - NAMED} more" if len(job.waits_for) > NAMED else ""
        return f"waits for {', '.join(names)}{more}"
    left_s = begin_s(job) - now_s
    return f"may start in {duration(left_s)} (--begin)" if left_s > 0 else ""


def turn_of(job: JobRecord) -> tuple[str, int] | None:
    """The array of a job and how many of its members may run at once; None without such a limit."""
    member = job.request.get("member") or {}
    return (member["array"], member["at_most"]) if "at_most" in member else None


def waits_for_turn(job: JobRecord) -> str:
    """Why a member of an array without another obstacle may not run yet."""
    array, at_most = turn_of(job) or ("", 0)
    return f"its array {array} runs at most {counted(at_most, 'job')} at once"


def option_of(field: str) -> str:
    """The option of a field.

    >>> option_of("after_any")
    '--after-any'
    """
    return f"--{field.replace('_', '-')}"


def begin_s(job: JobRecord) -> float:
    """When the time of a job comes, seconds on the clock of the service."""
    return job.created_s + float(job.request.get("begin_s") or 0.0)
