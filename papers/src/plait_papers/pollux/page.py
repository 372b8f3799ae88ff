"""The comparison as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from plait.report.charts import GroupedBar, grouped_bars_svg
from plait_papers.pages import Section, render
from plait_papers.pollux.compare import AUTHORS, HEAD, METRICS, STUDIES, Comparison, PolluxOutcome, cells, filled
from plait_papers.pollux.world import PERCENTILE_RULE

CHARTS = ("avg_jct_s", "p99_jct_s")


def page(outcome: PolluxOutcome) -> str:
    """The page as text; a function of the outcome."""
    settings = outcome.settings
    facts = [f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds", "64 GPUs", "the artifact's world"]
    return render(
        "pollux.html.j2",
        outcome,
        title="Pollux (OSDI 2021), published and run again",
        data=settings.get("data", ""),
        facts=facts,
        sections=list(_sections(outcome)),
        percentile_rule=PERCENTILE_RULE,
        authors=AUTHORS,
    )


def _sections(outcome: PolluxOutcome) -> Iterator[Section]:
    for number, workload in enumerate(dict.fromkeys(row.workload for row in outcome.rows)):
        for study in ("", *STUDIES):
            rows = [row for row in outcome.rows if (row.workload, row.study) == (workload, study)]
            if rows:
                yield _section(f"{study or 'policies'}-{number}", workload, study, rows)


def _section(name: str, workload: str, study: str, rows: Sequence[Comparison]) -> Section:
    def bars(metric: str) -> list[GroupedBar]:
        return [
            GroupedBar(row.at or METRICS[metric], row.label, row.ours, *_mark(row))
            for row in rows
            if row.metric == metric
        ]

    charts = [Markup(grouped_bars_svg(f"{METRICS[metric]}, s", bars(metric))) for metric in CHARTS]
    what = STUDIES[study] if study else "all policies as published"
    lead = "Seconds."
    if any(row.published is not None for row in rows):
        lead = "Seconds; the line across a bar is the published value, of the genetic search where Pollux is concerned."
    columns = filled(rows)
    short = study or workload
    section = Section(
        name, short, f"{workload}: {what}", lead, charts, ("policy", "at", "metric", *(HEAD[i] for i in columns)), 3
    )
    before = ""
    for row in rows:
        shown: dict[str, Any] = {
            "cells": (row.label, row.at, METRICS[row.metric], *(cells(row)[i] for i in columns)),
            "first": row.label + row.at != before,
        }
        before = row.label + row.at
        section.rows.append(shown)
    return section


def _mark(row: Comparison) -> tuple[float, float]:
    value = float("nan") if row.published is None else row.published
    return value, value
