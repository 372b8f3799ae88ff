"""The comparison as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from plait.report.charts import ChartLine, lines_svg
from plait_papers.ina.compare import HEAD, SECTIONS, Compared, InaOutcome, cells
from plait_papers.ina.reference import AGGREGATORS, GOODPUT
from plait_papers.pages import PaperSection, render


def page(outcome: InaOutcome) -> str:
    """The page as text; a function of the outcome."""
    judged = [row for row in outcome.rows if row.within is not None]
    facts = [
        f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds",
        f"{sum(bool(row.within) for row in judged)} of {len(judged)} figures within what is allowed",
    ]  # fmt: skip
    return render(
        "ina.html.j2",
        outcome,
        title="In-network aggregation: reference, papers and plait",
        facts=facts,
        sections=list(_sections(outcome)),
    )


def _sections(outcome: InaOutcome) -> Iterator[PaperSection]:
    for key, title in SECTIONS.items():
        rows = [row for row in outcome.rows if row.section == key]
        if not rows:
            continue
        charts = [Markup(_goodput(rows))] if key == "goodput" else []
        shown = [cells(row) for row in rows]
        made = PaperSection(key, key, title, "", charts, HEAD, 1, across=1)
        made.rows.extend({"cells": one, "first": False} for one in shown)
        yield made


def _goodput(rows: list[Compared]) -> str:
    """Goodput over memory: ours, and the reference."""
    ours = {row.what: row.ours for row in rows}
    x = [float(count) for count in AGGREGATORS]
    lines = []
    for protocol, values in GOODPUT.items():
        lines.append(ChartLine(protocol, x, [ours[f"{protocol}, {count:,} aggregators"] for count in AGGREGATORS]))
        lines.append(ChartLine(f"{protocol}, reference", x, list(values)))
    return lines_svg("Goodput of a job, 8 jobs", lines, "aggregators", "Gb/s", width=760, height=420)
