"""The money of runs as tables: what users and projects cost under each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from plait.control.metrics import RunResult
from plait.report.metrics import show

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
