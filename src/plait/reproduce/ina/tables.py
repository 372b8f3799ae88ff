"""The comparison as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table

from plait.reproduce.ina.compare import SECTIONS, Compared, Outcome

HEAD = ("", "reference", "plait", "allowed", "within", "remark")


def tables(outcome: Outcome) -> Iterator[Table]:
    """One for each section that has rows."""
    for section, title in SECTIONS.items():
        found = [row for row in outcome.rows if row.section == section]
        if not found:
            continue
        shown = [cells(row) for row in found]
        used = [i for i in range(len(HEAD)) if i == 0 or any(row[i] for row in shown)]
        grid = Table(title=title, title_justify="left", header_style="bold")
        for i in used:
            grid.add_column(HEAD[i], justify="right" if 0 < i < 4 else "left")
        for row in shown:
            grid.add_row(*(row[i] for i in used))
        yield grid


def cells(row: Compared) -> tuple[str, ...]:
    """The columns `HEAD` as text."""
    allowed = "" if row.low is None or row.high is None else f"{_number(row.low)} to {_number(row.high)}"
    unit = f" {row.unit}" if row.unit in ("%", "times", "of 32") else ""
    within = "" if row.within is None else "yes" if row.within else "no"
    ours = f"{_number(row.ours)}{unit}" if math.isfinite(row.ours) else "not simulated"
    return row.what, row.reference, ours, allowed, within, row.note


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
