"""Which ends jobs wait for: the policy decides after each of the next ends, in the order in which these are expected.

So a forecast starts a job neither before placement, quotas and reservations allow it, nor later than the policy does
now. Beyond the ends that are looked at, only that a job has not started by then is known; a job that reserved nodes
keep waiting until then has no latest start (`Release.open`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plait.control import messages
from plait.control.controller import CLOCK_S, Controller
from plait.control.snapshot import of_active
from plait.core.arrays import FloatArray, IntArray
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.core.plan import RESERVED
from plait.core.words import duration

#: Maximum jobs in all decisions, for a queue and for a hypothetical job: a long queue gets few decisions.
DECIDED, DECIDED_NEW = 10_000, 3_000
#: Maximum ends, and decisions in all: a policy may want to decide again without any job ending.
MOST_ENDS, MOST_DECISIONS = 24, 72
#: Maximum further decisions, for the begins and ends of reservations, of which a single node may have hundreds.
MOST_RESERVED = 300
#: The number of a job that is not there.
NEW = -1


@dataclass(frozen=True)
class Release:
    """When a job may start: after so many ends, not before `due_s` from now; and why it does not start now.

    `open`: decisions are simulated until `due_s` only, and reserved nodes keep the job waiting there.
    """

    ends: int = 0
    due_s: float = 0.0
    reason: str = ""
    open: bool = False

    @property
    def now(self) -> bool:
        return self.ends == 0 and self.due_s <= CLOCK_S

    @property
    def limits(self) -> list[str]:
        """What a forecast does not know because its decisions are too many, as a sentence if there is any."""
        until = f"decisions are simulated for the next {duration(self.due_s)} only"
        return [f"{until}: reserved nodes keep it waiting until then, and it may start much later"] * self.open


def started(starts_s: FloatArray, ends_s: FloatArray, releases: Sequence[Release | None]) -> FloatArray:
    """Drawn starts (draws, jobs), seconds from now, moved to where the policy's decisions allow them.

    `ends_s` (draws, all jobs) are the ends of the queue; None for a job of which no decision is known.
    """
    ordered = np.sort(ends_s, axis=1)
    out = starts_s.copy()
    for i, release in enumerate(releases):
        if release is None:
            continue
        if release.now:
            out[:, i] = 0.0
            continue
        earliest_s = np.full(len(out), release.due_s)
        if release.ends and ordered.shape[1]:
            at = min(release.ends, ordered.shape[1]) - 1
            earliest_s = ordered[:, at] if release.due_s <= 0 else np.maximum(ordered[:, at], release.due_s)
        out[:, i] = np.maximum(out[:, i], earliest_s)
    return out


def next_starts(controller: Controller, left_s: Mapping[int, float], new: JobSpec | None = None) -> dict[int, Release]:
    """The release of every waiting job by its number, or only of `new`, which is submitted now, as `NEW`.

    `left_s`: seconds that jobs still run. The controller is unchanged afterwards.
    """
    play = _Play(controller, left_s, new)
    decided = (DECIDED if new is None else DECIDED_NEW) // max(len(play.small.active), 1)
    most = MOST_DECISIONS + min(len(play.turns_s), MOST_RESERVED)
    return play.until(min(most, decided), None if new is None else NEW)


class _Play:
    """A separate controller, to which the next ends happen."""

    def __init__(self, controller: Controller, left_s: Mapping[int, float], new: JobSpec | None) -> None:
        self.small, numbers = of_active(controller)
        self.now_s = self.began_s = self.small.now_s
        if new is not None:
            first = self.small.job_store.count
            self.small.handle(messages.JobSubmitted(self.now_s, first, JobBatch.of([new])))
            numbers = np.append(numbers, NEW)
        self.numbers: list[int] = numbers.tolist()
        self.left_s = np.array([left_s.get(number, math.inf) for number in self.numbers])
        phase = self.small.job_store.columns["phase"][: len(self.numbers)]
        self.since_s = np.where(phase == int(Phase.RUNNING), self.now_s, math.nan)
        self.wake_s = self.small.plan.valid_until_s
        #: Begins and ends of reservations.
        self.turns_s = {at_s for one in self.small.reserved for at_s in (one.from_s, one.until_s) if at_s > self.now_s}
        self.releases: dict[int, Release] = {}
        self.reasons: dict[int, str] = {}
        self.ends = self.decisions = 0
        self.small.changed = True

    def until(self, most: int, only: int | None) -> dict[int, Release]:
        """Decide now, and until there were `most` decisions after each of the next ends."""
        waiting = self._waiting()
        try:
            self._decide()
            self.reasons = {self.numbers[job]: reason for job, reason in self.small.plan.reasons.items()}
            while self.decisions < most and self.ends < MOST_ENDS and self._waiting() and only not in self.releases:
                due_s = self.since_s + self.left_s
                next_s = float(np.nanmin(due_s, initial=math.inf))
                if self.wake_s < next_s:
                    self._advance(self.wake_s, np.zeros(0, dtype=np.int64))
                elif math.isfinite(next_s):
                    self._advance(next_s, np.flatnonzero(due_s <= next_s))
                else:
                    break
        except Exception:
            pass  # a policy that fails here fails in its decisions too, and the status shows it
        late = {self.numbers[job] for job, reason in self.small.plan.reasons.items() if RESERVED in reason}
        passed_s = self.now_s - self.began_s
        known = {
            **{job: Release(self.ends + 1, passed_s * (job in late), open=job in late) for job in waiting},
            **self.releases,
        }
        return {
            job: replace(one, reason="" if one.now else self.reasons.get(job, ""))
            for job, one in known.items()
            if only in (None, job)
        }

    def _waiting(self) -> list[int]:
        phase = self.small.job_store.columns["phase"]
        return [self.numbers[job] for job in self.small.active.tolist() if phase[job] == int(Phase.WAITING)]

    def _advance(self, at_s: float, ended: IntArray) -> None:
        """Let time pass until `at_s`, when these jobs end, and decide."""
        at_s = max(at_s, self.now_s + CLOCK_S)
        columns = self.small.job_store.columns
        running = np.flatnonzero(~np.isnan(self.since_s))
        passed_s = at_s - self.since_s[running]
        each_s = columns["iteration_s"][running]
        with np.errstate(invalid="ignore", divide="ignore"):
            more = np.nan_to_num(passed_s / each_s)
        groups = self.small.running
        sizes = np.diff(groups.first_gpu)
        found: IntArray = sizes[self.small.job_store.columns["running_group"][running]]
        self.small.handle(
            messages.ProgressReported(
                at_s, running, columns["iterations_done"][running] + more,
                columns["attained_gpu_s"][running] + passed_s * found,
                columns["run_s"][running] + passed_s, np.full(len(running), math.nan),  # nobody measured a pace
            )
        )  # fmt: skip
        self.left_s[running] -= passed_s
        self.since_s[running] = at_s
        if len(ended):
            self.small.handle(messages.JobFinished(at_s, ended, np.full(len(ended), at_s)))
            self.since_s[ended] = math.nan
            self.ends += len(ended)
        self.now_s = at_s
        self._decide()

    def _decide(self) -> None:
        self.wake_s = math.inf
        self.decisions += 1
        commands: Sequence[messages.Command] = self.small.handle(messages.ReplanDue(self.now_s))
        for command in commands:
            if isinstance(command, messages.Stop):
                self.since_s[command.jobs] = math.nan
            elif isinstance(command, messages.Launch):
                for job in command.groups.jobs.tolist():
                    if math.isnan(self.since_s[job]):
                        self.since_s[job] = self.now_s
                        due_s = 0.0 if self.ends and self.now_s not in self.turns_s else self.now_s - self.began_s
                        self.releases.setdefault(self.numbers[job], Release(self.ends, due_s))
        valid_s = self.small.plan.valid_until_s
        self.wake_s = valid_s if valid_s > self.now_s else math.inf
