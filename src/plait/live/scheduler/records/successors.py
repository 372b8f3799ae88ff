"""Processes that start next to a running attempt, for the next one of its job.

They are of this service's life only, and in no log: a successor runs nothing of the job, and an attempt begins without
one if it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.live.scheduler.records.attempts import Attempt


@dataclass(slots=True)
class Successor:
    """Processes for `attempt`, which has not begun and may never do so; requested at `since_s`.

    `settled`: ranks that need no waiting, because they are ready or impossible.
    """

    attempt: Attempt
    since_s: float
    settled: set[int] = field(default_factory=set)
