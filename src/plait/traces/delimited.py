"""Rows of delimited text: header and dialect are found by the columns that a reader needs.

Rows that do not fit are mended where only one reading is possible, otherwise the caller gets their errors.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from plait.core.errors import TraceError, suggest
from plait.traces.files import Source

#: A header is looked for in so many lines: what a program prints as warnings comes in front of it.
HEAD_LINES = 20
#: A value may have so many line breaks in it, in a file without quotation marks.
MOST_BREAKS = 20
#: Columns without a name, as pandas writes its index.
UNNAMED = re.compile(r"(Unnamed: \d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How fields are separated and quoted; without `quote`, quotation marks are ordinary characters."""

    delimiter: str = ","
    quote: str | None = '"'
    spaced: bool = False
    """Whether blanks after a delimiter do not count."""

    def reader(self, lines: Any) -> Any:
        """A reader of `lines` that raises `csv.Error` for text that is not in this dialect."""
        return csv.reader(
            lines, delimiter=self.delimiter, quotechar=self.quote or '"', skipinitialspace=self.spaced, strict=True,
            quoting=csv.QUOTE_NONE if self.quote is None else csv.QUOTE_MINIMAL,
        )  # fmt: skip

    def cells(self, line: str) -> list[str]:
        """The fields of one line without surrounding blanks; none if it is not in this dialect."""
        try:
            return [cell.strip() for cell in next(self.reader([line]), [])]
        except csv.Error:
            return []


CSV = Dialect()
BARS = Dialect("|", None)
TABS = Dialect("\t", None)
_USUAL = (*(Dialect(mark) for mark in ",;\t|"), Dialect(" ", spaced=True))


@lru_cache(maxsize=4)
def _sniffed(lines: tuple[str, ...]) -> Dialect | None:
    """The dialect of the lines by `csv.Sniffer`."""
    try:
        found = csv.Sniffer().sniff("".join(lines)[:4096])
    except csv.Error:
        return None
    return Dialect(found.delimiter, found.quotechar, bool(found.skipinitialspace))


def find_header(lines: Sequence[str], wanted: Sequence[str], native: Dialect = CSV) -> tuple[int, Dialect, int]:
    """The line (from 0) and the dialect in which most of the `wanted` columns are, and how many these are.

    The dialect that the format is published in is preferred, then the usual ones, then that of `csv.Sniffer`.

    >>> find_header(["slurm: warning", "JobID;State"], ("JobID", "State"))[::2]
    (1, 2)
    """
    best = (0, native, 0)
    for dialect in (native, *_USUAL, None):
        one = dialect or _sniffed(tuple(lines))
        for i, line in enumerate(lines if one else ()):
            names = one.cells(line) if one else []
            count = sum(name in names for name in wanted)
            if one and count > best[2]:
                best = (i, one, count)
        if best[2] == len(wanted):
            break
    return best


class TextRow:
    """One line of a delimited file: cells by column name, as the requested type, or a TraceError."""

    __slots__ = ("_at", "_nulls", "cells", "decimal_comma", "source")

    def __init__(self, source: Source, header: Sequence[str], nulls: Collection[str], *, decimal_comma: bool) -> None:
        """A cursor over `source`; `cells` is replaced for every line."""
        self.source, self._nulls = source, frozenset(nulls)
        self._at = {name: i for i, name in enumerate(header)}
        self.cells: Sequence[str] = ()
        self.decimal_comma = decimal_comma

    @property
    def line(self) -> int:
        """The line in the file, from 1."""
        return self.source.line or 0

    def maybe_text(self, name: str) -> str | None:
        """The cell without surrounding blanks; None if it is empty or the column is absent."""
        at = self._at.get(name)
        cell = "" if at is None else self.cells[at].strip()
        return None if cell in self._nulls else cell

    def text(self, name: str) -> str:
        """The cell, which must not be empty."""
        cell = self.maybe_text(name)
        if cell is None:
            raise self.source.error("a value is needed here", column=name, value=self.cells[self._at[name]])
        return cell

    def maybe_number(self, name: str) -> float | None:
        """The cell as a finite number; None if empty."""
        cell = self.maybe_text(name)
        if cell is None:
            return None
        try:
            value = float(with_point(cell) if self.decimal_comma else cell)
        except ValueError:
            value = float("nan")
        if value - value != 0 or "_" in cell:  # NaN and infinities
            raise self.source.error("must be a finite number", column=name, value=cell)
        return value

    def number(self, name: str) -> float:
        """The cell as a finite number, which must be there."""
        self.text(name)
        return self.maybe_number(name) or 0.0

    def maybe_whole(self, name: str) -> int | None:
        """The cell as a whole number (`8` or `8.0`); None if empty."""
        value = self.maybe_number(name)
        if value is not None and value != int(value):
            raise self.source.error("must be a whole number", column=name, value=self.maybe_text(name))
        return None if value is None else int(value)

    def whole(self, name: str) -> int:
        """The cell as a whole number, which must be there."""
        self.text(name)
        return self.maybe_whole(name) or 0

    def gang(self, name: str) -> int:
        """The cell as a number of GPUs, at least one."""
        gpus = self.whole(name)
        if gpus < 1:
            raise self.error("a job of this trace needs at least one GPU", column=name)
        return gpus

    def choice(self, name: str, meanings: dict[str, str]) -> str:
        """The meaning of the cell, or an error with the nearest known spelling."""
        cell = self.text(name)
        if cell not in meanings:
            raise self.source.error("unknown value", column=name, value=cell, hint=suggest(cell, meanings))
        return meanings[cell]

    def error(self, problem: str, *, column: str | None = None, hint: str | None = None) -> TraceError:
        """A TraceError at this line, with the cell of `column`."""
        value = self.maybe_text(column) if column else None
        return self.source.error(problem, column=column, value=value, hint=hint)


