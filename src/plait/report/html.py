"""The report of a run: one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plait.control.compare import Comparison, compare
from plait.control.metrics import RunResult
from plait.report.costs import cost_sections
from plait.report.files import write_text
from plait.report.metrics import METRICS, Metric, best, show, unit_of
from plait.report.payload import embed, run_payload, shares
from plait.report.tables import baselines, change, comparable, figure, labels, time_unit_of

#: Rows of the job table, and bars of the Gantt chart, in a whole report; runs share them equally.
ROWS = 20_000
SCRIPTS = ("util.js", "charts.js", "gantt.js", "tables.js")
COUNTS = ("jobs", "finished", "failed", "cancelled", "refused", "unfinished", "events")


def write_html(
    results: Sequence[RunResult],
    path: str | Path,
    *,
    title: str = "",
    settings: Mapping[str, str] | None = None,
    rows: int = ROWS,
) -> None:
    """Write the report of `results` to `path`; `title`, `settings` and `rows` as for `html_report`."""
    write_text(path, html_report(results, title=title, settings=settings, rows=rows))


def html_report(
    results: Sequence[RunResult],
    *,
    title: str = "",
    settings: Mapping[str, str] | None = None,
    rows: int = ROWS,
) -> str:
    """The report as text; a function of its arguments.

    `settings` are shown as given (load, overheads, command line, ...). `rows` bounds the jobs and the Gantt
    bars that go into the file, over all runs; the report states what is left out. Runs that differ only
    in their seed are one row of the comparison, and charts show the first of them.
    """
    groups = compare(results)
    names = labels(groups)
    shown = [_first(results, group) for group in groups]
    limit = shares(rows, shown)
    data = {"runs": [run_payload(r, name, limit) for r, name in zip(shown, names, strict=True)]}
    environment = Environment(
        loader=PackageLoader("plait.report"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    columns = table_columns(groups)
    return environment.get_template("report.html.j2").render(
        title=title or _title(groups, names),
        version=version(),
        facts=_facts(results, names),
        warnings=_warnings(results),
        cards=_cards(groups, names),
        columns=columns,
        rows=[table_row(i, groups, names, columns) for i in range(len(groups))],
        table_note=_table_note(groups),
        costs=cost_sections(shown, names),
        settings=_settings(results, settings or {}),
        run_columns=["Run", "Seed", *(c.capitalize() for c in COUNTS), "Wall time (s)"],
        runs=_runs(results, groups, names),
        data=Markup(embed(data)),
        css=Markup(asset("report.css")),
        echarts=Markup(asset("echarts.common.min.js")),
        script=Markup("\n".join(asset(name) for name in SCRIPTS)),
    )


def asset(name: str) -> str:
    """A style sheet or script of the reports."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def version() -> str:
    """The version of plait that writes a report."""
    try:
        return installed_version("plait")
    except PackageNotFoundError:
        return "from source"


def _key(result: RunResult) -> tuple[str, str, str, str]:
    s = result.summary
    return str(s["trace"]), str(s["policy"]), str(s["world"]), str(s["cluster"])


def _first(results: Sequence[RunResult], group: Comparison) -> RunResult:
    return next(r for r in results if _key(r) == (group.trace, group.policy, group.world, group.cluster))


def _title(groups: Sequence[Comparison], names: Sequence[str]) -> str:
    traces = list(dict.fromkeys(g.trace for g in groups if g.trace))
    on = f" on {', '.join(traces)}" if traces else ""
    count = len({g.policy for g in groups})
    what = names[0] if len(names) == 1 else f"{count} polic{'y' if count == 1 else 'ies'}"
    return f"{what}{on}"


def _facts(results: Sequence[RunResult], names: Sequence[str]) -> list[str]:
    def several(name: str) -> str:
        values = list(dict.fromkeys(str(r.summary.get(name, "")) for r in results))
        return ", ".join(v for v in values if v)

    jobs = sorted({int(r.summary["jobs"]) for r in results})
    count = " to ".join(f"{n:,}" for n in sorted({jobs[0], jobs[-1]})) if jobs else "0"
    facts = [f"{count} jobs", f"{several('gpus')} GPUs ({several('cluster')})"]
    facts += [f"{name}: {several(name)}" for name in ("world", "trace") if several(name)]
    seeds = {str(r.summary.get("seed", "")) for r in results}
    return [*facts, f"{len(results)} runs" + (f", {len(seeds)} seeds" if len(seeds) > 1 else "")]


def _warnings(results: Sequence[RunResult]) -> list[str]:
    out = []
    for name, text in (
        ("unfinished", "did not end in the time of the run; that run has no averages over jobs"),
        ("refused", "can never run on this cluster and were refused when they were submitted"),
        ("failed", "failed"),
    ):
        hit = [r for r in results if int(r.summary[name]) > 0]
        if hit:
            numbers = sorted({int(r.summary[name]) for r in hit})
            count = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
            jobs = "job" if numbers == [1] else "jobs"
            out.append(f"In {len(hit)} of {len(results)} runs {count} {jobs} {text}.")
    return out


