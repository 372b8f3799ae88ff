"""`plait reproduce tiresias`: its claims beside ours, what each depends on, and studies of its parameters.

Neither the trace nor the thresholds of the paper (Gu et al., NSDI 2019) were published, so no ratio can be repeated.
The released mix of 60 jobs and traces derived from Philly's stand in for it, and loads show when a claim holds. Start
at `points`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.table import Table

from plait.core.cluster import Cluster
from plait.core.errors import InputError, suggest
from plait.core.jobs import JobBatch
from plait.core.preemption import FREELY
from plait.core.version import __version__
from plait.network.topology.read import networked
from plait.sim.contention.network import NetworkPhysics, with_gradient_bytes
from plait.sim.studies import cases
from plait.sim.world import Overheads, make_world
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs
from plait.traces.synthetic import target_load
from plait_papers.command import TiresiasRequest
from plait_papers.evaluation import Ended, Evaluation, Outcome, file_hash, publish
from plait_papers.pages import PaperSection, render

#: Stand-ins: name -> file in the data folder, its format, the cluster.
TRACES: Mapping[str, tuple[str, str, str]] = {
    "60 jobs": ("tiresias/60_job.csv", "tiresias", "4x4"),
    "trace 3": ("muri/trace3.csv", "muri", "8x8"),
    "trace 1": ("muri/trace1.csv", "muri", "8x8"),
}
#: The policies of the paper, the first one compared with each; thresholds as in the paper's released simulator.
OURS = "tiresias-l:thresholds=3250/7200"
POLICIES: Mapping[str, str] = {
    "Tiresias-L": OURS,
    "Tiresias-L, one bound of 16 GPU h": "tiresias-l",
    "Tiresias-G, learnt": "tiresias-g:thresholds=3250/7200",
    "2D-Gittins, continuous": "2d-gittins",
    "2D-LAS, continuous": "2d-las",
    "YARN-CS": "yarn-cs",
    "Gandiva": "gandiva",
    "Gandiva, without packing": "gandiva:packing=off",
    "Best effort": "fifo-backfill",
    "SRTF, perfect knowledge": "srtf",
    "SRSF, perfect knowledge": "srsf",
}
#: Claims: by section and policy, the mean JCT over that of Tiresias.
PUBLISHED: Mapping[tuple[str, str], str] = {
    ("60 jobs", "YARN-CS"): "5.5, testbed", ("trace 3", "YARN-CS"): "5.5, testbed",
    ("trace 3", "Gandiva"): "2, simulated", ("trace 1", "Gandiva"): "2, simulated",
    ("trace 3", "SRTF, perfect knowledge"): "about 1", ("trace 3", "SRSF, perfect knowledge"): "about 1",
}  # fmt: skip
LOADS = (0.5, 0.8, 1.0, 1.3, 2.0)
OF_LOADS = ("Tiresias-L", "YARN-CS", "SRSF, perfect knowledge")
#: Options of Tiresias-L that are changed one at a time, on the trace of `STUDIED`.
STUDIED = "trace 3"
STUDIES: Mapping[str, Sequence[str]] = {
    "queues": [f"thresholds={'/'.join(str(1000 * 4**i) for i in range(k)) or 1e12}" for k in (0, 1, 3, 5, 7)],
    "thresholds": [f"thresholds={bound}" for bound in (3250, 14400, 57600, 230400, 921600)],
    "knob": [f"thresholds=3250/7200,knob={knob}" for knob in ("1", "2", "8", "100", "inf")],
    "order in a queue": [f"thresholds=3250/7200,within={how}" for how in ("first_start", "running_first", "submit")],
    "placement": [f"thresholds=3250/7200,placement={how}" for how in
                  ("consolidated", "skew", "skew,packlimit=0.6", "trial", "spread", "apart")],
}  # fmt: skip
#: Parameter servers: a server for each GPU; the released 60 jobs on four nodes that share links of 10 Gb/s.
NETWORK = "single-switch:link_gbps=10"
PLACEMENTS = ("consolidated", "skew", "trial", "spread", "flow-balance", "level-links")
#: Starts cost so many times the measured ones, to see what a preemption is worth.
COSTS = (0.0, 1.0, 3.0, 10.0)
SECTIONS = ("claims", "loads", "studies", "servers", "preemption")
KEPT = (
    "avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "avg_queue_s", "gpu_utilisation", "restarts", "lost_gpu_h",
)  # fmt: skip
WHY = (
    "5.5 over YARN-CS is one load of one trace: YARN-CS lets the head of its line block all others, so the ratio "
    "depends on the load and on the longest jobs (section loads). "
    "2 over Gandiva: here Gandiva wins where jobs have profiles, as it packs jobs that use a GPU little, which most of "
    "these models do; only without packing it slices time between all jobs, which costs more the longer the line is. "
    "Perfect knowledge is far where sizes span five decades: attained service ranks a job only after it has received "
    "much, and bounds of queues suit one trace (section studies)."
)


@dataclass(frozen=True, slots=True)
class Case:
    """One run on a stand-in of the data folder. `load` None: as recorded.

    `servers`: with parameter servers on a network; `cost` multiplies what starts cost.
    """

    trace: str
    policy: str
    data: str
    load: float | None = None
    servers: bool = False
    cost: float = 1.0
    jobs: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run: figures (seconds, GPU-hours, shares), and by model what its starts after the first took."""

    figures: dict[str, float]
    models: dict[str, dict[str, float]]
    jobs: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A policy on a trace of a section: its figures, and its mean JCT over that of Tiresias there and as published."""

    section: str
    trace: str
    policy: str
    figures: Mapping[str, float]
    ratio: float
    published: str


@dataclass(frozen=True, kw_only=True)
class TiresiasOutcome(Outcome):
    """All rows; `models`: what preemption costs by model, under Tiresias on the studied trace."""

    rows: Sequence[ClaimRow]
    models: Mapping[str, Mapping[str, float]]


def points(sections: Sequence[str], data: Path, jobs: int | None) -> Iterator[tuple[str, str, str, Case]]:
    """Everything to run: section, trace, name of the row, case. The first row of each trace is what others are over."""
    there = {name: str(data) for name, (file, _, _) in TRACES.items() if (data / file).is_file()}
    for trace, folder in there.items():
        if "claims" in sections:
            for name, policy in POLICIES.items():
                yield "claims", trace, name, Case(trace, policy, folder, jobs=jobs)
    if STUDIED in there:
        base = Case(STUDIED, OURS, there[STUDIED], jobs=jobs)
        for load in LOADS if "loads" in sections and jobs is None else ():  # few jobs reach no high load
            for name in OF_LOADS:
                yield "loads", f"{STUDIED}, load {load:g}", name, replace(base, policy=POLICIES[name], load=load)
        for study, options in STUDIES.items() if "studies" in sections else ():
            for option in options:
                yield "studies", study, option, replace(base, policy=f"tiresias-l:{option}")
        for cost in COSTS if "preemption" in sections else ():
            quantum = f"2d-las:quantum_s={360 * max(cost, 1.0):g}"  # else it stops jobs before they have started
            for name in ("Tiresias-L", "2D-LAS, continuous", "SRSF, perfect knowledge"):
                policy = quantum if name.startswith("2D-LAS") else POLICIES[name]
                yield "preemption", f"starts x{cost:g}", name, replace(base, policy=policy, cost=cost)
    if "servers" in sections and "60 jobs" in there:
        for how in PLACEMENTS:
            case = Case("60 jobs", f"{OURS},placement={how}", there["60 jobs"], servers=True, jobs=jobs)
            yield "servers", "60 jobs, a server a GPU", how, case


def jobs_of(case: Case) -> JobBatch:
    file, form, hardware = TRACES[case.trace]
    table = read_trace(str(Path(case.data) / file), form)
    if case.jobs is not None:
        table = table.select(np.arange(min(case.jobs, len(table))))
    if case.load is not None:
        table = target_load(table, Cluster.parse(hardware).gpus, case.load)
    jobs = load_jobs(table).jobs
    if not case.servers:
        return jobs
    return with_gradient_bytes(jobs, 0).replace(servers=np.where(jobs.gpus > 1, jobs.gpus, 0))


def run_case(case: Case, ended: Ended | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    jobs, cluster, begin = jobs_of(case), Cluster.parse(TRACES[case.trace][2]), time.process_time()
    world = make_world("plait")
    costs = world.overheads.for_batch(jobs)[:, 0] * case.cost
    rows = tuple(
        (model, tuple((size, *(case.cost * s for s in seconds)) for size, *seconds in table))
        for model, table in world.overheads.rows
    )
    world = replace(world, overheads=Overheads(rows))
    if case.servers:
        cluster, world = networked(cluster, NETWORK), replace(world, physics=NetworkPhysics())
    result = cases.run_case(cases.Case(case.trace, jobs, case.policy, cluster, world, rule=FREELY), ended=ended)
    figures = {name: float(value) for name in KEPT if isinstance(value := result.summary.get(name), (int, float))}
    models, again = jobs.column("model"), np.maximum(result.jobs["starts"] - 1, 0)
    by_model = {}
    for model in sorted(set(models.tolist())):
        mine = models == model
        by_model[model] = {
            "jobs": float(mine.sum()), "restarts": float(again[mine].sum()), "start_s": float(costs[mine].mean()),
            "gpu_h": float((again * costs * jobs.gpus)[mine].sum() / 3600),
        }  # fmt: skip
    return Done(figures, by_model, len(jobs), time.process_time() - begin)


EVALUATION: Evaluation[Case, Done] = Evaluation(
    "tiresias",
    run_case,
    Done,
    jobs=lambda case: len(jobs_of(case)),
    code=(
        *(f"plait.{name}" for name in ("core", "control", "grouping", "placement", "policies", "sharing", "sim")),
        *("plait.traces", "plait.network", "plait_papers.tiresias"),
    ),
    inputs=lambda case: {**asdict(case), "data": file_hash(Path(case.data) / TRACES[case.trace][0])},
)


def rows_of(asked: Sequence[tuple[str, str, str, Case]], done: Mapping[Case, Done]) -> Iterator[ClaimRow]:
    """A row a point; ratios are over the first of its section and trace."""
    first: dict[tuple[str, str], float] = {}
    for section, trace, name, case in asked:
        run = done[case]
        mean_s = run.figures["avg_jct_s"]
        ratio = mean_s / first.setdefault((section, trace), mean_s)
        published = PUBLISHED.get((trace, name), "") if section == "claims" else ""
        yield ClaimRow(section, trace, name, run.figures, ratio, published)


TITLES = {
    "claims": ("Claims: mean JCT over Tiresias", WHY),
    "loads": ("Loads: the same trace, submitted faster or slower", "Load: GPU time of all jobs over the cluster's."),
    "studies": ("Studies: one option of Tiresias-L at a time", f"On {STUDIED}; ratios are over the first row of each."),
    "servers": ("Parameter servers: where gangs go, if links are shared",
                f"Network {NETWORK}. level-links is an integer program, flow-balance the rule beside it."),
    "preemption": ("Preemption: if starts cost more",
                   "Measured start times of Muri's models, multiplied; with them 2D-LAS's quantum, 6 minutes."),
}  # fmt: skip


def sections(outcome: TiresiasOutcome) -> Iterator[PaperSection]:
    """The tables, one a section that ran, then what starts cost by model."""
    hours = ("mean JCT, h", "p50", "p99", "wait, h")
    head = ("", "row", *hours, "GPUs held", "restarts", "mean JCT over first", "published")
    for key, (title, lead) in TITLES.items():
        rows = [row for row in outcome.rows if row.section == key]
        if rows:
            yield PaperSection.of(key, title, lead, head, 2, [_cells(row) for row in rows])
    if outcome.models:
        yield PaperSection.of(
            "models", f"Models: what restarts cost under {OURS}",
            f"On {STUDIED}: seconds from a start to the first iteration, from the table that ships with plait. Of live "
            "jobs it is measured (`plait explain`).",
            ("model", "jobs", "restarts", "start, s", "GPU h in restarts"), 1,
            [
                (model, f"{v['jobs']:.0f}", f"{v['restarts']:.0f}", f"{v['start_s']:.1f}", f"{v['gpu_h']:.1f}")
                for model, v in outcome.models.items()
            ],
        )  # fmt: skip


def _cells(row: ClaimRow) -> tuple[str, ...]:
    f = row.figures
    hours = (f"{f[name] / 3600:.4g}" for name in ("avg_jct_s", "p50_jct_s", "p99_jct_s", "avg_queue_s"))
    rest = f"{f['gpu_utilisation']:.0%}", f"{f['restarts']:,.0f}", f"{row.ratio:.2f}", row.published
    return row.trace, row.policy, *hours, *rest


def tables(outcome: TiresiasOutcome) -> Iterator[Table]:
    """The sections for the terminal."""
    for section in sections(outcome):
        yield section.table()


def page(outcome: TiresiasOutcome) -> str:
    """The sections as one HTML page."""
    facts = [f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds", "plait's world"]
    title = "Tiresias (NSDI 2019), its claims and plait's runs"
    return render("tiresias.html.j2", outcome, title=title, facts=facts, sections=list(sections(outcome)))


def reproduce_tiresias(request: TiresiasRequest) -> None:
    """Run the requested sections, as far as their traces are there, and show and write them."""
    wanted = SECTIONS if request.section is None else tuple(part.strip() for part in request.section.split(","))
    for part in wanted:
        if part not in SECTIONS:
            raise InputError(f"unknown section {part!r}; {suggest(part, SECTIONS)}")
    missing = [file for file, _, _ in TRACES.values() if not (request.data / file).is_file()]
    asked = list(points(wanted, request.data, request.jobs))
    if not asked:
        raise InputError(f"nothing to run: {request.data} has none of {', '.join(missing)}")

    def outcome() -> TiresiasOutcome:
        done = EVALUATION.finish((case for *_, case in asked), request)
        ours = next((case for _, trace, name, case in asked if (trace, name) == ("starts x1", "Tiresias-L")), None)
        return TiresiasOutcome.of(
            done.values(),
            {"version": __version__, "data": str(request.data), "jobs": request.jobs},
            [f"left out without {file}: not in {request.data}" for file in missing],
            rows=list(rows_of(asked, done)),
            models={} if ours is None else done[ours].models,
        )

    publish(request, outcome, tables, page)
