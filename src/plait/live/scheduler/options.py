"""The engine's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from plait.live.protocol.leases import LEASE_SHARE, LOST_S, check_lease

#: GPUs of a cluster that grows without a limit that anybody knows.
ANY_SIZE = 10**9


@dataclass(frozen=True)
class Options:
    """Seconds unless named otherwise.

    round_s         decide at most this often
    early_s         ... but for jobs that arrive while GPUs are free, at most this often before the round is due,
                    unless rounds are longer than 5 s
    suspect_s       a node silent for so long gets no new work
    lost_s          ... is lost: its jobs wait again and may be replaced, under a new epoch; one on which nothing runs
                    is lost after 15 s
    lease_s         what runs on a node without contact for so long has ended by itself: always before the node is lost,
                    so that no job runs twice at once
    first_step_s    an attempt gets so long for its first step before it makes room for others: else jobs that take
                    long to begin would be started for ever and never trained
    crash_s         a program that fails so soon after its start, without an iteration, is not started again unless its
                    submission names a number of retries
    settle_s        a job too large for the cluster waits so long for more nodes before it is refused
    expect_gpus     ... but for no more than these GPUs, where it is known how many there will be; 0 = unknown
    most_gpus       the nodes may become so many that they have so many GPUs: a job that is too large for those there
                    are, but not for that, waits for them; 0 = they are what they are
    progress_s      note progress at least this often while jobs run
    estimate_s      a job is believed what it estimates of itself this often: each is an entry of the log
    grace_s         for a checkpoint when a job is preempted
    kill_grace_s    ... when it is cancelled or has failed
    first_port, ports    master ports of gangs
    requeues        exits asking for a new start (75) in a row without an iteration, before they count as failures
    launch_tries    failed starts in a row, before they count as failures
    user_jobs       jobs that have not ended a user may have, and
    project_jobs    ... a project; 0 = any number. Each costs memory and time in every decision
    policy_modules  modules whose policies may be named over HTTP; all others only by whoever starts the service
    snapshot_weight entries of the log between snapshots; decisions count more, as they take longer to repeat
    """

    round_s: float = 1.0
    early_s: float = 0.25
    suspect_s: float = 3.0
    lost_s: float = LOST_S
    lease_s: float = LEASE_SHARE * LOST_S
    first_step_s: float = 0.0
    crash_s: float = 15.0
    settle_s: float = 10.0
    expect_gpus: int = 0
    most_gpus: int = 0
    progress_s: float = 10.0
    estimate_s: float = 30.0
    grace_s: float = 60.0
    kill_grace_s: float = 10.0
    first_port: int = 29_500
    ports: int = 500
    requeues: int = 20
    launch_tries: int = 3
    user_jobs: int = 10_000
    project_jobs: int = 50_000
    policy_modules: tuple[str, ...] = ()
    snapshot_weight: float = 2000.0

    def __post_init__(self) -> None:
        """Raise `InputError` for times by which a job could run twice at once."""
        check_lease(self.lost_s, self.lease_s)
