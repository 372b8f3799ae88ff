"""The simulator is a backend: it yields what happens to jobs and nodes and carries out commands.

Time is whole milliseconds (held in floats, which are exact here), so equal times compare equal and a run is
a function of its inputs. Job time has three parts, and every millisecond a job holds its GPUs is in one:
  start-up   `hold_ms` to `since_ms`   launch, restore, migrate: GPUs held, no progress
  work       `since_ms` to `end_ms`    progress at `rate` solo-milliseconds a millisecond
  save       after a stop              GPUs held until the checkpoint is written; the next job waits for them
Each is charged once, to the job that starts or stops.

With `round_ms` > 0 the controller hears of arrivals and completions at the next round boundary and decides
there; jobs still end when they end. Boundaries at which nothing is new are skipped.

Jobs that adapt their batch (`adaptive.py`) change their rate at times of their own, of which nobody is told; what
they have learnt is reported at the next decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from plait.control.messages import (
    Adjust,
    Command,
    Event,
    GoodputReported,
    JobFailed,
    JobFinished,
    JobSubmitted,
    Launch,
    NodeJoined,
    NodeLost,
    ProgressReported,
    Refuse,
    ReplanDue,
    Stop,
    Wake,
)
from plait.core.arrays import NO_JOBS, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError
from plait.core.jit import kernel
from plait.core.jobs import JobBatch
from plait.core.plan import Groups
from plait.sim.adaptive import INTERVAL_S, AdaptiveJobs
from plait.sim.failures import NodeChange, time_to_failure_s
from plait.sim.overheads import CHECKPOINT, LAUNCH, MIGRATE, RESTORE, Overheads
from plait.sim.physics import Physics, StandardPhysics
from plait.sim.training import Training

NO_TIMES: FloatArray = np.zeros(0)

#: A group of some groups, by its index.
Shared: TypeAlias = tuple[Groups, int]

#: Instants without any progress, at which there could have been some, after which a run is declared stuck.
PATIENCE = 1000

#: Going on from host memory: Gandiva (OSDI 2018, section 4) reports about 100 ms for a suspend and resume.
RESUME_MS = 100.0

#: Work that an edge between two levels of gradient noise may be away and still count as reached.
EDGE_MS = 1e-3


#: columns of `Simulator.state`: what the monitors need to know of a job, together in memory
DONE, RATE, SINCE, HOLD, RUN, SERVICE, GPUS, UNIT = range(8)


@kernel
def measure(
    jobs: IntArray, now: float, running: IntArray, state: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Iterations done, GPU-seconds, run seconds and current iteration seconds of these jobs at `now`."""
    n = len(jobs)
    iterations, attained, ran, pace = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        j = jobs[i]
        work, held = state[j, DONE], 0.0
        pace[i] = math.nan
        if running[j] == 1:
            if now > state[j, SINCE]:
                work += (now - state[j, SINCE]) * state[j, RATE]
            if now > state[j, HOLD]:
                held = now - state[j, HOLD]
            pace[i] = state[j, UNIT] / state[j, RATE] / 1e3
        iterations[i] = work / state[j, UNIT]
        ran[i] = (state[j, RUN] + held) / 1e3
        attained[i] = (state[j, SERVICE] + held * state[j, GPUS]) / 1e3
    return iterations, attained, ran, pace


@kernel
def earliest(jobs: IntArray, at: FloatArray) -> float:
    """Smallest entry of `at` over these jobs; infinite if there are none."""
    best = math.inf
    for j in jobs:
        best = min(best, at[j])
    return best


@kernel
def due_by(jobs: IntArray, at: FloatArray, now: float) -> IntArray:
    """Those of these jobs whose entry of `at` is not after `now`."""
    out = np.empty(len(jobs), dtype=np.int64)
    n = 0
    for j in jobs:
        if at[j] <= now:
            out[n] = j
            n += 1
    return out[:n]


