"""The simulator against the authors' 64-GPU testbed: the same trace, and the testbed's logs.

The real prototype decides every 360 s and pays for starts when they happen, always; so the runs here have rounds,
and overhead is charged when a job starts or its group or its nodes change. As released, the simulator charges it
at every event instead, which at every round would slow groups by up to a fifth (docs/explanation/muri-testbed.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.traces.formats.simulators import read_testbed
from plait_papers.muri import published
from plait_papers.muri.artifact.trace import p99
from plait_papers.muri.compare import Folder
from plait_papers.muri.runs import Case, Done

TRACE = "cluster_trace"
ROUND_S = 360.0
#: Name in the tables -> (policy, its log, the Muri its ratio is to).
POLICIES: Mapping[str, tuple[str, str, str]] = {
    "SRTF": ("srtf", "SRTF", "Muri-S"),
    "SRSF": ("srsf", "SRSF", "Muri-S"),
    "Muri-S": ("muri-s", "Muri-S", "Muri-S"),
    "Tiresias": ("tiresias", "tiresias", "Muri-L"),
    "Themis": ("themis", "themis", "Muri-L"),
    "Muri-L": ("muri-l", "Muri-L", "Muri-L"),
}
FIGURES = ("avg_jct_s", "makespan_s", "p99_jct_s", "queue_length")
CLOSE = 0.05
"""The goal: mean completion time and makespan this close to the logged ones."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One figure of one policy: simulated, published, and our ratio to Muri (None over an empty queue) and theirs.

    `interval` and `paper_interval` hold 95 % of the ratio over draws of the jobs; None where it is none of jobs, or
    the logs are not there.
    """

    policy: str
    metric: str
    ours: float
    published: float
    ratio: float | None
    paper_ratio: float
    interval: tuple[float, float] | None = None
    paper_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Simulated against logged: relative differences of the averages, and the spread over single jobs."""

    policy: str
    avg_jct: float
    makespan: float
    p99_jct: float
    run_time: float
    job_p10: float
    job_median: float
    job_p90: float
    within: bool


def missing(folder: Folder, *, logs: bool) -> list[str]:
    """Files the comparison needs that are not there."""
    wanted = [f"{TRACE}.csv", *(f"testbed/{log}-job.csv" for _, log, _ in POLICIES.values() if logs)]
    return [name for name in wanted if not (folder.path / name).is_file()]


def cases(folder: Folder) -> dict[str, Case]:
    """The run of each policy."""
    return {
        name: folder.case(TRACE, policy, round_s=ROUND_S, overhead="at_start")
        for name, (policy, _, _) in POLICIES.items()
    }


def table_rows(folder: Folder, done: Mapping[Case, Done]) -> list[TableRow]:
    """Tables 4 and 5 of the paper, and the mean queue of figure 8."""
    runs = {name: done[case] for name, case in cases(folder).items()}

    def ours(name: str, metric: str) -> float:
        return float(getattr(runs[name], "avg_queue_length" if metric == "queue_length" else metric))

    def theirs(name: str, metric: str) -> float:
        cell = published.cell("8" if metric == "queue_length" else "tables", TRACE, name, metric)
        assert cell is not None, (name, metric)
        return cell.value

    jct_s = {name: np.array(run.columns["jct_s"]) for name, run in runs.items()}
    logged_s = {} if missing(folder, logs=True) else {name: _logged(folder, name)["jct_s"] for name in POLICIES}
    return [
        TableRow(
            name,
            metric,
            ours(name, metric),
            theirs(name, metric),
            ours(name, metric) / ours(muri, metric) if ours(muri, metric) else None,
            theirs(name, metric) / theirs(muri, metric),
            interval(jct_s[name], jct_s[muri], metric),
            interval(logged_s[name], logged_s[muri], metric) if logged_s else None,
        )
        for metric in FIGURES
        for name, (_, _, muri) in POLICIES.items()
    ]


#: Draws of the jobs with replacement, for intervals.
DRAWS = 1000


def interval(over_s: FloatArray, under_s: FloatArray, metric: str) -> tuple[float, float] | None:
    """The middle 95 % of a ratio of completion times (jobs,), over draws of the same jobs for both.

    It is what another 400 jobs of this kind would change, not the chance of a run: the simulator has none. None for
    figures that are not of single jobs.
    """
    if metric not in ("avg_jct_s", "p99_jct_s") or len(over_s) != len(under_s):
        return None
    drawn = np.random.default_rng(0).integers(0, len(over_s), (DRAWS, len(over_s)))
    over, under = (t[drawn].mean(axis=1) if metric == "avg_jct_s" else np.percentile(t[drawn], 99, axis=1)
                   for t in (over_s, under_s))  # fmt: skip
    low, high = np.percentile(over / under, [2.5, 97.5])
    return float(low), float(high)


def error_rows(folder: Folder, done: Mapping[Case, Done]) -> list[ErrorRow]:
    """How far each simulated run is from its log."""
    return [errors(name, done[case], _logged(folder, name)) for name, case in cases(folder).items()]


def _logged(folder: Folder, name: str) -> dict[str, FloatArray]:
    return log(folder.path / "testbed" / f"{POLICIES[name][1]}-job.csv")


def log(path: Path) -> dict[str, FloatArray]:
    """Columns of a log, in order of job: `jct_s`, `end_s`, `run_s`."""
    table = read_testbed(path)
    try:
        order = np.argsort([int(job) for job in table["job_id"]], kind="stable")
    except ValueError:
        raise InputError(f"{path}: job_id is not a number; give the logs of Muri's artifact") from None
    names = {"jct_s": "x_jct_s", "end_s": "observed_end_s", "run_s": "x_run_s"}
    return {ours: np.asarray(table[theirs], dtype=np.float64)[order] for ours, theirs in names.items()}


def errors(name: str, done: Done, logged: Mapping[str, FloatArray]) -> ErrorRow:
    """One row of errors, named `name`, of a `done` run against columns `logged`, which must have its jobs."""
    if len(logged["jct_s"]) != done.jobs:
        raise InputError(f"the log of {name} has {len(logged['jct_s'])} jobs, the trace {done.jobs}")
    jct_s, run_s = np.array(done.columns["jct_s"]), np.array(done.columns["attained_s"])
    low, middle, high = np.percentile(jct_s / logged["jct_s"] - 1, [10, 50, 90])
    avg = done.avg_jct_s / float(logged["jct_s"].mean()) - 1
    makespan = done.makespan_s / float(logged["end_s"].max()) - 1
    tail_s = p99(logged["jct_s"])
    return ErrorRow(
        name,
        avg,
        makespan,
        done.p99_jct_s / tail_s - 1,
        float(run_s.sum() / logged["run_s"].sum()) - 1,
        float(low),
        float(middle),
        float(high),
        abs(avg) <= CLOSE and abs(makespan) <= CLOSE,
    )
