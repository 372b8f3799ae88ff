"""The same experiments in plait's own world: one placement for all, rounds of 360 s, overheads at starts only.

Differences from the artifact's world (`engine`), for every policy alike:
  * decisions every 360 s, as on the authors' testbed, and not at each event
  * start-up time is charged once, to the job that starts or moves
  * gangs are consolidated on the minimum nodes; the artifact gives Tiresias GPUs without nodes
  * policies stop and move any job, as published (`plait.core.preemption.FREELY`)
  * four stages by formula (3); the artifact has three, and spreads the first over two of four slots
  * the first stage is storage for models that read from disk and CPU for models that simulate (an assumption)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from plait.control.metrics import UTILISATION
from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.preemption import FREELY
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs
from plait_papers.muri.artifact.trace import p99

ROUND_S = 360.0
PLACEMENT = "consolidated"
HARDWARE = "8x8"
#: Of `runs.Done.series`: parts of a run, and their figures.
PARTS = 100
OVER_TIME = ("queue_length", "blocking_index", *UTILISATION.values())

#: Bars of the figures as policies of plait. The continuous order of Muri-L is refreshed every hour while jobs wait:
#: ten times as often makes no job faster and restarts more. AntMan's backfill goes by durations, which the figure takes
#: for unknown.
POLICIES: Mapping[str, str] = {
    "SRTF": "srtf",
    "SRSF": "srsf",
    "Muri-S": "muri-s",
    "Tiresias": "tiresias-l:thresholds=3250/7200,within=running_first",
    "Themis": "themis",
    "AntMan": "antman:backfill=off",
    "Muri-L": "muri-l:quantum_s=3600",
    "worst ordering": "muri-l:quantum_s=3600,turns=worst",
    "no Blossom": "muri-l:quantum_s=3600,method=consecutive",
    "2 per group": "muri-l:quantum_s=3600,max_jobs=2",
    "3 per group": "muri-l:quantum_s=3600,max_jobs=3",
    "4 per group": "muri-l:quantum_s=3600",
}


@cache
def unreadable(trace: str) -> str:
    """Why a trace has no runs in plait's own world, such as a model without split data time; empty if it has."""
    try:
        read_trace(trace, "muri")
    except InputError as error:
        return str(error)
    return ""


def simulate_own(
    trace: str, policy: str, jobs: int | None = None, noise: float = 0.0, seed: int = 0,
    ended: Callable[[int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One run of the first `jobs` jobs of `trace` under `policy` as fields of `runs.Done`; the rest as for `runs.Case`.

    99th percentiles follow the artifact's rule, so that ratios compare.
    """
    table = read_trace(trace, "muri")
    if jobs is not None:
        table = table.select(np.arange(min(jobs, len(table))))
    world = replace(make_world("plait"), round_s=ROUND_S, profile_noise=noise)
    all_jobs, cluster = load_jobs(table).jobs, Cluster.parse(HARDWARE)
    case = Case(trace, all_jobs, policy, cluster, world, seed, placement=PLACEMENT, rule=FREELY)
    begin = time.process_time()
    result = run_case(case, ended=ended)
    cpu_s = time.process_time() - begin
    rows, summary = result.jobs, result.summary
    columns = {
        "row": rows["number"],
        "gpus": rows["gpus"],
        "submit_s": rows["submit_s"],
        "first_start_s": rows["first_start_s"],
        "end_s": rows["end_s"],
        "jct_s": rows["jct_s"],
        "attained_s": rows["run_s"],
        "starts": rows["starts"],
    }
    return {
        "avg_jct_s": float(summary["avg_jct_s"]),
        "makespan_s": float(summary["makespan_s"]),
        "p99_jct_s": p99(rows["jct_s"]),
        "avg_queue_length": float(rows["queue_s"].sum() / float(summary["span_s"])),
        "blocking_index_mean": float(summary["blocking_index_mean"]),
        "blocking_index_median": float(summary["blocking_index_median"]),
        "events": int(summary["events"]),
        "cpu_s": cpu_s,
        "columns": {name: column.tolist() for name, column in columns.items()},
        "series": {"at_s": _in_parts(result.series["to_s"] - result.series["from_s"][0])}
        | {name: _in_parts(result.series[name]) for name in OVER_TIME},
    }


def _in_parts(values: FloatArray) -> list[float]:
    """Means of as many neighbours each as leave `PARTS` of them; equal bins, so all count alike."""
    return [float(part.mean()) for part in np.array_split(values, min(PARTS, len(values)))]