@kernel
def still(jobs: IntArray, flag: IntArray) -> IntArray:
    """Those of these jobs whose flag is set."""
    out = np.empty(len(jobs), dtype=np.int64)
    n = 0
    for j in jobs:
        if flag[j] == 1:
            out[n] = j
            n += 1
    return out[:n]


def to_ms(seconds: float) -> float:
    """Whole milliseconds, up; a hair below a whole one counts as it."""
    return float(math.ceil(seconds * 1000 - 1e-6)) if math.isfinite(seconds) else seconds


@dataclass(frozen=True)
class SimulationSettings:
    """What happens besides the jobs; times in seconds, 0 or infinite means never.

    `checkpoint_every_s`: work since the last periodic checkpoint is lost when a node or process dies.
    `job_mtbf_s`: mean GPU time between process failures, exponential.
    `training`: the truth of adaptive jobs; None takes what ships with plait for their models.
    `measure_s`: how long an adaptive job runs in a configuration until it has measured it; `profile_noise`: its step
    times are off by up to this share.
    """

    physics: Physics = field(default_factory=StandardPhysics)
    overheads: Overheads = field(default_factory=Overheads)
    round_s: float = 0.0
    checkpoint_every_s: float = 1800.0
    job_mtbf_s: float = math.inf
    seed: int = 0
    training: Training | None = None
    measure_s: float = INTERVAL_S
    profile_noise: float = 0.0


def adaptive_jobs(truth: JobBatch, settings: SimulationSettings) -> AdaptiveJobs | None:
    """The jobs that adapt their batch; None if none does, and the rest of the simulation need not look."""
    if not (truth.column("batch_size") > 0).any():
        return None
    training = Training.shipped(truth) if settings.training is None else settings.training
    if not training.adapts.any():
        return None
    return AdaptiveJobs(truth, training, noise=settings.profile_noise, seed=settings.seed)


def as_they_train(truth: JobBatch, adaptive: AdaptiveJobs | None) -> JobBatch:
    """The same jobs; those of whose adapting nothing is known have a fixed batch, as far as physics goes."""
    unknown = truth.column("batch_size") > 0
    if adaptive is not None:
        unknown &= ~adaptive.adapts
    if not unknown.any():
        return truth
    names = ("batch_size", "max_batch_size", "min_local_batch", "max_local_batch", "accumulates")
    return truth.replace(**{name: np.where(unknown, 0, truth.column(name)) for name in names})


