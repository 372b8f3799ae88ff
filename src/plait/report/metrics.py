"""How each figure is shown: name, unit, which way is better, and what it means in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["seconds", "share", "ratio", "count", "gpu_h", "money"]

#: (unit, seconds in it, largest value shown in the unit before it)
UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a summary. `better` is "low", "high" or "" where neither is."""

    key: str
    label: str
    kind: Kind
    better: Literal["low", "high", ""]
    meaning: str
    main: bool = True


METRICS = (
    Metric("avg_jct_s", "Avg JCT", "seconds", "low", "Job completion time, submission to completion; mean."),
    Metric("p50_jct_s", "p50 JCT", "seconds", "low", "Median completion time."),
    Metric("p95_jct_s", "p95 JCT", "seconds", "low", "95th percentile of completion time.", main=False),
    Metric("p99_jct_s", "p99 JCT", "seconds", "low", "99th percentile of completion time."),
    Metric("avg_jct_guaranteed_s", "JCT, guaranteed", "seconds", "low", "Mean completion time of guaranteed jobs."),
    Metric("avg_jct_opportunistic_s", "JCT, opportunistic", "seconds", "low", "Mean completion time of opportunistic "
           "jobs."),
    Metric("avg_jct_auto_s", "JCT, auto", "seconds", "low", "Mean completion time of jobs of class auto."),
    Metric("makespan_s", "Makespan", "seconds", "low", "First submission to last end."),
    Metric("avg_queue_s", "Avg wait", "seconds", "low", "Time without GPUs over a job's life, all waits; mean."),
    Metric("max_queue_s", "Max wait", "seconds", "low", "The longest total wait of a job.", main=False),
    Metric("avg_slowdown", "Slowdown", "ratio", "low", "Completion time over the time alone; mean."),
    Metric("p99_slowdown", "p99 slowdown", "ratio", "low", "99th percentile of the slowdown.", main=False),
    Metric("avg_fairness", "Avg ρ", "ratio", "low", "Finish-time fairness: completion time over the time with "
           "an equal share of the cluster, for jobs that adapt their batch by their own throughput and gradient noise; "
           "mean (Themis, NSDI'20).", main=False),
    Metric("max_fairness", "Max ρ", "ratio", "low", "Fairness of the job treated worst; fair is at most 1."),
    Metric("unfair_share", "Jobs ρ > 1", "share", "low", "Jobs worse off than with an equal share of the cluster."),
    Metric("gpu_utilisation", "GPUs held", "share", "high", "GPU time held over GPU time of nodes that were up, "
           "first submission to last end."),
    Metric("gpu_useful", "Useful", "share", "high", "Useful work at the speed of a job alone over the capacity; "
           "jobs that take turns can exceed the GPUs held; unknown where jobs adapt their batch.", main=False),
    Metric("gpu_busy", "GPU busy", "share", "high", "GPU stages of useful work over the capacity."),
    Metric("cpu_utilisation", "CPU busy", "share", "high", "CPU stages of useful work over the capacity.", main=False),
    Metric("storage_utilisation", "Storage busy", "share", "high", "Storage stages of useful work over the capacity.",
           main=False),
    Metric("network_utilisation", "Network busy", "share", "high", "Network stages of useful work over the capacity.",
           main=False),
    Metric("avg_queue_length", "Avg queue", "count", "low", "Waiting jobs, time average."),
    Metric("max_queue_length", "Max queue", "count", "low", "Most jobs waiting at once.", main=False),
    Metric("blocking_index_mean", "Blocking", "ratio", "low", "Mean over waiting jobs of time waited over work "
           "left, 0 when none waits; mean of 2000 regular times (Muri, SIGCOMM'22).", main=False),
    Metric("blocking_index_median", "Blocking, median", "ratio", "low", "The same, median of the times.", main=False),
    Metric("blocking_index_capped", "Blocking, capped", "ratio", "low", "The same, each ratio capped at 100: a job "
           "that is nearly done and waits would outweigh all others.", main=False),
    Metric("fragmentation", "Fragments", "share", "low", "Free GPUs that are on partly used nodes, while jobs wait; "
           "time average.", main=False),
    Metric("preemptions", "Preemptions", "count", "low", "Times the scheduler stopped a job."),
    Metric("lost_work_gpu_h", "Lost work", "gpu_h", "low", "Work that stops and failures threw away."),
    Metric("deadlines_missed", "Deadlines missed", "count", "low", "Jobs with a deadline that they did not end "
           "before."),
    Metric("aggregated_share", "Aggregated", "share", "", "Packets of gradients that switches add up; mean over time "
           "and over jobs that exchange gradients between nodes."),
    Metric("fallback_share", "Fallback", "share", "low", "Packets whose aggregator belongs to others, so that the "
           "server adds them; the same mean."),
    Metric("granted_job_h", "Granted", "ratio", "", "Hours of jobs with memory of switches.", main=False),
    Metric("cost", "Cost", "money", "low", "All GPUs of the cluster from the first submission to the last end."),
    Metric("cost_jobs", "Cost, jobs", "money", "low", "GPU time of jobs; jobs on one GPU divide its price.",
           main=False),
    Metric("cost_idle", "Cost, idle", "money", "low", "GPU time that no job held."),
    Metric("cost_down", "Cost, down", "money", "low", "GPU time of nodes that were down.", main=False),
    Metric("cost_lost", "Cost, lost work", "money", "low", "Part of the jobs' cost: work that stops and failures threw "
           "away.", main=False),
    Metric("cost_restarts", "Cost, restarts", "money", "low", "Part of the jobs' cost: saving and loading checkpoints.",
           main=False),
    Metric("avg_restarts", "Restarts/job", "ratio", "low", "Starts after the first, a job.", main=False),
    Metric("lost_gpu_h", "Lost", "gpu_h", "low", "GPU-hours held that useful work does not fill: start-up, lost "
           "progress, slow placements; on a shared GPU what all of its jobs leave.", main=False),
    Metric("reserved_idle_gpu_h", "Reserved", "gpu_h", "low", "GPU-hours held for waiting jobs, on which no host runs.",
           main=False),
    Metric("reserved_idle_used_gpu_h", "Reserved, used", "gpu_h", "high", "The part of it that guests used.",
           main=False),
    Metric("guest_gpu_h", "Guests", "gpu_h", "", "GPU-hours on which guests ran, each GPU once.", main=False),
    Metric("spill_gb_h", "Spill", "ratio", "low", "GB of GPU memory that jobs had on the host, times hours.",
           main=False),
    Metric("avg_stretch_guaranteed", "Stretch", "ratio", "low", "Time of guaranteed jobs on GPUs over that alone; "
           "mean.", main=False),
    Metric("p99_stretch_guaranteed", "p99 stretch", "ratio", "low", "99th percentile of that.", main=False),
    Metric("throttled_h", "Throttled", "ratio", "low", "Hours of guests on their GPUs beyond what their work takes "
           "alone.", main=False),
    Metric("promotions_in_place", "Promoted", "count", "", "Guests that became hosts where they ran.", main=False),
    Metric("conversions", "Converted", "count", "", "Jobs of class auto that ran as guests.", main=False),
    Metric("opportunistic_kills", "Kills", "count", "low", "Stops of opportunistic jobs whose work was lost.",
           main=False),
    Metric("opportunistic_killed_share", "Killed", "share", "low", "Opportunistic jobs that were killed at least "
           "once.", main=False),
)  # fmt: skip


