"""Groups by completion time against orders without groups and Muri's groups, with equal knowledge.

    PLAIT_DATA=folder-with-muri python benchmarks/bench_completion.py [--quick]

Prints the table of docs/explanation/completion.md: mean completion times in hours, of the first 500 jobs of Muri's
traces on 64 GPUs in rounds of 360 s, and the mean and worst ratio to the best of the first five. `--quick` takes the
first 100 jobs and one load.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import common
import numpy as np

from plait import Cluster, load_jobs, make_world
from plait.sim.studies.cases import Case, run_case
from plait.traces.formats.registry import read_trace
from plait.traces.synthetic import target_load

DATA = Path(os.environ.get("PLAIT_DATA", common.ROOT.parent / "shared" / "data")) / "muri"
QUICK = "--quick" in sys.argv
JOBS, LOADS = (100, (1.0,)) if QUICK else (500, (0.7, 1.0, 1.3))
TRACES = ("trace1", "trace3", "job_type_1")
#: Submitted at one time, so that it has no load.
AT_ONCE = "trace3_pr"
OTHERS = ("srtf", "srsf", "muri-s", "muri-s:guard=0.3", "muri-s:guard=0.6")
OURS = ("muri-s:guard=auto,order=lookahead", "plait:guests=0", "plait")


def main() -> None:
    """Print one row a trace and load, then the ratios."""
    if not DATA.is_dir():
        print(f"{DATA} is not here: Muri's traces; name their folder's parent in PLAIT_DATA", file=sys.stderr)
        return
    world, hardware = replace(make_world("plait"), round_s=360.0), Cluster.parse("8x8")
    policies = (*OTHERS, *OURS)
    print(f"| trace | load | {' | '.join(f'`{policy}`' for policy in policies)} | p99 | makespan |")
    print(f"|---|---:|{'---:|' * (len(policies) + 2)}")
    ratios, cpu_s = [], dict.fromkeys(policies, 0.0)
    for trace in (*TRACES, AT_ONCE):
        table = read_trace(str(DATA / f"{trace}.csv"), "muri").select(np.arange(JOBS))
        for load in LOADS if trace != AT_ONCE else ("-",):
            jobs = load_jobs(table if load == "-" else target_load(table, hardware.gpus, load)).jobs
            found = {}
            for policy in policies:
                begin = time.process_time()
                found[policy] = run_case(Case(trace, jobs, policy, hardware, world)).summary
                cpu_s[policy] += time.process_time() - begin
            mean_h = [float(found[policy]["avg_jct_s"]) / 3600 for policy in policies]
            best = min(OTHERS, key=lambda policy: float(found[policy]["avg_jct_s"]))
            ratios.append(np.array(mean_h) / min(mean_h[: len(OTHERS)]))
            against = [
                f"{float(found['plait'][name]) / float(found[best][name]) - 1:+.1%}"
                for name in ("p99_jct_s", "makespan_s")
            ]
            print(
                f"| {trace} | {load} | {' | '.join(f'{h:.1f}' for h in mean_h)} | {' | '.join(against)} |", flush=True
            )
            if trace == AT_ONCE:
                unbounded = run_case(Case(trace, jobs, "plait:bound_s=inf", hardware, world)).summary
                stops = {policy: found[policy]["preemptions"] for policy in (OTHERS[-1], "plait")}
    all_ratios = np.array(ratios)
    for what, figures in (("mean ratio", all_ratios.mean(axis=0)), ("worst ratio", all_ratios.max(axis=0))):
        print(f"| {what} | | {' | '.join(f'{ratio:.3f}' for ratio in figures)} | | |")
    print(f"| CPU seconds | | {' | '.join(f'{cpu_s[policy]:.0f}' for policy in policies)} | | |")
    mean_h = float(unbounded["avg_jct_s"]) / 3600
    print(f"\n{AT_ONCE}: {mean_h:.1f} h under `plait:bound_s=inf`; stopped jobs: {stops}")


if __name__ == "__main__":
    main()
