"""Orders by predicted durations between those that know durations and those that know nothing, on recurring work.

    python benchmarks/bench_prediction.py [--quick]

Prints the tables of docs/explanation/prediction.md: mean completion times in hours of 600 jobs of the preset
`recurring` on 64 GPUs with measured overheads, means of three seeds a load, and what part of the gap between nothing
and exact knowledge prediction closes. Then prints how good predictions at submission are. `--quick` takes 200 jobs, one
load and one seed.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from plait import Cluster, load_jobs, make_world
from plait.control.job_store import JobStore
from plait.policies.kinds import LEVELS, Kinds
from plait.sim.studies.cases import Case, run_case
from plait.traces.synthetic import generate

QUICK = "--quick" in sys.argv
JOBS, SEEDS, LOADS = (200, (0,), (1.0,)) if QUICK else (600, (0, 1, 2), (0.7, 1.0, 1.3))
EXACT, PREDICTED, NOTHING = POLICIES = ("srsf", "srsf:knows=predicted", "tiresias-l")


def main() -> None:
    """Print one row a load, then one a level of the predictions."""
    world, hardware = make_world("plait"), Cluster.parse("8x8")
    print(f"| load | {' | '.join(f'`{policy}`' for policy in POLICIES)} | closed | by seed | stops a job |")
    print(f"|---:|{'---:|' * (len(POLICIES) + 3)}")
    cpu_s = dict.fromkeys(POLICIES, 0.0)
    for load in LOADS:
        jct_s, stops = np.zeros((len(SEEDS), len(POLICIES))), 0
        for i, seed in enumerate(SEEDS):
            jobs = load_jobs(generate("recurring", JOBS, hardware.gpus, load, seed)).jobs
            for k, policy in enumerate(POLICIES):
                begin = time.process_time()
                summary = run_case(Case("recurring", jobs, policy, hardware, world)).summary
                cpu_s[policy] += time.process_time() - begin
                jct_s[i, k] = float(summary["avg_jct_s"])
                stops += int(summary["preemptions"]) if policy == PREDICTED else 0
        print(row(load, jct_s, stops / JOBS / len(SEEDS)), flush=True)
    print(f"| CPU seconds | {' | '.join(f'{cpu_s[policy]:.0f}' for policy in POLICIES)} | | | |\n")
    for line in predictions():
        print(line)


def row(load: float, jct_s: np.ndarray, stops: float) -> str:
    """A row of the first table; `jct_s` has shape (seeds, policies)."""
    closed = [(nothing - predicted) / (nothing - exact) for exact, predicted, nothing in (jct_s.mean(axis=0), *jct_s)]
    figures = [f"{hours:.2f}" for hours in jct_s.mean(axis=0) / 3600] + [f"{closed[0]:.0%}"]
    figures += [", ".join(f"{part:.0%}" for part in closed[1:]), f"{stops:.2f}"]
    return f"| {load} | {' | '.join(figures)} |"


def predictions() -> list[str]:
    """How far medians at submission are off, and how often durations are between the quartiles, by closest kind.

    Jobs end in the order of submission here, each before the next: it is the best that a predictor can have.
    """
    found: list[tuple[int, float, bool]] = []
    for seed in SEEDS:
        batch = load_jobs(generate("recurring", JOBS, 64, 1.0, seed)).jobs
        store, kinds = JobStore(), Kinds()
        store.append(batch, 0.0)
        took_s = batch.iterations * batch.iteration_s
        for i in range(len(batch)):
            mine = store.columns["kinds"][i : i + 1]
            left = kinds.lives(mine, np.zeros(1))
            low, median, high = (float(left.quantile_s(share)[0]) for share in (0.25, 0.5, 0.75))
            off = abs(np.log(took_s[i] / median))
            found.append((int(kinds.ends(mine)[0, 0]), float(off), low <= took_s[i] <= high))
            kinds.add(mine, took_s[i : i + 1])
    lines = ["| closest kind that has ended | jobs | within 25 % | off by, median | between the quartiles |"]
    lines.append("|---|---:|---:|---:|---:|")
    for level, name in enumerate(LEVELS):
        rows = [one for one in found if one[0] == level]
        if rows:
            off = np.array([one[1] for one in rows])
            inside = np.mean([one[2] for one in rows])
            lines.append(
                f"| {name} | {len(rows) / len(found):.0%} | {np.mean(off < np.log(1.25)):.0%} | "
                f"{np.exp(np.median(off)):.2f} x | {inside:.0%} |"
            )
    return lines


if __name__ == "__main__":
    main()
