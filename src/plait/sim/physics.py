"""The truth of a simulated world: how long an iteration really takes on given GPUs.

Policies never see this object; they see what the backend reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, placement_skew
from plait.core.network_grants import NetworkFigures, NetworkGrant
from plait.core.plan import TURN, Gate, Groups
from plait.core.policy import Usage
from plait.core.resources import Resource
from plait.grouping.interference import MEASURED_INTERFERENCE
from plait.grouping.times import interleaved_iteration_s
from plait.placement.kernels import mark_spread
from plait.sim.measured_pairs import MeasuredPairs
from plait.sim.shared_gpu import GpuSharing, beside_gpus

#: By job number: the memory of switches that jobs have. The others exchange in a ring.
Granted = Mapping[int, tuple[NetworkGrant, ...]]


class Physics(Protocol):
    """Seconds an iteration, for each member of some groups."""

    def iteration_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """One value for each entry of `groups.jobs`; `truth` has one row a job number."""
        ...


@runtime_checkable
class Contends(Protocol):
    """A physics in which a job's pace depends on all that run. Optional; the simulator then gives it all of them."""

    def paces(self, truth: JobBatch, running: Groups, cluster: Cluster, granted: Granted) -> FloatArray:
        """Seconds an iteration, for each entry of `running.jobs`; `running` has all groups of the cluster."""
        ...

    def figures(self, truth: JobBatch, running: Groups, cluster: Cluster, granted: Granted) -> NetworkFigures:
        """What would be measured of the exchanges of these jobs: those that exchange between nodes, ascending."""
        ...


@runtime_checkable
class MeasuresUsage(Protocol):
    """A physics that also says how busy and how full GPUs are. Optional; the simulator reports it to the controller."""

    def usage(self, truth: JobBatch, groups: Groups, cluster: Cluster, iteration_s: FloatArray) -> Usage:
        """What the GPUs of these groups, and their members in order, would measure at this pace.

        Arguments as of `Physics.iteration_s`, and what that returns; of other GPUs and members NaN.
        """
        ...


