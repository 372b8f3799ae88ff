"""Tables in a terminal: identifiers and states are always whole, free text wraps or is cut, extra columns give way.

    table(["job", "?user", "state", ">gpus", "~reason"], rows, width=80)

A heading may begin with marks: `>` right-aligned, `~` free text that takes the room that is left, `?` left out of a
narrow terminal (the last one first), `??` left out only where free text would have no room at all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

#: Minimum columns of free text while other columns can be left out; and for free text that can be left out itself.
LEAST, LEAST_SPARE = 24, 10
#: Lines of one cell of free text, unless the caller sets another number; and characters of a cell in a file or a pipe.
MOST_LINES, MOST_CHARACTERS = 3, 160
#: Columns between two columns.
GAP = 2

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)


def plain(text: str) -> str:
    r"""One line of text without anything that a terminal would obey.

    >>> plain("\x1b[31mred\x1b[0m\nand \x07more")
    'red and more'
    """
    return _printable(_ESCAPES.sub("", text)).strip()


def plain_lines(text: str) -> str:
    """The same for several lines: line feeds, returns (of progress bars) and tabs stay."""
    return _printable(_ESCAPES.sub("", text), keep="\n\r\t")


def _printable(text: str, keep: str = "") -> str:
    """Controls and marks of direction become a space (one run: one space)."""
    if text.isprintable():
        return text
    out = "".join(c if c.isprintable() or c in keep else _instead(c) for c in text)
    return re.sub(" *\1+ *", " ", out.replace("\0", ""))


def _instead(character: str) -> str:
    """A control becomes a space; what is invisible (category Cf: directions, joiners) nothing; others stay."""
    category = unicodedata.category(character)
    return "\1" if category in ("Cc", "Zl", "Zp") else "\0" if category in ("Cf", "Cs") else character


@dataclass(frozen=True)
class TableColumn:
    """A heading and how its column gives way."""

    name: str
    right: bool
    text: bool
    spare: int

    @property
    def least(self) -> int:
        """Columns of the terminal below which others are left out first."""
        return LEAST_SPARE if self.spare else LEAST

    @staticmethod
    def of(heading: str) -> TableColumn:
        """Read the marks of a heading."""
        name = heading.lstrip(">~?")
        marks = heading[: len(heading) - len(name)]
        return TableColumn(name, ">" in marks, "~" in marks, marks.count("?"))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], width: int | None, most_lines: int = MOST_LINES
) -> Table:
    """The rows as a `rich` table that fits `width` columns; None: a file or a pipe, one line a row."""
    from rich.table import Table
    from rich.text import Text

    columns, lines, widths = _measured(headings, rows)
    chosen = list(range(len(columns)))
    if width is None:
        widths = _uncut(columns, widths, most_lines)
        most_lines = 1
    else:
        chosen, widths = _fit(columns, widths, width)
    named = any(column.name for column in columns)  # a list of names and values has no headings
    grid = Table(box=None, pad_edge=False, header_style="bold", show_header=named)
    for i in chosen:
        column = columns[i]
        grid.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=not column.text, overflow="fold",
            min_width=widths[i], max_width=widths[i],
        )  # fmt: skip
    for line in lines:
        cells = [_cut(line[i], most_lines * widths[i]) if columns[i].text else line[i] for i in chosen]
        grid.add_row(*(Text(cell) for cell in cells))  # what users wrote is no markup
    return grid


def piped(headings: Sequence[str], rows: Iterable[Sequence[object]], most_lines: int = MOST_LINES) -> list[str]:
    """The lines of a table for a file or a pipe; without rich, whose import takes longer than a short command.

    `headings`, `rows`, `most_lines`: as for `table`.

    >>> piped(["job", ">gpus", "~reason"], [["j-1", 16, ""], ["j-12", 1, "no room"]])
    ['job   gpus  reason', 'j-1     16  -', 'j-12     1  no room']
    """
    columns, lines, widths = _measured(headings, rows)
    widths = _uncut(columns, widths, most_lines)
    if any(column.name for column in columns):
        lines = [[column.name for column in columns], *lines]
    out = []
    for line in lines:
        cells = []
        for cell, column, width in zip(line, columns, widths, strict=True):
            text = _cut(cell, width) if column.text else cell
            room = " " * (width - _cells(text))
            cells.append(room + text if column.right else text + room)
        out.append((" " * GAP).join(cells).rstrip())
    return out


def _measured(
    headings: Sequence[str], rows: Iterable[Sequence[object]]
) -> tuple[list[TableColumn], list[list[str]], list[int]]:
    """Columns, cells as text by rows, and how wide each column is where nothing gives way."""
    columns = [TableColumn.of(heading) for heading in headings]
    lines = [[cell_text(cell) for cell in row] for row in rows]
    return columns, lines, [_natural(column, [line[i] for line in lines]) for i, column in enumerate(columns)]


def _uncut(columns: Sequence[TableColumn], widths: Sequence[int], most_lines: int) -> list[int]:
    """How wide columns are in a file or a pipe, where only long free text is cut."""
    if most_lines > MOST_LINES:
        return list(widths)
    return [min(w, MOST_CHARACTERS) if c.text else w for w, c in zip(widths, columns, strict=True)]


def cell_text(cell: object) -> str:
    """The text of a cell: one printable line, a dash for nothing."""
    return "-" if cell is None or cell == "" else plain(str(cell)) or "-"


def _natural(column: TableColumn, cells: Sequence[str]) -> int:
    return max(_cells(column.name), *(_cells(cell) for cell in cells), 1)


def _cells(text: str) -> int:
    """Columns of a terminal that a text takes: two for each ideograph."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fit(columns: Sequence[TableColumn], natural: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide all are."""

    def needed(chosen: Sequence[int], most: int) -> int:
        widths = (min(natural[i], columns[i].least, most) if columns[i].text else natural[i] for i in chosen)
        return sum(widths) + GAP * (len(chosen) - 1)

    chosen = list(range(len(columns)))
    for spare, least in ((1, LEAST), (2, LEAST_SPARE)):
        for i in reversed(range(len(columns))):
            if needed(chosen, least) <= width:
                break
            if columns[i].spare == spare:
                chosen.remove(i)
    texts = sorted((i for i in chosen if columns[i].text), key=lambda i: natural[i])
    left = width - GAP * (len(chosen) - 1) - sum(natural[i] for i in chosen if not columns[i].text)
    widths = list(natural)
    for count, i in zip(range(len(texts), 0, -1), texts, strict=True):  # short ones leave room to long ones
        widths[i] = max(min(natural[i], left // count), min(natural[i], LEAST_SPARE))
        left -= widths[i]
    return chosen, widths


def _cut(text: str, most: int) -> str:
    """At most so many characters, with a mark where some are missing."""
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"
