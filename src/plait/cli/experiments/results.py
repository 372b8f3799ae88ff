"""The requested files of `plait reproduce`: their places are taken before hours of runs, and filled after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from plait.cli.experiments.outputs import STDOUT, Outputs
from plait.cli.render.console import console
from plait.core.words import counted
from plait.live.notes import note
from plait.report.files import write_text


class Results:
    """The rows as JSON, in a file or on standard output, and the page; each only if requested."""

    def __init__(self, outputs: Outputs, report: Path | None, json_to: str | None) -> None:
        """Take the places; refuses what cannot be written."""
        self.outputs = outputs
        self.page = None if report is None else outputs.path(report)
        self.to_stdout = json_to == STDOUT
        self.rows = None if json_to is None or self.to_stdout else outputs.path(json_to)

    def fill(self, outcome: Mapping[str, Any], write_page: Callable[[Path], None]) -> None:
        """Write the requested files."""
        text = json.dumps(outcome, indent=1, allow_nan=False) + "\n"
        if self.rows is not None:
            self.outputs.fill(self.rows, partial(write_text, text=text))
        if self.to_stdout:
            self.outputs.print_later(partial(write_text, text=text))
        if self.page is not None:
            self.outputs.fill(self.page, write_page)

    def finish(self, outcome: Any, tables: Iterable[Any], write_page: Callable[[Path], None]) -> None:
        """Write the requested files, print `tables` and the remarks on a comparison, then let its files appear.

        `outcome`: a comparison of `plait.reproduce`, with `to_json`, `notes`, `runs` and `cpu_s`.
        """
        self.fill(outcome.to_json(), write_page)
        printer = console(error=self.to_stdout)
        for table in tables:
            printer.print(table)
        for remark in outcome.notes:
            note(remark)
        note(f"{counted(outcome.runs, 'run')}, {outcome.cpu_s:.1f} CPU seconds when they were made")
        for path in self.outputs.commit():
            note(f"wrote {path}")