def with_point(cell: str) -> str:
    """The cell with a decimal point if it is a number with a decimal comma, otherwise unchanged."""
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell


@dataclass(frozen=True, slots=True)
class FreeText:
    """Columns in which people write what they like, also delimiters, and what a row that was put right must fulfil."""

    columns: Sequence[str]
    fits: Callable[[TextRow], bool]


def read_rows(
    source: Source,
    *,
    required: Sequence[str] = (),
    optional: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    headerless: Callable[[list[str]], Sequence[str] | None] | None = None,
    native: Dialect = CSV,
    nulls: Collection[str] = ("",),
    free: FreeText | None = None,
    seen: Callable[[list[str]], None] | None = None,
    bad: Callable[[TraceError], None] | None = None,
) -> Iterator[TextRow]:
    """The rows of a delimited file, one reused cursor; `names` replaces a header the file does not have.

    The header is the first line with all `required` columns, in any dialect; without such a line, `headerless` may name
    the columns from the cells of the first line. Columns beyond `required` may or may not be present; with `optional`
    only columns of `optional`. Columns without a name, blank lines and repeated headers are skipped. `seen` is called
    with the header, `bad` with the error of each row that does not fit, which is raised without it.
    """
    with source.open() as text:
        start = list(islice(text, HEAD_LINES))
        at, dialect, header = _layout(source, start, required, names, headerless, native)
        feed = _Feed(chain(start, text), at)
        if names is None and header is None:
            source.line = at + 1
            header = dialect.cells(next(feed, ""))
            if not any(header):
                raise source.error("the file is empty", hint=f"expected a header with {', '.join(required)}")
            missing = [name for name in required if name not in header]
            if missing:
                raise source.error("a required column is missing", column=missing[0], hint=suggest(missing[0], header))
            known = None if optional is None else (*required, *optional)
            unknown = [
                name for name in header if known is not None and name not in known and not UNNAMED.fullmatch(name)
            ]
            if unknown:
                raise source.error("unknown column", column=unknown[0], hint=suggest(unknown[0], known or ()))
            twice = [name for i, name in enumerate(header) if name in header[:i] and not UNNAMED.fullmatch(name)]
            if twice:
                raise source.error("the column occurs twice in the header", column=twice[0])
        header = list(header or ())
        kept = [i for i, name in enumerate(header) if not UNNAMED.fullmatch(name)]
        named = [header[i] for i in kept]
        if seen:
            seen(named)
        row = TextRow(source, named, nulls, decimal_comma=dialect.delimiter != ",")
        any_row = names is None
        for cells in _Rows(source, feed, dialect, header, free, row, bad):
            any_row = True
            if dialect != native or len(kept) < len(header):
                cells = [cells[i].strip() for i in kept]
            row.cells = cells
            yield row
        if not any_row:
            raise source.error("the file is empty")
        source.line = None


def _layout(
    source: Source,
    start: list[str],
    required: Sequence[str],
    names: Sequence[str] | None,
    headerless: Callable[[list[str]], Sequence[str] | None] | None,
    native: Dialect,
) -> tuple[int, Dialect, Sequence[str] | None]:
    """Where the header or the first row is (from 0), the dialect, and the columns if no line of the file names them."""
    source.line = 1
    if names is not None:
        return 0, native, names
    columns = source.rules.columns
    if columns and start:
        missing = [name for name in required if name not in columns]
        if missing:
            raise source.error("a required column is missing in --columns", column=missing[0])
        fitting = [one for one in (native, *_USUAL) if len(_cells(one, start[0])) == len(columns)]
        return 0, next(iter(fitting), native), columns
    at, dialect, count = find_header(start, required, native)
    if count < len(required) and headerless and start and (given := headerless(native.cells(start[0]))):
        return 0, native, given
    if at and count == len(required):
        lines = "1 line" if at == 1 else f"{at} lines"
        source.note(f"{lines} in front of the header left out: {start[0].strip()[:100]!r}")
    return at if count else next((i for i, line in enumerate(start) if line.strip()), 0), dialect, None


def _cells(dialect: Dialect, line: str) -> list[str]:
    """The fields of a line, without the empty one behind a trailing delimiter."""
    cells = dialect.cells(line)
    return cells[:-1] if cells[-1:] == [""] else cells


