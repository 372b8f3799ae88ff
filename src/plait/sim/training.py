"""How adaptive jobs really train: true throughput and gradient noise, which neither policies nor jobs get to see.

An elastic job with a fixed batch is one of them here: its batch never changes, and has no noise
(`plait.goodput.fixed_batch`).

Simulated jobs that adapt: each measures itself, fits its throughput and chooses its batch, as a real one would.

A job knows of itself what it has measured on the configurations (nodes, GPUs, batch of a GPU) it has run in for
some time, and the gradient noise of the epoch it is in. It chooses its batch when it starts, when it has measured
a new configuration and when its noise has changed: between those its estimates stay the same, and so would its
choice. Until its first fit it runs at its initial batch.

What it measures is the time on the GPUs it has. A kind of GPU is faster or slower by one factor, so a job that moves to
another kind takes its measurements along by that factor: at any time its estimates are those for where it runs.

How long adaptive jobs would take alone on a fixed part of the cluster: the baseline of finish-time fairness.

On k GPUs such a job makes `best goodput / M0` iterations a second, at the batch that is best for the gradient noise
that it has then (Pollux, OSDI'21, section 3): more GPUs bring less each, and what they bring changes as it trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.goodput import LEAST_S, THETA, Estimate, shortage
from plait.core.jobs import JobBatch
from plait.goodput.batch import best_batch, best_batch_each, goodput
from plait.goodput.execution_plans import STEP_VOLUME, PlanSpace, plan_s, with_volume
from plait.goodput.fit import Measurements, fit
from plait.goodput.fixed_batch import UNIT, fit_sizes, is_fixed, scaled_to, true_scaling, with_fixed_batches
from plait.goodput.jobs import GoodputJobs
from plait.goodput.shipped import shipped
from plait.goodput.throughput import efficiency, gain, grad_s, step_s

#: Iterations done when a job reported, and its row of `Estimate`.
Report: TypeAlias = tuple[float, FloatArray]

#: A squared gradient norm that is estimated as zero or less counts as this: all the gradient is noise.
LEAST_SQR = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The truth of J jobs; rows of `theta` that are NaN belong to jobs that do not adapt.

    `ends[j]` are the iterations done at which each level of job j's gradient noise ends, `noise[j]` the levels, in
    examples: from one epoch to the next the noise jumps, within it stays.
    """

    theta: FloatArray
    ends: tuple[FloatArray, ...]
    noise: tuple[FloatArray, ...]

    @property
    def adapts(self) -> BoolArray:
        """(J,): which jobs adapt."""
        known: BoolArray = np.isfinite(self.theta.sum(axis=1))
        return known

    @classmethod
    def shipped(cls, jobs: JobBatch, per_node: int) -> Training:
        """The shipped truth for the models of these jobs; jobs without batch limits or of other models do not adapt.

        A job with more or fewer iterations than its model has goes through the same noise slower or faster. Elastic
        jobs with a fixed batch or an unknown model scale as their trace says, or as the prior does, from their time at
        the requested size on nodes of `per_node` GPUs. Jobs with plans do, too; those times are of ZeRO stage 0 in one
        pass, as if memory were no limit.
        """
        known, fixed, elastic = shipped(), is_fixed(jobs), _sized(jobs)
        theta = np.full((len(jobs), THETA), np.nan)
        ends, noise = [_NONE] * len(jobs), [_NONE] * len(jobs)
        for j in np.flatnonzero(jobs.column("batch_size") > 0).tolist():
            model = known.get(str(jobs.column("model")[j]))
            if model is not None and not fixed[j]:
                theta[j] = model.theta
                ends[j] = model.epoch_ends * (jobs.iterations[j] / model.iterations)
                noise[j] = model.noise.by_epoch(model.epochs)
            elif elastic[j]:
                theta[j], ends[j], noise[j] = true_scaling(jobs, j, per_node), _FOREVER, _NO_NOISE
        return cls(theta, tuple(ends), tuple(noise))

    @classmethod
    def reported(
        cls, jobs: JobBatch, reports: Sequence[Sequence[Report]], per_node: int, slower: FloatArray | None = None
    ) -> Training:
        """The truth as jobs have reported it: the last throughput, and all levels of gradient noise.

        `reports` has those of each job in order of its iterations done. A level of noise lasts until the next report,
        the first from the beginning and the last to the end. Jobs without reports do not adapt; elastic ones scale as
        the prior does. Iterations take `slower` (J,) times as long as reported. `per_node`: GPUs of a
        node.
        """
        fixed, elastic = is_fixed(jobs), _sized(jobs)
        theta = np.full((len(jobs), THETA), np.nan)
        ends, noise = [_NONE] * len(jobs), [_NONE] * len(jobs)
        for j in np.flatnonzero(jobs.column("batch_size") > 0).tolist():
            known = [(done, row) for done, row in reports[j] if np.isfinite(row[_USED]).all()]
            if fixed[j] or (elastic[j] and not known):
                theta[j], ends[j], noise[j] = true_scaling(jobs, j, per_node), _FOREVER, _NO_NOISE
                if known:
                    theta[j] = scaled_to(known[-1][1][:THETA], jobs.iteration_s[j], jobs.gpus[j], per_node)
            elif known:
                theta[j] = known[-1][1][:THETA]
                theta[j, : Estimate.GAMMA] *= 1.0 if slower is None else slower[j]
                ends[j] = np.array([*(done for done, _ in known[1:]), np.inf])
                sqr, var = np.array([row[[Estimate.SQR, Estimate.VAR]] for _, row in known]).T
                noise[j] = jobs.column("batch_size")[j] * np.maximum(var, 0.0) / np.maximum(sqr, LEAST_SQR)
        return cls(theta, tuple(ends), tuple(noise))


