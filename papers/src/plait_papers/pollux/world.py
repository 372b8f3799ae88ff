"""The artifact's world for `plait simulate`: one run, with figures under the names of all of plait's results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plait.control.history import Timeline
from plait.control.metrics import RunResult, Value
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.version import __version__
from plait.sim.published import PublishedRun
from plait_papers.pollux.baselines import most_gpus, packed
from plait_papers.pollux.clock import GPUS_PER_NODE, NODES, PolluxRun
from plait_papers.pollux.clock import run as run_clock
from plait_papers.pollux.jobs import Job, PolluxJob
from plait_papers.pollux.settings import MEANINGS, SUMMARIES, TAKES, Setting, make_rule, read_setting
from plait_papers.pollux.tables import Measured
from plait_papers.pollux.workload import Submitted, Workload, load, read_jobs

PERCENTILE_RULE = "linear interpolation between sorted values"


class PolluxArtifact:
    """Pollux's released simulator (OSDI 2021, petuum/adaptdl, branch osdi21-artifact)."""

    summary = "Pollux's released simulator: 16 nodes of 4 GPUs, 60 s rounds, measured step times and noise"
    policies: Mapping[str, str] = SUMMARIES
    options: Mapping[str, str] = MEANINGS
    cluster = f"{NODES}x{GPUS_PER_NODE}"
    trace_format: str | None = None
    takes: tuple[str, ...] = ("data", "jobs")
    overheads: tuple[str, ...] = ()

    def check(self, policy: str) -> None:
        """Raise `InputError` if the policy or its options are not of this world."""
        read_setting(policy)

    def jobs(self, run: PublishedRun) -> int:
        _data(run)
        return len(read_jobs(run.trace, run.jobs))

    def run(self, run: PublishedRun, ended: Callable[[int], None] | None = None, **labels: Any) -> RunResult:
        """Simulate the run as the artifact does.

        `ended` is called with the number of ended jobs; `labels` go into the summary.
        """
        setting = read_setting(run.policy)
        workload = load(run.trace, _data(run), run.jobs)
        begin = time.process_time()
        done = simulate(workload, setting, ended)
        cpu_s = time.process_time() - begin
        summary: dict[str, Value] = {
            "trace": str(run.trace),
            "policy": run.policy,
            "world": run.world,
            **({"seed": setting.seed} if "seed" in TAKES[setting.policy] else {}),
            "cluster": f"{setting.nodes}x{GPUS_PER_NODE}",
            **figures(workload.jobs, done),
            "gpus": setting.nodes * GPUS_PER_NODE,
            "percentile_rule": PERCENTILE_RULE,
            "round_s": setting.interval,
            "interference": setting.interference,
            "cpu_s": round(cpu_s, 3),
            "version": __version__,
            **labels,
        }
        cluster, last_s = Cluster.parse(f"{setting.nodes}x{GPUS_PER_NODE}"), float(done.end_s.max())
        timeline = Timeline.empty(cluster, len(done.end_s), done.rounds, last_s)
        return RunResult(summary, columns(workload.jobs, done), {}, timeline)


def simulate(workload: Workload, setting: Setting, ended: Callable[[int], None] | None = None) -> PolluxRun:
    """One run of `workload` under `setting` in this world; `ended` as for `clock.run`."""
    return run_clock(workload, make_rule(setting, workload), setting.shape, ended)


