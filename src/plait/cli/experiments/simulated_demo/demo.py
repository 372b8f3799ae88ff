"""Run the simulated demo: make two traces, simulate each comparison, print it, and write the report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plait.cli.connection import print_table
from plait.cli.experiments.simulated_demo.blocks import ADAPTIVE, BLOCKS, JOBS, NO_GUESTS, NO_PROFILES, Figures, Run
from plait.cli.render.progress import Bar
from plait.control.metrics import RunResult
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.report.html import write_html
from plait.report.tables import write_json
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world
from plait.traces.assign import assign_classes, assign_tenants
from plait.traces.canonical import write_canonical
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate
from plait.traces.table import TraceTable

#: Both have 64 GPUs; the second has the nodes on which the models of adaptive jobs were measured.
CLUSTERS = {JOBS: "8x8", ADAPTIVE: "16x4"}
SEED, COLUMNS = 1, 100
#: Jobs are submitted at 1.3 times the capacity, and none outlasts the last submission by more than six hours.
COUNT, LOAD, MAX_DURATION_S = 400, 1.3, 6 * 3600.0
ADAPTIVE_COUNT, ADAPTIVE_LOAD = 60, 0.7


def demonstrate_simulated(out: Path) -> None:
    """Print the blocks of the demo, and write traces, figures and report into `out`."""
    tables = traces()
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_canonical(table, out / name)
    print(
        f"{COUNT} jobs for 64 GPUs, most of them on 8 and none longer than {MAX_DURATION_S / 3600:g} h, submitted at "
        f"{LOAD:g} times the\ncapacity. Times are minutes; JCT is the time from submission to completion."
    )
    runs = list(dict.fromkeys(run for block in BLOCKS for run in block.runs))
    results: dict[Run, RunResult] = {}
    jobs = dict(batches(tables))
    with Bar("simulating", sum(len(jobs[name]) for _, name in runs)) as bar:
        for policy, name in runs:
            cluster = Cluster.parse(CLUSTERS.get(name, CLUSTERS[JOBS]))
            case = Case(name, jobs[name], policy, cluster, make_world("plait"), SEED)
            results[policy, name] = run_case(case, ended=bar.advance)
    guests = tables[JOBS]["job_class"] == "opportunistic"
    figures = {run: Figures.of(result, None if run[1] == ADAPTIVE else guests) for run, result in results.items()}
    for block in BLOCKS:
        print(f"\n{block.heading}")
        print_table(*block.table(figures), "")
        print(textwrap.fill(block.sentences(figures), COLUMNS))
    write_json(results.values(), out / "results.json")
    write_html(list(results.values()), out / "report.html", title="plait demo --simulate")
    print(f"\nOpen {(out / 'report.html').resolve()} in a browser; more figures are in {out / 'results.json'}.")
    print(f"Try your own policies: plait simulate {out / JOBS} --cluster {CLUSTERS[JOBS]} --policy srsf,themis")


def traces() -> dict[str, TraceTable]:
    """The traces of the demo by name: jobs of given sizes with models and classes, and jobs that adapt."""
    gpus = Cluster.parse(CLUSTERS[JOBS]).gpus
    table = generate("muri_like", COUNT, gpus, LOAD, SEED, models="uniform", max_duration_s=MAX_DURATION_S)
    table = assign_tenants(assign_classes(table, seed=SEED, opportunistic=0.5), seed=SEED, tenants=2)
    return {JOBS: table, ADAPTIVE: generate("pollux", ADAPTIVE_COUNT, gpus, ADAPTIVE_LOAD, SEED)}


def batches(tables: dict[str, TraceTable]) -> Iterator[tuple[str, JobBatch]]:
    """The jobs of every run by name: the traces', and jobs without profiles and without classes."""
    jobs = load_jobs(tables[JOBS]).jobs
    yield JOBS, jobs
    yield NO_PROFILES, jobs.replace(stage_s=np.full_like(jobs.stage_s, np.nan))
    columns = {name: column for name, column in tables[JOBS].columns.items() if name != "job_class"}
    yield NO_GUESTS, load_jobs(TraceTable(columns, tables[JOBS].meta)).jobs
    yield ADAPTIVE, load_jobs(tables[ADAPTIVE]).jobs