def _sized(jobs: JobBatch) -> BoolArray:
    """(J,): jobs whose speed is a model of their size: elastic ones, and those with plans."""
    rows: BoolArray = (jobs.column("min_gpus") < jobs.column("max_gpus")) | (jobs.column("parameters") > 0)
    return rows


_NONE: FloatArray = np.zeros(0)
_FOREVER, _NO_NOISE = np.array([np.inf]), np.zeros(1)
_USED = [*range(THETA), Estimate.SQR, Estimate.VAR]


def isolated_s(jobs: JobBatch, training: Training, cluster: Cluster, share: FloatArray) -> FloatArray:
    """Seconds (J,) of each job on `share` (J,) GPUs of its own, on as few nodes as they fit on, without start-up.

    NaN for jobs that do not adapt or cannot run, and where the share is NaN. A share below the fewest GPUs of the job
    gives it those for a part of the time, one between two numbers of GPUs both in turn; GPUs that would slow it down
    stay idle.
    """
    seconds, jobs = np.full(len(jobs), math.nan), with_fixed_batches(jobs)
    for job in np.flatnonzero(training.adapts & np.isfinite(share)).tolist():
        seconds[job] = _seconds(jobs, training, cluster, job, float(share[job]))
    return seconds


def _seconds(jobs: JobBatch, training: Training, cluster: Cluster, job: int, share: float) -> float:
    own = {name: int(jobs.column(name)[job]) for name in _LIMITS}
    least = own["min_gpus"]
    most = min(own["max_gpus"], own["max_batch_size"] // own["min_local_batch"], cluster.gpus)
    share = max(min(share, float(most)), 0.0)
    sizes = _sizes(least, share)
    memory_bytes = float(cluster.node_gpu_memory_bytes.max())
    speed = _speed(jobs, training, job, sizes, _nodes(cluster, sizes), memory_bytes)
    speed = np.maximum.accumulate(speed, axis=1)  # (levels, sizes)
    if share < least:
        rate = speed[:, 0] * share / least
    else:
        part = share - math.floor(share)
        rate = speed[:, -1] * part + speed[:, -2] * (1.0 - part) if part else speed[:, -1]
    if not rate.all():
        return math.nan
    ends = np.minimum(training.ends[job], jobs.iterations[job])
    ends[-1] = jobs.iterations[job]  # the last level lasts to the end
    return float((np.diff(ends, prepend=0.0) / rate).sum())


def _sizes(least: int, share: float) -> IntArray:
    """Numbers of GPUs to look at, rising: powers of two on the way, and the whole numbers around the share."""
    sizes = {least, max(least, math.floor(share)), max(least, math.ceil(share))}
    size = 1
    while size < share:
        sizes.add(max(size, least))
        size *= 2
    return np.array(sorted(sizes), dtype=np.int64)


def _nodes(cluster: Cluster, sizes: IntArray) -> IntArray:
    """The fewest nodes that have so many GPUs."""
    held = np.cumsum(np.sort(cluster.node_gpus)[::-1])
    nodes: IntArray = np.minimum(np.searchsorted(held, sizes), len(held) - 1) + 1
    return nodes


def _speed(
    jobs: JobBatch, training: Training, job: int, sizes: IntArray, nodes: IntArray, memory_bytes: float
) -> FloatArray:
    """Iterations at the initial batch a second, (levels of noise, sizes); `memory_bytes` of a GPU limit plans."""
    noise = training.noise[job]
    levels = len(noise)
    initial, most, least_local, most_local, accumulates = (
        np.full(levels, int(jobs.column(name)[job])) for name in _BATCH
    )
    row = np.broadcast_to(training.theta[job], (levels, training.theta.shape[1]))
    space = PlanSpace.of(lambda name: np.full(levels, int(jobs.column(name)[job])), memory_bytes)
    known = GoodputJobs(
        row, np.ones(levels), noise / initial, initial, most, least_local, most_local, accumulates > 0, space
    )
    speed: FloatArray = best_batch(known, nodes, sizes).goodput / initial[:, None]
    return speed


_BATCH = ("batch_size", "max_batch_size", "min_local_batch", "max_local_batch", "accumulates")
_LIMITS = ("min_gpus", "max_gpus", "max_batch_size", "min_local_batch")


#: A running job changes its batch if the predicted goodput is this many times higher; as in the published library.
HYSTERESIS = 1.05

#: Nodes, GPUs, batch of a GPU and ZeRO stage: what step times depend on.
Key = tuple[int, int, int, int]


#: Columns of what is recorded of jobs that adapt: seconds, examples a step, worth of one, noise scale in examples.
TRAINING_COLUMNS = ("job", "at_s", "gpus", "batch", "efficiency", "noise")


class AdaptiveJobs:
    """All adaptive jobs of a simulation, by number: their truth, their knowledge, their configuration."""

    def __init__(
        self, jobs: JobBatch, training: Training, *, per_node: int = 1, noise: float = 0.0, seed: int = 0
    ) -> None:
        """No job has run. Measured times are off by a factor U[1 - noise, 1 + noise], one for each job and key.

        `per_node`: GPUs of a node.
        """
        self.per_node, self.jobs = per_node, jobs
        n = len(jobs)
        self.training, self.adapts = training, training.adapts & (jobs.column("batch_size") > 0)
        self.fixed = is_fixed(jobs)
        self.requested = jobs.gpus, jobs.iteration_s  # known of a job with a fixed batch
        self.noise, self.seed = noise, seed
        self.estimates = np.full((n, len(Estimate)), np.nan)
        limits = (jobs.column(c) for c in ("batch_size", "max_batch_size", "min_local_batch", "max_local_batch"))
        initial, most, least_local, most_local = (np.where(self.adapts, column, 1) for column in limits)
        accumulates = jobs.column("accumulates") != 0
        #: what each job believes; its `theta`, `sqr` and `var` change as it learns
        self.known = GoodputJobs(
            np.full((n, THETA), np.nan), np.zeros(n), np.ones(n), initial, most, least_local, most_local, accumulates,
            PlanSpace.of(jobs.column),
        )  # fmt: skip
        self.speed = np.full(n, np.nan)  # of the GPUs that each job has or had last; NaN: none yet
        self.nodes, self.gpus = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.local, self.passes = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.stage = np.zeros(n, dtype=np.int64)  # of ZeRO; changes only when a job starts
        self.level = np.zeros(n, dtype=np.int64)  # of the gradient noise
        self.profiles: dict[int, dict[Key, tuple[float, float]]] = {}  # seconds on GPUs of speed 1
        self.sure: set[int] = set()  # jobs whose estimates are the truth, so they need no measurements
        self.history: list[tuple[float, ...]] = []  # rows of `TRAINING_COLUMNS`
        self.fresh: set[int] = set()  # jobs with new measurements since the last report

    def note(self, job: int, at_s: float) -> None:
        """Record the batch of a job whose batch may change, its noise, and what an example is worth."""
        if not self.fixed[job]:
            batch = self.gpus[job] * self.local[job] * (self.passes[job] + 1)
            initial, noise = self.known.initial[job], self.training.noise[job][self.level[job]]
            worth = float(efficiency(1.0, noise / initial, batch / initial))
            self.history.append((job, at_s, int(self.gpus[job]), int(batch), worth, float(noise)))

    def recorded(self) -> dict[str, FloatArray]:
        """What `note` recorded, by `TRAINING_COLUMNS`."""
        rows = np.array(self.history, dtype=np.float64).reshape(-1, len(TRAINING_COLUMNS))
        return dict(zip(TRAINING_COLUMNS, rows.T, strict=True))

    def start(
        self, job: int, nodes: int, gpus: int, done: float, speed: float = 1.0, memory_bytes: float = np.inf
    ) -> None:
        """The job starts on these GPUs, of this speed and memory, with so many iterations done.

        Raises `InputError` if no plan of the job fits into the memory.
        """
        before, self.speed[job] = self.speed[job], speed
        if np.isfinite(before) and before != speed:
            times = slice(0, int(Estimate.GAMMA))
            self.known.theta[job, times] = np.maximum(self.known.theta[job, times] * before / speed, LEAST_S)
            if job in self.profiles:
                self.estimates[job, :THETA] = self.known.theta[job]
                self.fresh.add(job)
        if self.known.plans is not None:
            self.known.plans.memory_bytes[job] = memory_bytes
        self.nodes[job], self.gpus[job] = nodes, gpus
        self.level[job] = min(int(np.searchsorted(self.training.ends[job], done, side="right")), self._last(job))
        self._see_noise(job)
        choice = best_batch_each(self.known[job], [nodes], [gpus])
        if not choice.local[0] and (own := self.jobs[job].batch) and (lacks := shortage(own, gpus, memory_bytes)):
            raise InputError(f"job {self.jobs.id[job]!r}: {lacks}")
        self.stage[job] = choice.stage[0]
        self._take(job, choice.local[0], choice.passes[0])

    def trust(self, estimates: FloatArray) -> None:
        """Let jobs with a given truth know all of it; they have reported these estimates (J, `Estimate`)."""
        self.estimates[:] = estimates
        self.known.theta[:] = self.training.theta
        self.sure.update(np.flatnonzero(self.adapts).tolist())

    def _last(self, job: int) -> int:
        return len(self.training.ends[job]) - 1

    def _see_noise(self, job: int) -> None:
        """Update the gradient noise that the job knows, once it has a fit; before, it has no statistics."""
        if job in self.profiles or job in self.sure:
            self.known.sqr[job] = 1.0
            self.known.var[job] = self.training.noise[job][self.level[job]] / self.known.initial[job]
            self.estimates[job, [Estimate.SQR, Estimate.VAR]] = self.known.sqr[job], self.known.var[job]
            self.fresh.add(job)

    def _take(self, job: int, local: int, passes: int) -> None:
        """Run with this batch; with more GPUs than the batch can use, each takes its minimum."""
        self.local[job], self.passes[job] = (local, passes) if local else (self.known.least_local[job], 0)

    def key(self, job: int) -> Key:
        """The configuration that the job runs in."""
        return int(self.nodes[job]), int(self.gpus[job]), int(self.local[job]), int(self.stage[job])

    def rate(self, job: int) -> float:
        """Iterations at the initial batch that the job really makes in a second."""
        nodes, gpus, local, stage = self.key(job)
        passes, initial = int(self.passes[job]), self.known.initial[job]
        noise = self.training.noise[job][self.level[job]]
        steps_s = plan_s(self.training.theta[job], stage, nodes, gpus, local, passes)
        return float(gain(1.0, noise / initial, gpus * local * (passes + 1) / initial) / steps_s)

    def knows(self, job: int) -> bool:
        """Whether the job has measured the configuration that it runs in."""
        return job in self.sure or self.key(job) in self.profiles.get(job, ())

    def level_ends(self, job: int) -> float:
        """Iterations done when the job's gradient noise changes next; infinite if it will not."""
        level = int(self.level[job])
        return float(self.training.ends[job][level]) if level < self._last(job) else np.inf

    def measure(self, job: int) -> None:
        """Fit the job's throughput again: it has run long enough in this configuration to know its step time."""
        key = *at, stage = self.key(job)
        theta, volume = self.training.theta[job], STEP_VOLUME[stage]
        off = self._off(job, at)
        step = step_s(theta if volume == 1.0 else with_volume(theta, volume), *at)
        times = float(grad_s(theta, at[2])) * off, float(step) * off
        profile = self.profiles.setdefault(job, {})
        profile[key] = times
        columns = np.array([(*k[:3], *v) for k, v in profile.items()]).T
        columns[3:] /= self.speed[job]
        if self.fixed[job]:
            gpus, seconds = (float(column[job]) for column in self.requested)
            nodes, local = math.ceil(gpus / self.per_node), math.ceil(UNIT / gpus)
            seconds *= self._off(job, (nodes, int(gpus), local))
            sizes = {(nodes, int(gpus)): seconds / self.speed[job]}
            sizes |= {(int(n), int(k)): s for n, k, _, _, s in columns.T.tolist()}
            self.known.theta[job] = fit_sizes(sizes)
        else:
            ns, ks, ms, grads, steps = columns
            volumes = np.array([STEP_VOLUME[stage] for *_, stage in profile])
            self.known.theta[job] = fit(Measurements(ns, ks, ms, grads, steps, volumes), self.known.theta[job])
        self.estimates[job, :THETA] = self.known.theta[job]
        self.estimates[job, Estimate.PROFILED_GPUS] = max(gpus for _, gpus, *_ in profile)
        self._see_noise(job)

    def _off(self, job: int, at: Sequence[int]) -> float:
        """The factor by which what the job measures with (nodes, GPUs, batch of a GPU) is off."""
        if not self.noise:
            return 1.0
        return float(np.random.default_rng((self.seed, 0x57E9, job, *at)).uniform(1 - self.noise, 1 + self.noise))

    def pass_level(self, job: int) -> None:
        """Enter the next level of gradient noise."""
        self.level[job] += 1
        self._see_noise(job)

    def adapt(self, job: int) -> None:
        """Choose the batch again, under the same stage; a gain below `HYSTERESIS` does not justify a change."""
        own, stage = self.known[job], int(self.stage[job])
        if own.plans is not None:
            own.plans.zero_stage[:] = stage
        nodes, gpus = [self.nodes[job]], [self.gpus[job]]
        choice = best_batch_each(own, nodes, gpus)
        now = goodput(own, nodes, gpus, [self.local[job]], [self.passes[job]], stage=stage)
        if choice.goodput[0] > HYSTERESIS * now[0]:
            self._take(job, choice.local[0], choice.passes[0])

    def restarted(self, job: int, seconds: float) -> None:
        """Record the measured cost of a restart of the job."""
        self.estimates[job, Estimate.RESTART_S] = seconds
        self.fresh.add(job)

    def report(self) -> tuple[IntArray, FloatArray]:
        """Jobs with new measurements since the last report, and their current estimates."""
        jobs = np.array(sorted(self.fresh), dtype=np.int64)
        self.fresh.clear()
        return jobs, self.estimates[jobs]
