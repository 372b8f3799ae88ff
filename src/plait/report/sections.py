"""Pages of pictures and tables in the look of the main report, without scripts. Start at `sections_page`.

Pictures are small SVG files, written by hand, for light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plait.control.compare import compare
from plait.control.metrics import RunResult
from plait.core.errors import InputError, suggest
from plait.report.html import asset, table_columns, table_row, version
from plait.report.metrics import METRICS, best, show, unit_of
from plait.report.tables import figure, labels, time_unit_of

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2430}.soft{fill:#566274;stroke:none}.axis{stroke:#8a94a3}"
    ".bar{fill:#5b8fc7}.best{fill:#0a7a45}.whisker{stroke:#1b2430;stroke-width:1.5}"
    "polyline{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.soft{fill:#9fabbb}.bar{fill:#4f7fb5}"
    ".best{fill:#2fae72}.whisker{stroke:#e6eaf0}}"
)


def policy_bars_svg(
    results: Iterable[RunResult], metric: str = "avg_jct_s", width: int = 640, time: tuple[str, float] | None = None
) -> str:
    """Horizontal bars of one figure, one a policy; the best is starred; whiskers are 95 % intervals over seeds.

    `time`: the unit of times, where a table next to the picture has chosen one.
    """
    known = {m.key: m for m in METRICS}
    if metric not in known:
        raise InputError(f"unknown metric {metric!r}; {suggest(metric, known)}")
    chosen = known[metric]
    rows = compare(results)
    names = labels(rows)
    values = [figure(row, chosen) for row in rows]
    unit, factor = unit_of(chosen, values, time)
    winner = best(chosen, values)
    room = max(int((0.45 * width - 24) / 8), 8)
    left = 24 + 8 * min(max((len(n) for n in names), default=0), room)
    highs = [row.figures[metric].high for row in rows if metric in row.figures]
    largest = max((v for v in [*values, *highs] if math.isfinite(v)), default=1.0) or 1.0
    scale = max(width - left - 110, 1) / largest
    parts = [_text(8, 20, f"{chosen.label}{f' ({unit})' if unit else ''}", "font-weight='600'")]
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 36 + 28 * i
        short = name if len(name) <= room else f"{name[: room - 1]}…"
        parts.append(_text(left - 8, y + 14, short, "text-anchor='end'", name))
        if not math.isfinite(value):
            parts.append(_text(left + 4, y + 14, "–", "class='soft'"))
            continue
        kind = "best" if value == winner else "bar"
        parts.append(
            f"<rect class='{kind}' x='{left}' y='{y}' width='{max(value * scale, 1):.1f}' height='19' rx='2'/>"
        )
        low, high = rows[i].figures[metric].low, rows[i].figures[metric].high
        end = value
        if math.isfinite(low):
            x = [left + v * scale for v in (low, high)]
            parts.append(f"<path class='whisker' d='M{x[0]:.1f} {y + 9.5}H{x[1]:.1f}'/>")
            end = max(value, high)
        star = "★ " if kind == "best" else ""
        parts.append(_text(left + end * scale + 6, y + 14, star + show(value, factor)))
    height = 48 + 28 * len(rows)
    title = f"{chosen.label} of {', '.join(names)}. {chosen.meaning}"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    body = "\n".join(parts)
    return f"{head} role='img'>\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


def _text(x: float, y: float, text: str, more: str = "", whole: str = "") -> str:
    """A text; `whole` is shown by the mouse where the text had to be cut."""
    title = f"<title>{escape(whole)}</title>" if whole and whole != text else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}{title}</text>"


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
