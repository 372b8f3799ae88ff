"""`plait reproduce muri`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup
from rich.table import Table

from plait.cli.experiments.outputs import STDOUT
from plait.cli.render.console import console
from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.live.notes import note
from plait.report.charts import GroupedBar, grouped_bars_svg, highest_of
from plait_papers.evaluation import publish
from plait_papers.muri import noise, resources, testbed
from plait_papers.muri.artifact.interleaved import MATCHINGS
from plait_papers.muri.artifact.trace import PERCENTILE_RULE
from plait_papers.muri.compare import Comparison, Folder, cases_of, figures, missing, rows_of, themis_cases, themis_rows
from plait_papers.muri.figures import FIGURES, METRICS, NOISE_TRACE, Figure, chosen
from plait_papers.muri.outcome import MuriOutcome, known, off, paper, seconds, sections, tables
from plait_papers.muri.published import MARKS
from plait_papers.muri.runs import EVALUATION, Case, Done
from plait_papers.pages import PaperSection, render
from plait_papers.requests import MuriRequest

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


def _figure(figure: Figure, rows: Sequence[Comparison]) -> PaperSection:
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


def _charts(figure: Figure, metric: str, rows: Sequence[Comparison], own: bool) -> list[Markup]:
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


def _published(row: Comparison) -> tuple[float, float]:
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
        self.folder = Folder(request.data, request.jobs, request.matching, request.own)
        self.figures = figures(keys)
        self.notes = [
            f"figure {figure.key} is without {', '.join(names)}: not in {request.data}"
            for figure in self.figures
            if (names := missing(figure, self.folder))
        ]
        self.notes += [
            f"{trace}.csv is left out of plait's own world: {why}"
            for trace in dict.fromkeys(trace for figure in self.figures for trace in figure.traces)
            if (why := self.folder.not_in_own(trace))
        ]
        self.noise = "14" in keys and self._there("figure 14", not self.folder.has(NOISE_TRACE), [f"{NOISE_TRACE}.csv"])
        # The testbed's trace is short and its logs are whole, so it is always run whole.
        self.bed = Folder(request.data, None, request.matching, request.own)
        names = testbed.missing(self.bed, logs=False)
        self.tables = "tables" in keys and self._there("tables 4 and 5", bool(names), names)
        self.over_time = "8" in keys and self._there("figure 8", bool(names), names)
        self.models = "table1" in keys
        self.themis = "themis" in keys and request.jobs is None and bool(themis_cases(self.bed))
        names = testbed.missing(self.bed, logs=True)
        self.testbed = "testbed" in keys and self._there("the comparison with the testbed", bool(names), names)
        wanted = [case for figure in self.figures for case in cases_of(figure, self.folder)]
        wanted += noise.cases(self.folder) if self.noise else []
        wanted += testbed.cases(self.bed).values() if self.tables or self.testbed else []
        wanted += resources.cases(self.bed) if self.over_time else []
        wanted += themis_cases(self.bed).values() if self.themis else []
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
            bars=[row for figure in self.figures for row in rows_of(figure, self.folder, done)],
            noise=noise.rows_of(self.folder, done) if self.noise else [],
            tables=testbed.table_rows(self.bed, done) if self.tables else [],
            testbed=testbed.error_rows(self.bed, done) if self.testbed else [],
            over_time=resources.over_time(self.bed, done) if self.over_time else [],
            models=resources.models() if self.models else [],
            themis=themis_rows(self.bed, done) if self.themis else [],
        )
