"""Reading and writing files: gzip seen by its magic bytes, errors with file and line, writes all or
nothing.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from plait.core.errors import TraceError, suggest
from plait.core.files import replacing

Pathish = str | os.PathLike[str]

CHUNK_CHARS = 1 << 20


class _Hashing(io.RawIOBase):
    """A raw file that computes the SHA-256 of the bytes read."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._raw.read(len(buffer))
        buffer[: len(block)] = block
        self.sha256.update(block)
        return len(block)

    def close(self) -> None:
        self._raw.close()
        super().close()


class Source:
    """An input file being read: its path for messages, the line reached, and its checksum once read."""

    def __init__(self, path: Pathish) -> None:
        """Name the file; `open` opens it."""
        self.path = Path(path)
        self.file = str(path)
        self.line: int | None = None
        self.sha256: str | None = None

    def error(
        self, problem: str, *, column: str | None = None, value: object = None, hint: str | None = None
    ) -> TraceError:
        """A TraceError at the line reached."""
        return TraceError(problem, file=self.file, line=self.line, column=column, value=value, hint=hint)

    @contextlib.contextmanager
    def open(self) -> Iterator[TextIO]:
        """The text of the file, gunzipped if it is gzip, without byte-order mark; any failure is a
        TraceError.
        """
        try:
            with self.path.open("rb") as raw:
                hashing = _Hashing(raw)
                buffered = io.BufferedReader(hashing, 1 << 16)
                zipped = buffered.peek(2)[:2] == b"\x1f\x8b"
                stream: Any = gzip.GzipFile(fileobj=buffered) if zipped else buffered
                with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
                    yield text
                    while buffered.read(1 << 16):
                        pass
                self.sha256 = hashing.sha256.hexdigest()
        except UnicodeError as error:
            raise self.error("not UTF-8 text", hint="save the file as UTF-8") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"the gzip file is damaged or truncated: {error}", hint="fetch it again") from error
        except csv.Error as error:
            raise self.error(f"not readable as a table: {error}") from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error


class TextRow:
    """One line of a delimited file: cells by column name, as the type asked for, or a TraceError."""

    __slots__ = ("_at", "_nulls", "cells", "source")

    def __init__(self, source: Source, at: dict[str, int], nulls: Collection[str]) -> None:
        """A cursor over `source`; `cells` is replaced for every line."""
        self.source, self._at, self._nulls = source, at, frozenset(nulls)
        self.cells: Sequence[str] = ()

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
            value = float(cell)
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
        """What the cell means, or an error with the nearest known spelling."""
        cell = self.text(name)
        if cell not in meanings:
            raise self.source.error("unknown value", column=name, value=cell, hint=suggest(cell, meanings))
        return meanings[cell]

    def error(self, problem: str, *, column: str | None = None, hint: str | None = None) -> TraceError:
        """A TraceError at this line, with the cell of `column`."""
        value = self.maybe_text(column) if column else None
        return self.source.error(problem, column=column, value=value, hint=hint)


def read_rows(
    source: Source,
    *,
    required: Sequence[str] = (),
    optional: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    nulls: Collection[str] = ("",),
    quoted: bool = True,
    seen: Callable[[list[str]], None] | None = None,
) -> Iterator[TextRow]:
    """The rows of a delimited file, one reused cursor; `names` replaces a header the file does not have.

    With `quoted` false quotation marks are ordinary characters. Columns beyond `required` may or may not be
    there; with `optional` only those. `seen` is called with the header found.
    """
    with source.open() as text:
        lines = csv.reader(
            text, delimiter=delimiter, strict=True, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        )
        source.line = 1
        header = _header(source, lines, required, optional, delimiter) if names is None else list(names)
        if seen:
            seen(header)
        row = TextRow(source, {name: i for i, name in enumerate(header)}, nulls)
        any_row = names is None
        for cells in lines:
            source.line = lines.line_num
            if not cells:
                continue
            any_row = True
            if len(cells) != len(header):
                raise _wrong_width(source, cells, len(header), delimiter)
            row.cells = cells
            yield row
        if not any_row:
            raise source.error("the file is empty")
        source.line = None