@dataclass(frozen=True)
class StandardPhysics:
    """Solo iteration time x GPUs asked / GPUs held x spread slow-down x sharing / speed of the GPU kind.

    The simulator hands elastic jobs as jobs with a batch, and multiplies by the speed of their own model
    (`training.py`): what follows concerns the others.
    `spread_slowdown` applies to gangs on more nodes than they need whose skew exceeds `skew_threshold` or is
    unknown (Tiresias, section 3); the size of the factor is an assumption, not a measurement. Members of a
    group slow each other down so that no resource is used more than all the time; with `Gate.BARRIER` they advance
    one iteration together (`lock_step_s`), none faster than alone. Either way `interference[members - 1]` comes on top.
    `sharing` is the law by which hosts and guests share GPUs; without one (None) they slow each other down as members
    of a group do. Either way a gang goes at the pace of its worst GPU. `pairs` are true costs of sharing that differ by
    pairs of models: with `Gate.BARRIER` they come on top of `interference`, as far as they differ from their mean;
    otherwise each member is as much slower as it was measured next to each of its mates.
    """

    spread_slowdown: float = 1.0
    skew_threshold: float = 0.3
    interference: tuple[float, ...] = MEASURED_INTERFERENCE
    kind_speed: Mapping[str, float] = field(default_factory=dict)
    sharing: GpuSharing | None = field(default_factory=GpuSharing)
    pairs: MeasuredPairs | None = None

    def iteration_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """Seconds an iteration for each entry of `groups.jobs`."""
        alone = self.alone_s(truth, groups, cluster)
        slower = alone / truth.iteration_s[groups.jobs]
        return self.together_s(truth, groups, cluster, alone, truth.stage_s[groups.jobs] * slower[:, None])

    def alone_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """Seconds an iteration of each member on the GPUs of its group, without the other members and groups."""
        alone = resized(truth, groups, truth.iteration_s[groups.jobs])
        if self.spread_slowdown != 1.0:
            alone = alone * self._spread(truth, groups, cluster)
        if self.kind_speed:
            speed = np.array([self.kind_speed.get(kind, 1.0) for kind in cluster.kinds])
            kind = cluster.node_kind[cluster.gpu_node[groups.gpus[groups.first_gpu[:-1]]]]
            alone = alone / speed[kind][groups.group_of_member()]
        return alone

    def together_s(
        self, truth: JobBatch, groups: Groups, cluster: Cluster, alone: FloatArray, stage_s: FloatArray
    ) -> FloatArray:
        """Seconds an iteration of each member that takes `alone` by itself, with stages `stage_s` (members, k)."""
        inside = alone
        if not groups.single:
            inside = self._shared(truth, groups, alone, stage_s, cpu_shares(truth, groups, cluster))
        if groups.guest is None:
            return inside
        if self.sharing is not None:
            capacity = None if self.sharing.models is None else gpu_memory_bytes(groups, cluster)
            by_law = self.sharing.iteration_s(truth, groups, inside, capacity)
            if self.sharing.cores_apart:
                return by_law
            return beside_gpus(groups, by_law, alone, stage_s, cpu_shares(truth, groups, cluster))
        return np.maximum(inside, alone * self._crowded(groups, alone, stage_s))

    def _spread(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        over = np.empty(len(groups), dtype=np.bool_)
        mark_spread(groups.gpus, groups.first_gpu, cluster.gpu_node, cluster.node_kind, cluster.cap_prefix, over)
        if not over.any():
            return np.ones(len(groups.jobs))
        spread = over[groups.group_of_member()]
        return np.where(spread & self.sensitive(truth, groups.jobs), self.spread_slowdown, 1.0)

    def sensitive(self, truth: JobBatch, jobs: IntArray) -> BoolArray:
        """Whether each of `jobs` is slower on more nodes than it needs; adaptive ones know that of themselves."""
        skew = placement_skew(truth.column("skew")[jobs], truth.column("servers")[jobs])
        flags: BoolArray = ~(skew <= self.skew_threshold)
        flags &= truth.column("batch_size")[jobs] == 0
        return flags

    def _shared(
        self, truth: JobBatch, groups: Groups, alone: FloatArray, stage_s: FloatArray, share: FloatArray
    ) -> FloatArray:
        """The pace of all members on shared GPUs; `share` is the part of each resource a job needs in its turn."""
        group = groups.group_of_member()
        members = np.diff(groups.first_job)
        lock_step = np.zeros(len(groups), dtype=np.bool_)
        if groups.gate is not None:
            unknown = np.bincount(group, np.isnan(stage_s[:, 0]), minlength=len(groups)) > 0
            lock_step = (groups.gate == int(Gate.BARRIER)) & ~unknown & (members > 1)
        out = self._contend(stage_s, alone, groups.first_job[:-1], group)
        if lock_step.any():
            rows = np.flatnonzero(lock_step[group])
            first = np.cumsum(members[lock_step]) - members[lock_step]
            turns = np.zeros(len(rows), dtype=np.int64)
            if groups.details is not None:
                turns = groups.details[rows, TURN].astype(np.int64)
            together = np.maximum(
                lock_step_s(stage_s[rows], first, turns, share[rows]), np.maximum.reduceat(alone[rows], first)
            )
            out[rows] = np.repeat(together, members[lock_step])
        factor = np.array(self.interference)[np.minimum(members, len(self.interference)) - 1][group]
        if self.pairs is not None:
            logs = self._pair_logs(truth, groups)
            factor = np.where(lock_step[group], np.maximum(factor * np.exp(logs[0] - self.pairs.mean), 1.0), factor)
            apart = np.maximum(np.exp(logs[1]), 1.0) * alone
            out, factor = np.where(lock_step[group], out, apart), np.where(lock_step[group], factor, 1.0)
        return np.where((members > 1)[group], out * factor, alone)

    def _pair_logs(self, truth: JobBatch, groups: Groups) -> FloatArray:
        """Logarithms of the true costs: the mean of all pairs of each member's group, and the sum over its mates."""
        assert self.pairs is not None
        models, jobs = truth.column("model"), groups.jobs.tolist()
        busy = truth.stage_s[groups.jobs, Resource.GPU] / truth.iteration_s[groups.jobs]
        about = [(str(models[job]), float(part)) for job, part in zip(jobs, np.nan_to_num(busy, nan=1.0), strict=True)]
        out = np.zeros((2, len(jobs)))
        for lo, hi in pairwise(groups.first_job.tolist()):
            if hi - lo > 1:
                logs = [[self.pairs.log(about[i], about[j]) for j in range(lo, hi) if j != i] for i in range(lo, hi)]
                out[0, lo:hi], out[1, lo:hi] = np.mean(logs), np.sum(logs, axis=1)
        return out

    def _crowded(self, groups: Groups, alone: FloatArray, stage_s: FloatArray) -> FloatArray:
        """How much slower each member is than alone, on the worst of its GPUs, because of all jobs there."""
        group, members = groups.group_of_member(), np.diff(groups.first_job)
        owner = np.repeat(np.arange(len(groups)), groups.gpu_count())
        busy = np.add.reduceat(busy_part(stage_s, alone), groups.first_job[:-1])
        gpus, at = np.unique(groups.gpus, return_inverse=True)
        asked, jobs = np.zeros((len(gpus), len(Resource))), np.zeros(len(gpus), dtype=np.int64)
        np.add.at(asked, at, busy[owner])
        np.add.at(jobs, at, members[owner])
        factor = np.array(self.interference)[np.minimum(jobs, len(self.interference)) - 1]
        worst: FloatArray = np.maximum.reduceat(
            (factor * np.maximum(asked.max(axis=1), 1.0))[at], groups.first_gpu[:-1]
        )
        return worst[group]

    def _contend(self, stage_s: FloatArray, alone: FloatArray, first: IntArray, group: IntArray) -> FloatArray:
        """All at once: each is slowed down until no resource is used more than all the time."""
        asked = np.add.reduceat(busy_part(stage_s, alone), first, axis=0).max(axis=1)
        slowed: FloatArray = alone * np.maximum(asked, 1.0)[group]
        return slowed


@dataclass(frozen=True)
class MeasuredPhysics(StandardPhysics):
    """The same, and reports how busy and full GPUs are: where memory matters (`GpuSharing.models`)."""

    def usage(self, truth: JobBatch, groups: Groups, cluster: Cluster, iteration_s: FloatArray) -> Usage:
        """See `MeasuresUsage`. A job without a profile keeps its GPUs busy."""
        group, alone = groups.group_of_member(), truth.iteration_s[groups.jobs]
        gpu_s = truth.stage_s[groups.jobs, Resource.GPU]
        busy = np.minimum(np.where(np.isnan(gpu_s), alone, gpu_s) / iteration_s, 1.0)
        used = self.sharing and self.sharing.memory(truth, groups, alone, gpu_memory_bytes(groups, cluster))
        granted, spill = (used.granted_bytes, used.spill_bytes) if used else (np.zeros(len(groups)),) * 2
        gpus = np.full((2, cluster.gpus), np.nan)
        gpus[:, groups.gpus] = 0.0
        owner = np.repeat(np.arange(len(groups)), groups.gpu_count())
        for row, values in zip(gpus, (np.add.reduceat(busy, groups.first_job[:-1]), granted), strict=True):
            np.add.at(row, groups.gpus, values[owner])
        models = self.sharing.models.columns(truth)[0] if self.sharing and self.sharing.models else []
        kept = np.array([models[job].persistent_bytes if models else 0.0 for job in groups.jobs.tolist()])
        part = 1.0 / np.diff(groups.first_job)[group]  # of a group's memory, for each of its members
        return Usage(
            np.minimum(gpus[0], 1.0), gpus[1], groups.jobs, iteration_s, granted[group] * part, kept,
            spill[group] * part,
        )  # fmt: skip


def gpu_memory_bytes(groups: Groups, cluster: Cluster) -> FloatArray:
    """Memory of each entry of `groups.gpus`, infinite where it is not known."""
    memory: FloatArray = cluster.node_gpu_memory_bytes[cluster.gpu_node[groups.gpus]]
    return memory


def busy_part(stage_s: FloatArray, alone: FloatArray) -> FloatArray:
    """The part of the time in which each member alone uses each resource, shape (members, k).

    A job without a profile is taken to keep its GPUs busy.
    """
    only_gpu = np.zeros(len(Resource))
    only_gpu[Resource.GPU] = 1.0
    return np.where(np.isnan(stage_s), only_gpu, np.minimum(stage_s / alone[:, None], 1.0))


def resized(truth: JobBatch, groups: Groups, alone: FloatArray) -> FloatArray:
    """Seconds of computation of each member, `alone` on the GPUs requested, on those that its group has: each its part.

    What they exchange between nodes is the matter of the network. Jobs with a batch keep theirs: their own throughput
    determines what GPUs do for them.
    """
    held, asked = groups.gpu_count(), truth.gpus[groups.jobs]
    if not groups.single:
        held = held[groups.group_of_member()]
    other = held != asked
    if not other.any():
        return alone
    other &= truth.column("batch_size")[groups.jobs] == 0
    return np.where(other, alone * asked / held, alone)


def cpu_shares(truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
    """The part of each resource that a member needs in its turn, shape (members, k): 1 unless cores are declared.

    `truth` has one row a job number; `groups` run on nodes of `cluster`. A group owns as much of its node's cores as it
    holds of its GPUs.
    """
    share = np.ones((len(groups.jobs), len(Resource)))
    if truth.any_demands:
        node = cluster.gpu_node[groups.gpus[groups.first_gpu[:-1]]][groups.group_of_member()]
        wanted = truth.column("cpus")[groups.jobs] / truth.gpus[groups.jobs]
        with np.errstate(invalid="ignore", divide="ignore"):
            part = wanted * cluster.node_gpus[node] / cluster.node_cpus[node]
        share[:, Resource.CPU] = np.where((wanted > 0) & (part < 1), part, 1.0)
    return share


def lock_step_s(stage_s: FloatArray, first: IntArray, turns: IntArray, share: FloatArray) -> FloatArray:
    """Seconds of one interleaved iteration of each group by its stages alone (Muri, formula (3)).

    `stage_s` has shape (members, k); group `g` begins at row `first[g]`. In slot j the member with turn s is on
    resource (s + j) mod k. Members that meet on a resource in the same slot take as long as it needs to serve them
    all, each asking for its `share` (members, k) of it. If all turns are 0 that may be the plan, where all find room
    side by side, or no turns are planned; then the executors choose, and take the best order if it is faster.
    """
    members, k = stage_s.shape
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, members)))
    at = (turns[:, None] + np.arange(k)) % k
    rolled = np.take_along_axis(stage_s, at, axis=1)
    slot_s = np.maximum.reduceat(rolled, first, axis=0)
    out: FloatArray = slot_s.sum(axis=1)
    met = np.bincount(group * k + turns, minlength=len(first) * k).reshape(-1, k).max(axis=1) > 1
    for g in np.flatnonzero(met).tolist():
        rows = group == g
        asked = np.zeros((k, k))  # of each resource in each slot, seconds of all of it
        for row in np.flatnonzero(rows).tolist():
            asked[np.arange(k), at[row]] += rolled[row] * share[row, at[row]]
        out[g] = np.maximum(slot_s[g], asked.max(axis=1)).sum()
        if not turns[rows].any() and rows.sum() <= k:
            out[g] = min(out[g], interleaved_iteration_s(stage_s[rows]))
    return out
