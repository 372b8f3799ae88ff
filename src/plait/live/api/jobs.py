"""Answers about jobs: rows of listings, whole jobs with their attempts, logs."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from plait.live.api import Answer, Moment

#: The states that a job is shown in, of which it does not leave the last three.
JobState: TypeAlias = Literal[
    "waiting", "starting", "running", "stopping", "unreachable", "finished", "failed", "cancelled"
]
STATES: tuple[JobState, ...] = get_args(JobState)
FINAL = STATES[-3:]


class LastDecision(Answer, frozen=True):
    """The newest decision of the policy."""

    seq: int
    """Its entry in the event log; 0 before the first."""
    at_s: Moment | None


class Region(Answer, frozen=True):
    """A part of the memory of a switch, in aggregators."""

    offset: int
    size: int
    """0: all that regions of one job leave."""
    mode: str
    exclusive: bool


class JobAggregation(Answer, frozen=True):
    """The switch of a job and its use. Shares are 0 to 1, and null where nothing is known."""

    granted: bool
    switch: str | None
    region: Region | None
    epoch: int | None
    """Of the region."""
    protocol: str | None
    window: int | None
    """Packets that a worker may have outstanding."""
    priority: int | None
    mode_used: str | None
    """aggregation or gloo; null before it exchanged anything."""
    bits_per_s: float | None
    """Gradients that a worker exchanged, bits per second."""
    aggregated_share: float | None
    """Fraction of sums that the switch completed."""
    fallback_share: float | None
    """Fraction of packets that met an occupied aggregator."""
    gloo_share: float | None
    """Fraction of bytes that went by gloo."""
    resend_share: float | None
    """Fraction of packets that were sent again."""
    timeouts: float | None
    trouble: str | None
    """Why the switch refuses its region; its processes have what they had before meanwhile, or go by gloo."""
    reason: str
    """Why it is not aggregated; empty if it is."""


class SubmittedJob(Answer, frozen=True):
    """A job, or an array of jobs, that was stored."""

    id: str
    """Its name, which the other routes take; of an array a-5, where its first member is j-5."""
    number: int
    """Its number, or that of the first member; a later job has a higher one."""
    jobs: int = 1
    """Members of the array; 1 for a job."""
    remarks: list[str] = msgspec.field(default_factory=list)
    """Requests that the current policy ignores, a sentence each."""


class Stops(Answer, frozen=True):
    """The cost of stopping a job, and of its past stops."""

    lost_work_s: float
    """Seconds of work from which no attempt resumed, so far."""
    restarts: int
    """Restarts after a requested stop."""
    restart_s: float | None
    """Mean seconds of a restart; null before the first."""
    unbegun: bool = False
    """It runs, and has made no step yet."""
    resumable: bool | None = None
    """Whether it can resume from a checkpoint."""
    kept: bool | None = None
    """No policy may stop it, as it cannot resume from a checkpoint."""
    stop_costs_s: float | None = None
    """Seconds that a stop and a start would cost now; null where that was not measured."""


RankState = Literal["assigned", "starting", "running", "stopping", "ended"]
Action = Literal["run", "pause", "checkpoint", "stop"]
Throttle = Literal["cgroup", "signals"]


class Place(Answer, frozen=True):
    """A process of the running attempt."""

    rank: int
    node: str
    gpu: int
    """The node's number of its GPU."""
    state: RankState
    pid: int
    """Its process on the node; 0 until it has one."""


class GroupOfJob(Answer, frozen=True):
    """The jobs that share the GPUs of this one."""

    id: str
    gate: str
    """How they take turns: none, fair, slot or barrier gates; see the explanation of the runtime."""
    members: list[str]
    """Names of the jobs, this one included."""


class Neighbour(Answer, frozen=True):
    """Another job on a GPU that is shared with a guest."""

    job: str
    gpu: str
    """Node and number of the GPU: n0:1."""
    guest: bool
    """Whether it uses what others leave."""


class SharingOfJob(Answer, frozen=True):
    """How a job shares its GPUs with guests, or as a guest."""

    guest: bool
    """Whether it uses what others leave."""
    beside: list[Neighbour]
    share: float | None
    """Share of the GPUs' time, 0 to 1: the minimum over its processes; null until agents report it."""
    limit_bytes: float | None
    """Bytes of GPU memory that each process may use; null without a limit."""
    action: Action | None
    """Its permission from the coordinator."""
    throttled: Throttle | None
    """How processes that do not pace themselves are frozen for the rest of the time; null if they pace themselves."""
    duty: float | None
    """Part of the last ten seconds in which a throttled process ran, 0 to 1: the minimum over its processes."""
    law: str | None
    """The rule that sets the minimum share, as a sentence; null where no agent has reported one."""


