"""Results as a table in the terminal, as JSON and as CSV.

The money of runs as tables: what users and projects cost under each policy.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from plait.control.compare import Comparison, compare
from plait.control.metrics import RunResult
from plait.core.files import whole_file, write_text
from plait.policies.catalog import knowledge
from plait.report.metrics import METRICS, Metric, best, show, time_unit, unit_of

#: Owners of jobs, by the column that names them, and what a job without one is called.
OWNERS = {"project": "no project", "user": "no user"}
#: Rows of a table of owners; the others are one row together.
MOST = 12
PARTS = ("jobs", "cost", "lost", "restarts")


def costs_json(result: RunResult) -> dict[str, Any] | None:
    """The money of a run as plain values, also by project and user; None for a run without prices."""
    costs = result.costs
    if costs is None:
        return None
    return {
        "currency": costs.prices.currency, "per_gpu_h": dict(costs.prices.per_gpu_h), "gpus": costs.gpus,
        "hours": costs.hours, "total": costs.total, "idle": costs.idle, "down": costs.down,
        **{f"by_{owner}": by_owner(result, owner) for owner in OWNERS},
    }  # fmt: skip


def by_owner(result: RunResult, owner: str) -> dict[str, dict[str, float | int]]:
    """Jobs, cost, lost and restarts of the counted jobs of each `user` or `project`, dearest first; "" for no name."""
    found: dict[str, dict[str, float | int]] = {}
    jobs = result.jobs
    for i, name in enumerate(jobs[owner].tolist()):
        row = found.setdefault(str(name), dict.fromkeys(PARTS, 0))
        row["jobs"] += 1
        for part, column in zip(PARTS[1:], ("cost", "cost_lost", "cost_restarts"), strict=True):
            row[part] += float(jobs[column][i])
    return dict(sorted(found.items(), key=lambda one: -one[1]["cost"]))


def owner_rows(results: Sequence[RunResult], names: Sequence[str], owner: str) -> list[list[str]]:
    """One row an owner, dearest under the first run first, one cell a run: money, and the part of it that was lost.

    The last rows are unused GPUs. `names` label the runs, all of which have prices.
    """
    columns = [by_owner(result, owner) for result in results]
    order = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name or OWNERS[owner], *(_money(column.get(name, {})) for column in columns)] for name in order[:MOST]]
    if len(order) > MOST:
        rest = [{part: sum(c[n][part] for n in order[MOST:] if n in c) for part in PARTS} for c in columns]
        rows.append([f"{len(order) - MOST} others", *map(_money, rest)])
    for label, key in (
        ("other jobs", "cost_other_jobs"), ("idle GPUs", "cost_idle"), ("nodes down", "cost_down"),
        ("all GPUs", "cost"),
    ):  # fmt: skip
        values = [float(result.summary.get(key, 0.0)) for result in results]
        if any(values) or key == "cost":
            rows.append([label, *(show(value) for value in values)])
    return rows


def _money(row: Mapping[str, float | int]) -> str:
    again = row.get("lost", 0.0) + row.get("restarts", 0.0)
    cost = row.get("cost", 0.0)
    return show(cost) + (
        f" ({again / cost:.0%} done again)".replace("%", " %") if cost and again / cost >= 0.005 else ""
    )


def owners_there(results: Sequence[RunResult]) -> list[str]:
    """Columns that distinguish the jobs of these runs: `project`, `user`; one of them at least."""
    return [owner for owner in OWNERS if len({str(name) for r in results for name in r.jobs[owner]}) > 1] or ["user"]


def cost_tables(results: Sequence[RunResult], names: Sequence[str]) -> list[Table]:
    """A `rich` table for projects and one for users; none without prices."""
    priced = [(result, name) for result, name in zip(results, names, strict=True) if result.costs is not None]
    if not priced:
        return []
    runs, labels = [result for result, _ in priced], [name for _, name in priced]
    tables = []
    for owner in owners_there(runs):
        table = Table(title=f"cost by {owner}, {runs[0].summary['prices']}", title_justify="left", header_style="bold")
        table.add_column(owner)
        for label in labels:
            table.add_column(label, justify="right")
        for row in owner_rows(runs, labels, owner):
            table.add_row(*row)
        tables.append(table)
    return tables


def cost_sections(results: Sequence[RunResult], names: Sequence[str]) -> list[dict[str, Any]]:
    """The same tables for a page: heading, heads of the columns, rows."""
    if not results or any(result.costs is None for result in results):
        return []
    return [
        {"title": f"Cost by {owner}", "heads": [owner.capitalize(), *names], "rows": owner_rows(results, names, owner),
         "prices": str(results[0].summary["prices"])}
        for owner in owners_there(results)
    ]  # fmt: skip


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


def knowledges(rows: Sequence[Comparison]) -> list[str]:
    """What the policy of each row knows of durations, `unknown` outside the catalog; empty if all know the same."""
    found = [knowledge(row.policy) or "unknown" for row in rows]
    return found if len(set(found)) > 1 else []


def comparable(rows: Sequence[Comparison]) -> list[list[int]]:
    """Indices of rows on the same trace, world and cluster that know the same: only these compete for the best."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    known_of = knowledges(rows) or [""] * len(rows)
    for i, (row, knows) in enumerate(zip(rows, known_of, strict=True)):
        groups.setdefault((row.trace, row.world, row.cluster, knows), []).append(i)
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
    if known_of := knowledges(rows):
        table.add_column("knows")
        for cells, one in zip(texts, known_of, strict=True):
            cells.append(Text(one))
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
    seeds = max((row.runs for row in rows), default=0)
    several = [name for name in ("trace", "world", "cluster") if len({getattr(row, name) for row in rows}) > 1]
    several += ["knowledge"] * bool(knowledges(rows))
    marked = f"* best of its {' and '.join(several)}" if several else "* best"
    notes = ([marked] if starred else []) + ([f"means over {seeds} seeds"] if seeds > 1 else [])
    if baselines(rows) != list(range(len(rows))):
        notes.append("in brackets: the change from the first cluster")
    open_jobs = sum(row.figures["unfinished"].mean > 0 for row in rows if "unfinished" in row.figures)
    if open_jobs:
        notes.append(f"{open_jobs} with jobs that did not end, so without averages")
    table.caption = "; ".join(notes) or None
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