def _header(
    source: Source, lines: Any, required: Sequence[str], optional: Sequence[str] | None, delimiter: str
) -> list[str]:
    header = [cell.strip() for cell in next(lines, [])]
    if not any(header):
        raise source.error("the file is empty", hint=f"expected a header with {', '.join(required)}")
    missing = [name for name in required if name not in header]
    if missing:
        other = next((d for d in ",;\t|" if d != delimiter and len(header) == 1 and d in header[0]), None)
        hint = f"the fields look separated by {other!r}, not {delimiter!r}" if other else suggest(missing[0], header)
        raise source.error("a required column is missing", column=missing[0], hint=hint)
    unknown = [] if optional is None else [name for name in header if name not in (*required, *optional)]
    if unknown:
        raise source.error(
            "unknown column", column=unknown[0], hint=suggest(unknown[0], (*required, *(optional or ())))
        )
    twice = [name for i, name in enumerate(header) if name in header[:i]]
    if twice:
        raise source.error("the column occurs twice in the header", column=twice[0])
    return header


def _wrong_width(source: Source, cells: list[str], expected: int, delimiter: str) -> TraceError:
    other = next((d for d in ",;\t|" if d != delimiter and len(cells) == 1 and d in cells[0]), None)
    hint = f"the fields look separated by {other!r}, not {delimiter!r}" if other else "is the file cut short?"
    return source.error(f"expected {expected} fields, found {len(cells)}", hint=hint)


def read_json_list(source: Source) -> Iterator[dict[str, Any]]:
    """The objects of a JSON list, one at a time, without holding the list; `source.line` is where each
    starts.
    """
    decoder = json.JSONDecoder(parse_constant=lambda word: _refuse_constant(source, word))
    with source.open() as text:
        buffer = _Window(text, source)
        if buffer.skip_blank() != "[":
            raise source.error("expected a JSON list of jobs", hint="the file starts with '['")
        buffer.drop(1)
        expect_item = False
        while True:
            head = buffer.skip_blank()
            if head == "]" and not expect_item:
                break
            yield buffer.decode(decoder)
            head = buffer.skip_blank()
            if head not in (",", "]"):
                raise source.error("expected ',' or ']' after a job", hint="is the file cut short?")
            expect_item = head == ","
            if expect_item:
                buffer.drop(1)
        buffer.drop(1)
        if buffer.skip_blank():
            raise source.error("text after the end of the list")
        source.line = None


def _refuse_constant(source: Source, word: str) -> None:
    raise source.error("must be a finite number", value=word)


class _Window:
    """The part of a text that is being parsed, with the line it starts on."""

    def __init__(self, text: TextIO, source: Source) -> None:
        self.text, self.source, self.buffer, self.ended = text, source, "", False
        self.source.line = 1

    def fill(self) -> None:
        more = self.text.read(max(CHUNK_CHARS, len(self.buffer)))
        self.ended = not more
        self.buffer += more

    def drop(self, count: int) -> None:
        self.source.line = (self.source.line or 1) + self.buffer.count("\n", 0, count)
        self.buffer = self.buffer[count:]

    def skip_blank(self) -> str:
        """Moves to the next character that is not blank and returns it, or '' at the end."""
        while True:
            self.drop(len(self.buffer) - len(self.buffer.lstrip()))
            if self.buffer or self.ended:
                return self.buffer[:1]
            self.fill()

    def decode(self, decoder: json.JSONDecoder) -> dict[str, Any]:
        while True:
            try:
                value, end = decoder.raw_decode(self.buffer)
                break
            except json.JSONDecodeError as error:
                if self.ended:
                    raise self.source.error(f"not JSON: {error.msg}", hint="is the file cut short?") from error
                self.fill()
            except RecursionError:
                raise self.source.error("not a job: nested too deeply") from None
        if not isinstance(value, dict):
            raise self.source.error("expected a JSON object a job", value=value)
        self.drop(end)
        return value


@contextlib.contextmanager
def writing(path: Pathish) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends well, and is removed
    otherwise.
    """
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise TraceError(f"cannot be written: {error.strerror or error}", file=str(path)) from error


class _Zipped(gzip.GzipFile):
    """A gzip file without name and time stamp that closes the file it writes to."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("wb")
        super().__init__(filename="", fileobj=self._raw, mode="wb", mtime=0)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._raw.close()


def open_for_writing(path: Path, *, zipped: bool) -> TextIO:
    """UTF-8 text; gzip without a time stamp, so that equal content gives equal bytes."""
    if not zipped:
        return path.open("w", encoding="utf-8", newline="")
    stream: Any = _Zipped(path)
    return io.TextIOWrapper(stream, encoding="utf-8", newline="")
