"""Figures of guaranteed and opportunistic jobs side by side: an average over both hides what was promised to each.

Conventions, in addition to the ones of `metrics`:
  a job counts in the class it was submitted with
  stretch is a job's time on GPUs over its time alone at the requested size: it includes the cost of sharing,
  placement, starts and lost work, but no waiting
  throttled time is the time of guests on their GPUs, starts included, minus the time of their work alone
  a conversion lets a job of class auto run as a guest, once a job
  a promotion makes a guest the host of the GPUs it is on
  a kill stops an opportunistic job without a checkpoint, or one that cannot resume from any
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.control.history import SpanEnd, Timeline
from plait.control.outcomes import Outcomes
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jobs import Checkpoints, JobClass

#: Figures of runs in which some job is not guaranteed; `*_auto` and others only if there is a job of that class.
NAMES = (
    *(f"{figure}_{each.name.lower()}{unit}" for each in JobClass
      for figure, unit in (("jobs", ""), ("avg_jct", "_s"), ("p99_jct", "_s"), ("avg_queue", "_s"))),
    *(f"{name}_stretch_guaranteed" for name in ("avg", "p50", "p99", "max")),
    "throttled_h", "conversions", "promotions_in_place", "opportunistic_kills", "opportunistic_killed_share",
)  # fmt: skip


def class_figures(
    columns: Mapping[str, Any], jobs: Outcomes, timeline: Timeline, counted: BoolArray
) -> dict[str, float | int]:
    """Figures by class, of the jobs that count; none if all are guaranteed.

    `columns` are from the job store. Averages are NaN if a job of the class has not ended, as in `metrics`.
    """
    n = len(jobs.state)
    job_class, checkpoints = columns["job_class"][:n], columns["checkpoints"][:n]
    if not (job_class[counted] != int(JobClass.GUARANTEED)).any():
        return {}
    figures: dict[str, float | int] = {}
    for each in JobClass:
        rows = counted & (job_class == int(each))
        if rows.any():
            figures |= _of_class(each.name.lower(), rows, jobs)
    rows = counted & (job_class == int(JobClass.GUARANTEED)) & jobs.finished & (jobs.duration_s > 0)
    stretch = jobs.run_s[rows] / jobs.duration_s[rows]
    names = ("avg", "p50", "p99", "max")
    values = [_mean(stretch), *_percentiles(stretch, (50, 99, 100))]
    figures |= {f"{name}_stretch_guaranteed": value for name, value in zip(names, values, strict=True)}
    lowly = (job_class != int(JobClass.GUARANTEED)) & counted
    lost = lowly & (checkpoints == int(Checkpoints.NEVER))
    kills = (timeline.span_end == int(SpanEnd.STOPPED)) & lost[timeline.span_job]
    kills |= (timeline.span_end == int(SpanEnd.KILLED)) & lowly[timeline.span_job]
    killed = np.unique(timeline.span_job[kills])
    return figures | {
        "throttled_h": _throttled_s(timeline, jobs, counted) / 3600,
        "conversions": _conversions(timeline, job_class == int(JobClass.AUTO), counted),
        "promotions_in_place": _promotions(timeline, counted),
        "opportunistic_kills": int(kills.sum()),
        "opportunistic_killed_share": len(killed) / int(lowly.sum()),
    }


def _of_class(name: str, rows: BoolArray, jobs: Outcomes) -> dict[str, float | int]:
    open_jobs = bool(np.isnan(jobs.end_s[rows]).any())
    use = rows & jobs.finished & (not open_jobs)
    return {
        f"jobs_{name}": int(rows.sum()),
        f"avg_jct_{name}_s": _mean(jobs.jct_s[use]),
        f"p99_jct_{name}_s": _percentiles(jobs.jct_s[use], (99,))[0],
        f"avg_queue_{name}_s": _mean(jobs.queue_s[use]),
    }


def _guest_spans(timeline: Timeline) -> BoolArray:
    """Whether each span is that of a guest."""
    if not len(timeline.group_guest):
        return np.zeros(len(timeline.span_job), dtype=bool)
    flags: BoolArray = timeline.group_guest[timeline.span_group]
    return flags


def _throttled_s(timeline: Timeline, jobs: Outcomes, counted: BoolArray) -> float:
    spans = _guest_spans(timeline) & counted[timeline.span_job]
    held_s = timeline.span_to_s[spans] - timeline.span_from_s[spans]
    alone_s = timeline.span_iterations[spans] * jobs.iteration_s[timeline.span_job[spans]]
    return float(np.nansum(np.maximum(held_s - alone_s, 0.0)))


def _conversions(timeline: Timeline, auto: BoolArray, counted: BoolArray) -> int:
    """Jobs of class auto that were guests at some time."""
    job = timeline.span_job[_guest_spans(timeline)]
    return len(np.unique(job[(auto & counted)[job]]))


def _promotions(timeline: Timeline, counted: BoolArray) -> int:
    """Spans of hosts that continue a span of the same job as a guest, on the same GPUs."""
    guest, job = _guest_spans(timeline), timeline.span_job
    turned: IntArray = np.flatnonzero(guest[:-1] & ~guest[1:] & (job[:-1] == job[1:]) & timeline.span_continued[1:])
    return int(counted[job[turned]].sum())


def _mean(values: FloatArray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _percentiles(values: FloatArray, at: tuple[float, ...]) -> list[float]:
    if not len(values) or np.isnan(values).any():
        return [math.nan] * len(at)
    return [float(value) for value in np.percentile(values, at)]
