"""Pages of pictures and tables in the look of the main report, without scripts: sweeps, stages of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plait.control.compare import compare
from plait.control.metrics import RunResult
from plait.report.figures import policy_bars_svg
from plait.report.html import asset, table_columns, table_row, version
from plait.report.tables import labels, time_unit_of

#: Figures that a sweep draws for every group.
DRAWN = ("avg_jct_s", "p99_jct_s", "gpu_utilisation")


@dataclass(frozen=True)
class Section:
    """A heading with pictures (SVG), what their colours mean, a table as `html.table_row` makes it, and sentences.

    `heads`: of the columns with labels and, if there are two, with numbers of seeds.
    """

    title: str
    figures: Sequence[Markup] = ()
    keys: Sequence[Mapping[str, str]] = ()
    columns: Sequence[Mapping[str, Any]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = field(default=())
    short: str = ""
    wide: bool = False
    heads: Sequence[str] = ("Policy", "Seeds")


def sections_page(
    sections: Sequence[Section], *, title: str, brand: str, facts: Sequence[str] = (), lead: str = ""
) -> str:
    """A self-contained page of `sections` under `title` and `lead`; `facts` are short notes, `brand` a label."""
    environment = Environment(
        loader=PackageLoader("plait.report"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("sections.html.j2").render(
        title=title, brand=brand, facts=facts, lead=lead, sections=sections, version=version(),
        css=Markup(asset("report.css")),
    )  # fmt: skip


def sweep_page(groups: Mapping[str, Sequence[RunResult]], runs: int) -> str:
    """A section for each group of runs that compete, by its title: bars of a few figures, and a table of all."""
    sections = []
    for title, results in groups.items():
        rows = compare(results)
        names = labels(rows)
        columns = [column for column in table_columns(rows) if column["main"]]
        time = time_unit_of(rows)
        table = [{**table_row(i, rows, names, columns), "seeds": rows[i].runs} for i in range(len(rows))]
        figures = [Markup(policy_bars_svg(results, metric, width=460, time=time)) for metric in DRAWN]
        sections.append(Section(title, figures, columns=columns, rows=table))
    lead = (
        "Means over seeds; small print: 95 % bootstrap intervals. ★ best of its column. Hover over a heading to see "
        "what it means."
    )
    facts = [f"{runs} runs", f"{len(groups)} group{'s' * (len(groups) != 1)} of runs that compete"]
    return sections_page(sections, title="Sweep", brand="sweep of simulations", facts=facts, lead=lead)
