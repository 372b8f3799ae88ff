"""`plait reproduce muri`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich.table import Table

from plait.cli.experiments.outputs import STDOUT
from plait.cli.render.console import console
from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.live.notes import note
from plait.report.charts import GroupedBar, grouped_bars_svg, highest_of
from plait_papers.command import MuriRequest
from plait_papers.evaluation import Outcome, publish
from plait_papers.muri import compare, noise, resources, testbed
from plait_papers.muri.artifact.interleaved import MATCHINGS
from plait_papers.muri.artifact.themis import SHARES
from plait_papers.muri.artifact.trace import PERCENTILE_RULE
from plait_papers.muri.figures import FIGURES, LABELS, METRICS, NOISE_TRACE, Figure, chosen
from plait_papers.muri.noise import SEEDS, NoiseRow
from plait_papers.muri.published import MARKS
from plait_papers.muri.resources import ModelRow, OverTimeRow, models_section, over_time_section
from plait_papers.muri.runs import EVALUATION, Case, Done
from plait_papers.muri.testbed import ErrorRow, TableRow
from plait_papers.pages import PaperSection, render

# The comparison as one self-contained HTML page: charts like the paper's figures, and tables with provenance.


def page(outcome: MuriOutcome) -> str:
    """The page as text; a function of the outcome."""
    settings = outcome.settings
    facts = [f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds", "64 GPUs", "the artifact's world"]
    if settings.get("jobs"):
        facts.append(f"only the first {settings['jobs']} jobs of each trace, so without published values")
    return render(
        "page.html.j2",
        outcome,
        title="Muri (SIGCOMM 2022), published and run again",
        data=settings.get("data", ""),
        facts=facts,
        sections=list(_sections(outcome)),
        marks=MARKS.items(),
        percentile_rule=PERCENTILE_RULE,
    )


def _sections(outcome: MuriOutcome) -> Iterator[PaperSection]:
    for key, figure in FIGURES.items():
        rows = [row for row in outcome.bars if row.figure == key]
        if rows:
            yield _figure(figure, rows)
    yield from sections(outcome)


def _figure(figure: Figure, rows: Sequence[compare.Comparison]) -> PaperSection:
    own = any(row.own_ratio is not None for row in rows)
    lead = (
        "Each bar over the figure's Muri, which is 1. Left: the settings behind the published bars; the line across a "
        "bar is the published ratio, a dashed box its published range where the trace's own value is not known. "
    )
    guarded, fair = "one setting for all, the guard on and continuous order", "rounds of 360 s, one placement, start-up"
    lead += (
        f"Middle: {guarded}. Right: plait's own world, {fair} charged to jobs that start."
        if own
        else (f"Right: {guarded}.")
    )
    charts = [chart for metric in figure.metrics for chart in _charts(figure, metric, rows, own)]
    head = [
        "trace", "metric", "bar", "setting", "ours", "authors'", "off by", "over Muri", "paper", "guard on",
        "guard on, over Muri",
    ]  # fmt: skip
    head += ["plait's world", "plait's world, over Muri"] if own else []
    short = f"Figure {figure.key}"
    title = f"{short}: {figure.title.lower()}"
    section = PaperSection(
        f"figure-{figure.key}", short, title, f"{lead} {figure.note}", charts, head, 4, across=3 if own else 2
    )
    for row in rows:
        same = [r for r in rows if (r.trace, r.metric) == (row.trace, row.metric)]
        largest = max(r.ours_s for r in same)
        theirs = "" if row.published_s is None else f"{seconds(row.published_s, largest)} ({row.mark})"
        cells = (
            figure.label(row.trace), METRICS[row.metric], row.bar, row.policy, seconds(row.ours_s, largest), theirs,
            off(row.ours_to_published), f"{row.ratio:.2f}", paper(row.paper_low, row.paper_high),
            seconds(row.consistent_s, largest), f"{row.consistent_ratio:.2f}",
            "" if row.own_s is None else seconds(row.own_s, largest), paper(row.own_ratio, row.own_ratio),
        )  # fmt: skip
        section.rows.append({"cells": cells[: len(head)], "first": row is same[0]})
    return section


def _charts(figure: Figure, metric: str, rows: Sequence[compare.Comparison], own: bool) -> list[Markup]:
    """One metric in each world, on one scale and in one set of colours."""
    chosen = [row for row in rows if row.metric == metric]
    worlds = {
        "as published": [GroupedBar(figure.label(r.trace), r.bar, r.ratio, *_published(r)) for r in chosen],
        "guard on everywhere": [GroupedBar(figure.label(r.trace), r.bar, r.consistent_ratio) for r in chosen],
    }
    if own:
        worlds["plait's own world"] = [GroupedBar(figure.label(r.trace), r.bar, known(r.own_ratio)) for r in chosen]
    top = max(highest_of(bars) for bars in worlds.values())
    return [
        Markup(grouped_bars_svg(f"{METRICS[metric]} over Muri, {world}", bars, width=1520 // len(worlds), up_to=top))
        for world, bars in worlds.items()
    ]


def _published(row: compare.Comparison) -> tuple[float, float]:
    """Low and high of the paper's ratio; Muri's own bar is 1 by definition, so nothing is marked there."""
    return known(row.paper_low), known(row.paper_high)


def reproduce_muri(request: MuriRequest) -> None:
    asked, printer = _Asked(request), console(error=request.json == STDOUT)

    def shown(outcome: MuriOutcome) -> Iterator[Table]:
        squeezed = False

        def fits(table: Table) -> bool:
            nonlocal squeezed
            squeezed |= not (fitting := printer.fits(table))
            return fitting

        yield from tables(outcome, fits)
        if squeezed:
            note("a wider terminal shows more columns; --json and --report have all of them")

    publish(request, lambda: asked.outcome(EVALUATION.finish(asked.cases, request)), shown, page)


class _Asked:
    """The requested figures, as far as the data folder has their files."""

    def __init__(self, request: MuriRequest) -> None:
        if request.matching not in MATCHINGS:
            raise InputError(f"--matching {request.matching!r}; {suggest(request.matching, MATCHINGS)}")
        if request.jobs is not None and request.jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {request.jobs}")
        keys = chosen(request.figure)
        self.request = request
        self.folder = compare.Folder(request.data, request.jobs, request.matching, request.own)
        self.figures = compare.figures(keys)
        self.notes = [
            f"figure {figure.key} is without {', '.join(names)}: not in {request.data}"
            for figure in self.figures
            if (names := compare.missing(figure, self.folder))
        ]
        self.notes += [
            f"{trace}.csv is left out of plait's own world: {why}"
            for trace in dict.fromkeys(trace for figure in self.figures for trace in figure.traces)
            if (why := self.folder.not_in_own(trace))
        ]
        self.noise = "14" in keys and self._there("figure 14", not self.folder.has(NOISE_TRACE), [f"{NOISE_TRACE}.csv"])
        # The testbed's trace is short and its logs are whole, so it is always run whole.
        self.bed = compare.Folder(request.data, None, request.matching, request.own)
        names = testbed.missing(self.bed, logs=False)
        self.tables = "tables" in keys and self._there("tables 4 and 5", bool(names), names)
        self.over_time = "8" in keys and self._there("figure 8", bool(names), names)
        self.models = "table1" in keys
        cells = compare.themis_cases(self.bed) if request.jobs is None else {}
        self.themis = "themis" in keys and self._there("Themis", not cells, ["whole traces of figure 10"])
        names = testbed.missing(self.bed, logs=True)
        self.testbed = "testbed" in keys and self._there("the comparison with the testbed", bool(names), names)
        wanted = [case for figure in self.figures for case in compare.cases_of(figure, self.folder)]
        wanted += noise.cases(self.folder) if self.noise else []
        wanted += testbed.cases(self.bed).values() if self.tables or self.testbed else []
        wanted += resources.cases(self.bed) if self.over_time else []
        wanted += compare.themis_cases(self.bed).values() if self.themis else []
        self.cases = wanted
        if not wanted and keys != ("table1",):
            raise InputError(
                f"nothing to run: {request.data} has none of the files of what was asked for ({self.notes[0]}"
                f"{'; and so on' if self.notes[1:] else ''}); they are in github.com/Rivendile/Muri"
            )

    def _there(self, what: str, lacks: bool, names: list[str]) -> bool:
        if lacks:
            self.notes.append(f"{what} is left out without {', '.join(names)}: not in {self.request.data}")
        return not lacks

    def outcome(self, done: dict[Case, Done]) -> MuriOutcome:
        """The comparison, once the runs are done."""
        facts = {"data": str(self.request.data), "version": __version__, "matching": self.request.matching}
        return MuriOutcome.of(
            done.values(),
            {**facts, "jobs": self.request.jobs},
            self.notes,
            bars=[row for figure in self.figures for row in compare.rows_of(figure, self.folder, done)],
            noise=noise.rows_of(self.folder, done) if self.noise else [],
            tables=testbed.table_rows(self.bed, done) if self.tables else [],
            testbed=testbed.error_rows(self.bed, done) if self.testbed else [],
            over_time=resources.over_time(self.bed, done) if self.over_time else [],
            models=resources.models() if self.models else [],
            themis=compare.themis_rows(self.bed, done) if self.themis else [],
        )


# -- Everything one `plait reproduce muri` found, and its tables for the terminal --------------------------

UNITS = (("s", 1.0), ("h", 3600.0), ("d", 86400.0))
TABLE_METRICS = {**METRICS, "queue_length": "mean queue (figure 8)"}


@dataclass(frozen=True, kw_only=True)
class MuriOutcome(Outcome):
    """Rows by kind."""

    bars: Sequence[compare.Comparison] = ()
    noise: Sequence[NoiseRow] = ()
    tables: Sequence[TableRow] = ()
    testbed: Sequence[ErrorRow] = ()
    over_time: Sequence[OverTimeRow] = ()
    models: Sequence[ModelRow] = ()
    themis: Sequence[compare.ThemisRow] = ()


def tables(outcome: MuriOutcome, fits: Callable[[Table], bool] = lambda table: True) -> Iterator[Table]:
    """One table a figure that has rows; a figure's without the columns least needed until it `fits`."""
    for key, figure in FIGURES.items():
        rows = [row for row in outcome.bars if row.figure == key]
        if rows:
            yield _figure_table(f"Figure {key}: {figure.title.lower()}", rows, figure.note, fits)
    for section in sections(outcome):
        yield section.table()


