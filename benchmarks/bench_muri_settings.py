"""What Muri's options change, and how its simulator fits the testbed's logs under other settings.

    PLAIT_DATA=folder-with-muri python benchmarks/bench_muri_settings.py [--quick] [--options | --testbed]

Prints the tables of docs/explanation/muri.md (`--options`: mean completion time in plait's own world over that of the
defaults) and of docs/explanation/muri-testbed.md (`--testbed`: simulated over logged, less 1). `--quick` takes the
first 100 jobs of each trace and leaves the logs out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import common
import numpy as np

from plait.core.arrays import FloatArray
from plait_papers.muri import testbed
from plait_papers.muri.artifact.engine import run
from plait_papers.muri.artifact.settings import read_setting
from plait_papers.muri.artifact.trace import STRETCH, ArtifactTrace, read
from plait_papers.muri.fair_world import simulate_own

DATA = Path(os.environ.get("PLAIT_DATA", common.ROOT.parent / "shared" / "data")) / "muri"
JOBS = 100 if "--quick" in sys.argv else None
OPTIONS: Mapping[str, str] = {
    "guard=0.3": "a group must be 30 % better than one of its members alone",
    "guard=off": "",
    "max_jobs=3": "",
    "max_jobs=2": "",
    "objective=speedup": "",
    "improve=on": "swap jobs between groups while the total efficiency increases",
    "method=consecutive": "no matching",
    "turns=worst": "",
}
TRACES = {"trace 1": "trace1", "trace 3": "trace3", "trace 3'": "trace3_pr"}
#: Whose jobs are compared with logs, in the order of the table of decisions and overhead.
LOGGED = ("SRTF", "SRSF", "Tiresias", "Muri-S", "Muri-L")


class SlowStart(ArtifactTrace):
    """The same jobs, each of whose starts takes ten seconds more."""

    @property
    def overhead_s(self) -> FloatArray:
        """Seconds for each job."""
        return super().overhead_s + 10


def options() -> None:
    """Mean completion time by option, relative to the defaults."""

    def mean_s(trace: str, policy: str) -> float:
        return float(simulate_own(str(DATA / f"{trace}.csv"), policy, JOBS)["avg_jct_s"])

    base = {trace: mean_s(trace, "muri-s") for trace in TRACES.values()}
    print(f"| option | {' | '.join(TRACES)} |\n|---|{'---:|' * len(TRACES)}")
    for option, meaning in OPTIONS.items():
        cells = [f"{mean_s(trace, f'muri-s:{option}') / base[trace]:.2f}" for trace in TRACES.values()]
        print(f"| `{option}`{f': {meaning}' if meaning else ''} | {' | '.join(cells)} |", flush=True)


def fit(
    trace: ArtifactTrace, name: str, more: str = "", round_s: float = testbed.ROUND_S, overhead: str = "at_start"
) -> tuple[float, float, float]:
    """Of one policy: the error of the mean and of the p99, and the median error of a job."""
    policy, log, _ = testbed.POLICIES[name]
    setting = read_setting(f"{policy}:{more}" if more else policy)
    result = run(trace, setting.policy, setting.options, round_s=round_s, overhead=overhead)  # type: ignore[arg-type]
    jct_s = result.end_s - result.submit_s
    logged_s = testbed.log(DATA / "testbed" / f"{log}-job.csv")["jct_s"]
    of_jobs = np.median(np.abs(jct_s / logged_s - 1))
    return jct_s.mean() / logged_s.mean() - 1, testbed.p99(jct_s) / testbed.p99(logged_s) - 1, float(of_jobs)


def percent(values: Sequence[float], sign: str = "+") -> str:
    """Values with one decimal, as in `+2.0, -1.5 %`."""
    return ", ".join(f"{value * 100:{sign}.1f}" for value in values) + " %"


def decisions(trace: ArtifactTrace) -> None:
    """When decisions are made, and who pays for starts when."""
    print("| decisions | overhead | mean JCT: SRTF, SRSF, Tiresias, Muri-S, Muri-L | median error of a job: the same |")
    print("|---|---|---|---|")
    for round_s in (0.0, testbed.ROUND_S):
        for overhead, text in (("every_event", "every event"), ("at_start", "at start")):
            fits = [fit(trace, name, round_s=round_s, overhead=overhead) for name in LOGGED]
            when = f"every {round_s:g} s" if round_s else "every event"
            text += " (as released)" if overhead == "every_event" and not round_s else ""
            print(
                f"| {when} | {text} | {percent([f[0] for f in fits])} | {percent([f[2] for f in fits], '')} |",
                flush=True,
            )


def changed(trace: ArtifactTrace) -> None:
    """Other traces and policies."""
    mistyped = np.array([m == "resnet18" and g == 32 for m, g in zip(trace.model, trace.gpus, strict=True)])
    stages = {"data_s": 0.712, "gpu_s": 0.111, "network_s": 0.093}
    corrected = {name: np.where(mistyped, value, getattr(trace, name)) for name, value in stages.items()}
    fields = {name: getattr(trace, name) for name in ArtifactTrace.__dataclass_fields__}
    rows: Mapping[str, tuple[ArtifactTrace, str, Sequence[str]]] = {
        "guard off": (trace, "unpack=off", ()),
        "plait's exact matching": (trace, "matching=exact", ()),
        "resnet18 on 32 GPUs corrected": (replace(trace, **corrected), "", ()),
        "durations of the trace as work": (
            replace(trace, iterations=trace.duration_s * STRETCH / trace.iteration_s), "", LOGGED[:3],
        ),
        "without the factor 1.015": (replace(trace, iteration_s=trace.iteration_s / STRETCH), "", LOGGED[:3]),
        "each start 10 s longer": (SlowStart(**fields), "", LOGGED[:3]),
    }  # fmt: skip
    print("\n| changed | mean JCT of Muri-S, Muri-L | p99 of Muri-L | mean JCT of SRTF, SRSF, Tiresias |")
    print("|---|---|---|---|")
    for what, (jobs, more, others) in rows.items():
        short, long = fit(jobs, "Muri-S", more), fit(jobs, "Muri-L", more)
        rest = percent([fit(jobs, name)[0] for name in others]) if others else ""
        print(f"| {what} | {percent([short[0], long[0]])} | {percent([long[1]])} | {rest} |", flush=True)


def main() -> None:
    """Simulate and print."""
    if not (DATA / "trace3.csv").is_file():
        sys.exit(f"no Muri traces in {DATA}; set PLAIT_DATA to the folder that has muri/trace3.csv")
    if "--testbed" not in sys.argv:
        options()
    if "--options" not in sys.argv and JOBS is None:
        trace = read(DATA / f"{testbed.TRACE}.csv")
        decisions(trace)
        changed(trace)


if __name__ == "__main__":
    main()
