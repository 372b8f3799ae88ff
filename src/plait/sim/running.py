"""Simulated jobs on their GPUs: what a start, a stop, another pace and another batch do to one, to the millisecond.

Job time has three parts, and every millisecond a job holds its GPUs is in one:
  start-up   `hold_ms` to `since_ms`   launch, restore, migrate: GPUs held, no progress
  work       `since_ms` to `end_ms`    progress at `rate` solo-milliseconds a millisecond
  save       after a stop              GPUs held until the checkpoint is written; the next job waits for them
Each is charged once, to the job that starts or stops. Hosts wait until the jobs before them have saved; guests
neither wait nor are waited for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from plait.core.arrays import NO_JOBS, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import Checkpoints, JobBatch
from plait.core.network_grants import NetworkFigures, NetworkGrant
from plait.core.plan import Groups
from plait.goodput.fixed_batch import with_fixed_batches
from plait.sim.failures import time_to_failure_s
from plait.sim.neighbours import Everyone, GpuFigures, GpuNeighbours
from plait.sim.physics import Contends, MeasuresUsage
from plait.sim.state import (
    DONE,
    GPUS,
    HOLD,
    RATE,
    RUN,
    SERVICE,
    SINCE,
    UNIT,
    done_at,
    due_by,
    earliest,
    leave_one,
    repace,
    start_one,
    to_ms,
)  # fmt: skip
from plait.sim.world import CHECKPOINT, SimulationSettings, adaptive_jobs, with_known_batches

if TYPE_CHECKING:
    from plait.sim.training import AdaptiveJobs

#: A group of some groups, by its index.
Shared: TypeAlias = tuple[Groups, int]

#: Seconds to resume from host memory: Gandiva (OSDI 2018, section 4) reports about 100 ms for a suspend and resume.
RESUME_MS = 100.0

NEVER, PERIODIC, ON_STOP = (int(kind) for kind in Checkpoints)

#: Work that an edge between two levels of gradient noise may be away and still count as reached.
EDGE_MS = 1e-3


class JobsOnGpus:
    """All jobs of a simulation: who runs where, since when and how fast, and what each has done.

    `truth` holds the jobs as they are.
    """

    def __init__(self, truth: JobBatch, cluster: Cluster, settings: SimulationSettings) -> None:
        n = len(truth)
        self.truth, self.settings, self.cluster = truth, settings, cluster
        self.unit_ms: FloatArray = truth.iteration_s * 1000
        self.total_ms: FloatArray = np.maximum(np.rint(truth.iterations * truth.iteration_s * 1000), 1.0)
        self.cost_ms: FloatArray = np.rint(settings.overheads.for_batch(truth) * 1000)
        self.state = np.zeros((n, 8))
        self.done_ms, self.rate, self.since_ms, self.hold_ms = (self.state[:, c] for c in (DONE, RATE, SINCE, HOLD))
        self.run_ms, self.service_ms, self.gpus_held = (self.state[:, c] for c in (RUN, SERVICE, GPUS))
        self.state[:, UNIT] = self.unit_ms
        self.overhead_ms, self.worked_ms = np.zeros(n), np.zeros(n)  # the two parts of `run_ms`
        self.safe_ms = np.zeros(n)  # work that survives a crash
        self.saves_as: IntArray = truth.column("checkpoints")  # `Checkpoints`
        self.rate[:] = 1.0
        self.free_ms = np.zeros(n)
        self.end_ms: FloatArray = np.full(n, math.inf)
        self.fail_ms: FloatArray = np.full(n, math.inf)
        self.stop_ms: FloatArray = np.full(n, math.inf)  # the earlier of the two
        # On links an elastic job with a fixed batch exchanges its gradients; elsewhere a model has all of its time.
        sized = truth if isinstance(settings.physics, Contends) else with_fixed_batches(truth)
        self.adaptive = adaptive_jobs(sized, settings, int(cluster.node_gpus.max()))
        self.moving = with_known_batches(sized, self.adaptive)  # what physics gets to see
        self.solo = np.ones(n)  # part of its solo speed that a running job gets
        self.ripe_ms: FloatArray = np.full(n, math.inf)  # when a job will have measured what it runs in
        self.retune_ms: FloatArray = np.full(n, math.inf)  # when a running job chooses its batch again
        self.is_running = np.zeros(n, dtype=np.int64)
        self.attempts = np.zeros(n, dtype=np.int64)
        self.last_node = np.full(n, -1, dtype=np.int64)
        self.running: IntArray = NO_JOBS
        self.groups: dict[int, Shared] = {}  # of jobs that share GPUs: the group they are in
        self.thinned: list[Shared] = []  # groups with a member that is being stopped, until the rest has its new pace
        physics = settings.physics
        self.usage = GpuFigures(n, cluster.gpus, physics) if isinstance(physics, MeasuresUsage) else None
        self.exchanged: NetworkFigures | None = None  # since the last report
        self.contends = physics if isinstance(physics, Contends) else None
        # From the first guest on, in place of `groups` and `thinned`; `touched`: GPUs whose jobs need a new pace.
        self.neighbours = Everyone() if self.contends else None if self.usage is None else GpuNeighbours()
        self.touched: set[int] = set()
        self.gpu_free_ms = np.zeros(cluster.gpus)
        self.where: dict[int, IntArray] = {}
        self.grants: dict[int, tuple[NetworkGrant, ...]] = {}  # memory of switches that running jobs have
        self.parked: dict[int, IntArray] = {}  # suspended jobs: the GPUs whose host memory they are in
        self.saves = bool(self.cost_ms[:, CHECKPOINT].any())
        self.repaced = False  # whether a running job has got a new pace since the last query
        self.now = 0.0

    # -- start and stop ---------------------------------------------------------------------------------

    def run_groups(self, groups: Groups) -> None:
        """Start the members that do not run yet and set the pace of all."""
        if groups.guest is not None or self.neighbours is not None:
            neighbours = self.neighbours = self.neighbours or self._touching()
            neighbours.put(groups)
            self._run(neighbours.around(groups.gpus), set(groups.jobs.tolist()))
            return
        if not groups.single or self.groups:
            # Record which jobs share GPUs
            for job in groups.jobs.tolist():
                self.groups.pop(job, None)
            first = groups.first_job
            for g in np.flatnonzero(first[1:] - first[:-1] > 1).tolist():
                shared = (groups, g)
                for job in groups.jobs[first[g] : first[g + 1]].tolist():
                    self.groups[job] = shared
        self._run(groups)

    def _run(self, groups: Groups, named: set[int] | None = None) -> None:
        """Set the pace of these groups and start new members; groups not `named` only if their pace changes."""
        jobs = groups.jobs
        if self.contends is not None:
            pace = self.contends.paces(self.moving, groups, self.cluster, self.grants)
            self.exchanged = self.contends.figures(self.moving, groups, self.cluster, self.grants)
        else:
            pace = self.settings.physics.iteration_s(self.moving, groups, self.cluster)
        if self.usage is not None:
            self.usage.measure(self.moving, groups, self.cluster, pace)
        speed = self.truth.iteration_s[jobs] / pace
        runs = self.is_running[jobs] == 1
        same = (runs & (speed == self.solo[jobs])).tolist()
        member, repaced, started = groups.group_of_member(), [], []
        for m, (job, already) in enumerate(zip(jobs.tolist(), runs.tolist(), strict=True)):
            if same[m] and named is not None and job not in named:
                continue
            repaced.append(m)
            if not already:
                g = member[m]
                self._start(job, groups.gpus[groups.first_gpu[g] : groups.first_gpu[g + 1]])
                started.append(job)
        self._repace(jobs[repaced], speed[repaced])
        if started:
            self.running = np.concatenate([self.running, np.array(started, dtype=np.int64)])
            self.running.sort()

    def _start(self, job: int, gpus: IntArray) -> None:
        begin = max(self.now, self.free_ms[job])
        if self.saves and not (self.neighbours is not None and self.neighbours.is_guest(job)):
            begin = max(begin, float(self.gpu_free_ms[gpus].max()))
        node = int(self.cluster.gpu_node[gpus[0]])
        parked = self.parked.pop(job, None)
        resumes = parked is not None and parked.tobytes() == gpus.tobytes()
        start_up = start_one(
            job, node, len(gpus), begin, RESUME_MS if resumes else math.inf, self.cost_ms, self.state,
            self.overhead_ms, self.attempts, self.last_node, self.is_running,
        )  # fmt: skip
        self.where[job] = gpus
        self.fail_ms[job] = math.inf
        if self.settings.job_mtbf_s < math.inf:
            after = time_to_failure_s(
                self.settings.seed, job, int(self.attempts[job]), self.settings.job_mtbf_s / len(gpus)
            )
            self.fail_ms[job] = begin + max(to_ms(after), 1.0)
        if self.adaptive is not None and self.adaptive.adapts[job]:
            nodes = len(np.unique(self.cluster.gpu_node[gpus]))
            done, speed = float(self.done_ms[job] / self.unit_ms[job]), self._speed(job, gpus)
            memory_bytes = float(self.cluster.node_gpu_memory_bytes[self.cluster.gpu_node[gpus]].min())
            self.adaptive.start(job, nodes, len(gpus), done, speed, memory_bytes)
            self.adaptive.note(job, begin / 1000)
            ripe = self.since_ms[job] + to_ms(self.settings.measure_s)
            self.ripe_ms[job] = math.inf if self.adaptive.knows(job) else ripe
            if self.attempts[job] > 1:
                self.adaptive.restarted(job, start_up / 1000)

    def _speed(self, job: int, gpus: IntArray) -> float:
        """Speed of a job that adapts on these GPUs without other jobs; 1 is the speed of its own throughput model."""
        alone = Groups(np.array([job]), gpus, np.array([0, len(gpus)]), np.array([0, 1]))
        pace = self.settings.physics.iteration_s(self.moving, alone, self.cluster)
        return float(self.truth.iteration_s[job] / pace[0])

    def _release(self, job: int, at: float, *, lost: bool, save: bool = True) -> float:
        """Take a job off its GPUs; returns the milliseconds it still holds them to save."""
        survives, on_stop = math.inf, self.saves_as[job] == ON_STOP
        if lost or (save and not on_stop and at < self.end_ms[job]):
            survives = self._saved(job, done_at(job, at, True, self.state))
        saving: float = leave_one(
            job, at, survives, save, save and not lost and bool(on_stop), self.cost_ms, self.state, self.overhead_ms,
            self.worked_ms, self.safe_ms, self.free_ms, self.end_ms, self.stop_ms, self.is_running,
        )  # fmt: skip
        self.fail_ms[job] = self.retune_ms[job] = math.inf
        gpus = self.where.pop(job)
        if saving and not (self.neighbours is not None and self.neighbours.is_guest(job)):
            self.gpu_free_ms[gpus] = at + saving
        if self.neighbours is not None:
            self._leave_neighbours(self.neighbours, job, gpus, at)
            return saving
        group = self.groups.pop(job, None)
        if group is not None and at > self.now:
            self.share_gpus(group, at)
        elif group is not None:
            self.thinned.append(group)
        return saving

    def _saved(self, job: int, begun: float) -> float:
        """Work of a job, of `begun` done, that survives a crash of its process; milliseconds alone."""
        if self.saves_as[job] == NEVER:
            return 0.0
        every = self.settings.checkpoint_every_s * 1000
        kept = 0.0 if every <= 0 or every == math.inf else math.floor(begun / every) * every
        return max(float(self.safe_ms[job]), kept)

    # -- who shares GPUs --------------------------------------------------------------------------------

    def share_gpus(self, shared: Shared, at: float) -> None:
        """Speed up the remaining members of a group at once when one leaves, before it is reported."""
        rest = self._rest(shared)
        if rest is None:
            return
        now, self.now = self.now, at
        self.run_groups(rest)
        self.now = now

    def _rest(self, shared: Shared) -> Groups | None:
        """The remaining members of a group; None if there are none."""
        groups, g = shared
        lo, hi = int(groups.first_job[g]), int(groups.first_job[g + 1])
        there = [m for m in range(lo, hi) if self.groups.get(int(groups.jobs[m])) is shared]
        if not there:
            return None
        stay = np.array(there, dtype=np.int64)
        gpus = groups.gpus[groups.first_gpu[g] : groups.first_gpu[g + 1]]
        return Groups(
            groups.jobs[stay],
            gpus,
            np.array([0, len(gpus)]),
            np.array([0, len(stay)]),
            None if groups.gate is None else groups.gate[g : g + 1],
            None if groups.details is None else groups.details[stay],
        )

    def _touching(self) -> GpuNeighbours:
        """All running groups, needed when the first guest arrives; from then on they replace `groups`."""
        neighbours = GpuNeighbours()
        for job in self.running.tolist():
            gpus = self.where[job]
            neighbours.put(Groups(np.array([job]), gpus, np.array([0, len(gpus)])))
        for shared in {id(one): one for one in self.groups.values()}.values():
            rest = self._rest(shared)
            if rest is not None:
                neighbours.put(rest)
        for groups, g in self.thinned:
            self.touched.update(groups.gpus[groups.first_gpu[g] : groups.first_gpu[g + 1]].tolist())
        self.groups.clear()
        self.thinned.clear()
        return neighbours

    def _leave_neighbours(self, neighbours: GpuNeighbours, job: int, gpus: IntArray, at: float) -> None:
        """Take a job off its GPUs; jobs sharing them get a new pace now, or together with other events at `at`."""
        others = neighbours.leave(job)
        if self.usage is not None:
            self.usage.clear(job, gpus)
        if not others:
            if self.contends is not None:  # nobody is left to measure
                nothing = np.zeros(0)
                self.exchanged = NetworkFigures(NO_JOBS, nothing, nothing, nothing)
            return
        if at <= self.now:
            self.touched.update(gpus.tolist())
            return
        now, self.now = self.now, at
        self.pace_around(neighbours, np.sort(gpus))
        self.now = now

    def pace_touched(self) -> None:
        """Update the pace of jobs that shared GPUs with others that have left."""
        if self.touched and self.neighbours is not None:
            touched, self.touched = self.touched, set()
            self.pace_around(self.neighbours, np.array(sorted(touched), dtype=np.int64))

    def pace_around(self, neighbours: GpuNeighbours, gpus: IntArray) -> None:
        """Update the pace of all jobs on these GPUs, ascending, and of all that share GPUs with them."""
        groups = neighbours.around(gpus)
        if len(groups):
            self._run(groups, set())

    # -- pace -------------------------------------------------------------------------------------------

    def _repace(self, jobs: IntArray, speed: FloatArray) -> None:
        """Let these jobs go on from now at another speed; 1 is that of a job alone."""
        if self.adaptive is not None:
            for job, solo in zip(jobs.tolist(), speed.tolist(), strict=True):
                self._settle(job, self.now)
                self.solo[job] = solo
                self._set_pace(job)
        elif len(jobs):
            self.repaced = True
            repace(
                jobs, speed, self.now, self.state, self.solo, self.worked_ms, self.total_ms, self.fail_ms, self.end_ms,
                self.stop_ms,
            )  # fmt: skip

    def _set_pace(self, job: int) -> None:
        """Let the job work at its rate from `since_ms` until it ends, fails or chooses another batch."""
        self.repaced = True
        rate = float(self.solo[job])
        adaptive = self.adaptive if self.adaptive is not None and self.adaptive.adapts[job] else None
        if adaptive is not None:
            rate *= float(adaptive.rate(job) * self.truth.iteration_s[job])
        left = math.ceil((self.total_ms[job] - self.done_ms[job]) / rate - 1e-6)
        self.rate[job] = rate
        self.end_ms[job] = end = self.since_ms[job] + max(left, 1)
        self.stop_ms[job] = stop = min(end, self.fail_ms[job])
        if adaptive is not None:
            work, retune = adaptive.level_ends(job) * self.unit_ms[job] - self.done_ms[job], self.ripe_ms[job]
            if work < math.inf:
                retune = min(retune, self.since_ms[job] + max(math.ceil(work / rate - 1e-6), 1))
            self.retune_ms[job] = retune if retune < stop else math.inf

    def _settle(self, job: int, at: float) -> None:
        """Book the work done until `at`, before the pace changes."""
        work = at - self.since_ms[job]
        if work > 0:
            self.done_ms[job] += work * self.rate[job]
            self.worked_ms[job] += work
            self.since_ms[job] = at

    def adapt_until(self, limit: float) -> bool:
        """Let jobs choose their batches again, in order of time, up to `limit` and the first end; whether any did."""
        adapted = False
        if self.adaptive is None:
            return adapted
        while True:
            at = earliest(self.running, self.retune_ms)
            if at == math.inf or at > min(limit, earliest(self.running, self.stop_ms)):
                return adapted
            adapted = True
            for job in due_by(self.running, self.retune_ms, at).tolist():
                self._adapt(self.adaptive, job, at)

    def _adapt(self, adaptive: AdaptiveJobs, job: int, at: float) -> None:
        """Let a job take another batch after a measurement or a change of its gradient noise."""
        self._settle(job, at)
        if self.ripe_ms[job] <= at:
            adaptive.measure(job)
            self.ripe_ms[job] = math.inf
        while adaptive.level_ends(job) * self.unit_ms[job] <= self.done_ms[job] + EDGE_MS:
            adaptive.pass_level(job)
        before = adaptive.key(job)
        adaptive.adapt(job)
        adaptive.note(job, at / 1000)
        if adaptive.key(job) != before:
            self.ripe_ms[job] = math.inf if adaptive.knows(job) else at + to_ms(self.settings.measure_s)
        self._set_pace(job)
