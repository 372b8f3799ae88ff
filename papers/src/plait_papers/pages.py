"""The page of a comparison: one self-contained HTML file with sections of charts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.table import Table

from plait_papers.evaluation import Outcome


@dataclass(frozen=True)
class PaperSection:
    """Charts, `across` of them in a row, then a table whose first `texts` columns are text."""

    id: str
    short: str
    title: str
    lead: str
    charts: Sequence[Markup]
    head: Sequence[str]
    texts: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    across: int = 2

    @classmethod
    def of(
        cls, key: str, title: str, lead: str, head: Sequence[str], texts: int, rows: Iterable[Sequence[str]],
        charts: Sequence[Markup] = (), across: int = 2,
    ) -> PaperSection:  # fmt: skip
        """A section of these rows of cells; the first with another first cell begins a block."""
        found = cls(key, title.partition(":")[0], title, lead, charts, head, texts, across=across)
        for cells in rows:
            first = texts > 1 and (not found.rows or found.rows[-1]["cells"][0] != cells[0])
            found.rows.append({"cells": tuple(cells), "first": first})
        return found

    def table(self) -> Table:
        """The same for the terminal, without charts."""
        grid = Table(title=self.title, title_justify="left", header_style="bold", caption_justify="left")
        grid.caption = self.lead
        for i, name in enumerate(self.head):
            grid.add_column(name, justify="left" if i < self.texts else "right", no_wrap=i < self.texts)
        for row, after in zip(self.rows, [*self.rows[1:], None], strict=True):
            cells = row["cells"] if row["first"] or self.texts < 2 else ("", *row["cells"][1:])
            grid.add_row(*cells, end_section=after is not None and after["first"])
        return grid


def render(template: str, outcome: Outcome, **values: Any) -> str:
    """The page as text; `template` is one of the folder `templates`."""
    loader = PackageLoader("plait_papers")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    css = (files("plait.report") / "assets" / "report.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(
        version=outcome.settings["version"],
        css=Markup(css),
        notes=outcome.notes,
        runs=outcome.runs,
        cpu_s=f"{outcome.cpu_s:.0f}",
        **values,
    )
