"""A progress bar on standard error, when that is a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

#: Shortest time between two updates of the display, seconds: a run may end a million jobs.
EVERY_S = 0.1


class Bar:
    """Counts towards a total; is silent unless standard error is a terminal."""

    def __init__(self, what: str, total: int | None, done: int = 0) -> None:
        """`what` is the text in front of the bar; without a total it only counts."""
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=total, completed=done)
        self._pending = 0
        self._told = time.monotonic()

    def advance(self, n: int = 1) -> None:
        """`n` more are done."""
        self._pending += n
        now = time.monotonic()
        if now - self._told >= EVERY_S:
            self._progress.advance(self._task, self._pending)
            self._pending, self._told = 0, now

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.advance(self._task, self._pending)
        self._progress.stop()
