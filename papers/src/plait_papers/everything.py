"""`plait reproduce everything`: every policy on the same jobs, compared only where they know as much.

A `Row` is what stays equal in a comparison: trace, load, cluster, failures and what policies know of durations. Start
at `rows`, the grid, and `compared`, what `plait` is worth in each row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.core.version import __version__
from plait.policies.catalog import WAIT_LENGTHS
from plait.policies.compose import LEAST_WAIT_S
from plait.sim.physics import StandardPhysics
from plait.sim.studies import cases
from plait.sim.studies.cases import parse_range
from plait.sim.world import make_world
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate, target_load
from plait.traces.table import TraceTable
from plait_papers.command import EverythingRequest
from plait_papers.evaluation import Done, Ended, Evaluation, Outcome, file_hash, publish
from plait_papers.pages import PaperSection, render

#: The policy that is judged, by what it knows.
OURS = {"exact": "plait", "predicted": "plait:knows=predicted", "nothing": "plait:knows=nothing"}
#: The others of the catalog, by what they know of durations.
OTHERS: Mapping[str, tuple[str, ...]] = {
    "exact": ("srtf", "srsf", "sjf", "themis", "muri-s", "muri-s:guard=0.3", "muri-s:guard=0.6", "antman"),
    "predicted": (
        "srtf:knows=predicted", "srsf:knows=predicted", "sjf:knows=predicted", "muri-s:knows=predicted", "qssf",
        "lucid",
    ),
    "nothing": (
        "fifo-backfill", "knapsack", "las", "2d-las", "tiresias-l", "tiresias-g", "muri-l", "gandiva",
        "antman:knows=nothing", "antman:knows=nothing,order=tiresias",
    ),
}  # fmt: skip
#: Recorded traces: the file in the data folder and its format.
RECORDED = {
    "trace1": ("muri/trace1.csv", "muri"),
    "trace3": ("muri/trace3.csv", "muri"),
    "trace3_pr": ("muri/trace3_pr.csv", "muri"),
    "job_type_1": ("muri/job_type_1.csv", "muri"),
    "openb2023": ("openb2023/openb_pod_list_default.csv", "openb2023"),
}
#: Submitted at one time, so that it has no load.
AT_ONCE = "trace3_pr"
#: Generated ones: the preset and how models are drawn. Without models jobs have no stage profiles.
GENERATED = {"philly": ("philly", None), "philly, profiled": ("philly", "uniform"), "recurring": ("recurring", None)}
#: Traces whose jobs have stage profiles, so that sharing can be judged.
PROFILED = frozenset({"trace1", "trace3", "trace3_pr", "job_type_1", "philly, profiled"})
#: Seeds take jobs of a recorded trace from a quarter, half, three quarters of it, and from its start.
WINDOWS = 4
LOADS = (0.7, 1.0, 1.3)
SMALL, LARGE, MIXED = "8x8", "64x8", "4x8:v100,2x8:p100,2x8:t4"
#: Assumed speeds of the kinds of GPU in the mixed cluster; no policy of the comparison is told.
SPEEDS = {"v100": 1.0, "p100": 0.6, "t4": 0.5}
#: So many times the jobs are generated for the large cluster.
MORE = 4
#: Mean hours between failures of a node, with failures on. Jobs do not fail of themselves: means would be of the rest.
NODE_MTBF_H = 50.0
#: Seconds between decisions, as Muri's.
ROUND_S = 360.0
#: Figures of a run that are kept.
KEPT = (
    "avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "max_queue_s", "avg_fairness", "max_fairness", "fragmentation",
    "lost_work_gpu_h", "restarts",
)  # fmt: skip
#: Sizes by which waiting is compared, and the fewest GPUs of each.
SIZES = {"1 GPU": 1, "2 to 4": 2, "5 to 15": 5, "16 or more": 16}
#: Share of jobs that waited for longer, in all, than `plait` puts up with where it knows their lengths.
PAST = "past the bound"


@dataclass(frozen=True, slots=True)
class Row:
    """What is equal in a comparison. `load` 0 is that of a trace submitted at one time."""

    knows: str
    trace: str
    load: float = 1.0
    cluster: str = SMALL
    failures: bool = False

    def __str__(self) -> str:
        parts = [self.trace, "at once" if self.load == 0 else f"{self.load:g}"]
        parts += [self.cluster] * (self.cluster != SMALL) + ["failures"] * self.failures
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a policy in a row, on the jobs of a seed. `data` is the folder of recorded traces."""

    row: Row
    policy: str
    seed: int
    jobs: int
    data: str