class _Feed:
    """Lines that can be given back; `number` is that of the last line taken, from 1."""

    def __init__(self, lines: Iterator[str], skip: int) -> None:
        self._lines, self._back = islice(lines, skip, None), list[str]()
        self.number, self.taken = skip, list[str]()

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        line = self._back.pop() if self._back else next(self._lines)
        self.number += 1
        self.taken.append(line)
        return line

    def keep(self, count: int) -> None:
        """Give back the lines taken since `taken` was emptied, but for the first `count`."""
        back = self.taken[count:]
        del self.taken[count:]
        self._back.extend(reversed(back))
        self.number -= len(back)


class _Rows:
    """The rows that have as many fields as the header, mended where only one reading is possible."""

    def __init__(
        self,
        source: Source,
        feed: _Feed,
        dialect: Dialect,
        header: list[str],
        free: FreeText | None,
        row: TextRow,
        bad: Callable[[TraceError], None] | None,
    ) -> None:
        self.source, self.feed, self.dialect, self.header, self.free = source, feed, dialect, header, free
        self.row, self.bad = row, bad

    def __iter__(self) -> Iterator[list[str]]:
        width, feed = len(self.header), self.feed
        lines = self.dialect.reader(feed)
        while True:
            feed.taken.clear()
            try:
                cells = next(lines, None)
            except csv.Error as error:  # an opening quotation mark takes all that follows: only its line is wrong
                feed.keep(1)
                lines = self.dialect.reader(feed)
                self._pass_on(self._error(f"not readable as a table: {error}"))
                continue
            if cells is None:
                return
            self.source.line = feed.number
            if not any(cells):
                continue
            if len(cells) != width:
                mended = self._mended(cells)
                if mended is None:
                    self._pass_on(self._wrong_width(cells))
                    continue
                cells = mended
            if cells[0].strip() == self.header[0] and [cell.strip() for cell in cells] == self.header:
                continue  # of a file that was appended
            yield cells

    def _pass_on(self, error: TraceError) -> None:
        if self.bad is None:
            raise error
        self.bad(error)

    def _error(self, problem: str, hint: str | None = None) -> TraceError:
        self.source.line = self.feed.number
        return self.source.error(problem, hint=hint)

    def _mended(self, cells: list[str]) -> list[str] | None:
        """The row with a line break or delimiters in a value put right, if that can be done."""
        width = len(self.header)
        if len(cells) == width + 1 and not cells[-1]:
            return cells[:-1]  # a trailing delimiter that the header does not have
        if len(cells) == width - 1 and not self.header[-1]:
            return [*cells, ""]
        if self.dialect.quote is not None:
            return None
        joined = cells
        while len(joined) < width and len(self.feed.taken) <= MOST_BREAKS:
            line = next(self.feed, None)
            more: list[str] = [] if line is None else next(self.dialect.reader([line]), [])
            if line is None or (len(more) >= width and self._is_row(more)):
                break
            joined = [*joined[:-1], f"{joined[-1]} {more[0]}" if more else joined[-1], *more[1:]]
        whole = joined if len(joined) == width else self._free_text(joined) if len(joined) > width else None
        if whole is None:
            self.feed.keep(1)
        return whole

    def _is_row(self, cells: list[str]) -> bool:
        """Whether at least as many fields as the header has are a row of their own."""
        if self.free is None:
            return True
        if len(cells) > len(self.header):
            return self._free_text(cells) is not None
        self.row.cells = [c for c, n in zip(cells, self.header, strict=True) if not UNNAMED.fullmatch(n)]
        return self.free.fits(self.row)

    def _free_text(self, cells: list[str]) -> list[str] | None:
        """The row with the surplus fields made one with that of a column of free text, if the others are certain."""
        free = self.free
        surplus = len(cells) - len(self.header)
        found: dict[tuple[str, ...], list[str]] = {}
        for at, name in enumerate(self.header):
            if free is None or name not in free.columns:
                continue
            whole = self.dialect.delimiter.join(cells[at : at + surplus + 1])
            candidate = [*cells[:at], whole, *cells[at + surplus + 1 :]]
            named = [(n, cell) for n, cell in zip(self.header, candidate, strict=True) if not UNNAMED.fullmatch(n)]
            self.row.cells = [cell for _, cell in named]
            if free.fits(self.row):
                found[tuple(cell for n, cell in named if n not in free.columns)] = candidate
        return next(iter(found.values())) if len(found) == 1 else None

    def _wrong_width(self, cells: list[str]) -> TraceError:
        width, mark = len(self.header), self.dialect.delimiter
        if len(cells) > width:
            hint = f"is there a {mark!r} in a value? quote it, or leave the column out"
        else:
            lines = len(self.feed.taken)  # more than one where a quoted value has line breaks
            last = next(self.feed, None) is None
            self.feed.keep(lines)
            hint = "is the file cut short?" if last else "is there a line break in a value?"
        return self._error(f"expected {width} fields, found {len(cells)}", hint)
