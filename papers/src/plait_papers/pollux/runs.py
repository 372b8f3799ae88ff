"""Runs of the artifact's world as values, and how they are made."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait_papers.evaluation import Ended, Evaluation, file_hash
from plait_papers.pollux.autoscale import run_autoscaling
from plait_papers.pollux.settings import read_setting
from plait_papers.pollux.workload import Submitted, Workload, load, read_jobs, used
from plait_papers.pollux.world import fairness, figures, simulate

#: Begins the policy of a case of the autoscaling experiment.
AUTOSCALE = "autoscale "


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a workload file (its first `jobs` rows, `times` as many), the measurements, a policy with options."""

    workload: str
    data: str
    policy: str
    jobs: int | None = None
    times: float = 1.0


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run: its figures, completion times in the order of the file, and the CPU seconds it took."""

    figures: dict[str, Any]
    jct_s: list[float]
    cpu_s: float


def multiplied(jobs: tuple[Submitted, ...], times: float) -> tuple[Submitted, ...]:
    """`times` as many jobs, evenly over the file: job i comes floor((i+1) t) - floor(i t) times, at its own time.

    >>> [(i, math.floor((i + 1) * 0.5) - math.floor(i * 0.5)) for i in range(4)]
    [(0, 0), (1, 1), (2, 0), (3, 1)]
    """
    found = [
        replace(job, name=job.name if copy == 0 else f"{job.name}+{copy}")
        for i, job in enumerate(jobs)
        for copy in range(math.floor((i + 1) * times) - math.floor(i * times))
    ]
    if not found:
        raise InputError(f"{times:g} times {len(jobs)} jobs is no job; give a larger workload")
    return tuple(found)


def workload_of(case: Case) -> Workload:
    """The jobs of a case, and what was measured of them."""
    whole = load_once(case.workload, case.data, case.jobs)
    return replace(whole, jobs=multiplied(whole.jobs, case.times))


@cache
def load_once(workload: str, data: str, jobs: int | None) -> Workload:
    """`load` of the first `jobs` of `workload` with measurements in `data`, which take long to read: cached."""
    return load(workload, Path(data), jobs)


def run_case(case: Case, ended: Ended | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    begin = time.process_time()
    if case.policy.startswith(AUTOSCALE):
        scaled = run_autoscaling(case.policy.removeprefix(AUTOSCALE))
        return Done(scaled, [scaled["avg_jct_s"]], time.process_time() - begin)
    workload = workload_of(case)
    done = simulate(workload, read_setting(case.policy), ended)
    cpu_s = time.process_time() - begin
    found = figures(workload.jobs, done) | fairness(workload, done, read_setting(case.policy))
    return Done(found, done.jct_s.tolist(), cpu_s)


def _inputs(case: Case) -> dict[str, Any]:
    """The bytes of all that is read, and the setting."""
    if case.policy.startswith(AUTOSCALE):
        return {"policy": case.policy}
    names = used(read_jobs(case.workload, case.jobs))
    return {
        **asdict(case),
        "workload": file_hash(case.workload),
        "policy": read_setting(case.policy).text,
        "data": [file_hash(path) for name in names for path in sorted(Path(case.data, name).glob("*.csv"))],
    }


EVALUATION: Evaluation[Case, Done] = Evaluation(
    "pollux",
    run_case,
    Done,
    jobs=lambda case: len(workload_of(case).jobs),
    code=(
        *("plait.control", "plait.policies", "plait.sim", "plait_papers.pollux.autoscale"),
        *("plait.core", "plait.goodput", "plait.placement"),
        *(f"plait_papers.pollux.{name}" for name in ("baselines", "clock", "jobs", "pollux", "runs", "settings")),
        *(f"plait_papers.pollux.{name}" for name in ("tables", "workload", "world")),
    ),
    inputs=_inputs,
)
