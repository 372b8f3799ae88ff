"""`plait reproduce antman`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from markupsafe import Markup
from rich.table import Table

from plait.core.errors import InputError
from plait.core.version import __version__
from plait.report.charts import GroupedBar, grouped_bars_svg
from plait.sim.studies.cases import parse_range
from plait_papers.antman.muri_artifact import METRICS, ArtifactRow, artifact_cases, artifact_rows
from plait_papers.antman.runs import EVALUATION, Case
from plait_papers.antman.variants import COMPARED, PARTS, STUDIES, Variant, bases, chosen, shapes, variants_of
from plait_papers.antman.workload import with_seed
from plait_papers.command import AntManRequest
from plait_papers.evaluation import Done, Outcome, publish
from plait_papers.muri import runs as muri
from plait_papers.pages import PaperSection, render

# The comparison as one self-contained HTML page, and its tables for the terminal.

RATIO_TITLES = {"jct": "Mean JCT over AntMan's", "makespan": "Makespan over AntMan's"}


def page(outcome: AntManOutcome) -> str:
    """The page as text; a function of the outcome."""
    told = outcome.settings
    facts = [f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds", "64 GPUs", "two tenants", "nine models"]
    return render(
        "antman.html.j2",
        outcome,
        title="AntMan (OSDI 2020), published and simulated",
        facts=facts,
        sections=list(_sections(outcome)),
        source=SOURCE,
        production=PRODUCTION.items(),
        told=", ".join(f"{name} {told[name]}" for name in ("jobs", "load", "seeds") if name in told),
    )


#: Traces of the study `shapes` that the terminal shows, the nearest ones.
NEAREST = 8


def tables(outcome: AntManOutcome) -> Iterator[Table]:
    """The sections, then figures of production."""
    for section in _sections(outcome):
        if section.id == "shapes":
            del section.rows[NEAREST:]
        yield section.table()
    rows = list(PRODUCTION.items())
    yield PaperSection.of(
        "production", "Published of production, for context", "", ("quantity", "value"), 1, rows
    ).table()


def ratio_bars(rows: Sequence[Comparison], what: str) -> list[GroupedBar]:
    """A bar for each row that has this ratio (`jct`, `makespan`), marked with the published one."""
    bars = []
    for row in rows:
        ratio = getattr(row, what)
        if ratio is not None and row.variant != row.over:
            mark = math.nan if ratio.published is None else ratio.published
            bars.append(GroupedBar(row.at, row.variant, ratio.ours, mark, mark))
    return bars


def _sections(outcome: AntManOutcome) -> Iterator[PaperSection]:
    for key, title in TITLES.items():
        rows = [row for row in outcome.rows if row.section == key]
        if rows:
            yield _shapes(title, rows) if key == "shapes" else _section(key, title, rows)
    if outcome.artifact:
        yield _artifact(outcome.artifact)


def _section(key: str, title: str, rows: Sequence[Comparison]) -> PaperSection:
    charts = []
    if key not in ("published", "parts"):
        charts = [Markup(grouped_bars_svg(name, ratio_bars(rows, what))) for what, name in RATIO_TITLES.items()]
    columns = filled(rows)
    lead = (
        "Means over seeds, in brackets the lowest and the highest seed; the line across a bar is the published ratio."
    )
    head = ("trace", "variant", *(HEAD[i] for i in columns))
    return PaperSection.of(
        key, title, lead, head, 2, [(row.at, row.variant, *(cells(row)[i] for i in columns)) for row in rows], charts
    )  # fmt: skip


def _shapes(title: str, rows: Sequence[Comparison]) -> PaperSection:
    rated = [row for row in rows if row.at == rows[0].at and row.jct is not None and row.jct.published is not None]
    head = [
        "trace, nearest first",
        *(f"{row.variant}, {what}" for row in rated for what in RATIO_TITLES),
        "off by a factor of",
        "killed by preemption",
    ]
    found = []
    for factor, at, some in nearest(rows, len(rows)):
        ratios = [r for row in some for r in (row.jct, row.makespan) if r is not None and r.published is not None]
        found.append((at, *(f"{r.ours:.2f}" for r in ratios), f"{factor:.2f}", share(killed(some))))
    return PaperSection.of("shapes", title, "All traces of the search.", head, 1, found)


def _artifact(rows: Sequence[ArtifactRow]) -> PaperSection:
    head = ["trace"]
    for metric in METRICS.values():
        head += [metric, "authors'"]
    head += ["guaranteed, mean JCT", "opportunistic, mean JCT"]
    title = "The unfinished AntMan of Muri's artifact, exact"
    found = []
    for row in rows:
        values = [v for metric in METRICS for v in (row.ours[metric], row.published.get(metric))]
        numbers = [*values, row.guaranteed_s, row.opportunistic_s]
        found.append((row.trace, *("" if value is None else f"{value:,.3f}" for value in numbers)))
    return PaperSection.of("artifact", title, "Seconds.", head, 1, found)


#: Unknowns that concern every ratio.
UNKNOWN = (
    "published: 64 V100 GPUs, another trace; which one, its load and its gangs were not published, so ratios that "
    "differ are no error by themselves"
)
WITHOUT_ARTIFACT = "the AntMan of Muri's artifact is left out; give --data its folder simulator/trace-data"


def reproduce_antman(request: AntManRequest) -> None:
    load = _load(request.load)
    bases(request.jobs, load)  # an invalid workload is refused before anything runs
    asked = list(points(chosen(request.study), parse_range(request.seeds, "seeds"), request.jobs, load))
    artifact = artifact_cases(request.data)

    def outcome() -> AntManOutcome:
        done = EVALUATION.finish((case for point in asked for case in point.cases), request)
        own = muri.EVALUATION.finish(artifact.values(), request, EVALUATION.paper)
        return AntManOutcome.of(
            chain(done.values(), own.values()),
            {"version": __version__, "jobs": request.jobs, "load": request.load, "seeds": request.seeds},
            [UNKNOWN] if artifact else [UNKNOWN, WITHOUT_ARTIFACT],
            rows=list(rows_of(asked, done)),
            artifact=artifact_rows(artifact, own),
        )

    publish(request, outcome, tables, page)


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = math.nan
    if not load > 0:
        raise InputError(f"--load is {text!r}; it takes a number above 0, e.g. 1, or inf for all jobs at once")
    return load


# -- Runs of each table, our figures next to the published ones, and the tables ----------------------------
# The published results are ratios, not times: the trace and the simulator were not released.

SOURCE = "Xiao et al., AntMan: Dynamic Scaling on GPU Clusters for Deep Learning, OSDI 2020"

#: (baseline, metric) -> the baseline over AntMan on 64 V100 GPUs, nine workloads, two tenants.
RATIOS: Mapping[tuple[str, str], float] = {
    ("yarn-cs", "avg_jct_s"): 2.05,
    ("yarn-cs", "makespan_s"): 1.76,
    ("gandiva", "avg_jct_s"): 1.84,
    ("gandiva", "makespan_s"): 1.67,
}
#: Share of opportunistic jobs that were killed, by policy.
KILLED: Mapping[str, float] = {"yarn-cs, preempting": 0.46, "antman": 0.0}
#: Guaranteed completion time of AntMan over that of YARN with preemption.
GUARANTEED = 1.0

#: Production, December 2019 to April 2020, thousands of GPUs: context, without a comparable simulation here.
PRODUCTION: Mapping[str, str] = {
    "GPUs for opportunistic jobs": "+17.1 %",
    "GPU memory in use": "+42 %",
    "GPU compute in use": "+34 %",
    "mean queueing delay": "2.05 times shorter",
    "guaranteed jobs without a visible slowdown (about 10 ms a step)": "99 %",
    "GPUs that used more than half of their memory, before": "20 %",
    "GPUs that used more than 80 % of their compute, before": "10 %",
}

#: Figures with ratios.
RATED = ("avg_jct_s", "makespan_s")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure over AntMan's: the mean over seeds, the lowest and the highest seed, and what was published."""

    ours: float
    low: float
    high: float
    published: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One variant on one trace of a table (`section`): means over `seeds` runs, in seconds, GPU-hours and shares.

    `jct` and `makespan` are over the row named `over`. `killed_published`: share of opportunistic jobs.
    """

    section: str
    at: str
    variant: str
    policy: str
    over: str
    seeds: int
    figures: Mapping[str, float]
    jct: Ratio | None
    makespan: Ratio | None
    killed_published: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """One variant on one trace: a run for each seed."""

    section: str
    at: str
    variant: Variant
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class AntManOutcome(Outcome):
    """All rows, and the figures of production."""

    rows: Sequence[Comparison]
    artifact: Sequence[ArtifactRow]
    production: Mapping[str, str] = field(default_factory=lambda: PRODUCTION)


def points(studies: Sequence[str], seeds: Sequence[int], jobs: int, load: float) -> Iterator[Point]:
    """Everything to run: the published comparison and AntMan's parts on two traces, then the studies."""

    def point(section: str, at: str, variant: Variant, workload: Any) -> Point:
        return Point(section, at, variant, tuple(variant.case(with_seed(workload, s)) for s in seeds))

    for at, workload in bases(jobs, load).items():
        for variant in COMPARED:
            yield point("published", at, variant, workload)
    for at, workload in bases(jobs, load).items():
        for variant in PARTS:
            yield point("parts", at, variant, workload)
    for study in studies:
        for at, workload in shapes(study, jobs, load):
            for variant in variants_of(study):
                yield point(study, at, variant, workload)


