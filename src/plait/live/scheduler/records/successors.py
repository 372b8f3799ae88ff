"""Processes that start beside a running attempt, for the next one of its job.

They are of this service's life only, and in no log: a successor runs nothing of the job, and an attempt begins without
one if it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.live.scheduler.records.attempts import Attempt


@dataclass(slots=True)
class Successor:
    """Processes for `attempt`, which has not begun and may never do so; asked for at `since_s`.

    `settled`: ranks for which nobody needs to wait, because they are ready or cannot be.
    """

    attempt: Attempt
    since_s: float
    settled: set[int] = field(default_factory=set)
