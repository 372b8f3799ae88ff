"""`plait reproduce antman`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from markupsafe import Markup
from rich.table import Table

from plait.core.errors import InputError
from plait.core.version import __version__
from plait.report.charts import GroupedBar, grouped_bars_svg
from plait.sim.studies.cases import parse_range
from plait_papers.antman.compare import (
    HEAD,
    PRODUCTION,
    SOURCE,
    TITLES,
    AntManOutcome,
    Comparison,
    cells,
    filled,
    killed,
    nearest,
    points,
    rows_of,
    share,
)
from plait_papers.antman.muri_artifact import METRICS, ArtifactRow, artifact_cases, artifact_rows
from plait_papers.antman.runs import EVALUATION
from plait_papers.antman.variants import bases, chosen
from plait_papers.evaluation import publish
from plait_papers.muri import runs as muri
from plait_papers.pages import PaperSection, render
from plait_papers.requests import AntManRequest

# The comparison as one self-contained HTML page, and its tables for the terminal.

RATED = {"jct": "Mean JCT over AntMan's", "makespan": "Makespan over AntMan's"}


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
        charts = [Markup(grouped_bars_svg(name, ratio_bars(rows, what))) for what, name in RATED.items()]
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
        *(f"{row.variant}, {what}" for row in rated for what in RATED),
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