class BatchBounds(Answer, frozen=True):
    """Bounds of the batch of an adaptive job, in examples."""

    initial: int
    most: int
    least_local: int
    most_local: int
    accumulation: bool
    parameters: int = 0
    """Of the model, if the job chooses an execution plan too; 0 if not."""
    example_bytes: int = 0
    """Activations of an example on a GPU."""
    zero_stage: int = -1
    """The only ZeRO stage of its plans; -1 for any."""


class AdaptiveJob(Answer, frozen=True):
    """State of a job whose batch adapts."""

    min_gpus: int
    max_gpus: int
    limits: BatchBounds
    restarts: int
    restart_s: float | None
    """Mean seconds of a restart; null before the first."""
    progress: float | None = None
    """Iterations at its first batch size done."""
    total_progress: float | None = None
    """The same at its end."""
    batch_size: float | None = None
    """Examples of a step now, all GPUs together."""
    efficiency: float | None = None
    """Statistical efficiency of a step, 0 to 1: the worth of an example relative to one at the first batch size."""
    goodput: float | None = None
    """Progress in examples per second, counted at the first batch size."""
    difference: str | None = None
    """How its script differs from what was submitted."""
    not_finite: str | None = None
    """That its newest steps made no progress, as gradients are not finite."""


class JobRow(Answer, frozen=True):
    """A job as listings show it. Users see name, command and failure reasons of their own jobs only."""

    id: str
    number: int
    name: str
    """The label that its user gave it."""
    user: str
    project: str
    model: str
    """Name of the trained model; empty if it was not given."""
    class_: Literal["guaranteed", "opportunistic", "auto"]
    """A guaranteed job owns its GPUs; an opportunistic one uses GPUs that others leave."""
    command: list[str]
    """The program and its arguments; in listings split at spaces and cut to 200 characters."""
    tags: list[str]
    array: str | None
    """The array that it is a member of, e.g. a-5; null for others."""
    array_index: int | None
    """Its index there."""
    gpus: int
    """GPUs that it has, had last, or asks for."""
    state: JobState
    reason: str
    """Why it waits, or why it failed."""
    iterations: float | None
    """Optimizer steps in all; null where that is not known."""
    iterations_done: float
    nodes: list[str]
    """Nodes that it runs on, or ran on last."""
    epoch: int
    """Number of its newest attempt; 0 before the first."""
    exit_code: int | None
    """Exit code of its newest attempt, -n for signal n; null while it runs, or where unknown."""
    starts: int
    preemptions: int
    failures: int
    created_s: float
    """When it was submitted."""
    started_s: float | None
    """When it started first."""
    ended_s: float | None
    """When it ended."""
    age_s: float
    """Seconds since it was submitted."""
    jct_s: float | None
    """Job completion time: seconds from submission to end; null while it has not ended."""
    run_s: float
    """Seconds that it held GPUs."""
    attained_gpu_s: float
    """Attained service, GPU-seconds."""
    # Of unfinished jobs only, most of them as their agents measure them.
    step_s: float | None = None
    """Mean seconds of the recent iterations."""
    total_steps: float | None = None
    """Iterations in all, as its script reports."""
    gate: str | None = None
    """The gate that its processes go through."""
    stage_s: list[float] | None = None
    """Mean busy seconds of the recent iterations: storage, CPU, GPU, network."""
    checkpoint_steps: float | None = None
    """Iterations in its newest checkpoint."""
    checkpoint_age_s: float | None = None
    """Seconds since that."""
    saves: str | None = None
    """Whether it would resume from that checkpoint."""
    places: list[Place] | None = None
    group: GroupOfJob | None = None
    adaptive: AdaptiveJob | None = None
    stops: Stops | None = None
    sharing: SharingOfJob | None = None
    ina: JobAggregation | None = None
    """In-network aggregation, where the cluster has a network."""
    profile_source: str | None = None
    """Where the profile that policies use comes from."""
    members: dict[str, int] | None = None
    """Of an array that is one row: how many of its jobs are in each state."""


class RankOfAttempt(Answer, frozen=True):
    """A process of an attempt: where it ran, and how it ended."""

    node: str
    gpu: int
    """The node's number of its GPU."""
    exit_code: int | None
    reason: str | None
    ended: bool


