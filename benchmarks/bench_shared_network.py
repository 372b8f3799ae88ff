"""What aggregation and placement are worth to jobs that share a network: the tables of docs/explanation/network.md.

    python benchmarks/bench_shared_network.py [--quick] [--packets] [racks|wide|memory]

64 nodes of 4 GPUs in 8 racks, oversubscription 4, links of 25 Gb/s, 20,000 aggregators a switch; and eight jobs under
one switch with few. Figures of simulations, so the same on every machine. `--quick` takes 40 jobs of each trace,
`--packets` the default rates of `plait simulate`: two CPU seconds for each of some 50 sets of jobs of a simulation, and
40 CPU minutes for all tables.
"""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import common
import numpy as np

from plait import Cluster, JobBatch, JobSpec, make_policy, make_world, simulate
from plait.network.topology.read import networked
from plait.sim.contention.network import NetworkPhysics

BASE = "tiresias-l"
CLUSTER = "64x4@8"
NETWORK = "leaf-spine:oversubscription=4,link_gbps=25,aggregators=20000,aggregating=all"
DRAWN = "--preset philly_heavy --jobs 150 --gpus 256 --assign-models by_gpu_hours --deadlines 1.2,1.5,2,4"
#: Load of each trace by its seed; most of the work of these jobs is due after the last submission.
LOADS = {"1": "0.355023", "2": "0.309751", "3": "0.33", "4": "0.33", "5": "0.33"}
#: Quantile of Student's t for 95 % of the mean of so many traces.
STUDENT = 2.776
RACKS = (
    "", "placement=gpu-balance", "placement=netpack", "ina=switchml", "ina=switchml,placement=netpack", "ina=atp",
    "ina=atp,placement=netpack", "ina=inalloc", "ina=atp,routing=grid",
)  # fmt: skip
WIDE = (
    "", "ina=switchml,placement=netpack", "ina=inalloc,placement=netpack", "ina=atp,placement=netpack",
    "ina=switchml,placement=netpack,routing=grid", "ina=atp,placement=netpack,routing=grid",
)  # fmt: skip
#: Payload in bytes and levels of aggregation, in the order of the table's columns.
PACKETS = ((248, 1), (1024, 1), (248, 2), (1024, 2))
RATES = ("--rates", "auto" if "--packets" in sys.argv else "law")
MANAGERS = ("switchml", "atp", "a2tp", "esa", "inalloc", "inalloc/spare=others")


