"""The Gantt of stages: jobs on resources in one interleaved iteration, as SVG without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markupsafe import Markup

from plait.core.resources import Resource
from plait.core.turns import slots_s
from plait.report.files import write_text
from plait.report.sections import Section, sections_page

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