def figures(jobs: tuple[Submitted, ...], done: PolluxRun) -> dict[str, Value]:
    """Figures of a run; times in seconds, percentiles interpolated, no figure rounded.

    `last_completion_s` counts from time 0, `makespan_s` from the first submission; `restarts` counts every start but
    the first of each job.
    """
    jct_s, n = done.jct_s, len(jobs)
    queue_s = jct_s - done.ran_s
    p50, p95, p99 = np.percentile(jct_s, (50, 95, 99)).tolist()
    found: dict[str, Value] = {
        "jobs": n,
        "finished": n,
        "failed": 0,
        "cancelled": 0,
        "refused": 0,
        "unfinished": 0,
        "avg_jct_s": float(jct_s.sum()) / n,
        "sum_jct_s": float(jct_s.sum()),
        "p50_jct_s": p50,
        "p95_jct_s": p95,
        "p99_jct_s": p99,
        "makespan_s": float(done.end_s.max() - done.submit_s.min()),
        "last_completion_s": float(done.end_s.max()),
        "avg_queue_s": float(queue_s.mean()),
        "max_queue_s": float(queue_s.max()),
        "restarts": int(done.restarts.sum()),
        "avg_restarts": float(done.restarts.mean()),
        "rounds": done.rounds,
        "events": done.rounds,
    }
    names = np.array([job.application.name for job in jobs])
    means = {name: float(jct_s[names == name].mean()) for name in sorted(set(names.tolist()))}
    return found | {f"avg_jct_s_{name}": mean for name, mean in means.items()}


def fairness(workload: Workload, done: PolluxRun, setting: Setting) -> dict[str, float]:
    """The largest finish-time fairness rho (Themis), and the share of jobs with one under 2.

    rho is the completion time over that of the job alone on 1/N of the GPUs, whole ones and at least one; N is the
    mean number of jobs that were there during its life.
    """
    kind: Callable[[int, Submitted, Measured], Job] = make_rule(setting, workload).kind
    rho = []
    for i, submitted in enumerate(workload.jobs):
        begin, end = done.submit_s[i], done.end_s[i]
        there = np.minimum(done.end_s, end) - np.maximum(done.submit_s, begin)
        others = float(np.maximum(there, 0.0).sum() / (end - begin))
        gpus = max(1, int(setting.nodes * GPUS_PER_NODE / others))
        measured = workload.measured[submitted.application.name]
        alone_s = isolated_s(kind, measured, submitted.batch, gpus, setting.interval)
        rho.append((end - begin) / alone_s)
    return {"worst_rho": float(max(rho)), "rho_under_2": sum(value < 2 for value in rho) / len(rho)}


@cache
def isolated_s(
    kind: Callable[[int, Submitted, Measured], Job], measured: Measured, batch: int, gpus: int, interval_s: int
) -> float:
    """Seconds of a job with `batch` alone on `gpus` packed GPUs, or as many as it can use.

    Depends on nothing else of a job, and takes long for one that fits itself: cached.
    """
    model = measured.application
    job = kind(0, Submitted(model.name, 0.0, model, gpus, batch), measured)
    most = job.most_gpus_ever if isinstance(job, PolluxJob) else most_gpus(job)
    job.place(0.0, packed(max(1, min(most, gpus))))
    now_s = 0.0
    while not job.done:
        job.advance(now_s, interval_s, 0.0)
        now_s += interval_s
    return job.end_s


def columns(jobs: tuple[Submitted, ...], done: PolluxRun) -> dict[str, Any]:
    """The per-job table under the names it has everywhere."""
    n = len(jobs)
    return {
        "number": np.arange(n),
        "id": np.array([job.name for job in jobs], dtype=object),
        "model": np.array([job.application.name for job in jobs], dtype=object),
        "gpus": np.array([job.gpus for job in jobs]),
        "submit_s": done.submit_s,
        "first_start_s": done.first_start_s,
        "end_s": done.end_s,
        "jct_s": done.jct_s,
        "queue_s": done.jct_s - done.ran_s,
        "run_s": done.ran_s,
        "attained_gpu_s": done.attained_gpu_s,
        "starts": done.restarts + 1,
        "state": np.full(n, "finished", dtype=object),
        "reason": np.full(n, "", dtype=object),
    }


def _data(run: PublishedRun) -> Path:
    if run.data is None:
        raise InputError(
            f"world {run.world} needs --data, the folder with the measurements: bert, cifar10, ... as in "
            "github.com/petuum/adaptdl, branch osdi21-artifact, simulator/traces"
        )
    return run.data
