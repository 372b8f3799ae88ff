"""`plait reproduce ina`: find out which runs are needed, make them, show and write the comparison."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.report.charts import ChartLine, lines_svg
from plait_papers.evaluation import publish
from plait_papers.ina.cases import EVALUATION
from plait_papers.ina.compare import HEAD, SECTIONS, Compared, InaOutcome, cells, compared, rows, tables
from plait_papers.ina.reference import AGGREGATORS, GOODPUT
from plait_papers.pages import PaperSection, render
from plait_papers.requests import InaRequest


def reproduce_ina(request: InaRequest) -> None:
    sections = _sections(request.section)
    asked = list(rows(sections))

    def outcome() -> InaOutcome:
        done = EVALUATION.finish((case for row in asked for case in row.cases), request)
        settings = {"version": __version__, "sections": list(sections)}
        return InaOutcome.of(done.values(), settings, rows=list(compared(asked, done)))

    publish(request, outcome, tables, page)


def _sections(text: str | None) -> tuple[str, ...]:
    if not text:
        return tuple(SECTIONS)
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if part not in SECTIONS:
            raise InputError(f"--section: {part!r} does not exist; {suggest(part, SECTIONS)}")
    return found


# -- The comparison as one self-contained HTML page --------------------------------------------------------


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
        sections=list(_page_sections(outcome)),
    )


def _page_sections(outcome: InaOutcome) -> Iterator[PaperSection]:
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
