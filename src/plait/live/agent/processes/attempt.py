"""One process of one attempt of a job on this node: starting, running, stopping, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from plait.live.agent.journal import Key, Remembered
from plait.live.agent.lease import Lease
from plait.live.agent.outside import BEGIN_S, profile_of
from plait.live.agent.pages import PageProgress, PageReader
from plait.live.agent.processes.job_files import Claim, end_of, read_claim, read_end
from plait.live.agent.sharing import GpuProcess
from plait.live.protocol import wire
from plait.live.system import cgroups, procs
from plait.live.system.accounts import in_name_of, job_folder
from plait.live.system.procs import Process
from plait.runtime.guest_gate import Neighbours
from plait.runtime.network import report
from plait.runtime.network.grant import FILE, NetworkGrant, write_grant
from plait.runtime.network.report import report_of
from plait.runtime.page import STOP_GRACEFULLY, STOP_NOW

P = ParamSpec("P")
R = TypeVar("R")
#: Seconds of the runner beyond the grace before the agent ends everything itself.
RUNNER_PATIENCE_S = 5.0
#: A stage that is open for so long and for ten iterations hangs; PLAIT_HANG_S in the job's environment, 0 = never.
HANG_S = 30.0
#: Exit codes of a process that was stopped and does not handle it.
_TOLD_TO_END = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL)


class RankFiles:
    """A rank's files about aggregation: the grant, which the agent writes, and the report, which the agent reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version: int | None = None
        self._stamp: tuple[int, int] | None = None
        self._exchange: wire.Exchange | None = None

    @property
    def grant(self) -> Path:
        return self._folder / FILE

    def write(self, grant: NetworkGrant) -> None:
        """Write the grant, if it is newer than the present one. Raises `OSError`, `InputError`."""
        with in_name_of(job_folder(self._folder)):
            if self._version is None:
                known = (procs.read_json(self.grant) or {}).get("version")
                self._version = known if isinstance(known, int) else 0
            if grant.version > self._version:
                write_grant(self.grant, grant)
                self._version = grant.version

    def exchange(self) -> wire.Exchange | None:
        """The rank's last report; None before the first."""
        try:
            found = os.stat(self._folder / report.FILE)
        except OSError:
            return self._exchange
        stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp and (said := report_of(procs.read_json(self._folder / report.FILE))) is not None:
            self._stamp = stamp
            seconds = said.agreement_s + said.quantise_s + said.transfer_s + said.decode_s + said.success_s
            self._exchange = wire.Exchange(
                said.mode, said.reason, said.grant_version, float(said.aggregated_bytes), float(said.fallback_bytes),
                seconds + said.gloo_s, said.collided_share, said.resend_share, float(said.timeouts),
                float(said.numbers),
            )  # fmt: skip
        return self._exchange


def _as_owner(method: Callable[Concatenate[LocalAttempt, P], R]) -> Callable[Concatenate[LocalAttempt, P], R]:
    """The method, which deals with files of the job, in the name of the account that owns them."""

    @wraps(method)
    def acting(self: LocalAttempt, /, *args: P.args, **more: P.kwargs) -> R:
        with in_name_of(job_folder(self.folder)):
            return method(self, *args, **more)

    return acting


