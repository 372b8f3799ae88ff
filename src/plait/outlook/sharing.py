"""Jobs that took turns: seconds of an iteration by the model, and as measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.control.messages import ProgressReported
from plait.core.jobs import JobBatch
from plait.core.plan import Gate, Group, Groups, Member
from plait.live.scheduler.state import State
from plait.outlook.eta import pace_s
from plait.outlook.log_replay import LoggedEntry
from plait.runtime.gate_choice import paces
from plait.sim.physics import StandardPhysics


@dataclass(frozen=True)
class MemberShare:
    """One member: its name, and seconds an iteration: alone, by the model, and measured (median of what was reported
    while this group ran; NaN if nothing was).
    """

    id: str
    alone_s: float
    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class GroupSharing:
    """A group of two or more that ran: from when to when, by which gate, and its members."""

    gate: str
    from_s: float
    to_s: float
    members: tuple[MemberShare, ...]

    @property
    def predicted_s(self) -> float:
        """Seconds in which each member makes one iteration, by the model: that of the slowest."""
        return max(m.predicted_s for m in self.members)

    @property
    def measured_s(self) -> float:
        """The same as measured; NaN if nothing was reported."""
        known = [m.measured_s for m in self.members if math.isfinite(m.measured_s)]
        return max(known) if len(known) == len(self.members) else math.nan

    @property
    def speed(self) -> float:
        """Summed normalised throughput: 1 is what the GPUs give to one job after the other."""
        return sum(m.alone_s / m.measured_s for m in self.members)


class SharingWatch:
    """Follows a replay (`replay(..., observe=watch)`) and records groups and their pace."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, ...], tuple[float, float, str, dict[int, int]]] = {}
        self._paces: dict[tuple[int, ...], dict[int, list[float]]] = {}

    def __call__(self, state: State, row: LoggedEntry) -> None:
        reported: dict[int, float] = {}
        if isinstance(row.event, ProgressReported):
            reported = dict(zip(row.event.jobs.tolist(), row.event.iteration_s.tolist(), strict=True))
        for group in state.groups.by_gpus.values():
            if len(group.members) < 2:
                continue
            jobs = tuple(sorted(m.job for m in group.members))
            first = self._spans.get(jobs, (state.now_s, 0.0, "", {}))[0]
            self._spans[jobs] = (first, state.now_s, group.gate, {m.job: m.turn for m in group.members})
            for job in jobs:
                if math.isfinite(reported.get(job, math.nan)):
                    self._paces.setdefault(jobs, {}).setdefault(job, []).append(reported[job])

    def sharings(self, state: State) -> list[GroupSharing]:
        """The groups, in order of time, with what the final profiles predict for them."""
        if state.controller is None:
            return []
        return [self._sharing(state, jobs) for jobs in sorted(self._spans, key=lambda jobs: self._spans[jobs][0])]

    def _sharing(self, state: State, jobs: tuple[int, ...]) -> GroupSharing:
        assert state.controller is not None
        from_s, to_s, gate, turns = self._spans[jobs]
        job_store, cluster = state.controller.job_store, state.controller.cluster
        columns = {name: column[: job_store.count] for name, column in job_store.columns.items()}
        alone = pace_s(columns, job_store.count)
        # Jobs by number are rows of the truth; only the members' rows matter.
        truth = JobBatch.of([job_store.spec(i) for i in range(job_store.count)]).replace(
            iteration_s=alone, stage_s=columns["stage_s"].copy()
        )
        members = tuple(Member(job, turn=turns[job]) for job in jobs)
        size = max(1, int(columns["gpus"][jobs[0]]))
        group = Group(members, tuple(range(min(size, cluster.gpus))), Gate[gate.upper()])
        stage_s = truth.stage_s[list(jobs)]
        if gate == "none" or np.isnan(stage_s).any():
            predicted = StandardPhysics(interference=(1.0,)).iteration_s(truth, Groups.of([group]), cluster)
        else:
            predicted = np.array(paces(gate, stage_s.tolist(), alone[list(jobs)].tolist(), [turns[j] for j in jobs]))
        reported = self._paces.get(jobs, {})
        shares = tuple(
            MemberShare(
                job_store.spec(job).id,
                float(alone[job]),
                float(predicted[i]),
                _late_median(reported.get(job, [])),
            )
            for i, job in enumerate(jobs)
        )
        return GroupSharing(gate, from_s, to_s, shares)


def _late_median(values: Sequence[float]) -> float:
    """The median of the later half: the first reports of a group still average what was before it."""
    return float(np.median(values[len(values) // 2 :])) if values else math.nan
