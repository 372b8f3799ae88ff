"""Answers about the cluster: status, queue, nodes, network, policy, and the state that forecasts begin with."""

from typing import Any, Literal, TypeAlias, get_args

from plait.live.api import Answer, Moment
from plait.live.api.jobs import JobAggregation, JobState, LastDecision, Region

#: States of a node; left: it gave notice and went.
NodeState: TypeAlias = Literal["ready", "suspect", "lost", "drained", "leaving", "left"]
NODE_STATES: tuple[NodeState, ...] = get_args(NodeState)
#: Fields of a node's row that its agent reports once.
HARDWARE = ("gpus", "gpu_kind", "gpu_memory_bytes", "cpus", "memory_bytes", "rack")


class Health(Answer, frozen=True):
    """Whether the service leads."""

    role: Literal["leader", "standby"]
    prepared: bool
    """Whether it has loaded all that leading needs."""
    leader: str | None = None
    """Address of the leader, where several services share a store."""
    term: int | None = None
    """Number of its term."""


class LostWork(Answer, frozen=True):
    """Work that was lost, and what restarts cost."""

    work_gpu_s: dict[str, float]
    """GPU-seconds of work from which no attempt resumed, by reason."""
    restarts_gpu_s: float
    """GPU-seconds that restarts took."""


class Gpus(Answer, frozen=True):
    """GPUs of nodes that are there."""

    total: int
    held: int
    free: int
    wanted: int
    """GPUs that jobs want; see `wanted`."""
    shared: int
    """GPUs with a guest next to another job."""
    reserved_idle: int
    """GPUs that are held for a waiting job, and idle."""


class WantedGpus(Answer, frozen=True):
    """GPUs that jobs within their quotas want: backends that can start nodes go by it."""

    gpus: int
    by: Literal["jobs", "policy"]
    why: str


class ClusterFigures(Answer, frozen=True):
    """The cluster in a few figures."""

    now_s: Moment
    policy: str
    may_lose_work: bool
    """Whether the policy may stop jobs that cannot resume from a checkpoint."""
    policy_error: str | None
    """How its last decision failed."""
    round_s: float
    """Seconds between decisions, at least."""
    lost: LostWork
    reserved_idle_gpu_s: float
    """GPU-seconds in which GPUs were held for a waiting job and no job had them."""
    term: int
    log_seq: int
    """The newest entry of the event log."""
    decision: LastDecision
    nodes: dict[NodeState, int]
    """How many are in each state."""
    gpus: Gpus
    wanted: WantedGpus
    jobs: dict[JobState, int]
    """How many are in each state."""


class ClusterStatus(ClusterFigures, frozen=True):
    """The service in a few figures."""

    prices: str | None
    """Money per GPU-hour as `plait up --price` takes it; null without."""
    store_error: str | None
    """Why nothing can be stored."""
    stored_s: float | None
    """Since when, on the clock of `now_s`: until then this answer and all others are of that moment."""
    version: str
    uptime_s: float
    """Seconds since the service started."""


class QueuedJob(Answer, frozen=True):
    """A job that runs or waits, with the numbers that policies order by."""

    place: int
    """From 1."""
    id: str
    number: int
    name: str
    user: str
    project: str
    class_: str
    priority: float | None
    gpus: int
    waits: bool
    level: int | None
    """Priority level; null where the policy has none."""
    attained_gpu_s: float
    """Attained service, GPU-seconds."""
    waited_s: float | None
    """Seconds since it waits; null while it runs."""
    left_s: float | None
    """Seconds of work left when it runs alone; null where that is not known."""
    reason: str
    """Why it waits; "" while it runs."""


class Queue(Answer, frozen=True):
    """Jobs in the order of the last decision."""

    now_s: Moment
    policy: str
    total: int
    """How many run or wait."""
    jobs: list[QueuedJob]


class Placement(Answer, frozen=True):
    """An attempt of a job on GPUs of the requested nodes."""

    job: str
    user: str
    epoch: int
    """Which attempt of the job it was, from 1."""
    state: str
    """running, or how it ended."""
    started_s: float
    ended_s: float | None
    """Null while it runs."""
    gpus: list[tuple[str, int]]
    """Node and the node's number of each GPU; GPUs on other nodes are left out."""


class Placements(Answer, frozen=True):
    """Who held GPUs of some nodes in a time."""

    now_s: Moment
    placements: list[Placement]
    """Newest first."""
    more: bool
    """Whether there were more than `limit`."""


class GpuReading(Answer, frozen=True):
    """A GPU as its driver reads it."""

    utilisation: float
    """0 to 1."""
    memory_bytes: float


class GpuTenSeconds(Answer, frozen=True):
    """A GPU or slot in the last 10 s; null where that is not known."""

    utilisation: float | None
    """Mean, 0 to 1."""
    memory_bytes: float | None


class NodeUsage(Answer, frozen=True):
    """Resources that a node uses."""

    cpu: float
    """0 to 1."""
    memory_bytes: float
    gpus: list[GpuReading]
    means: list[GpuTenSeconds]
    disk_bytes_s: float | None
    """Highest speed of the disk of its jobs; null before it was measured."""
    link_bytes_s: float | None
    """Of its link; of the loopback, an upper bound, where no driver reports it."""


