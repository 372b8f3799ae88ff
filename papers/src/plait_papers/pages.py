"""The page of a comparison: one self-contained HTML file with sections of charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plait_papers.evaluation import Outcome


@dataclass(frozen=True)
class Section:
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