def rows(quick: bool, recorded: bool) -> Iterator[Row]:
    """The grid: all traces at all loads, then what policies know, clusters and failures, one at a time.

    Where durations are not known, recorded traces have one row each.
    """
    loads = (1.0,) if quick else LOADS
    traces = [*(RECORDED if recorded else ()), *GENERATED]
    for knows in OURS:
        for trace in traces:
            at = (0.0,) if trace == AT_ONCE else loads if knows == "exact" or trace in GENERATED else (1.0,)
            yield from (Row(knows, trace, load) for load in at)
    if quick:
        return
    for trace in [t for t in ("trace3", "philly, profiled", "recurring") if t in traces]:
        for knows in OURS:
            if knows != "exact" and trace in RECORDED:
                continue
            if trace != "philly, profiled":  # its few long jobs keep 512 GPUs busy only in traces of thousands of jobs
                yield Row(knows, trace, cluster=LARGE)
            yield Row(knows, trace, cluster=MIXED)
            yield Row(knows, trace, failures=True)


def number_of_jobs(case: Case) -> int:
    """How many jobs a case has, if its recorded trace has as many."""
    return case.jobs * (MORE if case.row.cluster == LARGE and case.row.trace in GENERATED else 1)


def table_of(case: Case) -> TraceTable:
    """The jobs of a case: a window of a recorded trace, one of `WINDOWS` by the seed, or a drawn trace."""
    row, gpus = case.row, Cluster.parse(case.row.cluster).gpus
    if row.trace in GENERATED:
        preset, models = GENERATED[row.trace]
        return generate(preset, number_of_jobs(case), gpus, row.load, case.seed, models=models)
    file, form = RECORDED[row.trace]
    table = read_trace(str(Path(case.data) / file), form)
    table = table.select(np.flatnonzero(np.asarray(table["gpus"]) >= 1))
    first = (case.seed + 1) % WINDOWS * (len(table) - case.jobs) // WINDOWS if len(table) > case.jobs else 0
    table = table.select(np.arange(first, min(first + case.jobs, len(table))))
    return table if row.load == 0 else target_load(table, gpus, row.load)


def jobs_of(case: Case) -> JobBatch:
    return load_jobs(table_of(case)).jobs