class NodeRow(Answer, frozen=True):
    """A node, and who holds its GPUs. Hardware is known once its agent has reported."""

    id: str
    state: NodeState
    drained: bool
    """Takes no work."""
    gone: bool
    """Its backend reports it as dead."""
    leaving_s: float | None
    """Seconds until it goes, if it gave notice."""
    silent_s: float
    """Seconds since its agent reported."""
    usage: NodeUsage
    gpus_used: int
    jobs: list[str]
    job_states: dict[str, JobState]
    """States of jobs that do not simply run."""
    gpu_jobs: list[list[str]]
    """The jobs on each GPU."""
    reserved_for: dict[str, str]
    """The waiting job for which a GPU is held, by its number on the node."""
    gpus: int | None = None
    gpu_kind: str | None = None
    gpu_memory_bytes: float | None = None
    """Of each GPU; 0 where that is not known."""
    cpus: float | None = None
    """Cores."""
    memory_bytes: float | None = None
    rack: int | None = None


class ReservationRow(Answer, frozen=True):
    """Nodes that are for jobs of a project alone, for some time."""

    id: str
    nodes: list[str]
    project: str
    from_s: Moment
    until_s: Moment
    in_s: float
    """Seconds until it begins; 0 if it has begun."""
    left_s: float
    """Seconds until it ends."""
    by: str
    """The user who reserved them."""
    leave: list[str]
    """Jobs of other projects on these nodes that are stopped at the beginning, after a checkpoint."""
    stay: list[str]
    """Those that cannot resume from a checkpoint: they stay until they end."""


class ReservationGone(Answer, frozen=True):
    """A reservation that was cancelled."""

    id: str
    cancelled: bool


class JobLoss(Answer, frozen=True, kw_only=True):
    """Work that a stop of a job would lose now."""

    id: str
    job: int
    """Its number."""
    gpus: int
    work_s: float
    """Seconds of work on these GPUs."""
    gpu_s: float
    """The same in GPU-seconds."""
    steps: float | None = None
    """Iterations, if its processes report them."""
    from_start: bool
    """Whether it would begin at the beginning, because there is no checkpoint."""
    text: str
    """The same as a sentence."""


class Losses(Answer, frozen=True):
    """Work that stops would lose; jobs that save when they are stopped lose nothing and are left out."""

    losses: list[JobLoss]
    text: str
    """All of it as a sentence; empty if nothing is lost."""


class NodeForgottenAnswer(Answer, frozen=True):
    """A node that was taken out of the lists."""

    id: str
    state: Literal["forgotten"]


class PolicyAnswer(Answer, frozen=True):
    """The policy that decides."""

    policy: str
    """Its name with options: muri-l:quantum_s=60."""
    may_lose_work: bool
    """Whether it may stop jobs that cannot resume from a checkpoint."""
    error: str | None
    """How its last decision failed."""
    round_s: float
    """Seconds between decisions, at least."""


class ForecastState(Answer, frozen=True):
    """Everything a forward simulation needs, for `plait.outlook`; jobs are numbered from 0 again.

    Commands of jobs, their environments and reasons of failures are not in it.
    """

    version: int
    """Of this form."""
    seq: int
    """The newest entry of the event log."""
    now_s: Moment
    asked_s: Moment
    decision_seq: int
    decision_s: float | None
    policy: str
    may_lose_work: bool
    policy_error: str
    round_s: float
    projects: dict[str, Any]
    numbers: int
    submissions: list[Any]
    jobs: list[Any]
    pending: list[Any]
    nodes: list[dict[str, Any]]
    groups: dict[str, Any]
    learnt: dict[str, Any]
    ports_given: int
    record: dict[str, Any]
    """How good earlier forecasts were, and measured costs of starts and stops, seconds."""
    paces: dict[str, dict[str, Any]]
    """Number in this answer -> step_s, steps, total_steps and whether it is starting."""
    job_numbers: list[int]
    """Number in this answer -> the job's own."""
    left_s: dict[str, list[float]]
    """The job's own number -> draws of the seconds that it still takes, of jobs whose own progress does not tell."""
    left_from: dict[str, str]
    """The job's own number -> the ended jobs, or the statement, from which these are drawn, in words."""
    controller: dict[str, Any] | None = None
    """A snapshot of the controller, as `plait.control.snapshot` reads it; null before any node has joined."""


class SwitchJob(Region, frozen=True):
    """A job that a switch serves, and what the switch has counted of it."""

    id: str
    number: int
    serves: bool
    held: float
    """Aggregators in use now."""
    received: float
    """Packets of workers."""
    collided: float
    """The ones of these that met another job's aggregator."""
    completed: float
    """Sums that were completed."""


class Switch(Answer, frozen=True):
    """A switch that can aggregate."""

    switch: str
    state: str
    """up, lost, or not served."""
    node: str | None
    """The node whose agent serves it."""
    aggregators: int
    payload_bytes: int
    """Bytes of gradients in a packet."""
    granted: int
    """Aggregators in regions of one job."""
    held: float
    """Aggregators in use now."""
    restarts: int
    trouble: str | None
    jobs: list[SwitchJob]


class NetworkJob(JobAggregation, frozen=True):
    """A running job that could be aggregated."""

    id: str
    number: int


class NetworkOfCluster(Answer, frozen=True):
    """The network, its switches, and what jobs have of them."""

    network: str | None
    """The text of its topology; null without a network."""
    policy: str
    grants: bool
    """Whether the policy grants memory of switches."""
    switches: list[Switch]
    jobs: list[NetworkJob]
