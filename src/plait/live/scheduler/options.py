"""The numbers by which the scheduler works, each declared once; `plait.live.service.options` offers some of them."""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.options import option
from plait.live.protocol.leases import LEASE_SHARE, LOST_S, check_lease

#: GPUs of a cluster that grows without a known limit.
ANY_SIZE = 10**9


@dataclass(frozen=True)
class Options:
    """Options of the scheduler; seconds where a name ends in `_s`.

    Leases end before a node is lost, so no job runs twice at once. A node on which nothing runs is lost after 15 s.
    """

    round_s: float = option("Shortest time between decisions, seconds", default=1.0, least=0.01)
    early_s: float = option(
        "Shortest time before the end of a round at which jobs arriving while GPUs are free cause a decision; ignored "
        "for rounds over 5 s", default=0.25,
    )  # fmt: skip
    suspect_s: float = option("Seconds without contact after which a node gets no new work", default=3.0)
    lost_s: float = option("Seconds without contact after which a node is lost", default=LOST_S, least=1)
    lease_s: float = option(
        "Seconds without contact after which a node ends its jobs", default=LEASE_SHARE * LOST_S, least=0.5
    )
    first_step_s: float = option(
        "Seconds for the first step of an attempt before it may be preempted: otherwise jobs with a slow start would "
        "be restarted for ever", default=0.0,
    )  # fmt: skip
    overlap_s: float = option(
        "Seconds that a job to be moved or resized trains on at most while its next processes start; 0: it "
        "stops at once", default=30.0, least=0,
    )  # fmt: skip
    settle_s: float = option("Seconds that a job too large for the cluster waits for more nodes", default=10.0)
    expect_gpus: int = option(
        "GPUs that the cluster is expected to have; once they are there, too large jobs are refused", default=0,
        unset="not known",
    )  # fmt: skip
    most_gpus: int = option("GPUs that the cluster can grow to; larger jobs are refused", default=0, unset="its nodes'")
    progress_s: float = option("Longest time between two log entries on progress, seconds", default=10.0)
    usage_s: float = option("Shortest time between two log entries on the use of GPUs, seconds", default=10.0)
    estimate_s: float = option(
        "Seconds between estimates taken from an adaptive job; each is a log entry", default=30.0, flag="estimates"
    )
    grace_s: float = option("Grace period for the checkpoint at a preemption, seconds", default=60.0)
    kill_grace_s: float = option("Grace period of jobs that are cancelled or have failed, seconds", default=10.0)
    first_port: int = option("Lowest master port of gangs", default=29_500)
    ports: int = option("Number of master ports", default=500)
    log_mb: float = option(
        "Megabytes kept of the log of each process: the first quarter stays, the others are the newest", default=40.0,
        least=0.02,
    )  # fmt: skip
    requeues: int = option(
        "Exits with a request to restart (75) in a row, without an iteration, that do not count as failures", default=20
    )
    launch_tries: int = option("Failed starts in a row that do not count as failures", default=3)
    user_jobs: int = option("Open jobs per user; 0: no limit", default=10_000, least=0)
    project_jobs: int = option("Open jobs per project; 0: no limit", default=50_000, least=0)
    policy_modules: tuple[str, ...] = option(
        "Modules whose policies may be set over HTTP; others only at the start of the service", default=()
    )
    channels: tuple[str, ...] = option("Channels of notifications, which jobs may name", default=())
    snapshot_weight: float = option(
        "Log entries between snapshots; decisions count more, as they take longer to repeat", default=2000.0
    )

    def __post_init__(self) -> None:
        """Raise `InputError` for times with which a job could run twice at once."""
        check_lease(self.lost_s, self.lease_s)
