"""The truth of a simulated world: how long an iteration really takes on given GPUs.

Policies never see this object; they see what the backend reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.core.plan import Gate, Groups
from plait.core.resources import Resource
from plait.grouping import interleaved_iteration_s

#: Slow-down of a group of 1, 2, 3, 4 jobs beyond the ideal schedule, measured by Muri's authors on V100
#: (their artifact, 1.33, 1.5 and 1.37; the factor 1.015 of a lone job is part of the trace's own times).
MEASURED_INTERFERENCE = (1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015)


class Physics(Protocol):
    """Seconds an iteration, for each member of some groups."""

    def iteration_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """One value for each entry of `groups.jobs`; `truth` has one row a job number."""
        ...


@dataclass(frozen=True)
class StandardPhysics:
    """Solo iteration time x spread slow-down x sharing / speed of the GPU kind.

    `spread_slowdown` applies to gangs on more nodes than they need whose skew exceeds `skew_threshold` or is
    unknown (Tiresias, section 3); the size of the factor is an assumption, not a measurement. Members of a
    group slow each other down so that no resource is used more than all the time, and then by
    `interference[members - 1]`; with `Gate.BARRIER` the group's iteration is Muri's formula (3).
    """

    spread_slowdown: float = 1.0
    skew_threshold: float = 0.3
    interference: tuple[float, ...] = MEASURED_INTERFERENCE
    kind_speed: Mapping[str, float] = field(default_factory=dict)

    def iteration_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """Seconds an iteration for each entry of `groups.jobs`."""
        alone = truth.iteration_s[groups.jobs]
        if self.spread_slowdown != 1.0:
            alone = alone * self._spread(truth, groups, cluster)
        if self.kind_speed:
            speed = np.array([self.kind_speed.get(kind, 1.0) for kind in cluster.kinds])
            kind = cluster.node_kind[cluster.gpu_node[groups.gpus[groups.first_gpu[:-1]]]]
            alone = alone / speed[kind][groups.group_of_member()]
        if groups.single:
            return alone
        return self._shared(truth, groups, alone)

    def _spread(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        node = cluster.gpu_node[groups.gpus]
        count = groups.gpu_count()
        group = np.repeat(np.arange(len(groups)), count)
        new = np.ones(len(node), dtype=bool)
        new[1:] = (node[1:] != node[:-1]) | (group[1:] != group[:-1])
        nodes = np.bincount(group[new], minlength=len(groups))
        kind = cluster.node_kind[node[groups.first_gpu[:-1]]]
        fewest = 1 + (cluster.cap_prefix[kind] < count[:, None]).sum(axis=1)
        spread = (nodes > fewest)[groups.group_of_member()]
        sensitive = ~(truth.column("skew")[groups.jobs] <= self.skew_threshold)
        return np.where(spread & sensitive, self.spread_slowdown, 1.0)

    def _shared(self, truth: JobBatch, groups: Groups, alone: FloatArray) -> FloatArray:
        out = alone.copy()
        slower = alone / truth.iteration_s[groups.jobs]
        for g in np.flatnonzero(np.diff(groups.first_job) > 1).tolist():
            members = slice(int(groups.first_job[g]), int(groups.first_job[g + 1]))
            gate = Gate.NONE if groups.gate is None else Gate(groups.gate[g])
            stages = truth.stage_s[groups.jobs[members]] * slower[members, None]
            out[members] = self._group(stages, alone[members], gate)
        return out

    def _group(self, stage_s: FloatArray, alone: FloatArray, gate: Gate) -> FloatArray:
        factor = self.interference[min(len(alone), len(self.interference)) - 1]
        known = ~np.isnan(stage_s[:, 0])
        if gate is Gate.BARRIER and known.all() and len(alone) <= len(Resource):
            return np.full(len(alone), interleaved_iteration_s(stage_s) * factor)
        busy = np.zeros((len(alone), len(Resource)))
        busy[known] = np.minimum(stage_s[known] / alone[known, None], 1.0)
        busy[~known, Resource.GPU] = 1.0  # without a profile a job is taken to keep its GPUs busy
        return alone * max(1.0, float(busy.sum(axis=0).max())) * factor
