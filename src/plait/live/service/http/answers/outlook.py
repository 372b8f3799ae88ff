"""Answers about what is to come: times of a job as intervals, and a submission that is not made."""

from __future__ import annotations

from plait.live.service.http.answers.base import Answer


class Times(Answer):
    """A moment as intervals, seconds from now; null for never."""

    middle_s: float | None
    half_s: list[float | None]
    """Early and late end of what holds in one of two cases."""
    wide_s: list[float | None]
    """Early and late end of what holds in four of five cases."""


class Uncalibrated(Answer):
    """The same before it was corrected by how earlier forecasts turned out: early end, middle, late end."""

    start: list[float | None] | None
    end: list[float | None]


class JobOutlook(Answer):
    """When a job starts and ends."""

    start: Times | None
    """null for a job that runs."""
    end: Times
    duration: str
    """Where its duration is from."""
    said: Uncalibrated
    assumptions: list[str]


class NamedBlocker(Answer):
    """A job ahead."""

    id: str
    user: str
    gpus: int
    end_s: float | None
    """Seconds until it ends; null where that is not known."""
    text: str
    """The same as a sentence."""


class BlockedBy(Answer):
    """The blockers that a job would wait for."""

    kind: str
    """nothing, size, queue, placement, held, or compiling (no decision before what it needs is compiled)."""
    text: str
    jobs: list[NamedBlocker]


class SubmissionVariant(Answer):
    """A submission that would be sooner or cheaper."""

    change: str
    option: str
    """The option of `plait submit` that makes it; empty for none."""
    text: str
    gpus: int
    start: Times
    end: Times | None
    """null where nothing is known of it, as of guests."""
    gpu_hours: list[float]
    """GPU-hours: early end, middle, late end."""
    gains: list[str]
    sooner_s: float | None
    """Seconds that it ends sooner; null where that is not known."""


class SubmissionOutlook(Answer):
    """When a job like this would start and end; nothing was submitted."""

    start: Times
    end: Times | None
    gpu_hours: list[float]
    """GPU-hours: early end, middle, late end."""
    policy: str
    gpus: int
    duration: str
    """Where its duration is from."""
    place: int
    """Its place among waiting jobs, from 1."""
    waiting: int
    """How many would wait, this one included."""
    blocked_by: BlockedBy
    variants: list[SubmissionVariant]
    assumptions: list[str]
    decision: int
    """The decision's entry in the event log that the queue is from."""
    remarks: list[str] | None = None
    """Requests that the current policy ignores."""


class MovedJob(Answer):
    """A job that would end sooner or later. Hours are quantiles 0.1, 0.25, 0.5, 0.75 and 0.9; null for never."""

    id: str
    user: str
    gpus: int
    waits: bool
    """It waits now."""
    hours: list[float | None]
    """Hours that it would end later; below 0: sooner."""
    end_hours: list[float | None]
    """Hours until it would end."""


class MovedCounts(Answer):
    """How many jobs end sooner, later, and as now."""

    gain: int
    lose: int
    same: int


class ComparedHours(Answer):
    """Hours as quantiles 0.1, 0.25, 0.5, 0.75 and 0.9; null for never."""

    now: list[float | None]
    then: list[float | None]
    change: list[float | None]


class ComparedTotals(Answer):
    """All jobs together."""

    jobs: int
    gpus: list[int]
    """GPUs of the cluster: now, then."""
    mean_end_hours: ComparedHours | None
    """Mean hours until a job ends; null without jobs."""
    empty_hours: ComparedHours | None
    """Hours until no job is left; null without jobs."""


class ComparedQueues(Answer):
    """The queue under another choice; nothing was changed."""

    choice: str
    """The choice in words."""
    policy: str
    """The policy that decides now."""
    decision: int
    """The decision's entry in the event log that the queue is from."""
    gain: list[MovedJob]
    """Jobs that would end sooner, most hours first."""
    lose: list[MovedJob]
    """Jobs that would end later, most hours first."""
    counts: MovedCounts
    totals: ComparedTotals
    assumptions: list[str]
