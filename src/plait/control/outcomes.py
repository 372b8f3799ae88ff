"""Outcomes of jobs: one column a figure, one row a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from plait.control.history import Timeline
from plait.control.job_store import JobStore
from plait.control.step_functions import Steps
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jobs import JobBatch, Phase

#: `state` of a job as text: the phases, and "refused" for jobs that failed at submission.
STATES = (*(phase.name.lower() for phase in Phase), "refused")
_FINISHED, _REFUSED = int(Phase.FINISHED), len(Phase)


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Columns over all jobs of a run.

    `state` indexes `STATES`; `iteration_s` and `stage_s` are measured with the job alone; `work_gpu_s` is the useful
    work: iterations kept, times their time alone, times the requested GPUs. NaN where unknown, and for jobs that adapt
    their batch: at another size or batch an iteration is worth other GPU time, maybe less.
    """

    state: IntArray
    submit_s: FloatArray
    end_s: FloatArray
    gpus: IntArray
    run_s: FloatArray
    queue_s: FloatArray
    attained_gpu_s: FloatArray
    duration_s: FloatArray
    work_gpu_s: FloatArray
    iteration_s: FloatArray
    stage_s: FloatArray

    @property
    def finished(self) -> BoolArray:
        """Whether each job completed (jobs,)."""
        return np.equal(self.state, _FINISHED)

    @property
    def refused(self) -> BoolArray:
        """Jobs refused at submission."""
        return np.equal(self.state, _REFUSED)

    @property
    def jct_s(self) -> FloatArray:
        """Job completion time: from submission to completion; NaN for jobs that did not finish."""
        return np.where(self.finished, self.end_s - self.submit_s, math.nan)

    def slowdown(self, isolated: Isolated | None = None) -> FloatArray:
        """Completion time over the time alone on the requested GPUs, by own throughput where `isolated` knows it."""
        ratio = self.jct_s / self.duration_s
        if isolated is None:
            return ratio
        alone_s = isolated(np.where(self.finished, self.gpus.astype(np.float64), math.nan))
        return np.where(np.isnan(alone_s), ratio, self.jct_s / alone_s)


def outcomes(job_store: JobStore, timeline: Timeline, truth: JobBatch | None = None) -> Outcomes:
    """Per-job figures from the job store and the recorded spans.

    `truth` has the jobs as they are, by number, where the job store holds noisy estimates of them.
    """
    n = job_store.count
    columns = {name: column[:n] for name, column in job_store.columns.items()}
    state = columns["phase"].astype(np.int64)
    state[timeline.refused] = _REFUSED
    held = timeline.span_to_s - timeline.span_from_s
    iterations = columns["iterations"] if truth is None else truth.iterations[:n]
    iteration_s = columns["iteration_s"] if truth is None else truth.iteration_s[:n]
    finished = state == _FINISHED
    done = np.where(finished & ~np.isnan(iterations), iterations, columns["iterations_done"])
    total = np.where(finished & np.isnan(iterations), done, iterations)
    gpus = columns["gpus"].astype(np.int64)
    return Outcomes(
        state=state,
        submit_s=columns["submit_s"].copy(),
        end_s=columns["end_s"].copy(),
        gpus=gpus,
        run_s=_sums(timeline.span_job, held, n),
        queue_s=_sums(timeline.wait_job, timeline.wait_to_s - timeline.wait_from_s, n),
        attained_gpu_s=_sums(timeline.span_job, held * timeline.span_gpus, n),
        duration_s=total * iteration_s,
        work_gpu_s=np.where(columns["batch_size"] > 0, math.nan, done * iteration_s * gpus),
        iteration_s=iteration_s.copy(),
        stage_s=(columns["stage_s"] if truth is None else truth.stage_s[:n]).copy(),
    )


def _sums(job: IntArray, values: FloatArray, n: int) -> FloatArray:
    return np.bincount(job, weights=values, minlength=n).astype(np.float64)


#: Seconds (J,) that each job takes alone on so many GPUs (J,), for jobs whose speed is not in proportion to them;
#: otherwise NaN. Shares are real numbers, NaN for jobs that need no value.
Isolated: TypeAlias = Callable[[FloatArray], FloatArray]


def fairness(jobs: Outcomes, timeline: Timeline, isolated: Isolated | None = None) -> FloatArray:
    """Finish-time fairness of each finished job: time shared over time with an equal share (Themis, NSDI'20).

    `rho = JCT / (work / min(R / N, gpus))` with R the GPUs of the cluster, N the time-average number of active jobs
    over the job's life, work in GPU-seconds alone: `JCT / (duration * max(1, N * gpus / R))`. At most 1 for every job
    means that no job would be better off with a fixed share. Jobs that `isolated` knows are compared with their own
    time on R / N GPUs, which may be more than they request: `JCT / isolated(R / N)`.
    """
    alive = ~jobs.refused
    end_s = np.where(np.isnan(jobs.end_s), timeline.last_s, jobs.end_s)
    active = Steps.of(jobs.submit_s[alive], end_s[alive])
    life = np.maximum(end_s - jobs.submit_s, 1e-9)
    competitors = np.maximum((active.integral(end_s) - active.integral(jobs.submit_s)) / life, 1.0)
    share = np.maximum(competitors * jobs.gpus / timeline.cluster.gpus, 1.0)
    rho: FloatArray = jobs.jct_s / (jobs.duration_s * share)
    if isolated is None:
        return rho
    alone_s = isolated(np.where(jobs.finished, timeline.cluster.gpus / competitors, math.nan))
    return np.where(np.isnan(alone_s), rho, jobs.jct_s / alone_s)


def table(job_store: JobStore, jobs: Outcomes) -> Mapping[str, Any]:
    """The per-job table of reports and files, as columns in a stable order."""
    n = job_store.count
    columns = {name: column[:n] for name, column in job_store.columns.items()}

    def text(name: str) -> Any:
        parts = [batch.column(name) for _, batch in job_store.batches]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=object)

    return {
        "number": np.arange(n, dtype=np.int64),
        "id": text("id"),
        "user": text("user"),
        "project": text("project"),
        "model": text("model"),
        "gpus": jobs.gpus,
        "submit_s": jobs.submit_s,
        "first_start_s": columns["first_start_s"].copy(),
        "end_s": jobs.end_s,
        "jct_s": jobs.jct_s,
        "queue_s": jobs.queue_s,
        "run_s": jobs.run_s,
        "attained_gpu_s": jobs.attained_gpu_s,
        "duration_s": jobs.duration_s,
        "slowdown": jobs.slowdown(),
        "starts": columns["starts"].copy(),
        "preemptions": columns["preemptions"].copy(),
        "lost_s": columns["lost_s"].copy(),
        "failures": columns["failures"].copy(),
        "state": np.array(STATES, dtype=object)[jobs.state],
        "reason": columns["reason"].copy(),
    }
