"""The comparison as one self-contained HTML page: charts like the paper's figures, and tables with provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from plait.report.charts import GroupedBar, grouped_bars_svg, highest_of
from plait_papers.muri.artifact.trace import PERCENTILE_RULE
from plait_papers.muri.compare import Comparison
from plait_papers.muri.figures import FIGURES, METRICS, Figure
from plait_papers.muri.outcome import MuriOutcome, known, off, paper, seconds, sections
from plait_papers.muri.published import MARKS
from plait_papers.pages import Section, render


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


def _sections(outcome: MuriOutcome) -> Iterator[Section]:
    for key, figure in FIGURES.items():
        rows = [row for row in outcome.bars if row.figure == key]
        if rows:
            yield _figure(figure, rows)
    yield from sections(outcome)


def _figure(figure: Figure, rows: Sequence[Comparison]) -> Section:
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
    section = Section(
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
