"""Answers about the use of GPUs: what it costs, by user, project and job, and series of a job over time."""

from plait.live.api import Answer, Moment


class Part(Answer, frozen=True):
    """GPU-hours, and what they cost."""

    gpu_h: float
    cost: float | None
    """null without prices: plait up --price 2.5"""


class CostRow(Answer, frozen=True):
    """A user, a project or a job: what it held, what of that was idle, and what of that was lost work."""

    held: Part
    held_idle: Part | None
    """Less than 5 % busy, as far as measured; null if nothing was."""
    unmeasured: Part
    """Of what it held: not known whether it was busy."""
    lost: Part
    user: str | None = None
    project: str | None = None
    id: str | None = None
    """Of a job."""


class Costs(Answer, frozen=True):
    """All GPUs of a period: total = jobs + idle + down, whether in GPU-hours or money."""

    currency: str
    prices: dict[str, float] | None
    """Money per GPU-hour by GPU kind; * is every other kind."""
    unpriced: list[str]
    """GPU kinds without a price: they count as free of charge."""
    from_s: Moment
    now_s: Moment
    total: Part
    """All GPUs that were there, every hour."""
    jobs: Part
    """Held by jobs."""
    idle: Part
    """Held by no job."""
    down: Part
    """Held by no job on nodes that take no work: lost, drained or leaving."""
    held_idle: Part | None
    """Of those of jobs: less than 5 % busy, as far as measured; null if nothing was."""
    unmeasured: Part
    """Of those of jobs: not known whether they were busy."""
    lost: Part
    """Of those of jobs: work from which no attempt resumed."""
    by_user: list[CostRow]
    by_project: list[CostRow]
    by_job: list[CostRow]


class Series(Answer, frozen=True):
    """One figure of a job over time."""

    unit: str
    """share (0 to 1), bytes, bytes/s, cores, s, 1/s, examples or examples/s."""
    text: str
    """Name, for the legend of a chart."""
    chart: str
    """Series of one chart have the same."""
    values: list[float | None]
    """One an interval: its mean, of memory the most; null if not known."""


class RankUsage(Answer, frozen=True):
    """Recent use of one process of a job, its children included."""

    rank: int
    node: str
    gpu: int
    """The node's number of its GPU."""
    gpu_utilisation: float | None
    """0 to 1, mean of the last 10 s, by all users of the GPU."""
    gpu_memory_bytes: float | None
    """As the process itself reports it."""
    cpus: float | None
    """CPU cores in use."""
    memory_bytes: float | None
    """Resident bytes."""
    read_bytes_s: float | None
    written_bytes_s: float | None
    sent_bytes_s: float | None
    """By TCP sockets."""
    received_bytes_s: float | None


class UsageOfJob(Answer, frozen=True):
    """A job's use of resources, and its iterations, over time. All attempts are in one series, waits are null."""

    id: str
    now_s: Moment
    from_s: Moment | None
    """Where the first interval begins, null if nothing was measured."""
    interval_s: float
    """Seconds of an interval; doubles whenever the series are full."""
    series: dict[str, Series]
    """Only what was measured."""
    ranks: list[RankUsage]
    """The processes that run now."""
    held_gpu_s: float
    """GPU-seconds held while measured; of shared GPUs its part."""
    known_gpu_s: float
    """The ones of these with known use of the GPU."""
    idle_gpu_s: float
    """The ones of these with the GPU less than 5 % busy."""
