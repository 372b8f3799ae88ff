"""Answers to why and when: how a job waits or runs, its times as intervals, a submission that is not made."""

from plait.live.api import Answer, Moment
from plait.live.api.cluster import ReservationRow
from plait.live.api.jobs import AdaptiveJob, JobAggregation, JobAttempt, JobState, LastDecision, SharingOfJob, Stops


class Times(Answer, frozen=True):
    """A moment as intervals, seconds from now; null for never."""

    middle_s: float | None
    half_s: list[float | None]
    """Early and late end of what holds in one of two cases."""
    wide_s: list[float | None]
    """Early and late end of what holds in four of five cases."""


class Uncalibrated(Answer, frozen=True):
    """The same before it was corrected by how earlier forecasts turned out: early end, middle, late end."""

    start: list[float | None] | None
    end: list[float | None]


class JobOutlook(Answer, frozen=True):
    """When a job starts and ends."""

    start: Times | None
    """null for a job that runs."""
    end: Times
    duration: str
    """Where its duration is from."""
    said: Uncalibrated
    assumptions: list[str]


class NamedBlocker(Answer, frozen=True):
    """A job ahead."""

    id: str
    user: str
    gpus: int
    end_s: float | None
    """Seconds until it ends; null where that is not known."""
    text: str
    """The same as a sentence."""


class BlockedBy(Answer, frozen=True):
    """The blockers that a job would wait for."""

    kind: str
    """nothing, size, queue, placement, held, or compiling (no decision before what it needs is compiled)."""
    text: str
    jobs: list[NamedBlocker]


class SubmissionVariant(Answer, frozen=True):
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


class SubmissionOutlook(Answer, frozen=True):
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


class MovedJob(Answer, frozen=True):
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


class MovedCounts(Answer, frozen=True):
    """How many jobs end sooner, later, and as now."""

    gain: int
    lose: int
    same: int


class ComparedHours(Answer, frozen=True):
    """Hours as quantiles 0.1, 0.25, 0.5, 0.75 and 0.9; null for never."""

    now: list[float | None]
    then: list[float | None]
    change: list[float | None]


class ComparedTotals(Answer, frozen=True):
    """All jobs together."""

    jobs: int
    gpus: list[int]
    """GPUs of the cluster: now, then."""
    mean_end_hours: ComparedHours | None
    """Mean hours until a job ends; null without jobs."""
    empty_hours: ComparedHours | None
    """Hours until no job is left; null without jobs."""


class ComparedQueues(Answer, frozen=True):
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


class Blocker(Answer, frozen=True):
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


class WouldStart(Answer, frozen=True):
    """A change after which the policy would start the job at once."""

    change: str
    """gpus: another size of it; ended: other jobs have ended."""
    text: str
    """The same as a sentence."""
    gpus: int | None = None
    jobs: list[str] | None = None


class LastStop(Answer, frozen=True, rename={"for_": "for"}):
    """The last request to stop the attempt of a job."""

    attempt: int
    at_s: Moment
    why: str
    for_: list[str]
    """The jobs that take its GPUs."""


class GpuOfJob(Answer, frozen=True):
    """A GPU that a job has."""

    node: str
    gpu: int


class StageTime(Answer, frozen=True):
    """Seconds of an iteration in one stage."""

    now_s: float | None
    """Mean of the recent iterations; null where it is not measured."""
    alone_s: float | None
    """When the job has its GPUs for itself."""


class SizeOption(Answer, frozen=True):
    """Goodput of an adaptive or elastic job at another size."""

    nodes: int
    gpus: int
    batch_size: int
    """Examples of a step, all GPUs together; 0 if the job's batch is fixed."""
    goodput: float
    """Examples per second, counted at the first batch size; iterations per second if the batch is fixed."""


class SizeOptions(Answer, frozen=True):
    """Sizes that an adaptive or elastic job may have."""

    profiled: int
    """Most GPUs that it has measured itself on."""
    cap: int
    """Most GPUs that it may be given now."""
    at: list[SizeOption]
    next_s: float | None = None
    """Seconds until the policy chooses again, if known."""


class PreemptionRisk(Answer, frozen=True):
    """Whether the policy may stop a running job for others, by the order of its last decision."""

    possible: bool
    after_s: float | None
    """Seconds until it may be stopped at the earliest; null if only a checkpoint or its end can change that."""
    ahead: list[str]
    """Jobs that wait and stand before it in the order, at most eight."""
    text: str


class FairShare(Answer, frozen=True):
    """How a job's project and user have used the cluster, by which the policy orders jobs."""

    half_life_s: float
    """Of past use."""
    project: str
    project_times: float
    """Use of the project, as a multiple of its share among projects with jobs."""
    user_times: float
    """Use of the user, as a multiple of an equal part of the project's."""


class Explanation(Answer, frozen=True):
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
    predicted: str | None = None
    """The work that the policy predicts for it, and the jobs that it predicts from."""
    first: str | None = None
    """When the policy puts it before other jobs because it has waited for too long."""
    blockers: list[Blocker] | None = None
    would_start: list[WouldStart] | None = None
    note: str | None = None
    """Why `would_start` is missing."""
    epoch: int | None = None
    """Number of the running attempt."""
    gpus: list[GpuOfJob] | None = None
    gate: str | None = None
    shares_with: list[str] | None = None
    sharing_costs: list[str] | None = None
    """What the policy expects of each of these to cost it, and the reports that this rests on."""
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
    preemption: PreemptionRisk | None = None
    reservations: list[ReservationRow] | None = None
    """Reservations of nodes by which it waits, or for which it is stopped when they begin."""
    fair: FairShare | None = None
    sharing: SharingOfJob | None = None
    adaptive: AdaptiveJob | None = None
    sizes: SizeOptions | None = None
    network: str | None = None
    """How it is aggregated in the network, or why it is not."""
    ina: JobAggregation | None = None
    last_stop: LastStop | None = None
    last_trouble: str | None = None
    """How its last attempt failed."""
    stops: Stops | None = None
    forecast: JobOutlook | None = None
    started: bool | None = None
    """Of an ended job: whether it ever ran."""
    attempts: list[JobAttempt] | None = None
    """Of an ended adaptive job."""
