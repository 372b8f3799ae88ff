"""Simulated processes: iterations at a pace, fenced checkpoints, ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from plait.live.agent.lease import Lease
from plait.live.layout import Layout
from plait.live.protocol.wire import ENDED, PREEMPTED, RUNNING, STARTING, STOPPING, Run, Seen
from plait.training.state.checkpoint_store import CheckpointStore, StaleEpoch

#: (job, epoch, rank).
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Program:
    """Work of a process: so many `steps`, one each `pace_s`, then it ends with `exit_code`.

    It makes a checkpoint `every` so many steps (0 = never) and at a stop request, which takes `stop_s`; a `stubborn`
    one ignores the request and is killed after the grace period. From step `hangs_at` on it makes no more steps.
    `keep`: a name under which its checkpoints are found by later jobs; "" = they are this job's own. `boot_s`: before
    its first step. A `plain` one is a script that does not use plait: it reports nothing, saves nothing, and starts
    from scratch.
    """

    steps: float = math.inf
    pace_s: float = 1.0
    exit_code: int = 0
    every: int = 0
    stop_s: float = 0.0
    stubborn: bool = False
    hangs_at: float = math.inf
    keep: str = ""
    plain: bool = False
    boot_s: float = 0.0

    def process(self, run: Run, disk: Disk, pid: int, now_s: float) -> Process:
        """A process of the program that starts now."""
        return Process(run, self, disk, pid, now_s)


class Disk(Protocol):
    """Where jobs keep checkpoints and the service fences them."""

    def fence(self, job: int, epoch: int, first: int) -> None:
        """Only attempts of a job from this epoch on may commit."""

    def epoch(self, job: int) -> int:
        """The highest attempt of a job that was named; 0 if none was."""

    def newest(self, run: Run, keep: str) -> int:
        """The step that an attempt resumes from."""

    def commit(self, run: Run, keep: str, step: int) -> str:
        """Make a checkpoint count; returns why it does not, "" if it does."""


class MemoryDisk:
    """A `Disk` without files, for clusters of thousands of nodes."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._newest: dict[str, tuple[int, int]] = {}

    def fence(self, job: int, epoch: int, first: int) -> None:
        self._epochs[job] = max(epoch, self.epoch(job))

    def epoch(self, job: int) -> int:
        return self._epochs.get(job, 0)

    def newest(self, run: Run, keep: str) -> int:
        return self._newest.get(keep or str(run.job), (0, 0))[1]

    def commit(self, run: Run, keep: str, step: int) -> str:
        if run.epoch < self.epoch(run.job):
            return f"attempt {run.epoch} was replaced by attempt {self.epoch(run.job)}: its checkpoints no longer count"
        self._newest[keep or str(run.job)] = max(self._newest.get(keep or str(run.job), (0, 0)), (run.epoch, step))
        return ""


