"""Where tables go: as wide as the terminal, or as wide as they need in a file or a pipe."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console, RenderableType
from rich.measure import Measurement

#: Wide enough for every table.
WIDTH = 240


class Printer:
    """Prints what rich renders; without a terminal without colours, line wraps or spaces at the end of lines."""

    def __init__(self, file: TextIO, *, most: int | None = None) -> None:
        """Print to this file, tables that drop columns in at most `most` columns (None: as the terminal, or whole)."""
        self._file, self._most = file, most
        self._terminal = Console(file=file)

    def fits(self, what: RenderableType) -> bool:
        """Whether it can be printed without squeezing it."""
        most = self.width if self._terminal.is_terminal else WIDTH
        needed = Measurement.get(self._terminal, self._terminal.options.update(max_width=WIDTH), what).maximum
        return needed <= min(most, self._most or most)

    @property
    def width(self) -> int:
        """Columns of the terminal, or of a file or pipe."""
        return self._terminal.width if self._terminal.is_terminal else WIDTH

    @property
    def limit(self) -> int | None:
        """Columns that a table may have; None in a file or a pipe."""
        return self._terminal.width if self._terminal.is_terminal else None

    def print(self, what: RenderableType, *, whole: bool = False) -> None:
        """Print it; `whole`: never squeezed, lines longer than the terminal are folded by it."""
        wide = self._terminal.options.update(max_width=10**6)
        needed = Measurement.get(self._terminal, wide, what).maximum if whole else 0
        if self._terminal.is_terminal:
            self._terminal.print(what, width=max(needed, self._terminal.width), crop=False)
            return
        plain = Console(file=self._file, width=max(WIDTH, needed), no_color=True)
        with plain.capture() as captured:
            plain.print(what)
        for line in captured.get().splitlines():
            self._file.write(line.rstrip() + "\n")


def console(*, error: bool = False, most: int | None = None) -> Printer:
    """Standard output, or standard error; `most`: see `Printer`."""
    return Printer(sys.stderr if error else sys.stdout, most=most)