@dataclass
class LocalAttempt:
    """A process and what is known of it. `folder` is that of its rank.

    `claimed`: its runner has claimed the job; `runner_ends`: runners in a row that ended before that. `shares`: it is a
    thread of a process that other jobs share (see `merged_runner`); `merged`: the role of that in its end.
    `neighbours`: the jobs that share its GPU (as in control.json); `sharing`: the last directive of the GPU's
    coordinator. `owed_since_s`: when it began to wait for the memory of guests (monotonic clock). `resources`: recent
    use by its processes. `outside_s`: when they were watched from outside (monotonic clock), and the parts of an
    iteration in `outside`.
    """

    run: wire.Run
    folder: Path
    mark: str
    state: str = wire.STARTING
    process: Process | None = None
    pidfd: int = -1
    pid: int = 0
    exit_code: int | None = None
    reason: str | None = None
    stop_reason: str | None = None
    own_stop: bool = False
    kill_at: float | None = None
    began_boot_s: float = 0.0
    ended_boot_s: float = 0.0
    group_version: tuple[str, int, Neighbours | None] | None = None
    neighbours: Neighbours | None = None
    sharing: wire.Sharing | None = None
    owed_since_s: float | None = None
    claimed: bool = False
    runner_ends: int = 0
    shares: bool = False
    merged: str = ""
    page: PageReader | None = field(default=None, repr=False)
    resources: wire.Resources | None = None
    outside_s: float | None = None
    outside: list[float] | None = None
    network: RankFiles = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.network = RankFiles(self.folder)

    @property
    def key(self) -> Key:
        """Job, epoch and rank of the process."""
        return self.run.job, self.run.epoch, self.run.rank

    @property
    def alive(self) -> bool:
        return self.state in (wire.RUNNING, wire.STOPPING)

    @_as_owner
    def began(self, process: Process, at_boot_s: float = 0.0) -> None:
        """Its runner is this process since then (CLOCK_BOOTTIME), after it waited; 0: since its start."""
        self.process, self.state = process, wire.RUNNING
        now_s = procs.boot_s()
        self.began_boot_s = max(now_s - process.age_s, min(at_boot_s, now_s))
        self.pidfd = process.open() or -1
        self.know(read_claim(self.folder))
        self.page = PageReader(self.folder / "page.bin")

    @_as_owner
    def ended_before(self, known: Remembered) -> None:
        """It was over before this agent began: how long it ran, and how far it came, is in its files."""
        if known.process is not None:
            self.began(known.process, known.began_boot_s)
        end = read_end(self.folder, self.began_boot_s)
        self.merged = known.merged
        self.end(known.exit_code, known.reason, end.boot_s if end is not None else None)

    def know(self, claim: Claim | None) -> None:
        """Take over its runner's claim: whether it shares its process, and the mark of that."""
        self.claimed |= claim is not None
        if claim is not None and claim.shared_mark:
            self.shares, self.mark = True, claim.shared_mark

    @_as_owner
    def remember_class(self) -> None:
        """Whether it is a guest by the newest assignment: a guest may have become a host since its start."""
        sharing = (procs.read_json(self.folder / "control.json") or {}).get("sharing")
        guest = isinstance(sharing, dict) and sharing.get("guest") is True
        self.run = replace(self.run, group=replace(self.run.group, guest=guest))

    @property
    def gone(self) -> bool:
        """Whether it has ended although the process that it shares continues."""
        return self.shares and self.alive and (self.folder / "exit.json").exists()

    def wait(self, why: str) -> None:
        """It has no process (any more) and never became the job's: as if it had just been assigned."""
        if self.page is not None:
            self.page.close()
        self.state, self.process, self.page, self.pid, self.reason = wire.STARTING, None, None, 0, why

    def watch(self) -> None:
        """Fail it if it hangs in a stage. Not what shares its process with others: they would end with it.

        Of a gang only rank 0 is looked at: the others may wait for it while it evaluates or saves alone, and what
        any of them hangs in keeps rank 0 from its next iteration too.
        """
        if self.state != wire.RUNNING or self.shares or self.page is None or self.run.rank:
            return
        try:
            least_s = float(self.run.env.get("PLAIT_HANG_S", HANG_S))
        except ValueError:
            least_s = HANG_S
        least_s = least_s if least_s < 1e9 else 0.0
        if least_s > 0 and (why := self.page.stuck(least_s)) is not None:
            self.fail(why)

    def fail_with_gang(self) -> None:
        """End it at once, because another process of its job hangs, and write down where it was."""
        if self.state == wire.RUNNING and not self.shares:
            where = self.page.place() if self.page is not None else "between two stages"
            self.fail(f"ended, as another process of the job hung; it was {where}; its stacks are in the log")

    @_as_owner
    def fail(self, why: str) -> None:
        """End it at once: it has failed, for this reason."""
        with contextlib.suppress(OSError):
            procs.write_json(self.folder / "hung.json", {"reason": why})
        self.stop(0.0, why)

    @_as_owner
    def stop(self, grace_s: float, reason: str | None, *, own: bool = False) -> None:
        """Ask it to end; after `grace_s` seconds it is killed, at once if that is 0. Asking again can only hurry it.

        `own`: the agent wants it, the service did not ask. However it obeys, it is then to be started again.
        """
        if self.state == wire.ENDED:
            return
        if self.state == wire.STARTING:
            self.end(wire.PREEMPTED, reason or "stopped before it started")
            return
        kill_at = time.monotonic() + grace_s + RUNNER_PATIENCE_S
        if self.kill_at is not None and kill_at >= self.kill_at:
            return
        self.state, self.kill_at, self.stop_reason = wire.STOPPING, kill_at, self.stop_reason or reason
        self.own_stop |= own
        if self.page is not None:
            self.page.stop(STOP_GRACEFULLY if grace_s > 0 else STOP_NOW)
        with contextlib.suppress(OSError):  # a full disk: the runner knows the usual grace
            procs.write_json(self.folder / "stop.json", {"grace_s": grace_s, "own": self.own_stop})
        if self.process is not None:
            self.process.send(signal.SIGTERM if grace_s > 0 else signal.SIGUSR1)

    def overdue(self) -> bool:
        """Whether its runner has had its time and the agent has to end it."""
        return self.state == wire.STOPPING and self.kill_at is not None and time.monotonic() >= self.kill_at

    def end(self, exit_code: int | None, reason: str | None, ended_boot_s: float | None = None) -> None:
        """It is over; its last progress is kept."""
        self.state, self.exit_code = wire.ENDED, exit_code
        self.reason = None if reason is None else wire.sane_text(reason)
        self.ended_boot_s = procs.boot_s() if ended_boot_s is None else ended_boot_s
        if self.page is not None:
            self.page.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def collect(self, strays: Callable[[], set[int]], reap: Callable[[], None], lease: Lease | None) -> None:
        """Its runner has ended: find out how, and let nothing of it live on. `lease`: that was over since it began."""
        with in_name_of(job_folder(self.folder)):
            end = read_end(self.folder, self.began_boot_s)
        if end is None:
            # The runner was killed. Its child got SIGKILL from the kernel; the rest is looked for.
            procs.kill_until_none(lambda: strays() | set(procs.marked(self.mark)), reap)
            with in_name_of(job_folder(self.folder)):
                end = read_end(self.folder, self.began_boot_s) or end_of(self._unknown_end(lease), self.began_boot_s)
        if not self.shares:  # also if its runner was not allowed to, or had no time
            cgroups.remove(self.mark)
        self.merged, code, reason = end.merged, end.exit_code, end.reason
        with in_name_of(job_folder(self.folder)):
            own = self.own_stop or (procs.read_json(self.folder / "stop.json") or {}).get("own") is True
        if own and code in _TOLD_TO_END:  # not its failure
            code, reason = wire.PREEMPTED, self.stop_reason or reason
        if end.stopped and code not in (None, wire.PREEMPTED) and code >= 0 and not (self.page and self.page.ended):
            how = f"exit code {code} after SIGTERM, which is no end of its own"
            code, reason = wire.PREEMPTED, how if code or not reason else reason
        self.end(code, reason or (self.stop_reason if code == wire.PREEMPTED else None), end.boot_s)

    def _unknown_end(self, lease: Lease | None) -> dict[str, object]:
        """Nobody saw the exit code; write down what is known, so that it stays the answer."""
        if self.process is not None and self.process.boot != procs.boot_id():
            reason = "the machine was restarted while it ran"
        elif self.state == wire.STOPPING and self.overdue():
            reason = "did not end within its grace, and neither did its runner; killed"
        else:
            reason = "its runner was killed from outside, and with it the process"
        record: dict[str, object] = {
            "exit_code": -signal.SIGKILL,
            "reason": reason,
            "ended_boot_s": procs.boot_s(),
            "boot": procs.boot_id(),
        }
        if lease is not None:  # the kernel ended its runner by it
            record |= {"exit_code": wire.PREEMPTED, "reason": str(lease)}
        elif self.shares:  # no job is known to be at fault: it restarts, by itself
            record |= {"exit_code": wire.PREEMPTED, "merged": "unknown"}
        with contextlib.suppress(OSError):
            procs.write_json(self.folder / "exit.json", record, durable=True)
        return record

    @property
    def gpu_process(self) -> GpuProcess:
        """Its place on its GPU, for the coordinator."""
        return GpuProcess(
            self.key,
            self.run.gpus[0] if self.run.gpus else -1,
            self.run.group.guest,
            self.folder / "page.bin",
            alive=self.alive,
            stopping=self.state == wire.STOPPING,
            persistent_bytes=int(self.run.device_bytes),
            world=self.run.world,
        )

    def update(self, run: wire.Run) -> None:
        """Apply what may change while it runs: its group, how to stop it, and what it may use of a switch."""
        known = self.run if self.run.argv else run  # it was found without a journal
        self.run = replace(
            known, group=run.group, stop=run.stop, grace_s=run.grace_s, device_bytes=run.device_bytes,
            network=run.network,
        )  # fmt: skip

    @_as_owner
    def seen(self) -> wire.Seen:
        """The report of this process for the service."""
        if self.alive and self.pid == 0:
            claim = read_claim(self.folder)
            self.know(claim)  # an agent that starts may reattach to a runner before it has claimed anything
            self.pid = claim.child if claim is not None else 0
        progress = dict(vars(self.page.read())) if self.page is not None else {}
        known: wire.Profile | None = progress.get("profile")
        if self.outside is not None and (known is None or known.outside):
            progress["profile"] = profile_of(self.outside, known.iteration_s if known else progress.get("step_s"))
        first_boot_s, last_boot_s = (progress.pop(f"{name}_step_boot_s", None) for name in ("first", "last"))
        now = procs.boot_s()
        over = self.state == wire.ENDED
        held_s = (self.ended_boot_s if over else now) - self.began_boot_s if self.process is not None else 0.0
        return wire.Seen(  # cleaned, as a report that cannot be taken would hold up all others of the node
            job=self.run.job,
            epoch=self.run.epoch,
            rank=self.run.rank,
            state=self.state,
            pid=self.pid,
            exit_code=self.exit_code,
            reason=self.reason,
            held_s=max(0.0, held_s),
            merged=self.merged,
            ended_s_ago=max(0.0, now - self.ended_boot_s) if over else 0.0,
            first_step_s=self._held_at(first_boot_s),
            last_step_s=self._held_at(last_boot_s),
            sharing=self.sharing,
            exchange=self.network.exchange() if self.run.network is not None else None,
            resources=self.resources if self.alive else None,
            **progress,
        )

    def unseen(self) -> bool:
        """Whether it is time to watch it from outside: nothing within its processes sees its iterations.

        A watch costs CPU time (5 % of a core on a node of 300 processes): an idle program is watched at twice its age.
        """
        began_s = self.began_boot_s if self.outside_s is None else self.outside_s
        wait_s = max(BEGIN_S, began_s - self.began_boot_s)
        if (
            self.state != wire.RUNNING
            or self.run.rank
            or self.shares
            or self.run.group.guest
            or self.outside is not None
        ):
            return False
        return procs.boot_s() - began_s >= wait_s and not self.counts_iterations()

    def counts_iterations(self) -> bool:
        """Whether its own process measures its stages, or will do so."""
        last = self.page.read() if self.page is not None else PageProgress()
        return last.steps > 0 if last.profile is None else not last.profile.outside

    def _held_at(self, boot_s: float | None) -> float | None:
        """Seconds it had held its GPUs at that time."""
        return max(0.0, boot_s - self.began_boot_s) if boot_s is not None else None
