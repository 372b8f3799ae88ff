"""Pages of pictures and tables in the look of the main report, without scripts: sweeps, stages of groups.

Pictures are small SVG files, written by hand, for light and dark pages. `stages_svg` is the Gantt of stages: jobs on
resources in one interleaved iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plait.control.compare import compare
from plait.control.metrics import RunResult
from plait.core.errors import InputError, suggest
from plait.core.resources import Resource
from plait.core.turns import slots_s
from plait.report.files import write_text
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
    return _svg(width, 48 + 28 * len(rows), f"{chosen.label} of {', '.join(names)}. {chosen.meaning}", parts)


def _text(x: float, y: float, text: str, more: str = "", whole: str = "") -> str:
    """A text; `whole` is shown by the mouse where the text had to be cut."""
    title = f"<title>{escape(whole)}</title>" if whole and whole != text else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}{title}</text>"


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    body = "\n".join(parts)
    return f"{head} role='img'>\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


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


COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#edc948", "#9c755f")
WIDTH, LEFT, ROW, TOP = 860, 90, 30, 26

LEAD = (
    "One iteration of each group of jobs that took turns on the same GPUs, drawn from the stage times measured while "
    "each job was alone. Between two lines every job is on another resource."
)


@dataclass(frozen=True)
class StageRow:
    """One job in a group: its name, turn, and seconds on each resource."""

    name: str
    turn: int
    stage_s: tuple[float, ...]


@dataclass(frozen=True)
class StageGroup:
    """A group to draw: a heading, sentences below it, and its jobs."""

    title: str
    notes: tuple[str, ...]
    rows: tuple[StageRow, ...]


def stages_svg(rows: Sequence[StageRow]) -> str:
    """One iteration of the group: a line a resource, a bar a stage, slots between thin lines."""
    k = len(Resource)
    length = slots_s([row.stage_s for row in rows], [row.turn for row in rows])
    total = sum(length) or 1.0
    scale = (WIDTH - LEFT - 10) / total
    height = TOP + k * ROW + 24
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    out = [f'<svg {box} role="img" font-size="12" font-family="sans-serif" xmlns="http://www.w3.org/2000/svg">']
    for r in Resource:
        y = TOP + int(r) * ROW
        out.append(f'<text x="{LEFT - 8}" y="{y + 19}" text-anchor="end" fill="currentColor">{r.name.lower()}</text>')
    at = float(LEFT)
    for s in range(k):
        out.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 4}" y2="{TOP + k * ROW}" stroke="currentColor" '
            'stroke-opacity=".3"/>'
        )
        used: dict[int, float] = {}
        for i, row in enumerate(rows):
            resource = (s + row.turn) % k
            width = row.stage_s[resource] * scale
            if width <= 0:
                continue
            x = at + used.get(resource, 0.0)
            used[resource] = used.get(resource, 0.0) + width
            y = TOP + resource * ROW + 3
            what = f"{row.name}: {Resource(resource).name.lower()} {1000 * row.stage_s[resource]:.1f} ms"
            out.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 1):.1f}" height="{ROW - 6}" rx="2" '
                f'fill="{COLOURS[i % len(COLOURS)]}"><title>{escape(what)}</title></rect>'
            )
            if width > 9 * len(row.name):
                out.append(f'<text x="{x + 4:.1f}" y="{y + 16}" fill="#fff">{escape(row.name)}</text>')
        at += length[s] * scale
    out.append(f'<text x="{LEFT}" y="{height - 8}" fill="currentColor">0</text>')
    end = f"{1000 * total:.1f} ms"
    out.append(f'<text x="{WIDTH - 10}" y="{height - 8}" text-anchor="end" fill="currentColor">{end}</text></svg>')
    return "\n".join(out)


def stages_page(groups: Sequence[StageGroup], title: str) -> str:
    """A self-contained page: each group's iteration, a legend, and predicted and measured times."""
    sections = []
    for group in groups:
        known = all(math.isfinite(v) for row in group.rows for v in row.stage_s)
        keys = [{"colour": COLOURS[i % len(COLOURS)], "name": row.name} for i, row in enumerate(group.rows)]
        missing = () if known else ("Not all stage times of this group were measured.",)
        figures = [Markup(stages_svg(group.rows))] if known else []
        sections.append(Section(group.title, figures, keys, notes=(*group.notes, *missing), wide=True))
    if not groups:
        sections.append(Section("No groups", notes=("No jobs took turns in this run.",)))
    facts = [f"{len(groups)} group{'s' * (len(groups) != 1)}"]
    return sections_page(sections, title=title, brand="stages of interleaved jobs", facts=facts, lead=LEAD)


def write_stages(groups: Sequence[StageGroup], path: str | Path, title: str = "Stages") -> None:
    """Write the page of `groups` (`stages_page`) to `path`; raises `OSError`."""
    write_text(path, stages_page(groups, title))
