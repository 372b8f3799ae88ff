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
    """What a job would wait for."""

    kind: str
    """nothing, size, queue or held."""
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
    """Its place among those that wait, from 1."""
    waiting: int
    """How many would wait, this one included."""
    blocked_by: BlockedBy
    variants: list[SubmissionVariant]
    assumptions: list[str]
    decision: int
    """The decision's entry in the event log that the queue is from."""
    remarks: list[str] | None = None
    """What it asks for and the policy of now ignores."""
