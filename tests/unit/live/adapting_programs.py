"""Simulated processes of jobs whose batch adapts: they measure themselves, fit, choose their batch and say so."""

import math
from dataclasses import dataclass, field
from typing import Any

from plait.core.goodput import Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.live.protocol.wire import PREEMPTED, Adaptive, Run
from plait.sim.training import AdaptiveJobs, Training
from plait.testing.fleet import Disk, Process, Program


@dataclass
class Model:
    """A job as its checkpoints know it: how far it is and what it has learnt of itself, in seconds of the clock.

    Its processes all act alike, so what they do is worked out here once: `advance` is what the job does until then.
    """

    spec: JobSpec
    training: Training
    interval_s: float
    jobs: AdaptiveJobs = field(init=False)
    progress: float = 0.0
    steps: float = 0.0
    at_s: float = 0.0
    look_s: float = math.inf
    epoch: int = 0
    first_s: float | None = None
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs = AdaptiveJobs(JobBatch.of([self.spec]), self.training)

    def begin(self, run: Run, now_s: float, start_s: float) -> None:
        if run.epoch != self.epoch:
            self.epoch, self.at_s, self.look_s, self.first_s = run.epoch, now_s + start_s, now_s + start_s, None
            self.look_s += self.interval_s
            self.sizes.append(run.world)
            self.jobs.start(0, -(-run.world // run.local_world), run.world, self.progress)

    def advance(self, now_s: float) -> None:
        """Train until now; its batch is looked at once an interval."""
        assert self.spec.iterations is not None
        while self.at_s < now_s and self.progress < self.spec.iterations:
            until = min(now_s, self.look_s, self.at_s + (self.spec.iterations - self.progress) / self.rate)
            self.progress += (until - self.at_s) * self.rate
            self.steps += (until - self.at_s) / self.step_s
            if self.first_s is None:
                self.first_s = self.at_s + self.step_s
            if self.spec.iterations - self.progress < 1e-9:
                self.progress = self.spec.iterations
            self.at_s = until
            if until >= self.look_s:
                self.look_s = until + self.interval_s
                if not self.jobs.knows(0):
                    self.jobs.measure(0)
                self.jobs.adapt(0)

    @property
    def batch_size(self) -> float:
        return float(self.jobs.gpus[0] * self.jobs.local[0] * (self.jobs.passes[0] + 1))

    @property
    def rate(self) -> float:
        return self.jobs.rate(0)

    @property
    def step_s(self) -> float:
        known = self.jobs
        phi = float(self.training.noise[0][known.level[0]]) / known.known.initial[0]
        gain = (phi + 1) / (phi / (self.batch_size / known.known.initial[0]) + 1)
        return float(gain) / self.rate


@dataclass(frozen=True)
class Adapting(Program):
    """A program whose processes go by a `Model`; `start_s` from the start of a process to its first iteration."""

    model: Model | None = None
    start_s: float = 0.0

    def process(self, run: Run, disk: Disk, pid: int, now_s: float) -> Process:
        return AdaptingProcess(run, self, disk, pid, now_s)


class AdaptingProcess(Process):
    """One rank; all ranks of an attempt do the same."""

    def __init__(self, run: Run, program: Adapting, disk: Disk, pid: int, now_s: float) -> None:
        super().__init__(run, program, disk, pid, now_s)
        assert program.model is not None
        self.model = program.model
        self.model.begin(run, now_s, program.start_s)

    def steps(self, now_s: float) -> float:
        """Steps of the optimizer; one that has ended made no more."""
        return math.floor(self.model.steps)

    def said(self, now_s: float) -> dict[str, Any]:
        """What its page says."""
        model, known = self.model, self.model.jobs.estimates[0]
        estimate = [None if math.isnan(x) else float(x) for x in known]
        estimate[Estimate.RESTART_S] = None
        assert model.spec.batch is not None
        limits = model.spec.batch
        words = Adaptive(
            model.progress,
            model.spec.iterations,
            model.batch_size,
            estimate,
            [limits.initial, limits.most, limits.least_local, limits.most_local, int(limits.accumulation)],
        )
        first_s = None if model.first_s is None else model.first_s - self.began_s
        saves = "yes" if first_s else "no_boundary"
        return {"step_s": model.step_s if first_s else None, "adaptive": words, "first_step_s": first_s, "saves": saves}

    def advance(self, now_s: float) -> None:
        if self.ended_s is not None or self.run.epoch != self.model.epoch:
            return
        self.model.advance(min(now_s, self.stop_s))
        if self.model.progress == self.model.spec.iterations:
            self.end(self.model.at_s, 0, None)
        elif now_s >= self.stop_s + self.program.stop_s:
            self._save(int(self.model.steps), now_s)
            self.end(self.stop_s + self.program.stop_s, PREEMPTED, None)