def seconds(value: float, largest: float) -> str:
    """Seconds in a unit that suits the largest of them.

    >>> seconds(172800, 172800), seconds(90, 100)
    ('2.00 d', '90 s')
    """
    unit, factor = [u for u in UNITS if largest >= 2 * u[1] or u[1] == 1.0][-1]
    return f"{value / factor:,.2f} {unit}" if factor > 1 else f"{value:,.0f} {unit}"


def paper(low: float | None, high: float | None) -> str:
    """A ratio or a range of ratios.

    >>> paper(1.5, 2.26), paper(2.0, 2.0), paper(None, None)
    ('1.50 to 2.26', '2.00', '')
    """
    if low is None or high is None:
        return ""
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def off(ratio: float | None) -> str:
    """How far from 1 a ratio is, in percent.

    >>> off(1.0214), off(1.0000001), off(None)
    ('+2.14 %', '0.00 %', '')
    """
    if ratio is None:
        return ""
    percent = round(100 * (ratio - 1), 2)
    return f"{percent:+.2f} %" if percent else "0.00 %"


def _figure_table(title: str, rows: Sequence[compare.Comparison], note: str, fits: Callable[[Table], bool]) -> Table:
    left_out = set() if any(row.own_ratio is not None for row in rows) else {OWN}
    for name in ("", *LEAST_NEEDED):
        left_out.add(name)
        columns = {text: cell for text, cell in COLUMNS.items() if text not in left_out}
        grid = _grid(title, ("trace", "metric", "bar"), tuple(columns))
        grid.caption = note
        for i, row in enumerate(rows):
            same = [r for r in rows if (r.trace, r.metric) == (row.trace, row.metric)]
            largest = max(r.ours_s for r in same)
            first = row is same[0]
            grid.add_row(
                FIGURES[row.figure].label(row.trace) if first else "",
                METRICS[row.metric] if first else "",
                row.bar,
                *(cell(row, largest) for cell in columns.values()),
                end_section=i + 1 == len(rows) or row is same[-1],
            )
        if fits(grid):
            break
    return grid


