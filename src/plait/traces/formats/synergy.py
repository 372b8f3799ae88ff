"""Synergy traces (msr-fiddle/synergy, OSDI'22): comma-separated, no header,
`id,model,arrival_s,iterations,gpus`.
"""

from __future__ import annotations

from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.table import TraceTable

NAMES = ("id", "model", "arrival_s", "iterations", "gpus")


def read(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a static trace; durations are null: they follow from the models' speeds."""
    source = Source(path, rules)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        builder.keep(
            row.line,
            job_id=row.text("id"),
            submit_s=row.number("arrival_s"),
            gpus=row.gang("gpus"),
            model=row.text("model"),
            model_source="trace",
            iterations=row.whole("iterations"),
        )

    builder.read_rows(add, names=NAMES)
    return builder.finish(FORMAT)


def _matches(head: Head) -> bool:
    cells = head.comma
    return len(cells) == len(NAMES) and cells[0].isdecimal() and all(_is_number(c) for c in cells[2:])


def _is_number(cell: str) -> bool:
    try:
        return float(cell) >= 0
    except ValueError:
        return False


FORMAT = Format(
    "synergy",
    read,
    _matches,
    units="seconds",
    source="msr-fiddle/synergy",
    licence="MIT",
    citation="Mohan et al., OSDI'22",
)
