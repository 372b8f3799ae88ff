"""Reading and writing files: gzip seen by its magic bytes, any usual encoding, errors with file and line, writes all or
nothing.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from plait.core.errors import TraceError
from plait.core.files import replacing

Pathish = str | os.PathLike[str]

CHUNK_CHARS = 1 << 20
BLOCK_BYTES = 1 << 16

#: The largest share of the rows of a file that may be unreadable.
UNREADABLE = 0.01


@dataclass(frozen=True, slots=True)
class Rules:
    """How a file is read: `strict` makes warnings errors; at most the share `unreadable` of its rows is left out
    because they cannot be read; `columns` name the columns of a file without header.
    """

    strict: bool = False
    unreadable: float = UNREADABLE
    columns: tuple[str, ...] = ()


RULES = Rules()


@dataclass(slots=True)
class Unreadable:
    """Rows of a file that cannot be read and are left out: how many, and the error of the first."""

    rules: Rules = RULES
    count: int = 0
    first: TraceError | None = None

    def add(self, error: TraceError, rows: int = 1) -> None:
        """Count rows with this error, which names the place of the first."""
        self.count += rows
        if self.first is None or (error.line or 0) < (self.first.line or 0):
            self.first = error

    def settle(self, rows: int) -> list[str]:
        """Remarks on a file of so many `rows`; raises the first error if more are unreadable than the rules allow."""
        if self.first is None:
            return []
        one = self.first
        share = f"{self.count} of {rows} rows cannot be read"
        if self.count > self.rules.unreadable * rows:
            hint = f"{share}, more than {self.rules.unreadable:.3g} of them (--unreadable)"
            hint = f"{one.hint}; {hint}" if one.hint else hint
            raise TraceError(one.problem, file=one.file, line=one.line, column=one.column, value=one.value, hint=hint)
        return [f"{share} and are left out; the first: {one}"]


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


class _Utf8(io.RawIOBase):
    """The bytes of a file in UTF-8, UTF-16 or UTF-32 as UTF-8 without byte-order mark.

    Bytes in it that are not UTF-8 are Windows-1252: accounts mix the encodings of their users.
    """

    def __init__(self, binary: Any, source: Source) -> None:
        self._binary, self._source = binary, source
        self._rest, self._ready, self._ended, self._lines, self._begun = b"", b"", False, 0, False
        wide = _wide(binary.peek(64)[:64])
        self._wide = codecs.getincrementaldecoder(wide)() if wide else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            block = self._binary.read(BLOCK_BYTES)
            self._ended = not block
            self._ready = self._decoded(block)
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _decoded(self, block: bytes) -> bytes:
        if self._wide is not None:
            return self._wide.decode(block, self._ended).encode()
        data = self._rest + block
        if not self._begun:
            data, self._begun = data.removeprefix(codecs.BOM_UTF8), True
        try:
            text, used = codecs.utf_8_decode(data, "strict", self._ended)
        except UnicodeDecodeError as error:
            line = self._lines + data.count(b"\n", 0, error.start) + 1
            text = f"not UTF-8 throughout (first on line {line}): such bytes are read as Windows-1252"
            self._source.note(text, key="encoding")
            text, used = codecs.utf_8_decode(data, _AS_WINDOWS_1252, self._ended)
        self._rest = data[used:]
        self._lines += data.count(b"\n", 0, used)
        return text.encode()

    def close(self) -> None:
        self._binary.close()
        super().close()


_AS_WINDOWS_1252 = "plait-windows-1252"


def _as_windows_1252(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


codecs.register_error(_AS_WINDOWS_1252, _as_windows_1252)


def _wide(start: bytes) -> str | None:
    """The encoding of a file in which a character has two or four bytes, by its first bytes; None for others."""
    for mark, name in ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
                       (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):  # fmt: skip
        if start.startswith(mark):
            return name
    even, odd = start[0::2].count(0), start[1::2].count(0)
    if len(start) >= 8 and max(even, odd) > 0.4 * len(start) and not min(even, odd):
        return "utf-16-le" if odd else "utf-16-be"
    return None


class Source:
    """An input file being read: its path for messages, the line reached, and its checksum once read.

    `notes` are remarks on the file as a whole, for the warnings of what is read from it.
    """

    def __init__(self, path: Pathish, rules: Rules = RULES) -> None:
        """Name the file and how it is read; `open` opens it."""
        self.path, self.rules = Path(path), rules
        self.file = str(path)
        self.line: int | None = None
        self.sha256: str | None = None
        self.notes: dict[str, str] = {}

    def note(self, text: str, *, key: str = "") -> None:
        """Remember a remark, once; of several with the same `key` the first."""
        self.notes.setdefault(key or text, text)

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
                buffered = io.BufferedReader(hashing, BLOCK_BYTES)
                zipped = buffered.peek(2)[:2] == b"\x1f\x8b"
                stream: Any = gzip.GzipFile(fileobj=buffered) if zipped else buffered
                recoded = io.BufferedReader(_Utf8(stream, self), BLOCK_BYTES)
                with io.TextIOWrapper(recoded, encoding="utf-8", newline="") as text:
                    yield text
                    while buffered.read(BLOCK_BYTES):
                        pass
                self.sha256 = hashing.sha256.hexdigest()
        except UnicodeError as error:
            raise self.error(f"not readable as text: {error}", hint="save the file as UTF-8") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"the gzip file is damaged or truncated: {error}", hint="fetch it again") from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error


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
            except ValueError as error:  # a number of more digits than Python reads
                raise self.source.error(f"not a job: {error}") from None
        if not isinstance(value, dict):
            raise self.source.error("expected a JSON object a job", value=value)
        self.drop(end)
        return value


@contextlib.contextmanager
def writing(path: Pathish) -> Iterator[Path]:
    """A temporary file next to `path` that replaces it when the block ends well, and is removed otherwise."""
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
