"""Runs of the artifact's world as values, and how they are made."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait_papers.evaluation import Ended, Evaluation, file_hash
from plait_papers.muri.artifact.settings import read_setting
from plait_papers.muri.artifact.trace import PERCENTILE_RULE, read
from plait_papers.muri.fair_world import OVER_TIME, PARTS, simulate_own
from plait_papers.muri.noise_model import noisy

GPUS = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a trace file (its first `jobs` rows), a policy with options, and what is not as released.

    `noise` n lets the policy see stage times off by a factor U[1-n, 1+n], drawn with `seed`; speeds stay true.
    In the world `plait` (see `own`) the policy is one of plait's catalog, and of the rest `jobs`, `noise` and `seed`
    count.
    """

    trace: str
    policy: str
    jobs: int | None = None
    round_s: float = 0.0
    overhead: Literal["every_event", "at_start"] = "every_event"
    noise: float = 0.0
    seed: int = 0
    world: Literal["artifact", "plait"] = "artifact"


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run: figures in seconds, one entry a job in the columns, in the order of the trace.

    `series`: means over equal parts of the run, ending at `at_s`; utilisations only in the world `plait`.
    """

    avg_jct_s: float
    makespan_s: float
    p99_jct_s: float
    avg_queue_length: float
    blocking_index_mean: float
    blocking_index_median: float
    events: int
    cpu_s: float
    columns: dict[str, list[float]]
    series: dict[str, list[float]] = field(default_factory=dict)

    @property
    def jobs(self) -> int:
        """How many jobs there were; all have finished."""
        return len(self.columns["jct_s"])

    @property
    def starts_per_job(self) -> float:
        """Starts of all jobs over their number."""
        return sum(self.columns["starts"]) / self.jobs


def run_case(case: Case, ended: Ended | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    if case.world == "plait":
        return Done(**simulate_own(case.trace, case.policy, case.jobs, case.noise, case.seed, ended))
    from plait_papers.muri.artifact.engine import run

    trace = read(case.trace, case.jobs)
    setting = read_setting(case.policy)
    begin = time.process_time()
    result = run(
        trace,
        setting.policy,
        setting.options,
        ended=None if ended is None else partial(_more, ended, [0]),
        round_s=case.round_s,
        overhead=case.overhead,
        seen=noisy(trace, case.noise, case.seed) if case.noise else None,
    )
    columns = {
        "row": trace.row,
        "gpus": trace.gpus,
        "submit_s": result.submit_s,
        "first_start_s": result.first_start_s,
        "end_s": result.end_s,
        "jct_s": result.jct_s,
        "attained_s": result.attained_s,
        "starts": result.starts,
    }
    return Done(
        result.mean_jct_s,
        result.makespan_s,
        result.p99_jct_s,
        result.mean_queue,
        result.mean_blocking,
        result.median_blocking,
        result.events,
        time.process_time() - begin,
        {name: column.tolist() for name, column in columns.items()},
        _series(result.event_s, result.queue, result.blocking),
    )


def _series(at_s: FloatArray, queue: IntArray, blocking: FloatArray) -> dict[str, list[float]]:
    """What waits, by samples that hold until the next one; the artifact records nothing else."""
    ends_s = np.linspace(at_s[0], at_s[-1], PARTS + 1)
    parts = {"at_s": ends_s[1:]}
    for name, values in zip(OVER_TIME, (queue, blocking), strict=False):
        area = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(at_s))])
        parts[name] = np.diff(np.interp(ends_s, at_s, area)) / max(ends_s[1] - ends_s[0], 1e-9)
    return {name: values.tolist() for name, values in parts.items()}


def _more(ended: Callable[[int], None], before: list[int], done: int) -> None:
    """From jobs ended so far to jobs ended since."""
    ended(done - before[0])
    before[0] = done


def _inputs(case: Case) -> dict[str, Any]:
    """The bytes of the trace, and the setting."""
    policy = case.policy if case.world == "plait" else read_setting(case.policy).text
    return {**asdict(case), "trace": file_hash(case.trace), "policy": policy}


@cache
def count_jobs(trace: str, jobs: int | None) -> int:
    return len(read(trace, jobs))


EVALUATION: Evaluation[Case, Done] = Evaluation(
    "muri",
    run_case,
    Done,
    jobs=lambda case: count_jobs(case.trace, case.jobs),
    code=(
        *(f"plait_papers.muri.{name}" for name in ("artifact", "fair_world", "noise_model", "runs")),
        *(f"plait.{name}" for name in ("core", "control", "grouping", "placement", "policies", "sim", "traces")),
    ),
    inputs=_inputs,
)


def summary_of(done: Done) -> dict[str, Any]:
    """The figures under the names that all of plait's results have."""
    return {
        "jobs": done.jobs,
        "finished": done.jobs,
        "failed": 0,
        "cancelled": 0,
        "refused": 0,
        "unfinished": 0,
        "avg_jct_s": done.avg_jct_s,
        "p99_jct_s": done.p99_jct_s,
        "makespan_s": done.makespan_s,
        "avg_queue_length": done.avg_queue_length,
        "blocking_index_mean": done.blocking_index_mean,
        "blocking_index_median": done.blocking_index_median,
        "avg_restarts": done.starts_per_job - 1,
        "gpus": GPUS,
        "percentile_rule": PERCENTILE_RULE,
        "events": done.events,
    }