def plait(*words: str) -> str:
    """Standard output of a command."""
    command = [str(Path(sys.executable).parent / "plait"), *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def simulated(trace: Path, network: str, options: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Mean completion time over that without options, and missed deadlines, by the options of `BASE`."""
    policies = ",".join(f"{BASE}:{given}" if given else BASE for given in options)
    some = ["--jobs", "40"] if "--quick" in sys.argv else []
    found = json.loads(
        plait("simulate", str(trace), "-c", CLUSTER, "--network", network, "-p", policies, "--json", "-", *some, *RATES)
    )
    base_s = found[0]["avg_jct_s"]
    rows = zip(options, found, strict=True)
    return {given: (row["avg_jct_s"] / base_s, row["deadlines_missed"]) for given, row in rows}


def meant(found: Sequence[tuple[float, int]]) -> str:
    """The mean of ratios, with 95 % intervals if there are several, and all missed deadlines."""
    ratios, missed = np.array(found).T
    if len(found) == 1:
        return f"{ratios[0]:.2f}, {missed[0]:.0f}"
    half = STUDENT * ratios.std(ddof=1) / len(ratios) ** 0.5
    return f"{ratios.mean():.2f} ({ratios.mean() - half:.2f} to {ratios.mean() + half:.2f}), {missed.sum():.0f}"


def racks(folder: Path) -> None:
    """Production-like jobs on five drawn traces: means of the ratios with 95 % intervals, and all missed deadlines."""
    columns = []
    for seed, load in LOADS.items():
        trace = folder / f"racks-{seed}.csv"
        plait("trace", "generate", str(trace), *DRAWN.split(), "--seed", seed, "--load", load)
        columns.append(simulated(trace, NETWORK, RACKS))
    print(f"| `{BASE}` with | {' | '.join(LOADS)} | mean | missed |\n|---|---|---|---|---|---|---|---|")
    for given in RACKS:
        cells = [f"{column[given][0]:.2f}" for column in columns]
        cells += meant([column[given] for column in columns]).rsplit(", ", 1)
        print(f"| {f'`{given}`' if given else 'nothing'} | {' | '.join(cells)} |")


def redrawn(folder: Path, seed: int) -> Path:
    """The wide jobs for seed 1; for others as many drawn from them again, at random times of the same rate."""
    trace = common.ROOT / "examples" / "wide_jobs.csv"
    if seed == 1:
        return trace
    with trace.open() as file:
        jobs = list(csv.DictReader(file))
    rng, last_s = random.Random(seed), float(jobs[-1]["submit_s"])
    times_s = sorted(rng.uniform(0, last_s) for _ in jobs)
    rows = [
        {**job, "job_id": f"w{i}", "submit_s": round(at_s)}
        for i, (at_s, job) in enumerate(zip(times_s, rng.choices(jobs, k=len(jobs)), strict=True))
    ]
    drawn = folder / f"wide-{seed}.csv"
    with drawn.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(jobs[0]))
        writer.writeheader()
        writer.writerows(rows)
    return drawn


def wide(folder: Path) -> None:
    """Wide jobs with large models, by payload and levels: with two levels means of five traces."""
    columns = []
    for payload, levels in PACKETS:
        network = f"{NETWORK},payload={payload},levels={levels}"
        seeds = range(1, 6) if levels > 1 else [1]
        columns.append([simulated(redrawn(folder, seed), network, WIDE) for seed in seeds])
    heads = [f"{payload:,} bytes, {levels} level{'s' if levels > 1 else ''}" for payload, levels in PACKETS]
    print(f"\n| `{BASE}` with | {' | '.join(heads)} |\n|---|---|---|---|---|")
    for given in WIDE:
        cells = [meant([one[given] for one in column]) for column in columns]
        print(f"| {f'`{given}`' if given else 'nothing (rings)'} | {' | '.join(cells)} |")


def short_of_memory(aggregators: int = 700) -> None:
    """Eight jobs of four workers under one switch; two have little time, six have much."""
    slack = np.array([6, 6, 6, 1.6, 6, 6, 6, 1.6])
    alone_s = 400.0
    one = {"gpus": 16, "iterations": 1000, "iteration_s": alone_s / 1000, "gradient_bytes": 2e9}
    jobs = JobBatch.of(JobSpec(id=f"j{i}", deadline_s=alone_s * slack[i], **one) for i in range(len(slack)))
    cluster = networked(Cluster.parse("40x4"), f"single-switch:aggregators={aggregators}")
    world = replace(make_world("ideal"), physics=NetworkPhysics(rates=RATES[1]))
    print("\n| manager | missed | mean |\n|---|---|---|")
    base_s = 0.0
    for manager in MANAGERS:
        done = simulate(jobs, cluster, make_policy(f"fifo:ina={manager}"), world)
        end_s = done.controller.job_store.columns["end_s"][: len(slack)]
        base_s = base_s or float(end_s.mean())
        missed = int((end_s > alone_s * slack).sum())
        print(f"| `{manager}` | {missed} | {end_s.mean() / base_s:.2f} |", flush=True)


def main() -> None:
    """Simulate and print three tables."""
    some = {"racks", "wide", "memory"} & set(sys.argv) or {"racks", "wide", "memory"}
    with tempfile.TemporaryDirectory() as folder:
        if "racks" in some:
            racks(Path(folder))
        if "wide" in some:
            wide(Path(folder))
    if "memory" in some:
        short_of_memory()


if __name__ == "__main__":
    main()