def _cards(groups: Sequence[Comparison], names: Sequence[str]) -> list[dict[str, str]]:
    """The winner of each headline figure, with its lead; only where all rows compete."""
    if len(comparable(groups)) != 1 or len(groups) < 2:
        return []
    cards = []
    for key in ("avg_jct_s", "p99_jct_s", "makespan_s", "max_fairness", "gpu_busy"):
        metric = next(m for m in METRICS if m.key == key)
        values = [figure(g, metric) for g in groups]
        winner = best(metric, values)
        if winner is None:
            continue
        unit, factor = unit_of(metric, values, time_unit_of(groups))
        worst = max(v if metric.better == "low" else -v for v in values if math.isfinite(v))
        worst = worst if metric.better == "low" else -worst
        other = names[values.index(worst)]
        more = worst / winner if metric.better == "low" else winner / worst
        word = "lower" if metric.better == "low" else "higher"
        cards.append(
            {
                "label": f"Best {metric.label}",
                "meaning": metric.meaning,
                "value": names[values.index(winner)],
                "note": f"{show(winner, factor)}{f' {unit}' if unit else ''}, {show(more)}× {word} than {other}",
            }
        )
    return cards


def table_columns(groups: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Columns of a comparison: the known figures, with unit and meaning."""
    out = []
    for metric in METRICS:
        values = [figure(g, metric) for g in groups]
        if not any(math.isfinite(v) for v in values):
            continue
        unit, factor = unit_of(metric, values, time_unit_of(groups))
        out.append(
            {
                "metric": metric,
                "label": metric.label,
                "unit": unit,
                "factor": factor,
                "main": metric.main,
                "meaning": metric.meaning,
            }
        )
    return out


def table_row(
    i: int, groups: Sequence[Comparison], names: Sequence[str], columns: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Row `i` of a comparison of `groups` labelled `names`: its label, and a cell per entry of `columns`."""
    rivals = next(group for group in comparable(groups) if i in group)
    before = baselines(groups)[i]
    cells = []
    for column in columns:
        metric: Metric = column["metric"]
        value = figure(groups[i], metric)
        estimate = groups[i].figures.get(metric.key)
        interval = ""
        if estimate is not None and math.isfinite(estimate.low):
            interval = f"{show(estimate.low, column['factor'])} to {show(estimate.high, column['factor'])}"
        other = figure(groups[before], metric) if before != i else math.nan
        cells.append(
            {
                "text": show(value, column["factor"]) + change(value, other),
                "sort": repr(float(value)) if math.isfinite(value) else "",
                "best": value == best(metric, [figure(groups[j], metric) for j in rivals]),
                "interval": interval,
                "main": metric.main,
            }
        )
    return {"label": names[i], "cells": cells}


def _table_note(groups: Sequence[Comparison]) -> str:
    many = max((g.runs for g in groups), default=0)
    seeds = f" Means over {many} seeds with 95 % bootstrap intervals; charts show the first seed." if many > 1 else ""
    if baselines(groups) != list(range(len(groups))):
        seeds += " In brackets: the change from the first cluster."
    rivals = any(len(group) > 1 for group in comparable(groups))
    best_of = "★ best of its column among runs on the same trace, world and cluster; click" if rivals else "Click"
    return f"{best_of} a heading to sort.{seeds}"


def _settings(results: Sequence[RunResult], given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The settings of the runs, from the summaries and from the caller; never empty."""
    out: dict[str, str] = {}
    for name, label in (
        ("trace", "Trace"),
        ("policy", "Policies"),
        ("cluster", "Cluster"),
        ("gpus", "GPUs"),
        ("world", "World"),
        ("seed", "Seeds"),
        ("window", "Jobs that count"),
        ("percentile_rule", "Percentiles"),
    ):
        values = list(dict.fromkeys(str(r.summary.get(name, "")) for r in results))
        out[label] = ", ".join(v for v in values if v) or "not stated"
    out.update({str(name): str(value) for name, value in given.items()})
    out["Version"] = f"plait {version()}"
    return list(out.items())


def _runs(results: Sequence[RunResult], groups: Sequence[Comparison], names: Sequence[str]) -> list[list[str]]:
    label = {(g.trace, g.policy, g.world, g.cluster): name for g, name in zip(groups, names, strict=True)}
    rows = []
    for result in results:
        wall = result.summary.get("wall_s", math.nan)
        counts = [f"{int(result.summary[name]):,}" for name in COUNTS]
        seed = str(result.summary.get("seed", ""))
        rows.append([label[_key(result)], seed, *counts, show(wall) if isinstance(wall, (int, float)) else str(wall)])
    return rows