OWN = "plait's world,\nover Muri"
#: Columns of a figure's table, and their text, given the row's largest value.
COLUMNS: dict[str, Callable[[compare.Comparison, float], str]] = {
    "ours": lambda row, largest: seconds(row.ours_s, largest),
    "authors'": lambda row, largest: "" if row.published_s is None else seconds(row.published_s, largest),
    "off by": lambda row, largest: off(row.ours_to_published),
    "over Muri": lambda row, largest: f"{row.ratio:.2f}",
    "paper": lambda row, largest: paper(row.paper_low, row.paper_high),
    "guard on": lambda row, largest: seconds(row.consistent_s, largest),
    "guard on,\nover Muri": lambda row, largest: f"{row.consistent_ratio:.2f}",
    OWN: lambda row, largest: paper(row.own_ratio, row.own_ratio),
}
#: Columns to drop when there is no room, the first one first; the page and the JSON have all.
LEAST_NEEDED = ("guard on", "authors'", "ours", "guard on,\nover Muri", "off by")


def sections(outcome: MuriOutcome) -> Iterator[PaperSection]:
    """Everything but the figures of bars, one section a kind of rows."""
    parts: Sequence[tuple[Sequence[Any], Callable[[Any], PaperSection]]] = (
        (outcome.noise, _noise), (outcome.tables, _tables), (outcome.testbed, _errors),
        (outcome.over_time, over_time_section), (outcome.models, models_section), (outcome.themis, _themis),
    )  # fmt: skip
    for rows, section in parts:
        if rows:
            yield section(rows)


