"""The answer to why a job waits, or how it runs."""

from __future__ import annotations

from pydantic import Field

from plait.live.service.http.answers.base import CLOCK, Answer, JobState
from plait.live.service.http.answers.jobs import AdaptiveJob, JobAttempt, SharingOfJob, Stops
from plait.live.service.http.answers.network import JobAggregation
from plait.live.service.http.answers.outlook import JobOutlook


class LastDecision(Answer):
    """The newest decision of the policy."""

    seq: int
    """Its entry in the event log; 0 before the first."""
    at_s: float | None = Field(description=CLOCK)


class Blocker(Answer):
    """A job ahead in the order that holds GPUs, or one that no policy may stop."""

    id: str
    number: int
    gpus: int
    left_s: float | None
    """Seconds that it still runs at its pace of now; null where that is not known."""
    kept: bool
    """It cannot resume from a checkpoint, so no policy stops it."""
    text: str
    """The same as a sentence."""


class WouldStart(Answer):
    """A change after which the policy would start the job at once."""

    change: str
    """gpus: another size of it; ended: other jobs have ended."""
    gpus: int | None = None
    jobs: list[str] | None = None
    text: str
    """The same as a sentence."""


class GpuOfJob(Answer):
    """A GPU that a job has."""

    node: str
    gpu: int


class StageTime(Answer):
    """Seconds of an iteration in one stage."""

    now_s: float | None
    """Mean of the recent iterations; null where it is not measured."""
    alone_s: float | None
    """When the job has its GPUs for itself."""


class SizeOption(Answer):
    """Goodput of an adaptive job at another size."""

    nodes: int
    gpus: int
    batch_size: int
    """Examples of a step, all GPUs together."""
    goodput: float
    """Examples per second, counted at the first batch size."""


class SizeOptions(Answer):
    """Sizes that an adaptive job may have."""

    profiled: int
    """Most GPUs that it has measured itself on."""
    cap: int
    """Most GPUs that it may be given now."""
    at: list[SizeOption]
    next_s: float | None = None
    """Seconds until the policy chooses again, if known."""


class Explanation(Answer):
    """Why a job waits, and the changes that would start it; or how it runs next to jobs that share its GPUs."""

    id: str
    number: int
    state: JobState
    summary: str | None = None
    """The one sentence to show."""
    policy: str | None = None
    decision: LastDecision | None = None
    position: int | None = None
    """Its place among waiting jobs, from 1."""
    waiting: int | None = None
    """How many wait."""
    waited_s: float | None = None
    """Seconds since it waits."""
    blockers: list[Blocker] | None = None
    would_start: list[WouldStart] | None = None
    note: str | None = None
    """Why `would_start` is missing."""
    epoch: int | None = None
    """Number of the running attempt."""
    gpus: list[GpuOfJob] | None = None
    gate: str | None = None
    shares_with: list[str] | None = None
    stages: dict[str, StageTime] | None = None
    """storage, cpu, gpu, network and the whole iteration."""
    slowdown: float | None = None
    """Current seconds of an iteration by these alone."""
    contended: str | None = None
    """The stage that grew most next to other jobs."""
    left_s: float | None = None
    """Seconds that it still runs at its pace of now."""
    limit_left_s: float | None = None
    """Seconds on GPUs until its time limit."""
    sharing: SharingOfJob | None = None
    adaptive: AdaptiveJob | None = None
    sizes: SizeOptions | None = None
    network: str | None = None
    """How it is aggregated in the network, or why it is not."""
    ina: JobAggregation | None = None
    last_trouble: str | None = None
    """How its last attempt failed."""
    stops: Stops | None = None
    forecast: JobOutlook | None = None
    started: bool | None = None
    """Of an ended job: whether it ever ran."""
    attempts: list[JobAttempt] | None = None
    """Of an ended adaptive job."""
