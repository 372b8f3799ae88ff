"""Results as a table in the terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from plait.control.compare import Comparison, compare
from plait.control.metrics import RunResult
from plait.report.costs import costs_json
from plait.report.files import whole_file, write_text
from plait.report.metrics import METRICS, Metric, best, show, time_unit, unit_of


def labels(rows: Sequence[Comparison]) -> list[str]:
    """The shortest texts that distinguish the rows: the policy, and all else that differs."""
    parts = [[row.policy] for row in rows]
    for name in ("trace", "world", "cluster"):
        values = [getattr(row, name) for row in rows]
        if len(set(values)) > 1:
            for part, value in zip(parts, values, strict=True):
                part.append(value)
    return [" · ".join(p for p in part if p) or "run" for part in parts]


def figure(row: Comparison, metric: Metric) -> float:
    """The mean of a figure; NaN if the runs do not have it."""
    estimate = row.figures.get(metric.key)
    return math.nan if estimate is None else estimate.mean


def time_unit_of(rows: Sequence[Comparison]) -> tuple[str, float]:
    """The unit of all times of a table of these rows: by the average completion times, which are always in it."""
    means = [row.figures["avg_jct_s"].mean for row in rows if "avg_jct_s" in row.figures]
    spans = [row.figures["makespan_s"].mean for row in rows if "makespan_s" in row.figures]
    return time_unit(means if any(math.isfinite(v) for v in means) else spans)


def comparable(rows: Sequence[Comparison]) -> list[list[int]]:
    """Indices of rows on the same trace, world and cluster: only these compete for the best."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault((row.trace, row.world, row.cluster), []).append(i)
    return list(groups.values())


def baselines(rows: Sequence[Comparison]) -> list[int]:
    """For each row the one of the same policy, trace and world on the cluster that was given first; maybe itself."""
    first: dict[tuple[str, str, str], int] = {}
    return [first.setdefault((row.trace, row.policy, row.world), i) for i, row in enumerate(rows)]


def change(value: float, before: float) -> str:
    """Relative change of a value from the first cluster, to print behind it; "" if undefined.

    >>> change(75.0, 100.0), change(1.0, 0.0)
    (' (-25 %)', '')
    """
    if not (math.isfinite(value) and math.isfinite(before) and before):
        return ""
    return f" ({value / before - 1:+.0%})".replace("%", " %")


def comparison_table(results: Iterable[RunResult], metrics: Sequence[Metric] | None = None) -> Table:
    """A `rich` table: one row a policy (means over seeds), the best of each column bold with a star.

    Figures that no row has are left out.
    """
    rows = compare(results)
    chosen = known(rows, [m for m in METRICS if m.main] if metrics is None else metrics)
    table = Table(title=_title(rows), title_justify="left", header_style="bold", caption_justify="left")
    table.add_column("policy", no_wrap=True)
    texts, starred = [[Text(label)] for label in labels(rows)], False
    for metric in chosen:
        values = [figure(row, metric) for row in rows]
        unit, factor = unit_of(metric, values, time_unit_of(rows))
        winners = {
            i for group in comparable(rows) for i in group if values[i] == best(metric, [values[j] for j in group])
        }
        starred |= bool(winners)
        table.add_column(f"{metric.label} ({unit})" if unit else metric.label, justify="right")
        before = baselines(rows)
        for i, value in enumerate(values):
            text = show(value, factor) + change(value, values[before[i]] if before[i] != i else math.nan)
            texts[i].append(Text(f"* {text}", style="bold green") if i in winners else Text(text))
    for cells in texts:
        table.add_row(*cells)
    table.caption = _caption(rows, starred) or None
    return table


def known(rows: Sequence[Comparison], metrics: Iterable[Metric]) -> list[Metric]:
    """The ones of the figures that some row has."""
    return [metric for metric in metrics if any(math.isfinite(figure(row, metric)) for row in rows)]


def _title(rows: Sequence[Comparison]) -> str:
    shared = []
    for name in ("trace", "cluster", "world"):
        values = {getattr(row, name) for row in rows} - {""}
        if len(values) == 1:
            shared.append(f"{name} {values.pop()}")
    return ", ".join(shared)


def _caption(rows: Sequence[Comparison], starred: bool) -> str:
    seeds = max((row.runs for row in rows), default=0)
    several = [name for name in ("trace", "world", "cluster") if len({getattr(row, name) for row in rows}) > 1]
    marked = f"* best of its {' and '.join(several)}" if several else "* best"
    notes = ([marked] if starred else []) + ([f"means over {seeds} seeds"] if seeds > 1 else [])
    if baselines(rows) != list(range(len(rows))):
        notes.append("in brackets: the change from the first cluster")
    open_jobs = sum(row.figures["unfinished"].mean > 0 for row in rows if "unfinished" in row.figures)
    if open_jobs:
        notes.append(f"{open_jobs} with jobs that did not end, so without averages")
    return "; ".join(notes)


def write_json(results: Iterable[RunResult], path: str | Path) -> None:
    """A list of summaries, one object a run, null for what is unknown; with prices, `costs` by project and user."""
    summaries: list[dict[str, Any]] = []
    for result in results:
        money = costs_json(result)
        summaries.append({**result.to_json(), **({} if money is None else {"costs": money})})
    write_text(path, json.dumps(summaries, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_csv(results: Iterable[RunResult], path: str | Path) -> None:
    """One row a run, one column a figure, empty for what is unknown."""
    rows = [result.to_json() for result in results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    _write_rows(path, names, ([row.get(name) for name in names] for row in rows))


def write_jobs_csv(result: RunResult, path: str | Path) -> None:
    """The per-job table of one run, every job."""
    columns = [column.tolist() for column in result.jobs.values()]
    _write_rows(path, list(result.jobs), zip(*columns, strict=True))


def _write_rows(path: str | Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with whole_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow("" if isinstance(v, float) and math.isnan(v) else v for v in row)