class Simulator:
    """A cluster made of arithmetic; see the module docstring.

    `truth` holds the jobs as they are, sorted by submission; `reported` is what users and profiling say of
    them (the same by default). `node_changes` must be ordered by time.
    """

    def __init__(
        self,
        truth: JobBatch,
        cluster: Cluster,
        settings: SimulationSettings,
        reported: JobBatch | None = None,
        node_changes: Iterator[NodeChange] | None = None,
    ) -> None:
        """Check that every job has a known duration and that submissions are in order."""
        unknown = np.isnan(truth.iterations) | np.isnan(truth.iteration_s)
        if unknown.any():
            job = truth.id[int(np.argmax(unknown))]
            raise InputError(f"job {job!r} has no known duration; a simulation needs iterations and iteration_s")
        if (np.diff(truth.submit_s) < 0).any():
            raise InputError("jobs must be sorted by submit_s")
        n = len(truth)
        self.truth, self.reported, self.settings = truth, truth if reported is None else reported, settings
        self.cluster = cluster
        self.submit_ms: FloatArray = np.ceil(truth.submit_s * 1000 - 1e-6)
        self.unit_ms: FloatArray = truth.iteration_s * 1000
        self.total_ms: FloatArray = np.maximum(np.rint(truth.iterations * truth.iteration_s * 1000), 1.0)
        self.cost_ms: FloatArray = np.rint(settings.overheads.for_batch(truth) * 1000)
        self.state = np.zeros((n, 8))
        self.done_ms, self.rate, self.since_ms, self.hold_ms = (self.state[:, c] for c in (DONE, RATE, SINCE, HOLD))
        self.run_ms, self.service_ms, self.gpus_held = (self.state[:, c] for c in (RUN, SERVICE, GPUS))
        self.state[:, UNIT] = self.unit_ms
        self.overhead_ms, self.worked_ms = np.zeros(n), np.zeros(n)  # the two parts of `run_ms`
        self.safe_ms = np.zeros(n)  # work that survives a crash
        self.rate[:] = 1.0
        self.free_ms = np.zeros(n)
        self.end_ms: FloatArray = np.full(n, math.inf)
        self.fail_ms: FloatArray = np.full(n, math.inf)
        self.stop_ms: FloatArray = np.full(n, math.inf)  # the earlier of the two
        self.adaptive = adaptive_jobs(truth, settings)
        self.moving = as_they_train(truth, self.adaptive)  # what physics gets to see
        self.tells = True  # whether jobs report what they learn of themselves
        self.solo = np.ones(n)  # part of its solo speed that a running job gets
        self.ripe_ms: FloatArray = np.full(n, math.inf)  # when a job will have measured what it runs in
        self.turn_ms: FloatArray = np.full(n, math.inf)  # when a running job chooses its batch anew
        self.is_running = np.zeros(n, dtype=np.int64)
        self.attempts = np.zeros(n, dtype=np.int64)
        self.last_node = np.full(n, -1, dtype=np.int64)
        self.running: IntArray = NO_JOBS
        self.groups: dict[int, Shared] = {}  # of jobs that share GPUs: the group they are in
        self.thinned: list[Shared] = []  # groups that were told to stop somebody, until the rest has its new pace
        self.gpu_free_ms = np.zeros(cluster.gpus)
        self.where: dict[int, IntArray] = {}
        self.parked: dict[int, IntArray] = {}  # suspended jobs: the GPUs whose host memory they are in
        self.saves = bool(self.cost_ms[:, CHECKPOINT].any())
        self.round_ms = to_ms(settings.round_s)
        self.now = 0.0
        self.wake_ms = math.inf
        self.news_ms = math.inf  # when something was told between two rounds that needs a decision
        self.soonest = math.inf  # when the next running job completes or fails
        self.arrived = 0
        self.ended = 0
        self.instants, self.progress = 0, -1.0  # counted by `_check_progress`
        self.late: list[IntArray] = []  # jobs off their GPUs whose last figures are still to be reported
        self.node_changes: Iterator[NodeChange] = node_changes or iter(())
        self.next_change = next(self.node_changes, None)
        self.changed = False  # whether a node ever went down or came back

    # -- what happens -----------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """Everything that happens until the last job has ended."""
        while self.ended < len(self.truth):
            due = self._next_due()
            change = self.next_change
            if self._adapt_until(due if change is None else min(due, to_ms(change.at_s))):
                continue  # the end of some job has moved
            if change is not None and to_ms(change.at_s) <= due:
                yield from self._change_node(change)
            elif due < math.inf:
                yield from self._happened(due)
                yield self._replan_due()
            else:
                return  # jobs wait and nothing will ever happen: the caller knows their names and reasons
            self._check_progress()

    def _check_progress(self) -> None:
        """Count this instant; raises if nothing was done and nobody came at `PATIENCE` of them.

        While nothing runs and nodes that will change have no room for anybody, policies cannot do better than wait.
        """
        if self.next_change is not None and not len(self.running) and not self._room():
            return
        self.instants += 1
        if self.instants % PATIENCE == 0:
            self.progress = self._progress_since(self.progress)

    def _room(self) -> bool:
        """Whether the nodes that are up hold some job that waits, at the size it asks for; always if all are up."""
        cluster, truth = self.cluster, self.truth
        if cluster.node_up.all():
            return True
        waits = np.flatnonzero(self.done_ms[: self.arrived] < self.total_ms[: self.arrived])
        gpus = np.where(cluster.node_up, cluster.node_gpus, 0)
        fits = np.broadcast_to(gpus, (len(waits), len(gpus)))
        if truth.any_demands:
            for name, there in (("cpus", cluster.node_cpus), ("memory_bytes", cluster.node_memory_bytes)):
                per_gpu = (truth.column(name) / truth.gpus)[waits][:, None]
                with np.errstate(divide="ignore", invalid="ignore"):
                    fits = np.where(per_gpu > 0, np.minimum(fits, (there + 1e-6) // per_gpu), fits)
        masks = np.array([cluster.kind_mask(kinds) for kinds in truth.column("gpu_kinds")[waits]], dtype=np.int64)
        for kind in range(len(cluster.kinds)):
            gang = fits[:, cluster.node_kind == kind].sum(axis=1)
            if ((masks >> kind & 1 == 1) & (gang >= truth.gpus[waits])).any():
                return True
        return False

    def _progress_since(self, before: float) -> float:
        """Work done and jobs arrived so far; raises if they are what they were."""
        worked = np.maximum(self.now - self.since_ms[self.running], 0.0) * self.rate[self.running]
        now = float(self.done_ms.sum() + worked.sum()) + self.arrived
        if now == before:
            waiting = np.flatnonzero(self.done_ms[: self.arrived] < self.total_ms[: self.arrived])
            names = ", ".join(repr(str(self.truth.id[j])) for j in waiting[:10].tolist())
            raise SimulationError(
                f"no job made progress in {PATIENCE} decisions until {self.now / 1000} s: the policy runs none of "
                f"them, or stops them before their start-up is over; look at its quantum. Unfinished: {names}"
                + (f" and {len(waiting) - 10} more" if len(waiting) > 10 else "")
            )
        return now

    def _next_due(self) -> float:
        while self.thinned:
            self._share_on(self.thinned.pop(), self.now)
        self.soonest = earliest(self.running, self.stop_ms)
        due = min(self.soonest, self.wake_ms, self.news_ms)
        if self.arrived < len(self.submit_ms):
            due = min(due, self.submit_ms[self.arrived])
        due = max(due, self.now)
        if self.round_ms and due < math.inf:
            due = math.ceil(due / self.round_ms) * self.round_ms
        return float(due)

    def _happened(self, now: float) -> Iterator[Event]:
        """Bring the world to `now` and tell of it, in a fixed order."""
        finished, end_ms, failed = self._run_until(now)
        self.now = now
        jobs = self.running
        if len(finished) or len(failed) or self.late:
            jobs = np.concatenate([jobs, finished, failed, *self.late])
            if self.late:  # a job that saved may be running again by now
                jobs, self.late = np.unique(jobs), []
        at_s = now / 1000
        if len(jobs):
            yield self._progress(jobs, now)
        if len(finished):
            yield JobFinished(at_s, finished, end_ms / 1000)
        if len(failed):
            yield JobFailed(at_s, failed, "process failed")
        if self.adaptive is not None and self.adaptive.fresh and self.tells:
            yield GoodputReported(at_s, *self.adaptive.report())
        if self.arrived < len(self.submit_ms) and self.submit_ms[self.arrived] <= now:
            first, self.arrived = self.arrived, int(np.searchsorted(self.submit_ms, now, side="right"))
            last = self.arrived
            yield JobSubmitted(at_s, first, self.reported[first:last])

    def _replan_due(self) -> ReplanDue:
        """Ask for a decision now; wake-ups that were due are served by it."""
        self.news_ms = math.inf
        if self.wake_ms <= self.now:
            self.wake_ms = math.inf
        return ReplanDue(self.now / 1000)

    def _progress(self, jobs: IntArray, now: float) -> ProgressReported:
        figures = measure(jobs, now, self.is_running, self.state)
        return ProgressReported(now / 1000, jobs, *figures)

    def _run_until(self, now: float) -> tuple[IntArray, FloatArray, IntArray]:
        """End jobs that complete or fail by `now`: (finished, their ends in ms, failed)."""
        if self._adapt_until(now):
            self.soonest = earliest(self.running, self.stop_ms)
        if self.soonest > now:
            return NO_JOBS, NO_TIMES, NO_JOBS
        finished: list[int] = []
        ends: list[float] = []
        failed: list[int] = []
        while True:
            due = due_by(self.running, self.stop_ms, now)
            if not len(due):
                break
            if self.groups or self.adaptive:  # the pace of others may change before they end: one instant at a time
                due = due[self.stop_ms[due] == self.stop_ms[due].min()]
            if len(due) > 1:
                due = due[np.lexsort((due, self.stop_ms[due]))]
            # Read before anybody is released: when one member of a group ends, the others get a new pace.
            stops, crashes = self.stop_ms[due].tolist(), (self.fail_ms[due] < self.end_ms[due]).tolist()
            for job, at, crashed in zip(due.tolist(), stops, crashes, strict=True):
                self._release(job, at, lost=crashed, save=crashed)
                if crashed:
                    failed.append(job)
                else:
                    self.done_ms[job] = self.total_ms[job]
                    finished.append(job)
                    ends.append(at)
            self.running = still(self.running, self.is_running)
            self._adapt_until(now)
        self.ended += len(finished)
        return np.array(finished, dtype=np.int64), np.array(ends), np.array(sorted(failed), dtype=np.int64)

    def _adapt_until(self, limit: float) -> bool:
        """Let jobs choose their batches anew, in order of time, up to `limit` and the first end; whether any did."""
        adapted = False
        if self.adaptive is None:
            return adapted
        while True:
            at = earliest(self.running, self.turn_ms)
            if at == math.inf or at > min(limit, earliest(self.running, self.stop_ms)):
                return adapted
            adapted = True
            for job in due_by(self.running, self.turn_ms, at).tolist():
                self._adapt(self.adaptive, job, at)

    def _adapt(self, adaptive: AdaptiveJobs, job: int, at: float) -> None:
        """A job has measured itself or its gradient noise has changed: it may take another batch."""
        self._settle(job, at)
        if self.ripe_ms[job] <= at:
            adaptive.measure(job)
            self.ripe_ms[job] = math.inf
        while adaptive.level_ends(job) * self.unit_ms[job] <= self.done_ms[job] + EDGE_MS:
            adaptive.pass_level(job)
        before = adaptive.key(job)
        adaptive.adapt(job)
        if adaptive.key(job) != before:
            self.ripe_ms[job] = math.inf if adaptive.knows(job) else at + to_ms(self.settings.measure_s)
        self._set_pace(job)

    def _change_node(self, change: NodeChange) -> Iterator[Event]:
        now = to_ms(change.at_s)
        yield from self._happened(now)
        self.next_change = next(self.node_changes, None)
        index = self.cluster.index(change.node)
        if change.up and not self.cluster.up[index]:
            self.changed = True
            self.cluster = self.cluster.with_node(self.cluster.nodes[index])
            yield NodeJoined(now / 1000, self.cluster.nodes[index])
        elif not change.up and self.cluster.up[index]:
            self.changed = True
            yield from self._lose_node(index, now)
        # Even if the node was as it is said to be now, jobs may have come or gone in this very millisecond.
        if self.round_ms:
            self.news_ms = now
        else:
            yield self._replan_due()

    def _lose_node(self, index: int, now: float) -> Iterator[Event]:
        node = self.cluster.nodes[index].id
        self.cluster = self.cluster.without_node(node)
        hit = [j for j in self.running.tolist() if (self.cluster.gpu_node[self.where[j]] == index).any()]
        for job in hit:
            self._release(job, now, lost=True)
        for job, gpus in list(self.parked.items()):
            if (self.cluster.gpu_node[gpus] == index).any():
                del self.parked[job]
                self.done_ms[job] = self.safe_ms[job]
        self.running = still(self.running, self.is_running)
        if hit:
            yield self._progress(np.array(hit, dtype=np.int64), now)
        yield NodeLost(now / 1000, node)

    # -- what is done -----------------------------------------------------------------------------------

    def execute(self, command: Command) -> None:
        """Carry out a command now."""
        if isinstance(command, Stop):
            self._stop(command)
        elif isinstance(command, (Launch, Adjust)):
            self._run(command.groups)
        elif isinstance(command, Wake):
            self.wake_ms = max(to_ms(command.at_s), self.now + 1)
        elif isinstance(command, Refuse):
            self.ended += len(command.jobs)

    def _stop(self, command: Stop) -> None:
        for job in command.jobs.tolist():
            if not self.is_running[job]:
                continue
            gpus = self.where[job]
            if self._release(job, self.now, lost=not command.checkpoint, save=not command.suspend):
                self.late.append(np.array([job], dtype=np.int64))
            if command.suspend:
                self.parked[job] = gpus
        self.running = still(self.running, self.is_running)

    def _run(self, groups: Groups) -> None:
        """Start the members that do not run yet and set everybody's pace."""
        jobs = groups.jobs
        pace = self.settings.physics.iteration_s(self.moving, groups, self.cluster)
        if not groups.single or self.groups:
            self._regroup(groups)
        started = []
        for g in range(len(groups)):
            for m in range(int(groups.first_job[g]), int(groups.first_job[g + 1])):
                job = int(jobs[m])
                if self.is_running[job]:
                    self._settle(job, self.now)
                else:
                    self._start(job, groups.gpus[groups.first_gpu[g] : groups.first_gpu[g + 1]])
                    started.append(job)
                self.solo[job] = float(self.truth.iteration_s[job] / pace[m])
                self._set_pace(job)
        if started:
            self.running = np.concatenate([self.running, np.array(started, dtype=np.int64)])
            self.running.sort()

    def _regroup(self, groups: Groups) -> None:
        """Note who shares GPUs with whom."""
        for job in groups.jobs.tolist():
            self.groups.pop(job, None)
        first = groups.first_job
        for g in np.flatnonzero(first[1:] - first[:-1] > 1).tolist():
            shared = (groups, g)
            for job in groups.jobs[first[g] : first[g + 1]].tolist():
                self.groups[job] = shared

    def _set_pace(self, job: int) -> None:
        """From `since_ms` on the job works at its rate, until it ends, fails or chooses another batch."""
        rate = float(self.solo[job])
        adaptive = self.adaptive if self.adaptive is not None and self.adaptive.adapts[job] else None
        if adaptive is not None:
            rate *= float(adaptive.rate(job) * self.truth.iteration_s[job])
        left = math.ceil((self.total_ms[job] - self.done_ms[job]) / rate - 1e-6)
        self.rate[job] = rate
        self.end_ms[job] = end = self.since_ms[job] + max(left, 1)
        self.stop_ms[job] = stop = min(end, self.fail_ms[job])
        if adaptive is not None:
            work, turn = adaptive.level_ends(job) * self.unit_ms[job] - self.done_ms[job], self.ripe_ms[job]
            if work < math.inf:
                turn = min(turn, self.since_ms[job] + max(math.ceil(work / rate - 1e-6), 1))
            self.turn_ms[job] = turn if turn < stop else math.inf

    def _settle(self, job: int, at: float) -> None:
        """Book the work done until `at`, before the pace changes."""
        work = at - self.since_ms[job]
        if work > 0:
            self.done_ms[job] += work * self.rate[job]
            self.worked_ms[job] += work
            self.since_ms[job] = at

    def _start(self, job: int, gpus: IntArray) -> None:
        begin = max(self.now, self.free_ms[job])
        if self.saves:
            begin = max(begin, float(self.gpu_free_ms[gpus].max()))
        cost = self.cost_ms[job]
        start_up = cost[LAUNCH] if self.attempts[job] == 0 else cost[RESTORE]
        node = int(self.cluster.gpu_node[gpus[0]])
        parked = self.parked.pop(job, None)
        if parked is not None and np.array_equal(parked, gpus):
            start_up = min(start_up, RESUME_MS)
        elif self.attempts[job] and node != self.last_node[job]:
            start_up += cost[MIGRATE]
        self.attempts[job] += 1
        self.last_node[job] = node
        self.is_running[job] = 1
        self.gpus_held[job] = len(gpus)
        self.where[job] = gpus
        self.hold_ms[job] = begin
        self.since_ms[job] = begin + start_up
        self.overhead_ms[job] += start_up
        self.fail_ms[job] = math.inf
        if self.settings.job_mtbf_s < math.inf:
            after = time_to_failure_s(
                self.settings.seed, job, int(self.attempts[job]), self.settings.job_mtbf_s / len(gpus)
            )
            self.fail_ms[job] = begin + max(to_ms(after), 1.0)
        if self.adaptive is not None and self.adaptive.adapts[job]:
            nodes = len(np.unique(self.cluster.gpu_node[gpus]))
            done, speed = float(self.done_ms[job] / self.unit_ms[job]), self._speed(job, gpus)
            self.adaptive.start(job, nodes, len(gpus), done, speed)
            ripe = self.since_ms[job] + to_ms(self.settings.measure_s)
            self.ripe_ms[job] = math.inf if self.adaptive.knows(job) else ripe
            if self.attempts[job] > 1:
                self.adaptive.restarted(job, start_up / 1000)

    def _speed(self, job: int, gpus: IntArray) -> float:
        """How fast a job that adapts is on these GPUs with nobody beside it; 1 is as its own throughput says."""
        alone = Groups(np.array([job]), gpus, np.array([0, len(gpus)]), np.array([0, 1]))
        pace = self.settings.physics.iteration_s(self.moving, alone, self.cluster)
        return float(self.truth.iteration_s[job] / pace[0])

    def _release(self, job: int, at: float, *, lost: bool, save: bool = True) -> float:
        """Take a job off its GPUs; returns the milliseconds it still holds them to save."""
        worked = max(0.0, at - self.since_ms[job])
        self.overhead_ms[job] -= max(0.0, self.since_ms[job] - max(at, self.hold_ms[job]))
        self.worked_ms[job] += worked
        begun = self.done_ms[job] + worked * self.rate[job]
        saving = 0.0
        if lost:
            every = self.settings.checkpoint_every_s * 1000
            kept = 0.0 if every <= 0 or every == math.inf else math.floor(begun / every) * every
            begun = min(begun, max(self.safe_ms[job], kept))
        elif save and begun > self.safe_ms[job] and at < self.end_ms[job]:
            saving = float(self.cost_ms[job, CHECKPOINT])
        self.done_ms[job] = begun
        if save:
            self.safe_ms[job] = begun
        held = max(0.0, at - self.hold_ms[job]) + saving
        self.run_ms[job] += held
        self.overhead_ms[job] += saving
        self.service_ms[job] += held * self.gpus_held[job]
        self.is_running[job] = 0
        self.stop_ms[job] = self.end_ms[job] = self.fail_ms[job] = self.turn_ms[job] = math.inf
        gpus = self.where.pop(job)
        self.free_ms[job] = at + saving
        if saving:
            self.gpu_free_ms[gpus] = at + saving
        group = self.groups.pop(job, None)
        if group is not None and at > self.now:
            self._share_on(group, at)
        elif group is not None:
            self.thinned.append(group)
        return saving

    def _share_on(self, shared: Shared, at: float) -> None:
        """When somebody leaves a group, the others speed up at once, before anybody is told."""
        groups, g = shared
        lo, hi = int(groups.first_job[g]), int(groups.first_job[g + 1])
        stay = np.array([m for m in range(lo, hi) if self.groups.get(int(groups.jobs[m])) is shared], dtype=np.int64)
        if not len(stay):
            return
        gpus = groups.gpus[groups.first_gpu[g] : groups.first_gpu[g + 1]]
        rest = Groups(
            groups.jobs[stay],
            gpus,
            np.array([0, len(gpus)]),
            np.array([0, len(stay)]),
            None if groups.gate is None else groups.gate[g : g + 1],
            None if groups.details is None else groups.details[stay],
        )
        now, self.now = self.now, at
        self._run(rest)
        self.now = now