def rows_of(asked: Sequence[Point], done: Mapping[Case, Done]) -> Iterator[Comparison]:
    """The figures of each point, in order."""
    base = {(p.section, p.at, p.variant.name): p for p in asked}
    for p in asked:
        runs = [done[case] for case in p.cases]
        names = dict.fromkeys(name for run in runs for name in run.figures)
        figures = {name: _mean([r.figures[name] for r in runs if name in r.figures]) for name in names}
        over = [done[case] for case in base[p.section, p.at, p.variant.over].cases]
        same = p.variant.classes != "guaranteed alone"
        jct, makespan = (_ratio(p.variant, metric, runs, over) if same else None for metric in RATED)
        killed = KILLED.get(p.variant.name)
        yield Comparison(
            p.section, p.at, p.variant.name, p.variant.policy, p.variant.over, len(runs), figures, jct, makespan, killed
        )  # fmt: skip


def _ratio(variant: Variant, metric: str, runs: Sequence[Done], over: Sequence[Done]) -> Ratio:
    each = [run.figures[metric] / base.figures[metric] for run, base in zip(runs, over, strict=True)]
    ours = _mean([run.figures[metric] for run in runs]) / _mean([base.figures[metric] for base in over])
    return Ratio(ours, min(each), max(each), RATIOS.get((variant.name, metric)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def distance(rows: Sequence[Comparison]) -> float:
    """How far the ratios of a trace are from the published ones: the largest factor between one and its counterpart.

    1 is all equal; infinite if nothing published is there.
    """
    factors = [
        abs(math.log(ratio.ours / ratio.published))
        for row in rows
        for ratio in (row.jct, row.makespan)
        if ratio is not None and ratio.published is not None
    ]
    return math.exp(max(factors)) if factors else math.inf


def nearest(rows: Sequence[Comparison], most: int = 8) -> list[tuple[float, str, list[Comparison]]]:
    """The traces of the study `shapes` whose ratios are nearest to the published ones: (distance, trace, rows)."""
    by_shape: dict[str, list[Comparison]] = {}
    for row in rows:
        if row.section == "shapes":
            by_shape.setdefault(row.at, []).append(row)
    found = sorted(((distance(some), at, some) for at, some in by_shape.items()), key=lambda one: one[:2])
    return found[:most]


def killed(rows: Sequence[Comparison]) -> float | None:
    """The share of opportunistic jobs that preemption killed on a trace of that study."""
    return next((row.figures.get("opportunistic_killed_share") for row in rows if row.killed_published), None)


#: Columns of a table of variants.
HEAD = (
    "mean JCT, h", "guaranteed", "opportunistic", "makespan, h", "JCT / antman", "published", "makespan / antman",
    "published", "killed", "published", "guaranteed stretch", "lost GPU-h",
)  # fmt: skip
TITLES = {
    "published": "The published comparison",
    "parts": "AntMan with parts taken away or added, and others on its terms",
    **{study: f"Study: {what}" for study, what in STUDIES.items()},
}


def filled(rows: Sequence[Comparison]) -> list[int]:
    """Which of the columns `HEAD` have anything in one of the rows."""
    return [i for i in range(len(HEAD)) if any(cells(row)[i] for row in rows)]


def cells(row: Comparison) -> tuple[str, ...]:
    """The columns `HEAD` as text."""
    f = row.figures
    if row.variant == row.over:
        jct, makespan = ("1", ""), ("1", "")
    else:
        jct, makespan = _ratio_text(row.jct), _ratio_text(row.makespan)
    return (
        _hours(f.get("avg_jct_s")), _hours(f.get("avg_jct_guaranteed_s")), _hours(f.get("avg_jct_opportunistic_s")),
        _hours(f.get("makespan_s")), *jct, *makespan, share(f.get("opportunistic_killed_share")),
        share(row.killed_published),
        "" if "stretch_guaranteed" not in f else f"{f['stretch_guaranteed']:.3f}",
        f"{f['lost_work_gpu_h']:,.0f}" if f.get("lost_work_gpu_h") else "",
    )  # fmt: skip


def _hours(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 3600:,.2f}"


def _ratio_text(ratio: Ratio | None) -> tuple[str, str]:
    """Ours with the range over seeds, and the published one."""
    if ratio is None:
        return "", ""
    span = "" if ratio.low == ratio.high else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{ratio.ours:.2f}{span}", "" if ratio.published is None else f"{ratio.published:.2f}"


def share(part: float | None) -> str:
    """A share in percent; empty if unknown."""
    return "" if part is None else f"{part:.0%}"
