"""Shared parts of readers: a builder of tables that counts every row, and the description of a format."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from plait.core.errors import InputError, TraceError, suggest
from plait.traces.delimited import CSV, Dialect, TextRow, find_header, read_rows
from plait.traces.files import Source, Unreadable
from plait.traces.schema import JOBS, Array, Column
from plait.traces.table import TraceTable, new_meta
from plait.traces.validate import checked_table, note_warnings

CHUNK_ROWS = 1 << 15
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, enough to recognise its format: its path, its first lines, and given column names."""

    path: Path
    lines: tuple[str, ...]
    start: str
    columns: tuple[str, ...] = ()

    @property
    def first_line(self) -> str:
        """The first line without its end."""
        return self.lines[0].rstrip("\r\n") if self.lines else ""

    @property
    def comma(self) -> list[str]:
        """The first line split at commas."""
        return [cell.strip() for cell in self.first_line.split(",")]

    @property
    def tab(self) -> list[str]:
        """The first line split at tabs."""
        return self.first_line.split("\t")

    def has(self, *names: str, native: Dialect = CSV) -> bool:
        """Whether one of the first lines is a header with all these columns, in any dialect."""
        return set(names) <= set(self.columns) or find_header(self.lines, names, native)[2] == len(names)


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: how to read it, how to recognise it, what its numbers mean and where it was published.

    `no_gpus` is the reason why no job of such a file may have GPUs.
    """

    name: str
    read: Callable[..., TraceTable]
    matches: Callable[[Head], bool]
    units: str
    source: str
    licence: str
    citation: str | None = None
    no_gpus: str | None = None


@dataclass(slots=True)
class TableBuilder:
    """Collects jobs row by row into columns, in chunks; every source row is either kept or dropped with a
    reason.
    """

    source: Source
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Types of extra columns: `{"x_note": "string"}`; the others are numbers."""
    rows_read: int = 0
    unreadable: Unreadable = field(init=False)
    dropped: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _lines: array[int] = field(default_factory=lambda: array("q"))
    _chunks: list[dict[str, Array]] = field(default_factory=list)
    _texts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unreadable = Unreadable(self.source.rules)

    def read(self, rows: Iterable[T], add: Callable[[T], None]) -> None:
        """Call `add` for each row; a row that raises `TraceError` is left out and counted as unreadable."""
        for row in rows:
            try:
                add(row)
            except TraceError as error:
                self.skip(error)

    def read_rows(self, add: Callable[[TextRow], None], **layout: Any) -> None:
        """Call `add` for each row of the source, as `read` does; `layout` is that of `traces.delimited.read_rows`."""
        self.read(read_rows(self.source, bad=self.skip, **layout), add)

    def skip(self, error: TraceError) -> None:
        """Leave out a row that cannot be read, and count it."""
        self.rows_read += 1
        self.unreadable.add(error)

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
        """The kept values as columns; empties the builder piece by piece, to hold each column once."""
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
        self.unreadable.settle(self.rows_read)
        kept = self.rows_read - self.dropped.total()
        if fmt.no_gpus and len(columns["gpus"]) and not np.any(columns["gpus"] > 0):
            self.source.note(fmt.no_gpus)
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
        return readable_table(
            columns, self.source, self.unreadable, self.rows_read, lines=lines, meta=sidecar, nodes=nodes
        )


def readable_table(
    columns: Mapping[str, Array],
    source: Source,
    unreadable: Unreadable,
    rows: int,
    *,
    lines: Array,
    meta: dict[str, Any],
    nodes: Mapping[str, Array] | None,
) -> TraceTable:
    """The checked table of the `rows` read from `source`; its sidecar lists unreadable ones.

    Raises `TraceError` if that is more than the rules of the source allow.
    """
    strict = source.rules.strict
    table = checked_table(
        columns, file=source.file, lines=lines, meta=meta, nodes=nodes, strict=strict, unreadable=unreadable
    )
    meta = table.meta
    notes = [*unreadable.settle(rows), *source.notes.values()]
    note_warnings(meta, notes, strict=strict, file=source.file)
    if unreadable.count:
        meta["rows_dropped"] = {**meta["rows_dropped"], "unreadable": unreadable.count}
        meta["rows_kept"] = meta["rows_read"] - sum(meta["rows_dropped"].values())
    return table


def _absent(column: Column, size: int) -> Array:
    if column.kind == "string":
        return column.nulls(size)
    return np.full(size, np.nan)


def latest_s(source: Source, times_s: Callable[[TextRow], Iterable[float | None]], **layout: Any) -> float:
    """The latest time of a log in a pass of its own, so that the result is the same for any order of the rows.

    Rows that cannot be read do not count. `layout` is that of `traces.delimited.read_rows`; -inf without any time.
    """
    latest = float("-inf")
    for row in read_rows(source, bad=lambda error: None, **layout):
        try:
            latest = max(latest, *(latest if at_s is None else at_s for at_s in times_s(row)))
        except TraceError:
            continue
    return latest


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