class HomeDisk:
    """The folders of a home, with the commits of the training library and the fences of the service."""

    def __init__(self, layout: Layout) -> None:
        """Store the layout; folders are made later."""
        from plait.live.fencing import Fences

        self._layout = layout
        self.fence = Fences(layout).write

    def epoch(self, job: int) -> int:
        try:
            return int(self._layout.epoch_file(job).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _commits(self, run: Run, keep: str) -> CheckpointStore:
        folder = self._layout.home / "kept" / keep if keep else self._layout.job(run.job) / "checkpoints"
        return CheckpointStore(folder, epoch=run.epoch, epoch_file=self._layout.epoch_file(run.job))

    def newest(self, run: Run, keep: str) -> int:
        found = self._commits(run, keep).complete()
        return found[0].step if found else 0

    def commit(self, run: Run, keep: str, step: int) -> str:
        commits = self._commits(run, keep)
        making = commits.begin(step)
        (making / "state").write_text(str(step), encoding="ascii")
        try:
            commits.commit(making, step, world_size=run.world)
        except StaleEpoch as error:
            return str(error)
        return ""


class Process:
    """A process of an attempt; it runs independently of its agent."""

    def __init__(self, run: Run, program: Program, disk: Disk, pid: int, now_s: float) -> None:
        """Start now, from the newest checkpoint."""
        self.run, self.program, self.pid, self.began_s = run, program, pid, now_s
        self._disk = disk
        self.first = self.saved = 0 if program.plain else disk.newest(run, program.keep)
        self._working_s = now_s + program.boot_s
        self.stop_s, self.grace_s, self.lapsed = math.inf, 0.0, ""
        self.saved_s = now_s
        self.ended_s: float | None = None
        self.exit_code: int | None = None
        self.reason: str | None = None
        self.log = f"rank {run.rank} of {run.world}: from step {self.first}\n"

    def steps(self, now_s: float) -> float:
        """Iterations since the beginning of the job."""
        until = min(now_s, self.stop_s, math.inf if self.ended_s is None else self.ended_s)
        made = self.first + math.floor((until - self._working_s) / self.program.pace_s + 1e-9)
        return max(self.first, min(made, self.program.steps, self.program.hangs_at))

    def said(self, now_s: float) -> dict[str, Any]:
        """Further fields of `Seen` from its page, besides the steps."""
        program, steps = self.program, self.steps(now_s)
        if program.plain:
            return {"steps": 0.0}
        begun, booted_s = steps > self.first, self._working_s - self.began_s
        return {
            "step_s": program.pace_s if begun else None,
            "total_steps": program.steps if math.isfinite(program.steps) else None,
            "saves": "yes" if begun else "no_boundary",
            "checkpoint_steps": float(self.saved) if self.saved else None,
            "checkpoint_age_s": max(0.0, min(now_s, self.ended_s or math.inf) - self.saved_s) if self.saved else None,
            "first_step_s": booted_s + program.pace_s if begun else None,
            "last_step_s": booted_s + (steps - self.first) * program.pace_s if begun else None,
        }

    def stop(self, now_s: float, grace_s: float) -> None:
        """Request a stop; a repeated request can only shorten the grace period."""
        self.advance(now_s)
        if self.stop_s == math.inf:
            self.stop_s, self.grace_s = now_s, grace_s
        else:
            self.grace_s = min(self.grace_s, now_s + grace_s - self.stop_s)

    def lapse(self, now_s: float, lease: Lease) -> None:
        """Set the lease of its node: `advance` stops the process shortly before it expires, and kills it then."""
        if self.ended_s is None and now_s >= lease.stop_s(self.run.grace_s):
            at_s = min(lease.stop_s(self.run.grace_s), self.stop_s)
            known_s = self.grace_s if self.stop_s < math.inf else math.inf
            self.stop_s, self.grace_s, self.lapsed = at_s, min(known_s, lease.kill_s - at_s), str(lease)

    def advance(self, now_s: float) -> None:
        """Advance to now: checkpoints that were due, its end."""
        if self.ended_s is not None:
            return
        program, step = self.program, self.steps(now_s)
        while program.every and self.saved + program.every <= step:
            self._save(self.saved + program.every, now_s)
        if step >= program.steps:
            self.log += f"rank {self.run.rank} of {self.run.world}: done at step {step:g}\n"
            self.end(self._working_s + (step - self.first) * program.pace_s, program.exit_code, None)
        elif program.stubborn or program.hangs_at <= step:
            if now_s >= self.stop_s + self.grace_s and self.lapsed:
                self.end(self.stop_s + self.grace_s, PREEMPTED, self.lapsed)
            elif now_s >= self.stop_s + self.grace_s:
                why = f"did not end within {self.grace_s:g} s after SIGTERM, so it was killed"
                self.end(self.stop_s + self.grace_s, -9, why)
        elif now_s >= self.stop_s + program.stop_s:
            self._save(int(step), now_s)
            self.log += f"rank {self.run.rank} of {self.run.world}: stopped at step {step:g}\n"
            self.end(self.stop_s + program.stop_s, PREEMPTED, self.lapsed or None)

    def _save(self, step: int, at_s: float) -> None:
        if self.program.plain:
            return
        self.saved, self.saved_s = step, at_s
        if self.run.rank == 0 and (why := self._disk.commit(self.run, self.program.keep, step)):
            self.log += f"refused: {why}\n"

    def end(self, at_s: float, exit_code: int, reason: str | None) -> None:
        """Note when and how the process ended; later calls change nothing."""
        if self.ended_s is None:
            self.ended_s, self.exit_code, self.reason = at_s, exit_code, reason


@dataclass
class Held:
    """A process of an attempt as its agent knows it."""

    run: Run
    state: str = STARTING
    process: Process | None = None
    exit_code: int | None = None
    reason: str | None = None
    ended_s: float = 0.0
    own: bool = False
    stop_reason: str | None = None

    @property
    def alive(self) -> bool:
        """Whether it has a process."""
        return self.state in (RUNNING, STOPPING)

    def begin(self, program: Program, disk: Disk, pid: int, now_s: float) -> Process:
        """Start its process."""
        process = self.process = program.process(self.run, disk, pid, now_s)
        self.state, self.reason = RUNNING, None
        return process

    def stop(self, now_s: float, grace_s: float, reason: str, *, own: bool = False) -> None:
        """Request its end; `own`: not by request of the service, so it is started again."""
        if self.state == STARTING:
            self.end(now_s, PREEMPTED, reason)
        elif self.state != ENDED and self.process is not None:
            self.state, self.own, self.stop_reason = STOPPING, self.own or own, self.stop_reason or reason
            self.process.stop(now_s, grace_s)
            self.process.advance(now_s)

    def collect(self) -> None:
        """Record whether and how its process has ended."""
        process = self.process
        if self.state == ENDED or process is None or process.ended_s is None:
            return
        code, reason = process.exit_code, process.reason
        if self.own and code in (-9, -15, 137, 143):  # not its failure
            code, reason = PREEMPTED, self.stop_reason
        self.end(process.ended_s, code, reason or (self.stop_reason if code == PREEMPTED else None))

    def end(self, now_s: float, exit_code: int | None, reason: str | None) -> None:
        """Note when and how the process ended."""
        self.state, self.ended_s, self.exit_code, self.reason = ENDED, now_s, exit_code, reason

    def seen(self, now_s: float) -> Seen:
        """The process as reported to the service."""
        run, process = self.run, self.process
        if process is None:
            return Seen(
                run.job, run.epoch, run.rank, self.state, exit_code=self.exit_code, reason=self.reason,
                ended_s_ago=max(0.0, now_s - self.ended_s) if self.state == ENDED else 0.0,
            )  # fmt: skip
        over = self.state == ENDED
        return Seen(
            run.job, run.epoch, run.rank, self.state, process.pid, self.exit_code, self.reason,
            held_s=max(0.0, (self.ended_s if over else now_s) - process.began_s),
            ended_s_ago=max(0.0, now_s - self.ended_s) if over else 0.0,
            **{"steps": float(process.steps(now_s)), **process.said(now_s)},
        )  # fmt: skip
