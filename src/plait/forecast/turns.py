"""Pace of jobs that take turns in the live cluster, with the gates that it would choose.

The gate and the turns of a group follow from the stage times that the scheduler knows; the pace follows from the true
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.core.plan import TURN, Gate, Group, Groups, Member
from plait.core.resources import Resource
from plait.live.scheduler.records.groups import choose
from plait.runtime.gate_choice import paces
from plait.sim.physics import StandardPhysics, resized


def all_take_part(jobs: IntArray) -> BoolArray:
    """All of these jobs take part (jobs,)."""
    return np.ones(len(jobs), dtype=bool)


@dataclass(frozen=True)
class TurnsPhysics:
    """Pace of members of live groups.

    `known`: columns of the job store that the gate is chosen from. `world_sizes`: processes of a job on so many GPUs.
    `awake`: which jobs take part by now; a job that is still starting does not.
    """

    known: Mapping[str, Any]
    world_sizes: Callable[[int, int], int] = lambda job, gpus: gpus
    awake: Callable[[IntArray], BoolArray] = all_take_part
    together: StandardPhysics = field(default_factory=lambda: StandardPhysics(interference=(1.0,)))

    def iteration_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """Seconds an iteration, for each entry of `groups.jobs`."""
        out = self.together.iteration_s(truth, groups, cluster)
        alone = resized(truth, groups, truth.iteration_s[groups.jobs])
        awake = self.awake(groups.jobs)
        for g in np.flatnonzero(np.diff(groups.first_job) > 1).tolist():
            rows = np.arange(int(groups.first_job[g]), int(groups.first_job[g + 1]))
            jobs = groups.jobs[rows]
            out[rows] = alone[rows]
            here = awake[rows]
            if here.sum() < 2:
                continue
            gate, turns = self._gate(groups, g, rows)
            slower = alone[rows[here]] / truth.iteration_s[jobs[here]]
            stage_s = truth.stage_s[jobs[here]] * slower[:, None]
            if np.isnan(stage_s).any():
                gate = "none"
            if gate == "none":
                out[rows[here]] = self._ungated(truth, jobs[here].tolist(), groups[g].gpus, cluster)
            else:
                out[rows[here]] = paces(
                    gate, stage_s.tolist(), alone[rows[here]].tolist(), np.array(turns)[here].tolist()
                )
        return out

    def _gate(self, groups: Groups, g: int, rows: IntArray) -> tuple[str, list[int]]:
        """The gate that the service chooses for the whole group."""
        group = groups[g]
        turns = [0] * len(rows) if groups.details is None else groups.details[rows, TURN].astype(int).tolist()
        gate = Gate.NONE if groups.gate is None else Gate(int(groups.gate[g]))
        jobs = groups.jobs[rows].tolist()
        members = tuple(Member(job, turn=turn) for job, turn in zip(jobs, turns, strict=True))
        world_sizes = [self.world_sizes(job, len(group.gpus)) for job in jobs]
        return choose(Group(members, tuple(int(i) for i in group.gpus), gate), self.known, world_sizes)

    def _ungated(self, truth: JobBatch, jobs: Sequence[int], gpus: Sequence[int], cluster: Cluster) -> FloatArray:
        """Pace without a gate: all members are slowed down alike by the busiest resource."""
        group = Group(tuple(Member(job) for job in jobs), tuple(int(i) for i in gpus), Gate.NONE)
        return self.together.iteration_s(truth, Groups.of([group]), cluster)


def stages_known(stage_s: Any) -> bool:
    """Whether all four were measured, and at least one is above 0."""
    values = np.asarray(stage_s, dtype=np.float64)
    return bool(len(values) == len(Resource) and np.isfinite(values).all() and values.sum() > 0)
