"""`plait reproduce pollux`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from plait.core.version import __version__
from plait.report.charts import GroupedBar, grouped_bars_svg
from plait.sim.studies.cases import parse_range
from plait_papers.evaluation import publish
from plait_papers.pages import PaperSection, render
from plait_papers.pollux.compare import (
    AUTHORS,
    HEAD,
    LABELS,
    METRICS,
    STUDIES,
    Comparison,
    Point,
    PolluxOutcome,
    cells,
    chosen,
    filled,
    is_published,
    over_workloads,
    points,
    rows_of,
    tables,
)
from plait_papers.pollux.runs import EVALUATION
from plait_papers.pollux.world import PERCENTILE_RULE
from plait_papers.requests import PolluxRequest

# The comparison as one self-contained HTML page.

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


def _sections(outcome: PolluxOutcome) -> Iterator[PaperSection]:
    for number, workload in enumerate(dict.fromkeys(row.workload for row in outcome.rows)):
        for study in ("", *STUDIES):
            rows = [row for row in outcome.rows if (row.workload, row.study) == (workload, study)]
            if rows:
                yield _section(f"{study or 'policies'}-{number}", workload, study, rows)


def _section(name: str, workload: str, study: str, rows: Sequence[Comparison]) -> PaperSection:
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
    section = PaperSection(
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


def reproduce_pollux(request: PolluxRequest) -> None:
    seeds, studies = parse_range(request.seeds, "seeds"), chosen(request.study, STUDIES, "study")
    given = request.workload or [request.data / "workload-6.csv"]
    files = [file for path in given for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    only = chosen(request.policy, LABELS, "policy") or tuple(LABELS)
    every = (point for file in files for point in points(file, request.data, studies, seeds, request.jobs))
    asked: list[Point] = []
    for point in every:
        alone = point.study == "autoscale"  # of no workload, so once
        if (point.policy in only and not alone) or (alone and point not in asked):
            asked.append(point)
    foreign = [str(file) for file in files if request.jobs is not None or not is_published(file)]
    why = "they are of the whole workloads of the artifact"
    notes = [f"no published values for {', '.join(foreign)}: {why}"] if foreign else []

    def outcome() -> PolluxOutcome:
        done = EVALUATION.finish((case for point in asked for case in point.cases), request)
        cpu_s: dict[str, list[float]] = defaultdict(list)
        for point in asked:
            if not point.study:
                cpu_s[point.policy] += [done[case].cpu_s for case in point.cases]
        rows = [row for point in asked for row in rows_of(point, done)]
        return PolluxOutcome.of(
            done.values(),
            {"data": str(request.data), "version": __version__, "seeds": request.seeds, "jobs": request.jobs},
            notes,
            cpu_by_policy={policy: sum(values) / len(values) for policy, values in cpu_s.items()},
            rows=[*rows, *over_workloads(rows)],
        )

    publish(request, outcome, tables, page)