def time_unit(values: Iterable[float]) -> tuple[str, float]:
    """(unit, seconds in it): one unit for all times of a table, the largest in which the least of these is at least 1.

    >>> time_unit([5000.0, 90000.0]), time_unit([float("nan")])
    (('h', 3600.0), ('s', 1.0))
    """
    least = min((abs(v) for v in values if math.isfinite(v) and v), default=0.0)
    fitting = [u for u in UNITS if least >= u[1]]
    return fitting[-1] if fitting else UNITS[0]


def unit_of(metric: Metric, values: Iterable[float], time: tuple[str, float] | None = None) -> tuple[str, float]:
    """(unit, factor): one unit for all values of a column; `time` that of the table's times, else what fits them."""
    if metric.kind == "share":
        return "%", 0.01
    if metric.kind == "gpu_h":
        return "GPU h", 1.0
    if metric.kind != "seconds":
        return "", 1.0
    if time is not None:
        return time
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    fitting = [u for u in UNITS if largest >= 2 * u[1]]
    return fitting[-1] if fitting else UNITS[0]


def show(value: float, factor: float = 1.0) -> str:
    """A number at reading precision; a dash where there is none.

    >>> show(12345.678), show(3.14159), show(7200, 3600.0), show(float("nan"))
    ('12,346', '3.14', '2', '–')
    """
    if not math.isfinite(value):
        return "–"
    value /= factor
    size = abs(value)
    whole = size >= 1000 or value == int(value)
    return f"{value:,.0f}" if whole else f"{value:.1f}" if size >= 100 else f"{value:.2f}"


def best(metric: Metric, values: Iterable[float]) -> float | None:
    """The best of these values; None where there is no better or nothing to choose from."""
    known = [v for v in values if math.isfinite(v)]
    if not metric.better or len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if metric.better == "low" else max(known)
