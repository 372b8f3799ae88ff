"""Measurements of exchanges by ranks and switches, as events for the controller: `view.network`.

A report has the jobs of which something changed by a good deal, so that the log of a cluster at rest does not grow.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, fields

import numpy as np

from plait.control.messages import NetworkReported
from plait.core.jobs import Phase
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.records.attempts import Attempt

#: Thresholds of change: a difference of shares, a fraction of rates.
DRIFT_SHARE, DRIFT = 0.02, 0.1


@dataclass(frozen=True)
class Measured:
    """Figures of a job; see `plait.core.aggregation.grants.NetworkFigures`."""

    bits_per_s: float
    aggregated: float
    fallback_share: float


def report_network(ctx: Context, now_s: float) -> Generator[Step, None, bool]:
    """One `NetworkReported` about jobs whose figures have changed, if there are any; returns whether there was one."""
    controller = ctx.state.controller
    if controller is None:
        return False
    known, rows = controller.network, []
    for number in sorted(ctx.state.live):
        attempt = ctx.state.jobs[number].live
        if attempt is None or controller.job_store.columns["phase"][number] != int(Phase.RUNNING):
            continue
        new = measured(attempt)
        if new is None:
            continue
        at = -1 if known is None else int(np.searchsorted(known.jobs, number))
        if known is not None and at < len(known.jobs) and known.jobs[at] == number:
            old = Measured(*(float(getattr(known, one.name)[at]) for one in fields(Measured)))
            if not _differs(new, old):
                continue
        rows.append((number, new))
    if not rows:
        return False
    columns = {one.name: np.array([getattr(row, one.name) for _, row in rows]) for one in fields(Measured)}
    yield NetworkReported(now_s, np.array([number for number, _ in rows], dtype=np.int64), **columns)
    return True


def measured(attempt: Attempt) -> Measured | None:
    """Figures of an attempt from what its ranks have counted since they started; None before any exchange.

    The rate is that of a rank while it exchanges, mean of all. A sum counts as aggregated if the network made it and no
    packet of it met an occupied aggregator.
    """
    said = [rank.seen.exchange for rank in attempt.ranks if rank.seen is not None and rank.seen.exchange is not None]
    rates = [8 * (one.aggregated_bytes + one.fallback_bytes) / one.exchange_s for one in said if one.exchange_s > 0]
    total = sum(one.aggregated_bytes + one.fallback_bytes for one in said)
    if not rates or not total > 0:
        return None
    by_network = sum(one.aggregated_bytes for one in said)
    whole = sum(one.aggregated_bytes * (1.0 - one.collided_share) for one in said)
    collided = 0.0 if not by_network else 1.0 - whole / by_network
    return Measured(sum(rates) / len(rates), whole / total, collided)


def _differs(new: Measured, old: Measured) -> bool:
    if math.isnan(old.bits_per_s) or abs(new.bits_per_s - old.bits_per_s) > DRIFT * max(new.bits_per_s, old.bits_per_s):
        return True
    shares = ((new.aggregated, old.aggregated), (new.fallback_share, old.fallback_share))
    return any(abs(a - b) > DRIFT_SHARE for a, b in shares)