class JobAttempt(Answer, frozen=True):
    """One try to run a job, on GPUs that do not change."""

    epoch: int
    """Its number, from 1."""
    state: str
    """How it ended: finished, failed, preempted, lost, cancelled, ...; running until then."""
    started_s: float | None
    ended_s: float | None
    nodes: list[str]
    gpus: int
    """GPUs, or CPU slots of a job without GPUs."""
    batch_size: float | None
    """Of an adaptive job: examples of its last step, all GPUs together."""
    lost_work_s: float | None
    """Seconds of work from which no attempt resumed; null while it runs."""
    reason: str | None
    """Why it ended."""
    exit_code: int | None
    ranks: list[RankOfAttempt]

    @classmethod
    def of(
        cls, *, epoch: int, state: str, started_s: float | None, ended_s: float | None, ranks: list[RankOfAttempt],
        batch_size: float | None, lost_work_s: float | None, reason: str | None,
    ) -> JobAttempt:  # fmt: skip
        """An attempt, of which nodes, GPUs and exit code are those of its ranks."""
        codes = [rank.exit_code for rank in ranks if rank.ended]
        return cls(
            epoch=epoch, state=state, started_s=started_s, ended_s=ended_s,
            nodes=list(dict.fromkeys(rank.node for rank in ranks)),
            gpus=len({(rank.node, rank.gpu) for rank in ranks}), batch_size=batch_size, lost_work_s=lost_work_s,
            reason=reason, exit_code=next((code for code in codes if code), codes[0] if codes else None), ranks=ranks,
        )  # fmt: skip


class WholeJob(JobRow, frozen=True, kw_only=True):
    """Everything about one job: the row, the fields of its request, and all attempts."""

    python: str | None = None
    """Interpreter that runs as `python` in the command."""
    container: str | None = None
    workdir: str | None = None
    output: str | None = None
    """File to which the output is appended too; {job} in it is the job's id."""
    exclusive: bool | None = None
    """Whether its number of GPUs was raised to that of whole nodes."""
    gpu_kinds: list[str] | None = None
    """GPU kinds that it may use, by a part of their names; any, if there are none."""
    retries: int | None = None
    gpu_memory: float | None = None
    """Bytes of GPU memory per process."""
    cpus: float | None = None
    """CPU cores of the whole job."""
    memory: float | None = None
    """Bytes of memory of the whole job."""
    deadline_s: float | None = None
    """Seconds from the submission."""
    time_limit_s: float | None = None
    """Seconds on GPUs, of all attempts together, after which the job is ended."""
    signal_s: float | None = None
    """Seconds before the time limit at which the last checkpoint is requested."""
    hold: bool | None = None
    """Whether it waits until it is released."""
    begin_s: float | None = None
    """Seconds from the submission before which it does not start."""
    after: list[str] | None = None
    """Jobs that have to finish before it starts."""
    after_any: list[str] | None = None
    """Jobs that have to end before it starts, in whatever way."""
    after_fail: list[str] | None = None
    """Jobs that have to fail before it starts."""
    notify: list[str] | None = None
    """Channels to which its events are sent."""
    processes_per_gpu: int | None = None
    gradient_bytes: float | None = None
    """Size of all gradients of an iteration."""
    checkpoint_s: float | None = None
    """Seconds between checkpoints."""
    priority: float | None = None
    wait_for_nodes: bool | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    batch: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    """Seconds that an iteration uses each resource, as its user gave them."""
    skew: float | None = None
    merge: bool | None = None
    env: dict[str, str] | None = None
    """Environment variables; only for its owner and administrators."""
    attempts: list[JobAttempt]


class CancelledJob(Answer, frozen=True):
    """A job that was cancelled; `state` is stopping while its processes are being stopped."""

    id: str
    state: JobState


class ChangedJob(Answer, frozen=True):
    """A job after a change of it."""

    id: str
    state: JobState
    remarks: list[str] = msgspec.field(default_factory=list)
    """Current requests that the current policy ignores, a sentence each."""


class JobId(Answer, frozen=True):
    """The requested job."""

    id: str


class ConsoleOutput(Answer, frozen=True):
    """Output of a console of a job."""

    output: str
    """Bytes in base64."""
    output_at: int
    """Bytes of output before these."""
    taken: int
    """Bytes of input that its program got; the others are to be sent again."""
    exit_code: int | None = None
    """How the program ended, once all of its output is in answers."""


class LogPart(Answer, frozen=True):
    """Part of what a process wrote. Offsets are bytes since the process started."""

    text: str
    """Undecodable bytes are replaced."""
    offset: int
    """Where this part begins."""
    next: int
    """Where the next part begins."""
    size: int
    """Bytes of the whole log so far."""
    epoch: int
    """The attempt."""
    rank: int