def _noise(rows: Sequence[NoiseRow]) -> PaperSection:
    charts = []
    for label, name in (("Mean JCT", "jct_ratio"), ("Makespan", "makespan_ratio")):
        bars = [GroupedBar(f"n = {r.noise:g}", f"{r.policy}, {r.world}", getattr(r, name)) for r in rows]
        charts.append(Markup(grouped_bars_svg(f"{label} over that without noise", bars)))
    return PaperSection.of(
        "figure-14", "Figure 14: profile noise",
        f"Stage times are seen as multiplied by U[1-n, 1+n]; jobs run as they are. Trace 3, {len(SEEDS)} seeds. No "
        "data is published. Paper: mean JCT x1.0 to x1.3 from n = 0 to 1, below 1 % for n <= 0.2; makespan x1.",
        ("world", "policy", "noise", "mean JCT over none", "lowest seed", "highest seed", "makespan over none"), 2,
        [
            (r.world, r.policy, f"{r.noise:g}", f"{r.jct_ratio:.3f}", f"{r.jct_low:.3f}", f"{r.jct_high:.3f}",
             f"{r.makespan_ratio:.3f}")
            for r in rows
        ],
        charts,
    )  # fmt: skip


def _tables(rows: Sequence[TableRow]) -> PaperSection:
    charts = []
    for metric, label in TABLE_METRICS.items():
        bars = [
            GroupedBar(label, r.policy, known(r.ratio), r.paper_ratio, r.paper_ratio)
            for r in rows
            if r.metric == metric and metric in METRICS
        ]
        charts += [Markup(grouped_bars_svg(f"{label} over Muri", bars, width=506))] if bars else []
    found = []
    for row in rows:
        largest, plain = max(r.ours for r in rows if r.metric == row.metric), row.metric == "queue_length"
        shown = [f"{v:.1f}" if plain else seconds(v, largest) for v in (row.ours, row.published)]
        found.append((
            TABLE_METRICS[row.metric], row.policy, shown[0], shown[1], off(row.ours / row.published),
            paper(row.ratio, row.ratio), _span(row.interval), f"{row.paper_ratio:.2f}", _span(row.paper_interval),
        ))  # fmt: skip
    return PaperSection.of(
        "tables", "Tables 4 and 5: the testbed trace, simulated with 360 s rounds, next to the 64-GPU testbed",
        "SRTF and SRSF are over Muri-S, Tiresias and Themis over Muri-L. 95 %: of the ratio over 1,000 draws of the "
        "jobs with replacement, from our run and from the testbed's logs.",
        ("metric", "policy", "ours", "testbed", "off by", "over Muri", "95 %", "paper", "95 %"), 2, found, charts, 3,
    )  # fmt: skip


def _span(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def _errors(rows: Sequence[ErrorRow]) -> PaperSection:
    return PaperSection.of(
        "testbed", "Simulator against the testbed's logs (simulated / logged - 1)",
        "job: of each job's completion time; within 5 %: mean JCT and makespan",
        ("policy", "mean JCT", "makespan", "p99 JCT", "run time", "job p10", "job median", "job p90", "within 5 %"), 1,
        [
            (r.policy, *(off(1 + v) for v in (
                r.avg_jct, r.makespan, r.p99_jct, r.run_time, r.job_p10, r.job_median, r.job_p90
            )), "yes" if r.within else "no")
            for r in rows
        ],
    )  # fmt: skip


def _themis(rows: Sequence[compare.ThemisRow]) -> PaperSection:
    return PaperSection.of(
        "themis", "Themis: each published cell of figure 10, by how its free shares are settled",
        "The released code minimises the largest rho, which one job often decides alone; the shares of others are then "
        "what its solver stops at. fair: the next largest rho as small as can be. centre: the analytic centre of all "
        "best shares. equal: the same for all, with which it goes on where its solvers fail.",
        ("trace", "metric", "published", *(f"{way}, off by" for way in SHARES), "nearest"), 2,
        [
            (LABELS[r.trace], METRICS[r.metric], seconds(r.published_s, r.published_s), *(off(v) for v in r.ratios),
             SHARES[min(range(len(SHARES)), key=lambda i: abs(math.log(r.ratios[i])))])
            for r in rows
        ],
    )  # fmt: skip


def _grid(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    grid = Table(title=title, title_justify="left", header_style="bold", caption_justify="left")
    for name in texts:
        grid.add_column(name, no_wrap=True)
    for name in numbers:
        grid.add_column(name, justify="right")
    return grid


def known(value: float | None) -> float:
    """NaN for what is not known."""
    return math.nan if value is None else value
