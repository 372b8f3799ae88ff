"""Shared parts of readers: a builder of tables that counts every row, and the description of a format."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import InputError, suggest
from plait.traces.files import Source
from plait.traces.schema import JOBS, Array, Column
from plait.traces.table import TraceTable, new_meta
from plait.traces.validate import checked_table

CHUNK_ROWS = 1 << 15


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, enough to tell its format: its path and its first lines."""

    path: Path
    first_line: str
    start: str

    @property
    def comma(self) -> list[str]:
        """The first line split at commas."""
        return [cell.strip() for cell in self.first_line.split(",")]

    @property
    def tab(self) -> list[str]:
        """The first line split at tabs."""
        return self.first_line.split("\t")

    def has(self, *names: str) -> bool:
        """Whether the first line is a header with all these columns."""
        return set(names) <= set(self.comma)


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: how to read it, how to recognise it, what its numbers mean and where it was
    published.
    """

    name: str
    read: Callable[..., TraceTable]
    matches: Callable[[Head], bool]
    units: str
    source: str
    licence: str
    citation: str | None = None


@dataclass(slots=True)
class TableBuilder:
    """Collects jobs row by row into columns, in chunks; every source row is either kept or dropped with a
    reason.
    """

    source: Source
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Types of extra columns: `{"x_note": "string"}`; those not named are numbers."""
    rows_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _lines: array[int] = field(default_factory=lambda: array("q"))
    _chunks: list[dict[str, Array]] = field(default_factory=list)
    _texts: dict[str, str] = field(default_factory=dict)

    def keep(self, line: int | None, *, again: bool = False, **job: Any) -> None:
        """Add one job; `again`: its source row has given a job before."""
        self.rows_read += not again
        self._rows.append(job)
        self._lines.append(line or 0)
        if len(self._rows) >= CHUNK_ROWS:
            self._flush()

    def drop(self, reason: str) -> None:
        """Count a source row that gives no job."""
        self.rows_read += 1
        self.dropped[reason] += 1

    def warn(self, text: str) -> None:
        """Record a warning; it appears once, with the number of rows it concerns."""
        self.warned[text] += 1

    def _column(self, name: str) -> Column:
        if name in JOBS:
            return JOBS[name]
        return Column(name, "string" if self.kinds.get(name) == "string" else "float", "kept from the source")

    def _flush(self) -> None:
        if not self._rows:
            return
        chunk = {}
        for name in dict.fromkeys(name for row in self._rows for name in row):
            cells = [row.get(name) for row in self._rows]
            if self._column(name).kind == "string":
                if name != "job_id":
                    cells = [None if c is None else self._texts.setdefault(c, c) for c in cells]
                chunk[name] = np.array(cells, dtype=object)
            else:
                chunk[name] = np.array([np.nan if c is None else c for c in cells], dtype=np.float64)
        self._chunks.append(chunk)
        self._rows.clear()

    def columns(self) -> dict[str, Array]:
        """What was kept, as columns; empties the builder piece by piece, to hold each column once."""
        self._flush()
        names = dict.fromkeys(name for chunk in self._chunks for name in chunk)
        for name in ("job_id", "submit_s", "gpus"):
            names.setdefault(name)
        sizes = [len(chunk["job_id"]) for chunk in self._chunks]
        result = {}
        for name in names:
            column = self._column(name)
            parts = [
                c.pop(name) if name in c else _absent(column, size) for c, size in zip(self._chunks, sizes, strict=True)
            ]
            result[name] = np.concatenate(parts) if parts else column.nulls(0)
        return result

    def finish(
        self,
        fmt: Format,
        *,
        first_is_zero: bool = False,
        strict: bool = False,
        nodes: Mapping[str, Array] | None = None,
        **meta: Any,
    ) -> TraceTable:
        """The checked table with its sidecar; with `first_is_zero` times count from the first kept
        submission.
        """
        columns = self.columns()
        if first_is_zero and len(columns["submit_s"]):
            origin = columns["submit_s"].min()
            for name in ("submit_s", "observed_start_s", "observed_end_s"):
                if name in columns:
                    columns[name] = columns[name] - origin
            meta.setdefault("origin_s", float(origin))
        kept = self.rows_read - self.dropped.total()
        sidecar = new_meta(
            **{"source": fmt.source, "citation": fmt.citation, "licence": fmt.licence, **meta},
            format=fmt.name,
            rows_read=self.rows_read,
            rows_kept=kept,
            rows_dropped=dict(sorted(self.dropped.items())),
            warnings=[f"{text} ({count} rows)" for text, count in sorted(self.warned.items())],
            input_sha256=self.source.sha256,
        )
        lines = np.array(self._lines, dtype=np.int64)
        return checked_table(columns, file=self.source.file, lines=lines, meta=sidecar, nodes=nodes, strict=strict)


def _absent(column: Column, size: int) -> Array:
    if column.kind == "string":
        return column.nulls(size)
    return np.full(size, np.nan)


def numbered(rows: list[tuple[float, tuple[Any, ...], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Jobs of a format without ids, numbered from "0" by time, then content: the same ids for any row
    order.
    """
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    return [{"job_id": str(i), **job} for i, (_, _, job) in enumerate(ordered)]


def pick(name: str, value: str, choices: tuple[str, ...]) -> str:
    """The `value` of the option `name`; raises `InputError` if it is not one of `choices`."""
    if value not in choices:
        raise InputError(f"option {name}: unknown value {value!r}; {suggest(value, choices)}")
    return value
