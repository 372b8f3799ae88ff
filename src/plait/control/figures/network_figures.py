"""Figures of runs on a cluster with a network; other runs do not have them.

Conventions, in addition to the ones of `metrics`:
  a deadline is missed by a job that ended after it, or has not ended
  the aggregated share is the mean over time and over jobs that exchange gradients between nodes, of the share of their
  packets that switches add up; the fallback share, of packets whose aggregator belongs to others, so that the server
  adds them; NaN without such jobs
  granted time is the time in which jobs have memory of switches, added up over jobs
"""

from __future__ import annotations

import math

import numpy as np

from plait.control.controller import Controller
from plait.control.history import Timeline
from plait.control.outcomes import Outcomes
from plait.core.arrays import BoolArray

NAMES = ("deadlines", "deadlines_missed", "aggregated_share", "fallback_share", "exchange_job_h", "granted_job_h")


def network_figures(
    controller: Controller, jobs: Outcomes, timeline: Timeline, counted: BoolArray
) -> dict[str, float | int]:
    """Deadlines of jobs that count, and what became of exchanges of all jobs; none without a network."""
    if controller.cluster.network is None:
        return {}
    deadline_s = controller.job_store.columns["deadline_s"][: len(jobs.state)]
    has = counted & ~np.isnan(deadline_s)
    end_s = np.where(jobs.finished, jobs.end_s, math.inf)
    missed = has & ~(end_s <= jobs.submit_s + deadline_s)
    last_s = timeline.last_s if len(timeline.exchange_at_s) else 0.0
    lasted_s = np.diff(timeline.exchange_at_s, append=last_s)
    exchanged_s = float((timeline.exchange_jobs * lasted_s).sum())
    aggregated_s = float((timeline.exchange_aggregated * lasted_s).sum())
    fallback_s = float((timeline.exchange_fallback * lasted_s).sum())
    pairs: dict[int, list[tuple[float, float]]] = {}  # a job with grants on several switches counts once
    for job, begin_s, end in zip(timeline.grant_job, timeline.grant_from_s, timeline.grant_to_s, strict=True):
        pairs.setdefault(int(job), []).append((float(begin_s), float(end)))
    return {
        "deadlines": int(has.sum()),
        "deadlines_missed": int(missed.sum()),
        "aggregated_share": aggregated_s / exchanged_s if exchanged_s else math.nan,
        "fallback_share": fallback_s / exchanged_s if exchanged_s else math.nan,
        "exchange_job_h": exchanged_s / 3600,
        "granted_job_h": sum(_covered_s(spans) for spans in pairs.values()) / 3600,
    }


def _covered_s(spans: list[tuple[float, float]]) -> float:
    """Seconds that some of these spans cover."""
    total, until_s = 0.0, -math.inf
    for begin_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total