def run_case(case: Case, ended: Ended | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    jobs, cluster, begin = jobs_of(case), Cluster.parse(case.row.cluster), time.process_time()
    world = replace(make_world("plait"), round_s=ROUND_S)
    if case.row.cluster == MIXED:
        assert isinstance(world.physics, StandardPhysics)
        world = replace(world, physics=replace(world.physics, kind_speed=SPEEDS))
    if case.row.failures:
        world = replace(world, node_mtbf_s=NODE_MTBF_H * 3600)
    one = cases.Case(case.row.trace, jobs, case.policy, cluster, world, seed=case.seed)
    run = cases.run_case(one, ended=ended)
    figures = {name: float(value) for name in KEPT if isinstance(value := run.summary.get(name), (int, float))}
    size_of, waited_s = np.searchsorted(list(SIZES.values()), run.jobs["gpus"], side="right") - 1, run.jobs["queue_s"]
    for size in np.unique(size_of).tolist():
        figures[list(SIZES)[size]] = float(np.mean(waited_s[size_of == size]))
    bound_s = np.maximum(WAIT_LENGTHS * run.jobs["duration_s"], LEAST_WAIT_S) + 2 * ROUND_S  # decided at the next round
    figures[PAST] = float(np.mean(waited_s > bound_s))
    return Done(figures, len(jobs), time.process_time() - begin)


def _inputs(case: Case) -> Any:
    file = RECORDED.get(case.row.trace)
    data = None if file is None else file_hash(Path(case.data) / file[0])
    return {**asdict(case), "data": data}


EVALUATION: Evaluation[Case, Done] = Evaluation(
    "everything",
    run_case,
    Done,
    jobs=number_of_jobs,
    code=(
        *(f"plait.{name}" for name in ("core", "control", "grouping", "placement", "policies", "sharing", "sim")),
        *("plait.traces", "plait.goodput", "plait_papers.everything"),
    ),
    inputs=_inputs,
)


@dataclass(frozen=True, slots=True)
class Compared:
    """`plait` in one row, means over `seeds` runs; hours.

    `best` has the best mean of the others, `ratio` is plait's mean over its, in all and on the best and worst seed.
    `p99` and `makespan` are ratios of plait to `best`.
    """

    knows: str
    row: str
    profiled: bool
    seeds: int
    best: str
    best_h: float
    ours_h: float
    ratio: float
    low: float
    high: float
    p99: float
    makespan: float
    longest_wait_h: float


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """A policy in one row, means over seeds: seconds, GPU-hours and shares, and its mean over the best of the row."""

    knows: str
    row: str
    policy: str
    ratio: float
    figures: Mapping[str, float]
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class EverythingOutcome(Outcome):
    """`plait` in each row, and every policy."""

    rows: Sequence[Compared]
    policies: Sequence[PolicyFigures]


def compared(row: Row, done: Mapping[Case, Done]) -> tuple[Compared, list[PolicyFigures]]:
    mine = sorted(
        (case for case in done if case.row == row), key=lambda case: case.seed
    )  # done as runs end, not by seed
    runs = {policy: [done[case] for case in mine if case.policy == policy] for policy in policies_of(row.knows)}
    ours, others = OURS[row.knows], OTHERS[row.knows]

    def mean(policy: str, name: str = "avg_jct_s") -> float:
        return float(np.mean([run.figures.get(name, np.nan) for run in runs[policy]]))

    best = min(others, key=mean)
    each = [a.figures["avg_jct_s"] / b.figures["avg_jct_s"] for a, b in zip(runs[ours], runs[best], strict=True)]
    over = {name: mean(ours, name) / mean(best, name) for name in ("avg_jct_s", "p99_jct_s", "makespan_s")}
    about = Compared(
        row.knows, str(row), row.trace in PROFILED, len(each), best, mean(best) / 3600, mean(ours) / 3600,
        over["avg_jct_s"], min(each), max(each), over["p99_jct_s"], over["makespan_s"],
        max(run.figures["max_queue_s"] for run in runs[ours]) / 3600,
    )  # fmt: skip
    least = min(mean(ours), mean(best))
    sizes = [size for size in (*SIZES, PAST) if all(size in run.figures for run in runs[ours])]
    figures = [
        PolicyFigures(
            row.knows, str(row), policy, mean(policy) / least, {name: mean(policy, name) for name in (*KEPT, *sizes)},
            float(np.mean([run.cpu_s for run in some])),
        )
        for policy, some in runs.items()
    ]  # fmt: skip
    return about, figures


def policies_of(knows: str) -> tuple[str, ...]:
    """Every policy that is compared where durations are known so."""
    return (*OTHERS[knows], OURS[knows])


def reproduce_everything(request: EverythingRequest) -> None:
    """Run the grid, then show and write the comparison."""
    quick = request.quick
    jobs = (200 if quick else 500) if request.jobs is None else request.jobs
    seeds = (0,) if quick else parse_range(request.seeds, "seeds")
    recorded = [] if request.data is None else [file for file, _ in RECORDED.values()]
    for file in recorded:
        if request.data is not None and not (request.data / file).is_file():
            raise InputError(f"{request.data} has no {file}; --data names the folder that has {', '.join(recorded)}")
    asked = [row for row in rows(quick, bool(recorded)) if request.knows is None or row.knows == request.knows]
    if not asked:
        raise InputError(f"--knows is {request.knows!r}; it takes {', '.join(OURS)}")
    todo = [
        Case(row, policy, seed, jobs, str(request.data or ""))
        for row in asked for seed in seeds for policy in policies_of(row.knows)
    ]  # fmt: skip

    def outcome() -> EverythingOutcome:
        done = EVALUATION.finish(todo, request)
        both = [compared(row, done) for row in asked]
        return EverythingOutcome.of(
            done.values(),
            {"version": __version__, "jobs": jobs, "seeds": list(seeds)},
            [] if recorded else ["recorded traces are left out; give their folder: --data"],
            rows=[one for one, _ in both],
            policies=[one for _, some in both for one in some],
        )

    publish(request, outcome, tables, page)


HEAD = ("knows", "row", "best other", "its mean h", "plait h", "ratio", "seeds", "p99", "makespan", "longest wait h")
POLICY_HEAD = (
    "knows", "policy", "mean", "worst", "worst in", "p50", "p99", "makespan", "fairness", "fragmented", "lost GPU h",
    "restarts", "CPU s",
)  # fmt: skip


def cells(row: Compared) -> tuple[str, ...]:
    """A row of the first table."""
    return (
        row.knows, row.row, row.best, f"{row.best_h:.2f}", f"{row.ours_h:.2f}", f"{row.ratio:.3f}",
        f"{row.low:.3f} to {row.high:.3f}", f"{row.p99 - 1:+.1%}", f"{row.makespan - 1:+.1%}",
        f"{row.longest_wait_h:.1f}",
    )  # fmt: skip


def by_policy(outcome: EverythingOutcome) -> Iterator[tuple[str, ...]]:
    """Each policy over the rows of what it knows, best mean ratio first; see `ABOUT_POLICIES`."""
    for knows in OURS:
        mine = [one for one in outcome.policies if one.knows == knows]
        names = dict.fromkeys(one.policy for one in mine)
        some = {name: [one for one in mine if one.policy == name] for name in names}
        over = ("p50_jct_s", "p99_jct_s", "makespan_s")
        least = {(p.row, of): min(q.figures[of] for q in mine if q.row == p.row) for p in mine for of in over}
        for name in sorted(names, key=lambda name: float(np.mean([one.ratio for one in some[name]]))):
            worst = max(some[name], key=lambda one: one.ratio)
            mean = {of: np.mean([one.figures[of] for one in some[name]]) for of in KEPT}
            ratios = [f"{np.mean([one.figures[of] / least[one.row, of] for one in some[name]]):.2f}" for of in over]
            yield (
                knows, name, f"{np.mean([one.ratio for one in some[name]]):.3f}", f"{worst.ratio:.3f}", worst.row,
                *ratios, f"{mean['avg_fairness']:.2f}", f"{mean['fragmentation']:.1%}",
                f"{mean['lost_work_gpu_h']:.1f}", f"{mean['restarts']:.0f}",
                f"{np.mean([one.cpu_s for one in some[name]]):.1f}",
            )  # fmt: skip


def waits(outcome: EverythingOutcome) -> Iterator[tuple[str, ...]]:
    """Mean hours without GPUs of jobs of each size, and the share past the bound, in the order of `by_policy`."""
    for knows, name, *_ in by_policy(outcome):
        some = [one.figures for one in outcome.policies if (one.knows, one.policy) == (knows, name)]
        hours = [[one[size] / 3600 for one in some if size in one] for size in SIZES]
        past = f"{np.mean([one[PAST] for one in some]):.1%}"
        yield knows, name, *(f"{np.mean(found):.2f}" if found else "-" for found in hours), past


def means(outcome: EverythingOutcome) -> Iterator[tuple[str, ...]]:
    """Mean and worst ratio of `plait`, with and without stage profiles."""
    for knows in OURS:
        for profiled in (True, False):
            found = [row for row in outcome.rows if row.knows == knows and row.profiled == profiled]
            if found:
                ratios = [row.ratio for row in found]
                above = sum(ratio > 1 for ratio in ratios)
                kind = "stage profiles" if profiled else "no profiles"
                yield knows, kind, str(len(found)), f"{np.mean(ratios):.3f}", f"{max(ratios):.3f}", str(above)


MEANS_HEAD = ("knows", "jobs with", "rows", "mean ratio", "worst ratio", "above 1")


def tables(outcome: EverythingOutcome) -> Iterator[Table]:
    """For the terminal: `plait` by row, its means, and all policies."""
    for section in _sections(outcome):
        yield section.table()


def _sections(outcome: EverythingOutcome) -> Iterator[PaperSection]:
    by_row = [cells(row) for row in outcome.rows]
    yield PaperSection.of("rows", "plait against the best of the others that know as much", LEAD, HEAD, 3, by_row)
    yield PaperSection.of("means", "Mean over rows", "", MEANS_HEAD, 2, list(means(outcome)))
    by = list(by_policy(outcome))
    yield PaperSection.of("policies", "All policies, over the best of each row", ABOUT_POLICIES, POLICY_HEAD, 2, by)
    yield PaperSection.of("waits", "Waiting by size", ABOUT_WAITS, WAITS_HEAD, 2, list(waits(outcome)))


WAITS_HEAD = ("knows", "policy", *SIZES, PAST)
ABOUT_WAITS = (
    "Hours in which jobs of so many GPUs have none, all waits of a job: means over jobs, seeds and rows. "
    f"Past the bound: jobs that wait {WAIT_LENGTHS:g} times their length, and {LEAST_WAIT_S / 60:g} minutes or more."
)
ABOUT_POLICIES = (
    "Means over rows. Mean, p50, p99 and makespan are over the least of the row; fairness is completion time over that "
    "with an equal share of the cluster; fragmented is the share of GPUs that are free on partly used nodes while jobs "
    "wait."
)
LEAD = "Means over seeds; seeds: plait's mean over the other's on the best and on the worst seed."


def page(outcome: EverythingOutcome) -> str:
    """The comparison as one self-contained HTML page."""
    facts = [f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds", f"{outcome.settings['jobs']} jobs a run"]
    return render(
        "everything.html.j2",
        outcome,
        title="All policies on equal terms",
        facts=facts,
        sections=list(_sections(outcome)),
    )
