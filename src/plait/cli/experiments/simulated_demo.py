"""Run the simulated demo: make two traces, simulate each comparison, print it, and write the report."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plait.cli.connection import print_table
from plait.cli.render.console import Bar
from plait.control.metrics import RunResult
from plait.core.arrays import BoolArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.policies.catalog import rows
from plait.report.html import write_html
from plait.report.tables import write_json
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world
from plait.traces.assign import assign_classes, assign_tenants
from plait.traces.canonical import write_canonical
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate
from plait.traces.table import TraceTable

#: Files of jobs; and the jobs of the first without something, by what the table then adds to the policy.
JOBS, ADAPTIVE = "jobs.csv", "adaptive.csv"
NO_PROFILES, NO_GUESTS = "no stage profiles", "no guests"

Run = tuple[str, str]
"""A policy, and its jobs: one of the names above."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run: seconds, and the share of GPU time that is held."""

    mean_s: float
    p99_s: float
    last_s: float
    held: float
    guaranteed_s: float
    opportunistic_s: float

    @classmethod
    def of(cls, result: RunResult, opportunistic: BoolArray | None) -> Figures:
        """Figures of `result`; `opportunistic`: which of its jobs are (n,), None for jobs without classes."""
        one = {
            name: float(result.summary[name]) for name in ("avg_jct_s", "p99_jct_s", "makespan_s", "gpu_utilisation")
        }
        jct_s = np.asarray(result.jobs["jct_s"], dtype=np.float64)
        low = np.zeros(len(jct_s), dtype=bool) if opportunistic is None else opportunistic
        means = [float(jct_s[which].mean()) if which.any() else float("nan") for which in (~low, low)]
        return cls(*one.values(), *means)


Column = Callable[[Figures], str]
COLUMNS: Mapping[str, Column] = {
    "mean JCT": lambda f: f"{f.mean_s / 60:,.0f}",
    "p99 JCT": lambda f: f"{f.p99_s / 60:,.0f}",
    "all done": lambda f: f"{f.last_s / 60:,.0f}",
    "GPUs held": lambda f: f"{f.held:.0%}",
    "guaranteed": lambda f: f"{f.guaranteed_s / 60:,.0f}",
    "opportunistic": lambda f: f"{f.opportunistic_s / 60:,.0f}",
}
USUAL = ("mean JCT", "p99 JCT", "all done", "GPUs held")


@dataclass(frozen=True, slots=True)
class Block:
    """A comparison: its heading, its runs as the table lists them, columns, and the sentences below the table."""

    heading: str
    runs: tuple[Run, ...]
    sentences: Callable[[Mapping[Run, Figures]], str]
    columns: tuple[str, ...] = USUAL

    def table(self, figures: Mapping[Run, Figures]) -> tuple[tuple[str, ...], list[list[str]]]:
        """Headings and rows of the table."""
        lines = [
            [label(run), knowledge(run), *(COLUMNS[name](figures[run]) for name in self.columns)] for run in self.runs
        ]
        return ("policy", "knows", *(f">{name}" for name in self.columns)), lines


def label(run: Run) -> str:
    """The policy, and what its jobs lack.

    >>> label(("muri-l", NO_PROFILES)), label(("srtf", JOBS))
    ('muri-l, no stage profiles', 'srtf')
    """
    policy, jobs = run
    return f"{policy}, {jobs}" if jobs in (NO_PROFILES, NO_GUESTS) else policy


def knowledge(run: Run) -> str:
    """The policy's knowledge about these jobs.

    >>> knowledge(("muri-s", JOBS)), knowledge(("muri-s", NO_PROFILES)), knowledge(("muri-l", NO_PROFILES))
    ('remaining time, stage profiles', 'remaining time', 'nothing')
    """
    policy, jobs = run
    known = rows()[policy.partition(":")[0]].knows.split(", ")
    return ", ".join(each for each in known if jobs != NO_PROFILES or each != "stage profiles") or "nothing"


def _order(f: Mapping[Run, Figures]) -> str:
    fifo, learnt, known = (f[policy, JOBS].mean_s for policy in ("fifo", "tiresias-l", "srtf"))
    return (
        f"Order: the mean job takes {learnt / fifo:.2f} of fifo's time under tiresias-l, which knows "
        f"nothing either, and {known / fifo:.2f} under srtf, which knows how long each job takes."
    )


def _turns(f: Mapping[Run, Figures]) -> str:
    ratios = []
    for policy in ("muri-l", "muri-s"):
        new, old = f[policy, JOBS], f[policy, NO_PROFILES]
        mean, p99, last = new.mean_s / old.mean_s, new.p99_s / old.p99_s, new.last_s / old.last_s
        ratios.append(
            f"under {policy} the mean is {mean:.2f} of that without profiles, p99 {p99:.2f}, all done {last:.2f}"
        )
    return (
        "Interleaving: jobs with stage profiles that need different resources share GPUs and take turns; "
        f"{', and '.join(ratios)}."
    )


def _goodput(f: Mapping[Run, Figures]) -> str:
    fixed, adapted = f["tiresias-l", ADAPTIVE], f["pollux", ADAPTIVE]
    return (
        "Goodput: pollux gives each job the GPUs and the batch with which it learns fastest, by what it "
        f"measures of itself; the mean job takes {adapted.mean_s / fixed.mean_s:.2f} of its time at the size that its "
        "user requested."
    )


def _guests(f: Mapping[Run, Figures]) -> str:
    guests, none, alone = f["antman", JOBS], f["antman", NO_GUESTS], f["fifo-backfill", JOBS]
    return (
        "Guests: opportunistic jobs run on what guaranteed ones leave of their GPUs; the mean job takes "
        f"{guests.mean_s / alone.mean_s:.2f} of its time under fifo-backfill (guaranteed jobs "
        f"{guests.guaranteed_s / alone.guaranteed_s:.2f}, opportunistic ones "
        f"{guests.opportunistic_s / alone.opportunistic_s:.2f}), and {guests.mean_s / none.mean_s:.2f} of "
        "its time under antman without guests."
    )


BLOCKS = (
    Block(
        "1. One queue, each GPU for one job",
        tuple((policy, JOBS) for policy in ("fifo", "fifo-backfill", "tiresias-l", "srtf")),
        _order,
    ),
    Block(
        "2. The same jobs, taking turns on storage, CPU, GPU and network",
        (
            ("tiresias-l", JOBS), ("muri-l", NO_PROFILES), ("muri-l", JOBS),
            ("srtf", JOBS), ("muri-s", NO_PROFILES), ("muri-s", JOBS),
        ),
        _turns,
    ),
    Block(
        "3. Jobs that adapt their batch to the number of GPUs",
        (("tiresias-l", ADAPTIVE), ("pollux", ADAPTIVE)),
        _goodput,
    ),
    Block(
        "4. The jobs of 1; half of them are opportunistic and may be guests on GPUs of the others",
        (("fifo-backfill", JOBS), ("antman", NO_GUESTS), ("antman", JOBS)),
        _guests,
        ("mean JCT", "guaranteed", "opportunistic", "GPUs held"),
    ),
)  # fmt: skip


#: Both have 64 GPUs; the second has the nodes on which the models of adaptive jobs were measured.
CLUSTERS = {JOBS: "8x8", ADAPTIVE: "16x4"}
SEED, WIDTH = 1, 100
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
        print(textwrap.fill(block.sentences(figures), WIDTH))
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
