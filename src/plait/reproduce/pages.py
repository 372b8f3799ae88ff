"""The frame of the comparisons' pages: a template of one package, filled."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, *packages: str, outcome: Any, **values: Any) -> str:
    """The page as text. `template`: its name in the first of `packages` that has it; it may use templates of all.

    `outcome` gives what every comparison has: `runs`, `cpu_s`, `notes` and, among its `settings`, the version.
    """
    loader = ChoiceLoader([PackageLoader(package) for package in packages])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    css = (files("plait.report") / "assets" / "report.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(
        version=outcome.settings.get("version", ""),
        css=Markup(css),
        notes=outcome.notes,
        runs=outcome.runs,
        cpu_s=f"{outcome.cpu_s:.0f}",
        **values,
    )
